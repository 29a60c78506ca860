//! Quantiles of groups of pinned tables.

use std::sync::Arc;

use datafusion::arrow::array::{Int32Array, Int64Array};
use datafusion_quantiles::config::StrategyName;
use quantiles_testing::numbers::percentiles;
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::pseudo_random;

use super::{Case, ON_TWO, PINNED, Place, Statement, Table, all, lens, shown, some};
use crate::support::{Columns, columns, with_nulls};

/// Types that rows are grouped by.
const GROUPS: [&str; 7] = ["b", "i8", "u16", "i32", "date", "i64", "u64"];

/// One statement for each type that rows are grouped by.
pub(super) fn by_every_type(table: &Table, statement: impl Fn(&str) -> String) -> Vec<String> {
    let is_extreme = table.nulls && table.pattern == Pattern::Extremes;
    // Numbers from 0 to 2^64 - 1 leave no code for NULL: see `what_does_not_fit`.
    let fits = |group: &&str| !(is_extreme && ["i64", "u64"].contains(group));
    GROUPS.into_iter().filter(fits).map(statement).collect()
}

/// Groups by every type, with narrow and with wide values.
fn groups_of_every_type(table: &Table) -> Vec<Statement> {
    let statements = by_every_type(table, |group| {
        format!(
            "SELECT {group}, exact_quantiles(f32, [0.5, 0, 1]), exact_quantiles(i8, 0.9, 'linear'), \
             exact_quantiles([0.25, 0.3]) WITHIN GROUP (ORDER BY f64 DESC) FROM t GROUP BY {group} ORDER BY {group}"
        )
    });
    shown(statements, PINNED)
}

/// Values of every type, by every method.
fn values_of_every_type(table: &Table) -> Vec<Statement> {
    let statements = table.names.iter().map(|name| {
        let calls = ["lower", "higher", "nearest", "linear", "midpoint"]
            .map(|method| format!("exact_quantiles({name}, [0.07, 0.999, 0.5], '{method}')"));
        format!(
            "SELECT u8, exact_quantiles({name}, {}), {} FROM t GROUP BY u8 ORDER BY u8",
            percentiles(),
            calls.join(", ")
        )
    });
    shown(statements, PINNED)
}

/// Several group columns, filters, and groups in which a call sees no value.
const FILTERED: [&str; 8] = [
    "SELECT b, i8, exact_quantiles(f64, [0.1, 0.9]) FROM t GROUP BY b, i8 ORDER BY b, i8",
    "SELECT i32, b, u8, exact_quantiles(f32, 0.5) FROM t GROUP BY i32, b, u8 ORDER BY i32, b, u8",
    "SELECT i8, exact_quantiles(f64, 0.5) FROM t WHERE i64 > 0 AND NOT b GROUP BY i8 ORDER BY i8",
    "SELECT i8 AS g, exact_quantiles(i64, [0, 1]) FILTER (WHERE f64 > 0), exact_quantiles(i64, 0.5) FROM t \
     GROUP BY i8 ORDER BY i8",
    "SELECT u8, exact_quantiles(dec, 0.5) FILTER (WHERE i32 < 0) FROM t WHERE i16 <> 3 GROUP BY u8 ORDER BY u8",
    "SELECT exact_quantiles(x, 0.5) AS q FROM (SELECT u16 AS g, i16 AS x FROM t) GROUP BY g ORDER BY g, q",
    "SELECT b, exact_quantiles(i64, 0.5) FROM t WHERE i64 < 0 AND i64 > 0 GROUP BY b ORDER BY b",
    "SELECT i8 FROM t GROUP BY i8 HAVING exact_quantiles(f32, 0.5) > 0 ORDER BY i8",
];

