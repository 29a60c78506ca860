//! Shards of this process, worked on by threads.

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

/// Below this many values a round is answered where it is asked: waking threads would cost more.
const INLINE: u64 = 1 << 16;

type Group = Vec<Box<dyn Shard>>;

/// Shards in groups of about equal size, one group a thread of a [`ThreadPool`]. Dropping the shards stops what still runs.
pub struct LocalShards {
    width: Width,
    population: u64,
    groups: Vec<Group>,
    pool: ThreadPool,
    budget: MemoryBudget,
    /// What merged replies are reserved in, where the shards share it.
    round_memory: Option<Arc<RoundMemory>>,
    /// For the last sample, which strategies keep.
    sample: Option<Lease>,
}

impl LocalShards {
    /// Spreads what `shards` hold over at most `threads` threads, as [`ThreadPool::new`] has them, splitting shards that are too large for
    /// one. `stop` ends their rounds.
    pub fn new(width: Width, shards: Vec<Box<dyn Shard>>, threads: usize, stop: Stop) -> Self {
        Self::on(width, shards, ThreadPool::new(threads, stop))
    }

    /// As [`Self::new`], on the threads of [`ThreadPool::scoped`]: a round's future is ready when it is first polled.
    pub fn blocking(width: Width, shards: Vec<Box<dyn Shard>>, threads: usize, stop: Stop) -> Self {
        Self::on(width, shards, ThreadPool::scoped(threads, stop))
    }

    /// As [`Self::new`], on the threads of `pool`.
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

    /// The same, in the room that `round_memory` has.
    pub(crate) fn within(mut self, budget: MemoryBudget, round_memory: Arc<RoundMemory>) -> Self {
        (self.budget, self.round_memory) = (budget, Some(round_memory));
        self
    }

    /// Memory for the counts of every group, merged.
    fn hold_counts(&self, request: &Request) -> Result<Option<Lease>> {
        match (request, &self.round_memory) {
            (Request::Count { cells, .. }, Some(round_memory)) => {
                let bytes = (1 + self.groups.len()) * cells.len() * size_of::<u64>();
                round_memory.hold(bytes, "counts").map(Some)
            }
            _ => Ok(None),
        }
    }

    fn hold_sample(&mut self, reply: &Reply) -> Result<()> {
        if let (Reply::Sample { keys, .. }, Some(round_memory)) = (reply, &self.round_memory) {
            // What is sorted by merging needs room to merge in.
            self.sample = Some(round_memory.hold(2 * keys.len() * self.width.bytes(), "a sample")?);
        }
        Ok(())
    }

    /// The keys of `ranks`, where one shard holds all values and finds them alone.
    ///
    /// # Errors
    /// As [`Shard::select`].
    #[cfg(feature = "cuda")]
    pub(crate) fn select_alone(&mut self, ranks: &[u64]) -> Result<Option<Vec<KeyBits>>> {
        let shards = self.groups.iter_mut().flatten().collect::<Vec<_>>();
        match <[_; 1]>::try_from(shards) {
            Ok([shard]) => shard.select(ranks, self.pool.stop()),
            Err(_) => Ok(None),
        }
    }

    /// The merged reply. The shards travel with the work: a round that failed or was cancelled loses them, and the selection with
    /// it.
    async fn merged_reply(&mut self, request: Arc<Request>) -> Result<Reply> {
        if self.groups.len() == 1 && self.population <= INLINE {
            return merge([answer(&mut self.groups[0], &request, self.pool.stop())?]);
        }
        let groups = std::mem::take(&mut self.groups);
        let answers = self.pool.map(groups, move |mut group, stop| {
            let reply = answer(&mut group, &request, stop)?;
            Ok((group, reply))
        });
        let (groups, replies): (_, Vec<_>) = answers.await?.into_iter().unzip();
        self.groups = groups;
        merge(replies)
    }
}

/// Cuts shards to about an equal share, then gives each, largest first, to the group that holds least.
fn balance(shards: Vec<Box<dyn Shard>>, threads: usize, population: u64) -> Vec<Group> {
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
    let mut groups: Vec<(u64, Group)> = (0..threads).map(|_| (0, Vec::new())).collect();
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

/// Merges what the shards of a group answer, one after the other.
fn answer(group: &mut Group, request: &Request, stop: &Stop) -> Result<Option<Reply>> {
    let mut merged: Option<Reply> = None;
    for shard in group {
        let reply = shard.answer(request, stop)?;
        match &mut merged {
            Some(merged) => merged.merge(reply)?,
            None => merged = Some(reply),
        }
    }
    Ok(merged)
}

fn merge(replies: impl IntoIterator<Item = Option<Reply>>) -> Result<Reply> {
    may_fail!("merge");
    let mut replies = replies.into_iter().flatten();
    let first = replies.next();
    let mut merged = first.ok_or_else(|| exec_datafusion_err!("a round was asked of no shard"))?;
    replies.try_for_each(|reply| merged.merge(reply))?;
    Ok(merged)
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
