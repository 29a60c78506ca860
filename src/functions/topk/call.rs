//! The constant of a call that says how many rows.

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
