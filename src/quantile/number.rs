//! Quantiles as exact decimal numbers.

use std::fmt::{self, Display};

use datafusion::arrow::array::Array;
use datafusion::arrow::datatypes::i256;
use datafusion::common::{Result, ScalarValue, plan_err};

/// A quantile: the decimal number `digits / 10^scale`, from 0 to 1, without trailing zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quantile {
    pub(super) digits: u128,
    pub(super) scale: u32,
}

/// Greatest scale of decimals whose denominator fits `i128`.
pub(super) const MAX_EXACT_SCALE: u32 = 38;

impl Quantile {
    /// The quantile that the shortest decimal of `value` stands for.
    ///
    /// # Errors
    /// A planning error that names a value which is NaN or outside [0, 1].
    pub fn try_from_f64(value: f64) -> Result<Self> {
        Self::parse(&format!("{value:e}"), &value)
    }

    /// The quantile that a constant of a number type stands for.
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

    /// A quantile from scientific notation, as Rust prints it. `shown` is the value in error messages.
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

    /// `floor(q n)`, and the fraction `q n - floor(q n)`.
    pub(super) fn times(self, n: u64) -> (u64, Fraction) {
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

    /// [`Self::times`] for products of any width.
    pub(super) fn times_wide(self, n: u64) -> (u64, Fraction) {
        if self.scale > MAX_EXACT_SCALE {
            // It comes from a float: at most 17 digits, so q n < 10^37 / 10^39. A fraction below 10^-38 stays above 0.
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

    /// `floor(q n)`.
    pub(crate) fn whole_part_of(self, n: u64) -> u64 {
        self.times(n).0
    }

    /// Whether the quantile is less than one half.
    pub(crate) fn is_below_half(self) -> bool {
        self.scale > MAX_EXACT_SCALE || 2 * self.digits < 10_u128.pow(self.scale)
    }

    /// The nearest `f64`: the original number for a quantile that came from one.
    pub(super) fn to_f64(self) -> f64 {
        // Digits and power are exact, and their quotient is rounded once.
        if self.digits < 1 << 53 && self.scale <= 22 {
            return self.digits as f64 / 10_f64.powi(self.scale as i32);
        }
        let text = format!("{}e-{}", self.digits, self.scale);
        text.parse().unwrap_or(f64::NAN)
    }

    /// The rank, from 1, that the default method takes among `n > 0` values.
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
    /// The quantiles of a constant number or list of numbers.
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

/// A fraction in [0, 1): `num / den` with `0 < den < 2^127`, or an `f64`, whose bits are `num` while `den` is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fraction {
    pub(super) num: u128,
    pub(super) den: u128,
}

impl Fraction {
    pub(super) const HALF: Fraction = Fraction { num: 1, den: 2 };

    /// A fraction that a method computes in `f64`, and from which it computes in `f64`.
    pub(super) fn of_float(value: f64) -> Self {
        Self {
            num: value.to_bits().into(),
            den: 0,
        }
    }

    pub(super) fn to_f64(self) -> f64 {
        match self.den {
            0 => f64::from_bits(self.num as u64),
            den => nearest(self.num) / nearest(den),
        }
    }
}

/// The nearest `f64`: for 64 bits one instruction, for 128 a function.
fn nearest(number: u128) -> f64 {
    u64::try_from(number).map_or(number as f64, |number| number as f64)
}
