//! Memory for the rounds: set aside when the scan is over, from what the keys have left or have to leave.

use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};

use crate::kernel::choose::{Plan, Room};
use crate::kernel::memory::Workspace;
use crate::kernel::{Lane, Stop};
use crate::key::Width;

/// The lanes of every column that is still to be solved.
pub(super) type Columns = Vec<Vec<Box<dyn Lane>>>;

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
}

/// Sets memory aside for the rounds over a column on at most `threads` threads: as much as there is, or as lanes give back
/// by writing their keys to disk.
///
/// # Errors
/// `ResourcesExhausted` where not even the least is there, or the disk is full.
pub(super) async fn make_room(
    columns: Columns,
    wanting: Wanting,
    threads: usize,
    pool: &dyn MemoryPool,
    workspace: &Arc<Workspace>,
) -> Result<(Columns, Plan)> {
    let Some(most) = most(pool) else {
        let plan = Plan {
            room: Room::UNLIMITED,
            threads,
            bytes: 0,
        };
        return Ok((columns, plan));
    };
    let plans: Vec<Plan> = {
        let Wanting { n, width, distinct } = wanting;
        Room::wanted(n, width, threads, distinct).collect()
    };
    let fair = plans.iter().position(|plan| plan.bytes <= most);
    let fair = fair.unwrap_or(plans.len() - 1);
    // Half of a fair share costs a round more at times; writing keys out costs more.
    let mut good = plans
        .iter()
        .take_while(|plan| plan.bytes * 2 >= plans[fair].bytes);
    if let Some(plan) = good.find(|plan| workspace.set_aside(plan.bytes).is_ok()) {
        return Ok((columns, *plan));
    }
    let rest = plans[fair..].to_vec();
    let stop = Stop::default();
    let _stopped_when_dropped = StopOnDrop(stop.clone());
    let workspace = Arc::clone(workspace);
    let spilled = SpawnedTask::spawn_blocking(move || spill_for(columns, &rest, &workspace, &stop));
    let spilled = spilled.join().await;
    spilled.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?
}

struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Has the lanes that hold most write their keys to disk until the first of `plans` fits; if it never does, the best that
/// fits then.
fn spill_for(
    mut columns: Columns,
    plans: &[Plan],
    workspace: &Arc<Workspace>,
    stop: &Stop,
) -> Result<(Columns, Plan)> {
    let mut lanes: Vec<&mut Box<dyn Lane>> = columns.iter_mut().flatten().collect();
    lanes.sort_by_key(|lane| std::cmp::Reverse(lane.held_bytes()));
    let mut plans = plans.iter();
    let Some(mut plan) = plans.next() else {
        return internal_err!("no plan for the memory of rounds");
    };
    let (mut refused, mut wanted) = (Ok(()), plan.bytes);
    for lane in lanes {
        let given = lane.spill(wanted, stop)?;
        wanted = wanted.saturating_sub(given);
        if given > 0 {
            refused = workspace.set_aside(plan.bytes);
            if refused.is_ok() {
                return Ok((columns, *plan));
            }
        }
    }
    for smaller in plans {
        plan = smaller;
        refused = workspace.set_aside(plan.bytes);
        if refused.is_ok() {
            return Ok((columns, *plan));
        }
    }
    let bytes = plan.bytes;
    refused.map_err(|error| {
        error.context(format!(
            "the memory limit is too small for exact quantiles: {bytes} bytes wanted to select in, with all keys on \
             disk that can go there"
        ))
    })?;
    Ok((columns, *plan))
}
