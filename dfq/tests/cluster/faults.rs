//! Machines that are lost, and inputs that change: never a wrong answer.
//!
//! An executor stops at a failpoint and says so in its log; then the test kills it. Two cases run always, the whole table
//! with `QUANTILES_FAULTS=all`.

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::physical_plan::collect;
use datafusion_quantiles::ballista::{Watch, session_config};

use crate::support::clients::{End, SQL, answer, end, expected_of, first_to_reach, spawned, table};
use crate::support::machines::{Machines, register, session, write_parquet};
use quantiles_testing::batch;

const GROUPED: &str = "SELECT exact_quantiles(m, [0, 0.5, 1]), count(*), sum(n) FROM \
    (SELECT few, exact_quantiles(x, 0.5) AS m, count(*) AS n FROM t GROUP BY few)";

/// Groups in stages, where they are asked for by name.
const GROUPS_IN_STAGES: &str = "SELECT sum(m % 1000), min(m), max(m), count(*) FROM \
    (SELECT id % 97 AS k, exact_quantiles(x, 0.5) AS m FROM t GROUP BY id % 97)";

fn sql_of(point: &str) -> &'static str {
    match point.starts_with("groups") {
        true => GROUPS_IN_STAGES,
        false => SQL,
    }
}

/// The executor of two that is the first to reach a point of a query ends there: killed, or by a signal. The other goes on after
/// two seconds.
fn lose_one(point: &str, signal: &str, adaptive: bool, table: &Path) -> (End, Duration) {
    let sql = sql_of(point);
    let points = format!("quantiles::{point}=1*sleep(2000)");
    let mut machines = Machines::start(&[&points, &points]);
    let expected = expected_of(table, sql);
    let started = Instant::now();
    let client = spawned(machines.sql_by(table, adaptive, 40, "gk_select", sql));
    let first = first_to_reach(&machines, point);
    match signal {
        "-KILL" => machines.executors[first].kill(),
        _ => machines.executors[first].signal(signal),
    }
    let output = client.wait_with_output().unwrap();
    (end(&output, &expected), started.elapsed())
}

#[test]
fn a_lost_executor_makes_no_wrong_answer() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path());
    let all = std::env::var("QUANTILES_FAULTS").is_ok_and(|faults| faults == "all");
    let mut cases = Vec::new();
    for signal in ["-KILL", "-TERM"] {
        for point in ["round_sketch", "refine_state", "round_count", "refine_answers"] {
            cases.extend([(signal, point, true), (signal, point, false)]);
        }
    }
    for point in [
        "groups_count",
        "groups_brackets",
        "groups_extract",
        "groups_select",
    ] {
        cases.extend([("-KILL", point, true), ("-KILL", point, false)]);
    }
    if !all {
        cases = vec![("-KILL", "round_sketch", false), ("-KILL", "round_count", true)];
    }
    println!("| signal | stopped at | planner | end | seconds |\n| --- | --- | --- | --- | --- |");
    for (signal, point, adaptive) in cases {
        let (end, took) = lose_one(point, signal, adaptive, &table);
        let planner = if adaptive { "adaptive" } else { "static" };
        println!(
            "| {signal} | {point} | {planner} | {end:?} | {:.0} |",
            took.as_secs_f64()
        );
        // An answer is compared where it is read; an error says what went wrong.
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
        let client = spawned(machines.sql(&table, adaptive, 60, "SELECT exact_quantiles(x, 0.5) FROM t"));
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

/// One task stops for half a minute; the statement may take two seconds.
#[test]
fn a_statement_past_its_time_is_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path());
    let machines = Machines::start(&["quantiles::round_sketch=1*sleep(30000)"]);
    let sql = "SELECT exact_quantiles(x, 0.5) IS NULL FROM t";
    let started = Instant::now();
    let output = machines.sql(&table, true, 2, sql).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        started.elapsed() < Duration::from_secs(28),
        "{:?}",
        started.elapsed()
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("the statement was cancelled after 2s, as --timeout says"),
        "{said}"
    );
    assert!(!said.contains("Warning"), "{said}");
    // The cluster is free again.
    let output = machines.sql(&table, true, 60, sql).output().unwrap();
    assert_eq!(answer(&output), "false");
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
    let client = spawned(machines.sql(&table, false, 60, GROUPED));
    std::thread::sleep(Duration::from_millis(700));
    machines.executors[0].kill();
    let found = end(&client.wait_with_output().unwrap(), &expected);
    println!("groups, static: {found:?}");
    // With a machine more there is an answer, from a second run where the scheduler gives the lost machine up meanwhile.
    machines.add("");
    let again = machines.sql(&table, true, 60, GROUPED).output().unwrap();
    let found = end(&again, &expected);
    assert!(matches!(found, End::Exact | End::Again), "{found:?}");
}

