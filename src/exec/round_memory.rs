//! Memory for the rounds. It is set aside after the scan: memory that the collected values left free, or give back by going to disk.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};

use super::collected::CollectedColumn;
use crate::key::Width;
use crate::memory::MemoryBudget;
use crate::memory::RoundMemory;
use crate::select::choose::Plan;
use crate::threads::blocking;
use crate::threads::{Stop, StopOnDrop};

/// The collected values of every column, one for each partition. Columns that are already solved have none.
pub(super) type Columns = Vec<Vec<CollectedColumn>>;

/// Bytes that the rounds may free by writing keys to disk, in a pool that does not say how large it is.
const UNKNOWN_POOL_BYTES: usize = 64 << 20;

/// Bytes that the rounds may free by writing keys to disk; `None`: the pool has no limit.
fn most_bytes(pool: &dyn MemoryPool) -> Option<usize> {
    match pool.memory_limit() {
        MemoryLimit::Infinite => None,
        MemoryLimit::Finite(limit) => Some(limit / 3),
        MemoryLimit::Unknown => Some(UNKNOWN_POOL_BYTES),
    }
}

/// The memory that the rounds over one column need.
pub(super) struct ColumnNeed {
    /// Number of values in the column.
    pub(super) values: u64,
    /// Width of the column's keys.
    pub(super) width: Width,
    /// Whether the rounds collect all keys, not only those around the target ranks.
    pub(super) distinct: bool,
    /// Least bytes to set aside for each thread.
    pub(super) bytes_per_thread: usize,
    /// Bytes of the pool to leave free for each thread, besides those set aside.
    pub(super) free_bytes_per_thread: usize,
}

impl ColumnNeed {
    /// The possible plans of how much to set aside, best first.
    fn plans(&self, threads: usize) -> Vec<Plan> {
        let plans = Plan::wanted(self.values, self.width, threads, self.distinct);
        let at_least = |plan: Plan| Plan {
            bytes: plan.bytes.max(plan.threads * self.bytes_per_thread),
            ..plan
        };
        plans.map(at_least).collect()
    }

    /// Sets aside the memory of `plan`, if the bytes to leave free are there besides.
    fn set_aside(&self, plan: &Plan, round_memory: &RoundMemory) -> Result<()> {
        if self.free_bytes_per_thread > 0 {
            round_memory.set_aside(plan.bytes + plan.threads * self.free_bytes_per_thread)?;
        }
        round_memory.set_aside(plan.bytes)
    }
}

/// Sets memory aside for the rounds over a column on at most `threads` threads. Where too little is free, collected values are
/// written to disk.
///
/// # Errors
/// `ResourcesExhausted` if not even the smallest plan fits, or the disk is full.
pub(super) async fn reserve_for_rounds(
    columns: Columns,
    need: ColumnNeed,
    threads: usize,
    pool: &dyn MemoryPool,
    round_memory: &Arc<RoundMemory>,
) -> Result<(Columns, Plan)> {
    let Some(most) = most_bytes(pool) else {
        let plan = Plan {
            budget: MemoryBudget::UNLIMITED,
            threads,
            bytes: 0,
        };
        return Ok((columns, plan));
    };
    let plans = need.plans(threads);
    let fair = plans.iter().position(|plan| plan.bytes <= most);
    let fair = fair.unwrap_or(plans.len() - 1);
    // With half of a fair share, one more round may run. Writing keys to disk costs more than that.
    let mut good = plans
        .iter()
        .take_while(|plan| plan.bytes * 2 >= plans[fair].bytes);
    if let Some(plan) = good.find(|plan| need.set_aside(plan, round_memory).is_ok()) {
        return Ok((columns, *plan));
    }
    let rest = plans[fair..].to_vec();
    let stop = Stop::default();
    let _stopped_when_dropped = StopOnDrop(stop.clone());
    let round_memory = Arc::clone(round_memory);
    blocking(move || spill_for(columns, &need, &rest, &round_memory, &stop)).await
}

/// Writes collected values to disk, the largest columns first, until the first of `plans` fits. If it never does, takes the first of
/// the others that fits.
fn spill_for(
    mut columns: Columns,
    need: &ColumnNeed,
    plans: &[Plan],
    round_memory: &Arc<RoundMemory>,
    stop: &Stop,
) -> Result<(Columns, Plan)> {
    let mut largest_first: Vec<&mut CollectedColumn> = columns.iter_mut().flatten().collect();
    largest_first.sort_by_key(|column| std::cmp::Reverse(column.held_bytes()));
    let mut plans = plans.iter();
    let Some(mut plan) = plans.next() else {
        return internal_err!("no plan for the memory of rounds");
    };
    let (mut refused, mut wanted) = (Ok(()), plan.bytes + plan.threads * need.free_bytes_per_thread);
    for column in largest_first {
        let given = column.spill(wanted, stop)? + column.seal();
        wanted = wanted.saturating_sub(given);
        if given > 0 {
            refused = need.set_aside(plan, round_memory);
            if refused.is_ok() {
                return Ok((columns, *plan));
            }
        }
    }
    for smaller in plans {
        plan = smaller;
        refused = need.set_aside(plan, round_memory);
        if refused.is_ok() {
            return Ok((columns, *plan));
        }
    }
    let bytes = plan.bytes;
    refused.map_err(|error| {
        error.context(format!(
            "the memory limit is too small for exact quantiles: {bytes} bytes wanted to select in, with all on \
             disk that can go there"
        ))
    })?;
    Ok((columns, *plan))
}
