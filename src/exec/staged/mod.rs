//! Quantiles as stages, for engines whose plans are fixed before they run: a constant number of them, for any data.
//!
//! ```text
//! RefineExec: answers            1    keys of the brackets -> the row of answers
//!   RoundExec: count             P    input again, and the state: counts around its brackets, copies what lies inside
//!     input | RefineExec: state  1    merged summaries -> brackets, in one row
//!               RoundExec: sketch P   input: a summary of each column
//! ```
//! These are the rounds of `gk_select`, unrolled; other strategies have more of them. [`crate::select::Strategy`] steps in a
//! `RefineExec`, lanes answer in a `RoundExec`. The input is read once a round: every scan says how many values it saw and
//! the sum of their mixed keys, and where scans differ the query fails. Between stages travel rows of a few KiB, of the
//! messages of [`crate::kernel::round`].
//!
//! Replies of more than 256 partitions that add up (sketches, counts) go up a tree, so that no task fetches them all:
//!
//! ```text
//! RefineExec            1          at most 256 merged replies
//!   MergeExec           P / 128    about 128 replies each, as a hash of their checksums has it
//!     RoundExec         P
//! ```
//! and the same again where those are more than 256. Keys do not add up: they are as many on any way.
//!
//! Quantiles with `GROUP BY`: [`GroupStageExec`].

mod cost;
mod device;
mod groups;
mod merge;
mod refine;
mod round;
mod rounds;
mod rows;
mod source;
mod state;
#[cfg(test)]
mod tests;
#[cfg(feature = "ballista")]
pub(crate) mod wire;

use std::ops::Deref;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{DataFusionError, Result, exec_err, internal_datafusion_err, internal_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::TryStreamExt;
use tokio::sync::OnceCell;

pub(crate) use cost::{GroupWorkload, Workload};
pub use device::RoundDevice;
pub use groups::GroupStageExec;
pub(crate) use groups::{GroupedColumns, group_stages};
use groups::{MOST_GROUPS, MOST_RANKS};
pub use merge::MergeExec;
pub use refine::RefineExec;
pub use round::RoundExec;
pub(crate) use rounds::Rounds;

use crate::key::KeySpec;
use crate::quantile::Ask;
use crate::quantile::{Selected, SelectedColumn};

/// A point that a stage has reached: in the log, and in tests one where it can stop.
macro_rules! reached {
    ($point:literal) => {
        log::debug!(concat!("reached ", $point));
        crate::failpoint::may_fail!($point);
    };
}
pub(super) use reached;

/// How the error starts where scans of one input differ.
pub(crate) const READ_DIFFERENTLY: &str =
    "input changed between rounds, or a partition was lost or read twice";

/// What a staged plan computes: its key columns and the calls over them, and in which rounds.
#[derive(Debug, Clone)]
pub(crate) struct StagedColumns {
    columns: KeyColumns,
    rounds: Rounds,
}

impl Deref for StagedColumns {
    type Target = KeyColumns;

    fn deref(&self) -> &KeyColumns {
        &self.columns
    }
}

/// Key columns, and the calls over them.
#[derive(Debug, Clone)]
pub(crate) struct KeyColumns {
    /// The calls, in the order of the output: a column each.
    calls: Vec<StagedCall>,
    /// Keys of each column of the input.
    specs: Vec<KeySpec>,
    /// Of each call.
    selected: Vec<SelectedColumn>,
}

/// One call over a column of the input.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StagedCall {
    /// The column's number.
    pub(crate) column: usize,
    pub(crate) ask: Ask,
    /// Whether the answer is a list.
    pub(crate) is_list: bool,
    /// Whether the ranks of the answers are wanted too.
    pub(crate) bounds: bool,
}

impl StagedColumns {
    /// As [`KeyColumns::try_new`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn try_new(types: Vec<DataType>, calls: Vec<StagedCall>, rounds: Rounds) -> Result<Self> {
        let columns = KeyColumns::try_new(types, calls)?;
        Ok(Self { columns, rounds })
    }
}

