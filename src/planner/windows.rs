//! Binds the quantiles of calls over windows into the function.
//!
//! ```text
//! exact_quantiles(t.x, 0.5) OVER (.. ROWS ..)    ->   a window function of ours, with 0.5 and the frame inside
//! exact_quantiles(t.x, 0.5) OVER (.. RANGE ..)   ->   exact_quantiles(t.x) OVER (.. RANGE ..), with 0.5 inside
//! ```
//! DataFusion expands a constant argument to an array of all rows in reach of a frame, and slices it for every row
//! that enters or leaves. For a list of quantiles and a wide frame that is far more work than the answers. Frames of
//! `ROWS` need no slices at all ([`MovingQuantiles`]). For frames of `RANGE` and `GROUPS` only DataFusion, and
//! [`MovingQuantilesExec`](crate::exec::MovingQuantilesExec), know which rows they hold.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{
    AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition, WindowUDF, when,
};

use super::swap::{CallSite, over_same_window, swap_calls};
use crate::functions::{ExactQuantiles, MovingQuantiles, constant_quantiles};

/// Binds the quantiles of each call over a window, in subqueries too.
pub(super) fn bind_quantiles(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    swap_calls(plan, &|call, CallSite { schema, .. }| {
        let Expr::WindowFunction(window) = call else {
            return None;
        };
        let WindowFunctionDefinition::AggregateUDF(function) = &window.fun else {
            return None;
        };
        let function = ExactQuantiles::of(function)?;
        let [x, quantiles] = window.params.args.as_slice() else {
            return None;
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
            Some(moving) => Arc::new(WindowUDF::from(moving)).into(),
            None => Arc::new(AggregateUDF::from(function.bound_to(quantiles))).into(),
        };
        bound(window, function, x).ok()
    })
}

/// A window call with its quantiles inside `function`. Window functions know neither `DISTINCT` nor `FILTER`: [`MovingQuantiles`] has the first
/// inside, and rows that the filter drops get NULL for a value.
fn bound(window: &WindowFunction, function: WindowFunctionDefinition, x: &Expr) -> Result<Expr> {
    let x = match window.params.filter.as_deref() {
        Some(filter) => when(filter.clone(), x.clone()).end()?,
        None => x.clone(),
    };
    let mut window = window.clone();
    window.params.filter = None;
    window.params.distinct &= matches!(function, WindowFunctionDefinition::AggregateUDF(_));
    Ok(over_same_window(&window, function, vec![x]))
}
