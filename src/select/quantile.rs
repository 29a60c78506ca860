//! Quantiles as exact numbers, the ranks that they ask for, and the values that answer them.
//!
//! A quantile is the shortest decimal that prints it (0.1 is one tenth), so a rank is a matter of integers: for
//! `n` values the default method asks for rank `max(1, ceil(q n))`, the others for the position `q (n - 1)`,
//! counted from 0, and what lies at or around it. Methods and their names are NumPy's (`numpy.quantile`,
//! Hyndman and Fan 1996, definitions 1 and 7).

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, Float64Array, PrimitiveArray, new_null_array,
};
use datafusion::arrow::datatypes::{DataType, Float16Type, Float32Type, TimeUnit, i256};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_datafusion_err, plan_err};

use crate::key::{KeyBits, KeySpec};

/// What to answer where a quantile falls between two values, or on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// The value of rank `max(1, ceil(q n))`: NumPy's `inverted_cdf`.
    #[default]
    Disc,
    /// Linear interpolation at position `q (n - 1)`.
    Linear,
    /// The value at `floor(q (n - 1))`.
    Lower,
    /// The value at `ceil(q (n - 1))`.
    Higher,
    /// The value nearest to `q (n - 1)`; halves go to the even index.
    Nearest,
    /// The mean of `lower` and `higher`.
    Midpoint,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 6] = [
        Method::Disc,
        Method::Linear,
        Method::Lower,
        Method::Higher,
        Method::Nearest,
        Method::Midpoint,
    ];

    /// Whether an answer can lie between two values.
    pub fn interpolates(self) -> bool {
        matches!(self, Method::Linear | Method::Midpoint)
    }

    /// Type of the answer for one quantile of a column of type `data_type`.
    ///
    /// # Errors
    /// A planning error where the type cannot be interpolated, or has no keys.
    pub fn result_type(self, data_type: &DataType) -> Result<DataType> {
        KeySpec::try_new(data_type)?;
        if !self.interpolates() {
            return Ok(data_type.clone());
        }
        Ok(match data_type {
            DataType::Date32 | DataType::Date64 => DataType::Timestamp(TimeUnit::Millisecond, None),
            DataType::Boolean => DataType::Float64,
            integer if integer.is_integer() => DataType::Float64,
            kept => kept.clone(),
        })
    }
}

impl Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Disc => "disc",
            Method::Linear => "linear",
            Method::Lower => "lower",
            Method::Higher => "higher",
            Method::Nearest => "nearest",
            Method::Midpoint => "midpoint",
        })
    }
}

impl FromStr for Method {
    type Err = DataFusionError;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "disc" | "inverted_cdf" => Method::Disc,
            "linear" | "cont" => Method::Linear,
            "lower" => Method::Lower,
            "higher" => Method::Higher,
            "nearest" => Method::Nearest,
            "midpoint" => Method::Midpoint,
            _ => {
                return plan_err!(
                    "unknown quantile method '{name}': allowed are disc (or inverted_cdf), linear (or cont), \
                     lower, higher, nearest, midpoint"
                );
            }
        })
    }
}

/// A quantile: the decimal number `digits / 10^scale`, from 0 to 1, without trailing zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quantile {
    digits: u128,
    scale: u32,
}

/// Decimals up to this scale have a denominator that fits `i128`.
const MAX_EXACT_SCALE: u32 = 38;

impl Quantile {
    /// The quantile that the shortest decimal of `value` names.
    ///
    /// # Errors
    /// A planning error that names a value which is NaN or outside [0, 1].
    pub fn try_from_f64(value: f64) -> Result<Self> {
        Self::parse(&format!("{value:e}"), &value)
    }

    /// The quantile that a constant of a number type names.
    ///
    /// # Errors
    /// A planning error that names the value if it is NULL, not a number, NaN or outside [0, 1].
    pub fn try_from_scalar(value: &ScalarValue) -> Result<Self> {
        use ScalarValue::*;
        match value {
            value if value.is_null() => {
                plan_err!("a quantile must not be NULL: allowed is a number from 0 to 1")
            }
            Float64(Some(number)) => Self::parse(&format!("{number:e}"), number),
            Float32(Some(number)) => Self::parse(&format!("{number:e}"), number),
            Float16(Some(number)) => Self::parse(&format!("{:e}", number.to_f32()), number),
            Decimal32(Some(number), _, scale) => Self::from_decimal(i128::from(*number), *scale, value),
            Decimal64(Some(number), _, scale) => Self::from_decimal(i128::from(*number), *scale, value),
            Decimal128(Some(number), _, scale) => Self::from_decimal(*number, *scale, value),
            value if value.data_type().is_integer() => Self::parse(&value.to_string(), value),
            value => plan_err!(
                "a quantile must be a number from 0 to 1, got {value} of type {}",
                value.data_type()
            ),
        }
    }

