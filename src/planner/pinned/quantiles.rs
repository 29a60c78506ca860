//! Quantiles of pinned columns, on their device.
//!
//! ```text
//! Quantiles: aggr=[[exact_quantiles(fare, ..)]]  ->  PinnedExec: device=cuda:0 .., columns=[fare]
//!   TableScan: trips projection=[fare]
//! ```
//! Taken where all aggregates are exact quantiles of columns of one pinned table, without `DISTINCT`, with `GROUP BY` also `count`,
//! and `min` and `max` but of floating point, `GROUP BY` names such columns too, but not floating point, and `WHERE` and `FILTER` compare only pinned columns with constants. The choice costs
//! nothing: what is resident is read 50 times as fast as from the memory of the host, so the device is picked for any size.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan};

use super::table::{Resident, conjunction};
use crate::exec::{
    ExecAggregate, FilteredColumn, PinnedCount, PinnedGroups, PinnedQuantiles, PinnedQuestion, QuantilesCall,
};
use crate::planner::QuantilesNode;
use crate::planner::physical::Lowering;
use crate::planner::rewrite::{aggregate_call, is_quantiles};

/// What `node` asks of a pinned table; `None`: it is planned as any other.
///
/// # Errors
/// Those of the catalog; a planning error if a quantile is not a constant number in [0, 1].
pub(super) async fn quantiles_question(
    node: &QuantilesNode,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedQuestion>> {
    let (input, is_grouped) = (node.input(), !node.group_expr().is_empty());
    let Some(resident) = Resident::on_devices(input, session).await? else {
        return Ok(None);
    };
    if is_grouped && resident.table.is_spread() {
        return Ok(None);
    }
    let planning = PhysicalPlanningContext::default();
    let lowering = Lowering::new(node, Arc::clone(input.schema().inner()), session, &planning);
    let (mut aggregates, mut sources, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for expr in node.aggr_expr() {
        let Some(aggregate) = aggregate(expr, node, &lowering)? else {
            return Ok(None);
        };
        let found = match &aggregate {
            ExecAggregate::Quantiles(call) => {
                sourced(expr, call, input, &resident).map(|source| sources.push(source))
            }
            ExecAggregate::Plain(_) => counted(expr, input, &resident).map(|count| counts.push(count)),
        };
        if found.is_none() {
            return Ok(None);
        }
        aggregates.push(aggregate);
    }
    let schema = Arc::clone(node.schema().inner());
    if !is_grouped {
        let calls = PinnedQuantiles::new(aggregates, sources, resident.options.strategy);
        return Ok(Some(resident.question(calls, schema, timed)));
    }
    let grouped = resident.grouped(node.group_expr(), input);
    Ok(grouped.map(|(groups, filter)| {
        let calls = PinnedGroups::new(groups, filter, aggregates, (sources, counts));
        resident.question(calls, schema, timed)
    }))
}

/// What a device computes of an aggregate: quantiles, in groups among them those that are called `min` and `max`, and there counts
/// of rows; `None`: the device does not compute it.
fn aggregate(expr: &Expr, node: &QuantilesNode, lowering: &Lowering<'_>) -> Result<Option<ExecAggregate>> {
    let is_grouped = !node.group_expr().is_empty();
    let Some(call) = aggregate_call(expr) else {
        return Ok(None);
    };
    match (call.params.args.as_slice(), end_quantile(call)) {
        _ if is_quantiles(call, is_grouped, node.input().schema()) => lowering.aggregate(expr).map(Some),
        _ if !is_grouped => Ok(None),
        ([x], Some(quantile)) => lowering.end(x, call, quantile),
        _ if counts_rows(call) => Ok(Some(ExecAggregate::Plain(lowering.plain(expr)?))),
        _ => Ok(None),
    }
}

/// The quantile that `min` and `max` are.
fn end_quantile(call: &AggregateFunction) -> Option<f64> {
    let function = call.func.inner();
    let (min, max) = (function.downcast_ref::<Min>(), function.downcast_ref::<Max>());
    let is_plain = call.params.order_by.is_empty();
    min.map(|_| 0.0).or(max.map(|_| 1.0)).filter(|_| is_plain)
}

/// Whether it is `count(*)`, or `count` of one argument.
fn counts_rows(call: &AggregateFunction) -> bool {
    call.func.inner().downcast_ref::<Count>().is_some()
        && call.params.args.len() == 1
        && !call.params.distinct
        && call.params.order_by.is_empty()
}

/// The rows that a call of `count` is about.
fn counted(expr: &Expr, input: &LogicalPlan, resident: &Resident) -> Option<PinnedCount> {
    let call = aggregate_call(expr)?;
    let column = match call.params.args.as_slice() {
        [Expr::Literal(value, _)] if !value.is_null() => None,
        [x] => Some(resident.column(x, input)?),
        _ => return None,
    };
    let filter = resident.filter(call.params.filter.as_deref(), input)?;
    Some(PinnedCount {
        column,
        filter: conjunction(filter),
    })
}

/// The values of a call, if they are a pinned column.
fn sourced(
    expr: &Expr,
    call: &QuantilesCall,
    input: &LogicalPlan,
    resident: &Resident,
) -> Option<FilteredColumn> {
    let logical = aggregate_call(expr)?;
    if !call.is_exact_by_keys() {
        return None;
    }
    let column = resident.column(logical.params.args.first()?, input)?;
    let filter = resident.filter(logical.params.filter.as_deref(), input)?;
    let filter = conjunction(filter);
    Some(FilteredColumn { column, filter })
}
