//! DataFusion's own `median` and `percentile_cont`, with the ranks and the arithmetic of DataFusion 55.2.
//!
//! Both rank floating point by `totalOrder`. `median` adds the two middle values in the column's type and halves the
//! sum (decimals: towards zero). `percentile_cont` finds its position and weight in `f64`, and counts from the top by `1 - q`. DataFusion
//! cuts the weight to six digits, so that 0.3 of 1, 2, 3 and 4 is 1.899999 there; here it is not cut, and that is 1.9.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};

use super::{Fraction, Method, Pick, Quantile};

/// The column's own type, for the types that DataFusion gives to these functions.
pub(super) fn result_type(method: Method, data_type: &DataType) -> Result<DataType> {
    use DataType::*;
    match data_type {
        Float16 | Float32 | Float64 => Ok(data_type.clone()),
        Decimal32(..) | Decimal64(..) | Decimal128(..) if method == Method::Median => Ok(data_type.clone()),
        other => plan_err!(
            "{method} takes integers, floating-point numbers and decimals, got values of type {other}: exact_quantiles takes any type \
             that has an order"
        ),
    }
}

/// The ranks that the answer lies at or between, among `n > 0` values.
pub(super) fn pick(method: Method, quantile: Quantile, descending: bool, n: u64) -> Pick {
    if method == Method::Median {
        return Pick {
            low: n.div_ceil(2),
            high: n / 2 + 1,
            weight: Fraction::HALF,
        };
    }
    let q = if descending {
        1.0 - quantile.to_f64()
    } else {
        quantile.to_f64()
    };
    if n == 1 || q == 0.0 {
        return Pick::at(1);
    }
    if q == 1.0 {
        return Pick::at(n);
    }
    let position = q * (n - 1) as f64;
    let below = position.floor();
    Pick {
        low: (below as u64).min(n - 1) + 1,
        high: (position.ceil() as u64).min(n - 1) + 1,
        weight: Fraction::of_float(position - below),
    }
}

/// The `median` of two values. `round` rounds to the column's type.
pub(super) fn mean(low: f64, high: f64, round: impl Fn(f64) -> f64) -> f64 {
    // f64 has more than twice the digits of the narrower types, so rounding twice rounds as they do.
    round(low + high) / 2.0
}

/// `percentile_cont` between two values.
pub(super) fn between(low: f64, high: f64, weight: Fraction) -> f64 {
    low + (high - low) * weight.to_f64()
}
