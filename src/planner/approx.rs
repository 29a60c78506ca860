//! Answers calls for approximate percentiles exactly where that costs less.
//!
//! ```text
//! Aggregate: groupBy=[[t.g]], aggr=[[approx_percentile_gk(t.x, 0.5, 100)]]
//!     ->  Aggregate: groupBy=[[t.g]], aggr=[[exact_quantiles(t.x, 0.5) AS approx_percentile_gk(t.x, 0.5, 100)]]
//! ```
//! Calls that stay approximate get their constants bound into the function: as arguments, DataFusion would expand
//! them to arrays of all rows, batch by batch.
//!
//! With groups the exact answer costs less than a sketch for each group: `benches/results` has the figures. Over
//! distinct values and in moving window frames no sketch works at all. An exact answer is within any bound, and
//! `EXPLAIN` shows which function ran.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition};

use super::swap::{CallSite, over_same_window, swap_calls};
use crate::functions::{GkFunction, aggregate};
use crate::key::KeySpec;
use crate::quantile::Method;

/// Replaces the calls of each aggregation and window that are better answered exactly, in subqueries too.
pub(super) fn answer_exactly(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    swap_calls(plan, &|call, site: CallSite<'_>| match call {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            let function = GkFunction::of(func).filter(|function| !function.is_bound())?;
            let x = params.args.first()?;
            let (func, args) = match exact_is_better(function, params, site) {
                Some(quantiles) => (
                    aggregate(Method::Disc, function.is_descending()),
                    vec![x.clone(), quantiles.clone()],
                ),
                // Bad arguments were refused before. A parameter that has no value yet is refused when the call runs.
                None => (
                    Arc::new(AggregateUDF::from(function.bound_to(&params.args).ok()??)),
                    vec![x.clone()],
                ),
            };
            let (distinct, filter) = (params.distinct, params.filter.clone());
            let order = params.order_by.clone();
            let call = AggregateFunction::new_udf(func, args, distinct, filter, order, None);
            Some(Expr::AggregateFunction(call))
        }
        Expr::WindowFunction(window) => {
            let WindowFunctionDefinition::AggregateUDF(func) = &window.fun else {
                return None;
            };
            let function = GkFunction::of(func).filter(|function| function.sql_name().answers_values())?;
            let [x, quantiles, ..] = window.params.args.as_slice() else {
                return None;
            };
            let exact = aggregate(Method::Disc, function.is_descending());
            Some(over_same_window(
                window,
                exact.into(),
                vec![x.clone(), quantiles.clone()],
            ))
        }
        _ => None,
    })
}

/// The quantiles argument of a call that is better answered exactly; `None` for other calls.
fn exact_is_better<'a>(
    function: &GkFunction,
    params: &'a AggregateFunctionParams,
    site: CallSite<'_>,
) -> Option<&'a Expr> {
    let [x, quantiles, ..] = params.args.as_slice() else {
        return None;
    };
    let has_keys = x
        .get_type(site.schema)
        .is_ok_and(|data_type| KeySpec::supports(&data_type));
    let exactly = function.sql_name().answers_values()
        && params.order_by.is_empty()
        && (site.is_grouped || params.distinct || !has_keys);
    exactly.then_some(quantiles)
}
