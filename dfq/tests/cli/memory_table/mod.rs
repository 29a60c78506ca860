//! Memory limits as a table: operator by type by limit, each cell a process of its own.
//!
//! A cell holds if resident memory stayed within the limit and [`SPARE_MIB`] more than an idle process takes, fewer bytes
//! were written than [`MOST_WRITTEN`] times those of the rows, and the answer is exact, or an error that says how much
//! memory was wanted. `QUANTILES_MEMORY_TABLE=all` runs every cell (hours in an unoptimized build), any other value those
//! whose name contains it; both print the table as Markdown.

mod data;
mod operators;

use std::fmt::Write;

use data::{Kind, Table};
use operators::{Operator, Statement};
use tempfile::TempDir;

use crate::support::watched::{Watched, limited, watched};
use quantiles_testing::files_below;

/// MiB above the limit and above what a process takes that answers `SELECT 1`: with the 60 MiB that an optimized one
/// takes, 150 in all.
const SPARE_MIB: u64 = 90;

/// Times the bytes of the rows.
const MOST_WRITTEN: u64 = 3;

/// Limits in MiB, and the MiB of their tables.
const LIMITS: [(u64, u64); 4] = [(16, 48), (64, 128), (256, 512), (1024, 1536)];

/// A cell's verdict.
enum Outcome {
    Exact,
    Refused,
    Fault(String),
}

struct Cell {
    name: String,
    outcome: Outcome,
    /// MiB above the limit and the idle process; below: negative.
    over: i64,
    /// Bytes written by bytes of the rows.
    written: f64,
}

impl Cell {
    fn holds(&self) -> bool {
        self.over <= SPARE_MIB as i64
            && self.written <= MOST_WRITTEN as f64
            && !matches!(self.outcome, Outcome::Fault(_))
    }

    fn line(&self) -> String {
        let outcome = match &self.outcome {
            Outcome::Exact => "exact",
            Outcome::Refused => "refused",
            Outcome::Fault(message) => message,
        };
        let mark = if self.holds() { "" } else { " **open**" };
        format!(
            "| {} | {} | {:.2} | {outcome}{mark} |",
            self.name, self.over, self.written
        )
    }
}

fn name(operator: &Operator, kind: Kind, limit: u64) -> String {
    format!("{} / {} / {limit} MB", operator.name, kind.name())
}

/// Peak of a process that answers `SELECT 1`, in MiB.
fn idle() -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let mut command = limited(&folder, &["--memory-limit", "16MB", "-c", "SELECT 1"]);
    let Watched { output, peak, .. } = watched(&mut command, || ());
    assert!(
        output.status.success() && peak > 10 << 10,
        "{peak} KiB, {output:?}"
    );
    peak >> 10
}

/// Runs one cell over its table.
fn run(operator: &Operator, table: &Table, limit: u64, idle: u64) -> Cell {
    let statement = (operator.statement)(table);
    let folder = tempfile::tempdir().unwrap();
    let [view, create] = table.create();
    // Not rows but sums of them come out, which differ unless all rows are the same.
    let sums = format!(
        "SELECT count(*), sum(b), sum(b * (w % 1000 + 1)) FROM ({})",
        statement.sql
    );
    let memory = format!("{limit}MB");
    let replace = "SET quantiles.replace_builtins = true";
    let args = [
        "--memory-limit",
        &memory,
        "-c",
        &view,
        "-c",
        replace,
        "-c",
        &create,
        "-c",
        &sums,
    ];
    let watched = watched(&mut limited(&folder, &args), || ());
    Cell {
        name: name(operator, table.kind, limit),
        outcome: outcome(&watched, &statement, &folder),
        over: (watched.peak >> 10) as i64 - (limit + idle) as i64,
        written: watched.written as f64 / table.bytes() as f64,
    }
}

fn outcome(watched: &Watched, statement: &Statement, folder: &TempDir) -> Outcome {
    let left = files_below(folder.path());
    if !left.is_empty() {
        return Outcome::Fault(format!("left {left:?}"));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&watched.output.stdout), text(&watched.output.stderr));
    if !watched.output.status.success() {
        let is_named = error.contains("bytes wanted") || error.contains("Failed to allocate additional");
        return match error.contains("Resources exhausted") && is_named {
            true => Outcome::Refused,
            false => Outcome::Fault(format!("failed: {}", error.replace('\n', " "))),
        };
    }
    let (sum, weighted) = statement.rows.iter().fold((0, 0), |(sum, weighted), (w, b)| {
        (sum + b, weighted + b * (w % 1000 + 1))
    });
    let expected = format!("{},{sum},{weighted}", statement.rows.len());
    match out.lines().last() {
        Some(found) if found == expected => Outcome::Exact,
        found => Outcome::Fault(format!("WRONG: {found:?} for {expected}")),
    }
}

