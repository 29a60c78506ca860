//! The end of a selection in which partitions collected the keys around the wanted ranks: all threads select among these keys, as
//! among a smaller column.

use std::sync::Arc;
use std::time::Instant;

use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::progress::Progress;
use super::{LocalShards, RoundTrace, Shards, Solution, solve_ranks};
use crate::config::StrategyName;
use crate::kernel::cpu::shard_of_keys;
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, KeyVec, Width};
use crate::memory::RoundMemory;
use crate::threads::ThreadPool;

/// Collected keys below which one thread selects among them all.
const LEAST: u64 = 1 << 18;

/// The keys that partitions collected in the cells of all wanted ranks.
pub(crate) struct Candidates {
    n: u64,
    ranks: Vec<u64>,
    /// The ranks among the candidates, in the order of `ranks`, of which some may be equal to a neighbour.
    among: Vec<u64>,
    /// The candidates of each partition.
    keys: Vec<KeyVec>,
    start: Instant,
}

impl Candidates {
    /// Takes the collected keys out of the replies of all partitions to `request`, a count of all of the `n` values. `None`, and the
    /// replies are as before, if the keys are few, or do not hold every one of `ranks`, or a partition had no memory for them.
    ///
    /// # Errors
    /// An internal error if the counts contradict each other.
    pub(crate) fn of(
        width: Width,
        n: u64,
        ranks: &[u64],
        request: &Request,
        replies: &mut [Reply],
    ) -> Result<Option<Self>> {
        let start = Instant::now();
        let Request::Count { cells, keep, .. } = request else {
            return Ok(None);
        };
        let mut counts = vec![0_u64; cells.len()];
        for reply in replies.iter() {
            let Reply::Counts { counts: own, kept } = reply else {
                return internal_err!("a reply that does not answer {}", request.name());
            };
            if kept.len() != keep.len() || own.len() != counts.len() {
                return Ok(None);
            }
            counts
                .iter_mut()
                .zip(own)
                .for_each(|(count, own)| *count = count.saturating_add(*own));
        }
        let mut progress = Progress::try_new(width, n, ranks.to_vec())?;
        progress.narrow(cells, &counts, &[], Vec::new())?;
        if progress.candidates() < LEAST || progress.active_ranks() != ranks.len() {
            return Ok(None);
        }
        let (mut lists, mut among, mut before) = (Vec::new(), Vec::new(), 0);
        for active in progress.active() {
            let (first, last) = cells.span(&active.bracket)?;
            let (true, Ok(list)) = (first == last, keep.binary_search(&first)) else {
                return Ok(None);
            };
            lists.push(list);
            let own = progress.ranks_in(active).iter();
            among.extend(own.map(|rank| rank - active.below + before));
            before += active.inside;
        }
        let keys = replies.iter_mut().map(|reply| taken(reply, &lists, width));
        Ok(Some(Self {
            n,
            ranks: ranks.to_vec(),
            among,
            keys: keys.collect::<Result<_>>()?,
            start,
        }))
    }

    /// Selects among the candidates, on the threads of `pool`. `label` names the whole selection.
    ///
    /// # Errors
    /// `ResourcesExhausted`; an error if the work was cancelled.
    pub(crate) async fn solve(
        self,
        label: &'static str,
        memory: &MemoryReservation,
        round_memory: &Arc<RoundMemory>,
        pool: ThreadPool,
    ) -> Result<Solution> {
        let Some(width) = self.keys.first().map(KeyVec::width) else {
            return internal_err!("candidates of no partition");
        };
        let shards = self
            .keys
            .into_iter()
            .map(|keys| shard_of_keys(keys, memory, round_memory));
        let mut shards = LocalShards::on(width, shards.collect::<Result<_>>()?, pool);
        let strategy = shards.strategy(StrategyName::Auto, &self.among)?;
        let candidates = shards.population();
        let mut rounds = vec![RoundTrace {
            request: "count",
            candidates,
            elapsed: self.start.elapsed(),
            values: candidates,
        }];
        let found = solve_ranks(&mut shards, strategy.as_ref(), self.among).await?;
        rounds.extend(found.rounds);
        let keys: Vec<KeyBits> = found.keys;
        Ok(Solution {
            n: self.n,
            strategy: label,
            rounds,
            ranks: self.ranks,
            keys,
            rank_bounds: None,
        })
    }
}

/// Takes the lists of these indices out of a reply, as one.
fn taken(reply: &mut Reply, lists: &[usize], width: Width) -> Result<KeyVec> {
    let Reply::Counts { kept, .. } = reply else {
        return internal_err!("a reply without counts");
    };
    let mut all = KeyVec::new(width);
    for list in lists {
        let own = std::mem::replace(&mut kept[*list], KeyVec::new(width));
        if all.is_empty() {
            all = own;
        } else {
            all.append(own)?;
        }
    }
    Ok(all)
}
