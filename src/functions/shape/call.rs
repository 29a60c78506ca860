//! Reads the constant arguments of a call, which stand behind its values.

use std::fmt::Display;

use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Result, ScalarValue, plan_datafusion_err, plan_err};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::function::AccumulatorArgs;

use super::name::ShapeName;
use crate::functions::call::{constant, evaluated};
use crate::quantile::Quantile;

/// Greatest number of values that a call asks for.
const MOST_VALUES: u64 = i32::MAX as u64;

/// Greatest number of bins of a histogram.
const MOST_BINS: u64 = 1 << 16;

/// The constants of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Constants {
    /// None.
    None,
    /// A number of values, or of bins.
    Number(usize),
    /// The share of values that is cut from each end.
    Share(Quantile),
}

/// Checks the arguments of a call, as far as they are known yet.
///
/// # Errors
/// A planning error for a wrong number of arguments, and one that names a constant that is not allowed.
pub(crate) fn check_arguments(sql_name: ShapeName, args: &[Expr]) -> Result<()> {
    let mut values = Vec::with_capacity(args.len());
    for arg in args.iter().skip(1) {
        match constant(arg)? {
            Some(value) => values.push(value),
            // A parameter has its value later.
            None if arg.exists(|part| Ok(matches!(part, Expr::Placeholder(_))))? => {
                return check_count(sql_name, args.len());
            }
            None => return not_constant(sql_name, arg),
        }
    }
    check_count(sql_name, args.len())?;
    read(sql_name, &values).map(drop)
}

/// The constants of a call in a plan; `None` if one has no value yet.
///
/// # Errors
/// Those of [`check_arguments`].
pub(super) fn constants_of(sql_name: ShapeName, args: &[Expr]) -> Result<Option<Constants>> {
    let values = args
        .iter()
        .skip(1)
        .map(constant)
        .collect::<Result<Option<Vec<_>>>>()?;
    values.map(|values| read(sql_name, &values)).transpose()
}

/// Checks that a function takes `DISTINCT`, if the call has it.
///
/// # Errors
/// A planning error that says why not.
pub(super) fn check_distinct(sql_name: ShapeName, is_distinct: bool) -> Result<()> {
    match sql_name.without_distinct().filter(|_| is_distinct) {
        Some(reason) => plan_err!("{sql_name} takes no DISTINCT: {reason}"),
        None => Ok(()),
    }
}

/// Checks the number of arguments.
fn check_count(sql_name: ShapeName, count: usize) -> Result<()> {
    if count == sql_name.arguments() {
        Ok(())
    } else {
        plan_err!("{}", sql_name.wrong_arguments(count))
    }
}

/// The constants of a call that is about to run.
///
/// # Errors
/// Those of [`check_arguments`], and a planning error for a parameter without a value.
pub(super) fn evaluated_constants(sql_name: ShapeName, args: &AccumulatorArgs) -> Result<Constants> {
    check_count(sql_name, args.exprs.len())?;
    let values = args.exprs[1..].iter().map(|expr| match evaluated(expr)? {
        Some(value) => Ok(value),
        None => not_constant(sql_name, expr),
    });
    read(sql_name, &values.collect::<Result<Vec<_>>>()?)
}

fn not_constant<T>(sql_name: ShapeName, shown: &dyn Display) -> Result<T> {
    plan_err!("{sql_name}: all arguments but the first are constants, got {shown}")
}

/// The constants behind the values of a call, as many as it takes.
fn read(sql_name: ShapeName, constants: &[ScalarValue]) -> Result<Constants> {
    match (sql_name, constants) {
        (ShapeName::TopValues | ShapeName::ApproxTopK, [k]) => {
            let k = whole_number(sql_name, "number of values", k, MOST_VALUES)?;
            Ok(Constants::Number(k))
        }
        (ShapeName::Histogram | ShapeName::EquiWidth, [bins]) => {
            let bins = whole_number(sql_name, "number of bins", bins, MOST_BINS)?;
            Ok(Constants::Number(bins))
        }
        (ShapeName::TrimmedMean | ShapeName::WinsorizedMean, [share]) => {
            let read = Quantile::try_from_scalar(share).ok();
            let allowed = read.filter(|share| share.is_below_half());
            allowed.map(Constants::Share).ok_or_else(|| {
                plan_datafusion_err!(
                    "{sql_name}: the share of values that is cut from each end must be a number from 0 to less than 0.5, got {share} of \
                     type {}",
                    share.data_type()
                )
            })
        }
        _ => Ok(Constants::None),
    }
}

/// The integer that a constant says, from 1 to `most`.
fn whole_number(sql_name: ShapeName, what: &str, value: &ScalarValue, most: u64) -> Result<usize> {
    let number = match value {
        value if value.is_null() || !value.data_type().is_integer() => None,
        value => value.to_string().parse::<i128>().ok(),
    };
    let allowed = number.filter(|number| (1..=i128::from(most)).contains(number));
    allowed.map(|number| number as usize).ok_or_else(|| {
        plan_datafusion_err!(
            "{sql_name}: the {what} must be a constant integer from 1 to {most}, got {value} of type {}",
            value.data_type()
        )
    })
}
