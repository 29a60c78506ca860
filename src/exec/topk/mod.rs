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
mod plan;
mod run;
mod runs;
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
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
    ReplaceChildrenOptions,
};

use self::plan::TopKPlan;
pub(super) use self::plan::in_words;
pub(crate) use self::plan::{Answer, Numbering, OutputColumn, SortBy, TopKSpec};

/// The best rows of every group: as one list a group (`topk_by`), or as rows with their number (`ROW_NUMBER`, `RANK`).
/// One partition; groups in any order, rows of a group best first.
///
/// Reads each input partition once and in parallel. While groups are few it holds their best rows only; with many, group,
/// key and the wanted columns of each row wait in order of the group's part, in memory that is reserved in the task's
/// pool, and past the pool's limit on disk; now and then a partition drops those that its best rows leave behind. Neither
/// a list nor an allocation is made for any single group.
///
/// Metrics: `input_rows`, `output_rows`, `groups`, `rejected_rows` (by the floor of their group), `dropped_rows` (held,
/// and dropped before the end), `scan_time` and `select_time` (processor time), `few_groups` or `many_groups` (1 for the
/// way that was taken), `spill_count`, `spilled_bytes`.
#[derive(Debug, Clone)]
pub struct GroupedTopKExec {
    input: Arc<dyn ExecutionPlan>,
    plan: Arc<TopKPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl GroupedTopKExec {
    /// What `spec` says of the rows of `input`, under the names and types of `schema`.
    ///
    /// # Errors
    /// An internal error if `schema` is not that of the answer; a planning error for types that have no order.
    pub(crate) fn try_new(input: Arc<dyn ExecutionPlan>, spec: TopKSpec, schema: SchemaRef) -> Result<Self> {
        let plan = TopKPlan::try_new(spec, &input.schema(), schema)?;
        Ok(Self::over(input, Arc::new(plan)))
    }

    fn over(input: Arc<dyn ExecutionPlan>, plan: Arc<TopKPlan>) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&plan.schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            input.boundedness(),
        ));
        Self {
            input,
            plan,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn with_input(&self, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => Ok(Arc::new(Self::over(input, Arc::clone(&self.plan)))),
            _ => internal_err!("GroupedTopKExec has one input"),
        }
    }
}

impl DisplayAs for GroupedTopKExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => writeln!(f, "{}", self.plan),
            _ => write!(f, "GroupedTopKExec: {}", self.plan),
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

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![true]
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
        if partition != 0 {
            return internal_err!("GroupedTopKExec has one partition, asked for partition {partition}");
        }
        let partitions = self.input.output_partitioning().partition_count();
        let streams = (0..partitions).map(|i| self.input.execute(i, Arc::clone(&context)));
        let streams = streams.collect::<Result<Vec<_>>>()?;
        // Not as one that can spill: a fair pool bounds each reservation of such a consumer, and not their sum.
        let memory = MemoryConsumer::new(self.name()).register(context.memory_pool());
        run::stream(Arc::clone(&self.plan), streams, memory, &self.metrics, &context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
