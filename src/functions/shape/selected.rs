//! Calls that are answered by ranks of ungrouped values, as quantiles are: the number of values up to a rank's value is known then, too.

use datafusion::common::Result;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::AggregateFunction;

use super::call::{Constants, constants_of};
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
