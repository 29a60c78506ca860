//! Values as PostgreSQL writes them as text.
//!
//! ```text
//! 2.0 -> 2    inf -> Infinity    1e21 -> 1e+21    2026-01-02T00:00:00.500 -> 2026-01-02 00:00:00.5    90 min -> 01:30:00
//! ```
//!
//! Columns that a client wants as text become columns of text, and lists lists of text, before the driver's library writes them. What it
//! writes as PostgreSQL does is left to it.

mod nested;

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, FixedSizeListArray, GenericListArray, OffsetSizeTrait,
    PrimitiveArray, RecordBatch, StringBuilder,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, Float16Type, Float32Type,
    Float64Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType, Schema,
};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::Result;
use pgwire::api::results::{FieldFormat, FieldInfo};

/// How a client wants its values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// `extra_float_digits`: below 1, digits fewer than those that tell all numbers apart.
    pub(super) digits: i8,
    /// Whether intervals are written as `1 day 02:00:00`.
    pub(super) plain_intervals: bool,
}

/// A column with a type that the driver's library has: decimals of other widths than 128 bits become such, lists within lists text.
pub(super) fn known(field: &FieldRef) -> FieldRef {
    match known_type(field.data_type()) {
        Some(data_type) => Arc::new(field.as_ref().clone().with_data_type(data_type)),
        None => Arc::clone(field),
    }
}

fn known_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal256(precision, scale) => Some(DataType::Decimal128(
            (*precision).min(DECIMAL128_MAX_PRECISION),
            *scale,
        )),
        DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
            let known = match is_list(element.data_type()) {
                true => Some(DataType::Utf8),
                false => known_type(element.data_type()),
            };
            known.map(|element| DataType::new_list(element, true))
        }
        _ => None,
    }
}

fn is_list(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)
    )
}

/// Whether a list holds lists. PostgreSQL has no type of those whose lengths differ.
fn is_nested(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
            is_list(element.data_type())
        }
        _ => false,
    }
}

/// The rows with the columns that are asked for as text in PostgreSQL's.
///
/// # Errors
/// A value that has no text.
pub(super) fn written(rows: &RecordBatch, fields: &[FieldInfo], style: Style) -> Result<RecordBatch> {
    let schema = rows.schema();
    let is_text = |place: usize| {
        fields
            .get(place)
            .is_none_or(|field| field.format() == FieldFormat::Text)
    };
    let mut changed = false;
    let mut columns = Vec::with_capacity(rows.num_columns());
    let mut types = Vec::with_capacity(rows.num_columns());
    for (place, (column, field)) in rows.columns().iter().zip(schema.fields()).enumerate() {
        let made = match is_text(place) || is_nested(column.data_type()) {
            true => texts(column, style)?,
            false => match known_type(column.data_type()) {
                Some(known) => Some(cast(column, &known)?),
                None => interval_bytes(column)?,
            },
        };
        match made {
            Some(made) => {
                changed = true;
                types.push(Arc::new(Field::new(field.name(), made.data_type().clone(), true)));
                columns.push(made);
            }
            None => {
                types.push(Arc::clone(field));
                columns.push(Arc::clone(column));
            }
        }
    }
    if !changed {
        return Ok(rows.clone());
    }
    let schema = Schema::new_with_metadata(types, schema.metadata().clone());
    Ok(RecordBatch::try_new(Arc::new(schema), columns)?)
}

/// A column as text; `None` if it is left as it is.
fn texts(column: &ArrayRef, style: Style) -> Result<Option<ArrayRef>> {
    Ok(Some(match column.data_type() {
        DataType::Float16 => {
            numbers::<Float16Type>(column, |number, text| single(number.to_f32(), style, text))
        }
        DataType::Float32 => numbers::<Float32Type>(column, |number, text| single(number, style, text)),
        DataType::Float64 => numbers::<Float64Type>(column, |number, text| double(number, style, text)),
        DataType::Interval(unit) if style.plain_intervals => intervals(column, *unit),
        DataType::Timestamp(..) | DataType::Time32(_) | DataType::Time64(_) => times(column)?,
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => cast(column, &DataType::Utf8)?,
        DataType::Dictionary(_, values) => {
            let plain = cast(column, values)?;
            return Ok(Some(texts(&plain, style)?.unwrap_or(plain)));
        }
        DataType::List(element) => return list::<i32>(column, element, style),
        DataType::LargeList(element) => return list::<i64>(column, element, style),
        DataType::FixedSizeList(element, size) => {
            let lists = column.as_fixed_size_list();
            let Some(values) = elements(lists.values(), style)? else {
                return Ok(None);
            };
            let element = Arc::new(Field::new(element.name(), values.data_type().clone(), true));
            Arc::new(FixedSizeListArray::try_new(
                element,
                *size,
                values,
                lists.nulls().cloned(),
            )?)
        }
        DataType::Struct(_) => nested::records(column, style)?,
        _ => return Ok(None),
    }))
}

