//! Binds the number of rows of `topk_by` calls into the function: as an argument, DataFusion would expand it to an
//! array of all rows, batch by batch.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{AggregateUDF, Expr, LogicalPlan, WindowFunctionDefinition};

use super::super::swap::{over_same_window, swap_calls};
use crate::functions::TopKBy;

/// Binds the number of rows of each call, in subqueries too.
pub(in crate::planner) fn bind_rows(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    swap_calls(plan, &|call, _| match call {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            let mut params = params.clone();
            let func = bound_function(func, &params.args)?;
            params.args.truncate(2);
            Some(Expr::AggregateFunction(AggregateFunction { func, params }))
        }
        Expr::WindowFunction(window) => {
            let WindowFunctionDefinition::AggregateUDF(func) = &window.fun else {
                return None;
            };
            let args = &window.params.args;
            let func = bound_function(func, args)?;
            Some(over_same_window(
                window,
                func.into(),
                args.iter().take(2).cloned().collect(),
            ))
        }
        _ => None,
    })
}

/// The function with its number of rows inside; `None` for other functions.
///
/// A bad number was refused before. A parameter that has no value yet is refused when the call runs.
fn bound_function(function: &AggregateUDF, args: &[Expr]) -> Option<Arc<AggregateUDF>> {
    let function = TopKBy::of(function).filter(|function| !function.is_bound())?;
    let k = function.k_of(args).ok()?;
    Some(Arc::new(AggregateUDF::from(function.bound_to(k))))
}
