//! Figures as people read them.

use datafusion::arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::scalar::ScalarValue;
use datafusion_quantiles::profile::{ColumnProfile, Distinct, text};

/// A count with commas between thousands.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Six significant digits of a number.
pub(crate) fn float(number: f64) -> String {
    let size = number.abs();
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    if !(1e-5..1e15).contains(&size) {
        return format!("{number:.5e}");
    }
    let before = size.log10().floor() as i32 + 1;
    let decimals = usize::try_from(6 - before).unwrap_or(0);
    let text = format!("{number:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A part of a whole in percent, with one decimal.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / (whole.max(1)) as f64)
}

/// A value; `NULL` for NULL. Line breaks and other control characters are written as in Rust.
pub(crate) fn value(value: &ScalarValue) -> Result<String> {
    let text = match value {
        ScalarValue::Float64(Some(number)) => number.to_string(),
        ScalarValue::Float32(Some(number)) => number.to_string(),
        other => text(other)?.unwrap_or_else(|| "NULL".to_owned()),
    };
    Ok(printable(&text))
}

/// A text whose line breaks and other control characters are written as in Rust.
pub(crate) fn printable(text: &str) -> String {
    let shown = text.chars().map(|character| match character {
        control if control.is_control() => control.escape_default().to_string(),
        other => other.to_string(),
    });
    shown.collect()
}

/// A value of at most so many characters.
pub(crate) fn short(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// The number of distinct values in words.
pub(super) fn distinct(column: &ColumnProfile) -> Option<String> {
    column.distinct.map(|distinct| match distinct {
        Distinct::Exact(number) => format!("{} distinct", count(number)),
        Distinct::Estimated(number) => format!("about {} distinct", count(number)),
    })
}

/// What the length of a value counts.
pub(super) fn unit_of_length(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Dictionary(_, plain) => unit_of_length(plain),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "characters",
        DataType::Map(..) => "entries",
        other if other.is_nested() => "items",
        _ => "bytes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        for (number, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (149_623.657_347, "149624"),
            (25.528_480_99, "25.5285"),
            (-0.031_597_2, "-0.0315972"),
            (1.5e-9, "1.50000e-9"),
            (2.5e20, "2.50000e20"),
            (f64::NAN, "NaN"),
            (123_456_789.4, "123456789"),
        ] {
            assert_eq!(float(number), text);
        }
        assert_eq!(
            (percent(1, 3), percent(0, 0)),
            ("33.3 %".to_owned(), "0.0 %".to_owned())
        );
    }

    #[test]
    fn texts() {
        assert_eq!(value(&ScalarValue::from("a\nb\tç")).unwrap(), "a\\nb\\tç");
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(short("çé", 2), "çé");
    }
}
