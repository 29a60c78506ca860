//! Approximate percentiles where the exact operators are the better way.
//!
//! ```text
//! Aggregate: groupBy=[[t.g]], aggr=[[approx_percentile_gk(t.x, 0.5, 100)]]
//!     ->  Aggregate: groupBy=[[t.g]], aggr=[[exact_quantiles(t.x, 0.5) AS approx_percentile_gk(t.x, 0.5, 100)]]
//! ```
//! With groups the exact answer costs less than a sketch for each group: `benches/results` has the figures. Over distinct
//! values and in frames that move there is no sketch at all. An exact answer is within any bound, and plans say what ran.

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition};

use super::swap::{Place, over_same_window, swap_calls};
use crate::functions::{GkFunction, aggregate};
use crate::key::KeySpec;
use crate::select::quantile::Method;

/// Swaps the calls of each aggregation and window that are better answered exactly, in subqueries too.
pub(super) fn answer_exactly(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    swap_calls(plan, &|call, place: Place<'_>| match call {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            let function = GkFunction::of(func)?;
            let [x, quantiles, ..] = params.args.as_slice() else {
                return None;
            };
            let has_keys = || KeySpec::supports(&x.get_type(place.schema).ok()?).then_some(());
            if !function.called().answers_values() || !params.order_by.is_empty() {
                return None;
            }
            if !place.is_grouped && !params.distinct && has_keys().is_some() {
                return None;
            }
            Some(Expr::AggregateFunction(AggregateFunction::new_udf(
                aggregate(Method::Disc, function.is_descending()),
                vec![x.clone(), quantiles.clone()],
                params.distinct,
                params.filter.clone(),
                Vec::new(),
                None,
            )))
        }
        Expr::WindowFunction(window) => {
            let WindowFunctionDefinition::AggregateUDF(func) = &window.fun else {
                return None;
            };
            let function = GkFunction::of(func).filter(|function| function.called().answers_values())?;
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
