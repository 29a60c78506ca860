//! Executors of `dfq cluster` that are killed: the cluster heals, and statements give the answer or a named error.
//!
//! The run of many kills takes minutes, and is started by hand:
//! `cargo test --release --all-features --test cluster many_kills -- --ignored --nocapture`.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `QUANTILES_KILLS` | how many executors are killed; 50 if not set |
//! | `QUANTILES_KILLS_SEED` | the number that statements, planners, executors and moments follow from |
//! | `QUANTILES_KILLS_ROWS` | rows of the table; 2000000 if not set |
//! | `QUANTILES_KILLS_REPORT` | a file for the table of results |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::support::clients::{End, answer, end};
use crate::support::machines::{Process, free_port, register, session, write_parquet};
use crate::support::tables::rows;
use quantiles_testing::texts;

/// A cluster by its command, with all of its defaults but the ports and the number of executors.
struct Local {
    process: Process,
    port: u16,
    /// The temporary folder of its processes.
    work: tempfile::TempDir,
}

impl Local {
    fn start(executors: usize) -> Self {
        let (port, work) = (free_port(), tempfile::tempdir().unwrap());
        let process = Process::start(
            &[
                "cluster",
                "--attached",
                "--port",
                &port.to_string(),
                "--executors",
                &executors.to_string(),
            ],
            &[("TMPDIR", work.path().to_str().unwrap())],
        );
        process.wait_for("is ready");
        Self { process, port, work }
    }

    /// How many folders its processes have now.
    fn folders(&self) -> usize {
        std::fs::read_dir(self.work.path()).unwrap().count()
    }

    /// Process ids of its executors.
    fn executors(&self) -> Vec<u32> {
        // Of each thread: a process is a child of the thread that started it.
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).into_iter();
        let children = threads.flatten().flatten().map(|thread| {
            let children = thread.path().join("children");
            std::fs::read_to_string(children).unwrap_or_default()
        });
        let children = children.collect::<String>();
        let children = children
            .split_whitespace()
            .filter_map(|id| id.parse::<u32>().ok());
        let is_executor = |id: &u32| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(b"executor")
        };
        children.filter(is_executor).collect()
    }

    fn kill(&self, executor: u32) {
        let killed = Command::new("kill")
            .args(["-KILL", &executor.to_string()])
            .status();
        assert!(killed.unwrap().success());
    }

    /// Waits until so many executors are there for queries.
    fn wait_for_executors(&self, count: usize) {
        let started = Instant::now();
        let ready = || {
            let asked = Command::new("curl")
                .args(["-s", "-m", "5", &format!("http://127.0.0.1:{}/readyz", self.port)])
                .output();
            asked.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).starts_with("ready"))
        };
        while self.executors().len() < count || !ready() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{}",
                self.process.said()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn sql(&self, table: &Path, planner: &str, set: &str, sql: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dfq"));
        let url = format!("df://127.0.0.1:{}", self.port);
        command.args(["sql", "--cluster", &url, "--format", "csv", "--partitions", "8"]);
        command.args(["--timeout", "150", "-c", &external(table)]);
        let planner = format!(
            "SET ballista.planner.adaptive.enabled = {}",
            planner == "adaptive"
        );
        command.args(["-c", &planner, "-c", set, "-c", sql]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn external(table: &Path) -> String {
    format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
        table.display()
    )
}

/// Names, options and statements of one row.
const STATEMENTS: [(&str, &str, &str); 5] = [
    (
        "quantiles",
        "SET quantiles.strategy = 'auto'",
        "SELECT exact_quantiles(x, [0.1, 0.5, 0.9]), exact_quantiles(f, 0.5) FROM t",
    ),
    (
        "groups by states",
        "SET quantiles.strategy = 'auto'",
        "SELECT exact_quantiles(m, [0, 0.5, 1]), count(*), sum(k) FROM \
         (SELECT few AS k, exact_quantiles(x, 0.5) AS m FROM t GROUP BY few)",
    ),
    (
        "groups in stages",
        "SET quantiles.strategy = 'gk_select'",
        "SELECT sum(m % 1000), min(m), max(m), count(*) FROM \
         (SELECT id % 97 AS k, exact_quantiles(x, 0.5) AS m FROM t GROUP BY id % 97)",
    ),
    (
        "ORDER BY LIMIT",
        "SET quantiles.strategy = 'auto'",
        "SELECT count(*), sum(id), min(c), max(c) FROM (SELECT id, c FROM t ORDER BY c DESC, id LIMIT 1000)",
    ),
    (
        "top of groups",
        "SET quantiles.strategy = 'auto'",
        "SELECT count(*), sum(id), max(r) FROM (SELECT id, row_number() OVER (PARTITION BY id % 977 ORDER BY f DESC, id) AS r \
         FROM t) WHERE r <= 3",
    ),
];

#[test]
fn another_executor_takes_the_place_of_one_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(20_000, 5), 8);
    let mut cluster = Local::start(2);
    let (_, set, sql) = STATEMENTS[0];
    let expected = answer(&cluster.sql(&table, "static", set, sql).output().unwrap());
    let before = cluster.executors();
    assert_eq!(before.len(), 2);
    cluster.kill(before[1]);
    cluster
        .process
        .wait_for("signal: 9 (SIGKILL); another one takes its place");
    cluster.wait_for_executors(2);
    let now = cluster.executors();
    assert!(now.contains(&before[0]) && !now.contains(&before[1]), "{now:?}");
    assert_eq!(cluster.folders(), 2, "the folder of a killed executor is left");
    let again = cluster.sql(&table, "adaptive", set, sql).output().unwrap();
    assert_eq!(end(&again, &expected), End::Exact);
    // One that never stays ends the cluster, with an error that names it.
    for _ in 0..8 {
        if let Some(youngest) = cluster.executors().into_iter().max() {
            cluster.kill(youngest);
        }
        std::thread::sleep(Duration::from_millis(400));
    }
    cluster.process.wait_for("Error: executor ");
    assert_eq!(cluster.process.end(), Some(1));
    assert_eq!(cluster.folders(), 0);
}

