//! The end of a selection in which partitions collected the keys around the wanted ranks: all threads select among these keys, as
//! among a smaller column.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::progress::Progress;
use super::{LocalShards, RoundTrace, Shards, Solution, Wanted, solve_by};
use crate::config::StrategyName;
use crate::kernel::cpu::shard_of_keys;
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyVec, Width};
use crate::memory::RoundMemory;
use crate::threads::ThreadPool;

/// Collected keys below which one thread selects among them all.
const LEAST: u64 = 1 << 18;

/// The keys that partitions collected in the cells of all wanted ranks.
pub(crate) struct Candidates {
    n: u64,
    wanted: Wanted,
    /// The rank of the same value among the candidates, for each of `ranks`.
    among: Vec<u64>,
    /// The candidates of each partition.
    keys: Vec<KeyVec>,
    start: Instant,
}

impl Candidates {
    /// Takes the collected keys out of the replies of all partitions to `request`, a count of all of the `n` values. `None`, and the
    /// replies are as before, if the keys are few, or do not hold every wanted rank, or a partition had no memory for them: merged
    /// replies say what is wrong, if anything is.
    ///
    /// # Errors
    /// An internal error if the counts contradict each other.
    pub(crate) fn of(
        width: Width,
        n: u64,
        wanted: &Wanted,
        request: &Request,
        replies: &mut [Reply],
    ) -> Result<Option<Self>> {
        let start = Instant::now();
        let Request::Count { cells, keep, .. } = request else {
            return Ok(None);
        };
        let Some(counts) = counts_of(replies, cells.len(), keep.len()) else {
            return Ok(None);
        };
        let mut progress = Progress::try_new(width, n, wanted.ranks.clone())?;
        progress.narrow(cells, &counts, &[], Vec::new())?;
        if progress.candidates() < LEAST {
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
        if among.len() < wanted.ranks.len() {
            return Ok(None);
        }
        let keys = replies.iter_mut().map(|reply| taken(reply, &lists, width));
        Ok(Some(Self {
            n,
            wanted: wanted.clone(),
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
        let wanted = Wanted {
            ranks: self.among,
            bounds: self.wanted.bounds,
        };
        let found = solve_by(&mut shards, strategy.as_ref(), wanted).await?;
        rounds.extend(found.rounds);
        // All copies of a key are among the candidates, so that its ranks are as far apart as there.
        let moved = |bounds: Vec<(u64, u64)>| {
            let ranks = self.wanted.ranks.iter().zip(&found.ranks);
            let bounds = ranks.zip(bounds);
            bounds
                .map(|((rank, among), (least, most))| (rank - (among - least), rank + (most - among)))
                .collect()
        };
        Ok(Solution {
            n: self.n,
            strategy: label,
            rounds,
            rank_bounds: found.rank_bounds.map(moved),
            ranks: self.wanted.ranks,
            keys: found.keys,
            below: BTreeMap::new(),
        })
    }
}

/// The merged counts of `cells` cells. `None` if a reply has no list for each of `kept` cells.
pub(super) fn counts_of(replies: &[Reply], cells: usize, kept: usize) -> Option<Vec<u64>> {
    let mut counts = vec![0_u64; cells];
    for reply in replies {
        let Reply::Counts {
            counts: own,
            kept: lists,
        } = reply
        else {
            return None;
        };
        if lists.len() != kept || own.len() != cells {
            return None;
        }
        for (count, own) in counts.iter_mut().zip(own) {
            *count = count.checked_add(*own)?;
        }
    }
    Some(counts)
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