    fn from_decimal(number: i128, scale: i8, value: &ScalarValue) -> Result<Self> {
        Self::parse(&format!("{number}e{}", -i32::from(scale)), value)
    }

    /// From scientific notation, as Rust prints it; `shown` is for the error.
    fn parse(text: &str, shown: &dyn Display) -> Result<Self> {
        let out_of_range = || plan_err!("quantile {shown} is out of range: allowed is a number from 0 to 1");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let (negative, mantissa) = match mantissa.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, mantissa),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let (Ok(mut digits), Ok(exponent)) = (
            format!("{whole}{fraction}").parse::<u128>(),
            exponent.parse::<i64>(),
        ) else {
            return out_of_range();
        };
        let mut scale = fraction.len() as i64 - exponent;
        while digits != 0 && digits % 10 == 0 && scale > 0 {
            digits /= 10;
            scale -= 1;
        }
        if digits == 0 {
            return Ok(Self { digits: 0, scale: 0 });
        }
        let above_one = match u32::try_from(scale) {
            Ok(0) => digits > 1,
            Ok(scale) => scale <= MAX_EXACT_SCALE && digits > 10_u128.pow(scale),
            Err(_) => true,
        };
        if negative || above_one {
            return out_of_range();
        }
        Ok(Self {
            digits,
            scale: scale as u32,
        })
    }

    /// `floor(q n)` and the fraction above it.
    fn times(self, n: u64) -> (u64, Fraction) {
        if self.scale > MAX_EXACT_SCALE {
            // From a float: at most 17 digits, so q n < 10^37 / 10^39. What is below 10^-38 stays above 0.
            let excess = 10_u128
                .checked_pow(self.scale - MAX_EXACT_SCALE)
                .unwrap_or(u128::MAX);
            let product = self.digits.saturating_mul(n.into());
            let num = if product == 0 {
                0
            } else {
                (product / excess).max(1)
            };
            return (
                0,
                Fraction {
                    num,
                    den: 10_u128.pow(MAX_EXACT_SCALE),
                },
            );
        }
        let den = 10_i128.pow(self.scale);
        let product = i256::from_i128(self.digits as i128) * i256::from_i128(n.into());
        let floor = (product / i256::from_i128(den)).as_i128();
        let num = (product % i256::from_i128(den)).as_i128();
        (
            floor as u64,
            Fraction {
                num: num as u128,
                den: den as u128,
            },
        )
    }

    /// The 1-based rank that the default method asks for, among `n > 0` values.
    pub fn rank(self, n: u64) -> u64 {
        let (floor, fraction) = self.times(n);
        (floor + u64::from(fraction.num > 0)).max(1)
    }
}

impl Display for Quantile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scale == 0 {
            return write!(f, "{}", self.digits);
        }
        if self.scale > MAX_EXACT_SCALE {
            return write!(f, "{}e-{}", self.digits, self.scale);
        }
        write!(f, "0.{:0width$}", self.digits, width = self.scale as usize)
    }
}

/// The constant second argument of the functions: one quantile or a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Quantiles {
    /// The quantiles, in the caller's order.
    pub list: Vec<Quantile>,
    /// Whether the caller wrote a list, so that the answer is one.
    pub is_list: bool,
}

impl Quantiles {
    /// From a constant number or list of numbers.
    ///
    /// # Errors
    /// A planning error that names the value: see [`Quantile::try_from_scalar`].
    pub fn try_from_scalar(value: &ScalarValue) -> Result<Self> {
        let items: &dyn Array = match value {
            ScalarValue::List(list) => list.as_ref(),
            ScalarValue::LargeList(list) => list.as_ref(),
            ScalarValue::FixedSizeList(list) => list.as_ref(),
            number => {
                return Ok(Self {
                    list: vec![Quantile::try_from_scalar(number)?],
                    is_list: false,
                });
            }
        };
        if items.is_null(0) {
            return plan_err!("the list of quantiles must not be NULL: allowed are numbers from 0 to 1");
        }
        let items = match value {
            ScalarValue::List(list) => list.value(0),
            ScalarValue::LargeList(list) => list.value(0),
            ScalarValue::FixedSizeList(list) => list.value(0),
            _ => unreachable!("matched above"),
        };
        let list = (0..items.len())
            .map(|row| Quantile::try_from_scalar(&ScalarValue::try_from_array(&items, row)?))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { list, is_list: true })
    }
}

