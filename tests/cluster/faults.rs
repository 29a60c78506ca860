//! Machines that are lost, and inputs that change: never a wrong answer.
//!
//! An executor stops at a failpoint and says so in its log; then the test kills it. Two cases run always, the whole table
//! with `QUANTILES_FAULTS=all`.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Int64Array};
use std::sync::Arc;

use crate::answers::rows;
use crate::machines::{Process, free_port, write_parquet};
use crate::support::batch;

/// Seconds after which a silent executor is lost.
const LOST_AFTER: &str = "6";

/// A scheduler that notices soon when an executor is lost, and executors with failpoints of their own.
struct Machines {
    url: String,
    scheduler_port: String,
    _scheduler: Process,
    executors: Vec<Process>,
}

impl Machines {
    fn start(failpoints: &[&str]) -> Self {
        let port = free_port().to_string();
        let scheduler = Process::start(
            &[
                "scheduler",
                "--attached",
                "--bind-port",
                &port,
                "--executor-timeout-seconds",
                LOST_AFTER,
                "--expire-dead-executor-interval-seconds",
                "2",
            ],
            &[],
        );
        scheduler.wait_for("listening on");
        let mut machines = Self {
            url: format!("df://127.0.0.1:{port}"),
            scheduler_port: port,
            _scheduler: scheduler,
            executors: Vec::new(),
        };
        failpoints.iter().for_each(|points| machines.add(points));
        machines
    }

    fn add(&mut self, failpoints: &str) {
        let ports = [free_port(), free_port(), free_port()].map(|port| port.to_string());
        let executor = Process::start(
            &[
                "executor",
                "--attached",
                "--scheduler-host",
                "127.0.0.1",
                "--scheduler-port",
                &self.scheduler_port,
                "--bind-port",
                &ports[0],
                "--bind-grpc-port",
                &ports[1],
                "--bind-health-port",
                &ports[2],
                "--vcores",
                "2",
                "--scheduler-connect-timeout-seconds",
                "30",
                "--executor-heartbeat-interval-seconds",
                "2",
            ],
            &[
                ("FAILPOINTS", failpoints),
                ("RUST_LOG", "info,datafusion_quantiles=debug"),
            ],
        );
        executor.wait_for("Executor registration succeed");
        self.executors.push(executor);
    }

    fn sql(&self, table: &Path, adaptive: bool, timeout: u64, sql: &str) -> Command {
        let create = format!(
            "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
            table.display()
        );
        let planner = format!("SET ballista.planner.adaptive.enabled = {adaptive}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_dfq"));
        command.args([
            "sql",
            "--cluster",
            &self.url,
            "--format",
            "csv",
            "--partitions",
            "8",
        ]);
        command.args([
            "--timeout",
            &timeout.to_string(),
            "-c",
            &create,
            "-c",
            &planner,
            "-c",
            sql,
        ]);
        command
    }
}

/// How a query ended whose machine was lost.
#[derive(Debug, PartialEq)]
enum End {
    Exact,
    /// At the second try of `dfq`.
    Again,
    Cancelled,
    Error(String),
}

/// The row below the names of the columns.
fn answer(output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed.lines().count(), 2, "{printed}");
    printed.lines().last().unwrap_or_default().to_string()
}

