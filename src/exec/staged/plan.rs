//! Plans of stages: for quantiles with and without groups, over an input that is executed once for each read.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::columns::StagedColumns;
use super::groups::{GroupStage, GroupStep, GroupedColumns};
use super::merge::{Merge, merge_levels};
use super::refine::Refine;
use super::round::Round;
use super::stage::stage;

/// A number of rows that no state of groups reaches.
const ALL_ROWS: usize = i32::MAX as usize;

/// The plan of quantiles without groups. `input` has a column of values for each key column; it may still be cut into more
/// partitions, up to `partitions`.
///
/// # Errors
/// DataFusion's, for inputs that cannot be copied.
pub(crate) fn stages(
    input: &Arc<dyn ExecutionPlan>,
    columns: StagedColumns,
    schema: SchemaRef,
    partitions: usize,
) -> Result<Arc<dyn ExecutionPlan>> {
    let (reads, columns) = (columns.rounds.reads(), Arc::new(columns));
    let partitions = partitions.max(input.output_partitioning().partition_count());
    let mut state = None;
    for read in 0..reads {
        let round = Round {
            columns: Arc::clone(&columns),
            read,
        };
        let mut replies = stage(round, read_of(input, read)?, state)?;
        if columns.rounds.is_summed(read) {
            for groups in merge_levels(partitions) {
                let merge = Merge::try_new(Arc::clone(&columns), read, groups)?;
                replies = stage(merge, replies, None)?;
            }
        }
        let is_last = read + 1 == reads;
        let refine = Refine {
            columns: Arc::clone(&columns),
            read,
            answers: is_last.then(|| Arc::clone(&schema)),
        };
        let refined = stage(refine, gathered(replies), None)?;
        if is_last {
            return Ok(refined);
        }
        state = Some(fetched(refined, 1));
    }
    internal_err!("a staged plan without reads")
}

/// The plan of quantiles with groups over `input`, whose first columns are the group columns.
///
/// # Errors
/// DataFusion's, for inputs that cannot be copied.
pub(crate) fn group_stages(
    input: &Arc<dyn ExecutionPlan>,
    columns: GroupedColumns,
) -> Result<Arc<dyn ExecutionPlan>> {
    let columns = Arc::new(columns);
    let step = |stage| GroupStep {
        stage,
        columns: Arc::clone(&columns),
    };
    let counted = stage(step(GroupStage::Count), read_of(input, 0)?, None)?;
    let brackets = stage(step(GroupStage::Brackets), gathered(counted), None)?;
    let state = Some(fetched(brackets, ALL_ROWS));
    let extracted = stage(step(GroupStage::Extract), read_of(input, 1)?, state)?;
    stage(step(GroupStage::Select), extracted, None)
}

/// The input for a read, with a state of execution of its own.
fn read_of(input: &Arc<dyn ExecutionPlan>, read: usize) -> Result<Arc<dyn ExecutionPlan>> {
    match read {
        0 => Ok(Arc::clone(input)),
        _ => reset_plan_states(Arc::clone(input)),
    }
}

/// All rows of a plan in one partition.
pub(super) fn gathered(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match plan.output_partitioning().partition_count() {
        1 => plan,
        _ => Arc::new(CoalescePartitionsExec::new(plan)),
    }
}

/// A state of at most this number of rows. The fetch keeps the plan below it in a stage of its own, which runs once.
fn fetched(state: Arc<dyn ExecutionPlan>, rows: usize) -> Arc<dyn ExecutionPlan> {
    Arc::new(CoalescePartitionsExec::new(state).with_fetch(Some(rows)))
}
