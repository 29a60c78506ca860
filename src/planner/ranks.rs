//! Binds the constants of calls that rank a value into the function, as places in the order of the column's values.
//!
//! ```text
//! Aggregate: aggr=[[exact_cdf(t.x, [1, 2])]]
//!     ->  Aggregate: aggr=[[exact_cdf(t.x) AS exact_cdf(t.x, [1, 2])]], with the places of 1 and 2 inside
//! ```
//! As an argument, DataFusion would expand a list to an array of all rows, batch by batch.

use std::cell::RefCell;
use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition};

use super::swap::{CallSite, over_same_window, swap_calls};
use crate::functions::{RankFunction, constant};

/// Binds the constants of each call that ranks a value, in aggregations and windows, in subqueries too.
///
/// # Errors
/// A planning error for a constant that is not compared with values of the column's type.
pub(super) fn bind_constants(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let failed = RefCell::new(None);
    let bound =
        |function: &AggregateUDF, args: &[Expr], schema: &DFSchema| match bound(function, args, schema) {
            Ok(bound) => bound,
            Err(error) => {
                failed.replace(Some(error));
                None
            }
        };
    let plan = swap_calls(plan, &|call, CallSite { schema, .. }| match call {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            let (func, x) = bound(func, &params.args, schema)?;
            let mut params = params.clone();
            params.args = vec![x];
            Some(Expr::AggregateFunction(AggregateFunction { func, params }))
        }
        Expr::WindowFunction(window) => {
            let WindowFunctionDefinition::AggregateUDF(func) = &window.fun else {
                return None;
            };
            let (func, x) = bound(func, &window.params.args, schema)?;
            Some(over_same_window(window, func.into(), vec![x]))
        }
        _ => None,
    })?;
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(plan),
    }
}

/// The function of one argument with its constants inside, and that argument. `None` for other functions, and for a parameter that has no
/// value yet, which is refused when the call runs.
fn bound(
    function: &AggregateUDF,
    args: &[Expr],
    schema: &DFSchema,
) -> Result<Option<(Arc<AggregateUDF>, Expr)>> {
    let function = RankFunction::of(function).filter(|function| !function.is_bound());
    let (Some(function), [x, constants]) = (function, args) else {
        return Ok(None);
    };
    let Some(constants) = constant(constants)? else {
        return Ok(None);
    };
    let bound = function.bound_to(&x.get_type(schema)?, &constants)?;
    Ok(Some((Arc::new(AggregateUDF::from(bound)), x.clone())))
}