/// A fraction in [0, 1): `num / den`, `den <= 10^38`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fraction {
    num: u128,
    den: u128,
}

impl Fraction {
    const HALF: Fraction = Fraction { num: 1, den: 2 };

    fn to_f64(self) -> f64 {
        self.num as f64 / self.den as f64
    }
}

/// Where an answer lies: between two ranks (1-based, from the caller's end), `weight` of the way up.
struct Pick {
    low: u64,
    high: u64,
    weight: Fraction,
}

impl Pick {
    fn at(rank: u64) -> Self {
        Pick {
            low: rank,
            high: rank,
            weight: Fraction { num: 0, den: 1 },
        }
    }
}

/// One call's question: which quantiles, by which method, from which end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ask {
    /// The quantiles, in the caller's order.
    pub quantiles: Vec<Quantile>,
    /// How a position becomes an answer.
    pub method: Method,
    /// Count from the greatest value (`WITHIN GROUP (ORDER BY x DESC)`).
    pub descending: bool,
}

impl Ask {
    fn pick(&self, quantile: Quantile, n: u64) -> Pick {
        let (floor, fraction) = quantile.times(n - 1);
        let above = floor + 1 + u64::from(fraction.num > 0);
        let nearest = || {
            let up = match (2 * fraction.num).cmp(&fraction.den) {
                std::cmp::Ordering::Less => false,
                std::cmp::Ordering::Greater => true,
                std::cmp::Ordering::Equal => floor % 2 == 1,
            };
            floor + 1 + u64::from(up)
        };
        let mut pick = match self.method {
            Method::Disc => Pick::at(quantile.rank(n)),
            Method::Lower => Pick::at(floor + 1),
            Method::Higher => Pick::at(above),
            Method::Nearest => Pick::at(nearest()),
            _ if fraction.num == 0 => Pick::at(floor + 1),
            Method::Linear => Pick {
                low: floor + 1,
                high: above,
                weight: fraction,
            },
            Method::Midpoint => Pick {
                low: floor + 1,
                high: above,
                weight: Fraction::HALF,
            },
        };
        if self.descending {
            (pick.low, pick.high) = (n + 1 - pick.low, n + 1 - pick.high);
        }
        pick
    }

