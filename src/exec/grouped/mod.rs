//! The operator behind `exact_quantiles` with `GROUP BY`.
//!
//! It is a work of the [engine for groups](super::group_engine):
//!
//! - few groups: keys stay in the order in which they come, each with the number of its group beside it. Keys are counted by pair of
//!   group and cell, and those of the wanted cells are taken out ([`few`]);
//! - many groups: in each hash partition, groups are numbered, the keys of each are brought together, and ranks are selected in
//!   place ([`worker`]).
//!
//! Values without keys always go the second way, as byte strings. All threads work on a hash partition that is too large for one
//! ([`oversized_partition`]). A group of byte strings that is too large for memory goes through the same rounds as a query without
//! `GROUP BY` ([`oversized_group`]).

mod few;
mod output;
mod oversized_group;
mod oversized_partition;
mod partition;
mod plain;
mod plan;
mod scan;
mod select;
mod work;
mod worker;

use std::sync::Arc;

use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

#[cfg(feature = "cuda")]
pub(super) use self::output::{Answers, answered_groups};
use self::plan::{GroupQuantiles, GroupedQuantilesWork};
use super::aggregate::{Aggregates, ExecAggregate};
use super::group_engine::{self, GroupColumns, Metrics};
use super::operator::comma_separated;
use super::operator::{Execution, Operator, Work, at_the_end};

/// Exact quantiles of every group, with plain aggregates beside them. The output is one partition, with one row for each group, in
/// any order.
///
/// Reads each input partition once and in parallel. Keeps group and key of each row in memory that is reserved in the task's pool;
/// past the pool's limit they go to disk. Cost: the scan, the width of group and key in bytes for each value, and a few reads of
/// those. Neither a list nor an allocation is made for any single group.
///
/// Metrics: `input_rows`, `output_rows`, `groups`, `scan_time` and `select_time` (processor time), `few_groups` or `many_groups` (1
/// for the method that ran), `spill_count`, `spilled_bytes`.
pub type GroupedQuantilesExec = Operator<GroupedQuantilesWork>;

impl GroupedQuantilesExec {
    /// An operator that computes `aggregates` over each group of rows of `input` that agree in all of `group`. The output has the
    /// names and types of `schema`: one column for each group expression, then one for each aggregate.
    ///
    /// # Errors
    /// An internal error if `schema` has a different number of columns, or if there is no group expression.
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
        let plan = GroupedQuantilesWork {
            groups: GroupColumns::new(fields),
            group,
            aggregates: Aggregates::new(aggregates),
            schema,
        };
        Self::over(plan, vec![input])
    }
}

impl Work for GroupedQuantilesWork {
    fn name(&self) -> &'static str {
        "GroupedQuantilesExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        Ok(at_the_end(Arc::clone(&self.schema), 1, &inputs[0]))
    }

    fn details(&self) -> String {
        let groups = comma_separated(self.group.iter());
        format!("gby=[{groups}], {}", self.aggregates.details())
    }

    fn tree_details(&self) -> String {
        let groups = comma_separated(self.group.iter());
        format!("gby={groups}\n{}", self.aggregates.tree_details())
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let group = self.group.iter().cloned();
        group.chain(self.aggregates.expressions()).collect()
    }

    fn wants_partitions(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let (streams, memory) = (on.partitions()?, on.memory());
        let work = GroupQuantiles::new(Arc::clone(self), &memory, &on.context);
        let threads = on.context.session_config().target_partitions();
        group_engine::stream(work, streams, memory, Metrics::of(&on), &on.context, threads)
    }
}
