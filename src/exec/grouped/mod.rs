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

use std::sync::Arc;

use datafusion::arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

pub(super) use self::groups::{Grouping, SEED, group_values};
#[cfg(feature = "cuda")]
pub(super) use self::output::{Answers, answered_groups};
pub(super) use self::packing::Packing;
pub(super) use self::run::share;
pub(super) use self::scan::FEW_GROUPS;
use super::aggregate::{Aggregates, ExecAggregate};
use super::operator::{Execution, Operator, Work, at_the_end};
use super::quantiles::comma_separated;

/// What a [`GroupedQuantilesExec`] computes.
#[derive(Debug)]
pub struct GroupPlan {
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
pub type GroupedQuantilesExec = Operator<GroupPlan>;

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
        Self::over(plan, vec![input])
    }
}

impl Work for GroupPlan {
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
        run::stream(Arc::clone(self), streams, memory, on.metrics, &on.context)
    }
}
