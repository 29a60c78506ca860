//! What ends early: cancelled statements, statements that take too long, clients that vanish, servers that stop.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::NoTls;

use super::server::{AT_ONCE, PATIENCE, Server, connect, failure, text, told};

/// A statement that takes far longer than any test, and holds memory.
const LONG: &str = "SELECT exact_quantiles(a.value % 1000003 + b.value, 0.5) FROM generate_series(1, 20000) a CROSS JOIN generate_series(1, 100000) b";

/// Rows without end, for a client that reads slowly or not at all.
const MANY: &str = "SELECT a.value, concat('row ', b.value) FROM generate_series(1, 100000) a CROSS JOIN generate_series(1, 100000) b";

/// A startup message, and a simple query, as bytes.
fn startup() -> Vec<u8> {
    let body = b"\0\x03\0\0user\0ann\0database\0datafusion\0\0";
    [&(body.len() as u32 + 4).to_be_bytes()[..], body].concat()
}

fn query(sql: &str) -> Vec<u8> {
    let length = (sql.len() as u32 + 5).to_be_bytes();
    [b"Q", &length[..], sql.as_bytes(), b"\0"].concat()
}

/// A client that sent a statement and reads nothing.
async fn silent(server: &Server, sql: &str) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket.write_all(&startup()).await.unwrap();
    socket.write_all(&query(sql)).await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_statements_end() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    for sql in [LONG, MANY] {
        let cancel = client.cancel_token();
        let started = Instant::now();
        let (told, ()) = tokio::join!(failure(&client, sql), async {
            server.settles("dfq_statements_running", 1.0, PATIENCE).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            cancel.cancel_query(NoTls).await.unwrap();
        });
        assert_eq!(told, "57014 canceling statement due to user request");
        assert!(started.elapsed() < Duration::from_secs(10));
        server.holds_nothing().await;
    }
    assert_eq!(
        server.metric("dfq_statements_total{outcome=\"cancelled\"}").await,
        2.0
    );
    assert_eq!(text(&client, "SELECT 1").await, "1");
    // Who does not know the key cancels nothing.
    let mut stranger = TcpStream::connect(server.address).await.unwrap();
    stranger
        .write_all(b"\0\0\0\x10\x04\xd2\x16\x2e\0\x01\x86\xa0\0\0\0\0")
        .await
        .unwrap();
    let mut answer = Vec::new();
    stranger.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"");
}

