//! The operator behind `topk_by` with `GROUP BY`, and behind `ROW_NUMBER()` or `RANK()` up to a constant.
//!
//! ```text
//! partition 0 ─ scan ─ few groups:  a sieve, whose floors reject most rows        ─┐
//!                      many groups: runs, rows in order of their group's part      ┤ (past the memory limit: on disk)
//! partition 1 ─ scan ─ ...                                                        ─┤
//!                                                                                  │
//!   few:  the best rows of all scans through one more sieve ───────────────────────┼─> one batch
//!   many: part by part: number groups, bring keys together, rank, take the rows ───┴─> a batch for each part
//! ```

mod compact;
mod many;
mod partial;
mod plan;
mod run;
mod scan;
mod select;

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, Partitioning, PlanProperties, ReplaceChildrenOptions,
};

use self::plan::TopKPlan;
pub(super) use self::plan::in_words;
pub(crate) use self::plan::{Answer, Numbering, OutputColumn, SortBy, TopKSpec};
use super::numbered::{numbered, unnumbered, with_numbers};
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
#[derive(Debug, Clone)]
pub struct GroupedTopKExec {
    input: Arc<dyn ExecutionPlan>,
    plan: Arc<TopKPlan>,
    mode: Mode,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
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
        Ok(Self::over(input, Arc::new(plan), mode))
    }

    /// What another machine must know of it, with the schema of the answer; `None`: it does not travel.
    #[cfg(feature = "ballista")]
    pub(crate) fn sent(&self) -> Option<(&TopKSpec, &SchemaRef, Mode)> {
        (self.mode != Mode::Single).then_some((self.plan.spec(), &self.plan.schema, self.mode))
    }

    fn over(input: Arc<dyn ExecutionPlan>, plan: Arc<TopKPlan>, mode: Mode) -> Self {
        let schema = match mode {
            Mode::Partial => numbered(&plan.schema),
            Mode::Single | Mode::Final => Arc::clone(&plan.schema),
        };
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(mode.partitions(input.output_partitioning().partition_count())),
            EmissionType::Final,
            input.boundedness(),
        ));
        Self {
            input,
            plan,
            mode,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn with_input(&self, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => Ok(Arc::new(Self::over(input, Arc::clone(&self.plan), self.mode))),
            _ => internal_err!("GroupedTopKExec has one input"),
        }
    }
}

impl DisplayAs for GroupedTopKExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => writeln!(f, "{}{}", self.mode, self.plan),
            _ => write!(f, "GroupedTopKExec: {}{}", self.mode, self.plan),
        }
    }
}

impl ExecutionPlan for GroupedTopKExec {
    fn name(&self) -> &str {
        "GroupedTopKExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![match self.mode {
            Mode::Single | Mode::Partial => Distribution::UnspecifiedDistribution,
            Mode::Final => by_key(&self.input, self.plan.group().to_vec()),
        }])
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![self.mode == Mode::Single]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_input(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_input(children)
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for expr in self.plan.expressions() {
            if f(expr)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let streams = self.mode.streams(&self.input, partition, self.name(), &context)?;
        // Not as one that can spill: a fair pool bounds each reservation of such a consumer, and not their sum.
        let memory = MemoryConsumer::new(self.name()).register(context.memory_pool());
        let (plan, metrics) = (Arc::clone(&self.plan), (&self.metrics, partition));
        match self.mode {
            Mode::Partial => partial::stream(plan, streams, memory, metrics, &context).map(with_numbers),
            Mode::Single => {
                let threads = context.session_config().target_partitions();
                run::stream(plan, streams, memory, metrics, &context, threads)
            }
            // Other partitions have threads of their own.
            Mode::Final => run::stream(plan, streams, memory, metrics, &context, 1),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