    /// The ranks needed to answer, among `n` values: 1-based from the least, ascending, distinct; none if `n` is 0.
    pub fn ranks(&self, n: u64) -> Vec<u64> {
        if n == 0 {
            return Vec::new();
        }
        let picks = self.quantiles.iter().map(|quantile| self.pick(*quantile, n));
        let mut ranks: Vec<u64> = picks.flat_map(|pick| [pick.low, pick.high]).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// The answers, one for each quantile in the caller's order, of type [`Method::result_type`]; all NULL if `n` is 0.
    ///
    /// # Errors
    /// Those of `key_at`, which gives the key of a rank that [`Self::ranks`] named.
    pub fn answers(
        &self,
        spec: &KeySpec,
        n: u64,
        key_at: &dyn Fn(u64) -> Result<KeyBits>,
    ) -> Result<ArrayRef> {
        if n == 0 {
            return Ok(new_null_array(
                &self.method.result_type(spec.data_type())?,
                self.quantiles.len(),
            ));
        }
        let picks: Vec<Pick> = self
            .quantiles
            .iter()
            .map(|quantile| self.pick(*quantile, n))
            .collect();
        let keys = |rank: fn(&Pick) -> u64| -> Result<Vec<KeyBits>> {
            picks.iter().map(|pick| key_at(rank(pick))).collect()
        };
        let low = keys(|pick| pick.low)?;
        if !self.method.interpolates() {
            return spec.to_array(&low);
        }
        let weights: Vec<Fraction> = picks.iter().map(|pick| pick.weight).collect();
        interpolate(spec, &low, &keys(|pick| pick.high)?, &weights)
    }
}

/// `low + weight (high - low)`, value by value.
fn interpolate(spec: &KeySpec, low: &[KeyBits], high: &[KeyBits], weights: &[Fraction]) -> Result<ArrayRef> {
    use DataType::*;
    if matches!(spec.data_type(), Float16 | Float32 | Float64) {
        return interpolate_floats(spec, low, high, weights);
    }
    let triples = || {
        low.iter()
            .zip(high)
            .zip(weights)
            .map(|((low, high), weight)| (*low, *high, *weight))
    };
    let result_type = Method::Linear.result_type(spec.data_type())?;
    if result_type == Float64 {
        return Ok(Arc::new(Float64Array::from_iter_values(triples().map(
            |(low, high, weight)| lerp_integers(spec.integer(low), spec.integer(high), weight),
        ))));
    }
    let scale = if *spec.data_type() == Date32 {
        86_400_000
    } else {
        1
    };
    let result = KeySpec::try_new(&result_type)?;
    let bits: Vec<KeyBits> = triples()
        .map(|(low, high, weight)| {
            let value = lerp_rounded(spec.integer(low) * scale, spec.integer(high) * scale, weight);
            result.integer_key(value)
        })
        .collect();
    result.to_array(&bits)
}

fn interpolate_floats(
    spec: &KeySpec,
    low: &[KeyBits],
    high: &[KeyBits],
    weights: &[Fraction],
) -> Result<ArrayRef> {
    fn typed<T: ArrowPrimitiveType>(values: Vec<f64>, round: impl Fn(f64) -> T::Native) -> ArrayRef {
        Arc::new(PrimitiveArray::<T>::from_iter_values(
            values.into_iter().map(round),
        ))
    }
    let float = |bits: &KeyBits| {
        spec.float(*bits)
            .ok_or_else(|| internal_datafusion_err!("{} is not a float", spec.data_type()))
    };
    let values = low
        .iter()
        .zip(high)
        .zip(weights)
        .map(|((low, high), weight)| Ok(lerp_floats(float(low)?, float(high)?, *weight)))
        .collect::<Result<Vec<f64>>>()?;
    Ok(match spec.data_type() {
        DataType::Float16 => {
            typed::<Float16Type>(values, <Float16Type as ArrowPrimitiveType>::Native::from_f64)
        }
        DataType::Float32 => typed::<Float32Type>(values, |value| value as f32),
        _ => Arc::new(Float64Array::from(values)),
    })
}

/// NumPy's formula (from the nearer end), kept from overflowing; between infinities lies NaN.
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

/// Exact up to the last step, so that integers beyond 2^53 do not cancel.
fn lerp_integers(low: i128, high: i128, weight: Fraction) -> f64 {
    let (whole, rest) = lerp_exact(low, high, weight);
    whole as f64 + rest as f64 / weight.den as f64
}

/// Exact, then rounded to an integer, half away from zero.
fn lerp_rounded(low: i128, high: i128, weight: Fraction) -> i128 {
    let (whole, rest) = lerp_exact(low, high, weight);
    if 2 * rest.unsigned_abs() >= weight.den {
        whole + rest.signum()
    } else {
        whole
    }
}

/// `low + weight (high - low)` as a whole number (towards zero) and the rest, in units of `1 / weight.den`.
fn lerp_exact(low: i128, high: i128, weight: Fraction) -> (i128, i128) {
    // |low| < 2^127 and den < 2^127, and the sum lies between low * den and high * den: no overflow of 2^255.
    let [low, high] = [low, high].map(i256::from_i128);
    let [num, den] = [weight.num, weight.den].map(|part| i256::from_i128(part as i128));
    let total = low * den + (high - low) * num;
    ((total / den).as_i128(), (total % den).as_i128())
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{AsArray, Decimal128Array, Int64Array};
    use datafusion::arrow::datatypes::{Float64Type, Int64Type};

    fn quantile(value: f64) -> Quantile {
        Quantile::try_from_f64(value).unwrap()
    }

    fn ask(quantiles: &[f64], method: Method, descending: bool) -> Ask {
        Ask {
            quantiles: quantiles.iter().map(|q| quantile(*q)).collect(),
            method,
            descending,
        }
    }

    /// Answers over a small array by sorting its keys.
    fn answer(values: ArrayRef, ask: &Ask) -> ArrayRef {
        let spec = KeySpec::try_new(values.data_type()).unwrap();
        let mut keys = spec.keys(&values).unwrap();
        keys.sort_unstable();
        ask.answers(&spec, keys.len() as u64, &|rank| Ok(keys[rank as usize - 1]))
            .unwrap()
    }

    fn floats(values: &[f64], quantiles: &[f64], method: Method) -> Vec<f64> {
        let values: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        answer(values, &ask(quantiles, method, false))
            .as_primitive::<Float64Type>()
            .values()
            .to_vec()
    }

    #[test]
    fn ranks_are_exact() {
        assert_eq!(quantile(0.1).rank(10), 1);
        assert_eq!(quantile(0.07).rank(100), 7);
        assert_eq!(quantile(0.29).rank(100), 29);
        assert_eq!(quantile(0.0).rank(5), 1);
        assert_eq!(quantile(-0.0).rank(5), 1);
        assert_eq!(quantile(1.0).rank(5), 5);
        assert_eq!(quantile(1.0).rank(u64::MAX), u64::MAX);
        assert_eq!(quantile(0.5).rank(u64::MAX), u64::MAX / 2 + 1);
        assert_eq!(quantile(5e-324).rank(u64::MAX), 1);
        assert_eq!(quantile(1e-19).rank(u64::MAX), 2);
        assert_eq!(quantile(0.9999999999999999).rank(10), 10);
    }

    #[test]
    fn quantiles_print_as_decimals() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.5, "0.5"),
            (0.01, "0.01"),
            (0.25, "0.25"),
            (1e-39, "1e-39"),
        ] {
            assert_eq!(quantile(value).to_string(), text);
        }
    }

    #[test]
    fn constants_of_all_number_types() {
        let tenth = quantile(0.1);
        for value in [
            ScalarValue::Float64(Some(0.1)),
            ScalarValue::Float32(Some(0.1)),
            ScalarValue::Decimal128(Some(10), 5, 2),
            ScalarValue::Decimal64(Some(1), 5, 1),
        ] {
            assert_eq!(Quantile::try_from_scalar(&value).unwrap(), tenth, "{value:?}");
        }
        for value in [
            ScalarValue::Int64(Some(1)),
            ScalarValue::UInt8(Some(1)),
            ScalarValue::Decimal128(Some(100), 5, 2),
        ] {
            assert_eq!(Quantile::try_from_scalar(&value).unwrap(), quantile(1.0));
        }
        let smallest = ScalarValue::Decimal128(Some(1), 38, 38);
        assert_eq!(Quantile::try_from_scalar(&smallest).unwrap().rank(u64::MAX), 1);
    }

    #[test]
    fn refusals_name_the_value() {
        for (value, expected) in [
            (
                ScalarValue::Float64(Some(1.5)),
                "quantile 1.5 is out of range: allowed is a number from 0 to 1",
            ),
            (ScalarValue::Float64(Some(-0.1)), "quantile -0.1 is out of range"),
            (
                ScalarValue::Float64(Some(f64::NAN)),
                "quantile NaN is out of range",
            ),
            (
                ScalarValue::Float64(Some(f64::INFINITY)),
                "quantile inf is out of range",
            ),
            (ScalarValue::Float64(Some(1e300)), "out of range"),
            (ScalarValue::Int64(Some(2)), "quantile 2 is out of range"),
            (ScalarValue::Int64(Some(-1)), "quantile -1 is out of range"),
            (
                ScalarValue::UInt64(Some(u64::MAX)),
                "quantile 18446744073709551615 is out of range",
            ),
            (ScalarValue::Decimal128(Some(11), 5, 1), "is out of range"),
            (ScalarValue::Float64(None), "a quantile must not be NULL"),
            (ScalarValue::Null, "a quantile must not be NULL"),
            (
                ScalarValue::from("0.5"),
                "a quantile must be a number from 0 to 1, got 0.5 of type Utf8",
            ),
            (
                ScalarValue::Boolean(Some(true)),
                "a quantile must be a number from 0 to 1, got true of type Boolean",
            ),
        ] {
            let error = Quantile::try_from_scalar(&value).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = "mean".parse::<Method>().unwrap_err().to_string();
        assert!(
            error.contains("unknown quantile method 'mean': allowed are disc"),
            "{error}"
        );
    }

    #[test]
    fn methods_answer_as_numpy_does() {
        // numpy.quantile([1, 2, 3, 4], [0, .25, .5, .75, 1], method=...)
        let (values, quantiles) = ([4.0, 2.0, 1.0, 3.0], [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert_eq!(
            floats(&values, &quantiles, Method::Disc),
            [1.0, 1.0, 2.0, 3.0, 4.0]
        );
        assert_eq!(
            floats(&values, &quantiles, Method::Linear),
            [1.0, 1.75, 2.5, 3.25, 4.0]
        );
        assert_eq!(
            floats(&values, &quantiles, Method::Lower),
            [1.0, 1.0, 2.0, 3.0, 4.0]
        );
        assert_eq!(
            floats(&values, &quantiles, Method::Higher),
            [1.0, 2.0, 3.0, 4.0, 4.0]
        );
        assert_eq!(
            floats(&values, &quantiles, Method::Nearest),
            [1.0, 2.0, 3.0, 3.0, 4.0]
        );
        assert_eq!(
            floats(&values, &quantiles, Method::Midpoint),
            [1.0, 1.5, 2.5, 3.5, 4.0]
        );
    }

    #[test]
    fn interpolation_never_overflows_nor_reads_a_neighbour_of_weight_zero() {
        let (max, inf) = (f64::MAX, f64::INFINITY);
        assert_eq!(floats(&[-max, max], &[0.5], Method::Linear), [0.0]);
        assert_eq!(floats(&[-max, max], &[0.0, 1.0], Method::Linear), [-max, max]);
        assert_eq!(floats(&[1.0, 2.0, inf], &[0.5], Method::Linear), [2.0]);
        assert_eq!(
            floats(&[1.0, inf], &[0.0, 0.25, 0.75], Method::Linear),
            [1.0, inf, inf]
        );
        assert_eq!(floats(&[-inf, 1.0], &[0.75], Method::Linear), [-inf]);
        assert!(floats(&[-inf, inf], &[0.5], Method::Midpoint)[0].is_nan());
        assert_eq!(floats(&[inf, inf], &[0.5], Method::Linear), [inf]);
        assert!(floats(&[1.0, f64::NAN], &[0.5], Method::Linear)[0].is_nan());
        assert_eq!(floats(&[1.0, 2.0, f64::NAN], &[0.5], Method::Linear), [2.0]);
    }

    #[test]
    fn integers_stay_exact_where_no_interpolation_is_asked() {
        let values: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX, i64::MAX - 1, i64::MIN]));
        let exact = answer(Arc::clone(&values), &ask(&[0.0, 0.5, 1.0], Method::Lower, false));
        assert_eq!(
            exact.as_primitive::<Int64Type>().values(),
            &[i64::MIN, i64::MAX - 1, i64::MAX]
        );
        let linear = answer(values, &ask(&[0.25], Method::Linear, false));
        assert_eq!(linear.as_primitive::<Float64Type>().values(), &[-1.0]);
    }

    #[test]
    fn decimals_round_half_away_from_zero() {
        let decimals = |values: Vec<i128>| -> ArrayRef {
            Arc::new(
                Decimal128Array::from(values)
                    .with_precision_and_scale(38, 2)
                    .unwrap(),
            )
        };
        let middle = |values| answer(decimals(values), &ask(&[0.5], Method::Linear, false));
        assert_eq!(middle(vec![1, 2]).as_ref(), decimals(vec![2]).as_ref());
        assert_eq!(middle(vec![-1, -2]).as_ref(), decimals(vec![-2]).as_ref());
        assert_eq!(middle(vec![-1, 2]).as_ref(), decimals(vec![1]).as_ref());
        let huge = 10_i128.pow(38) - 1;
        assert_eq!(middle(vec![-huge, huge]).as_ref(), decimals(vec![0]).as_ref());
        let third = answer(decimals(vec![0, huge]), &ask(&[0.1], Method::Linear, false));
        assert_eq!(third.as_ref(), decimals(vec![10_i128.pow(37)]).as_ref());
    }

    #[test]
    fn descending_counts_from_the_top() {
        let values: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4]));
        for (method, expected) in [
            (Method::Disc, 4),
            (Method::Lower, 4),
            (Method::Higher, 3),
            (Method::Nearest, 3),
        ] {
            let top = answer(Arc::clone(&values), &ask(&[0.25], method, true));
            assert_eq!(top.as_primitive::<Int64Type>().value(0), expected, "{method}");
        }
        let linear = answer(values, &ask(&[0.25], Method::Linear, true));
        assert_eq!(linear.as_primitive::<Float64Type>().value(0), 3.25);
    }

    #[test]
    fn nothing_gives_null_of_the_right_type() {
        let spec = KeySpec::try_new(&DataType::Date32).unwrap();
        let empty = ask(&[0.1, 0.2], Method::Linear, false)
            .answers(&spec, 0, &|_| unreachable!())
            .unwrap();
        assert_eq!(
            empty.data_type(),
            &DataType::Timestamp(TimeUnit::Millisecond, None)
        );
        assert_eq!((empty.len(), empty.null_count()), (2, 2));
    }
}
