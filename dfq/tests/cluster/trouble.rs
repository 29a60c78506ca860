//! Schedulers that restart, disks that are full, clients that go, executors that are not ours: answers or errors that say what
//! to do, and nothing left behind.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use datafusion::physical_plan::collect;
use datafusion_quantiles::ballista::{Watch, session_config};

use crate::support::clients::{End, answer, asked, end, expected, first_to_reach, table};
use crate::support::machines::{Machines, free_port, register, session};

/// Calls it every tenth of a second until it is true.
fn wait_until(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < patience, "not in {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A query that ran when the scheduler was killed ends with an error in time; the next one, of a new scheduler, is answered by
/// executors that were there before.
#[test]
fn a_scheduler_that_restarts_knows_its_executors_again() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path());
    let points = "quantiles::round_sketch=1*sleep(2000)";
    let mut machines = Machines::start(&[points, points]);
    let expected = expected(&table);
    let client = asked(&machines, &table, true, 20);
    first_to_reach(&machines, "round_sketch");
    machines.scheduler.kill();
    let started = Instant::now();
    let output = client.wait_with_output().unwrap();
    let found = end(&output, &expected);
    println!("scheduler killed: {found:?} after {:.0?}", started.elapsed());
    assert!(matches!(found, End::Error(_) | End::Cancelled), "{found:?}");
    machines.restart_scheduler();
    wait_until("an answer of the new scheduler", Duration::from_secs(60), || {
        let output = asked(&machines, &table, true, 20).wait_with_output().unwrap();
        output.status.success() && answer(&output) == expected
    });
}

/// Both executors hold their first tasks while a third one joins: it takes part in the query, whose answer is exact.
#[test]
fn an_executor_that_joins_during_a_query_takes_part() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path());
    let expected = expected(&table);
    for adaptive in [true, false] {
        let points = "quantiles::round_sketch=2*sleep(6000)";
        let mut machines = Machines::start(&[points, points]);
        let client = asked(&machines, &table, adaptive, 60);
        first_to_reach(&machines, "round_sketch");
        machines.add("");
        let joined = Instant::now();
        let output = client.wait_with_output().unwrap();
        assert_eq!(end(&output, &expected), End::Exact, "adaptive {adaptive}");
        let said = machines.executors[2].said();
        let reached = said.matches("reached ").count();
        println!(
            "joined, adaptive {adaptive}: {reached} points reached, {:.0?}",
            joined.elapsed()
        );
        assert!(reached > 0, "adaptive {adaptive}: it ran nothing\n{said}");
    }
}

/// Files of an executor cannot grow: as on a disk without room, every write of a stage fails.
#[test]
fn an_executor_without_disk_makes_no_wrong_answer() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path());
    let expected = expected(&table);
    for adaptive in [true, false] {
        let mut machines = Machines::start(&[]);
        // Blocks of 1 KiB; without the signal a write that is too long is an error.
        machines.add_with("", &[], "ulimit -f 1; trap '' XFSZ");
        let output = asked(&machines, &table, adaptive, 40).wait_with_output().unwrap();
        let found = end(&output, &expected);
        println!("no disk, adaptive {adaptive}: {found:?}");
        match &found {
            End::Error(error) => assert!(error.contains("File too large"), "{error}"),
            other => panic!("{other:?}"),
        }
        // With an executor more that has room.
        machines.add("");
        let output = asked(&machines, &table, adaptive, 40).wait_with_output().unwrap();
        println!(
            "room beside it, adaptive {adaptive}: {:?}",
            end(&output, &expected)
        );
    }
}

/// What queries left in the folder that an executor has made in `work`; the one for spills stays, empty, as long as the
/// executor.
fn left(work: &Path) -> Vec<PathBuf> {
    let inside = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let is_empty_spill = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("datafusion-") && inside(path).is_empty()
    };
    let left = inside(work).into_iter().flat_map(|folder| inside(&folder));
    left.filter(|path| !is_empty_spill(path)).collect()
}

