//! Memory for the rounds: set aside when the scan is over, from what the kept values have left or have to leave.

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

/// What each partition kept of every column that is still to be solved.
pub(super) type Columns = Vec<Vec<CollectedColumn>>;

/// Most that the rounds have keys written to disk for, in a pool that does not say how large it is.
const MOST_OF_UNKNOWN: usize = 64 << 20;

/// Most that the rounds have keys written to disk for; `None`: the pool has no limit.
fn most(pool: &dyn MemoryPool) -> Option<usize> {
    match pool.memory_limit() {
        MemoryLimit::Infinite => None,
        MemoryLimit::Finite(limit) => Some(limit / 3),
        MemoryLimit::Unknown => Some(MOST_OF_UNKNOWN),
    }
}

/// The column that memory is wanted for.
pub(super) struct Wanting {
    /// Values.
    pub(super) n: u64,
    pub(super) width: Width,
    /// Whether all keys are collected, not only those around ranks.
    pub(super) distinct: bool,
    /// Each thread's least.
    pub(super) each: usize,
    /// To be left free for each thread, beside what is set aside.
    pub(super) free: usize,
}

impl Wanting {
    /// What to set aside, best first, and what to find free with it.
    fn plans(&self, threads: usize) -> Vec<Plan> {
        let plans = Plan::wanted(self.n, self.width, threads, self.distinct);
        let at_least = |plan: Plan| Plan {
            bytes: plan.bytes.max(plan.threads * self.each),
            ..plan
        };
        plans.map(at_least).collect()
    }

    fn set_aside(&self, plan: &Plan, round_memory: &RoundMemory) -> Result<()> {
        if self.free > 0 {
            round_memory.set_aside(plan.bytes + plan.threads * self.free)?;
        }
        round_memory.set_aside(plan.bytes)
    }
}

/// Sets memory aside for the rounds over a column on at most `threads` threads: as much as there is, or as is given
/// back by writing what was kept to disk.
///
/// # Errors
/// `ResourcesExhausted` where not even the least is there, or the disk is full.
pub(super) async fn reserve_for_rounds(
    columns: Columns,
    wanting: Wanting,
    threads: usize,
    pool: &dyn MemoryPool,
    round_memory: &Arc<RoundMemory>,
) -> Result<(Columns, Plan)> {
    let Some(most) = most(pool) else {
        let plan = Plan {
            budget: MemoryBudget::UNLIMITED,
            threads,
            bytes: 0,
        };
        return Ok((columns, plan));
    };
    let plans = wanting.plans(threads);
    let fair = plans.iter().position(|plan| plan.bytes <= most);
    let fair = fair.unwrap_or(plans.len() - 1);
    // Half of a fair share costs a round more at times; writing keys out costs more.
    let mut good = plans
        .iter()
        .take_while(|plan| plan.bytes * 2 >= plans[fair].bytes);
    if let Some(plan) = good.find(|plan| wanting.set_aside(plan, round_memory).is_ok()) {
        return Ok((columns, *plan));
    }
    let rest = plans[fair..].to_vec();
    let stop = Stop::default();
    let _stopped_when_dropped = StopOnDrop(stop.clone());
    let round_memory = Arc::clone(round_memory);
    blocking(move || spill_for(columns, &wanting, &rest, &round_memory, &stop)).await
}

/// Has those that hold most write it to disk until the first of `plans` fits; if it never does, the best that
/// fits then.
fn spill_for(
    mut columns: Columns,
    wanting: &Wanting,
    plans: &[Plan],
    round_memory: &Arc<RoundMemory>,
    stop: &Stop,
) -> Result<(Columns, Plan)> {
    let mut holders: Vec<&mut CollectedColumn> = columns.iter_mut().flatten().collect();
    holders.sort_by_key(|kept| std::cmp::Reverse(kept.held_bytes()));
    let mut plans = plans.iter();
    let Some(mut plan) = plans.next() else {
        return internal_err!("no plan for the memory of rounds");
    };
    let (mut refused, mut wanted) = (Ok(()), plan.bytes + plan.threads * wanting.free);
    for kept in holders {
        let given = kept.spill(wanted, stop)? + kept.seal();
        wanted = wanted.saturating_sub(given);
        if given > 0 {
            refused = wanting.set_aside(plan, round_memory);
            if refused.is_ok() {
                return Ok((columns, *plan));
            }
        }
    }
    for smaller in plans {
        plan = smaller;
        refused = wanting.set_aside(plan, round_memory);
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
