//! Parsers of option values.

use std::num::NonZeroUsize;
use std::time::Duration;

/// Parses a number of bytes such as `512MB`, `2g`, `1.5 GiB` or `1000000`. Units are powers of 1024.
///
/// # Errors
/// A message that says what is allowed.
pub(crate) fn parse_bytes(text: &str) -> Result<usize, String> {
    const ALLOWED: &str =
        "expected a positive size such as 512MB, 2g or 1000000 (units b, k, m, g, t: powers of 1024)";
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(ALLOWED.to_string()),
    };
    let number: f64 = number.parse().map_err(|_| ALLOWED.to_string())?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes >= 1.0 && bytes < usize::MAX as f64 {
        Ok(bytes as usize)
    } else {
        Err(ALLOWED.to_string())
    }
}

/// Parses how many rows of a table to show: a number, or `inf`, `infinite` or `none` for all, which is `usize::MAX`.
///
/// # Errors
/// A message that says what is allowed.
pub(crate) fn parse_rows_shown(text: &str) -> Result<usize, String> {
    match text.to_ascii_lowercase().as_str() {
        "inf" | "infinite" | "none" => Ok(usize::MAX),
        number => number
            .parse()
            .map_err(|_| "expected a number of rows such as 40, or inf for all".to_owned()),
    }
}

/// Parses a number of rows such as `3e7`, `1_000_000` or `1000000`.
///
/// # Errors
/// A message that says what is allowed.
pub(crate) fn parse_rows(text: &str) -> Result<u64, String> {
    /// Up to here every whole number is an f64.
    const MOST: f64 = (1u64 << 53) as f64;
    const ALLOWED: &str = "expected a whole number of rows from 1 to 2^53, such as 3e7, 1_000_000 or 1000000";
    let plain = text.replace('_', "");
    let digits_only = plain.starts_with(|c: char| c.is_ascii_digit());
    match plain.parse::<f64>() {
        Ok(rows) if digits_only && (1.0..=MOST).contains(&rows) && rows.fract() == 0.0 => Ok(rows as u64),
        _ => Err(ALLOWED.to_string()),
    }
}

/// Parses a time in seconds such as `60` or `0.5`.
///
/// # Errors
/// A message that says what is allowed.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "expected a number of seconds above 0, such as 60 or 0.5".to_string())
}

/// Parses a count of at least one.
///
/// # Errors
/// A message that says what is allowed.
pub(crate) fn parse_count(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| "expected a whole number of at least 1".to_string())
}

/// Parses a number of partitions.
///
/// # Errors
/// A message that says what is allowed.
pub(crate) fn parse_partitions(text: &str) -> Result<NonZeroUsize, String> {
    let count = parse_count(text)
        .ok()
        .filter(|count| count.get() <= MOST_PARTITIONS);
    count.ok_or_else(|| format!("expected a whole number from 1 to {MOST_PARTITIONS}"))
}

/// Most partitions: each has buffers of its own.
const MOST_PARTITIONS: usize = 1 << 16;

/// Parses a TPC-H scale factor: 1 is about a gigabyte of text, 6 million rows of lineitem.
///
/// # Errors
/// A message that says what is allowed.
pub(crate) fn parse_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // Below it, some tables have no rows.
        Ok(scale) if (0.0001..=100_000.0).contains(&scale) => Ok(scale),
        _ => Err("expected a scale factor from 0.0001 to 100000, such as 0.1 or 10".to_string()),
    }
}

/// Parses a device.
///
/// # Errors
/// A message that says what is allowed.
#[cfg(any(feature = "ballista", feature = "cuda"))]
pub(crate) fn parse_device(text: &str) -> Result<datafusion_quantiles::config::DeviceChoice, String> {
    text.parse()
        .map_err(|_| "expected cpu, cuda, cuda:N (devices count from 0), cuda:all or auto".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(feature = "ballista", feature = "cuda"))]
    #[test]
    fn devices() {
        for text in ["cpu", "auto", "cuda", "cuda:3"] {
            assert_eq!(parse_device(text).unwrap().to_string(), text);
        }
        for text in ["", "gpu", "cuda:", "cuda:-1"] {
            assert!(parse_device(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes() {
        for (text, expected) in [
            ("1", 1),
            ("512MB", 512 << 20),
            ("2g", 2 << 30),
            ("1.5 GiB", 3 << 29),
            ("7k", 7 << 10),
            ("1t", 1 << 40),
            ("9b", 9),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "abc",
            "0",
            "-1",
            "1e3",
            "5 parsecs",
            "g",
            "1..2",
            "99999999t",
            "0.5",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rows() {
        for (text, expected) in [
            ("3e7", 30_000_000),
            ("1_000_000", 1_000_000),
            ("1000000", 1_000_000),
            ("1.5e1", 15),
        ] {
            assert_eq!(parse_rows(text), Ok(expected), "{text}");
        }
        for text in ["", "0", "-5", "1.5", "inf", "nan", "many", "1e300"] {
            assert!(parse_rows(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_seconds("60"), Ok(Duration::from_secs(60)));
        for text in ["", "0", "-1", "nan", "inf", "1s", "1e300"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn scales() {
        assert_eq!(parse_scale("0.1"), Ok(0.1));
        for text in ["0", "-1", "nan", "inf", "big", "1e6"] {
            assert!(parse_scale(text).is_err(), "{text}");
        }
    }
}