fn intervals(column: &ArrayRef, unit: IntervalUnit) -> ArrayRef {
    match unit {
        IntervalUnit::YearMonth => {
            numbers::<IntervalYearMonthType>(column, |months, text| interval(months, 0, 0, text))
        }
        IntervalUnit::DayTime => numbers::<IntervalDayTimeType>(column, |value, text| {
            interval(0, value.days, i64::from(value.milliseconds) * 1_000_000, text);
        }),
        IntervalUnit::MonthDayNano => numbers::<IntervalMonthDayNanoType>(column, |value, text| {
            interval(value.months, value.days, value.nanoseconds, text);
        }),
    }
}

/// The elements of lists as text; `None` if they are left as they are.
fn elements(values: &ArrayRef, style: Style) -> Result<Option<ArrayRef>> {
    match is_list(values.data_type()) {
        true => Ok(Some(Arc::new(nested::cells(values, style)?))),
        false => texts(values, style),
    }
}

fn list<O: OffsetSizeTrait>(column: &ArrayRef, element: &FieldRef, style: Style) -> Result<Option<ArrayRef>> {
    let lists = column.as_list::<O>();
    let Some(values) = elements(lists.values(), style)? else {
        return Ok(None);
    };
    let element = Arc::new(Field::new(element.name(), values.data_type().clone(), true));
    let lists = GenericListArray::try_new(element, lists.offsets().clone(), values, lists.nulls().cloned())?;
    Ok(Some(Arc::new(lists)))
}

/// The shortest form of times and timestamps: no zeros at the end of a second, and of an offset only what is not zero.
fn times(column: &ArrayRef) -> Result<ArrayRef> {
    let options = FormatOptions::new()
        .with_time_format(Some("%H:%M:%S%.6f"))
        .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.6f"))
        .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.6f%:z"));
    let formatter = ArrayFormatter::try_new(column.as_ref(), &options)?;
    let mut texts = StringBuilder::with_capacity(column.len(), 26 * column.len());
    for row in 0..column.len() {
        if column.is_null(row) {
            texts.append_null();
            continue;
        }
        let text = formatter.value(row).try_to_string()?;
        let (seconds, rest) = text.split_once('.').unwrap_or((&text, ""));
        let (fraction, offset) = rest.split_at(rest.len().min(6));
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        let offset = offset.strip_suffix(":00").unwrap_or(offset);
        texts.append_value(format!(
            "{}{point}{fraction}{offset}",
            seconds.trim_start_matches('+')
        ));
    }
    Ok(Arc::new(texts.finish()))
}

/// Intervals as PostgreSQL's bytes: microseconds, days, months. The driver's library has no NULL among them.
fn interval_bytes(column: &ArrayRef) -> Result<Option<ArrayRef>> {
    let DataType::Interval(_) = column.data_type() else {
        return Ok(None);
    };
    let parts = cast(column, &DataType::Interval(IntervalUnit::MonthDayNano))?;
    let mut bytes = BinaryBuilder::with_capacity(column.len(), 16 * column.len());
    for value in parts.as_primitive::<IntervalMonthDayNanoType>() {
        match value {
            Some(value) => {
                let microseconds = (value.nanoseconds / 1000).to_be_bytes();
                bytes.append_value(
                    [
                        &microseconds[..],
                        &value.days.to_be_bytes(),
                        &value.months.to_be_bytes(),
                    ]
                    .concat(),
                );
            }
            None => bytes.append_null(),
        }
    }
    Ok(Some(Arc::new(bytes.finish())))
}

fn numbers<T: ArrowPrimitiveType>(column: &ArrayRef, write: impl Fn(T::Native, &mut String)) -> ArrayRef {
    let values: &PrimitiveArray<T> = column.as_primitive();
    let mut texts = StringBuilder::with_capacity(values.len(), 8 * values.len());
    let mut text = String::new();
    for value in values {
        match value {
            Some(value) => {
                text.clear();
                write(value, &mut text);
                texts.append_value(&text);
            }
            None => texts.append_null(),
        }
    }
    Arc::new(texts.finish())
}

/// The shortest text that gives the number, or one with fewer digits if the client asks for that.
fn single(number: f32, style: Style, text: &mut String) {
    match style.digits {
        1.. => shortest(&format!("{number:e}"), f64::from(number), 6, text),
        fewer => rounded(f64::from(number), 6, fewer, text),
    }
}

/// As [`single`].
fn double(number: f64, style: Style, text: &mut String) {
    match style.digits {
        1.. => shortest(&format!("{number:e}"), number, 15, text),
        fewer => rounded(number, 15, fewer, text),
    }
}

/// Rounds to `digits + fewer` digits, at least one.
fn rounded(number: f64, digits: i32, fewer: i8, text: &mut String) {
    let digits = (digits + i32::from(fewer)).max(1);
    let places = usize::try_from(digits - 1).unwrap_or(0);
    shortest(&format!("{number:.places$e}"), number, digits, text);
}

