//! The operator behind `topk_by` with `GROUP BY`, and behind a filter of `ROW_NUMBER()` or `RANK()` up to a constant.
//!
//! It is a work of the [engine for groups](super::group_engine). Few groups share a sieve, which rejects most rows by the floor of their
//! group. For many groups, the rows of a hash partition are brought together and ranked.

mod any_sieve;
mod compact;
mod execution;
mod partial;
mod partition;
mod plan;
mod work;

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{Distribution, ExecutionPlan, PlanProperties};

use self::execution::TopKExecution;
use self::plan::TopKPlan;
pub(super) use self::plan::in_words;
pub(crate) use self::plan::{Answer, Numbering, OutputColumn, SortBy, TopKSpec};
use super::group_engine::{self, Metrics};
use super::numbered::{numbered, unnumbered, with_numbers};
use super::operator::{Execution, Operator, Work, at_the_end};
use super::{Mode, by_key};

/// The best rows of every group: one list for each group (`topk_by`), or rows with their number (`ROW_NUMBER`, `RANK`). The output is
/// one partition, with groups in any order and the rows of a group best first.
///
/// Reads each input partition once and in parallel. While groups are few, it holds only their best rows. With many groups, it holds
/// group, key and wanted columns of each row, in the order of the group's hash partition. They are in memory that is reserved in the
/// task's pool, and past the pool's limit on disk. Each time that the rows of an input partition have doubled, all but the best of
/// each group are dropped, if these are at least half. Neither a list nor an allocation is made for any single group.
///
/// On many machines it takes two steps. First, each partition passes on its best rows while its groups are few, and all further rows
/// once they are many (`passed_rows`). Then the rows of each group are brought together, by the hash of the group, and the best of
/// them are the answer. Between the steps each row has a number; a row that comes twice is an error.
///
/// Metrics: `input_rows`, `output_rows`, `groups`, `rejected_rows` (by the floor of their group), `dropped_rows` (held, and dropped
/// before the end), `scan_time` and `select_time` (processor time), `few_groups` or `many_groups` (1 for the method that ran),
/// `spill_count`, `spilled_bytes`.
pub type GroupedTopKExec = Operator<GroupedTopKWork>;

/// Work of a [`GroupedTopKExec`]: what it computes, and which step of that it is.
#[derive(Debug)]
pub struct GroupedTopKWork {
    plan: Arc<TopKPlan>,
    mode: Mode,
}

impl GroupedTopKExec {
    /// An operator that computes `spec` over the rows of `input`. The output has the names and types of `schema`.
    ///
    /// # Errors
    /// An internal error if `schema` is not that of the answer; a planning error for types that have no order.
    pub(crate) fn try_new(input: Arc<dyn ExecutionPlan>, spec: TopKSpec, schema: SchemaRef) -> Result<Self> {
        Self::step(input, spec, schema, Mode::Single)
    }

    /// An operator that is the step `mode` of computing `spec`.
    ///
    /// # Errors
    /// As for [`Self::try_new`]. An internal error if a partial step would not give rows of its input; an execution error if the
    /// input rows of a final step have no numbers.
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

    /// What the operator computes and the schema of the answer, if it takes one step.
    pub(crate) fn single_step(&self) -> Option<(&TopKSpec, &SchemaRef)> {
        let GroupedTopKWork { plan, mode } = self.work();
        (*mode == Mode::Single).then_some((plan.spec(), &plan.schema))
    }

    /// The parts of the operator that are sent to another machine, with the schema of the answer; `None` if it runs in one process.
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
        let work = TopKExecution::try_new(Arc::clone(&self.plan), &metrics)?;
        let threads = match self.mode {
            Mode::Partial => {
                return partial::stream(work, streams, memory, metrics, context).map(with_numbers);
            }
            Mode::Single => context.session_config().target_partitions(),
            // The other partitions run on threads of their own.
            Mode::Final => 1,
        };
        group_engine::stream(work, streams, memory, metrics, context, threads)
    }
}
