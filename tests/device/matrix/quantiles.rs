//! Quantiles of pinned columns, on one device and on two.

use datafusion_quantiles::config::StrategyName;
use quantiles_testing::numbers::percentiles;
use quantiles_testing::patterns::{self, Pattern};

use super::{Case, ON_TWO, PINNED, Place, Statement, Table, all, for_each, lens, shown, some};
use crate::support::{columns, with_nulls};

const MISLEADING: [&str; 6] = ["f32", "f64", "i64", "u32", "i16", "dec"];
const SINGLE: [&str; 4] = ["f32", "f64", "i64", "i16"];

/// Many ranks at once, from both ends.
fn calls(names: &[&str]) -> String {
    let all = percentiles();
    for_each(names, |x| {
        [format!(
            "exact_quantiles({x}, {all}), exact_quantiles([0.3, 0.001]) WITHIN GROUP (ORDER BY {x} DESC)"
        )]
    })
}

/// Every method that the type has.
fn methods(names: &[&str]) -> String {
    for_each(names, |x| {
        ["lower", "higher", "nearest", "linear", "midpoint"]
            .map(|method| format!("exact_quantiles({x}, [0.07, 0.999, 0.5], '{method}')"))
    })
}

/// Few ranks of each column.
pub(crate) fn few_ranks(names: &[&str]) -> String {
    for_each(names, |x| {
        [format!(
            "exact_quantiles({x}, [0.5, 0, 1, 0.25, 0.001, 0.9]), exact_quantiles({x}, 0.7, 'lower')"
        )]
    })
}

fn every_type(table: &Table) -> Vec<Statement> {
    let mut statements = vec![calls(&table.names)];
    statements.extend((table.rows == 1000).then(|| methods(&table.names)));
    shown(statements, PINNED)
}

/// One rank for each sequence of kernels, which two comparisons find.
fn single_ranks(_: &Table) -> Vec<Statement> {
    let statements = ["0.0001", "0.05", "0.5", "0.95", "0.9999"].map(|q| {
        let calls = SINGLE.map(|x| format!("exact_quantiles({x}, {q})")).join(", ");
        format!("SELECT {calls} FROM t")
    });
    shown(statements, PINNED)
}

/// Conditions of `WHERE` and `FILTER` that the device computes.
const CONDITIONS: [&str; 21] = [
    "i64 > 0",
    "0 >= i64",
    "f64 >= -0.0 AND f64 < 100.5",
    "f64 > 0.0",
    "f64 = CAST('NaN' AS DOUBLE)",
    "f64 <> 0.0",
    "f64 < 0.0 OR f64 = -0.0",
    "f32 <= CAST(-0.0 AS REAL) AND NOT (f32 >= CAST(0 AS REAL))",
    "f32 < CAST(3 AS REAL) OR f32 > CAST(100 AS REAL)",
    "NOT (i32 BETWEEN -100 AND 1000000)",
    "i32 NOT IN (1, 2, 3, 42)",
    "i8 IN (1, 2, 3, -4, 100) OR b",
    "NOT b AND u8 <> 7",
    "i64 IS NULL",
    "(i64 IS NOT NULL AND u16 > 100) OR NOT (b OR i16 IS NULL)",
    "(i64 > 0 OR i32 > 0) AND (u32 > 1000 OR NOT b) AND (f64 > 0 OR (i8 > 0 AND i16 > 0))",
    "dec >= 5.125",
    "dec < 0 OR dec IS NULL",
    "date < DATE '2000-01-01'",
    "ts <> TIMESTAMP '1970-01-01T00:00:00'",
    "i64 > 9223372036854775806",
];

fn filters(_: &Table) -> Vec<Statement> {
    let statements = CONDITIONS.into_iter().flat_map(|condition| {
        [
            format!(
                "SELECT exact_quantiles(f64, [0, 0.3, 1]), exact_quantiles(i64, 0.5, 'linear'), \
                 exact_quantiles(i8, 0.9), exact_quantiles(dec, 0.2) FROM t WHERE {condition}"
            ),
            format!(
                "SELECT exact_quantiles(f32, [0, 0.3, 1]) FILTER (WHERE {condition}), exact_quantiles(f32, 0.5), \
                 exact_quantiles(u64, 0.5) FILTER (WHERE i32 > 5) FROM t AS a WHERE a.i16 < 1000"
            ),
        ]
    });
    shown(statements, PINNED)
}

