//! Values of each type of fixed width.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, TimeUnit};

use crate::patterns::Pattern;

/// Types of fixed width, one of each kind and unit.
pub fn types() -> Vec<DataType> {
    use DataType::*;
    vec![
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float16,
        Float32,
        Float64,
        Date32,
        Date64,
        Decimal32(9, 2),
        Decimal64(18, 4),
        Decimal128(38, 10),
        Time32(TimeUnit::Second),
        Time64(TimeUnit::Nanosecond),
        Timestamp(TimeUnit::Microsecond, Some("+01:00".into())),
        Duration(TimeUnit::Millisecond),
    ]
}

/// Values of a type in a pattern; every eleventh is NULL where `nulls`.
pub fn values(data_type: &DataType, pattern: Pattern, len: usize, seed: u64, nulls: bool) -> ArrayRef {
    let words = pattern.words(len, seed);
    let keep = |i: usize| !nulls || i % 11 != 3;
    let integers = |fit: fn(i64) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter(
            words.iter().enumerate().map(|(i, w)| keep(i).then(|| fit(*w))),
        ))
    };
    let source = match data_type {
        DataType::Float16 | DataType::Float32 | DataType::Float64 => {
            let floats = pattern.floats(len, seed);
            Arc::new(Float64Array::from_iter(
                floats.iter().enumerate().map(|(i, v)| keep(i).then_some(*v)),
            )) as ArrayRef
        }
        DataType::Boolean => integers(|w| w & 1),
        DataType::Int8 => integers(|w| i64::from(w as i8)),
        DataType::UInt8 => integers(|w| i64::from(w as u8)),
        DataType::Int16 => integers(|w| i64::from(w as i16)),
        DataType::UInt16 => integers(|w| i64::from(w as u16)),
        DataType::UInt32 => integers(|w| i64::from(w as u32)),
        DataType::UInt64 => integers(|w| w & i64::MAX),
        DataType::Int32 | DataType::Date32 => integers(|w| i64::from(w as i32)),
        DataType::Time32(_) => integers(|w| w.rem_euclid(86_400)),
        DataType::Time64(_) => integers(|w| w.rem_euclid(86_400_000_000_000)),
        DataType::Decimal32(..) => integers(|w| w % 10_000_000),
        DataType::Decimal64(..) => integers(|w| w % 100_000_000_000_000),
        _ => integers(|w| w >> 1),
    };
    let source = match data_type {
        DataType::Date32 | DataType::Time32(_) => cast(&source, &DataType::Int32).unwrap(),
        _ => source,
    };
    cast(&source, data_type).unwrap_or_else(|error| panic!("{data_type}: {error}"))
}
