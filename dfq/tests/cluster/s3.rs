//! Tables in S3, of a server of that protocol on the loopback address.
//!
//! The server is a program, so that its dependencies are not this crate's:
//!
//! ```sh
//! cargo install s3s-fs --version 0.14.1 --locked --features binary --root target/s3
//! S3S_FS=target/s3/bin/s3s-fs cargo test --all-features --test cluster s3 -- --ignored
//! ```

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::machines::{PATIENCE, Process, free_port, write_parquet};
use crate::support::tables::rows;

const KEY: &str = "QUANTILES0KEY";
const SECRET: &str = "quantiles/secret+of/a/test";

/// A server of the folders of a folder, its buckets, which ends with this.
struct Server {
    process: Child,
    endpoint: String,
}

impl Server {
    fn start(root: &Path) -> Self {
        let program = std::env::var("S3S_FS").expect("S3S_FS names the program s3s-fs: see the module");
        let port = free_port();
        let process = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--access-key", KEY, "--secret-key", SECRET])
            .arg(root)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = std::time::Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < PATIENCE, "no server on port {port}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self {
            process,
            endpoint: format!("http://127.0.0.1:{port}"),
        }
    }

    /// What a machine's environment says of it.
    fn environment<'a>(&'a self, secret: &'a str) -> [(&'a str, &'a str); 5] {
        [
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_ENDPOINT", &self.endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
        ]
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn dfq(environment: &[(&str, &str)], args: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_dfq"))
        .envs(environment.iter().copied())
        .args(["sql", "--format", "csv", "--timeout", "60"])
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// A cluster whose processes have this environment.
fn cluster(environment: &[(&str, &str)]) -> (Process, String) {
    let port = free_port().to_string();
    let process = Process::start(&["cluster", "--attached", "--port", &port], environment);
    process.wait_for("is ready");
    (process, format!("df://127.0.0.1:{port}"))
}

#[test]
#[ignore = "needs the program s3s-fs, named by S3S_FS"]
fn tables_in_s3_are_read_with_the_credentials_of_each_machine() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("trips")).unwrap();
    let files = write_parquet(&root.path().join("trips"), "t", &rows(30_000, 4), 16);
    let server = Server::start(root.path());
    let environment = server.environment(SECRET);
    let (_cluster, url) = cluster(&environment);
    let ask =
        "SELECT exact_quantiles(x, [0.1, 0.5, 0.9]) AS x, exact_quantiles(f, 0.5) AS f, count(*) AS n FROM";
    let local = format!("{ask} '{}/*.parquet'", files.display());
    let (done, expected, said) = dfq(&[], &["-c", &local]);
    assert!(done, "{said}");
    let create = "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://trips/t/'";
    for (adaptive, strategy) in [("true", "auto"), ("false", "auto"), ("true", "dibms")] {
        let planner = format!("SET ballista.planner.adaptive.enabled = {adaptive}");
        let strategy = format!("SET quantiles.strategy = '{strategy}'");
        let sql = format!("{ask} t");
        let statements = [create, &planner, &strategy, &sql];
        let mut args = vec!["--cluster", &url, "--partitions", "8"];
        statements
            .iter()
            .for_each(|statement| args.extend(["-c", statement]));
        let (done, printed, said) = dfq(&environment, &args);
        assert!(done, "{planner}, {strategy}: {said}");
        assert_eq!(printed, expected, "{planner}, {strategy}");
    }

    // Machines whose credentials are wrong say so; the client's are right.
    let wrong = server.environment("not the secret");
    let (_wrong, url) = cluster(&wrong);
    let sql = format!("{ask} t");
    let (done, _, said) = dfq(&environment, &["--cluster", &url, "-c", create, "-c", &sql]);
    assert!(!done);
    assert!(said.contains("SignatureDoesNotMatch"), "{said}");
}

/// A program with a session of its own, which has the environment of this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_finds_stores_by_itself() {
    let url = &crate::support::machines::SHARED.url;
    let ctx = datafusion_quantiles::ballista::connect(url).await.unwrap();
    // Nobody listens there: what matters is that a store is known.
    let missing = format!("http://127.0.0.1:{}/t.parquet", free_port());
    let create = format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{missing}'");
    let error = ctx.sql(&create).await.unwrap_err().to_string();
    assert!(!error.contains("No suitable object store"), "{error}");
}
