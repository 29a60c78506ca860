//! `dfq serve` as a process, which ends with the test, and its clients.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use crate::support::{dfq, folder};

/// How long anything here may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How long what happens at once may take: far less than the statements that are cancelled, and enough for a machine with other work.
pub(super) const AT_ONCE: Duration = Duration::from_secs(10);

/// A server on a free port.
pub(super) struct Server {
    child: Child,
    said: Arc<Mutex<String>>,
    pub(super) address: SocketAddr,
    pub(super) metrics: SocketAddr,
    pub(super) folder: TempDir,
}

impl Server {
    /// A server with a table `t` of the numbers 1 to 10000 and their names.
    pub(super) fn start(options: &[&str]) -> Self {
        let setup = "CREATE TABLE t AS SELECT value AS x, value % 10 AS g, value * 0.5 AS f, concat('name ', value) AS s,
            to_timestamp(value * 60) AS at FROM generate_series(1, 10000);
            CREATE VIEW halves AS SELECT g, median(f) AS half FROM t GROUP BY g;";
        Self::with(setup, options)
    }

    pub(super) fn with(setup: &str, options: &[&str]) -> Self {
        let folder = folder();
        std::fs::write(folder.path().join("setup.sql"), setup).unwrap();
        Self::in_folder(folder, options)
    }

    pub(super) fn in_folder(folder: TempDir, options: &[&str]) -> Self {
        let mut command = dfq(folder.path());
        command.args([
            "serve",
            "--init",
            "setup.sql",
            "--bind-port",
            "0",
            "--metrics-bind",
            "127.0.0.1:0",
        ]);
        command.args(options).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut address = |start: &str| -> SocketAddr {
            let line = lines
                .next()
                .unwrap_or_else(|| panic!("no line '{start}'"))
                .unwrap();
            let address = line.strip_prefix(start).unwrap_or_else(|| panic!("{line}"));
            address.trim_end_matches("/metrics").parse().unwrap()
        };
        let (address, metrics) = (address("Listening on "), address("Metrics on http://"));
        let said = Arc::new(Mutex::new(String::new()));
        let written = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *written.lock().unwrap() += &format!("{line}\n");
            }
        });
        Self {
            child,
            said,
            address,
            metrics,
            folder,
        }
    }

    /// How a client of this server is made.
    pub(super) fn config(&self) -> Config {
        let mut config = Config::new();
        config
            .host(self.address.ip().to_string())
            .port(self.address.port())
            .user("ann")
            .dbname("datafusion");
        config
    }

    pub(super) async fn connect(&self) -> Client {
        connect(&self.config()).await.unwrap()
    }

    /// What the server logged so far.
    pub(super) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits for a line of the log with this text.
    pub(super) async fn wait_for(&self, text: &str) {
        let started = Instant::now();
        while !self.said().contains(text) {
            assert!(started.elapsed() < PATIENCE, "no '{text}' in\n{}", self.said());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The answer of the server to an HTTP request.
    pub(super) async fn get(&self, path: &str) -> String {
        let answer = reqwest::get(format!("http://{}{path}", self.metrics))
            .await
            .unwrap();
        answer.error_for_status().unwrap().text().await.unwrap()
    }

    /// A metric as it is.
    pub(super) async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}"))
            .parse()
            .unwrap()
    }

    /// Waits until a metric has this value, at most so long.
    pub(super) async fn settles(&self, name: &str, value: f64, within: Duration) {
        let started = Instant::now();
        loop {
            let found = self.metric(name).await;
            if found == value {
                return;
            }
            assert!(started.elapsed() < within, "{name} is {found}\n{}", self.said());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Checks that at once nothing is held of statements that ended: no memory, no turn.
    pub(super) async fn holds_nothing(&self) {
        self.settles("dfq_statements_running", 0.0, AT_ONCE).await;
        self.settles("dfq_statements_waiting", 0.0, AT_ONCE).await;
        self.settles("dfq_memory_reserved_bytes", 0.0, AT_ONCE).await;
    }

    /// Sends a signal.
    pub(super) fn signal(&self, name: &str) {
        let kill = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
    }

    /// Waits for the end of the process.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "{}", self.said());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects without TLS.
pub(super) async fn connect(config: &Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The rows of a simple query as text: columns by `|`, rows by lines, NULL as `NULL`.
pub(super) async fn text(client: &Client, sql: &str) -> String {
    let messages = client.simple_query(sql).await;
    let messages = messages.unwrap_or_else(|error| panic!("{sql}: {}", told(&error)));
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            let cells = (0..row.len()).map(|cell| row.get(cell).unwrap_or("NULL"));
            Some(cells.collect::<Vec<_>>().join("|"))
        }
        _ => None,
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// The SQLSTATE and the message of a failure.
pub(super) fn told(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("{} {}", error.code().code(), error.message()),
        None => format!("{error:?}"),
    }
}

/// A failure as scripts take it.
#[derive(Debug)]
pub(super) struct Told(String);

impl From<tokio_postgres::Error> for Told {
    fn from(error: tokio_postgres::Error) -> Self {
        Self(told(&error))
    }
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Told {}

/// The failure of a simple query.
pub(super) async fn failure(client: &Client, sql: &str) -> String {
    match client.simple_query(sql).await {
        Ok(answer) => panic!("{sql}: {answer:?}"),
        Err(error) => told(&error),
    }
}
