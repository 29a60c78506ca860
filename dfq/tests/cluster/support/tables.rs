//! Tables of many types.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int16Array, Int64Array,
    RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array,
};
use quantiles_testing::batch;
use quantiles_testing::patterns::Pattern;

/// Columns of many types and patterns, with NULLs.
pub(crate) fn rows(count: usize, seed: u64) -> RecordBatch {
    let words = Pattern::Random.words(count, seed);
    let few = Pattern::FewDistinct.words(count, seed + 1);
    let clusters = Pattern::Clusters.words(count, seed + 2);
    let floats = Pattern::Random.floats(count, seed + 3);
    let every = |step: usize| move |i: usize| !i.is_multiple_of(step);
    let kept = |values: &[i64], step: usize| {
        let kept = every(step);
        let values = values
            .iter()
            .enumerate()
            .map(|(i, value)| kept(i).then_some(*value));
        values.collect::<Int64Array>()
    };
    let decimals = Decimal128Array::from_iter_values(clusters.iter().map(|word| i128::from(*word) * 7));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..count as i64))),
        ("x", Arc::new(kept(&words, 11))),
        ("few", Arc::new(kept(&few, 5))),
        ("c", Arc::new(Int64Array::from(clusters.clone()))),
        ("f", Arc::new(Float64Array::from(floats.clone()))),
        (
            "g",
            Arc::new(Float32Array::from_iter_values(floats.iter().map(|f| *f as f32))),
        ),
        (
            "s",
            Arc::new(Int16Array::from_iter_values(
                words.iter().map(|word| *word as i16),
            )),
        ),
        (
            "u",
            Arc::new(UInt64Array::from_iter_values(
                words.iter().map(|word| *word as u64),
            )),
        ),
        ("d", Arc::new(decimals.with_precision_and_scale(38, 3).unwrap())),
        (
            "b",
            Arc::new(BooleanArray::from_iter(
                words.iter().map(|word| Some(word % 3 == 0)),
            )),
        ),
        (
            "day",
            Arc::new(Date32Array::from_iter_values(
                words.iter().map(|word| (word % 20_000) as i32),
            )),
        ),
        ("at", Arc::new(TimestampMicrosecondArray::from(clusters))),
        (
            "name",
            Arc::new(StringArray::from_iter_values(
                few.iter().map(|word| format!("name {}", word % 50)),
            )),
        ),
    ];
    batch(columns)
}
