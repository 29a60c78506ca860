//! Spark's own `percentile`, with the ranks and the arithmetic of Spark 4.
//!
//! The position is `(n - 1) p` in `f64`, counted from 0. Between two values that differ the answer is
//! `(above - position) lower + (position - below) upper`, where `below` and `above` are the whole numbers around the position. Values
//! are compared in their own type, and become `f64` only then.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};

use super::{Fraction, Pick, Quantile};

/// The type of the answer for one percentage: Float64 for numbers.
pub(super) fn result_type(data_type: &DataType) -> Result<DataType> {
    use DataType::*;
    match data_type {
        Float16 | Float32 | Float64 | Decimal32(..) | Decimal64(..) | Decimal128(..) => Ok(Float64),
        integer if integer.is_integer() => Ok(Float64),
        other => plan_err!(
            "percentile takes integers, floating-point numbers and decimals of up to 38 digits, got values of type {other}: \
             exact_quantiles takes any type that has an order"
        ),
    }
}

/// The position of the answer among `n > 0` values, counted from the least value.
pub(super) fn pick(percentage: Quantile, n: u64) -> Pick {
    let last = n - 1;
    let position = last as f64 * percentage.to_f64();
    // Past 2^53 rows the position can be rounded up to a row that does not exist.
    let rank = |position: f64| (position as u64).min(last) + 1;
    Pick {
        low: rank(position.floor()),
        high: rank(position.ceil()),
        weight: Fraction::of_float(position - position.floor()),
    }
}

/// The answer between two values. `are_equal`: whether they are the same in their own type.
pub(super) fn between(low: f64, high: f64, are_equal: bool, weight: Fraction) -> f64 {
    let weight = weight.to_f64();
    if are_equal || weight == 0.0 {
        return low;
    }
    // Both differences are those that Spark computes: exact from position 1 on, and below it `1 - position` and the position.
    (1.0 - weight) * low + weight * high
}

/// The `f64` nearest to `digits / 10^scale`.
pub(super) fn decimal(digits: i128, scale: i8) -> f64 {
    // Digits and power are exact, and their quotient is rounded once.
    if digits.unsigned_abs() < 1 << 53 && (0..=22).contains(&scale) {
        return digits as f64 / 10_f64.powi(scale.into());
    }
    format!("{digits}e{}", -i32::from(scale))
        .parse()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantile(p: f64) -> Quantile {
        Quantile::try_from_f64(p).unwrap()
    }

    /// Spark's steps, over values that stand in a list as often as they occur.
    fn by_rows(values: &[f64], p: f64) -> f64 {
        let position = (values.len() - 1) as f64 * p;
        let (below, above) = (position.floor(), position.ceil());
        let (low, high) = (values[below as usize], values[above as usize]);
        if below == above || low == high {
            return low;
        }
        (above - position) * low + (position - below) * high
    }

    #[test]
    fn answers_have_the_bits_of_spark() {
        let values = [-1e300, -7.5, 0.1, 0.1, 0.30000000000000004, 2.0, 1e17, 1e300];
        for n in 1..=values.len() {
            for p in [
                0.0,
                1e-300,
                1e-20,
                0.1,
                0.3,
                0.5,
                1.0 / 3.0,
                0.7,
                0.99,
                0.999_999_999,
                1.0,
            ] {
                let pick = pick(quantile(p), n as u64);
                let (low, high) = (values[pick.low as usize - 1], values[pick.high as usize - 1]);
                let found = between(low, high, low == high, pick.weight);
                assert_eq!(found.to_bits(), by_rows(&values[..n], p).to_bits(), "{p} of {n}");
            }
        }
    }

    #[test]
    fn positions_stay_among_the_values() {
        let p = 0.999_999_999_999_999_9;
        for n in [1, 2, (1 << 53) + 3, u64::MAX - 1, u64::MAX] {
            for p in [0.0, p, 1.0] {
                let pick = pick(quantile(p), n);
                assert!(
                    1 <= pick.low && pick.low <= pick.high && pick.high <= n,
                    "{pick:?}"
                );
            }
        }
    }

    #[test]
    fn decimals_are_rounded_once() {
        let ten = 10_i128.pow(37);
        for (digits, scale, expected) in [
            (1, 1, 0.1),
            (-15, 1, -1.5),
            (9_007_199_254_740_993, 0, 9_007_199_254_740_992.0),
            (ten / 3, 38, 1.0 / 30.0),
            (7, -2, 700.0),
        ] {
            assert_eq!(decimal(digits, scale), expected, "{digits} {scale}");
        }
    }
}
