//! Quantiles as exact numbers, the ranks that they ask for, and the values that answer them.
//!
//! A quantile is the shortest decimal that prints it (0.1 is one tenth), so a rank is a matter of integers: for
//! `n` values the default method asks for rank `max(1, ceil(q n))`, the others for the position `q (n - 1)`,
//! counted from 0, and what lies at or around it. Methods and their names are NumPy's (`numpy.quantile`,
//! Hyndman and Fan 1996, definitions 1 and 7).

mod between;
mod builtin;
#[cfg(feature = "ballista")]
mod wire;

use std::fmt::{self, Display};
use std::str::FromStr;

use datafusion::arrow::array::{Array, ArrayRef, new_null_array};
use datafusion::arrow::datatypes::{DataType, TimeUnit, i256};
use datafusion::common::{DataFusionError, Result, ScalarValue, plan_err};

use crate::key::{KeyBits, KeySpec, Order};

pub(crate) use between::Interpolation;

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
    /// DataFusion's own `median`, whatever the quantile, in its arithmetic. Not a name that users write.
    Median,
    /// DataFusion's own `percentile_cont`, in its arithmetic. Not a name that users write.
    PercentileCont,
}

impl Method {
    /// All methods that users can name.
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
        matches!(self, Method::Linear | Method::Midpoint) || self.is_builtin()
    }

    /// Whether the rule is DataFusion's own.
    fn is_builtin(self) -> bool {
        matches!(self, Method::Median | Method::PercentileCont)
    }

    /// The keys by which values of type `data_type` are ranked, and in which answers of that type are written: in the
    /// functions' order, for DataFusion's own rules in `ORDER BY`'s.
    ///
    /// # Errors
    /// A planning error if the type has no keys.
    pub fn key_spec(self, data_type: &DataType) -> Result<KeySpec> {
        match self.is_builtin() {
            true => KeySpec::for_order_by(data_type),
            false => KeySpec::try_new(data_type),
        }
    }

    /// Type of the answer for one quantile of a column of type `data_type`.
    ///
    /// # Errors
    /// A planning error where the type has no order, or nothing lies between its values and the method needs that.
    pub fn result_type(self, data_type: &DataType) -> Result<DataType> {
        let order = Order::try_new(data_type)?;
        if self.is_builtin() {
            KeySpec::try_new(data_type)?;
            return builtin::result_type(self, data_type);
        }
        if !self.interpolates() {
            return Ok(data_type.clone());
        }
        Ok(match data_type {
            DataType::Decimal256(..) => data_type.clone(),
            discrete if matches!(order, Order::Bytes(_)) || matches!(discrete, DataType::Interval(_)) => {
                return plan_err!(
                    "quantile method '{self}' needs values between two others, and type {discrete} has none: allowed \
                     are disc, lower, higher, nearest"
                );
            }
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
            Method::Median => "median",
            Method::PercentileCont => "percentile_cont",
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
        if let (Ok(digits), Some(den)) = (u64::try_from(self.digits), 10_u64.checked_pow(self.scale))
            && let Some(product) = digits.checked_mul(n)
        {
            let fraction = Fraction {
                num: (product % den).into(),
                den: den.into(),
            };
            return (product / den, fraction);
        }
        self.times_wide(n)
    }

    /// As [`Self::times`], for products of any width.
    fn times_wide(self, n: u64) -> (u64, Fraction) {
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

    /// The nearest `f64`: the number itself for a quantile that was one.
    fn to_f64(self) -> f64 {
        // Both parts and their quotient are exact up to one rounding.
        if self.digits < 1 << 53 && self.scale <= 22 {
            return self.digits as f64 / 10_f64.powi(self.scale as i32);
        }
        let text = format!("{}e-{}", self.digits, self.scale);
        text.parse().unwrap_or(f64::NAN)
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
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

/// Where an answer lies: between two ranks (1-based, from the least value), `weight` of the way from `low` to `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pick {
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
    /// Where the answer for one quantile lies among `n > 0` values.
    fn pick(&self, quantile: Quantile, n: u64) -> Pick {
        if self.method.is_builtin() {
            return builtin::pick(self.method, quantile, self.descending, n);
        }
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
            _ => Pick {
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
        let mut found = Found::default();
        found.add(&self.picks(n), key_at)?;
        self.values(spec, &found)
    }

    /// Where the answers lie among `n > 0` values, in the caller's order.
    pub(crate) fn picks(&self, n: u64) -> Picks {
        let picks = self.quantiles.iter().map(|quantile| self.pick(*quantile, n));
        Picks {
            list: picks.collect(),
            interpolates: self.method.interpolates(),
        }
    }

    /// The answers from the keys that were picked, of type [`Method::result_type`].
    pub(crate) fn values(&self, spec: &KeySpec, found: &Found<KeyBits>) -> Result<ArrayRef> {
        if !self.method.interpolates() {
            return spec.to_array(&found.low);
        }
        let interpolation = self.interpolation(spec)?;
        let ends = found.low.iter().zip(&found.high);
        let keys = ends
            .zip(&found.picks)
            .map(|((low, high), pick)| interpolation.between(spec, *pick, *low, *high));
        interpolation.result.to_array(&keys.collect::<Result<Vec<_>>>()?)
    }

    /// How the keys of `spec` become keys of the answers.
    pub(crate) fn interpolation(&self, spec: &KeySpec) -> Result<Interpolation> {
        Interpolation::try_new(self.method, spec)
    }
}

/// Where the answers of one [`Ask`] lie among some number of values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Picks {
    list: Vec<Pick>,
    interpolates: bool,
}

impl Picks {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Pick> {
        self.list.iter().copied()
    }
}

/// Keys, or byte strings, that answers are or lie between, of any number of groups.
#[derive(Debug)]
pub(crate) struct Found<T> {
    low: Vec<T>,
    /// Of a method that interpolates, as `picks`.
    high: Vec<T>,
    picks: Vec<Pick>,
}

impl<T> Default for Found<T> {
    fn default() -> Self {
        Self {
            low: Vec::new(),
            high: Vec::new(),
            picks: Vec::new(),
        }
    }
}

impl<T> Found<T> {
    /// Adds those of one group; `value_at` gives the key, or byte string, of a 1-based rank.
    ///
    /// # Errors
    /// Those of `value_at`.
    pub(crate) fn add(&mut self, picks: &Picks, value_at: &dyn Fn(u64) -> Result<T>) -> Result<()> {
        for pick in picks.iter() {
            self.low.push(value_at(pick.low)?);
            if picks.interpolates {
                self.high.push(value_at(pick.high)?);
                self.picks.push(pick);
            }
        }
        Ok(())
    }
}

mod by_value;
#[cfg(test)]
mod tests;
