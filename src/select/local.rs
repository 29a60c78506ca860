//! Shards of this process, which answer rounds on threads.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::{Result, exec_datafusion_err};

use super::Shards;
use crate::failpoint::may_fail;
use crate::kernel::Shard;
use crate::kernel::round::{Reply, Request};
#[cfg(feature = "cuda")]
use crate::key::KeyBits;
use crate::key::Width;
use crate::memory::{Lease, MemoryBudget, RoundMemory};
use crate::threads::{Stop, ThreadPool};

/// Values up to which the calling thread answers a round itself: waking threads would cost more.
const INLINE: u64 = 1 << 16;

/// Shards that one thread answers for.
type ThreadShards = Vec<Box<dyn Shard>>;

/// Shards in groups of about equal size, one group for each thread of a [`ThreadPool`]. Dropping the shards stops their work.
pub struct LocalShards {
    width: Width,
    population: u64,
    groups: Vec<ThreadShards>,
    pool: ThreadPool,
    budget: MemoryBudget,
    /// Memory for merged replies; `None` if nothing is reserved for them.
    round_memory: Option<Arc<RoundMemory>>,
    /// Memory for the last sample, which strategies keep.
    sample: Option<Lease>,
}

impl LocalShards {
    /// Spreads the keys of `shards` over at most `threads` threads of [`ThreadPool::new`]. Shards that are too large for one thread
    /// are split. `stop` ends their rounds.
    pub fn new(width: Width, shards: Vec<Box<dyn Shard>>, threads: usize, stop: Stop) -> Self {
        Self::on(width, shards, ThreadPool::new(threads, stop))
    }

    /// Spreads the shards as [`Self::new`], on the threads of [`ThreadPool::scoped`]: a round's future is ready when it is first polled.
    pub fn blocking(width: Width, shards: Vec<Box<dyn Shard>>, threads: usize, stop: Stop) -> Self {
        Self::on(width, shards, ThreadPool::scoped(threads, stop))
    }

    /// Spreads the shards as [`Self::new`], on the threads of `pool`.
    pub(crate) fn on(width: Width, shards: Vec<Box<dyn Shard>>, pool: ThreadPool) -> Self {
        let population = shards.iter().map(|shard| shard.len()).sum();
        let groups = balance(shards, pool.threads(), population);
        Self {
            width,
            population,
            groups,
            pool,
            budget: MemoryBudget::UNLIMITED,
            round_memory: None,
            sample: None,
        }
    }

    /// Limits the rounds to this budget, and reserves merged replies in `round_memory`.
    pub(crate) fn within(mut self, budget: MemoryBudget, round_memory: Arc<RoundMemory>) -> Self {
        (self.budget, self.round_memory) = (budget, Some(round_memory));
        self
    }

    /// Memory for the counts of every group and for the merged ones, while a count is answered.
    fn hold_counts(&self, request: &Request) -> Result<Option<Lease>> {
        match (request, &self.round_memory) {
            (Request::Count { cells, .. }, Some(round_memory)) => {
                let bytes = (1 + self.groups.len()) * cells.len() * size_of::<u64>();
                round_memory.hold(bytes, "counts").map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Holds memory for a sample until the next one.
    fn hold_sample(&mut self, reply: &Reply) -> Result<()> {
        if let (Reply::Sample { keys, .. }, Some(round_memory)) = (reply, &self.round_memory) {
            // A sort that merges needs as much memory again.
            self.sample = Some(round_memory.hold(2 * keys.len() * self.width.bytes(), "a sample")?);
        }
        Ok(())
    }

    /// The keys of `ranks`, if one shard holds all values and can find them alone.
    ///
    /// # Errors
    /// Those of [`Shard::select`].
    #[cfg(feature = "cuda")]
    pub(crate) fn select_alone(&mut self, ranks: &[u64]) -> Result<Option<Vec<KeyBits>>> {
        let shards = self.groups.iter_mut().flatten().collect::<Vec<_>>();
        match <[_; 1]>::try_from(shards) {
            Ok([shard]) => shard.select(ranks, self.pool.stop()),
            Err(_) => Ok(None),
        }
    }

    /// The merged reply of all shards. The shards move to the threads with the work: a round that failed or was cancelled loses them,
    /// and the selection ends with it.
    async fn merged_reply(&mut self, request: Arc<Request>) -> Result<Reply> {
        let replies = if self.groups.len() == 1 && self.population <= INLINE {
            vec![answer(&mut self.groups[0], &request, self.pool.stop())?]
        } else {
            let groups = std::mem::take(&mut self.groups);
            let answers = self.pool.map(groups, move |mut group, stop| {
                let reply = answer(&mut group, &request, stop)?;
                Ok((group, reply))
            });
            let (groups, replies) = answers.await?.into_iter().unzip();
            self.groups = groups;
            replies
        };
        may_fail!("merge");
        merged(replies)
    }
}

/// Cuts shards to about an equal number of keys, then gives each, largest first, to the group with the fewest keys.
fn balance(shards: Vec<Box<dyn Shard>>, threads: usize, population: u64) -> Vec<ThreadShards> {
    let share = population.div_ceil(threads as u64).max(INLINE);
    let mut pieces = Vec::new();
    for mut shard in shards.into_iter().filter(|shard| !shard.is_empty()) {
        while shard.len() > share + share / 8 {
            match shard.split(share) {
                Some(piece) => pieces.push(piece),
                None => break,
            }
        }
        pieces.push(shard);
    }
    pieces.sort_by_key(|shard| std::cmp::Reverse(shard.len()));
    let mut groups: Vec<(u64, ThreadShards)> = (0..threads).map(|_| (0, Vec::new())).collect();
    for piece in pieces {
        if let Some(least) = groups.iter_mut().min_by_key(|group| group.0) {
            least.0 += piece.len();
            least.1.push(piece);
        }
    }
    groups
        .into_iter()
        .map(|group| group.1)
        .filter(|group| !group.is_empty())
        .collect()
}

/// The merged reply of a group, whose shards answer one after the other.
fn answer(group: &mut ThreadShards, request: &Request, stop: &Stop) -> Result<Reply> {
    let replies = group.iter_mut().map(|shard| shard.answer(request, stop));
    merged(replies.collect::<Result<_>>()?)
}

/// The merged reply of several shards or groups, at least one.
fn merged(replies: Vec<Reply>) -> Result<Reply> {
    Reply::merged(replies)?.ok_or_else(|| exec_datafusion_err!("a round was asked of no shard"))
}

#[async_trait]
impl Shards for LocalShards {
    fn width(&self) -> Width {
        self.width
    }

    fn population(&self) -> u64 {
        self.population
    }

    fn parallelism(&self) -> usize {
        self.groups.len().max(1)
    }

    fn budget(&self) -> MemoryBudget {
        self.budget
    }

    async fn round(&mut self, request: Arc<Request>) -> Result<Reply> {
        let _counts = self.hold_counts(&request)?;
        let reply = self.merged_reply(request).await?;
        self.hold_sample(&reply)?;
        Ok(reply)
    }
}
