//! `dfq` as a client: what it is asked, and how it ends.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::machines::{Machines, Process, write_parquet};
use crate::support::tables::rows;

/// Runs `dfq` to its end.
pub(crate) fn dfq(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dfq"))
        .args(args)
        .output()
        .unwrap()
}

/// What is on standard error.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What is on standard output of a command that succeeded.
pub(crate) fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How a query ended whose machine was lost.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    Exact,
    /// At the second try of `dfq`.
    Again,
    Cancelled,
    Error(String),
}

/// The row below the names of the columns.
pub(crate) fn answer(output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed.lines().count(), 2, "{printed}");
    printed.lines().last().unwrap_or_default().to_string()
}

/// How a query ended, whose answer must be the expected one, if it has one.
pub(crate) fn end(output: &Output, expected: &str) -> End {
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        assert_eq!(answer(output), expected, "a wrong answer:\n{said}");
        return match said.contains("Trying once more") {
            true => End::Again,
            false => End::Exact,
        };
    }
    let error = said
        .lines()
        .find(|line| line.starts_with("Error: "))
        .unwrap_or_else(|| panic!("{said}"));
    match error.contains("as --timeout says") {
        true => End::Cancelled,
        false => End::Error(error.to_string()),
    }
}

/// A statement of two rounds.
pub(crate) const SQL: &str = "SELECT exact_quantiles(x, [0.1, 0.5, 0.9]), exact_quantiles(f, 0.5) FROM t";

/// The answer in one process.
pub(crate) fn expected(table: &Path) -> String {
    expected_of(table, SQL)
}

/// The answer of a statement in one process.
pub(crate) fn expected_of(table: &Path, sql: &str) -> String {
    let local = Command::new(env!("CARGO_BIN_EXE_dfq"))
        .args(["sql", "--format", "csv", "-c"])
        .arg(sql.replace("FROM t", &format!("FROM '{}/*.parquet'", table.display())))
        .output()
        .unwrap();
    answer(&local)
}

/// A query on its way: seconds that it may take, and the rest as [`Machines::sql`].
pub(crate) fn asked(machines: &Machines, table: &Path, adaptive: bool, timeout: u64) -> Child {
    spawned(machines.sql(table, adaptive, timeout, SQL))
}

/// Starts a command, whose output is kept.
pub(crate) fn spawned(mut command: Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Of both executors, the first to reach a point, which both stop at.
pub(crate) fn first_to_reach(machines: &Machines, point: &str) -> usize {
    let (started, line) = (Instant::now(), format!("reached {point}"));
    loop {
        let there = |executor: &Process| executor.said().contains(&line);
        if let Some(first) = machines.executors.iter().position(there) {
            return first;
        }
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "nobody reached {point}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn table(folder: &Path) -> std::path::PathBuf {
    write_parquet(folder, "t", &rows(40_000, 5), 16)
}
