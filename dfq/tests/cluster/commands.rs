//! The commands of `dfq`, as a user runs them.

use std::process::Command;

use crate::support::clients::{dfq, printed, said};
use crate::support::machines::{Process, SHARED, free_port, write_parquet};
use crate::support::tables::rows;

#[test]
fn sql_runs_on_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(5000, 3), 3);
    let sql = format!(
        "SELECT exact_quantiles(x, [0.1, 0.9]), count(*) FROM '{}/'",
        table.display()
    );
    let sql = sql.replace("/'", "/*.parquet'");
    let local = printed(&dfq(&["sql", "--format", "csv", "-c", &sql]));
    let remote = dfq(&["sql", "--cluster", &SHARED.url, "--format", "csv", "-c", &sql]);
    assert_eq!(printed(&remote), local);
    assert_eq!(local.lines().count(), 2, "{local}");
    // A file of the folder that the client is in, by its name alone.
    let file = std::fs::read_dir(&table).unwrap().next().unwrap().unwrap();
    let name = file.file_name().into_string().unwrap();
    let sql = format!("SELECT median(x) AS m, count(*) AS n FROM '{name}' WHERE id > 7");
    let [local, remote] = [&[][..], &["--cluster", &SHARED.url]].map(|options| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dfq"));
        command
            .current_dir(&table)
            .args(["sql", "--format", "csv", "-c", &sql]);
        printed(&command.args(options).output().unwrap())
    });
    assert_eq!(remote, local);
}

#[cfg(unix)]
#[test]
fn a_terminal_shows_the_tasks_of_a_cluster() {
    use crate::support::terminal::{Piped, Terminal};

    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(200_000, 3), 3);
    let files = format!("'{}/*.parquet'", table.display());
    // Goes on for many minutes if it is not stopped; other tests wait for its tasks.
    let sql = format!("SELECT count(*) FROM {files} a, {files} b WHERE a.x + b.x > 7");
    let args = ["sql", "--cluster", &SHARED.url, "--format", "csv", "-c", &sql];
    let terminal = Terminal::start(
        Command::new(env!("CARGO_BIN_EXE_dfq")).args(args),
        80,
        Piped::Output,
    );
    terminal.wait_for(" tasks done, ", 0);
    terminal.interrupt();
    let (code, printed, text) = terminal.end();
    assert_eq!((code, printed.as_str()), (Some(130), ""), "{text}");
    // The line is gone.
    let last = text.trim_end().rsplit(['\r', '\n']).next();
    assert_eq!(last, Some("Interrupted"), "{text:?}");
}

#[test]
fn executors_and_clusters_take_a_limit_of_device_memory() {
    for command in ["executor", "cluster"] {
        let refused = dfq(&[command, "--cuda-memory-limit", "much"]);
        assert_eq!(refused.status.code(), Some(2));
        let error = said(&refused);
        assert!(
            error.contains("'--cuda-memory-limit <SIZE>'") && error.contains("expected a positive size"),
            "{error}"
        );
    }
    // They pass it on: without devices there is nothing to limit.
    let port = free_port().to_string();
    let cluster = Process::start(
        &[
            "cluster",
            "--attached",
            "--executors",
            "1",
            "--port",
            &port,
            "--cuda-memory-limit",
            "1g",
        ],
        &[],
    );
    cluster.wait_for("is ready");
}

