//! Tukey's fences: one and a half times the interquartile range beyond the quartiles of values of any type that has numbers.

use datafusion::arrow::datatypes::{DataType, TimeUnit, i256};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};

use super::{Method, Quantile, QuantileSpec};
use crate::key::{KeyBits, KeySpec};

/// The two fences of a column: floating-point numbers of 64 bits for floating-point values, and values of the column's type for all others.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FencePair {
    /// The lower fence.
    pub(crate) low: ScalarValue,
    /// The upper fence.
    pub(crate) high: ScalarValue,
}

/// Keys between which the values within the fences lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cuts {
    /// Values of lesser keys lie below the fences.
    pub(crate) first: KeyBits,
    /// Values of this key and of greater ones lie above the fences; `None`: no key does.
    pub(crate) after: Option<KeyBits>,
}

impl Cuts {
    /// The cuts below which values are to be counted.
    pub(crate) fn list(self) -> Vec<KeyBits> {
        [Some(self.first), self.after].into_iter().flatten().collect()
    }
}

/// The type of the fences of values of this type.
pub(crate) fn fence_type(values: &DataType) -> DataType {
    match values.is_floating() {
        true => DataType::Float64,
        false => values.clone(),
    }
}

/// The question for the quartiles from which fences follow: values of the column, not between them.
///
/// # Errors
/// None: both are quantiles.
pub(crate) fn quartiles() -> Result<QuantileSpec> {
    Ok(QuantileSpec {
        quantiles: vec![Quantile::try_from_f64(0.25)?, Quantile::try_from_f64(0.75)?],
        method: Method::Disc,
        descending: false,
    })
}

/// The ranks of [`quartiles`] among `n > 0` values, from 1.
///
/// # Errors
/// None.
pub(crate) fn quartile_ranks(n: u64) -> Result<[u64; 2]> {
    let asked = quartiles()?.quantiles;
    Ok([asked[0].rank(n), asked[1].rank(n)])
}

impl FencePair {
    /// The fences of values with these quartiles. `None` where there are none: a quartile that is NULL, infinite or no number.
    ///
    /// # Errors
    /// Those of casts.
    pub(crate) fn of(first: &ScalarValue, third: &ScalarValue) -> Result<Option<Self>> {
        if first.is_null() || third.is_null() {
            return Ok(None);
        }
        let edges = match first.data_type().is_floating() {
            true => of_floats(first, third)?,
            false => of_ticks(first, third)?,
        };
        Ok(edges.map(|(low, high)| Self { low, high }))
    }

    /// The fences of values with quartiles of these keys.
    ///
    /// # Errors
    /// Those of casts and of making arrays.
    pub(crate) fn of_keys(spec: &KeySpec, quartiles: [KeyBits; 2]) -> Result<Option<Self>> {
        let values = spec.to_array(&quartiles)?;
        let value = |place| ScalarValue::try_from_array(&values, place);
        Self::of(&value(0)?, &value(1)?)
    }

    /// The cuts of values with quartiles of these keys, below which values are to be counted; none where there are no fences.
    ///
    /// # Errors
    /// Those of casts and of making arrays.
    pub(crate) fn cuts_of_keys(spec: &KeySpec, quartiles: [KeyBits; 2]) -> Result<Vec<KeyBits>> {
        Ok(match Self::of_keys(spec, quartiles)? {
            Some(fences) => fences.cuts(spec)?.list(),
            None => Vec::new(),
        })
    }

    /// The keys that part the values within the fences from those beyond.
    ///
    /// # Errors
    /// Those of casts.
    pub(crate) fn cuts(&self, spec: &KeySpec) -> Result<Cuts> {
        let (first, last) = match self.low.data_type() {
            DataType::Float64 => (least_from(spec, &self.low)?, greatest_to(spec, &self.high)?),
            _ => (key(spec, &self.low)?, key(spec, &self.high)?),
        };
        Ok(Cuts {
            first,
            after: last
                .checked_add(1)
                .filter(|after| *after <= spec.width().max_key()),
        })
    }
}

