//! Quantiles of groups of pinned rows: on a device against the CPU, bit by bit.
//!
//! Without a device these tests say that they are skipped, or fail if `QUANTILES_REQUIRE_CUDA=1`.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use datafusion_quantiles::pinned::unpin_table;

use crate::cuda::{columns, device, pinned, rows_joined, same_by, set, with_nulls};
use crate::patterns::{self, Pattern};
use crate::support::*;

const OPERATOR: &str = "PinnedExec";

/// Types that rows are grouped by.
const GROUPS: [&str; 7] = ["b", "i8", "u16", "i32", "date", "i64", "u64"];

/// Device and CPU over tables of these patterns and lengths, with and without NULLs, one after the other.
pub(crate) async fn same_over(
    patterns: &[Pattern],
    lens: &[usize],
    operator: &str,
    table: impl Fn(Pattern, usize, bool) -> RecordBatch,
    statements: impl Fn(Pattern, bool) -> Vec<String>,
) {
    if device().is_none() {
        return;
    }
    for pattern in patterns {
        for len in lens {
            for nulls in [false, true] {
                let ctx = session(3);
                pinned(&ctx, &table(*pattern, *len, nulls), 3).await;
                for sql in statements(*pattern, nulls) {
                    let what = format!("{sql}, {pattern:?}, {len} rows, nulls: {nulls}");
                    same_by(&ctx, &sql, &what, operator).await;
                }
                unpin_table(&ctx, "t").unwrap();
            }
        }
    }
}

