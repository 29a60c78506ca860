//! The operator behind `exact_quantiles` with `GROUP BY`.
//!
//! ```text
//! partition 0 ─ scan ─ few groups:  keys beside the numbers of their groups ─┐
//!                      many groups: runs, rows in order of their group's part ┤ (past the memory limit: on disk)
//! partition 1 ─ scan ─ ...                                                   ─┤
//!                                                                             │
//!   few:  sample, count (group, cell) pairs, take out the wanted cells ───────┼─> one batch
//!   many: part by part: number groups, bring keys together, select in place ──┴─> a batch for each part
//! ```
//! Values without keys go the second way, as byte strings: a part's are brought together and selected as keys are. A
//! group of them that is too large for that is selected as all values are without groups ([`heavy`]).

mod few;
mod giant;
mod groups;
mod heavy;
mod many;
mod output;
mod packing;
mod plain;
mod run;
mod scan;
mod select;
mod worker;

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
    ReplaceChildrenOptions,
};

pub(super) use self::groups::{Grouping, SEED, group_values};
#[cfg(feature = "cuda")]
pub(super) use self::output::{Answers, answered_groups};
pub(super) use self::packing::Packing;
pub(super) use self::run::share;
pub(super) use self::scan::FEW_GROUPS;
use super::aggregate::{Aggregates, ExecAggregate};
use super::quantiles::comma_separated;

/// What a grouped aggregation computes.
#[derive(Debug)]
pub(super) struct GroupPlan {
    group: Vec<Arc<dyn PhysicalExpr>>,
    fields: Vec<FieldRef>,
    aggregates: Aggregates,
    packing: Option<Packing>,
    schema: SchemaRef,
}

impl GroupPlan {
    fn group_schema(&self) -> SchemaRef {
        Arc::new(Schema::new(self.fields.clone()))
    }

    /// Whether quantiles of any call are over a type without keys.
    fn has_byte_strings(&self) -> bool {
        self.aggregates
            .columns
            .iter()
            .any(|column| column.bytes.is_some())
    }

    fn packing(&self) -> Result<&Packing> {
        let packing = self.packing.as_ref();
        packing.ok_or_else(|| internal_datafusion_err!("group columns without words"))
    }
}

/// Exact quantiles of every group, with plain aggregates beside them. One partition, one row for each group, in any
/// order.
///
/// Reads each input partition once and in parallel, and keeps group and key of each row in memory that is reserved in
/// the task's pool; past the pool's limit they go to disk. Cost: the scan, the width of group and key for each value,
/// and a few reads of those. Neither a list nor an allocation is made for any single group.
///
/// Metrics: `input_rows`, `output_rows`, `groups`, `scan_time` and `select_time` (processor time), `few_groups` or
/// `many_groups` (1 for the way that was taken), `spill_count`, `spilled_bytes`.
#[derive(Debug, Clone)]
pub struct GroupedQuantilesExec {
    input: Arc<dyn ExecutionPlan>,
    plan: Arc<GroupPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl GroupedQuantilesExec {
    /// `aggregates` over the rows of `input` that agree in all of `group`, under the names and types of `schema`: one
    /// column for each group expression, then one for each aggregate.
    ///
    /// # Errors
    /// An internal error if `schema` has another number of columns, or there is no group expression.
    pub fn try_new(
        input: Arc<dyn ExecutionPlan>,
        group: Vec<Arc<dyn PhysicalExpr>>,
        aggregates: Vec<ExecAggregate>,
        schema: SchemaRef,
    ) -> Result<Self> {
        if group.is_empty() || schema.fields().len() != group.len() + aggregates.len() {
            return internal_err!(
                "{} group expressions and {} aggregates for {} output columns",
                group.len(),
                aggregates.len(),
                schema.fields().len()
            );
        }
        let input_schema = input.schema();
        let fields = group.iter().zip(schema.fields()).map(|(expr, field)| {
            let expr = expr.return_field(&input_schema)?;
            let nullable = expr.is_nullable() || field.is_nullable();
            let field = field.as_ref().clone().with_data_type(expr.data_type().clone());
            Ok(Arc::new(field.with_nullable(nullable)))
        });
        let fields = fields.collect::<Result<Vec<FieldRef>>>()?;
        let plan = GroupPlan {
            packing: Packing::try_new(&fields),
            group,
            fields,
            aggregates: Aggregates::new(aggregates),
            schema,
        };
        Ok(Self::over(input, Arc::new(plan)))
    }

    fn over(input: Arc<dyn ExecutionPlan>, plan: Arc<GroupPlan>) -> Self {
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
        let (Some(input), true) = (children.pop(), children.is_empty()) else {
            return internal_err!("GroupedQuantilesExec has one input");
        };
        Ok(Arc::new(Self::over(input, Arc::clone(&self.plan))))
    }
}

impl DisplayAs for GroupedQuantilesExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let aggregates = &self.plan.aggregates;
        let groups = comma_separated(self.plan.group.iter());
        let columns = comma_separated(aggregates.columns.iter());
        let calls = comma_separated(aggregates.calls.iter().map(|(_, call)| call));
        let plain = comma_separated(aggregates.plain.iter());
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(
                    f,
                    "GroupedQuantilesExec: gby=[{groups}], columns=[{columns}], calls=[{calls}]"
                )?;
                if !plain.is_empty() {
                    write!(f, ", plain=[{plain}]")?;
                }
                Ok(())
            }
            DisplayFormatType::TreeRender => {
                writeln!(f, "gby={groups}")?;
                writeln!(f, "calls={calls}")?;
                if !plain.is_empty() {
                    writeln!(f, "plain={plain}")?;
                }
                Ok(())
            }
        }
    }
}

impl ExecutionPlan for GroupedQuantilesExec {
    fn name(&self) -> &str {
        "GroupedQuantilesExec"
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
        let group = self.plan.group.iter().cloned();
        for expr in group.chain(self.plan.aggregates.expressions()) {
            if f(&expr)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("GroupedQuantilesExec has one partition, asked for partition {partition}");
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
