//! Quantiles with `GROUP BY` as stages: see [`crate::exec::staged`].
//!
//! ```text
//! SELECT g, median(x) .. GROUP BY g        StagedGroups                either of its inputs, once both are planned:
//!                                  ->        Projection: g, x            stages over this,
//!                                            Aggregate: g, median(x)     or this
//! ```
//! What one read costs more than the exchange of all keys is known of the planned input only, so the choice is made there.

use std::cmp::Ordering;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Extension, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore,
};
use datafusion::physical_plan::ExecutionPlan;

use super::QuantilesNode;
use super::repeatable::is_repeatable;
use super::staged::{Column, column_of, staged_call};
use crate::config::StrategyName;
use crate::exec::staged::{GroupWorkload, GroupedColumns, KeyColumns, group_stages};

/// Calls of exact quantiles over columns of one input, by group: in stages that read it twice, or in one aggregation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct StagedGroupsNode {
    /// The group columns, then a column for each argument.
    input: LogicalPlan,
    /// The same as an ordinary aggregation.
    ordinary: LogicalPlan,
    /// Number of group columns.
    groups: usize,
    /// The calls: over these columns, without those of groups.
    calls: Vec<(usize, Expr)>,
    strategy: StrategyName,
    schema: DFSchemaRef,
}

/// The node for an aggregation whose calls stages can answer; `ordinary` is the same aggregation. `None`: they cannot.
pub(super) fn in_group_stages(
    node: &QuantilesNode,
    strategy: StrategyName,
    ordinary: &LogicalPlan,
) -> Result<Option<LogicalPlan>> {
    let input = node.input();
    let mut named = Vec::new();
    for (expr, index) in node.group_expr().iter().zip(0..) {
        if expr.is_volatile() || !is_told_apart(&expr.get_type(input.schema())?) {
            return Ok(None);
        }
        named.push(expr.clone().alias(format!("g{index}")));
    }
    let (mut columns, mut calls) = (Vec::<Column>::new(), Vec::new());
    for expr in node.aggr_expr() {
        // Distinct values of a group are no rows of the input.
        let Some(column) = column_of(expr, node)?.filter(|column| !column.distinct) else {
            return Ok(None);
        };
        let known = columns.iter().position(|other| *other == column);
        let index = known.unwrap_or_else(|| {
            columns.push(column);
            columns.len() - 1
        });
        if staged_call(index, expr)?.bounds {
            return Ok(None);
        }
        calls.push((index, expr.clone()));
    }
    if calls.is_empty() || !is_repeatable(input)? {
        return Ok(None);
    }
    let groups = named.len();
    let values = columns.into_iter().zip(0..);
    named.extend(values.map(|(column, index)| column.values.alias(format!("q{index}"))));
    let staged = StagedGroupsNode {
        input: LogicalPlanBuilder::from(input.clone()).project(named)?.build()?,
        ordinary: ordinary.clone(),
        groups,
        calls,
        strategy,
        schema: Arc::clone(node.schema()),
    };
    Ok(Some(LogicalPlan::Extension(Extension {
        node: Arc::new(staged),
    })))
}

/// Whether values of a group column are equal only if their hashes are: zeros of either sign are one group.
fn is_told_apart(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_told_apart(values),
        DataType::RunEndEncoded(..) | DataType::Union(..) => false,
        nested if nested.is_nested() => false,
        flat => !flat.is_floating(),
    }
}

impl StagedGroupsNode {
    /// The stages over the planned input, or the planned aggregation.
    ///
    /// # Errors
    /// Internal errors, and those of statistics.
    pub(super) fn exec(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        ordinary: &Arc<dyn ExecutionPlan>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let fields = input.schema();
        let (groups, values) = fields.fields().split_at(self.groups);
        let types = values.iter().map(|field| field.data_type().clone()).collect();
        let calls = self.calls.iter().map(|(column, expr)| staged_call(*column, expr));
        let calls = calls.collect::<Result<Vec<_>>>()?;
        let ranks = calls.iter().map(|call| call.ask.quantiles.len()).sum();
        let workload = GroupWorkload::of(input.as_ref(), self.groups, ranks)?;
        let auto = self.strategy != StrategyName::GkSelect;
        if auto && !workload.is_better_read_twice() {
            return Ok(Arc::clone(ordinary));
        }
        let columns = KeyColumns::try_new(types, calls)?;
        let answers = Arc::clone(self.schema.inner());
        group_stages(input, GroupedColumns::try_new(groups, columns, answers, auto)?)
    }
}

impl PartialOrd for StagedGroupsNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (&self.input, &self.calls)
            .partial_cmp(&(&other.input, &other.calls))
            .filter(|order| *order != Ordering::Equal || self == other)
    }
}

impl UserDefinedLogicalNodeCore for StagedGroupsNode {
    fn name(&self) -> &str {
        "StagedGroups"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input, &self.ordinary]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    /// None: the calls are over the columns of the input, by number.
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let calls: Vec<String> = self.calls.iter().map(|(_, call)| call.to_string()).collect();
        write!(
            f,
            "StagedGroups: groups={}, aggr=[[{}]]",
            self.groups,
            calls.join(", ")
        )
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        match <[LogicalPlan; 2]>::try_from(inputs) {
            Ok([input, ordinary]) if exprs.is_empty() => Ok(Self {
                input,
                ordinary,
                ..self.clone()
            }),
            _ => internal_err!("StagedGroups has two inputs and no expressions"),
        }
    }
}
