//! The best rows of pinned tables, among all rows and in each group.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, Decimal128Array, Int32Array, Int64Array};
use datafusion::arrow::datatypes::Decimal128Type;
use datafusion_quantiles::config::StrategyName;
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::pseudo_random;

use super::groups::{by_every_type, on_two};
use super::{Case, PINNED, Place, Statement, Table, all, lens, shown, some};
use crate::runs::runs_of;
use crate::support::{Columns, columns, with_nulls};

/// The columns with these names, and a column of row numbers.
pub(crate) fn with_id(columns: Columns, rows: usize, names: &[&str]) -> Columns {
    numbered(some(columns, names), rows)
}

/// The columns, and a column of row numbers.
fn numbered(mut columns: Columns, rows: usize) -> Columns {
    columns.push(("id", Arc::new(Int64Array::from_iter_values(0..rows as i64))));
    columns
}

const NAMES: [&str; 9] = ["b", "i8", "f16", "u32", "f32", "date", "i64", "f64", "dec"];
const MISLEADING: [&str; 4] = ["i16", "f32", "f64", "i64"];

/// Every column as key with values of another column, for every k.
fn every_type(_: &Table) -> Vec<Statement> {
    let calls = NAMES.iter().enumerate().flat_map(|(i, key)| {
        let value = NAMES[(i + 4) % NAMES.len()];
        [
            format!("topk_by(id, {key}, 10)"),
            format!("topk_by({value}, {key}, 300)"),
            format!("topk_by({value}, {key}, 7, 'asc')"),
            format!("max_by({value}, {key})"),
            format!("min_by({value}, {key}, 40)"),
            format!("topk_by({key}, {key}, 5000)"),
        ]
    });
    let sql = format!("SELECT {} FROM t", calls.collect::<Vec<_>>().join(", "));
    shown([sql], PINNED)
}

/// Thresholds of samples that mislead, more rows than a block has room for, and values that tie, too.
fn misleading(_: &Table) -> Vec<Statement> {
    let calls = MISLEADING.map(|key| {
        format!(
            "topk_by(i64, {key}, 100000), topk_by(f64, {key}, 1000, 'asc'), max_by(id, {key}), \
             topk_by(i16, {key}, 20000)"
        )
    });
    shown([format!("SELECT {} FROM t", calls.join(", "))], PINNED)
}

/// `WHERE` and `FILTER` that the device computes, over keys and values.
fn filtered(_: &Table) -> Vec<Statement> {
    let conditions = [
        "i64 > 0",
        "NOT b",
        "i8 IS NULL",
        "f64 <> 0.0 AND i8 IS NOT NULL",
        "id < 0",
    ];
    let statements = conditions.into_iter().flat_map(|condition| {
        [
            format!("SELECT topk_by(f32, i8, 50), min_by(id, f64, 3), max_by(i8, f32) FROM t WHERE {condition}"),
            format!(
                "SELECT topk_by(f64, b, 20) FILTER (WHERE {condition}), topk_by(f64, b, 20) FROM t AS a WHERE a.i8 < 100"
            ),
            format!("SELECT id FROM t WHERE {condition} AND f64 > 1 ORDER BY id DESC LIMIT 30"),
        ]
    });
    shown(statements, PINNED)
}

const SHARED: [&str; 2] = [
    "SELECT topk_by(i8, u64, 20) FILTER (WHERE i16 >= 7), min_by(u16, i64, 3) FILTER (WHERE i16 >= 7) FROM t AS a",
    "SELECT max_by(i8, y) FILTER (WHERE z), topk_by(i8, y, 9) FILTER (WHERE z OR i8 IS NULL) FROM (SELECT i8, f64 \
     AS y, dec < 0 AS z FROM t)",
];

/// `ORDER BY` with a `LIMIT`, where keys are distinct or no other column is selected.
const FIRST_ROWS: [&str; 6] = [
    "SELECT f64 FROM t ORDER BY f64 LIMIT 100",
    "SELECT f32 FROM t ORDER BY f32 DESC LIMIT 1000",
    "SELECT id, dec, i8 FROM t ORDER BY id DESC LIMIT 77",
    "SELECT f64 AS z, id FROM t ORDER BY id LIMIT 10 OFFSET 3",
    "SELECT x.id, x.f32 FROM (SELECT id, f32 FROM t ORDER BY id DESC LIMIT 5) AS x ORDER BY x.id LIMIT 2",
    "SELECT dec FROM t WHERE i8 > 3 ORDER BY dec DESC NULLS LAST LIMIT 20",
];

