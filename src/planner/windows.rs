//! Binds the quantiles of calls over windows, and of calls with weights, into the function.
//!
//! ```text
//! exact_quantiles(t.x, 0.5) OVER (.. ROWS ..)    ->   a window function of ours, with 0.5 and the frame inside
//! exact_quantiles(t.x, 0.5) OVER (.. RANGE ..)   ->   exact_quantiles(t.x) OVER (.. RANGE ..), with 0.5 inside
//! percentile(t.x, [0.5, 0.9], t.w)               ->   percentile(t.x, t.w), with the list inside, also with OVER
//! ```
//! DataFusion expands a constant argument to an array of all rows: of a batch, or of those in reach of a frame, which it slices for every row
//! that enters or leaves. For a list of quantiles, or a wide frame, that is far more work than the answers. Frames of
//! `ROWS` need no slices at all ([`MovingQuantiles`]). For frames of `RANGE` and `GROUPS` only DataFusion, and
//! [`MovingQuantilesExec`](crate::exec::MovingQuantilesExec), know which rows they hold. Calls without weights in aggregations become
//! operators ([`rewrite`](super::rewrite)).

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{
    AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition, WindowUDF, when,
};

use super::swap::{CallSite, over_same_window, swap_calls};
use crate::functions::{ExactQuantiles, MovingQuantiles, constant_quantiles};

/// Binds the quantiles of each call over a window, and of each with weights in an aggregation, in subqueries too.
pub(super) fn bind_quantiles(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    swap_calls(plan, &|call, CallSite { schema, .. }| match call {
        Expr::WindowFunction(window) => bound_window(window, schema),
        Expr::AggregateFunction(call) => bound_aggregate(call),
        _ => None,
    })
}

/// A call with weights in an aggregation, with its quantiles inside; `None` for other calls.
fn bound_aggregate(call: &AggregateFunction) -> Option<Expr> {
    let function = ExactQuantiles::of(&call.func)?;
    let [x, quantiles, weight] = call.params.args.as_slice() else {
        return None;
    };
    let quantiles = constant_quantiles(function.sql_name(), quantiles).ok()?;
    let mut params = call.params.clone();
    params.args = vec![x.clone(), weight.clone()];
    Some(Expr::AggregateFunction(AggregateFunction {
        func: Arc::new(AggregateUDF::from(function.bound_to(quantiles))),
        params,
    }))
}

/// A call over a window with its quantiles inside; `None` for calls of other functions.
fn bound_window(window: &WindowFunction, schema: &DFSchema) -> Option<Expr> {
    let WindowFunctionDefinition::AggregateUDF(function) = &window.fun else {
        return None;
    };
    let function = ExactQuantiles::of(function)?;
    let (x, quantiles, weight) = match window.params.args.as_slice() {
        [x, quantiles] => (x, quantiles, None),
        [x, quantiles, weight] => (x, quantiles, Some(weight)),
        _ => return None,
    };
    // Bad quantiles were refused before. A parameter that has no value yet is refused when the call runs.
    let quantiles = constant_quantiles(function.sql_name(), quantiles).ok()?;
    let params = &window.params;
    let data_type = x.get_type(schema).ok()?;
    let moving = MovingQuantiles::try_new(
        function,
        quantiles.clone(),
        &params.window_frame,
        params.distinct,
        &data_type,
    );
    let function = match moving {
        Some(moving) if weight.is_none() => Arc::new(WindowUDF::from(moving)).into(),
        _ => Arc::new(AggregateUDF::from(function.bound_to(quantiles))).into(),
    };
    bound(window, function, x, weight).ok()
}

/// A window call with its quantiles inside `function`. Window functions know neither `DISTINCT` nor `FILTER`: [`MovingQuantiles`] has the first
/// inside, and rows that the filter drops get NULL for a value.
fn bound(
    window: &WindowFunction,
    function: WindowFunctionDefinition,
    x: &Expr,
    weight: Option<&Expr>,
) -> Result<Expr> {
    let x = match window.params.filter.as_deref() {
        Some(filter) => when(filter.clone(), x.clone()).end()?,
        None => x.clone(),
    };
    let mut window = window.clone();
    window.params.filter = None;
    window.params.distinct &= matches!(function, WindowFunctionDefinition::AggregateUDF(_));
    let args = [x].into_iter().chain(weight.cloned()).collect();
    Ok(over_same_window(&window, function, args))
}