/// The key of a value of the type of `spec`.
fn key(spec: &KeySpec, value: &ScalarValue) -> Result<KeyBits> {
    let keys = spec.keys(value.to_array()?.as_ref())?;
    keys.first()
        .copied()
        .ok_or_else(|| internal_datafusion_err!("{value} has no key"))
}

/// The key of the floating-point number of the type of `spec` that is nearest to `edge`, and that number.
fn nearest(spec: &KeySpec, edge: &ScalarValue) -> Result<(KeyBits, f64)> {
    let key = key(spec, &edge.cast_to(spec.data_type())?)?;
    Ok((key, spec.float(key).unwrap_or(f64::NAN)))
}

fn number(edge: &ScalarValue) -> f64 {
    match edge {
        ScalarValue::Float64(Some(number)) => *number,
        _ => f64::NAN,
    }
}

/// The least key of a number that is at least `edge`. Both zeros are.
fn least_from(spec: &KeySpec, edge: &ScalarValue) -> Result<KeyBits> {
    let edge = match number(edge) {
        0.0 => ScalarValue::from(-0.0),
        number => ScalarValue::from(number),
    };
    let (key, found) = nearest(spec, &edge)?;
    Ok(if found < number(&edge) { key + 1 } else { key })
}

/// The greatest key of a number that is at most `edge`.
fn greatest_to(spec: &KeySpec, edge: &ScalarValue) -> Result<KeyBits> {
    let (key, found) = nearest(spec, edge)?;
    Ok(if found > number(edge) { key - 1 } else { key })
}

fn of_floats(first: &ScalarValue, third: &ScalarValue) -> Result<Option<(ScalarValue, ScalarValue)>> {
    let number = |value: &ScalarValue| match value.cast_to(&DataType::Float64)? {
        ScalarValue::Float64(Some(number)) => Ok::<_, datafusion::error::DataFusionError>(number),
        _ => Ok(f64::NAN),
    };
    let (first, third) = (number(first)?, number(third)?);
    let reach = 1.5 * (third - first);
    let (low, high) = (first - reach + 0.0, third + reach + 0.0);
    Ok((low.is_finite() && high.is_finite()).then(|| (low.into(), high.into())))
}

/// Fences of values that are whole numbers of a unit, such as days or the last digit of a decimal.
fn of_ticks(first: &ScalarValue, third: &ScalarValue) -> Result<Option<(ScalarValue, ScalarValue)>> {
    let (Some(low), Some(high)) = (ticks(first), ticks(third)) else {
        return Ok(None);
    };
    // Three times a difference of two decimals of 256 bits may need more.
    let reach = high
        .checked_sub(low)
        .and_then(|range| range.checked_mul(i256::from_i128(3)));
    let two = i256::from_i128(2);
    let twice = |value: i256| value.checked_mul(two);
    let edges =
        reach.and_then(|reach| Some((twice(low)?.checked_sub(reach)?, twice(high)?.checked_add(reach)?)));
    let Some((low, high)) = edges else { return Ok(None) };
    // Towards the quartiles: what is beyond the half is beyond the whole number.
    let half = |value: i256, up: bool| {
        let (quotient, rest) = (value.wrapping_div(two), value.wrapping_rem(two));
        match (rest == i256::ZERO, rest.is_negative(), up) {
            (true, ..) | (false, true, true) | (false, false, false) => quotient,
            (false, true, false) => quotient.wrapping_sub(i256::ONE),
            (false, false, true) => quotient.wrapping_add(i256::ONE),
        }
    };
    Ok(Some((of(half(low, true), first)?, of(half(high, false), first)?)))
}