/// A statement whose planning takes long.
fn planned_long() -> String {
    let calls = (0..300).map(|i| format!("median(x + {i}) OVER (ORDER BY x + {i})"));
    format!("SELECT {} FROM t", calls.collect::<Vec<_>>().join(", "))
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_that_are_planned_end() {
    let mut server = Server::start(&["--stop-seconds", "1"]);
    let client = server.connect().await;
    let cancel = client.cancel_token();
    let sql = planned_long();
    let (told, ended) = tokio::join!(failure(&client, &sql), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let started = Instant::now();
        cancel.cancel_query(NoTls).await.unwrap();
        started
    });
    assert_eq!(told, "57014 canceling statement due to user request");
    assert!(ended.elapsed() < AT_ONCE, "{:?}", ended.elapsed());
    server.holds_nothing().await;
    // Others go on; the connection's next statement waits until the plan is made, and can be cancelled too.
    let other = server.connect().await;
    assert_eq!(text(&other, "SELECT count(*) FROM t").await, "10000");
    text(&other, "SET statement_timeout = '200ms'").await;
    let told = failure(&other, &sql).await;
    assert!(
        told.starts_with("57014 canceling statement due to statement timeout"),
        "{told}"
    );
    let told = failure(&other, "SELECT 1").await;
    assert!(
        told.starts_with("57014 canceling statement due to statement timeout"),
        "{told}"
    );
    // A server that stops does not wait for plans.
    server.signal("TERM");
    let started = Instant::now();
    server.ended().await;
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_that_take_too_long_end() {
    let server = Server::start(&["--statement-timeout-seconds", "1"]);
    let client = server.connect().await;
    let told_of = async |timeout: &str| {
        text(&client, &format!("SET statement_timeout = '{timeout}'")).await;
        failure(&client, LONG).await
    };
    assert_eq!(
        told_of("200ms").await,
        "57014 canceling statement due to statement timeout, after 200ms"
    );
    // The server's limit stays.
    assert_eq!(
        told_of("1h").await,
        "57014 canceling statement due to statement timeout, after 1s"
    );
    assert_eq!(
        told_of("0").await,
        "57014 canceling statement due to statement timeout, after 1s"
    );
    server.holds_nothing().await;
    assert_eq!(
        server.metric("dfq_statements_total{outcome=\"timeout\"}").await,
        3.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_vanish_hold_nothing() {
    let server = Server::start(&[]);
    for sql in [LONG, MANY] {
        let socket = silent(&server, sql).await;
        server.settles("dfq_statements_running", 1.0, PATIENCE).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(socket);
        server.holds_nothing().await;
        server.settles("dfq_connections", 0.0, AT_ONCE).await;
    }
    assert_eq!(server.metric("dfq_statements_total{outcome=\"gone\"}").await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_hold_little_and_others_go_on() {
    let server = Server::start(&["--max-running", "2"]);
    let mut slow = silent(&server, MANY).await;
    server.settles("dfq_statements_running", 1.0, PATIENCE).await;
    // Rows stop where nobody reads them.
    let mut sent = 0.0;
    let started = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = server.metric("dfq_rows_sent_total").await;
        if now == sent && now > 0.0 {
            break;
        }
        sent = now;
        assert!(started.elapsed() < PATIENCE, "{sent} rows");
    }
    assert!(sent < 2e6, "{sent}");
    let client = server.connect().await;
    assert_eq!(text(&client, "SELECT median(x) FROM t").await, "5000.5");
    // They go on where it reads on.
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..20 {
        slow.read_exact(&mut bytes).await.unwrap();
    }
    assert!(server.metric("dfq_rows_sent_total").await > sent);
    drop(slow);
    server.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_statements_have_limits() {
    let server = Server::start(&[
        "--max-connections",
        "4",
        "--max-running",
        "1",
        "--max-waiting",
        "1",
    ]);
    let clients = [
        server.connect().await,
        server.connect().await,
        server.connect().await,
        server.connect().await,
    ];
    let error = connect(&server.config()).await.unwrap_err();
    assert_eq!(told(&error), "53300 sorry, too many clients already");
    server.wait_for("53300 sorry, too many clients already").await;
    let [running, waiting, refused, last] = &clients;
    let cancels = [running.cancel_token(), waiting.cancel_token()];
    let ends = async |sql| match running.simple_query(sql).await {
        Ok(_) => "ended".to_string(),
        Err(error) => told(&error),
    };
    let (first, second, ()) = tokio::join!(ends(LONG), failure(waiting, LONG), async {
        server.settles("dfq_statements_running", 1.0, PATIENCE).await;
        server.settles("dfq_statements_waiting", 1.0, PATIENCE).await;
        let busy = failure(refused, "SELECT x FROM t").await;
        assert!(
            busy.starts_with("53000 1 statements run and 1 wait for their turn"),
            "{busy}"
        );
        // What needs no turn runs.
        assert_eq!(text(last, "SHOW server_version").await, "16.6");
        for cancel in cancels {
            cancel.cancel_query(NoTls).await.unwrap();
        }
    });
    let expected = "57014 canceling statement due to user request";
    assert_eq!((first.as_str(), second.as_str()), (expected, expected));
    server.holds_nothing().await;
    assert_eq!(
        server.metric("dfq_statements_total{outcome=\"refused\"}").await,
        1.0
    );
    drop(clients);
    server.settles("dfq_connections", 0.0, AT_ONCE).await;
    server.connect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_and_deep_statements_are_refused() {
    let mut server = Server::start(&[]);
    let client = server.connect().await;
    for (sql, expected) in [
        (
            format!("SELECT {}1", "1 + ".repeat(500_000)),
            "54001 the statement has",
        ),
        (
            format!("SELECT {}1", "SELECT 1 UNION ALL ".repeat(100_000)),
            "54001 the statement has",
        ),
        (
            format!("SELECT {}1{}", "(".repeat(100_000), ")".repeat(100_000)),
            "54001 the statement has 100001",
        ),
        (
            format!("SELECT {}1{}", "(".repeat(1_900), ")".repeat(1_900)),
            "42601",
        ),
        (format!("SELECT {}1", "- ".repeat(1_900)), "42601"),
        (
            format!("SELECT 1{}", "::INT".repeat(400_000)),
            "54001 the statement has",
        ),
    ] {
        let told = failure(&client, &sql).await;
        assert!(told.starts_with(expected), "{told}");
    }
    // As deep as is allowed.
    let sum = format!("SELECT {}1", "1 + ".repeat(1_900));
    assert_eq!(text(&client, &sum).await, "1901");
    let union = format!(
        "SELECT count(*) FROM ({}SELECT 1)",
        "SELECT 1 UNION ALL ".repeat(600)
    );
    assert_eq!(text(&client, &union).await, "601");
    let list = (1..=100_000).map(|x| x.to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(
        text(&client, &format!("SELECT count(*) FROM t WHERE x IN ({list})")).await,
        "10000"
    );
    let large = format!("SELECT '{}'", "x".repeat(10 << 20));
    let told = failure(&client, &large).await;
    assert!(told.starts_with("54000 a message of 10485"), "{told}");
    server.wait_for("54000 a message of 10485").await;
    server.holds_nothing().await;
    assert!(server.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_statements_end() {
    let mut server = Server::start(&[]);
    let (busy, idle) = (server.connect().await, server.connect().await);
    let statement = "SELECT count(*) FROM generate_series(1, 30000000) a WHERE a.value % 7 = 0";
    let (answer, ()) = tokio::join!(text(&busy, statement), async {
        server.settles("dfq_statements_running", 1.0, PATIENCE).await;
        server.signal("TERM");
        server.wait_for("stopping: 2 connections").await;
        // Nobody is let in any more, and who waits is told.
        assert!(connect(&server.config()).await.is_err());
        while !idle.is_closed() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert_eq!(answer, "4285714");
    assert_eq!(server.ended().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_ever() {
    let mut server = Server::start(&["--stop-seconds", "0.5"]);
    let client = server.connect().await;
    let slow = silent(&server, MANY).await;
    let (told, ()) = tokio::join!(failure(&client, LONG), async {
        server.settles("dfq_statements_running", 2.0, PATIENCE).await;
        server.signal("INT");
    });
    assert!(
        told.contains("the server is stopping") || told.contains("closed"),
        "{told}"
    );
    assert_eq!(server.ended().await.code(), Some(130));
    drop(slow);
}
