//! Deviations from a median, and the median of them.
//!
//! A median of integers is whole, or lies half way between two numbers. The deviations from it are all whole then, or all end in a half, so that
//! their whole parts have their order:
//!
//! ```text
//! values 1 4 6 9      median 5      deviations 4 1 1 4
//! values 1 4 7 9      median 5.5    deviations 4.5 1.5 1.5 3.5, whole parts 4 1 1 3
//! ```

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, PrimitiveArray, UInt64Array, new_null_array,
};
use datafusion::arrow::datatypes::*;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

use super::argument::first_value;
use crate::functions::shape::number::rounded;
use crate::key::KeySpec;

/// A 16-bit floating-point number.
type F16 = <Float16Type as ArrowPrimitiveType>::Native;

/// Greatest precision of decimals whose deviations are 64-bit numbers.
const DIGITS_OF_64_BITS: u8 = 18;

/// Greatest precision of decimals whose deviations are 128-bit numbers.
const MOST_DIGITS: u8 = 37;

/// The type of deviations of values of a type; `None` if they have none here.
pub(super) fn deviation_type(x: &DataType) -> Option<DataType> {
    match x {
        DataType::Float16 | DataType::Float32 | DataType::Float64 => Some(x.clone()),
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Duration(_) => Some(DataType::UInt64),
        DataType::Decimal128(..=DIGITS_OF_64_BITS, _) => Some(DataType::UInt64),
        DataType::Decimal128(..=MOST_DIGITS, _) => Some(DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0)),
        integer if integer.is_integer() => Some(DataType::UInt64),
        _ => None,
    }
}

/// `deviation_from(x, median)` of floating-point numbers: how far `x` is from the median. `deviation_from(x, low, high)` of integers, decimals and
/// durations: the whole part of how far it is from the middle of two numbers, in units of the last digit. NULL where an argument is.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct DeviationFrom {
    signature: Signature,
}