/// A program has the second run of `dfq sql`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_of_a_program_outlives_an_executor() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(100_000, 5), 16);
    let sql = STATEMENTS[0].2;
    let local = quantiles_testing::session(2);
    register(&local, "t", &table).await;
    let expected = texts(&quantiles_testing::query(&local, sql).await.unwrap());
    let cluster = tokio::task::block_in_place(|| Local::start(3));
    let url = format!("df://127.0.0.1:{}", cluster.port);
    for (adaptive, victim) in [(false, 0), (true, 1)] {
        tokio::task::block_in_place(|| cluster.wait_for_executors(3));
        let ctx = session(&url, 8, adaptive).await;
        register(&ctx, "t", &table).await;
        let query = ctx.sql(sql).await.unwrap();
        let asked = url.clone();
        let answer =
            tokio::spawn(async move { datafusion_quantiles::ballista::collect(&asked, query).await });
        tokio::time::sleep(Duration::from_millis(400)).await;
        cluster.kill(cluster.executors()[victim]);
        let answer = tokio::time::timeout(Duration::from_secs(100), answer).await;
        assert_eq!(
            texts(&answer.expect("no end").unwrap().unwrap()),
            expected,
            "adaptive {adaptive}"
        );
    }
}

/// A scheduler that owns the port already is not taken for the cluster's own, and gets no executors.
#[test]
fn another_scheduler_on_the_port_gets_no_executors() {
    let port = free_port().to_string();
    let other = Process::start(&["scheduler", "--attached", "--bind-port", &port], &[]);
    other.wait_for("listening on");
    let ready = || {
        let asked = Command::new("curl")
            .args(["-s", "-m", "5", &format!("http://127.0.0.1:{port}/readyz")])
            .output();
        String::from_utf8_lossy(&asked.unwrap().stdout).into_owned()
    };
    let started = Instant::now();
    while ready().is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60), "{}", other.said());
        std::thread::sleep(Duration::from_millis(100));
    }
    let cluster = Process::start(&["cluster", "--executors", "1", "--port", &port], &[]);
    cluster.wait_for("Error: the scheduler ended with");
    assert!(!cluster.said().contains("is ready"), "{}", cluster.said());
    assert!(ready().starts_with("not ready: 0/1"), "{}", ready());
}

fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().unwrap())
}

/// One kill at a random moment of a statement.
struct Kill {
    statement: usize,
    planner: &'static str,
    /// Seconds from the start of the statement to the kill.
    moment: f64,
    end: End,
    seconds: f64,
}

impl Kill {
    fn is_exact_in_time(&self) -> bool {
        matches!(self.end, End::Exact | End::Again) && self.seconds <= 60.0
    }
}