/// A scheduler that has stopped takes no statement, and tells nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_no_scheduler_accepts_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(folder.path());
    let machines = Machines::start(&[""]);
    let ctx = session(&machines.url, 4, false).await;
    register(&ctx, "t", &table).await;
    let query = ctx.sql("SELECT exact_quantiles(x, 0.5) FROM t").await.unwrap();
    let plan = query.create_physical_plan().await.unwrap();
    let watch = Watch::start(&machines.url, &session_config()).await.unwrap();
    machines.scheduler.signal("-STOP");
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (watched, task) = (Arc::clone(&plan), ctx.task_ctx());
    let answer = tokio::spawn(async move { collect(plan, task).await });
    let tell = move |line| drop(sender.send(line));
    let watched = tokio::spawn(async move { watch.run(&watched, Duration::from_secs(1), tell).await });
    let line = tokio::time::timeout(Duration::from_secs(30), told.recv()).await;
    let line = line.expect("silence").unwrap();
    assert!(
        line.starts_with("No progress for ") && line.contains("the scheduler has not accepted the statement"),
        "{line}"
    );
    watched.abort();
    answer.abort();
    machines.scheduler.signal("-CONT");
}

/// Ctrl-C in the client while tasks run: they end, their files go, and the executor is free. Without adaptive planning
/// Ballista does not wait for tasks before it removes their files, so that those of the last ones may stay.
#[test]
fn a_client_that_is_interrupted_leaves_a_free_executor() {
    let (folder, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let table = table(folder.path());
    for adaptive in [true, false] {
        let mut machines = Machines::start(&[]);
        let options = ["--work-dir", work.path().to_str().unwrap()];
        machines.add_with("quantiles::round_count=1*sleep(3000)", &options, "");
        let mut client = asked(&machines, &table, adaptive, 60);
        first_to_reach(&machines, "round_count");
        // Tasks that end while Ballista removes files write theirs again: one is left, which stops.
        std::thread::sleep(Duration::from_secs(1));
        assert!(!left(work.path()).is_empty());
        let interrupted = std::process::Command::new("kill")
            .args(["-INT", &client.id().to_string()])
            .status();
        assert!(interrupted.unwrap().success());
        assert_eq!(client.wait().unwrap().code(), Some(130));
        let started = Instant::now();
        while adaptive && !left(work.path()).is_empty() {
            let left = left(work.path());
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "adaptive {adaptive}: {left:?}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        let said = machines.executors[0].said();
        assert!(!said.contains("reached refine_answers"), "it went on:\n{said}");
        let output = asked(&machines, &table, adaptive, 60).wait_with_output().unwrap();
        assert_eq!(end(&output, &expected(&table)), End::Exact);
    }
}

/// Plain Ballista, which knows neither operators nor functions of this crate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_without_this_crate_is_told_apart() {
    let (folder, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let table = table(folder.path());
    let machines = Machines::start(&[]);
    let config = ExecutorProcessConfig {
        port: free_port(),
        grpc_port: free_port(),
        scheduler_host: "127.0.0.1".to_string(),
        scheduler_port: machines.scheduler_port.parse().unwrap(),
        scheduler_connect_timeout_seconds: 30,
        vcores: 2,
        work_dir: Some(work.path().to_string_lossy().into_owned()),
        ..ExecutorProcessConfig::default()
    };
    let executor = tokio::spawn(start_executor_process(Arc::new(config)));
    let ready = || {
        let plain = machines
            .sql(&table, true, 20, "SELECT count(*) FROM t")
            .output()
            .unwrap();
        plain.status.success()
    };
    tokio::task::block_in_place(|| {
        wait_until("the executor", Duration::from_secs(60), ready);
        for (adaptive, sql) in [
            (true, crate::support::clients::SQL),
            (false, crate::support::clients::SQL),
            (true, "SELECT few, exact_quantiles(x, 0.5) FROM t GROUP BY few"),
        ] {
            let output = machines.sql(&table, adaptive, 40, sql).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "adaptive {adaptive}: {sql}");
            let said = String::from_utf8_lossy(&output.stderr);
            let hint = "start executors with 'dfq executor' of the same version";
            assert!(said.contains(hint), "adaptive {adaptive}: {sql}\n{said}");
        }
    });
    executor.abort();
}