impl Default for DeviationFrom {
    fn default() -> Self {
        Self {
            signature: Signature::variadic_any(Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for DeviationFrom {
    fn name(&self) -> &str {
        "deviation_from"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let deviation = arg_types.first().and_then(deviation_type);
        deviation.ok_or_else(|| internal_datafusion_err!("{}({arg_types:?})", self.name()))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some((x, center)) = args.args.split_first() else {
            return internal_err!("{} without values", self.name());
        };
        let x = x.to_array(args.number_rows)?;
        let center = center.iter().map(first_value).collect::<Result<Vec<_>>>()?;
        let deviations = if center.iter().any(ScalarValue::is_null) {
            new_null_array(args.return_type(), x.len())
        } else {
            deviations(&x, &center, args.return_type())?
        };
        Ok(ColumnarValue::Array(deviations))
    }
}

/// A value as the number that it counts in units of its type.
fn integer(value: &ScalarValue) -> Result<i128> {
    let value = value.to_array()?;
    match KeySpec::try_new(value.data_type())? {
        spec if value.is_valid(0) => {
            let keys = spec.keys(value.as_ref())?;
            Ok(keys.first().map_or(0, |key| spec.integer(*key)))
        }
        _ => internal_err!("the integer of NULL"),
    }
}

/// A value as a floating-point number.
fn float(value: &ScalarValue) -> Result<f64> {
    match value {
        ScalarValue::Float16(Some(value)) => Ok(value.to_f64()),
        ScalarValue::Float32(Some(value)) => Ok((*value).into()),
        ScalarValue::Float64(Some(value)) => Ok(*value),
        other => internal_err!("{other} is not a float"),
    }
}

/// The deviations of values from a median, or from the middle of two values.
fn deviations(x: &ArrayRef, center: &[ScalarValue], data_type: &DataType) -> Result<ArrayRef> {
    macro_rules! floats {
        ($type:ty, $from:expr, $to:expr) => {{
            let [median] = center else {
                return internal_err!("deviations from {center:?}");
            };
            let (median, from, to) = (float(median)?, $from, $to);
            // Infinity does not deviate from itself.
            let deviation = |value: f64| {
                if value == median {
                    0.0
                } else {
                    (value - median).abs()
                }
            };
            let values = x.as_primitive::<$type>();
            let values: PrimitiveArray<$type> = values.unary(|value| to(deviation(from(value))));
            Arc::new(values) as ArrayRef
        }};
    }
    macro_rules! integers {
        ($type:ty) => {{
            let values = x.as_primitive::<$type>();
            of_integers(
                values.values().iter().map(|value| i128::from(*value)),
                x,
                center,
                data_type,
            )?
        }};
    }
    Ok(match x.data_type() {
        DataType::Float16 => floats!(Float16Type, |value: F16| value.to_f64(), F16::from_f64),
        DataType::Float32 => floats!(Float32Type, f64::from, |value| value as f32),
        DataType::Float64 => floats!(Float64Type, |value| value, |value| value),
        DataType::Int8 => integers!(Int8Type),
        DataType::Int16 => integers!(Int16Type),
        DataType::Int32 => integers!(Int32Type),
        DataType::Int64 => integers!(Int64Type),
        DataType::UInt8 => integers!(UInt8Type),
        DataType::UInt16 => integers!(UInt16Type),
        DataType::UInt32 => integers!(UInt32Type),
        DataType::UInt64 => integers!(UInt64Type),
        DataType::Decimal32(..) => integers!(Decimal32Type),
        DataType::Decimal64(..) => integers!(Decimal64Type),
        DataType::Decimal128(..) => integers!(Decimal128Type),
        DataType::Duration(TimeUnit::Second) => integers!(DurationSecondType),
        DataType::Duration(TimeUnit::Millisecond) => integers!(DurationMillisecondType),
        DataType::Duration(TimeUnit::Microsecond) => integers!(DurationMicrosecondType),
        DataType::Duration(TimeUnit::Nanosecond) => integers!(DurationNanosecondType),
        other => return internal_err!("deviations of {other}"),
    })
}

/// The whole parts of the deviations of `values`, which are those of `x`, from the middle of two numbers.
fn of_integers(
    values: impl ExactSizeIterator<Item = i128>,
    x: &ArrayRef,
    center: &[ScalarValue],
    data_type: &DataType,
) -> Result<ArrayRef> {
    let middle = Middle::of(center)?;
    let whole = |value: i128| match value > middle.floor {
        true => value - middle.floor - i128::from(middle.has_half),
        false => middle.floor - value,
    };
    // Behind NULL lies any value.
    Ok(match data_type {
        DataType::UInt64 => {
            let values: Vec<u64> = values.map(|value| whole(value) as u64).collect();
            Arc::new(UInt64Array::new(values.into(), x.nulls().cloned()))
        }
        _ => {
            let values: Vec<i128> = values.map(whole).collect();
            let values = Decimal128Array::new(values.into(), x.nulls().cloned());
            Arc::new(values.with_data_type(data_type.clone()))
        }
    })
}

/// The middle of two numbers: a whole number, or that and a half.
struct Middle {
    floor: i128,
    has_half: bool,
}

impl Middle {
    fn of(center: &[ScalarValue]) -> Result<Self> {
        let [low, high] = center else {
            return internal_err!("the middle of {center:?}");
        };
        let sum = integer(low)? + integer(high)?;
        Ok(Self {
            floor: sum.div_euclid(2),
            has_half: sum.rem_euclid(2) == 1,
        })
    }
}

/// The median deviation of integers, as a number of the type `result`, from the two values in the middle and the whole parts of the two deviations
/// in the middle.
///
/// # Errors
/// Internal errors only.
pub(super) fn deviation_of(
    center: &[ScalarValue],
    whole: [&ScalarValue; 2],
    data_type: &DataType,
) -> Result<ScalarValue> {
    let sum = integer(whole[0])? + integer(whole[1])?;
    let fourfold = 2 * sum + 2 * i128::from(Middle::of(center)?.has_half);
    let result = KeySpec::try_new(data_type)?;
    let key = match data_type {
        DataType::Float64 => result.float_key(fourfold as f64 / 4.0),
        _ => result.integer_key(rounded(i256::from_i128(fourfold), i256::from_i128(4))?),
    };
    ScalarValue::try_from_array(&result.to_array(&[key])?, 0)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::Int64Array;

    use super::*;

    #[test]
    fn whole_parts_of_deviations_have_the_order_of_deviations() {
        let values = [i64::MIN, -7, -2, -1, 0, 1, 2, 8, i64::MAX];
        let x: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
        for (low, high) in values.iter().flat_map(|low| values.map(|high| (*low, high))) {
            let center = [low, high].map(|end| ScalarValue::Int64(Some(end)));
            let found = deviations(&x, &center, &DataType::UInt64).unwrap();
            let found = found.as_primitive::<UInt64Type>();
            for (value, found) in values.iter().zip(found.values()) {
                let twice = (2 * i128::from(*value) - i128::from(low) - i128::from(high)).abs();
                assert_eq!(i128::from(*found), twice / 2, "{value} from {low} and {high}");
            }
        }
    }
}
