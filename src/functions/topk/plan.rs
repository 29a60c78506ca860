//! Which function a call means: its direction is an argument in SQL, and a function of its own in a plan.

use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{AggregateUDF, Expr};

use super::call::check_arguments;
use super::{TopKBy, TopKName, topk_aggregates};
use crate::functions::call::constant;

/// The function and arguments that a call means: the direction is in the function.
///
/// # Errors
/// A planning error that names what is wrong with the arguments.
pub(crate) fn plan_call(
    function: &TopKBy,
    args: &[Expr],
    order_by: &[Sort],
) -> Result<(Arc<AggregateUDF>, Vec<Expr>)> {
    let called = function.called();
    if let Some(order) = order_by.first() {
        return plan_err!("{called} is ordered by its second argument: remove ORDER BY {order}");
    }
    let ascending = match args {
        [_, _, _, direction] if called == TopKName::TopkBy => direction_argument(called, direction)?,
        _ => function.is_ascending(),
    };
    let count = if called == TopKName::TopkBy { 3 } else { args.len() };
    let planned: Vec<Expr> = args.iter().take(count).cloned().collect();
    if args.len() > 4 {
        return plan_err!("{}", called.wrong_arguments(args.len()));
    }
    check_arguments(called, &planned)?;
    let name = TopKBy::new(called, ascending).name;
    let found = topk_aggregates().iter().find(|udf| udf.name() == name);
    match found {
        Some(found) => Ok((Arc::clone(found), planned)),
        None => plan_err!("{called} has no other direction"),
    }
}

/// Whether the direction is ascending.
fn direction_argument(called: TopKName, expr: &Expr) -> Result<bool> {
    let value = constant(expr)?;
    let name = match &value {
        Some(value) => value.try_as_str().flatten().map(str::to_ascii_lowercase),
        None => None,
    };
    match name.as_deref() {
        Some("asc") => Ok(true),
        Some("desc") => Ok(false),
        _ => plan_err!("{called}: the direction must be a constant 'asc' or 'desc', got {expr}"),
    }
}
