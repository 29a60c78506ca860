//! Types whose values are whole multiples of a step, and constants as exact multiples of it.
//!
//! ```text
//! Int64          1             Decimal(p, s)    10^-s         Date32    86400 s
//! Timestamp(ms)  10^-3 s       Duration(us)     10^-6 s       Time32    s or 10^-3 s
//! ```
//! A constant of another type of the same kind lies on a multiple, or between two: 2.5 among integers lies between 2 and 3. No value is
//! rounded.

use std::cmp::Ordering;

use datafusion::arrow::datatypes::{DataType, TimeUnit, i256};
use datafusion::common::{Result, ScalarValue, plan_err};

/// What the values of a type measure. Only those of one kind are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Number,
    Instant,
    TimeOfDay,
    Duration,
}

/// The step of a type: its values are whole multiples of `units * 10^-scale`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    kind: Kind,
    units: i128,
    scale: i32,
}

/// Where a constant lies among the multiples of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnGrid {
    /// At this multiple or, if not `exact`, between it and the next one.
    At { floor: i256, exact: bool },
    /// Below all multiples that a type can hold, or above them.
    Beyond(Ordering),
}

/// An exact number of a kind: `digits * units * 10^-scale`.
struct Exact {
    kind: Kind,
    digits: i256,
    units: i128,
    scale: i32,
}

const SECONDS_OF_DAY: i128 = 86_400;

impl Grid {
    /// The grid of a type; `None` for types that are no multiples of a step.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        use DataType::*;
        let grid = |kind, units, scale| Some(Self { kind, units, scale });
        match data_type {
            Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => grid(Kind::Number, 1, 0),
            Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale) | Decimal256(_, scale) => {
                grid(Kind::Number, 1, (*scale).into())
            }
            Date32 => grid(Kind::Instant, SECONDS_OF_DAY, 0),
            Date64 => grid(Kind::Instant, 1, 3),
            Timestamp(unit, _) => grid(Kind::Instant, 1, decimals(*unit)),
            Time32(unit) | Time64(unit) => grid(Kind::TimeOfDay, 1, decimals(*unit)),
            Duration(unit) => grid(Kind::Duration, 1, decimals(*unit)),
            _ => None,
        }
    }

    /// Where `value`, which is not NULL, lies on this grid, which is that of `data_type`.
    ///
    /// # Errors
    /// A planning error for a value that has no place among those of `data_type`.
    pub(super) fn place(self, data_type: &DataType, value: &ScalarValue) -> Result<OnGrid> {
        if let Some(float) = float(value).filter(|float| !float.is_finite()) {
            let side = if float == f64::NEG_INFINITY {
                Ordering::Less
            } else {
                Ordering::Greater
            };
            return Ok(OnGrid::Beyond(side));
        }
        match exact(&comparable(data_type, value)?)? {
            Some(exact) if exact.kind == self.kind => Ok(self.floor(&exact)),
            _ => plan_err!(
                "{value} of type {} is not compared with values of type {data_type}",
                value.data_type()
            ),
        }
    }

    /// The multiple at or below an exact number.
    fn floor(self, value: &Exact) -> OnGrid {
        let negative = value.digits.is_negative();
        let beyond = OnGrid::Beyond(if negative {
            Ordering::Less
        } else {
            Ordering::Greater
        });
        if value.digits == i256::ZERO {
            return OnGrid::At {
                floor: i256::ZERO,
                exact: true,
            };
        }
        let shift = self.scale - value.scale;
        let num = value.digits.checked_mul(i256::from_i128(value.units));
        let Some(num) = num.and_then(|num| num.checked_mul(power_of_ten(shift.max(0))?)) else {
            return beyond;
        };
        let den = power_of_ten((-shift).max(0)).and_then(|den| den.checked_mul(i256::from_i128(self.units)));
        let minus_one = i256::MINUS_ONE;
        let Some(den) = den else {
            // The divisor is greater than any number here.
            return OnGrid::At {
                floor: if negative { minus_one } else { i256::ZERO },
                exact: false,
            };
        };
        let (quotient, rest) = (num.wrapping_div(den), num.wrapping_rem(den));
        let exact = rest == i256::ZERO;
        let floor = if exact || !negative {
            quotient
        } else {
            quotient.wrapping_add(minus_one)
        };
        OnGrid::At { floor, exact }
    }
}

/// The number of decimals of a second that a unit has.
fn decimals(unit: TimeUnit) -> i32 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}

/// `10^exponent`, if 256 bits hold it.
fn power_of_ten(exponent: i32) -> Option<i256> {
    i256::from_i128(10).checked_pow(u32::try_from(exponent).ok()?)
}

/// The number in a floating-point constant.
pub(super) fn float(value: &ScalarValue) -> Option<f64> {
    match value {
        ScalarValue::Float16(float) => float.map(f64::from),
        ScalarValue::Float32(float) => float.map(f64::from),
        ScalarValue::Float64(float) => *float,
        _ => None,
    }
}

