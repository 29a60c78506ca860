//! Replaces aggregations by [`QuantilesNode`]s.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::functions_aggregate::approx_percentile_cont::ApproxPercentileCont;
use datafusion::functions_aggregate::approx_percentile_cont_with_weight::ApproxPercentileContWithWeight;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, AggregateUDF, Expr, LogicalPlan};

use super::QuantilesNode;
use super::call_spec::{CallSpec, aggregate_call, has_weights};
use crate::functions::{RankFunction, ShapeFunction, is_percentile_cont};

/// Replaces each aggregation that a [`QuantilesNode`] can stand in for, in subqueries too: those with quantiles that operators select, and those of
/// groups with weighted quantiles, whose accumulators the operator hosts.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Aggregate(aggregate) if may_be_selected(&aggregate) => {
            let calls = aggregate.aggr_expr.iter().map(CallSpec::quantiles);
            let calls = calls.collect::<Result<Vec<_>>>()?;
            let (is_grouped, input) = (!aggregate.group_expr.is_empty(), aggregate.input.schema());
            let mut asked = calls.iter().flatten();
            let is_selected = asked.any(|call| call.is_selected(is_grouped, input));
            // The operator for groups is the better host for accumulators that hold all rows: it spills rows before they get there.
            let is_hosted = is_grouped && aggregate.aggr_expr.iter().any(has_weights);
            if !is_selected && !is_hosted {
                return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
            }
            let Aggregate {
                input,
                group_expr,
                aggr_expr,
                schema,
                ..
            } = aggregate;
            let input = Arc::unwrap_or_clone(input);
            let node = QuantilesNode::over(input, group_expr, aggr_expr, calls, schema);
            Ok(Transformed::yes(node.into_plan()))
        }
        other => Ok(Transformed::no(other)),
    })
}

/// Replaces each grouped aggregation with a function that holds the values, or many counts, of its groups by a [`QuantilesNode`] without
/// quantiles, in subqueries too: its operator brings the rows of a group together before they reach the accumulators, and spills them.
pub(super) fn host_groups(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Aggregate(aggregate) if may_be_selected(&aggregate) && holds_much(&aggregate) => {
            let Aggregate {
                input,
                group_expr,
                aggr_expr,
                schema,
                ..
            } = aggregate;
            let calls = aggr_expr.iter().map(|_| None).collect();
            let input = Arc::unwrap_or_clone(input);
            let node = QuantilesNode::over(input, group_expr, aggr_expr, calls, schema);
            Ok(Transformed::yes(node.into_plan()))
        }
        other => Ok(Transformed::no(other)),
    })
}

/// Whether an aggregation has groups, and a function that holds their values, or many counts of them.
fn holds_much(aggregate: &Aggregate) -> bool {
    let mut calls = aggregate.aggr_expr.iter().filter_map(aggregate_call);
    let holds = |call: &AggregateFunction| {
        ShapeFunction::of(&call.func).is_some() || RankFunction::of(&call.func).is_some()
    };
    !aggregate.group_expr.is_empty() && calls.any(holds)
}

/// Whether a [`QuantilesNode`] can stand in for an aggregation: it has no grouping sets, and none of its aggregates
/// needs sorted rows or the value of a subquery.
fn may_be_selected(aggregate: &Aggregate) -> bool {
    let is_grouped = !aggregate.group_expr.is_empty();
    let takes_rows = |call: &AggregateFunction| {
        call.params.order_by.is_empty() || (!is_grouped && takes_any_order(&call.func))
    };
    let (groups, aggregates) = (&aggregate.group_expr, &aggregate.aggr_expr);
    !groups.iter().any(|expr| matches!(expr, Expr::GroupingSet(_)))
        && aggregates
            .iter()
            .all(|expr| aggregate_call(expr).is_some_and(takes_rows))
        && !aggregates.iter().chain(groups).any(has_subquery)
}

/// Whether a function takes rows in any order although its call has an `ORDER BY`: it sorts them itself, or the `ORDER BY` only says from
/// which end to count.
fn takes_any_order(function: &AggregateUDF) -> bool {
    let inner = function.inner();
    let counts = is_percentile_cont(function)
        || inner.is::<ApproxPercentileCont>()
        || inner.is::<ApproxPercentileContWithWeight>();
    counts || !function.order_sensitivity().hard_requires()
}

/// Whether an expression has a subquery in it, or a column of an outer query.
pub(super) fn has_subquery(expr: &Expr) -> bool {
    let found = expr.exists(|part| {
        Ok(matches!(
            part,
            Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::OuterReferenceColumn(..)
        ))
    });
    // The closure never fails. If it did, the ordinary aggregation would still be right.
    found.unwrap_or(true)
}