fn end(output: &Output, expected: &str) -> End {
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

const SQL: &str = "SELECT exact_quantiles(x, [0.1, 0.5, 0.9]), exact_quantiles(f, 0.5) FROM t";
const GROUPED: &str = "SELECT exact_quantiles(m, [0, 0.5, 1]), count(*), sum(n) FROM \
    (SELECT few, exact_quantiles(x, 0.5) AS m, count(*) AS n FROM t GROUP BY few)";

/// One executor of two is killed where it stops.
fn lose_one(point: &str, adaptive: bool, table: &Path) -> (End, Duration) {
    let mut machines = Machines::start(&[&format!("quantiles::{point}=sleep(600000)"), ""]);
    let local = Command::new(env!("CARGO_BIN_EXE_dfq"))
        .args(["sql", "--format", "csv", "-c"])
        .arg(SQL.replace("FROM t", &format!("FROM '{}/*.parquet'", table.display())))
        .output()
        .unwrap();
    let expected = answer(&local);
    let started = Instant::now();
    let client = machines
        .sql(table, adaptive, 60, SQL)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // A stage of one task may run on the other executor: then nothing stops.
    let stops = machines.executors[0].said_in_time(&format!("reached {point}"), Duration::from_secs(20));
    if stops {
        machines.executors[0].kill();
    }
    let output = client.wait_with_output().unwrap();
    (end(&output, &expected), started.elapsed())
}

fn table(folder: &Path) -> std::path::PathBuf {
    write_parquet(folder, "t", &rows(40_000, 5), 16)
}

#[test]
fn a_lost_executor_makes_no_wrong_answer() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path());
    let all = std::env::var("QUANTILES_FAULTS").is_ok_and(|faults| faults == "all");
    let cases = match all {
        true => ["round_sketch", "refine_state", "round_count", "refine_answers"]
            .into_iter()
            .flat_map(|point| [(point, true), (point, false)])
            .collect(),
        false => vec![("round_sketch", false), ("round_count", true)],
    };
    println!("| killed at | planner | end | seconds |\n| --- | --- | --- | --- |");
    for (point, adaptive) in cases {
        let (end, took) = lose_one(point, adaptive, &table);
        let planner = if adaptive { "adaptive" } else { "static" };
        println!("| {point} | {planner} | {end:?} | {:.0} |", took.as_secs_f64());
        if let End::Error(error) = &end {
            assert!(error.len() > 20, "{error}");
        }
    }
}

/// `1 ..= count` in 16 files of the same size, whatever the values.
fn numbers(folder: &Path, first: i64) -> std::path::PathBuf {
    let x: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + 32_000));
    write_parquet(folder, "t", &batch(vec![("x", x)]), 16)
}

/// Both scans read other data: the answer is for neither, so there is none, and the second try is of the new data.
#[test]
fn a_file_that_is_replaced_between_scans_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    for adaptive in [true, false] {
        let table = numbers(folder.path(), 1_000_000);
        let points = "quantiles::refine_state=1*sleep(4000)";
        let machines = Machines::start(&[points, points]);
        let client = machines
            .sql(&table, adaptive, 60, "SELECT exact_quantiles(x, 0.5) FROM t")
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while !machines
            .executors
            .iter()
            .any(|executor| executor.said().contains("reached refine_state"))
        {
            assert!(started.elapsed() < Duration::from_secs(60), "no scan");
            std::thread::sleep(Duration::from_millis(20));
        }
        numbers(folder.path(), 2_000_000);
        let output = client.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("Trying once more:") && said.contains("input changed between rounds"),
            "adaptive {adaptive}: {said}"
        );
        assert!(output.status.success(), "{said}");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed.lines().last(), Some("2015999"), "{said}");
    }
}

/// Grouped states: the executor that holds them is lost while they are merged.
#[test]
fn groups_of_a_lost_executor_are_not_counted_twice() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path());
    let mut machines = Machines::start(&["", ""]);
    let expected = machines.sql(&table, false, 60, GROUPED).output().unwrap();
    assert!(
        expected.status.success(),
        "{}",
        String::from_utf8_lossy(&expected.stderr)
    );
    let expected = answer(&expected);
    let client = machines
        .sql(&table, false, 60, GROUPED)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    machines.executors[0].kill();
    let found = end(&client.wait_with_output().unwrap(), &expected);
    println!("groups, static: {found:?}");
    // With a machine more, all is as before.
    machines.add("");
    let again = machines.sql(&table, true, 60, GROUPED).output().unwrap();
    assert_eq!(end(&again, &expected), End::Exact);
}
