//! Finds the function that a call means. The direction is an argument in SQL; in a plan each direction has a function of its own.

use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{AggregateUDF, Expr};

use super::call::{check_arguments, check_rows};
use super::{TopKBy, TopKName, topk_aggregate};
use crate::functions::call::{constant, no_order};

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
    Ok((topk_aggregate(sql_name, ascending), planned))
}

/// The function that a call of DataFusion's `max` or `min` with a number of values means, DuckDB's `max(x, k)` and `min(x, k)`, and its
/// arguments; `None` for any other call.
///
/// # Errors
/// A planning error that names a number of values which is not a constant integer from 1 on.
pub(crate) fn plan_ends(
    function: &AggregateUDF,
    args: &[Expr],
    order_by: &[Sort],
) -> Result<Option<(Arc<AggregateUDF>, Vec<Expr>)>> {
    let inner = function.inner();
    let (is_max, [x, k]) = (inner.is::<Max>(), args) else {
        return Ok(None);
    };
    if !is_max && !inner.is::<Min>() {
        return Ok(None);
    }
    let name = function.name();
    no_order(name, order_by)?;
    check_rows(&name, "values", k)?;
    let sql_name = if is_max { TopKName::Max } else { TopKName::Min };
    let planned = topk_aggregate(sql_name, !is_max);
    Ok(Some((planned, vec![x.clone(), x.clone(), k.clone()])))
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