#[cfg(feature = "cuda")]
#[test]
fn a_cluster_has_no_pinned_tables() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(50, 1), 1);
    let create = format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
        table.display()
    );
    let pin = dfq(&[
        "sql",
        "--cluster",
        &SHARED.url,
        "-c",
        &create,
        "-c",
        "PIN TABLE t (x)",
    ]);
    assert_eq!(pin.status.code(), Some(1));
    let error = said(&pin);
    assert!(
        error.contains("run on a cluster, whose executors have no pinned tables"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_with_a_cluster_is_said() {
    let port = free_port();
    let nobody = dfq(&[
        "sql",
        "--cluster",
        &format!("df://127.0.0.1:{port}"),
        "-c",
        "SELECT 1",
    ]);
    assert_eq!(nobody.status.code(), Some(1));
    let error = said(&nobody);
    assert!(
        error.contains(&format!(
            "no scheduler answers at df://127.0.0.1:{port}: start one with 'dfq scheduler'"
        )),
        "{error}"
    );
    let error = said(&dfq(&["sql", "--cluster", "localhost:50050", "-c", "SELECT 1"]));
    assert!(
        error.contains("'localhost:50050' is no address of a cluster: allowed is df://host"),
        "{error}"
    );
    let error = said(&dfq(&[
        "sql",
        "--cluster",
        "df://h",
        "--memory-limit",
        "1g",
        "-c",
        "SELECT 1",
    ]));
    assert!(error.contains("cannot be used with"), "{error}");
    // A scheduler without executors.
    let port = port.to_string();
    let scheduler = Process::start(
        &[
            "scheduler",
            "--attached",
            "--bind-port",
            &port,
            "--min-ready-executors",
            "2",
        ],
        &[],
    );
    scheduler.wait_for("listening on");
    let url = format!("df://127.0.0.1:{port}");
    let error = loop {
        let error = said(&dfq(&["sql", "--cluster", &url, "-c", "SELECT 1"]));
        if !error.contains("no scheduler answers") {
            break error;
        }
    };
    assert!(
        error.contains(&format!(
            "the scheduler at {url} has no executor yet: start one with 'dfq executor'"
        )),
        "{error}"
    );
    // One of two: it can be asked, as where another takes the place of one that ended.
    let ports = [free_port(), free_port(), free_port()].map(|port| port.to_string());
    let [flight, grpc, health] = &ports;
    let executor = Process::start(
        &[
            "executor",
            "--attached",
            "--scheduler-port",
            &port,
            "--bind-port",
            flight,
            "--bind-grpc-port",
            grpc,
            "--bind-health-port",
            health,
        ],
        &[("RUST_LOG", "info")],
    );
    executor.wait_for("Executor registration succeed");
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(50, 1), 1);
    let sql = format!("SELECT count(*) AS n FROM '{}/*.parquet'", table.display());
    let answer = dfq(&["sql", "--cluster", &url, "--format", "csv", "-c", &sql]);
    assert_eq!(printed(&answer), "n\n50\n");
}

#[test]
fn an_executor_without_a_scheduler_says_so() {
    let ports = [free_port(), free_port(), free_port(), free_port()].map(|port| port.to_string());
    let [scheduler, flight, grpc, health] = &ports;
    let executor = dfq(&[
        "executor",
        "--scheduler-port",
        scheduler,
        "--bind-port",
        flight,
        "--bind-grpc-port",
        grpc,
        "--bind-health-port",
        health,
    ]);
    assert_eq!(executor.status.code(), Some(1));
    let error = said(&executor);
    assert!(
        error.contains(&format!(
            "at localhost:{scheduler}: start one with 'dfq scheduler'"
        )),
        "{error}"
    );
}

#[test]
fn a_cluster_ends_with_its_parent_and_leaves_nothing() {
    let (work, port) = (tempfile::tempdir().unwrap(), free_port().to_string());
    let mut cluster = Process::start(
        &["cluster", "--attached", "--executors", "1", "--port", &port],
        &[("TMPDIR", work.path().to_str().unwrap())],
    );
    cluster.wait_for("A cluster of 1 executors is ready");
    assert!(
        std::fs::read_dir(work.path()).unwrap().count() > 0,
        "no folder of an executor"
    );
    assert_eq!(cluster.end(), Some(0));
    assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0);
    assert!(std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err());
}

#[test]
fn an_interrupt_ends_a_cluster() {
    let port = free_port().to_string();
    let mut cluster = Process::start(&["cluster", "--executors", "1", "--port", &port], &[]);
    cluster.wait_for("is ready");
    let interrupted = Command::new("kill")
        .args(["-INT", &cluster.id().to_string()])
        .status();
    assert!(interrupted.unwrap().success());
    assert_eq!(cluster.end(), Some(130));
}

#[test]
fn a_cluster_whose_port_is_taken_ends_and_says_so() {
    // Whoever is there takes connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port().to_string();
    // Or is the scheduler of others.
    let other_port = free_port().to_string();
    let other = Process::start(&["scheduler", "--attached", "--bind-port", &other_port], &[]);
    other.wait_for("listening on");
    for port in [&silent_port, &other_port] {
        let mut cluster = Process::start(
            &["cluster", "--attached", "--executors", "1", "--port", port],
            &[],
        );
        cluster.wait_for("the scheduler ended");
        assert_eq!(cluster.end(), Some(1), "{}", cluster.said());
        assert!(!cluster.said().contains("is ready"), "{}", cluster.said());
    }
}
