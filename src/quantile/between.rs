//! Interpolation: from the keys around a position to the key of the answer.

use datafusion::arrow::datatypes::{DataType, i256};
use datafusion::common::{Result, internal_datafusion_err};

use super::{Fraction, Method, Pick, builtin, spark};
use crate::key::{KeyBits, KeySpec};

/// The interpolation between values of one column by one method.
#[derive(Debug, Clone)]
pub(crate) struct Interpolation {
    method: Method,
    /// The meaning of the keys of answers.
    pub(crate) result: KeySpec,
    kind: NumberKind,
}

/// The numbers that an interpolation gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberKind {
    /// Floating-point numbers of the column's width.
    Floats,
    /// Float64, between integers.
    Integers,
    /// Integers in the result's unit, this many of which make one unit of the column.
    Scaled(i128),
    /// Float64, between decimals of this scale.
    Decimals(i8),
}

impl Interpolation {
    pub(super) fn try_new(method: Method, spec: &KeySpec) -> Result<Self> {
        use DataType::*;
        let result = method.key_spec(&method.result_type(spec.data_type())?)?;
        let kind = match (spec.data_type(), result.data_type()) {
            (Float16 | Float32 | Float64, _) => NumberKind::Floats,
            (Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale), Float64) => {
                NumberKind::Decimals(*scale)
            }
            (_, Float64) => NumberKind::Integers,
            (Date32, Timestamp(..)) => NumberKind::Scaled(86_400_000),
            _ => NumberKind::Scaled(1),
        };
        Ok(Self { method, result, kind })
    }

    /// The key of the answer at `pick`. `key_at` gives the key of a rank.
    ///
    /// # Errors
    /// Errors of `key_at`.
    pub(crate) fn answer(
        &self,
        spec: &KeySpec,
        pick: Pick,
        key_at: &dyn Fn(u64) -> Result<KeyBits>,
    ) -> Result<KeyBits> {
        let low = key_at(pick.low)?;
        let high = if pick.low == pick.high {
            low
        } else {
            key_at(pick.high)?
        };
        self.between(spec, pick, low, high)
    }

    /// The key of what lies at `num / den` of the way from the first of two keys to the second. `num` is at most `den`.
    ///
    /// # Errors
    /// None for keys of `spec`.
    pub(crate) fn part(&self, spec: &KeySpec, ends: [KeyBits; 2], num: u64, den: u64) -> Result<KeyBits> {
        let weight = Fraction {
            num: num.into(),
            den: den.into(),
        };
        let pick = Pick {
            low: 1,
            high: 2,
            weight,
        };
        self.between(spec, pick, ends[0], ends[1])
    }

    /// The keys of what lies at `1 / den`, `2 / den` and so on of the way from the first of two keys to the second, which is the last of them.
    ///
    /// # Errors
    /// None for keys of `spec`.
    pub(crate) fn parts(&self, spec: &KeySpec, ends: [KeyBits; 2], den: u64) -> Result<Vec<KeyBits>> {
        if (self.kind, self.method) != (NumberKind::Floats, Method::Linear) {
            return (1..=den).map(|num| self.part(spec, ends, num, den)).collect();
        }
        let [low, high] = [float_of(spec, ends[0])?, float_of(spec, ends[1])?];
        let part = |num: u64| {
            let (num, den) = (num.into(), den.into());
            self.result
                .float_key(lerp_floats(low, high, Fraction { num, den }))
        };
        Ok((1..=den).map(part).collect())
    }

    /// The key of the answer at `pick`, from the keys of its two ranks.
    pub(super) fn between(&self, spec: &KeySpec, pick: Pick, low: KeyBits, high: KeyBits) -> Result<KeyBits> {
        if pick.low == pick.high && spec.data_type() == self.result.data_type() {
            return Ok(low);
        }
        let weight = pick.weight;
        if self.kind == NumberKind::Floats {
            let [low, high] = [float_of(spec, low)?, float_of(spec, high)?];
            return Ok(self.result.float_key(match self.method {
                Method::Median => builtin::mean(low, high, |sum| self.result.rounded(sum)),
                Method::PercentileCont => builtin::between(low, high, weight),
                Method::SparkPercentile => spark::between(low, high, low == high, weight),
                _ => lerp_floats(low, high, weight),
            }));
        }
        let [low, high] = [spec.integer(low), spec.integer(high)];
        Ok(match self.kind {
            NumberKind::Scaled(_) if self.method == Method::Median => {
                self.result.integer_key(lerp_exact(low, high, weight).0)
            }
            NumberKind::Scaled(unit) => {
                let value = lerp_rounded(low * unit, high * unit, weight);
                self.result.integer_key(value)
            }
            NumberKind::Decimals(scale) => {
                let [from, to] = [low, high].map(|digits| spark::decimal(digits, scale));
                self.result
                    .float_key(spark::between(from, to, low == high, weight))
            }
            _ if self.method == Method::SparkPercentile => {
                let value = spark::between(low as f64, high as f64, low == high, weight);
                self.result.float_key(value)
            }
            _ => self.result.float_key(lerp_integers(low, high, weight)),
        })
    }
}