/// All columns, decimals of few digits, and a column of row numbers.
pub(crate) fn with_cents(pattern: Pattern, rows: usize, seed: u64, nulls: bool) -> Columns {
    let mut all = columns(pattern, rows, seed);
    let wide = all.iter().find(|(name, _)| *name == "dec").unwrap().1.clone();
    let wide = wide.as_primitive::<Decimal128Type>().values().iter();
    let cents = Decimal128Array::from_iter_values(wide.map(|value| (value >> 50) % 100_000));
    let cents = cents.with_precision_and_scale(20, 2).unwrap();
    all.push(("cents", Arc::new(cents)));
    numbered(if nulls { with_nulls(all) } else { all }, rows)
}

/// Calls whose keys with values, or with places, fit in a record beside a group code of up to 32 bits.
const CALLS: &str = "topk_by(id, f32, 10), topk_by(f64, i8, 7, 'asc'), max_by(i64, f64), min_by(f32, i16, 3), \
                     topk_by(cents, cents, 5), topk_by(i8, i8, 100000), topk_by(b, f16, 33), topk_by(f16, b, 40, 'asc'), \
                     min_by(u64, date, 4), max_by(ts, u16, 1000), topk_by(f32, f64, 20)";

/// Calls that fit in a record beside a group code of 64 bits.
const NARROW: &str =
    "topk_by(f64, f32, 10), max_by(i64, i8), min_by(cents, i16, 3), topk_by(f16, date, 4, 'asc')";

fn groups_of_every_type(table: &Table) -> Vec<Statement> {
    let statements = by_every_type(table, |group| {
        let calls = if ["i64", "u64"].contains(&group) {
            NARROW
        } else {
            CALLS
        };
        format!("SELECT {group}, {calls} FROM t GROUP BY {group} ORDER BY {group}")
    });
    shown(statements, PINNED)
}

/// Calls that fit in a record beside a group code of 64 bits without places for values, which mean something on one device only.
const NARROWER: &str = "topk_by(id, f32, 10), max_by(f32, i16), topk_by(i8, i8, 1000), min_by(u16, date, 4), \
                        topk_by(f16, b, 40, 'asc')";

/// Groups over a table on two devices: of every type, with filters, and first rows.
fn groups_on_two(table: &Table) -> Vec<Statement> {
    let by_type = by_every_type(table, |group| {
        format!("SELECT {group}, {NARROWER} FROM t GROUP BY {group} ORDER BY {group}")
    });
    let filtered = shown(FILTERED_GROUPS, PINNED);
    on_two([shown(by_type, PINNED), filtered, first_rows_of_groups(table)].concat())
}

/// Several group columns, filters, and groups in which a call sees no row.
const FILTERED_GROUPS: [&str; 7] = [
    "SELECT b, i8, topk_by(id, f64, 3), max_by(i16, i16) FROM t GROUP BY b, i8 ORDER BY b, i8",
    "SELECT i8, topk_by(id, f64, 3) FROM t WHERE i64 > 0 AND NOT b GROUP BY i8 ORDER BY i8",
    "SELECT i8 AS g, topk_by(f32, i64, 3) FILTER (WHERE f64 > 0), min_by(f32, i64) FROM t GROUP BY i8 ORDER BY i8",
    "SELECT u8, min_by(cents, f32, 2) FILTER (WHERE i32 < 0) FROM t WHERE i16 <> 3 GROUP BY u8 ORDER BY u8",
    "SELECT topk_by(x, y, 2) AS best FROM (SELECT u16 AS g, i16 AS x, f32 AS y FROM t) GROUP BY g ORDER BY g",
    "SELECT b, max_by(i64, f32) FROM t WHERE i64 < 0 AND i64 > 0 GROUP BY b ORDER BY b",
    "SELECT i8 FROM t GROUP BY i8 HAVING max_by(i16, f32) > 0 ORDER BY i8",
];

/// The first rows of groups of every type, in an order in which rows that tie look the same. NULLs have no place in the order of a device.
fn first_rows_of_groups(table: &Table) -> Vec<Statement> {
    let statements = by_every_type(table, |group| {
        format!(
            "SELECT {group}, id, f64, ts, n FROM (SELECT *, row_number() OVER (PARTITION BY {group} ORDER BY id DESC) AS n FROM t \
             WHERE NOT (i16 BETWEEN 3 AND 1000)) WHERE n <= 3 ORDER BY {group}, n"
        )
    });
    let several =
        "SELECT id, dec FROM t QUALIFY row_number() OVER (PARTITION BY u8, b ORDER BY id) = 1 ORDER BY id"
            .to_owned();
    let all_of_some =
        "SELECT id FROM t QUALIFY row_number() OVER (PARTITION BY b ORDER BY id) < 20000 ORDER BY id"
            .to_owned();
    let statements = statements.into_iter().chain([several, all_of_some]);
    if table.nulls {
        return shown(statements, PINNED);
    }
    let floats = by_every_type(table, |group| {
        format!("SELECT DISTINCT ON ({group}) {group}, f32 FROM t ORDER BY {group}, f32 DESC")
    });
    shown(statements.chain(floats), PINNED)
}

