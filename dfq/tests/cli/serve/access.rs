//! Who is let in, and what clients may not do.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::{failure as usage, folder};

use super::server::{AT_ONCE, Server, connect, failure, text, told};

fn write_passwords(folder: &Path) {
    let file = folder.join("passwords");
    std::fs::write(&file, "ann:secret\nbob:a:b\n").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
}

/// A certificate for 127.0.0.1 by an authority of its own.
fn write_certificates(folder: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".to_string(), "localhost".to_string()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    std::fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

fn guarded(options: &[&str]) -> Server {
    let folder = folder();
    write_passwords(folder.path());
    write_certificates(folder.path());
    std::fs::write(
        folder.path().join("setup.sql"),
        "CREATE TABLE t AS SELECT 1 AS x;",
    )
    .unwrap();
    Server::in_folder(folder, &[&["--password-file", "passwords"], options].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_asked_for() {
    let server = guarded(&[]);
    for (user, password, is_right) in [
        ("ann", Some("secret"), true),
        ("bob", Some("a:b"), true),
        ("ann", Some("wrong"), false),
        ("ann", Some("a:b"), false),
        ("eve", Some("secret"), false),
    ] {
        let mut config = server.config();
        config.user(user);
        if let Some(password) = password {
            config.password(password);
        }
        match (connect(&config).await, is_right) {
            (Ok(client), true) => assert_eq!(text(&client, "SELECT x FROM t").await, "1"),
            (Err(error), false) => {
                let expected = format!("28P01 password authentication failed for user \"{user}\"");
                assert_eq!(told(&error), expected);
            }
            (result, _) => panic!("{user}: {result:?}"),
        }
    }
    server
        .wait_for("28P01 password authentication failed for user \"eve\"")
        .await;
    assert_eq!(server.metric("dfq_logins_failed_total").await, 3.0);
    server.settles("dfq_connections", 0.0, AT_ONCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tls_nobody_is_let_in_where_there_is_a_certificate() {
    let server = guarded(&["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    let mut config = server.config();
    config
        .password("secret")
        .ssl_mode(tokio_postgres::config::SslMode::Disable);
    let error = connect(&config).await.unwrap_err();
    assert!(
        told(&error).starts_with("28000 this server takes connections with TLS only"),
        "{}",
        told(&error)
    );
    server
        .wait_for("refused: 28000 this server takes connections with TLS only")
        .await;
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs psql")]
fn tls_is_what_psql_expects() {
    if Command::new("psql").arg("--version").output().is_err() {
        eprintln!("skipped: there is no psql");
        return;
    }
    let server = guarded(&["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    let ask = |options: &str, password: &str| {
        let place = format!(
            "host=127.0.0.1 port={} user=ann dbname=datafusion {options}",
            server.address.port()
        );
        let mut psql = Command::new("psql");
        psql.current_dir(server.path()).env("PGPASSWORD", password);
        psql.args(["-XAtc", "SELECT x FROM t", &place]).output().unwrap()
    };
    for options in [
        "sslmode=require",
        "sslmode=verify-full sslrootcert=cert.pem",
        "sslmode=require channel_binding=require",
    ] {
        let output = ask(options, "secret");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "1\n",
            "{options}: {output:?}"
        );
    }
    let output = ask("sslmode=require", "wrong");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("password authentication failed for user \"ann\""),
        "{said}"
    );
}

#[test]
fn other_machines_and_open_files_are_refused_at_the_start() {
    let folder = folder();
    write_passwords(folder.path());
    let said = usage(folder.path(), &["serve", "--bind-host", "0.0.0.0"], 1);
    assert!(
        said.contains("give it --password-file, --tls-cert and --tls-key too"),
        "{said}"
    );
    let file = folder.path().join("passwords");
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let said = usage(folder.path(), &["serve", "--password-file", "passwords"], 1);
    assert!(
        said.contains("others than its owner may use it (mode 644)"),
        "{said}"
    );
    let said = usage(folder.path(), &["serve", "--init", "nothing.sql"], 1);
    assert!(said.contains("cannot read the file 'nothing.sql'"), "{said}");
    let said = usage(folder.path(), &["serve", "nothing.parquet"], 1);
    assert!(said.contains("file 'nothing.parquet' not found"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_read_tables_and_nothing_else() {
    let server = Server::start(&[]);
    std::fs::write(server.path().join("secret.csv"), "x\n1\n").unwrap();
    let secret = server.path().join("secret.csv");
    let secret = secret.display();
    let client = server.connect().await;
    for sql in [
        "CREATE TABLE u AS SELECT 1".to_string(),
        "DROP TABLE t".to_string(),
        "INSERT INTO t SELECT * FROM t".to_string(),
        "CREATE VIEW v AS SELECT 1".to_string(),
        format!("CREATE EXTERNAL TABLE u STORED AS CSV LOCATION '{secret}'"),
        format!("COPY t TO '{}/out.csv'", server.path().display()),
        "EXPLAIN ANALYZE INSERT INTO t SELECT * FROM t".to_string(),
        "PREPARE p AS INSERT INTO t SELECT * FROM t".to_string(),
        "PIN TABLE t (x)".to_string(),
    ] {
        let told = failure(&client, &sql).await;
        assert!(told.starts_with("25006 cannot execute"), "{sql}: {told}");
        assert!(told.contains("--allow-write"), "{sql}: {told}");
    }
    assert!(!server.path().join("out.csv").exists());
    for sql in [
        format!("SELECT * FROM '{secret}'"),
        format!("SELECT * FROM \"{secret}\""),
        "SELECT * FROM '/etc/passwd'".to_string(),
        "SELECT * FROM 'https://127.0.0.1:1/x.parquet'".to_string(),
        format!("DESCRIBE '{secret}'"),
        format!("EXPLAIN SELECT * FROM '{secret}'"),
        format!("SELECT (SELECT max(x) FROM '{secret}')"),
        format!("PREPARE q AS SELECT * FROM '{secret}'"),
    ] {
        let told = failure(&client, &sql).await;
        assert!(told.starts_with("42P01"), "{sql}: {told}");
    }
    for sql in [
        "SET datafusion.runtime.memory_limit = '1T'",
        "RESET datafusion.runtime.temp_directory",
        "SET quantiles.cuda_memory_limit = '1GB'",
        "SET datafusion.sql_parser.recursion_limit = 1000000",
    ] {
        let told = failure(&client, sql).await;
        assert!(told.starts_with("42501"), "{sql}: {told}");
    }
    assert_eq!(text(&client, "SELECT count(*) FROM t").await, "10000");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_write_where_they_are_let() {
    let server = Server::start(&["--allow-write"]);
    let (one, other) = (server.connect().await, server.connect().await);
    let file = server.path().join("out.csv");
    let file = file.display();
    text(&one, "CREATE TABLE u AS SELECT 1 AS y").await;
    let count = one
        .execute("INSERT INTO u VALUES ($1), (3)", &[&2_i64])
        .await
        .unwrap();
    assert_eq!(count, 2);
    assert_eq!(text(&other, "SELECT sum(y) FROM u").await, "6");
    text(&other, &format!("COPY u TO '{file}'")).await;
    assert_eq!(text(&one, &format!("SELECT count(*) FROM '{file}'")).await, "3");
    assert_eq!(text(&one, "SHOW default_transaction_read_only").await, "off");
    assert!(
        failure(&one, "SET datafusion.runtime.memory_limit = '1T'")
            .await
            .starts_with("42501")
    );
}
