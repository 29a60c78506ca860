//! Calls that are answered by ranks of ungrouped values, as quantiles are: the number of values up to a rank's value is known then, too.

use std::fmt::{self, Display};

use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::AggregateFunction;

use super::call::{Constants, constants_of};
use super::frequency::Frequency;
use super::function::{ShapeFunction, shape};
use super::name::ShapeName;
use crate::functions::call_of;
use crate::quantile::fences::quartiles;
use crate::quantile::{AnswerForm, Method, Quantile, QuantileSpec};

/// The struct of Tukey's fences of `x` and the numbers of values beyond them: `low`, `high`, `below`, `above`. NULL where there are none.
pub(crate) fn tukey_fences(x: Expr) -> Expr {
    call_of(shape(ShapeName::Fences), vec![x])
}

/// What a call asks of all values of a column, that counts and few of the values answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ShapeQuestion {
    /// The most frequent values.
    Frequent(Frequency),
    /// The mean without the ends of the order.
    Mean {
        /// The share of values that is an end.
        share: Quantile,
        /// Whether the ends are replaced by what is next to them.
        is_winsorized: bool,
    },
    /// The median of the deviations from the median.
    Deviation,
    /// The numbers of values in so many bins of the same width.
    EquiWidth(usize),
}

impl Display for ShapeQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapeQuestion::Frequent(frequency) => write!(f, "most_frequent={}", frequency.k()),
            ShapeQuestion::Mean {
                share,
                is_winsorized: true,
            } => write!(f, "winsorized_mean={share}"),
            ShapeQuestion::Mean { share, .. } => write!(f, "trimmed_mean={share}"),
            ShapeQuestion::Deviation => f.write_str("median_absolute_deviation"),
            ShapeQuestion::EquiWidth(bins) => write!(f, "bins_of_one_width={bins}"),
        }
    }
}

/// What a call asks of all values of its first argument; `None` if it asks for something else.
///
/// # Errors
/// A planning error that names a constant which is not allowed.
pub(crate) fn asked_of_values(call: &AggregateFunction) -> Result<Option<ShapeQuestion>> {
    let Some(function) = ShapeFunction::of(&call.func) else {
        return Ok(None);
    };
    let name = function.sql_name();
    let Some(constants) = constants_of(name, &call.params.args)? else {
        return Ok(None);
    };
    let mean = |is_winsorized| match constants {
        Constants::Share(share) => Some(ShapeQuestion::Mean { share, is_winsorized }),
        _ => None,
    };
    Ok(match (name, constants) {
        (ShapeName::TrimmedMean, _) => mean(false),
        (ShapeName::WinsorizedMean, _) => mean(true),
        (ShapeName::Mad, _) => Some(ShapeQuestion::Deviation),
        (ShapeName::EquiWidth, Constants::Number(bins)) => Some(ShapeQuestion::EquiWidth(bins)),
        _ => Frequency::of(name, constants).map(ShapeQuestion::Frequent),
    })
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
        (ShapeName::CountDistinct, _) => {
            let (quantiles, method, descending) = (Vec::new(), Method::Disc, false);
            let quantile_spec = QuantileSpec {
                quantiles,
                method,
                descending,
            };
            Some((quantile_spec, AnswerForm::Count))
        }
        _ => None,
    })
}

/// Decimal digits of a part of one.
const PART_DIGITS: u8 = 37;

/// The numbers 0, 1 / n, 2 / n, .. 1. The parts have 37 digits and are not rounded up, so that the rank of a part of any number
/// of values is that of the fraction.
fn parts_of_one(n: usize) -> Vec<ScalarValue> {
    let (one, n) = (10_i128.pow(PART_DIGITS.into()), n as i128);
    let part = |at: i128| {
        // one * at / n, without overflow.
        let digits = one / n * at + one % n * at / n;
        ScalarValue::Decimal128(Some(digits), PART_DIGITS + 1, PART_DIGITS as i8)
    };
    (0..=n).map(part).collect()
}