/// Few long groups, whose rows warps select; one group with most of the rows; and as many groups as rows.
fn long(pattern: Pattern, rows: usize, _: bool) -> Columns {
    let mut all = some(
        with_nulls(columns(pattern, rows, 5)),
        &["i16", "f32", "f64", "i64"],
    );
    let number = |seed, of: &dyn Fn(u64) -> i32| -> ArrayRef {
        Arc::new(Int32Array::from_iter_values(pseudo_random(rows, seed).map(of)))
    };
    all.push(("few", number(3, &|word| (word % 7) as i32 - 3)));
    all.push((
        "giant",
        number(4, &|word| if word % 10 == 0 { (word >> 8) as i32 } else { 7 }),
    ));
    let own = Int64Array::from_iter_values((0..rows as i64).rev());
    all.push(("own", Arc::new(own)));
    all
}

fn long_columns(table: &Table) -> Vec<Statement> {
    let groups = [
        ("few", [1, 10, 128]),
        ("few", [200, 1000, 1024]),
        ("few", [33, 5000, 100_000]),
        ("giant", [1, 20, 100]),
        ("own", [1, 2, 3]),
    ];
    let has_own = [Pattern::Random, Pattern::FewDistinct].contains(&table.pattern);
    let groups = groups.into_iter().filter(|(group, _)| *group != "own" || has_own);
    let statements = groups.map(|(group, [first, second, third])| {
        format!(
            "SELECT {group}, topk_by(i64, f32, {first}), topk_by(f32, f64, {second}, 'asc'), max_by(f64, i16, {third}) \
             FROM t GROUP BY {group} ORDER BY {group}"
        )
    });
    shown(statements, PINNED)
}

/// Rows in the order of a day and of a sensor.
pub(crate) fn in_order_of_groups(pattern: Pattern, rows: usize, _: bool) -> Columns {
    let mut all = some(
        with_nulls(columns(pattern, rows, 5)),
        &["i16", "f32", "f64", "i64", "b"],
    );
    all.push(("day", runs_of(rows, 100_000)));
    all.push(("sensor", runs_of(rows, 20_000)));
    numbered(all, rows)
}

/// Filters, NULLs, several group columns.
const ORDERED_GROUPS: [&str; 7] = [
    "SELECT day, topk_by(id, f32, 10), min_by(f64, f32, 100) FROM t GROUP BY day ORDER BY day",
    "SELECT sensor, topk_by(f32, f64, 7, 'asc'), max_by(i64, f64) FROM t GROUP BY sensor ORDER BY sensor",
    "SELECT day, sensor, topk_by(id, i64, 5) FROM t GROUP BY day, sensor ORDER BY day, sensor",
    "SELECT day, topk_by(id, f32, 10) FROM t WHERE i64 > 0 AND b GROUP BY day ORDER BY day",
    "SELECT day, topk_by(id, f64, 3) FILTER (WHERE i16 > 5) FROM t WHERE i64 < 77 GROUP BY day ORDER BY day",
    "SELECT day, topk_by(f32, f64, 1200) FROM t GROUP BY day ORDER BY day",
    "SELECT day, topk_by(i16, i16, 40) FROM t GROUP BY day ORDER BY day",
];

const EVERY_TYPE: Case = Case {
    name: "best_rows_of_every_type",
    patterns: &[
        Pattern::Random,
        Pattern::AllEqual,
        Pattern::Sorted,
        Pattern::FewDistinct,
        Pattern::Extremes,
        Pattern::Clusters,
    ],
    sizes: lens![0, 1, 2, 33, 1000, 4097, 70_003],
    partitions: (3, 3),
    columns: |pattern, rows, nulls| with_id(all(pattern, rows, rows as u64, nulls), rows, &NAMES),
    place: Place::Pinned,
    strategy: StrategyName::Auto,
    statements: every_type,
};

