//! The constants of a call: how many rows, and which end.

use std::fmt::Display;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{AggregateUDF, Expr};
use datafusion::physical_expr::PhysicalExpr;

use super::{TopKBy, TopKName};
use crate::functions::call::{constant, evaluated};

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
    let found = super::topk_aggregates().iter().find(|udf| udf.name() == name);
    match found {
        Some(found) => Ok((Arc::clone(found), planned)),
        None => plan_err!("{called} has no other direction"),
    }
}

/// Checks the number of rows of a call, as far as it is known yet.
///
/// # Errors
/// A planning error that names it, if it is not a constant integer from 1 on; for a wrong number of arguments.
pub(crate) fn check_arguments(called: TopKName, args: &[Expr]) -> Result<()> {
    match args {
        [_, _] if called.answers_one() => Ok(()),
        [_, _, k] => {
            let has_parameter = k.exists(|part| Ok(matches!(part, Expr::Placeholder(_))))?;
            match constant(k)? {
                Some(value) => checked(called, &value).map(drop),
                None if has_parameter => Ok(()),
                None => not_constant(called, k),
            }
        }
        _ => plan_err!("{}", called.wrong_arguments(args.len())),
    }
}

/// The number of rows in a call that is about to be planned.
///
/// # Errors
/// As for [`check_arguments`], and for a parameter without a value.
pub(crate) fn constant_k(called: TopKName, expr: &Expr) -> Result<usize> {
    match constant(expr)? {
        Some(value) => checked(called, &value),
        None => not_constant(called, expr),
    }
}

/// The number of rows in a call that is about to run.
///
/// # Errors
/// As for [`check_arguments`].
pub(super) fn evaluated_k(called: TopKName, expr: &Arc<dyn PhysicalExpr>) -> Result<usize> {
    match evaluated(expr)? {
        Some(value) => checked(called, &value),
        None => not_constant(called, expr),
    }
}

fn not_constant<T>(called: TopKName, shown: &dyn Display) -> Result<T> {
    plan_err!("{called}: the number of rows must be a constant integer of at least 1, got {shown}")
}

fn checked(called: TopKName, value: &ScalarValue) -> Result<usize> {
    use ScalarValue::*;
    let k = match value {
        Int8(Some(k)) => i128::from(*k),
        Int16(Some(k)) => i128::from(*k),
        Int32(Some(k)) => i128::from(*k),
        Int64(Some(k)) => i128::from(*k),
        UInt8(Some(k)) => i128::from(*k),
        UInt16(Some(k)) => i128::from(*k),
        UInt32(Some(k)) => i128::from(*k),
        UInt64(Some(k)) => i128::from(*k),
        other => return not_constant(called, &format!("{other} of type {}", other.data_type())),
    };
    match usize::try_from(k) {
        Ok(k) if k > 0 => Ok(k),
        _ => not_constant(called, &k),
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
