//! Whom the processes of a cluster serve.

use std::path::Path;

use ballista_core::serde::protobuf::GetJobStatusParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use datafusion_quantiles::ballista::{
    Identity, connect_with_config, http_client, session_config, with_identity,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tonic::Code;

use crate::support::clients::{dfq, printed, said};
use crate::support::machines::{Process, free_port, options_of_an_executor, query, register, write_parquet};
use crate::support::tables::rows;

const QUESTION: &str = "SELECT exact_quantiles(x, [0.1, 0.9]), count(*) FROM t";

/// What a failed run of `dfq` said.
fn refused(args: &[&str]) -> String {
    let output = dfq(args);
    assert_ne!(output.status.code(), Some(0), "{args:?}");
    said(&output)
}

/// Writes a secret, and gives the path of its file.
fn token(folder: &Path, name: &str, letter: char) -> String {
    let file = folder.join(name);
    std::fs::write(&file, format!("{}\n", letter.to_string().repeat(32))).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Writes an authority, and a certificate by it for this machine: the options of `dfq` that name them.
fn certificates(folder: &Path) -> Vec<String> {
    std::fs::create_dir_all(folder).unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let mut member = CertificateParams::new(Vec::new()).unwrap();
    member.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::from_params(&authority, &authority_key);
    let texts = [
        ("--tls-cert", member.signed_by(&key, &issuer).unwrap().pem()),
        ("--tls-key", key.serialize_pem()),
        ("--tls-ca", authority.self_signed(&authority_key).unwrap().pem()),
    ];
    let written = texts.into_iter().flat_map(|(option, text)| {
        let file = folder.join(option);
        std::fs::write(&file, text).unwrap();
        [option.to_owned(), file.to_str().unwrap().to_owned()]
    });
    written.collect()
}

/// Starts a cluster with these options; gives its port too.
fn cluster(options: &[&str]) -> (Process, String) {
    let port = free_port().to_string();
    let args = [
        &["cluster", "--attached", "--vcores", "1", "--port", &port],
        options,
    ]
    .concat();
    let process = Process::start(&args, &[]);
    process.wait_for("is ready");
    (process, port)
}

/// Runs the question in one process, and on the cluster with these options.
fn both_answers(folder: &Path, url: &str, options: &[&str]) -> [String; 2] {
    let table = write_parquet(folder, "t", &rows(5000, 3), 3);
    let create = format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
        table.display()
    );
    let common = ["sql", "--quiet", "--format", "csv", "-c", &create, "-c", QUESTION];
    let remote = [&common[..], &["--cluster", url], options].concat();
    [&common[..], &remote].map(|args| printed(&dfq(args)))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_know_the_token_is_served_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (
        token(folder.path(), "own", 'a'),
        token(folder.path(), "other", 'b'),
    );
    let (_cluster, port) = cluster(&["--token-file", &own]);
    let url = format!("df://127.0.0.1:{port}");
    let [local, remote] = both_answers(folder.path(), &url, &["--token-file", &own]);
    assert_eq!(local, remote);
    for options in [&[][..], &["--token-file", &other]] {
        let said = refused(&[&["sql", "--cluster", &url, "-c", "SELECT 1"], options].concat());
        assert!(said.contains("not authorised"), "{said}");
        let ports = [free_port(), free_port(), free_port()].map(|port| port.to_string());
        let executor = [&options_of_an_executor(&port, &ports), options].concat();
        let mut executor = Process::start(&executor, &[]);
        executor.wait_for("not authorised");
        assert_ne!(executor.end(), Some(0));
    }
    // A program that embeds a session.
    let identity = Identity::from_token(&"a".repeat(32)).unwrap();
    let ctx = connect_with_config(&url, with_identity(session_config(), &identity))
        .await
        .unwrap();
    register(&ctx, "t", &folder.path().join("t")).await;
    assert_eq!(query(&ctx, QUESTION).await.unwrap()[0].num_rows(), 1);
    strangers_are_refused(&url, &identity, &port).await;
}

/// The ports of two executors, and of their scheduler.
async fn ports(identity: &Identity, port: &str) -> Vec<String> {
    let members = http_client(Some(identity)).unwrap();
    let executors = members
        .get(format!("https://127.0.0.1:{port}/api/executors"))
        .send()
        .await
        .unwrap();
    let executors: serde_json::Value = serde_json::from_str(&executors.text().await.unwrap()).unwrap();
    let ports = executors
        .as_array()
        .unwrap()
        .iter()
        .map(|executor| executor["port"].to_string());
    let ports: Vec<String> = ports.chain([port.to_owned()]).collect();
    assert_eq!(ports.len(), 3, "{executors}");
    ports
}

/// Calls the ports of the scheduler and of each executor without any certificate, in the clear and over TLS.
async fn strangers_are_refused(url: &str, identity: &Identity, port: &str) {
    let ports = ports(identity, port).await;
    let stranger = reqwest::Client::builder()
        .danger_accept_invalid_certs(true)
        .build()
        .unwrap();
    for port in &ports {
        for address in [
            format!("http://127.0.0.1:{port}"),
            format!("https://127.0.0.1:{port}"),
        ] {
            let told = stranger.get(format!("{address}/api/jobs")).send().await.unwrap();
            assert_eq!(told.status().as_u16(), 401, "{address}");
            assert!(told.text().await.unwrap().starts_with("not authorised"));
        }
        let mut flight = arrow_flight::FlightClient::new(plain(port).await);
        let refused = flight.do_get(arrow_flight::Ticket::new("x")).await.err().unwrap();
        assert!(refused.to_string().contains("not authorised"), "{refused}");
    }
    let mut scheduler = SchedulerGrpcClient::new(plain(port).await);
    let refused = scheduler
        .get_job_status(GetJobStatusParams { job_id: "x".into() })
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{url}: {refused}");
}

/// A connection in the clear.
async fn plain(port: &str) -> tonic::transport::Channel {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{port}"));
    endpoint.unwrap().connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_one_authority_know_each_other_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let own = certificates(&folder.path().join("own"));
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let (_cluster, port) = cluster(&own);
    let url = format!("df://127.0.0.1:{port}");
    let [local, remote] = both_answers(folder.path(), &url, &own);
    assert_eq!(local, remote);
    let other = certificates(&folder.path().join("other"));
    let other: Vec<&str> = other.iter().map(String::as_str).collect();
    // Whoever knows the authority's certificate, which is no secret, has none of its own by that.
    let mixed = [&other[..4], &own[4..]].concat();
    let token = token(folder.path(), "token", 'a');
    for (options, why) in [
        (&[][..], "not authorised"),
        (&other, "not authorised"),
        (&["--token-file", &token], "not authorised"),
        (&mixed, "none of the authority's"),
        (&own[..2], "--tls-key"),
        (
            &[&own[..], &["--token-file", &token]].concat(),
            "cannot be used with",
        ),
    ] {
        let said = refused(&[&["sql", "--cluster", &url, "-c", "SELECT 1"], options].concat());
        assert!(said.contains(why), "{options:?}: {said}");
    }
    // Executors ask for a certificate too, and refuse one that another authority has signed.
    let texts = [own[1], own[3], own[5], other[1], other[3]].map(|file| std::fs::read(file).unwrap());
    let [certificate, key, authority, other_certificate, other_key] = &texts;
    let identity = Identity::from_pem(certificate, key, authority).unwrap();
    let told = |certificate: &[u8], key: &[u8], port: &str| {
        let member = reqwest::Identity::from_pem(&[certificate, key].concat()).unwrap();
        let client = reqwest::Client::builder().danger_accept_invalid_certs(true);
        let client = client.identity(member).build().unwrap();
        client.get(format!("https://127.0.0.1:{port}/api/jobs")).send()
    };
    for port in ports(&identity, &port).await {
        // Ports of executors serve no such page, but tell members so.
        let member = told(certificate, key, &port).await.unwrap();
        assert_ne!(member.status().as_u16(), 401, "{port}");
        if let Ok(stranger) = told(other_certificate, other_key, &port).await {
            assert_eq!(stranger.status().as_u16(), 401, "{port}");
        }
    }
}

#[test]
fn a_cluster_reaches_only_the_stores_that_it_allows() {
    let folder = tempfile::tempdir().unwrap();
    let (_cluster, port) = cluster(&["--executors", "1", "--allow-store", "https://allowed.example"]);
    let url = format!("df://127.0.0.1:{port}");
    let table = write_parquet(folder.path(), "t", &rows(5000, 3), 3);
    // The client of this process may read the file, and plans; the cluster may not.
    let create = format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
        table.display()
    );
    let said = refused(&["sql", "--cluster", &url, "-c", &create, "-c", QUESTION]);
    assert!(
        said.contains("in no store that this machine allows: https://allowed.example")
            && said.contains("--allow-store"),
        "{said}"
    );
    let (_cluster, port) = cluster(&["--executors", "1", "--allow-store", "file:///"]);
    let url = format!("df://127.0.0.1:{port}");
    let [local, remote] = both_answers(folder.path(), &url, &[]);
    assert_eq!(local, remote);
    let metadata = "CREATE EXTERNAL TABLE m STORED AS CSV LOCATION 'http://169.254.169.254/latest/meta-data'";
    let said = refused(&[
        "sql",
        "--cluster",
        &url,
        "-c",
        metadata,
        "-c",
        "SELECT count(*) FROM m",
    ]);
    assert!(
        said.contains("169.254.169.254") && said.contains("is not reached from here"),
        "{said}"
    );
}

