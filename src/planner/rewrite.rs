//! Which aggregations become a [`QuantilesNode`].

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::functions_aggregate::approx_percentile_cont::ApproxPercentileCont;
use datafusion::functions_aggregate::approx_percentile_cont_with_weight::ApproxPercentileContWithWeight;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, AggregateUDF, Expr, ExprSchemable, Extension, LogicalPlan};

use super::QuantilesNode;
use crate::functions::{ExactQuantiles, GkFunction, is_percentile_cont};
use crate::key::KeySpec;

/// Replaces each aggregation that [`QuantilesNode`] can stand in for, in subqueries too.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Aggregate(aggregate) if is_rewritable(&aggregate) => {
            let Aggregate {
                input,
                group_expr,
                aggr_expr,
                schema,
                ..
            } = aggregate;
            let node = QuantilesNode::new(Arc::unwrap_or_clone(input), group_expr, aggr_expr, schema);
            Ok(Transformed::yes(LogicalPlan::Extension(Extension {
                node: Arc::new(node),
            })))
        }
        other => Ok(Transformed::no(other)),
    })
}

/// At least one quantile call, no grouping sets, and nothing that needs sorted rows or a subquery's value.
fn is_rewritable(aggregate: &Aggregate) -> bool {
    let calls: Option<Vec<_>> = aggregate.aggr_expr.iter().map(aggregate_call).collect();
    calls.is_some_and(|calls| {
        let is_grouped = !aggregate.group_expr.is_empty();
        !aggregate
            .group_expr
            .iter()
            .any(|expr| matches!(expr, Expr::GroupingSet(_)))
            && calls
                .iter()
                .any(|call| is_quantiles(call, is_grouped, aggregate.input.schema()))
            && calls
                .iter()
                .all(|call| call.params.order_by.is_empty() || (!is_grouped && takes_any_order(&call.func)))
            && !aggregate
                .aggr_expr
                .iter()
                .chain(&aggregate.group_expr)
                .any(has_subquery)
    })
}

/// Whether a function with an `ORDER BY` of its own takes rows in any order: it keeps the order itself, or is told by it
/// from which end to count.
fn takes_any_order(function: &AggregateUDF) -> bool {
    let inner = function.inner();
    let counts = is_percentile_cont(function)
        || inner.is::<ApproxPercentileCont>()
        || inner.is::<ApproxPercentileContWithWeight>();
    counts || !function.order_sensitivity().hard_requires()
}

/// The aggregate function under any aliases.
pub(super) fn aggregate_call(expr: &Expr) -> Option<&AggregateFunction> {
    match expr {
        Expr::Alias(alias) => aggregate_call(&alias.expr),
        Expr::AggregateFunction(call) => Some(call),
        _ => None,
    }
}

/// Whether the call runs over what an operator of ours keeps. Those from a sample do so without groups, over all values of
/// a type in `input` that has fixed-width keys; sketches are better off as accumulators.
pub(super) fn is_quantiles(call: &AggregateFunction, is_grouped: bool, input: &DFSchema) -> bool {
    let has_keys = || {
        let x = call.params.args.first().map(|x| x.get_type(input));
        matches!(x, Some(Ok(data_type)) if KeySpec::supports(&data_type))
    };
    match GkFunction::of(&call.func) {
        Some(function) => function.sampled().is_some() && !is_grouped && !call.params.distinct && has_keys(),
        None => ExactQuantiles::of(&call.func).is_some(),
    }
}

pub(super) fn has_subquery(expr: &Expr) -> bool {
    let found = expr.exists(|part| {
        Ok(matches!(
            part,
            Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::OuterReferenceColumn(..)
        ))
    });
    // The closure never fails; without an answer, the ordinary aggregation is always right.
    found.unwrap_or(true)
}