/// Runs a statement, kills one of the executors while it runs, and judges its end.
fn kill_one(cluster: &Local, table: &Path, draw: &mut SmallRng, undisturbed: &[(String, f64)]) -> Kill {
    let statement = draw.random_range(0..STATEMENTS.len());
    let planner = ["adaptive", "static"][draw.random_range(0..2)];
    let (_, set, sql) = STATEMENTS[statement];
    let (expected, usual) = &undisturbed[statement];
    let moment = draw.random_range(0.0..*usual);
    let executors = cluster.executors();
    let victim = executors[draw.random_range(0..executors.len())];
    let started = Instant::now();
    let client = cluster.sql(table, planner, set, sql).spawn().unwrap();
    std::thread::sleep(Duration::from_secs_f64(moment));
    cluster.kill(victim);
    let output = client.wait_with_output().unwrap();
    let seconds = started.elapsed().as_secs_f64();
    Kill {
        statement,
        planner,
        moment,
        end: end(&output, expected),
        seconds,
    }
}

fn report(kills: &[Kill], undisturbed: &[(String, f64)]) -> String {
    let mut text = String::from(
        "| statement | planner | undisturbed, s | killed after, s | end | s |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let mut ends = BTreeMap::<String, usize>::new();
    for kill in kills {
        let (name, usual) = (STATEMENTS[kill.statement].0, undisturbed[kill.statement].1);
        let _ = writeln!(
            text,
            "| {name} | {} | {usual:.1} | {:.1} | {:?} | {:.0} |",
            kill.planner, kill.moment, kill.end, kill.seconds
        );
        let how = match &kill.end {
            End::Error(_) => "a named error",
            End::Cancelled => "no end in 150 s",
            _ if !kill.is_exact_in_time() => "exact, after more than 60 s",
            End::Exact => "exact",
            End::Again => "exact, by the second try of dfq",
        };
        *ends.entry(format!("{}, {how}", kill.planner)).or_default() += 1;
    }
    for (how, count) in ends {
        let _ = writeln!(text, "\n{count} of {}: {how}", kills.len());
    }
    text
}

#[test]
#[ignore = "takes minutes; see the head of this file"]
fn many_kills_make_no_wrong_answer() {
    let folder = tempfile::tempdir().unwrap();
    let count = number("QUANTILES_KILLS", 50) as usize;
    let seed = number("QUANTILES_KILLS_SEED", 1);
    let size = number("QUANTILES_KILLS_ROWS", 2_000_000) as usize;
    let table = write_parquet(folder.path(), "t", &rows(size, 5), 16);
    let cluster = Local::start(3);
    let mut undisturbed = Vec::new();
    for (name, set, sql) in STATEMENTS {
        let local = Command::new(env!("CARGO_BIN_EXE_dfq"))
            .args(["sql", "--format", "csv", "-c", &external(&table), "-c", sql])
            .output();
        let expected = answer(&local.unwrap());
        let mut seconds = 0.0;
        for planner in ["static", "adaptive"] {
            let started = Instant::now();
            let output = cluster.sql(&table, planner, set, sql).output().unwrap();
            assert_eq!(end(&output, &expected), End::Exact, "{name}");
            seconds = started.elapsed().as_secs_f64();
        }
        undisturbed.push((expected, seconds));
    }
    let mut draw = SmallRng::seed_from_u64(seed);
    let mut kills = Vec::new();
    for number in 1..=count {
        cluster.wait_for_executors(3);
        let kill = kill_one(&cluster, &table, &mut draw, &undisturbed);
        eprintln!(
            "{number}: {} {} after {:.1} s: {:?} in {:.0} s",
            STATEMENTS[kill.statement].0, kill.planner, kill.moment, kill.end, kill.seconds
        );
        kills.push(kill);
    }
    let report = report(&kills, &undisturbed);
    println!("{report}");
    if let Ok(file) = std::env::var("QUANTILES_KILLS_REPORT") {
        std::fs::write(file, &report).unwrap();
    }
    let exact = kills.iter().filter(|kill| kill.is_exact_in_time()).count();
    assert!(
        kills.iter().all(|kill| kill.end != End::Cancelled),
        "one waits for ever"
    );
    assert!(exact * 10 >= count * 9, "{exact} of {count} exact within 60 s");
}
