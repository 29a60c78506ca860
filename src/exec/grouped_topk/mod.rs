//! The operator behind `topk_by` with `GROUP BY`, and behind `ROW_NUMBER()` or `RANK()` up to a constant.
//!
//! A work of the [engine for groups](super::group_engine): few groups have a sieve, whose floors reject most rows; of many,
//! the rows of a hash partition are brought together and ranked.

mod compact;
mod execution;
mod partial;
mod partition;
mod plan;
mod select;
mod work;

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{Distribution, ExecutionPlan, PlanProperties};

use self::execution::GroupTopK;
use self::plan::TopKPlan;
pub(super) use self::plan::in_words;
pub(crate) use self::plan::{Answer, Numbering, OutputColumn, SortBy, TopKSpec};
use super::group_engine::{self, Metrics};
use super::numbered::{numbered, unnumbered, with_numbers};
use super::operator::{Execution, Operator, Work, at_the_end};
use super::{Mode, by_key};

/// The best rows of every group: as one list a group (`topk_by`), or as rows with their number (`ROW_NUMBER`, `RANK`).
/// One partition; groups in any order, rows of a group best first.
///
/// Reads each input partition once and in parallel. While groups are few it holds their best rows only; with many, group,
/// key and the wanted columns of each row wait in order of the group's part, in memory that is reserved in the task's
/// pool, and past the pool's limit on disk; now and then a partition drops those that its best rows leave behind. Neither
/// a list nor an allocation is made for any single group.
///
/// On many machines it takes two steps: each partition passes on its best rows while its groups are few, and all rows once
/// they are not (`passed_rows`); those of a group are brought together by the hash of it, and the best of them are the answer.
/// Between the steps each row has a number, and one that comes twice is an error.
///
/// Metrics: `input_rows`, `output_rows`, `groups`, `rejected_rows` (by the floor of their group), `dropped_rows` (held,
/// and dropped before the end), `scan_time` and `select_time` (processor time), `few_groups` or `many_groups` (1 for the
/// way that was taken), `spill_count`, `spilled_bytes`.
pub type GroupedTopKExec = Operator<GroupedTopKWork>;

/// What a [`GroupedTopKExec`] computes, and which step of it.
#[derive(Debug)]
pub struct GroupedTopKWork {
    plan: Arc<TopKPlan>,
    mode: Mode,
}

impl GroupedTopKExec {
    /// What `spec` says of the rows of `input`, under the names and types of `schema`.
    ///
    /// # Errors
    /// An internal error if `schema` is not that of the answer; a planning error for types that have no order.
    pub(crate) fn try_new(input: Arc<dyn ExecutionPlan>, spec: TopKSpec, schema: SchemaRef) -> Result<Self> {
        Self::step(input, spec, schema, Mode::Single)
    }

    /// All of it, or one of the two steps on many machines.
    ///
    /// # Errors
    /// As for [`Self::try_new`]; an internal error if what a partial step gives is not rows of its input, an execution error if
    /// those of a final step have no numbers.
    pub(crate) fn step(
        input: Arc<dyn ExecutionPlan>,
        spec: TopKSpec,
        schema: SchemaRef,
        mode: Mode,
    ) -> Result<Self> {
        let plan = TopKPlan::try_new(spec, &input.schema(), schema)?;
        if mode == Mode::Partial && !plan.passes_rows(&input.schema()) {
            return internal_err!("a partial step gives rows of its input, not {plan}");
        }
        if mode == Mode::Final {
            unnumbered(&input.schema())?;
        }
        let plan = Arc::new(plan);
        Self::over(GroupedTopKWork { plan, mode }, vec![input])
    }

    /// What another machine must know of it, with the schema of the answer; `None`: it does not travel.
    #[cfg(feature = "ballista")]
    pub(crate) fn sent(&self) -> Option<(&TopKSpec, &SchemaRef, Mode)> {
        let GroupedTopKWork { plan, mode } = self.work();
        (*mode != Mode::Single).then_some((plan.spec(), &plan.schema, *mode))
    }
}

impl Work for GroupedTopKWork {
    fn name(&self) -> &'static str {
        "GroupedTopKExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        let schema = match self.mode {
            Mode::Partial => numbered(&self.plan.schema),
            Mode::Single | Mode::Final => Arc::clone(&self.plan.schema),
        };
        Ok(at_the_end(schema, self.mode.partitions(&inputs[0]), &inputs[0]))
    }

    fn details(&self) -> String {
        format!("{}{}", self.mode, self.plan)
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.plan.expressions().cloned().collect()
    }

    fn distribution(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        vec![match self.mode {
            Mode::Single | Mode::Partial => Distribution::UnspecifiedDistribution,
            Mode::Final => by_key(&inputs[0], self.plan.group().to_vec()),
        }]
    }

    fn wants_partitions(&self) -> bool {
        self.mode == Mode::Single
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let (streams, memory) = (self.mode.streams(&on)?, on.memory());
        let (metrics, context) = (Metrics::of(&on), &on.context);
        let work = GroupTopK::try_new(Arc::clone(&self.plan), &metrics)?;
        let threads = match self.mode {
            Mode::Partial => {
                return partial::stream(work, streams, memory, metrics, context).map(with_numbers);
            }
            Mode::Single => context.session_config().target_partitions(),
            // Other partitions have threads of their own.
            Mode::Final => 1,
        };
        group_engine::stream(work, streams, memory, metrics, context, threads)
    }
}