/// The digits and the scale of the shortest decimal that prints a finite floating-point constant in its own type.
fn shortest_decimal(value: &ScalarValue) -> Option<(i256, i32)> {
    let text = match value {
        ScalarValue::Float16(float) => format!("{:e}", f32::from((*float)?)),
        ScalarValue::Float32(float) => format!("{:e}", (*float)?),
        ScalarValue::Float64(float) => format!("{:e}", (*float)?),
        _ => return None,
    };
    let (mantissa, exponent) = text.split_once('e')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}").parse::<i128>().ok()?;
    let scale = fraction.len() as i32 - exponent.parse::<i32>().ok()?;
    Some((i256::from_i128(digits), scale))
}

/// The constant in a type that is compared with values of `data_type` without a change of the comparison: text as a point in time, a time in
/// the column's zone where it has none itself, an interval of a fixed length as a duration.
///
/// # Errors
/// A planning error for a time with a zone beside values without one, and for an interval of days or months; Arrow's for text that is no time.
fn comparable(data_type: &DataType, value: &ScalarValue) -> Result<ScalarValue> {
    use DataType::{
        Date32, Date64, Duration, Interval, LargeUtf8, Time32, Time64, Timestamp, Utf8, Utf8View,
    };
    let of = value.data_type();
    match (data_type, &of) {
        (Timestamp(_, zone), Utf8 | LargeUtf8 | Utf8View) => {
            let nanoseconds = Timestamp(TimeUnit::Nanosecond, zone.clone());
            // Years that nanoseconds cannot reach.
            value.cast_to(&nanoseconds).or_else(|_| value.cast_to(data_type))
        }
        (Date32 | Date64, Utf8 | LargeUtf8 | Utf8View) => {
            let nanoseconds = Timestamp(TimeUnit::Nanosecond, None);
            value.cast_to(&nanoseconds).or_else(|_| value.cast_to(data_type))
        }
        (Time32(_) | Time64(_), Utf8 | LargeUtf8 | Utf8View) => value.cast_to(&Time64(TimeUnit::Nanosecond)),
        (Timestamp(_, Some(zone)), Timestamp(unit, None)) => {
            value.cast_to(&Timestamp(*unit, Some(zone.clone())))
        }
        (Timestamp(_, Some(zone)), Date32 | Date64) => {
            let midnight = value.cast_to(&Timestamp(TimeUnit::Second, None))?;
            midnight.cast_to(&Timestamp(TimeUnit::Second, Some(zone.clone())))
        }
        (Timestamp(_, None) | Date32 | Date64, Timestamp(_, Some(zone))) => plan_err!(
            "{value} is a time in the zone {zone}, and values of type {data_type} have no zone: cast one of them"
        ),
        (Duration(_), Interval(_)) => fixed_interval(value),
        _ => Ok(value.clone()),
    }
}

/// An interval without days and months, as a duration.
fn fixed_interval(value: &ScalarValue) -> Result<ScalarValue> {
    let nanoseconds = match value {
        ScalarValue::IntervalMonthDayNano(Some(interval)) if interval.months == 0 && interval.days == 0 => {
            interval.nanoseconds
        }
        ScalarValue::IntervalDayTime(Some(interval)) if interval.days == 0 => {
            i64::from(interval.milliseconds) * 1_000_000
        }
        _ => {
            return plan_err!("days and months have no fixed length: {value} is not compared with durations");
        }
    };
    Ok(ScalarValue::DurationNanosecond(Some(nanoseconds)))
}

/// A constant as an exact number of its kind; `None` for other constants.
///
/// # Errors
/// None: a value of its type holds its number.
fn exact(value: &ScalarValue) -> Result<Option<Exact>> {
    let data_type = value.data_type();
    let number = |digits, scale| Exact {
        kind: Kind::Number,
        digits,
        units: 1,
        scale,
    };
    if let Some((digits, scale)) = shortest_decimal(value) {
        return Ok(Some(number(digits, scale)));
    }
    let Some(grid) = Grid::of(&data_type) else {
        return Ok(None);
    };
    let digits = match value {
        ScalarValue::Decimal256(Some(digits), ..) => *digits,
        ScalarValue::Decimal128(Some(digits), ..) => i256::from_i128(*digits),
        ScalarValue::Decimal64(Some(digits), ..) => i256::from_i128((*digits).into()),
        ScalarValue::Decimal32(Some(digits), ..) => i256::from_i128((*digits).into()),
        ScalarValue::UInt64(Some(digits)) => i256::from_i128((*digits).into()),
        other => match integer(other)? {
            Some(digits) => i256::from_i128(digits.into()),
            None => return Ok(None),
        },
    };
    Ok(Some(Exact {
        kind: grid.kind,
        digits,
        units: grid.units,
        scale: grid.scale,
    }))
}