/// Filters of several calls, which the optimizer computes in a projection below.
fn shared_filters(_: &Table) -> Vec<Statement> {
    shown(
        [
            "SELECT exact_quantiles(f32, [0, 0.3, 1]) FILTER (WHERE f64 <> 0.0), exact_quantiles(u64, 0.5) FILTER (WHERE \
             f64 <> 0.0) FROM t AS a WHERE a.i16 < 1000",
            "SELECT exact_quantiles(f32, 0.5) FILTER (WHERE i8 > 3 AND b), exact_quantiles(u64, 0.5) FILTER (WHERE i8 > 3 \
             AND i64 IS NULL) FROM t",
        ],
        PINNED,
    )
}

/// In the rounds of a strategy, without a filter and with one.
fn by_rounds(table: &Table) -> Vec<Statement> {
    let sql = few_ranks(&table.names);
    vec![
        (format!("{sql} WHERE i16 > 5"), "PinnedExec: "),
        (sql, "strategy={strategy}, calls="),
    ]
}

/// A filter for all calls together with a filter of one call.
fn filtered() -> String {
    let all = percentiles();
    format!("SELECT exact_quantiles(f32, {all}), exact_quantiles(f64, 0.5) FILTER (WHERE i8 < 3) FROM t")
}

fn on_two_devices(table: &Table) -> Vec<Statement> {
    let sql = few_ranks(&table.names);
    let masked = format!("{sql} WHERE i64 > 0 OR b");
    shown([sql, masked, filtered()], ON_TWO)
}

const ON_TWO_DEVICES: Case = Case {
    name: "quantiles_on_two_devices",
    patterns: &patterns::ALL,
    sizes: &[
        (0, false),
        (1, false),
        (1000, true),
        (120_011, true),
        (120_011, false),
    ],
    partitions: (4, 5),
    columns: |pattern, rows, nulls| all(pattern, rows, 8, nulls),
    place: Place::PinnedOnTwo,
    strategy: StrategyName::Auto,
    statements: on_two_devices,
};

const IN_ROUNDS: Case = Case {
    name: "quantiles_in_rounds",
    patterns: &patterns::ALL,
    sizes: &[(0, false), (33, true), (60_001, false), (100_003, true)],
    partitions: (4, 4),
    columns: |pattern, rows, nulls| all(pattern, rows, rows as u64 + 1, nulls),
    place: Place::Pinned,
    strategy: StrategyName::Dibms,
    statements: by_rounds,
};

const EVERY_TYPE: Case = Case {
    name: "quantiles_of_every_type",
    patterns: &patterns::ALL,
    sizes: lens![0, 1, 2, 3, 31, 1000, 4097, 16_385, 100_003],
    partitions: (3, 3),
    columns: |pattern, rows, nulls| all(pattern, rows, rows as u64, nulls),
    place: Place::Pinned,
    strategy: StrategyName::Auto,
    statements: every_type,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        EVERY_TYPE,
        Case {
            name: "quantiles_of_data_that_mislead_samples",
            sizes: &[(3_333_333, true)],
            partitions: (2, 4),
            columns: |pattern, rows, _| with_nulls(some(columns(pattern, rows, 5), &MISLEADING)),
            ..EVERY_TYPE
        },
        Case {
            name: "single_ranks_of_data_that_mislead_samples",
            sizes: &[(3_000_001, true)],
            partitions: (2, 4),
            columns: |pattern, rows, _| with_nulls(some(columns(pattern, rows, 5), &SINGLE)),
            statements: single_ranks,
            ..EVERY_TYPE
        },
        Case {
            name: "quantiles_of_filtered_rows",
            patterns: &[
                Pattern::Random,
                Pattern::FewDistinct,
                Pattern::Extremes,
                Pattern::AllEqual,
            ],
            sizes: lens![1, 33, 1000, 70_001],
            columns: |pattern, rows, nulls| all(pattern, rows, 77, nulls),
            statements: filters,
            ..EVERY_TYPE
        },
        Case {
            name: "quantiles_whose_filters_are_shared",
            patterns: &[Pattern::Random, Pattern::FewDistinct, Pattern::Extremes],
            sizes: lens![33, 50_021],
            statements: shared_filters,
            ..EVERY_TYPE
        },
        IN_ROUNDS,
        Case {
            strategy: StrategyName::GkSelect,
            ..IN_ROUNDS
        },
        ON_TWO_DEVICES,
        Case {
            name: "streamed_quantiles_on_two_devices",
            place: Place::StreamedToTwo(7000),
            statements: |table| shown([few_ranks(&table.names)], "device=cuda:0+{second}, on_device=["),
            ..ON_TWO_DEVICES
        },
    ];
    let in_rounds = [
        StrategyName::Dibms,
        StrategyName::GkSelect,
        StrategyName::DistributedBms,
    ];
    cases.extend(in_rounds.map(|strategy| Case {
        sizes: &[(120_011, true), (120_011, false)],
        strategy,
        statements: |_| shown([filtered()], ON_TWO),
        ..ON_TWO_DEVICES
    }));
    cases
}
