//! A table of many types for top k, and expressions over it.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::answers::rows_joined;
use crate::patterns::Pattern;
use crate::tables::{batch, pseudo_random, register};

/// Values and keys: an expression, and one that sorts as the functions order it.
pub const EXPRESSIONS: [(&str, &str); 12] = [
    ("i", "i"),
    ("x", "CASE WHEN isnan(x) THEN 'NaN'::DOUBLE ELSE x END"),
    ("few", "few"),
    ("s", "s"),
    ("d", "d"),
    ("flag", "flag"),
    ("t", "t"),
    ("n", "n"),
    ("named_struct('a', few, 'b', s)", "named_struct('a', few, 'b', s)"),
    ("make_array(few, few % 2)", "make_array(few, few % 2)"),
    ("arrow_cast(s, 'Dictionary(Int32, Utf8)')", "s"),
    ("i::DECIMAL(38, 0)", "i::DECIMAL(38, 0)"),
];

/// What is grouped by: nothing, words, and what has no words.
pub const GROUPS: [&str; 7] = ["", "g", "name", "g, flag", "d", "d, few", "name, g % 3"];

/// A table of many types; every seventh value NULL where `nulls`.
pub fn table(pattern: Pattern, len: usize, groups: u64, nulls: bool, seed: u64) -> RecordBatch {
    let keep = |i: usize, salt: usize| !nulls || (i * 31 + salt) % 7 != 1;
    let random: Vec<u64> = pseudo_random(len, seed).collect();
    let group = |i: usize| ((random[i] >> 20) % groups) as i64 - 2;
    let (words, floats) = (pattern.words(len, seed ^ 1), pattern.floats(len, seed ^ 2));
    let ints = |salt: usize, value: &dyn Fn(usize) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter(
            (0..len).map(|i| keep(i, salt).then(|| value(i))),
        ))
    };
    let few = |i: usize| (random[i] >> 40) as i64 % 4;
    let i = ints(1, &|i| words[i]);
    let x = Float64Array::from_iter((0..len).map(|i| keep(i, 2).then(|| floats[i])));
    let s = StringArray::from_iter(
        (0..len).map(|i| keep(i, 3).then(|| format!("a rather long beginning {}", words[i] % 50))),
    );
    let n = Int32Array::from_iter((0..len).map(|i| keep(i, 4).then(|| (words[i] % 100) as i32)));
    let stamp = cast(
        &ints(5, &|i| words[i] % 1_000_000),
        &DataType::Timestamp(TimeUnit::Second, None),
    )
    .unwrap();
    let flag = BooleanArray::from_iter((0..len).map(|i| keep(i, 6).then(|| random[i] >> 50 & 1 == 1)));
    let decimal = cast(&ints(0, &|i| words[i] % 10_000), &DataType::Decimal128(20, 2)).unwrap();
    let name = StringArray::from_iter((0..len).map(|i| keep(i, 5).then(|| format!("group {}", group(i)))));
    batch(vec![
        (
            "id",
            Arc::new(Int64Array::from_iter_values(0..len as i64)) as ArrayRef,
        ),
        ("g", ints(4, &group)),
        ("name", Arc::new(name)),
        ("i", i),
        ("x", Arc::new(x)),
        ("few", ints(2, &few)),
        ("s", Arc::new(s)),
        ("n", Arc::new(n)),
        ("t", stamp),
        ("flag", Arc::new(flag)),
        ("d", decimal),
    ])
}

/// A session without the extension, over the rows as table `t`.
pub fn plain(table: &RecordBatch) -> SessionContext {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    register(&ctx, "t", table, 1, 8192);
    ctx
}

/// Rows of `id`, `x` in a pattern, and a text.
pub fn numbers(n: usize, pattern: Pattern) -> RecordBatch {
    let ids = Int64Array::from_iter_values(0..n as i64);
    let x = Int64Array::from(pattern.words(n, 3));
    let text = StringArray::from_iter_values((0..n).map(|i| format!("row number {i} of a table")));
    batch(vec![
        ("id", Arc::new(ids) as ArrayRef),
        ("x", Arc::new(x)),
        ("text", Arc::new(text)),
    ])
}

/// The line of `SortLimitExec` in `EXPLAIN ANALYZE`, and those below.
pub async fn analyzed(ctx: &SessionContext, sql: &str) -> String {
    let lines = rows_joined(ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    let from = lines
        .find("SortLimitExec")
        .unwrap_or_else(|| panic!("{sql}: {lines}"));
    lines[from..].to_owned()
}