/// The integer in a constant of a type of at most 64 bits.
fn integer(value: &ScalarValue) -> Result<Option<i64>> {
    let narrow = match value.data_type() {
        DataType::Date32 | DataType::Time32(_) => {
            value.cast_to(&DataType::Int32)?.cast_to(&DataType::Int64)?
        }
        _ => value.cast_to(&DataType::Int64)?,
    };
    Ok(match narrow {
        ScalarValue::Int64(integer) => integer,
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(data_type: DataType, value: ScalarValue) -> (i128, bool) {
        match Grid::of(&data_type).unwrap().place(&data_type, &value).unwrap() {
            OnGrid::At { floor, exact } => (floor.to_i128().unwrap(), exact),
            OnGrid::Beyond(Ordering::Less) => (i128::MIN, false),
            OnGrid::Beyond(_) => (i128::MAX, false),
        }
    }

    #[test]
    fn constants_of_other_types_lie_where_they_are() {
        use DataType::*;
        let decimal = |digits, scale| ScalarValue::Decimal128(Some(digits), 38, scale);
        let (low, high) = (i128::MIN, i128::MAX);
        for (data_type, value, expected) in [
            (Int64, ScalarValue::from(2.5), (2, false)),
            (Int64, ScalarValue::from(-2.5), (-3, false)),
            (Int64, ScalarValue::from(-0.0), (0, true)),
            (Int64, ScalarValue::from(1e300), (high, false)),
            (Int64, ScalarValue::from(-1e300), (low, false)),
            (Int64, ScalarValue::from(5e-324), (0, false)),
            (Int64, ScalarValue::from(-5e-324), (-1, false)),
            (Int64, ScalarValue::from(f64::NAN), (high, false)),
            (Int64, ScalarValue::from(f64::NEG_INFINITY), (low, false)),
            (Int32, ScalarValue::from(u64::MAX), (u64::MAX.into(), true)),
            (Int64, decimal(-25, 1), (-3, false)),
            (Int64, decimal(25, -1), (250, true)),
            (Decimal128(10, 2), ScalarValue::from(0.3), (30, true)),
            (Decimal128(10, 2), ScalarValue::from(0.3_f32), (30, true)),
            (Decimal128(10, 2), decimal(305, 3), (30, false)),
            (Decimal128(10, -2), ScalarValue::from(150_i64), (1, false)),
            (
                Date32,
                ScalarValue::TimestampSecond(Some(86_401), None),
                (1, false),
            ),
            (Date32, ScalarValue::from("1970-01-02"), (1, true)),
            (
                Timestamp(TimeUnit::Second, None),
                ScalarValue::TimestampMillisecond(Some(-1), None),
                (-1, false),
            ),
            (
                Timestamp(TimeUnit::Nanosecond, None),
                ScalarValue::Date32(Some(1)),
                (86_400_000_000_000, true),
            ),
            (
                Timestamp(TimeUnit::Second, None),
                ScalarValue::from("1970-01-01T00:00:01.5"),
                (1, false),
            ),
            (
                Timestamp(TimeUnit::Second, Some("+01:00".into())),
                ScalarValue::from("1970-01-01T01:00:00"),
                (0, true),
            ),
            (
                Timestamp(TimeUnit::Second, Some("+01:00".into())),
                ScalarValue::Date32(Some(0)),
                (-3600, true),
            ),
            (
                Time32(TimeUnit::Second),
                ScalarValue::from("00:01:00.25"),
                (60, false),
            ),
            (
                Duration(TimeUnit::Millisecond),
                ScalarValue::DurationMicrosecond(Some(2500)),
                (2, false),
            ),
            (
                Duration(TimeUnit::Millisecond),
                ScalarValue::new_interval_mdn(0, 0, 2_000_000),
                (2, true),
            ),
        ] {
            let shown = format!("{value:?} among {data_type}");
            assert_eq!(place(data_type, value), expected, "{shown}");
        }
    }

    #[test]
    fn what_is_not_comparable_is_refused() {
        use DataType::*;
        let zoned = ScalarValue::TimestampSecond(Some(0), Some("+01:00".into()));
        for (data_type, value) in [
            (Int64, ScalarValue::from("5")),
            (Int64, ScalarValue::from(true)),
            (Int64, ScalarValue::Date32(Some(1))),
            (Date32, ScalarValue::from(1_i64)),
            (Timestamp(TimeUnit::Second, None), zoned),
            (Timestamp(TimeUnit::Second, None), ScalarValue::from("soon")),
            (Duration(TimeUnit::Second), ScalarValue::new_interval_mdn(1, 0, 0)),
            (Time64(TimeUnit::Nanosecond), ScalarValue::DurationSecond(Some(1))),
        ] {
            let placed = Grid::of(&data_type).unwrap().place(&data_type, &value);
            assert!(placed.is_err(), "{value:?} among {data_type}: {placed:?}");
        }
    }
}
