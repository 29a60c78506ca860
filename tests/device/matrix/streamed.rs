//! Quantiles of columns that are sent to a device while they are read.

use datafusion_quantiles::config::StrategyName;
use quantiles_testing::patterns::{self, Pattern};

use super::quantiles::few_ranks;
use super::{Case, Place, Statement, Table, all, for_each, lens, shown, some};
use crate::support::{columns, with_nulls};

/// The text that the plan shows.
const STREAMED: &str = "device=cuda:0, on_device=[";

const LONG: [&str; 4] = ["f32", "f64", "i16", "dec"];

fn every_type(table: &Table) -> Vec<Statement> {
    let sql = for_each(&table.names, |x| {
        [format!(
            "exact_quantiles({x}, [0.5, 0, 1, 0.3, 0.999]), exact_quantiles({x}, 0.1, 'lower') FILTER (WHERE i16 > 7)"
        )]
    });
    shown([sql], STREAMED)
}

fn long_columns(_: &Table) -> Vec<Statement> {
    // In the order of this list, which is not the table's.
    let sql = for_each(&LONG, |x| {
        [format!("exact_quantiles({x}, [0.01, 0.5, 0.75, 0.999])")]
    });
    shown([sql], STREAMED)
}

const EVERY_TYPE: Case = Case {
    name: "streamed_quantiles_of_every_type",
    patterns: &[Pattern::Random, Pattern::Extremes, Pattern::HalfEqual],
    sizes: lens![0, 1, 33, 4097, 100_003],
    partitions: (5, 5),
    columns: |pattern, rows, nulls| all(pattern, rows, rows as u64, nulls),
    place: Place::Streamed(1000),
    strategy: StrategyName::Auto,
    statements: every_type,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        EVERY_TYPE,
        // Stages that are filled more than once, and ranks that a sample misses.
        Case {
            name: "streamed_quantiles_of_long_columns",
            patterns: &patterns::ALL,
            sizes: &[(3_000_001, true)],
            partitions: (3, 7),
            columns: |pattern, rows, _| with_nulls(some(columns(pattern, rows, 5), &LONG)),
            place: Place::Streamed(8192),
            statements: long_columns,
            ..EVERY_TYPE
        },
    ];
    cases.extend(StrategyName::ALL.map(|strategy| Case {
        name: "streamed_quantiles_by_strategy",
        patterns: &patterns::ALL,
        sizes: &[(0, false), (33, true), (60_001, false), (100_003, true)],
        partitions: (4, 4),
        columns: |pattern, rows, nulls| all(pattern, rows, rows as u64 + 1, nulls),
        place: Place::Streamed(5000),
        strategy,
        statements: |table| {
            let shown_there = "QuantilesExec: strategy={strategy}, device=cuda:0, on_device=[";
            shown([few_ranks(&table.names)], shown_there)
        },
    }));
    cases
}