/// The number that a key of `spec` stands for.
fn float_of(spec: &KeySpec, key: KeyBits) -> Result<f64> {
    let float = spec.float(key);
    float.ok_or_else(|| internal_datafusion_err!("{} is not a float", spec.data_type()))
}

/// Linear interpolation by NumPy's formula (from the nearer end), which does not overflow here. Between two different
/// infinities lies NaN.
fn lerp_floats(low: f64, high: f64, weight: Fraction) -> f64 {
    if weight.num == 0 || low == high {
        return low;
    }
    if !low.is_finite() || !high.is_finite() {
        return low + high;
    }
    let weight = weight.to_f64();
    let step = high - low;
    if !step.is_finite() {
        low * (1.0 - weight) + high * weight
    } else if weight < 0.5 {
        low + step * weight
    } else {
        high - step * (1.0 - weight)
    }
}

/// Linear interpolation between integers, exact up to the last step, so that integers beyond 2^53 do not cancel.
fn lerp_integers(low: i128, high: i128, weight: Fraction) -> f64 {
    let (whole, rest) = lerp_exact(low, high, weight);
    let nearest = |number: i128| i64::try_from(number).map_or(number as f64, |number| number as f64);
    nearest(whole) + nearest(rest) / nearest(weight.den as i128)
}

/// Linear interpolation, exact, then rounded to an integer, half away from zero.
pub(super) fn lerp_rounded(low: i128, high: i128, weight: Fraction) -> i128 {
    let (whole, rest) = lerp_exact(low, high, weight);
    if 2 * rest.unsigned_abs() >= weight.den {
        whole + rest.signum()
    } else {
        whole
    }
}

/// `low + weight (high - low)` as a whole number (towards zero) and the rest, in units of `1 / weight.den`.
fn lerp_exact(low: i128, high: i128, weight: Fraction) -> (i128, i128) {
    if let Some(narrow) = lerp_narrow(low, high, weight) {
        return narrow;
    }
    let fits = |value: i128| i64::try_from(value).is_ok() || u64::try_from(value).is_ok();
    if fits(low) && fits(high) && weight.den <= 1 << 62 {
        // Both terms of the sum, and so the sum, lie within 2^65 * 2^62.
        let den = weight.den as i128;
        let total = low * (den - weight.num as i128) + high * weight.num as i128;
        let whole = total / den;
        return (whole, total - whole * den);
    }
    // |low| < 2^127 and den < 2^127, and the sum lies between low * den and high * den: no overflow of 2^255.
    let [low, high] = [low, high].map(i256::from_i128);
    let [num, den] = [weight.num, weight.den].map(|part| i256::from_i128(part as i128));
    let total = low * den + (high - low) * num;
    ((total / den).as_i128(), (total % den).as_i128())
}

/// [`lerp_exact`] in 64 bits, whose division takes a third of the time; `None` if they do not suffice.
fn lerp_narrow(low: i128, high: i128, weight: Fraction) -> Option<(i128, i128)> {
    let step = i64::try_from(high.checked_sub(low)?).ok()?;
    let low = i64::try_from(low).ok()?;
    let [num, den] = [weight.num, weight.den].map(|part| i64::try_from(part).ok());
    let (num, den) = (num?, den?);
    let total = low.checked_mul(den)?.checked_add(step.checked_mul(num)?)?;
    let whole = total.checked_div(den)?;
    Some((whole.into(), (total - whole * den).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_sums_are_those_of_any_width() {
        let digits = 10_i128.pow(38) - 1;
        let half = Fraction { num: 1, den: 2 };
        assert_eq!(lerp_exact(-digits, digits, half), (0, 0));
        let ends = [0, 1, -1, 7, i64::MIN.into(), i64::MAX.into(), u64::MAX.into()];
        let wide = |value: i128, den: i128| value * den;
        for (low, high) in ends.iter().flat_map(|low| ends.map(|high| (*low, high))) {
            for (num, den) in [(0, 1), (1, 2), (1, 3), (99, 100), (999_999_999, 1_000_000_000)] {
                let (whole, rest) = lerp_exact(low, high, Fraction { num, den });
                let (num, den) = (num as i128, den as i128);
                assert_eq!(wide(whole, den) + rest, low * (den - num) + high * num);
                assert!(rest.abs() < den && (rest == 0 || whole == 0 || (rest > 0) == (whole > 0)));
            }
        }
    }
}
