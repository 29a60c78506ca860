//! Finds the function that a call means. The direction is an argument in SQL; in a plan each direction has a function of its own.

use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{AggregateUDF, Expr};

use super::call::check_arguments;
use super::{TopKBy, TopKName, topk_aggregates};
use crate::functions::call::constant;

/// The function that a call means, with its direction, and the other arguments.
///
/// # Errors
/// A planning error that names what is wrong with the arguments.
pub(crate) fn plan_call(
    function: &TopKBy,
    args: &[Expr],
    order_by: &[Sort],
) -> Result<(Arc<AggregateUDF>, Vec<Expr>)> {
    let sql_name = function.sql_name();
    if let Some(order) = order_by.first() {
        return plan_err!("{sql_name} is ordered by its second argument: remove ORDER BY {order}");
    }
    let ascending = match args {
        [_, _, _, direction] if sql_name == TopKName::Topk => direction_argument(sql_name, direction)?,
        _ => function.is_ascending(),
    };
    let count = if sql_name == TopKName::Topk { 3 } else { args.len() };
    let planned: Vec<Expr> = args.iter().take(count).cloned().collect();
    if args.len() > 4 {
        return plan_err!("{}", sql_name.wrong_arguments(args.len()));
    }
    check_arguments(sql_name, &planned)?;
    let name = TopKBy::new(sql_name, ascending).name;
    let found = topk_aggregates().iter().find(|udf| udf.name() == name);
    match found {
        Some(found) => Ok((Arc::clone(found), planned)),
        None => plan_err!("{sql_name} has no other direction"),
    }
}

/// Whether a direction argument is ascending.
fn direction_argument(sql_name: TopKName, expr: &Expr) -> Result<bool> {
    let value = constant(expr)?;
    let name = match &value {
        Some(value) => value.try_as_str().flatten().map(str::to_ascii_lowercase),
        None => None,
    };
    match name.as_deref() {
        Some("asc") => Ok(true),
        Some("desc") => Ok(false),
        _ => plan_err!("{sql_name}: the direction must be a constant 'asc' or 'desc', got {expr}"),
    }
}
