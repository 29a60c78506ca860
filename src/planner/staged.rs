//! Ungrouped quantiles as stages: see [`crate::exec::staged`].

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchemaRef, Result, internal_datafusion_err, internal_err};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{
    Aggregate, Expr, ExprSchemable, Extension, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore,
    when,
};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::QuantilesNode;
use super::rewrite::aggregate_call;
use crate::exec::staged::{StagedCall, StagedColumns, stages};
use crate::functions::{ExactQuantiles, constant_quantiles};
use crate::key::KeySpec;
use crate::select::quantile::Ask;

/// Values that an input without statistics is taken to have, for the error fraction of its summaries.
const UNKNOWN: usize = 100_000_000;

/// Most ranks: what a count can set apart.
const MOST_RANKS: usize = 8000;

/// An aggregation of exact quantiles alone, in stages that read the input twice.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct StagedNode {
    /// The same plan, once for each round: a column for each argument.
    inputs: Vec<LogicalPlan>,
    /// The calls: over these columns.
    calls: Vec<(usize, Expr)>,
    schema: DFSchemaRef,
}

/// Puts each aggregation that stages can stand in for into stages, and makes the others ordinary aggregations again.
pub(super) fn into_stages(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::Extension(Extension { node: extension }) = &node else {
            return Ok(Transformed::no(node));
        };
        let Some(quantiles) = extension.as_any().downcast_ref::<QuantilesNode>() else {
            return Ok(Transformed::no(node));
        };
        Ok(Transformed::yes(match StagedNode::of(quantiles)? {
            Some(staged) => LogicalPlan::Extension(Extension {
                node: Arc::new(staged),
            }),
            None => LogicalPlan::Aggregate(Aggregate::try_new_with_schema(
                Arc::new(quantiles.input().clone()),
                quantiles.group_expr().to_vec(),
                quantiles.aggr_expr().to_vec(),
                Arc::clone(quantiles.schema()),
            )?),
        }))
    })
}

impl StagedNode {
    fn of(node: &QuantilesNode) -> Result<Option<Self>> {
        if !node.group_expr().is_empty() || !is_repeatable(node.input())? {
            return Ok(None);
        }
        let (mut columns, mut calls) = (Vec::<Expr>::new(), Vec::new());
        let mut ranks = 0;
        for expr in node.aggr_expr() {
            let Some(column) = column_of(expr, node)? else {
                return Ok(None);
            };
            ranks += constant_quantiles_of(expr)?.1.list.len();
            let index = columns
                .iter()
                .position(|other| *other == column)
                .unwrap_or_else(|| {
                    columns.push(column);
                    columns.len() - 1
                });
            calls.push((index, expr.clone()));
        }
        if ranks > MOST_RANKS {
            return Ok(None);
        }
        let named = columns
            .into_iter()
            .zip(0..)
            .map(|(column, index)| column.alias(format!("q{index}")));
        let input = LogicalPlanBuilder::from(node.input().clone())
            .project(named.collect::<Vec<_>>())?
            .build()?;
        Ok(Some(Self {
            inputs: vec![input.clone(), input],
            calls,
            schema: Arc::clone(node.schema()),
        }))
    }

    /// The stages over the input, planned twice.
    ///
    /// # Errors
    /// Internal errors only: what can be wrong was found before.
    pub(super) fn exec(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<dyn ExecutionPlan>> {
        let [first, again] = inputs else {
            return internal_err!("stages of {} inputs", inputs.len());
        };
        let fields = first.schema();
        let types = fields.fields().iter().map(|field| field.data_type().clone());
        let calls = self.calls.iter().map(|(column, expr)| staged_call(*column, expr));
        let calls = calls.collect::<Result<Vec<_>>>()?;
        let rows = StatisticsContext::new()
            .compute(first.as_ref(), &StatisticsArgs::new())?
            .num_rows;
        let rows = rows.get_value().copied().unwrap_or(UNKNOWN);
        let partitions = first.output_partitioning().partition_count();
        let strategy = StagedColumns::strategy_for(&calls, rows as u64, partitions)?;
        let columns = StagedColumns::try_new(types.collect(), calls, strategy)?;
        let schema = Arc::clone(self.schema.inner());
        Ok(stages(Arc::clone(first), Arc::clone(again), columns, schema))
    }
}

/// A call over a column of the input.
fn staged_call(column: usize, expr: &Expr) -> Result<StagedCall> {
    let (function, quantiles) = constant_quantiles_of(expr)?;
    Ok(StagedCall {
        column,
        ask: Ask {
            quantiles: quantiles.list,
            method: function.method(),
            descending: function.is_descending(),
        },
        is_list: quantiles.is_list,
    })
}

/// The function of a call, and its quantiles.
fn constant_quantiles_of(expr: &Expr) -> Result<(&ExactQuantiles, crate::select::quantile::Quantiles)> {
    let call = aggregate_call(expr);
    let found = call.and_then(|call| Some((ExactQuantiles::of(&call.func)?, call.params.args.get(1)?)));
    let (function, quantiles) =
        found.ok_or_else(|| internal_datafusion_err!("{expr} asks for no quantiles"))?;
    Ok((function, constant_quantiles(function.called(), quantiles)?))
}

/// The values of a call: NULL where its filter drops a row. `None` if stages cannot answer it.
fn column_of(expr: &Expr, node: &QuantilesNode) -> Result<Option<Expr>> {
    let Some(AggregateFunction { func, params }) = aggregate_call(expr) else {
        return Ok(None);
    };
    let (Some(function), [x, _]) = (ExactQuantiles::of(func), params.args.as_slice()) else {
        return Ok(None);
    };
    let data_type = x.get_type(node.input().schema())?;
    let same_order = !function.called().is_builtin();
    let repeatable = !x.is_volatile() && params.filter.iter().all(|filter| !filter.is_volatile());
    if params.distinct || !same_order || !repeatable || !KeySpec::supports(&data_type) {
        return Ok(None);
    }
    match &params.filter {
        None => Ok(Some(x.clone())),
        Some(filter) => Ok(Some(when(filter.as_ref().clone(), x.clone()).end()?)),
    }
}

/// Whether a plan gives the same rows when it is read again: a limit may stop elsewhere, and what is volatile differs.
fn is_repeatable(plan: &LogicalPlan) -> Result<bool> {
    let differs = plan.exists(|node| {
        let limited = match node {
            LogicalPlan::Limit(_) => true,
            LogicalPlan::Sort(sort) => sort.fetch.is_some(),
            LogicalPlan::TableScan(scan) => scan.fetch.is_some(),
            _ => false,
        };
        Ok(limited || node.expressions().iter().any(Expr::is_volatile))
    })?;
    Ok(!differs)
}

impl PartialOrd for StagedNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (&self.inputs, &self.calls)
            .partial_cmp(&(&other.inputs, &other.calls))
            .filter(|order| *order != std::cmp::Ordering::Equal || self == other)
    }
}

impl UserDefinedLogicalNodeCore for StagedNode {
    fn name(&self) -> &str {
        "StagedQuantiles"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.inputs.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    /// None: the calls are over the columns of the inputs, by number.
    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let calls: Vec<String> = self.calls.iter().map(|(_, call)| call.to_string()).collect();
        write!(f, "StagedQuantiles: aggr=[[{}]]", calls.join(", "))
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (exprs.is_empty(), inputs.len()) {
            (true, 2) => Ok(Self {
                inputs,
                ..self.clone()
            }),
            _ => internal_err!("StagedQuantiles has two inputs and no expressions"),
        }
    }
}