/// Runs the cells whose name is wanted; each table is written once. With `again` a cell that does not hold has a second try: how often
/// DataFusion's sorts merge their files depends on what memory the other partition holds at that moment.
fn run_all(
    limits: &[(u64, u64)],
    wanted: impl Fn(&str) -> bool,
    again: bool,
    mut show: impl FnMut(&Cell),
) -> Vec<Cell> {
    let (idle, operators) = (idle(), operators::all());
    println!("An idle process takes {idle} MiB.");
    let mut cells = Vec::new();
    for (limit, megabytes) in limits {
        for kind in Kind::ALL {
            let mine = operators
                .iter()
                .filter(|operator| (operator.takes)(kind) && wanted(&name(operator, kind, *limit)));
            let mine: Vec<_> = mine.collect();
            if mine.is_empty() {
                continue;
            }
            let table = Table::write(kind, megabytes << 20);
            for operator in mine {
                let mut cell = run(operator, &table, *limit, idle);
                if again && !cell.holds() {
                    show(&cell);
                    cell = run(operator, &table, *limit, idle);
                }
                show(&cell);
                cells.push(cell);
            }
        }
    }
    cells
}

/// Cells of the quick run: at least one of each operator and of each type.
const QUICK: [&str; 36] = [
    "quantiles / Int64 / 16 MB",
    "quantiles / Utf8View / 16 MB",
    "quantiles / Binary / 16 MB",
    "quantiles / Dictionary / 16 MB",
    "quantiles / List / 16 MB",
    "quantiles / Struct / 16 MB",
    "approx_percentile_gk / Int64 / 16 MB",
    "approx_percentile_gk / Utf8 / 16 MB",
    "median / Int64 / 16 MB",
    "max_by / BinaryView / 16 MB",
    "OVER frames / Utf8View / 16 MB",
    "quantiles, sum / Utf8View / 16 MB",
    "quantiles, array_agg / Utf8View / 16 MB",
    "quantiles, array_agg / BinaryView / 16 MB",
    "quantiles, array_agg / Struct / 16 MB",
    "quantiles, string_agg / Utf8 / 16 MB",
    "quantiles, count(DISTINCT) / Utf8View / 16 MB",
    "LIMIT, 10 rows / wide Utf8View / 16 MB",
    "LIMIT, many rows / Utf8View / 16 MB",
    "LIMIT of WHERE, 10 rows / Struct / 16 MB",
    "topk_by, many rows / Utf8View / 16 MB",
    "quantiles, few groups / Utf8View / 16 MB",
    "quantiles, few groups / List / 16 MB",
    "quantiles and sum, many groups / Utf8View / 16 MB",
    "quantiles and array_agg, many groups / BinaryView / 16 MB",
    "DISTINCT ON, few groups / BinaryView / 16 MB",
    "row_number, many groups / Utf8View / 16 MB",
    "OVER, few groups / List / 16 MB",
    // Rows of 5 KB.
    "quantiles / wide Utf8View / 16 MB",
    "topk_by, 10 rows / wide Utf8View / 16 MB",
    "quantiles and sum, many groups / wide Utf8View / 16 MB",
    // At 64 MB it writes 1.05 to 3.6 times its rows before it is refused, by how busy the machine is.
    "OVER, few groups / wide Utf8View / 16 MB",
    // Groups that keep all rows.
    "max_by and array_agg, few groups / Utf8 / 16 MB",
    "max_by and array_agg, many groups / BinaryView / 16 MB",
    "quantiles and array_agg, many groups / Struct / 16 MB",
    "LIMIT, 10 rows / Dictionary / 16 MB",
];

#[test]
fn every_cell_of_the_memory_table_holds() {
    let asked = std::env::var("QUANTILES_MEMORY_TABLE").ok();
    let wanted = |name: &str| match asked.as_deref() {
        None => QUICK.contains(&name),
        Some("all") => true,
        Some(part) => name.contains(part),
    };
    println!("| operator / type / limit | MiB over limit and idle | written by rows | |");
    println!("| --- | --- | --- | --- |");
    let cells = run_all(&LIMITS, wanted, asked.is_none(), |cell| {
        println!("{}", cell.line())
    });
    if asked.is_some() {
        return;
    }
    assert_eq!(cells.len(), QUICK.len(), "a name is of no cell");
    let mut failed = String::new();
    for cell in &cells {
        if !cell.holds() {
            writeln!(failed, "{}", cell.line()).unwrap();
        }
    }
    assert!(failed.is_empty(), "cells that do not hold:\n{failed}");
}