const GROUPS_OF_EVERY_TYPE: Case = Case {
    name: "best_rows_of_groups_of_every_type",
    patterns: &[
        Pattern::Random,
        Pattern::AllEqual,
        Pattern::FewDistinct,
        Pattern::Zipf,
        Pattern::Extremes,
        Pattern::Sorted,
    ],
    sizes: lens![0, 1, 2, 33, 1000, 4097, 30_011],
    columns: |pattern, rows, nulls| with_cents(pattern, rows, rows as u64, nulls),
    statements: groups_of_every_type,
    ..EVERY_TYPE
};

fn ungrouped() -> [Case; 5] {
    [
        EVERY_TYPE,
        Case {
            name: "best_rows_of_data_that_mislead_samples",
            patterns: &patterns::ALL,
            sizes: &[(3_000_001, true)],
            partitions: (2, 4),
            columns: |pattern, rows, nulls| with_id(all(pattern, rows, 5, nulls), rows, &MISLEADING),
            statements: misleading,
            ..EVERY_TYPE
        },
        Case {
            name: "best_of_filtered_rows",
            patterns: &[Pattern::Random, Pattern::FewDistinct, Pattern::Extremes],
            sizes: &[(33, true), (70_001, true)],
            columns: |pattern, rows, nulls| {
                let names = ["b", "i8", "f32", "i64", "f64"];
                with_id(all(pattern, rows, 77, nulls), rows, &names)
            },
            statements: filtered,
            ..EVERY_TYPE
        },
        Case {
            name: "best_rows_whose_filters_are_shared",
            patterns: &[Pattern::Random, Pattern::FewDistinct, Pattern::Extremes],
            sizes: lens![33, 50_021],
            columns: |pattern, rows, nulls| all(pattern, rows, rows as u64, nulls),
            statements: |_| shown(SHARED, PINNED),
            ..EVERY_TYPE
        },
        Case {
            name: "first_rows_of_a_sort",
            patterns: &[Pattern::Random, Pattern::Extremes, Pattern::AllEqual],
            sizes: &[(0, false), (5, false), (70_003, false)],
            columns: |pattern, rows, nulls| {
                let names = ["i8", "f32", "f64", "dec"];
                with_id(all(pattern, rows, 3, nulls), rows, &names)
            },
            statements: |_| shown(FIRST_ROWS, PINNED),
            ..EVERY_TYPE
        },
    ]
}

fn grouped() -> [Case; 7] {
    [
        GROUPS_OF_EVERY_TYPE,
        Case {
            name: "best_rows_of_groups_of_several_columns_and_filters",
            patterns: &[Pattern::Random, Pattern::FewDistinct, Pattern::Extremes],
            sizes: lens![33, 50_021],
            statements: |_| shown(FILTERED_GROUPS, PINNED),
            ..GROUPS_OF_EVERY_TYPE
        },
        Case {
            name: "first_rows_of_groups",
            statements: first_rows_of_groups,
            ..GROUPS_OF_EVERY_TYPE
        },
        Case {
            name: "best_rows_of_long_groups",
            patterns: &patterns::ALL,
            sizes: &[(1_000_037, true)],
            partitions: (2, 4),
            columns: long,
            statements: long_columns,
            ..GROUPS_OF_EVERY_TYPE
        },
        Case {
            name: "best_rows_of_tables_in_the_order_of_groups",
            patterns: &[Pattern::Random, Pattern::Zipf, Pattern::Extremes],
            sizes: &[(800_019, true)],
            partitions: (2, 4),
            columns: in_order_of_groups,
            statements: |_| shown(ORDERED_GROUPS, PINNED),
            ..GROUPS_OF_EVERY_TYPE
        },
        Case {
            name: "best_rows_of_groups_on_two_devices",
            sizes: lens![0, 2, 1000, 30_011],
            place: Place::PinnedOnTwo,
            statements: groups_on_two,
            ..GROUPS_OF_EVERY_TYPE
        },
        Case {
            name: "best_rows_of_long_groups_on_two_devices",
            patterns: &[Pattern::Random, Pattern::FewDistinct, Pattern::Sorted],
            sizes: &[(600_037, true)],
            partitions: (2, 5),
            columns: long,
            place: Place::PinnedOnTwo,
            // Codes of the giant group's column, keys and values span more than 128 bits.
            statements: |table| {
                let statements = long_columns(table).into_iter();
                on_two(statements.filter(|(sql, _)| !sql.contains("giant")).collect())
            },
            ..GROUPS_OF_EVERY_TYPE
        },
    ]
}

pub(super) fn cases() -> Vec<Case> {
    ungrouped().into_iter().chain(grouped()).collect()
}