/// One statement for each type that rows are grouped by.
pub(crate) fn by_every_type(
    pattern: Pattern,
    nulls: bool,
    statement: impl Fn(&'static str) -> String,
) -> Vec<String> {
    // Numbers from 0 to 2^64 - 1 leave none for NULL: see `what_does_not_fit`.
    let fits = |group: &&str| !(nulls && pattern == Pattern::Extremes && ["i64", "u64"].contains(group));
    GROUPS.into_iter().filter(fits).map(statement).collect()
}

/// Statements as they are, over tables of any pattern.
pub(crate) fn these(all: &[&str]) -> impl Fn(Pattern, bool) -> Vec<String> {
    let all: Vec<String> = all.iter().map(|sql| (*sql).to_owned()).collect();
    move |_, _| all.clone()
}

/// Lengths of tables.
pub(crate) const LENS: [usize; 7] = [0, 1, 2, 33, 1000, 4097, 30_011];

fn table(pattern: Pattern, len: usize, nulls: bool) -> RecordBatch {
    let all = columns(pattern, len, len as u64);
    batch(if nulls { with_nulls(all) } else { all })
}

/// Every type that rows are grouped by, with values that are narrow and wide.
async fn every_group_type(patterns: &[Pattern]) {
    let statement = |group| {
        format!(
            "SELECT {group}, exact_quantiles(f32, [0.5, 0, 1]), exact_quantiles(i8, 0.9, 'linear'), \
             exact_quantiles([0.25, 0.3]) WITHIN GROUP (ORDER BY f64 DESC) FROM t GROUP BY {group} ORDER BY {group}"
        )
    };
    same_over(patterns, &LENS, OPERATOR, table, |pattern, nulls| {
        by_every_type(pattern, nulls, statement)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_every_type_first_patterns() {
    every_group_type(&[Pattern::Random, Pattern::AllEqual, Pattern::FewDistinct]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_every_type_last_patterns() {
    every_group_type(&[Pattern::Zipf, Pattern::Extremes, Pattern::Sorted]).await;
}

/// Values of every type, by every method.
#[tokio::test(flavor = "multi_thread")]
async fn values_of_every_type() {
    if device().is_none() {
        return;
    }
    let percentiles: Vec<_> = (0..=100)
        .map(|percent| format!("{}", f64::from(percent) / 100.0))
        .collect();
    for pattern in [Pattern::Random, Pattern::Extremes, Pattern::HalfEqual] {
        for nulls in [false, true] {
            let ctx = session(3);
            let all = columns(pattern, 20_011, 6);
            let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
            pinned(&ctx, &batch(if nulls { with_nulls(all) } else { all }), 3).await;
            for name in names {
                let calls = ["lower", "higher", "nearest", "linear", "midpoint"]
                    .map(|method| format!("exact_quantiles({name}, [0.07, 0.999, 0.5], '{method}')"));
                let sql = format!(
                    "SELECT u8, exact_quantiles({name}, [{}]), {} FROM t GROUP BY u8 ORDER BY u8",
                    percentiles.join(", "),
                    calls.join(", ")
                );
                same_by(
                    &ctx,
                    &sql,
                    &format!("{name}, {pattern:?}, nulls: {nulls}"),
                    OPERATOR,
                )
                .await;
            }
            unpin_table(&ctx, "t").unwrap();
        }
    }
}

/// Several group columns, rows that a filter leaves, groups of which a call sees no value.
#[tokio::test(flavor = "multi_thread")]
async fn several_columns_and_filters() {
    let patterns = [Pattern::Random, Pattern::FewDistinct, Pattern::Extremes];
    let statements = these(&[
        "SELECT b, i8, exact_quantiles(f64, [0.1, 0.9]) FROM t GROUP BY b, i8 ORDER BY b, i8",
        "SELECT i32, b, u8, exact_quantiles(f32, 0.5) FROM t GROUP BY i32, b, u8 ORDER BY i32, b, u8",
        "SELECT i8, exact_quantiles(f64, 0.5) FROM t WHERE i64 > 0 AND NOT b GROUP BY i8 ORDER BY i8",
        "SELECT i8 AS g, exact_quantiles(i64, [0, 1]) FILTER (WHERE f64 > 0), exact_quantiles(i64, 0.5) FROM t \
                     GROUP BY i8 ORDER BY i8",
        "SELECT u8, exact_quantiles(dec, 0.5) FILTER (WHERE i32 < 0) FROM t WHERE i16 <> 3 GROUP BY u8 ORDER BY u8",
        "SELECT exact_quantiles(x, 0.5) AS q FROM (SELECT u16 AS g, i16 AS x FROM t) GROUP BY g ORDER BY g, q",
        "SELECT b, exact_quantiles(i64, 0.5) FROM t WHERE i64 < 0 AND i64 > 0 GROUP BY b ORDER BY b",
        "SELECT i8 FROM t GROUP BY i8 HAVING exact_quantiles(f32, 0.5) > 0 ORDER BY i8",
    ]);
    same_over(&patterns, &[33, 50_021], OPERATOR, table, statements).await;
}

/// A filter of several calls, or what their filters share, is computed in a projection below by the time that the device is
/// chosen, which decides it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn filters_that_calls_share() {
    let patterns = [Pattern::Random, Pattern::FewDistinct, Pattern::Extremes];
    for (operator, statements) in [
        (
            OPERATOR,
            [
                "SELECT i8, exact_quantiles(f64, 0.5) FILTER (WHERE i64 > 0), count(*) FILTER (WHERE i64 > 0), \
                 count(u16) FILTER (WHERE i64 > 0 AND b) FROM t GROUP BY i8 ORDER BY i8",
                "SELECT x, exact_quantiles(y, 0.5) FILTER (WHERE z), exact_quantiles(y, 0.1) FILTER (WHERE NOT z) FROM (SELECT \
                 u8 AS x, f32 AS y, i32 BETWEEN -5 AND 1000 AS z FROM t) GROUP BY x ORDER BY x",
            ],
        ),
        (
            "PinnedExec",
            [
                "SELECT exact_quantiles(f32, [0, 0.3, 1]) FILTER (WHERE f64 <> 0.0), exact_quantiles(u64, 0.5) FILTER (WHERE \
                 f64 <> 0.0) FROM t AS a WHERE a.i16 < 1000",
                "SELECT exact_quantiles(f32, 0.5) FILTER (WHERE i8 > 3 AND b), exact_quantiles(u64, 0.5) FILTER (WHERE i8 > 3 \
                 AND i64 IS NULL) FROM t",
            ],
        ),
        (
            "PinnedExec",
            [
                "SELECT topk_by(i8, u64, 20) FILTER (WHERE i16 >= 7), min_by(u16, i64, 3) FILTER (WHERE i16 >= 7) FROM t AS a",
                "SELECT max_by(i8, y) FILTER (WHERE z), topk_by(i8, y, 9) FILTER (WHERE z OR i8 IS NULL) FROM (SELECT i8, f64 \
                 AS y, dec < 0 AS z FROM t)",
            ],
        ),
    ] {
        same_over(&patterns, &[33, 50_021], operator, table, these(&statements)).await;
    }
    if device().is_none() {
        return;
    }
    let ctx = session(2);
    pinned(&ctx, &table(Pattern::Random, 1000, false), 2).await;
    let shown = physical_plan(
        &ctx,
        "SELECT topk_by(i8, u64, 2) FILTER (WHERE i16 >= 7), min_by(u16, i64) FILTER (WHERE i16 >= 7) FROM t",
    )
    .await;
    let calls =
        "calls=[topk_by(i8, u64, 2) FILTER (t.i16 >= Int16(7)), min_by(u16, i64) FILTER (t.i16 >= Int16(7))]";
    assert!(shown.contains(calls), "{shown}");
}

/// More rows than one turn of all blocks has, few groups and many, of any share of the rows.
#[tokio::test(flavor = "multi_thread")]
async fn long_columns() {
    if device().is_none() {
        return;
    }
    for pattern in patterns::ALL {
        let len = 4_000_037;
        let wanted = ["u8", "i16", "f32", "f64"];
        let mut all: Vec<_> = columns(pattern, len, 5)
            .into_iter()
            .filter(|(name, _)| wanted.contains(name))
            .collect();
        let thousand = pseudo_random(len, 3).map(|word| (word % 1000) as i32 - 500);
        let giant = pseudo_random(len, 4).map(|word| if word % 10 == 0 { (word >> 8) as i32 } else { 7 });
        all.push(("k", Arc::new(Int32Array::from_iter_values(thousand)) as ArrayRef));
        all.push(("giant", Arc::new(Int32Array::from_iter_values(giant))));
        all.push((
            "own",
            Arc::new(Int64Array::from_iter_values((0..len as i64).rev())),
        ));
        let ctx = session(2);
        pinned(&ctx, &batch(all), 4).await;
        for group in ["k", "u8", "giant", "own"] {
            let sql = format!(
                "SELECT {group}, exact_quantiles(f32, [0.01, 0.5, 0.99]), exact_quantiles(f64, 0.5), exact_quantiles(i16, 0.9) \
                 FROM t GROUP BY {group} ORDER BY {group}"
            );
            same_by(&ctx, &sql, &format!("{group}, {pattern:?}"), OPERATOR).await;
        }
        unpin_table(&ctx, "t").unwrap();
    }
}

/// `count`, `min` and `max` beside quantiles: of rows, of values, of groups that a filter leaves nothing of.
#[tokio::test(flavor = "multi_thread")]
async fn counts_and_ends() {
    let patterns = [Pattern::Random, Pattern::FewDistinct, Pattern::Extremes];
    let statements = these(&[
        "SELECT i8, count(*), exact_quantiles(f64, 0.5), count(f64), count(f32), count(1) FROM t GROUP BY i8 ORDER BY i8",
        "SELECT b, min(i64), exact_quantiles(f32, [0.1, 0.9]), max(i64), max(dec), min(date) FROM t GROUP BY b ORDER BY b",
        "SELECT i8, u8, max(ts), exact_quantiles(i16, 0.5), count(*) FILTER (WHERE f64 > 0), min(u16) FROM t \
                     WHERE i64 > 0 GROUP BY i8, u8 ORDER BY i8, u8",
        "SELECT u8, count(i16) FILTER (WHERE i32 < 0), exact_quantiles(i16, 0.5) FILTER (WHERE i32 < 1), \
                     count(*) FILTER (WHERE i32 < 2), max(i16) FILTER (WHERE i32 < 3) FROM t GROUP BY u8 ORDER BY u8",
        "SELECT i8, exact_quantiles(f32, 0.5), count(*) FROM t GROUP BY i8 HAVING count(*) > 3 ORDER BY i8",
    ]);
    same_over(&patterns, &[0, 33, 50_021], OPERATOR, table, statements).await;
}

/// More groups than one thread takes, by every method.
#[tokio::test(flavor = "multi_thread")]
async fn many_groups() {
    if device().is_none() {
        return;
    }
    let len = 500_009;
    let wanted = ["i16", "f32", "f64"];
    let mut all: Vec<_> = with_nulls(columns(Pattern::Random, len, 5))
        .into_iter()
        .filter(|(name, _)| wanted.contains(name))
        .collect();
    let many = pseudo_random(len, 3).map(|word| (word % 100_000) as i32);
    all.push(("g", Arc::new(Int32Array::from_iter_values(many)) as ArrayRef));
    let ctx = session(2);
    pinned(&ctx, &batch(all), 4).await;
    for sql in [
        "SELECT g, exact_quantiles(f32, [0.01, 0.5, 0.99]), exact_quantiles(f64, 0.5, 'linear'), count(*), min(i16) FROM t \
         GROUP BY g ORDER BY g",
        "SELECT g, exact_quantiles(f64, [0.1, 0.3], 'midpoint'), exact_quantiles(f64, 0.9), exact_quantiles(i16, 0.5, 'linear') \
         FILTER (WHERE f32 > 0) FROM t GROUP BY g ORDER BY g",
    ] {
        same_by(&ctx, sql, sql, OPERATOR).await;
    }
}

/// Numbers of groups beyond 64 bits, records beyond 128: planned for the CPU.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit() {
    if device().is_none() {
        return;
    }
    let ctx = session(2);
    pinned(&ctx, &batch(with_nulls(columns(Pattern::Extremes, 5000, 2))), 2).await;
    for sql in [
        "SELECT i64, exact_quantiles(f32, 0.5) FROM t GROUP BY i64",
        "SELECT i32, u64, exact_quantiles(f32, 0.5) FROM t GROUP BY i32, u64",
        "SELECT i32, u16, exact_quantiles(dec, 0.5) FROM t GROUP BY i32, u16",
    ] {
        set(&ctx, "device", "cpu").await;
        let expected = sorted(rows(&ctx, sql).await);
        for device in ["cuda", "auto"] {
            set(&ctx, "device", device).await;
            assert_eq!(sorted(rows(&ctx, sql).await), expected, "{device}, {sql}");
            let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
            assert!(
                analyzed.contains("GroupedQuantilesExec: ") && !analyzed.contains("Pinned"),
                "{device}, {sql}: {analyzed}"
            );
        }
    }
}

fn sorted(mut rows: Vec<String>) -> Vec<String> {
    rows.sort();
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_what_ran() {
    let Some(device) = device() else { return };
    let ctx = session(2);
    pinned(&ctx, &batch(columns(Pattern::Random, 100_003, 1)), 2).await;
    let sql = "SELECT i8, b, exact_quantiles(f32, [0.5, 0.9]), exact_quantiles(f32, 0.1) FROM t WHERE i16 > 3 GROUP BY b, i8";
    let plan = physical_plan(&ctx, sql).await;
    let first = format!(
        "PinnedExec: device=cuda:0 ({}), table=datafusion.public.t, columns=[b, i8, f32], gby=[b, i8], \
         calls=[exact_quantiles(f32@",
        device.name()
    );
    let last = "[0.5, 0.9], disc), exact_quantiles(f32@";
    let filter = ", 0.1, disc)], where=[t.i16 > Int16(3)], fallback=cpu";
    for expected in [first.as_str(), last, filter] {
        assert!(plan.contains(expected), "{expected} in {plan}");
    }
    let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    for expected in [
        "kernels=",
        "device_time=",
        "gr_codes_time=",
        "gr_records_64_time=",
        "so_scatter_time=",
        "so_pick_time=",
    ] {
        assert!(analyzed.contains(expected), "{expected} in {analyzed}");
    }
    // By floating point, by what is computed, beside other aggregates, over distinct values: the table itself.
    for sql in [
        "SELECT f32, exact_quantiles(i8, 0.5) FROM t GROUP BY f32",
        "SELECT i8 + 1, exact_quantiles(i8, 0.5) FROM t GROUP BY i8 + 1",
        "SELECT i8, exact_quantiles(f32, 0.5), sum(i16) FROM t GROUP BY i8",
        "SELECT i8, exact_quantiles(f32, 0.5), min(f64) FROM t GROUP BY i8",
        "SELECT i8, exact_quantiles(f32, 0.5), count(DISTINCT i16) FROM t GROUP BY i8",
        "SELECT i8, exact_quantiles(f32, 0.5), count(i16 + 1) FROM t GROUP BY i8",
        "SELECT i8, exact_quantiles(DISTINCT f32, 0.5) FROM t GROUP BY i8",
        "SELECT i8, exact_quantiles(f32, 0.5) FROM t GROUP BY CUBE (i8)",
    ] {
        let plan = physical_plan(&ctx, sql).await;
        assert!(!plan.contains("Pinned"), "{sql}: {plan}");
    }
}
