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
    let mut refused = need.set_aside(plan, round_memory);
    if refused.is_ok() {
        return Ok((columns, *plan));
    }
    let all = plan.bytes + plan.threads * need.free_bytes_per_thread;
    let mut wanted = all;
    for column in largest_first {
        loop {
            let given = column.spill(wanted, stop)? + column.seal();
            if given == 0 {
                break;
            }
            refused = need.set_aside(plan, round_memory);
            if refused.is_ok() {
                return Ok((columns, *plan));
            }
            // Others may have taken what was given back: then as much is wanted again.
            wanted = match wanted.saturating_sub(given) {
                0 => all,
                rest => rest,
            };
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

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, BooleanArray};
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryReservation};

    use super::*;
    use crate::kernel::Shard;
    use crate::kernel::round::{Reply, Request};

    fn pool(bytes: usize) -> Arc<dyn MemoryPool> {
        Arc::new(GreedyMemoryPool::new(bytes))
    }

    fn reservation(pool: &Arc<dyn MemoryPool>, bytes: usize) -> MemoryReservation {
        let reservation = MemoryConsumer::new("test").register(pool);
        reservation.try_grow(bytes).unwrap();
        reservation
    }

    /// Spills for one plan of 50 bytes.
    fn spilled(columns: Columns, pool: &Arc<dyn MemoryPool>) -> Result<(Columns, Plan)> {
        let need = ColumnNeed {
            values: 1,
            width: Width::W64,
            distinct: false,
            bytes_per_thread: 0,
            free_bytes_per_thread: 0,
        };
        let plan = Plan {
            budget: MemoryBudget::UNLIMITED,
            threads: 1,
            bytes: 50,
        };
        let rounds = RoundMemory::new(reservation(pool, 0));
        spill_for(columns, &need, &[plan], &rounds, &Stop::default())
    }

    #[test]
    fn memory_that_is_refused_to_the_last_plan_is_an_error() {
        let pool = pool(100);
        let _others = reservation(&pool, 60);
        let error = spilled(Vec::new(), &pool).map(drop).unwrap_err().to_string();
        assert!(error.contains("50 bytes wanted to select in"), "{error}");
    }

    /// A shard that spills its bytes, the first of which another consumer takes at once.
    struct Contested {
        own: MemoryReservation,
        others: MemoryReservation,
    }

    impl Shard for Contested {
        fn append(&mut self, _: &ArrayRef, _: Option<&BooleanArray>) -> Result<()> {
            internal_err!("not filled")
        }

        fn len(&self) -> u64 {
            1
        }

        fn held_bytes(&self) -> usize {
            self.own.size()
        }

        fn split(&mut self, _: u64) -> Option<Box<dyn Shard>> {
            None
        }

        fn spill(&mut self, bytes: usize, _: &Stop) -> Result<usize> {
            let given = bytes.min(self.own.size());
            self.own.shrink(given);
            if self.others.size() == 0 {
                self.others.try_grow(given)?;
            }
            Ok(given)
        }

        fn answer(&mut self, _: &Request, _: &Stop) -> Result<Reply> {
            internal_err!("not asked")
        }
    }

    #[test]
    fn more_is_spilled_where_others_take_what_was_given_back() {
        let pool = pool(110);
        let shard = Contested {
            own: reservation(&pool, 110),
            others: reservation(&pool, 0),
        };
        let columns = vec![vec![CollectedColumn::Keys(Box::new(shard))]];
        let (columns, plan) = spilled(columns, &pool).unwrap();
        assert_eq!((plan.bytes, columns[0][0].held_bytes()), (50, 10));
    }
}
