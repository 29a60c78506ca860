//! Reads the constant argument `k` of a call, the number of rows.

use std::fmt::Display;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::PhysicalExpr;

use super::TopKName;
use crate::functions::call::{constant, evaluated};

/// Checks the number of rows of a call, as far as it is known yet.
///
/// # Errors
/// A planning error that names the number of rows if it is not a constant integer from 1 on; a planning error for a
/// wrong number of arguments.
pub(crate) fn check_arguments(sql_name: TopKName, args: &[Expr]) -> Result<()> {
    match args {
        [_, _] if sql_name.answers_one() => Ok(()),
        [_, _, k] => check_rows(&sql_name, ROWS, k),
        _ => plan_err!("{}", sql_name.wrong_arguments(args.len())),
    }
}

/// What the number of a call's answers counts, in messages.
const ROWS: &str = "rows";

/// Checks a number of rows or values (`what`) in a call of `name`, as far as it is known yet.
///
/// # Errors
/// A planning error that names the number if it is not a constant integer from 1 on.
pub(super) fn check_rows(name: &dyn Display, what: &str, k: &Expr) -> Result<()> {
    let has_parameter = k.exists(|part| Ok(matches!(part, Expr::Placeholder(_))))?;
    match constant(k)? {
        Some(value) => checked(name, what, &value).map(drop),
        None if has_parameter => Ok(()),
        None => not_constant(name, what, k),
    }
}

/// The number of rows in a call that is about to be planned.
///
/// # Errors
/// Those of [`check_arguments`], and a planning error for a parameter without a value.
pub(crate) fn constant_k(sql_name: TopKName, expr: &Expr) -> Result<usize> {
    match constant(expr)? {
        Some(value) => checked(&sql_name, ROWS, &value),
        None => not_constant(&sql_name, ROWS, expr),
    }
}

/// The number of rows in a call that is about to run.
///
/// # Errors
/// Those of [`check_arguments`].
pub(super) fn evaluated_k(sql_name: TopKName, expr: &Arc<dyn PhysicalExpr>) -> Result<usize> {
    match evaluated(expr)? {
        Some(value) => checked(&sql_name, ROWS, &value),
        None => not_constant(&sql_name, ROWS, expr),
    }
}

/// The error for a number of rows or values that is no such constant.
fn not_constant<T>(name: &dyn Display, what: &str, shown: &dyn Display) -> Result<T> {
    plan_err!("{name}: the number of {what} must be a constant integer of at least 1, got {shown}")
}

/// The number that a value says.
fn checked(name: &dyn Display, what: &str, value: &ScalarValue) -> Result<usize> {
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
        other => return not_constant(name, what, &format!("{other} of type {}", other.data_type())),
    };
    match usize::try_from(k) {
        Ok(k) if k > 0 => Ok(k),
        _ => not_constant(name, what, &k),
    }
}