/// What a statement that stands still waits for is told, and it is not taken for lost while a task of it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_stands_still_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path());
    let machines = Machines::start(&["quantiles::round_sketch=1*sleep(20000)"]);
    let ctx = session(&machines.url, 4, false).await;
    register(&ctx, "t", &table).await;
    let plan = ctx.sql("SELECT exact_quantiles(x, 0.5) FROM t").await.unwrap();
    let plan = plan.create_physical_plan().await.unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let watched = {
        let (plan, told) = (Arc::clone(&plan), Arc::clone(&told));
        let tell = move |line| told.lock().unwrap().push(line);
        let watch = Watch::start(&machines.url, &session_config()).await.unwrap();
        tokio::spawn(async move { watch.run(&plan, Duration::from_secs(3), tell).await })
    };
    let answer = collect(plan, ctx.task_ctx()).await.unwrap();
    assert_eq!(answer.len(), 1);
    assert!(!watched.is_finished());
    watched.abort();
    let told = told.lock().unwrap();
    assert!(!told.is_empty());
    for line in told.iter() {
        assert!(
            line.starts_with("No progress for ") && line.contains(" tasks run and none of them ends"),
            "{line}"
        );
    }
}

/// What is printed cannot be taken back: a statement is not run again for an executor that goes while its rows are read.
#[test]
fn rows_that_were_printed_are_not_printed_again() {
    let folder = tempfile::tempdir().unwrap();
    let x: ArrayRef = Arc::new(Int64Array::from_iter_values(0..400_000));
    let table = write_parquet(folder.path(), "t", &batch(vec![("x", x)]), 8);
    let mut machines = Machines::start(&["", ""]);
    let mut client = spawned(machines.sql(&table, false, 120, "SELECT x FROM t"));
    let (mut printed, mut output) = (Vec::new(), client.stdout.take().unwrap());
    let mut read = |bytes: &mut Vec<u8>| {
        let mut part = [0; 1 << 15];
        let length = output.read(&mut part).unwrap();
        bytes.extend(&part[..length]);
        length > 0
    };
    read(&mut printed);
    machines.executors[0].kill();
    // As long as the scheduler needs to give it up, and the client to ask.
    for _ in 0..60 {
        std::thread::sleep(Duration::from_millis(200));
        read(&mut printed);
    }
    while read(&mut printed) {}
    let ended = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!said.contains("Trying once more"), "{said}");
    let mut lines: Vec<&[u8]> = printed.split(|byte| *byte == b'\n').collect();
    let count = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), count, "rows twice");
    match ended.status.success() {
        true => assert_eq!(count, 400_002),
        false => assert!(said.contains("Error: "), "{said}"),
    }
}

#[tokio::test]
async fn what_writes_is_not_to_run_twice() {
    let ctx = quantiles_testing::session(1);
    for (sql, expected) in [
        ("SELECT 1", false),
        ("EXPLAIN SELECT 1", false),
        ("COPY (SELECT 1) TO 'x.csv'", true),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO 'x.csv'", true),
        ("CREATE TABLE t AS SELECT 1", true),
    ] {
        let plan = ctx.state().create_logical_plan(sql).await.unwrap();
        assert_eq!(
            datafusion_quantiles::ballista::writes(&plan).unwrap(),
            expected,
            "{sql}"
        );
    }
}