/// The optimizer computes a filter of several calls, or a common part of filters, in a projection below. The device computes it anyway.
const SHARED: [&str; 2] = [
    "SELECT i8, exact_quantiles(f64, 0.5) FILTER (WHERE i64 > 0), count(*) FILTER (WHERE i64 > 0), \
     count(u16) FILTER (WHERE i64 > 0 AND b) FROM t GROUP BY i8 ORDER BY i8",
    "SELECT x, exact_quantiles(y, 0.5) FILTER (WHERE z), exact_quantiles(y, 0.1) FILTER (WHERE NOT z) FROM (SELECT \
     u8 AS x, f32 AS y, i32 BETWEEN -5 AND 1000 AS z FROM t) GROUP BY x ORDER BY x",
];

/// `count`, `min` and `max` beside quantiles: of rows, of values, and of groups without rows after a filter.
const COUNTS_AND_ENDS: [&str; 5] = [
    "SELECT i8, count(*), exact_quantiles(f64, 0.5), count(f64), count(f32), count(1) FROM t GROUP BY i8 ORDER BY i8",
    "SELECT b, min(i64), exact_quantiles(f32, [0.1, 0.9]), max(i64), max(dec), min(date) FROM t GROUP BY b ORDER BY b",
    "SELECT i8, u8, max(ts), exact_quantiles(i16, 0.5), count(*) FILTER (WHERE f64 > 0), min(u16) FROM t \
     WHERE i64 > 0 GROUP BY i8, u8 ORDER BY i8, u8",
    "SELECT u8, count(i16) FILTER (WHERE i32 < 0), exact_quantiles(i16, 0.5) FILTER (WHERE i32 < 1), \
     count(*) FILTER (WHERE i32 < 2), max(i16) FILTER (WHERE i32 < 3) FROM t GROUP BY u8 ORDER BY u8",
    "SELECT i8, exact_quantiles(f32, 0.5), count(*) FROM t GROUP BY i8 HAVING count(*) > 3 ORDER BY i8",
];

/// Columns of values and of groups: few groups, groups with various shares of the rows, and as many groups as rows.
fn long(pattern: Pattern, rows: usize, _: bool) -> Columns {
    let mut all = some(columns(pattern, rows, 5), &["u8", "i16", "f32", "f64"]);
    let thousand = pseudo_random(rows, 3).map(|word| (word % 1000) as i32 - 500);
    let giant = pseudo_random(rows, 4).map(|word| if word % 10 == 0 { (word >> 8) as i32 } else { 7 });
    all.push(("k", Arc::new(Int32Array::from_iter_values(thousand))));
    all.push(("giant", Arc::new(Int32Array::from_iter_values(giant))));
    all.push((
        "own",
        Arc::new(Int64Array::from_iter_values((0..rows as i64).rev())),
    ));
    all
}

fn long_columns(_: &Table) -> Vec<Statement> {
    let statements = ["k", "u8", "giant", "own"].map(|group| {
        format!(
            "SELECT {group}, exact_quantiles(f32, [0.01, 0.5, 0.99]), exact_quantiles(f64, 0.5), exact_quantiles(i16, 0.9) \
             FROM t GROUP BY {group} ORDER BY {group}"
        )
    });
    shown(statements, PINNED)
}

/// A column of values, and one of 100 000 groups.
fn many(pattern: Pattern, rows: usize, _: bool) -> Columns {
    let mut all = some(with_nulls(columns(pattern, rows, 5)), &["i16", "f32", "f64"]);
    let many = pseudo_random(rows, 3).map(|word| (word % 100_000) as i32);
    all.push(("g", Arc::new(Int32Array::from_iter_values(many))));
    all
}

/// More groups than one work chunk has, by every method.
const MANY: [&str; 2] = [
    "SELECT g, exact_quantiles(f32, [0.01, 0.5, 0.99]), exact_quantiles(f64, 0.5, 'linear'), count(*), min(i16) FROM t \
     GROUP BY g ORDER BY g",
    "SELECT g, exact_quantiles(f64, [0.1, 0.3], 'midpoint'), exact_quantiles(f64, 0.9), exact_quantiles(i16, 0.5, 'linear') \
     FILTER (WHERE f32 > 0) FROM t GROUP BY g ORDER BY g",
];