/// Writes what Rust writes as `1.5e20` as PostgreSQL does: with an exponent from `digits` digits on, or after four zeros.
fn shortest(scientific: &str, number: f64, digits: i32, text: &mut String) {
    if number.is_nan() {
        text.push_str("NaN");
        return;
    }
    if number.is_sign_negative() {
        text.push('-');
    }
    if number.is_infinite() {
        text.push_str("Infinity");
        return;
    }
    let unsigned = scientific.trim_start_matches('-');
    let (mantissa, exponent) = unsigned.split_once('e').unwrap_or((unsigned, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let all: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let significant = all.trim_end_matches('0');
    let significant = if significant.is_empty() { "0" } else { significant };
    if exponent < -4 || exponent >= digits {
        let (first, rest) = significant.split_at(1);
        text.push_str(first);
        if !rest.is_empty() {
            text.push('.');
            text.push_str(rest);
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        text.push_str(&format!("e{sign}{:02}", exponent.unsigned_abs()));
    } else if exponent < 0 {
        text.push_str("0.");
        text.extend(std::iter::repeat_n('0', exponent.unsigned_abs() as usize - 1));
        text.push_str(significant);
    } else {
        let whole = exponent.unsigned_abs() as usize + 1;
        let (before, after) = significant.split_at(whole.min(significant.len()));
        text.push_str(before);
        text.extend(std::iter::repeat_n('0', whole - before.len()));
        if !after.is_empty() {
            text.push('.');
            text.push_str(after);
        }
    }
}

/// Writes an interval such as `1 year 2 mons -3 days +04:05:06.5`.
fn interval(months: i32, days: i32, nanoseconds: i64, text: &mut String) {
    let mut was_negative = false;
    let mut part = |number: i64, name: &str, text: &mut String| {
        if number == 0 {
            return;
        }
        let space = if text.is_empty() { "" } else { " " };
        // After a negative part a positive one has a sign.
        let sign = if was_negative && number > 0 { "+" } else { "" };
        let plural = if number == 1 { "" } else { "s" };
        text.push_str(&format!("{space}{sign}{number} {name}{plural}"));
        was_negative = number < 0;
    };
    part(i64::from(months / 12), "year", text);
    part(i64::from(months % 12), "mon", text);
    part(i64::from(days), "day", text);
    let microseconds = nanoseconds / 1000;
    if microseconds == 0 && !text.is_empty() {
        return;
    }
    let sign = match (microseconds < 0, was_negative) {
        (true, _) => "-",
        (false, true) => "+",
        (false, false) => "",
    };
    let space = if text.is_empty() { "" } else { " " };
    let all = microseconds.unsigned_abs();
    let (seconds, fraction) = (all / 1_000_000, all % 1_000_000);
    text.push_str(&format!(
        "{space}{sign}{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    ));
    if fraction > 0 {
        text.push_str(format!(".{fraction:06}").trim_end_matches('0'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_postgres_does() {
        let all = Style {
            digits: 1,
            plain_intervals: true,
        };
        for (number, expected) in [
            (2.0, "2"),
            (-0.0, "-0"),
            (0.0, "0"),
            (2.5, "2.5"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e14, "100000000000000"),
            (1e15, "1e+15"),
            (1_234_567_890_123_456.0, "1.234567890123456e+15"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.5e-300, "-1.5e-300"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::from_bits(1), "5e-324"),
        ] {
            let mut text = String::new();
            double(number, all, &mut text);
            assert_eq!(text, expected);
        }
        for (number, expected) in [
            (1e6_f32, "1e+06"),
            (123_456.0, "123456"),
            (0.1, "0.1"),
            (16_777_216.0, "1.6777216e+07"),
        ] {
            let mut text = String::new();
            single(number, all, &mut text);
            assert_eq!(text, expected);
        }
        for (number, digits, expected) in [
            (0.1 + 0.2, 0, "0.3"),
            (2.0 / 3.0, -12, "0.667"),
            (1234.5, -15, "1e+03"),
        ] {
            let mut text = String::new();
            double(number, Style { digits, ..all }, &mut text);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn intervals_are_written_as_postgres_does() {
        for ((months, days, nanoseconds), expected) in [
            ((0, 0, 0), "00:00:00"),
            ((14, 3, 14_706_500_000_000), "1 year 2 mons 3 days 04:05:06.5"),
            ((0, 1, 0), "1 day"),
            ((-1, 1, 0), "-1 mons +1 day"),
            ((0, -3, 60_000_000_000), "-3 days +00:01:00"),
            ((0, 0, -90_000_000_000), "-00:01:30"),
            ((0, 0, 360_000_000_000_000), "100:00:00"),
        ] {
            let mut text = String::new();
            interval(months, days, nanoseconds, &mut text);
            assert_eq!(text, expected);
        }
    }
}
