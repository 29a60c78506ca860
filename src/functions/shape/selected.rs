//! Calls that are answered by ranks of ungrouped values, as quantiles are: the number of values up to a rank's value is known then, too.

use datafusion::common::Result;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::AggregateFunction;

use super::call::{Constants, constants_of};
use super::frequency::Frequency;
use super::function::{ShapeFunction, shape};
use super::name::ShapeName;
use super::two_reads::parts_of_one;
use crate::functions::call_of;
use crate::quantile::fences::quartiles;
use crate::quantile::{AnswerForm, Method, Quantile, QuantileSpec};

/// The struct of Tukey's fences of `x` and the numbers of values beyond them: `low`, `high`, `below`, `above`. NULL where there are none.
pub(crate) fn tukey_fences(x: Expr) -> Expr {
    call_of(shape(ShapeName::Fences), vec![x])
}

/// The share of each end that a call of a mean leaves out, or replaces (`true`); `None` if it asks for something else.
///
/// # Errors
/// A planning error that names a constant which is not allowed.
pub(crate) fn asked_of_mean(call: &AggregateFunction) -> Result<Option<(Quantile, bool)>> {
    let Some(function) = ShapeFunction::of(&call.func) else {
        return Ok(None);
    };
    let name = function.sql_name();
    Ok(match (name, constants_of(name, &call.params.args)?) {
        (ShapeName::TrimmedMean, Some(Constants::Share(share))) => Some((share, false)),
        (ShapeName::WinsorizedMean, Some(Constants::Share(share))) => Some((share, true)),
        _ => None,
    })
}

/// The most frequent values that a call asks for; `None` if it asks for something else.
///
/// # Errors
/// A planning error that names a constant which is not allowed.
pub(crate) fn asked_of_frequency(call: &AggregateFunction) -> Result<Option<Frequency>> {
    let Some(function) = ShapeFunction::of(&call.func) else {
        return Ok(None);
    };
    let name = function.sql_name();
    let constants = constants_of(name, &call.params.args)?;
    Ok(constants.and_then(|constants| Frequency::of(name, constants)))
}

/// The quantiles from which a call is answered, and the form of its answer; `None` if it is not answered so.
///
/// # Errors
/// A planning error that names a constant which is not allowed.
pub(crate) fn asked_of_ranks(call: &AggregateFunction) -> Result<Option<(QuantileSpec, AnswerForm)>> {
    let Some(function) = ShapeFunction::of(&call.func) else {
        return Ok(None);
    };
    let name = function.sql_name();
    Ok(match (name, constants_of(name, &call.params.args)?) {
        (ShapeName::Histogram, Some(Constants::Number(bins))) => {
            let quantiles = parts_of_one(bins);
            let quantiles = quantiles.iter().map(Quantile::try_from_scalar);
            let quantile_spec = QuantileSpec {
                quantiles: quantiles.collect::<Result<_>>()?,
                method: Method::Disc,
                descending: false,
            };
            Some((quantile_spec, AnswerForm::Bins))
        }
        (ShapeName::Fences, _) => Some((quartiles()?, AnswerForm::Fences)),
        _ => None,
    })
}