/// A value as a whole number of the unit of its type; `None` for types that are no such number.
fn ticks(value: &ScalarValue) -> Option<i256> {
    match value {
        ScalarValue::Decimal32(number, ..) => number.map(|number| i256::from_i128(number.into())),
        ScalarValue::Decimal64(number, ..) => number.map(|number| i256::from_i128(number.into())),
        ScalarValue::Decimal128(number, ..) => number.map(i256::from_i128),
        ScalarValue::Decimal256(number, ..) => *number,
        ScalarValue::UInt64(number) => number.map(|number| i256::from_i128(number.into())),
        whole => match whole
            .cast_to(&stored(&whole.data_type()))
            .ok()?
            .cast_to(&DataType::Int64)
            .ok()?
        {
            ScalarValue::Int64(number) => number.map(|number| i256::from_i128(number.into())),
            _ => None,
        },
    }
}

/// The integers that values of a type are stored as; other types as they are.
pub(crate) fn stored(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Date32 | DataType::Time32(_) => DataType::Int32,
        DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_) => {
            DataType::Int64
        }
        other => other.clone(),
    }
}

/// The value of the type of `like` that is nearest to this number.
fn of(number: i256, like: &ScalarValue) -> Result<ScalarValue> {
    let within = |low: i256, high: i256| number.max(low).min(high);
    let digits = |precision: u8| {
        let most = i256::from_i128(10)
            .checked_pow(precision.into())
            .unwrap_or(i256::MAX);
        let most = most.wrapping_sub(i256::ONE);
        within(most.wrapping_neg(), most)
    };
    let narrow = |number: i256| number.to_i128().unwrap_or_default();
    Ok(match like {
        ScalarValue::Decimal32(_, precision, scale) => {
            ScalarValue::Decimal32(i32::try_from(narrow(digits(*precision))).ok(), *precision, *scale)
        }
        ScalarValue::Decimal64(_, precision, scale) => {
            ScalarValue::Decimal64(i64::try_from(narrow(digits(*precision))).ok(), *precision, *scale)
        }
        ScalarValue::Decimal128(_, precision, scale) => {
            ScalarValue::Decimal128(digits(*precision).to_i128(), *precision, *scale)
        }
        ScalarValue::Decimal256(_, precision, scale) => {
            ScalarValue::Decimal256(Some(digits(*precision)), *precision, *scale)
        }
        _ => {
            let data_type = like.data_type();
            let (low, high) = limits(&data_type);
            let number = narrow(within(i256::from_i128(low), i256::from_i128(high)));
            let number = match data_type {
                DataType::UInt64 => ScalarValue::UInt64(u64::try_from(number).ok()),
                _ => ScalarValue::Int64(i64::try_from(number).ok()),
            };
            number.cast_to(&stored(&data_type))?.cast_to(&data_type)?
        }
    })
}

/// The least and the greatest number that values of a type are stored as.
fn limits(data_type: &DataType) -> (i128, i128) {
    const SECONDS: i128 = 86_400;
    match data_type {
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int32 | DataType::Date32 => (i32::MIN.into(), i32::MAX.into()),
        DataType::UInt8 => (0, u8::MAX.into()),
        DataType::UInt16 => (0, u16::MAX.into()),
        DataType::UInt32 => (0, u32::MAX.into()),
        DataType::UInt64 => (0, u64::MAX.into()),
        DataType::Time32(unit) | DataType::Time64(unit) => (0, SECONDS * per_second(*unit) - 1),
        _ => (i64::MIN.into(), i64::MAX.into()),
    }
}

