//! The number of rows of `topk_by` calls goes from an argument into the function: as an argument it would become an array
//! of all rows, batch by batch.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{AggregateUDF, Expr, LogicalPlan, WindowFunctionDefinition};

use super::super::swap::{over_same_window, swap_calls};
use crate::functions::TopKBy;

/// Binds what is constant, in subqueries too.
pub(in crate::planner) fn bind_rows(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    swap_calls(plan, &|call, _| match call {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            let mut params = params.clone();
            let func = bound(func, &params.args)?;
            params.args.truncate(2);
            Some(Expr::AggregateFunction(AggregateFunction { func, params }))
        }
        Expr::WindowFunction(window) => {
            let WindowFunctionDefinition::AggregateUDF(func) = &window.fun else {
                return None;
            };
            let args = &window.params.args;
            let func = bound(func, args)?;
            Some(over_same_window(
                window,
                func.into(),
                args.iter().take(2).cloned().collect(),
            ))
        }
        _ => None,
    })
}

/// What is wrong with the number was an error before; what is left without a value is one later.
fn bound(function: &AggregateUDF, args: &[Expr]) -> Option<Arc<AggregateUDF>> {
    let function = TopKBy::of(function).filter(|function| !function.is_bound())?;
    let k = function.k_of(args).ok()?;
    Some(Arc::new(AggregateUDF::from(function.bound_to(k))))
}