impl KeyColumns {
    /// `calls` over columns of these types, at least one over each.
    ///
    /// # Errors
    /// A planning error for types without keys of fixed width; an internal error for columns without calls.
    pub(crate) fn try_new(types: Vec<DataType>, calls: Vec<StagedCall>) -> Result<Self> {
        let mut specs = vec![None; types.len()];
        let mut selected = Vec::with_capacity(calls.len());
        for call in &calls {
            let Some(data_type) = types.get(call.column) else {
                return internal_err!("a call over column {} of {}", call.column, types.len());
            };
            match Selected::try_new(data_type, call.ask.clone(), call.is_list, false)? {
                Selected::Keys(column) => {
                    specs[call.column] = Some(column.spec().clone());
                    selected.push(column);
                }
                Selected::Bytes(_) => return internal_err!("stages over values of type {data_type}"),
            }
        }
        let specs: Option<Vec<_>> = specs.into_iter().collect();
        Ok(Self {
            specs: specs.ok_or_else(|| internal_datafusion_err!("a column of stages without calls"))?,
            calls,
            selected,
        })
    }

    fn len(&self) -> usize {
        self.specs.len()
    }

    fn specs(&self) -> impl Iterator<Item = &KeySpec> {
        self.specs.iter()
    }

    /// What is asked of a column.
    fn asks(&self, column: usize) -> Vec<&Ask> {
        let own = self.calls.iter().filter(|call| call.column == column);
        own.map(|call| &call.ask).collect()
    }
}

/// Replies that one task merges, at most, but for what a hash spreads unevenly.
const FAN_IN: usize = 256;

/// Groups of replies to merge, level by level, before one task has them all.
fn merge_levels(partitions: usize) -> impl Iterator<Item = u64> {
    let fewer = |partitions: &usize| (*partitions > FAN_IN).then(|| partitions.div_ceil(FAN_IN / 2));
    std::iter::successors(fewer(&partitions), fewer).map(|groups| groups as u64)
}

/// The plan: `input` is executed once for each read, with a column of values for each key column; it may still be cut into
/// more partitions, up to `partitions`.
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
        let input = match read {
            0 => Arc::clone(input),
            // What it keeps while it runs is its own.
            _ => reset_plan_states(Arc::clone(input))?,
        };
        let mut round: Arc<dyn ExecutionPlan> =
            Arc::new(RoundExec::new(input, state, Arc::clone(&columns), read));
        if columns.rounds.is_summed(read) {
            for groups in merge_levels(partitions) {
                round = Arc::new(MergeExec::try_new(round, Arc::clone(&columns), read, groups)?);
            }
        }
        let round = gathered(round);
        if read + 1 == reads {
            return Ok(Arc::new(RefineExec::new(round, columns, read, Some(schema))));
        }
        let refined = Arc::new(RefineExec::new(round, Arc::clone(&columns), read, None));
        // A fetch keeps what is below in a stage of its own, which runs once.
        let fetched: Arc<dyn ExecutionPlan> =
            Arc::new(CoalescePartitionsExec::new(refined).with_fetch(Some(1)));
        state = Some(fetched);
    }
    internal_err!("a staged plan without reads")
}

fn gathered(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match plan.output_partitioning().partition_count() {
        1 => plan,
        _ => Arc::new(CoalescePartitionsExec::new(plan)),
    }
}

/// The single row of a plan that gives a state.
async fn single_state(plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> Result<Vec<u8>> {
    let batches: Vec<_> = plan.execute(0, Arc::clone(context))?.try_collect().await?;
    let mut found = batches.iter().filter(|batch| batch.num_rows() > 0);
    match (found.next(), found.next()) {
        (Some(batch), None) if batch.num_rows() == 1 => rows::state_of(batch, 0).map(<[u8]>::to_vec),
        _ => exec_err!("{READ_DIFFERENTLY}: a stage gave no single state"),
    }
}

/// A state, fetched once for all partitions of a stage that this node runs; or why not.
#[derive(Debug)]
struct Fetched<T>(OnceCell<Result<Arc<T>, Arc<DataFusionError>>>);

impl<T> Default for Fetched<T> {
    fn default() -> Self {
        Self(OnceCell::new())
    }
}

impl<T> Fetched<T> {
    /// The state; the first to ask for it fetches it.
    ///
    /// # Errors
    /// Those of `fetch`, for all that ask.
    async fn get(&self, fetch: impl Future<Output = Result<T>>) -> Result<Arc<T>> {
        let fetch = || async { fetch.await.map(Arc::new).map_err(Arc::new) };
        let state = self.0.get_or_init(fetch).await.clone();
        state.map_err(DataFusionError::Shared)
    }
}