fn per_second(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, AsArray, Float64Array};
    use datafusion::arrow::compute::cast;
    use datafusion::arrow::datatypes::Float64Type;

    use super::*;

    fn edges(first: ScalarValue, third: ScalarValue) -> Option<(ScalarValue, ScalarValue)> {
        FencePair::of(&first, &third)
            .unwrap()
            .map(|fences| (fences.low, fences.high))
    }

    #[test]
    fn whole_numbers_are_rounded_towards_the_quartiles() {
        for (first, third, low, high) in [
            (1, 2, 0, 3),
            (1, 3, -2, 6),
            (-2, -1, -3, 0),
            (5, 5, 5, 5),
            (0, 7, -10, 17),
        ] {
            let expected = (ScalarValue::Int32(Some(low)), ScalarValue::Int32(Some(high)));
            assert_eq!(
                edges(first.into(), third.into()),
                Some(expected),
                "{first} {third}"
            );
        }
    }

    #[test]
    fn fences_end_where_the_type_does() {
        let (low, high) = edges(10_u8.into(), 250_u8.into()).unwrap();
        assert_eq!((low, high), (0_u8.into(), 255_u8.into()));
        let (low, high) = edges(i64::MIN.into(), i64::MAX.into()).unwrap();
        assert_eq!((low, high), (i64::MIN.into(), i64::MAX.into()));
        let decimal = |number| ScalarValue::Decimal128(Some(number), 3, 1);
        assert_eq!(
            edges(decimal(-900), decimal(900)),
            Some((decimal(-999), decimal(999)))
        );
        assert_eq!(edges(decimal(10), decimal(13)), Some((decimal(6), decimal(17))));
    }

    #[test]
    fn dates_floats_and_what_has_no_fences() {
        let date = |days| ScalarValue::Date32(Some(days));
        assert_eq!(edges(date(100), date(110)), Some((date(85), date(125))));
        assert_eq!(edges(1.0.into(), 2.0.into()), Some(((-0.5).into(), 3.5.into())));
        assert_eq!(
            edges(ScalarValue::Float32(Some(1.0)), ScalarValue::Float32(Some(2.0))),
            Some(((-0.5).into(), 3.5.into()))
        );
        for value in [f64::NAN, f64::INFINITY] {
            assert_eq!(edges(1.0.into(), value.into()), None);
        }
        assert_eq!(edges(ScalarValue::Int64(None), ScalarValue::Int64(None)), None);
    }

    /// Numbers of values below and above the fences, by keys and by comparisons.
    fn check_cuts(values: ArrayRef, low: f64, high: f64) {
        let spec = KeySpec::try_new(values.data_type()).unwrap();
        let edges = FencePair {
            low: low.into(),
            high: high.into(),
        };
        let cuts = edges.cuts(&spec).unwrap();
        let keys = spec.keys(values.as_ref()).unwrap();
        let count = |is_beyond: &dyn Fn(KeyBits) -> bool| keys.iter().filter(|key| is_beyond(**key)).count();
        let numbers = cast(&values, &DataType::Float64).unwrap();
        let numbers = numbers.as_primitive::<Float64Type>().values();
        assert_eq!(
            count(&|key| key < cuts.first),
            numbers.iter().filter(|number| **number < low).count(),
            "below {low}"
        );
        assert_eq!(
            count(&|key| cuts.after.is_some_and(|after| key >= after)),
            numbers
                .iter()
                .filter(|number| **number > high || number.is_nan())
                .count(),
            "above {high}"
        );
    }

    #[test]
    fn cuts_part_floats_as_comparisons_do() {
        let numbers = [
            f64::NEG_INFINITY,
            -1e300,
            -3.5e38,
            -65504.0,
            -1.0,
            -0.1,
            -0.0,
            0.0,
            0.1,
            0.3,
            1.0,
            65504.0,
            3.4e38,
            1e300,
            f64::INFINITY,
            f64::NAN,
        ];
        for data_type in [DataType::Float16, DataType::Float32, DataType::Float64] {
            let values: ArrayRef = Arc::new(Float64Array::from(numbers.to_vec()));
            let values = cast(&values, &data_type).unwrap();
            for low in numbers.into_iter().filter(|low| low.is_finite()) {
                for high in numbers.into_iter().filter(|high| high.is_finite()) {
                    check_cuts(Arc::clone(&values), low + 0.0, high + 0.0);
                }
            }
        }
    }
}
