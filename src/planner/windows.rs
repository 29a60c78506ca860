//! Quantiles of window calls into the function itself.
//!
//! ```text
//! exact_quantiles(t.x, 0.5) OVER (..)   ->   exact_quantiles(t.x) OVER (..), with 0.5 inside
//! ```
//! A constant argument becomes an array of all rows in reach of a frame, of which DataFusion cuts a piece for every row
//! that comes or goes: for a list of quantiles and a wide frame that is far more work than the answers.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{AggregateUDF, Expr, LogicalPlan, WindowFunctionDefinition};

use super::swap::{over_same_window, swap_calls};
use crate::functions::{ExactQuantiles, constant_quantiles};

/// Binds the quantiles of each call over a window, in subqueries too.
pub(super) fn bind_quantiles(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    swap_calls(plan, &|call, _| {
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
        // What is wrong with them was an error before; what is left without a value is one later.
        let quantiles = constant_quantiles(function.called(), quantiles).ok()?;
        let bound = Arc::new(AggregateUDF::from(function.bound_to(quantiles)));
        Some(over_same_window(window, bound, vec![x.clone()]))
    })
}