const EVERY_TYPE: Case = Case {
    name: "groups_of_every_type",
    patterns: &[
        Pattern::Random,
        Pattern::AllEqual,
        Pattern::FewDistinct,
        Pattern::Zipf,
        Pattern::Extremes,
        Pattern::Sorted,
    ],
    sizes: lens![0, 1, 2, 33, 1000, 4097, 30_011],
    partitions: (3, 3),
    columns: |pattern, rows, nulls| all(pattern, rows, rows as u64, nulls),
    place: Place::Pinned,
    strategy: StrategyName::Auto,
    statements: groups_of_every_type,
};

/// The same statements, over a table on two devices.
pub(super) fn on_two(statements: Vec<Statement>) -> Vec<Statement> {
    statements.into_iter().map(|(sql, _)| (sql, ON_TWO)).collect()
}

fn short_columns_on_two(table: &Table) -> Vec<Statement> {
    let by_type = groups_of_every_type(table);
    let others = [FILTERED.as_slice(), &SHARED, &COUNTS_AND_ENDS].concat();
    on_two([by_type, shown(others, PINNED)].concat())
}

/// A pattern with few groups, with many, and with as many as rows.
const THREE: &[Pattern] = &[Pattern::Random, Pattern::FewDistinct, Pattern::Extremes];

pub(super) fn cases() -> Vec<Case> {
    vec![
        EVERY_TYPE,
        Case {
            name: "quantiles_of_groups_of_every_type",
            patterns: &[Pattern::Random, Pattern::Extremes, Pattern::HalfEqual],
            sizes: lens![20_011],
            columns: |pattern, rows, nulls| all(pattern, rows, 6, nulls),
            statements: values_of_every_type,
            ..EVERY_TYPE
        },
        Case {
            name: "groups_of_several_columns_and_filters",
            patterns: THREE,
            sizes: lens![33, 50_021],
            statements: |_| shown(FILTERED, PINNED),
            ..EVERY_TYPE
        },
        Case {
            name: "groups_whose_filters_are_shared",
            patterns: THREE,
            sizes: lens![33, 50_021],
            statements: |_| shown(SHARED, PINNED),
            ..EVERY_TYPE
        },
        Case {
            name: "counts_and_ends_of_groups",
            patterns: THREE,
            sizes: lens![0, 33, 50_021],
            statements: |_| shown(COUNTS_AND_ENDS, PINNED),
            ..EVERY_TYPE
        },
        // More rows than all blocks read in one step.
        Case {
            name: "groups_of_long_columns",
            patterns: &patterns::ALL,
            sizes: &[(4_000_037, false)],
            partitions: (2, 4),
            columns: long,
            statements: long_columns,
            ..EVERY_TYPE
        },
        Case {
            name: "many_groups",
            patterns: &[Pattern::Random],
            sizes: &[(500_009, true)],
            partitions: (2, 4),
            columns: many,
            statements: |_| shown(MANY, PINNED),
            ..EVERY_TYPE
        },
        Case {
            name: "groups_on_two_devices",
            patterns: THREE,
            sizes: lens![0, 2, 1000, 30_011],
            place: Place::PinnedOnTwo,
            statements: short_columns_on_two,
            ..EVERY_TYPE
        },
        Case {
            name: "groups_of_long_columns_on_two_devices",
            patterns: &[
                Pattern::Random,
                Pattern::FewDistinct,
                Pattern::Zipf,
                Pattern::Sorted,
            ],
            sizes: &[(2_500_037, false)],
            partitions: (2, 5),
            columns: long,
            place: Place::PinnedOnTwo,
            statements: |table| on_two(long_columns(table)),
            ..EVERY_TYPE
        },
        Case {
            name: "many_groups_on_two_devices",
            patterns: &[Pattern::Random],
            sizes: &[(500_009, true)],
            partitions: (2, 4),
            columns: many,
            place: Place::PinnedOnTwo,
            statements: |_| on_two(shown(MANY, PINNED)),
            ..EVERY_TYPE
        },
    ]
}