#[test]
fn other_machines_reach_processes_that_ask_who_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let own = token(folder.path(), "own", 'a');
    let port = free_port().to_string();
    let args = [
        "scheduler",
        "--bind-host",
        "0.0.0.0",
        "--bind-port",
        &port,
        "--token-file",
        &own,
    ];
    for command in ["scheduler", "executor"] {
        let said = refused(&[command, "--bind-host", "0.0.0.0"]);
        assert!(
            said.contains("--token-file") && said.contains("--insecure"),
            "{said}"
        );
    }
    let said = refused(&[&args[..], &["--scheduler-policy", "push-staged"]].concat());
    assert!(said.contains("pull-staged"), "{said}");
    let _scheduler = Process::start(&args, &[]);
    let url = format!("df://127.0.0.1:{port}");
    let started = std::time::Instant::now();
    while started.elapsed() < crate::support::machines::PATIENCE {
        let said = refused(&["sql", "--cluster", &url, "--token-file", &own, "-c", "SELECT 1"]);
        if said.contains("has no executor yet") {
            let stranger = refused(&["sql", "--cluster", &url, "-c", "SELECT 1"]);
            assert!(stranger.contains("not authorised"), "{stranger}");
            return;
        }
    }
    panic!("the scheduler does not answer");
}

#[test]
fn credentials_that_are_none_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let short = folder.path().join("short");
    std::fs::write(&short, "secret\n").unwrap();
    let short = short.to_str().unwrap();
    for command in ["cluster", "scheduler", "executor"] {
        let said = refused(&[command, "--token-file", short]);
        assert!(said.contains(short) && said.contains("at least 32"), "{said}");
        let said = refused(&[command, "--token-file", "/no/such/file"]);
        assert!(said.contains("--token-file '/no/such/file'"), "{said}");
    }
    let said = refused(&["sql", "--token-file", short, "-c", "SELECT 1"]);
    assert!(said.contains("--cluster"), "{said}");
}

/// Milliseconds of work for each of many rows: minutes in all.
#[test]
fn a_cancelled_statement_leaves_the_executors_that_fetch_their_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let own = token(folder.path(), "own", 'a');
    let (_cluster, port) = cluster(&["--executors", "1", "--token-file", &own]);
    let url = format!("df://127.0.0.1:{port}");
    let table = write_parquet(folder.path(), "t", &rows(40_000, 3), 2);
    let create = format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
        table.display()
    );
    let long = "SELECT max(levenshtein(repeat(chr(65 + id % 26), 200), repeat('b', 200))) FROM t";
    let common = [
        "sql",
        "--quiet",
        "--format",
        "csv",
        "--cluster",
        &url,
        "--token-file",
        &own,
        "-c",
        &create,
    ];
    // What is cancelled ends between two batches.
    let small = "SET datafusion.execution.batch_size = 1";
    let said = refused(&[&common[..], &["--timeout", "3", "-c", small, "-c", long]].concat());
    assert!(said.contains("the statement was cancelled after 3s"), "{said}");
    let next = dfq(&[&common[..], &["--timeout", "40", "-c", "SELECT sum(id) FROM t"]].concat());
    assert!(printed(&next).ends_with("799980000\n"));
}
