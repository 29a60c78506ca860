//! Processes of a cluster, which end with the test.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use datafusion_quantiles::ballista::{collect, connect_with_config, session_config};

/// How long anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// `dfq`, and what it says on standard error.
pub(crate) struct Process {
    child: Child,
    lines: Mutex<Receiver<String>>,
    said: Arc<Mutex<String>>,
}

impl Process {
    pub(crate) fn start(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dfq"));
        command.args(args).envs(variables.iter().copied());
        Self::of(command)
    }

    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let (sender, lines) = channel();
        let said = Arc::new(Mutex::new(String::new()));
        let written = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(|line| line.ok()) {
                *written.lock().unwrap() += &format!("{line}\n");
                let _ = sender.send(line);
            }
        });
        Self {
            child,
            lines: Mutex::new(lines),
            said,
        }
    }

    /// Waits for a line with this text.
    pub(crate) fn wait_for(&self, text: &str) {
        assert!(
            self.said_in_time(text, PATIENCE),
            "no '{text}' in\n{}",
            self.said()
        );
    }

    /// Whether there is a line with this text within `time`.
    pub(crate) fn said_in_time(&self, text: &str, time: Duration) -> bool {
        let (started, lines) = (Instant::now(), self.lines.lock().unwrap());
        loop {
            match lines.recv_timeout(time.saturating_sub(started.elapsed())) {
                Ok(line) if line.contains(text) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// As a power cut would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Closes its standard input, and waits for its end.
    pub(crate) fn end(&mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("it does not end:\n{}", self.said());
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `-TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A cluster that most tests share. Its processes end with this one, as their standard input does.
pub(crate) struct Cluster {
    pub(crate) url: String,
    _work: tempfile::TempDir,
    _process: Process,
}

pub(crate) static SHARED: LazyLock<Cluster> = LazyLock::new(|| {
    let (work, port) = (tempfile::tempdir().unwrap(), free_port().to_string());
    let folder = work.path().to_str().unwrap();
    let process = Process::start(
        &[
            "cluster",
            "--attached",
            "--port",
            &port,
            "--vcores",
            "2",
            "--work-dir",
            folder,
        ],
        &[],
    );
    process.wait_for("is ready");
    Cluster {
        url: format!("df://127.0.0.1:{port}"),
        _work: work,
        _process: process,
    }
});

/// A session on a cluster.
pub(crate) async fn session(url: &str, partitions: usize, adaptive: bool) -> SessionContext {
    let config = session_config()
        .with_target_partitions(partitions)
        .set_str("ballista.planner.adaptive.enabled", &adaptive.to_string());
    connect_with_config(url, config).await.unwrap()
}

/// Both kinds of planning.
pub(crate) const ADAPTIVE: [bool; 2] = [true, false];

/// Writes `rows` to `files` Parquet files in `folder/name`.
pub(crate) fn write_parquet(folder: &Path, name: &str, rows: &RecordBatch, files: usize) -> PathBuf {
    let folder = folder.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let length = rows.num_rows().div_ceil(files);
    for file in 0..files {
        let start = (file * length).min(rows.num_rows());
        let part = rows.slice(start, length.min(rows.num_rows() - start));
        let file = std::fs::File::create(folder.join(format!("part-{file:03}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, rows.schema(), None).unwrap();
        writer.write(&part).unwrap();
        writer.close().unwrap();
    }
    folder
}

pub(crate) async fn register(ctx: &SessionContext, name: &str, folder: &Path) {
    ctx.register_parquet(name, folder.to_str().unwrap(), ParquetReadOptions::default())
        .await
        .unwrap();
}

/// The answer of a query, in time.
pub(crate) async fn query(ctx: &SessionContext, sql: &str) -> Result<Vec<RecordBatch>> {
    in_time(sql, || quantiles_testing::query(ctx, sql)).await
}

/// The answer of a query on the cluster at `url`, in time, by the door that programs are told to use.
pub(crate) async fn watched(url: &str, ctx: &SessionContext, sql: &str) -> Result<Vec<RecordBatch>> {
    in_time(sql, || async { collect(url, ctx.sql(sql).await?).await }).await
}

/// What `ask` answers, in time. On busy machines a statement stands still now and then, as the guide of clusters says: such a one is asked a
/// second time.
async fn in_time<F>(sql: &str, ask: impl Fn() -> F) -> Result<Vec<RecordBatch>>
where
    F: Future<Output = Result<Vec<RecordBatch>>>,
{
    for _ in 0..2 {
        match tokio::time::timeout(PATIENCE, ask()).await {
            Ok(answer) => return answer,
            Err(_) => eprintln!("{sql}: no answer after {PATIENCE:?}"),
        }
    }
    panic!("{sql}: no answer, twice");
}

/// Seconds after which a silent executor is lost.
const LOST_AFTER: &str = "6";

/// A scheduler that notices soon when an executor is lost, and executors with failpoints of their own.
pub(crate) struct Machines {
    pub(crate) url: String,
    pub(crate) scheduler_port: String,
    pub(crate) scheduler: Process,
    pub(crate) executors: Vec<Process>,
}

impl Machines {
    pub(crate) fn start(failpoints: &[&str]) -> Self {
        let port = free_port().to_string();
        let mut machines = Self {
            url: format!("df://127.0.0.1:{port}"),
            scheduler: scheduler(&port),
            scheduler_port: port,
            executors: Vec::new(),
        };
        failpoints.iter().for_each(|points| machines.add(points));
        machines
    }

    /// Another scheduler in the place of one that was killed.
    pub(crate) fn restart_scheduler(&mut self) {
        self.scheduler = scheduler(&self.scheduler_port);
    }

    pub(crate) fn add(&mut self, failpoints: &str) {
        self.add_with(failpoints, &[], "");
    }

    /// An executor with more options, which a shell starts after `limits`.
    pub(crate) fn add_with(&mut self, failpoints: &str, options: &[&str], limits: &str) {
        let ports = [free_port(), free_port(), free_port()].map(|port| port.to_string());
        let mut command = Command::new("bash");
        command.args([
            "-c",
            &format!("{limits}\nexec \"$@\""),
            "bash",
            env!("CARGO_BIN_EXE_dfq"),
        ]);
        command.args(options_of_an_executor(&self.scheduler_port, &ports));
        command.args(options);
        command.envs([
            ("FAILPOINTS", failpoints),
            ("RUST_LOG", "info,datafusion_quantiles=debug"),
        ]);
        let executor = Process::of(command);
        executor.wait_for("Executor registration succeed");
        self.executors.push(executor);
    }

    pub(crate) fn sql(&self, table: &Path, adaptive: bool, timeout: u64, sql: &str) -> Command {
        self.sql_by(table, adaptive, timeout, "auto", sql)
    }

    /// The same by a strategy.
    pub(crate) fn sql_by(
        &self,
        table: &Path,
        adaptive: bool,
        timeout: u64,
        strategy: &str,
        sql: &str,
    ) -> Command {
        let create = format!(
            "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
            table.display()
        );
        let planner = format!("SET ballista.planner.adaptive.enabled = {adaptive}");
        let strategy = format!("SET quantiles.strategy = '{strategy}'");
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
            &strategy,
            "-c",
            sql,
        ]);
        command
    }
}

fn scheduler(port: &str) -> Process {
    let scheduler = Process::start(
        &[
            "scheduler",
            "--attached",
            "--bind-port",
            port,
            "--executor-timeout-seconds",
            LOST_AFTER,
            "--expire-dead-executor-interval-seconds",
            "2",
            "--finished-job-data-clean-up-interval-seconds",
            "1",
        ],
        &[],
    );
    scheduler.wait_for("listening on");
    scheduler
}

pub(crate) fn options_of_an_executor<'a>(scheduler: &'a str, ports: &'a [String; 3]) -> [&'a str; 18] {
    [
        "executor",
        "--attached",
        "--scheduler-host",
        "127.0.0.1",
        "--scheduler-port",
        scheduler,
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
    ]
}
