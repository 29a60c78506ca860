//! A small table of five columns, and what its quantiles are by a sort.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use datafusion::prelude::SessionContext;

use crate::answers::by_sort;
use crate::tables::{batch, pseudo_random, register};

/// Values of the columns x, with NULLs, and g.
pub fn sample_rows(n: usize) -> Vec<(Option<i64>, i64)> {
    pseudo_random(n, 7)
        .map(|r| {
            (
                (r % 7 != 0).then_some((r >> 20) as i64 % 500 - 250),
                (r % 5) as i64,
            )
        })
        .collect()
}

/// Registers `t` of x, its quarter f, the group g, a text s and a flag b, and returns x and g.
pub fn table(ctx: &SessionContext, n: usize, partitions: usize) -> Vec<(Option<i64>, i64)> {
    let data = sample_rows(n);
    let x: Int64Array = data.iter().map(|(x, _)| *x).collect();
    let f: Float64Array = data.iter().map(|(x, _)| x.map(|x| x as f64 / 4.0)).collect();
    let g: Int64Array = data.iter().map(|(_, g)| Some(*g)).collect();
    let s: StringArray = data.iter().map(|_| Some("a")).collect();
    let b: BooleanArray = data.iter().map(|(_, g)| Some(*g == 0)).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("x", Arc::new(x)),
        ("f", Arc::new(f)),
        ("g", Arc::new(g)),
        ("s", Arc::new(s)),
        ("b", Arc::new(b)),
    ];
    register(ctx, "t", &batch(columns), partitions, 64);
    data
}

/// The values of x that are not NULL.
pub fn values(data: &[(Option<i64>, i64)]) -> Vec<i64> {
    data.iter().filter_map(|(x, _)| *x).collect()
}

/// The quantile by a sort, as text.
pub fn expect(values: &[i64], per_mille: usize) -> String {
    by_sort(values, per_mille).map_or("NULL".to_owned(), |value| value.to_string())
}
