//! Many clients at once.

use std::sync::Arc;
use std::time::Instant;

use tokio_postgres::Client;

use super::server::{Server, text};

/// Statements, and their answers for a number from 0 to 9.
fn statements(g: i64) -> [(String, String); 6] {
    let rows: Vec<i64> = (1..=10_000).filter(|x| x % 10 == g).collect();
    let half = (rows[499] + rows[500]) as f64 / 2.0;
    [
        (
            format!("SELECT median(x) FROM t WHERE g = {g}"),
            format!("{half}"),
        ),
        (
            format!("SELECT exact_quantiles(x, 0.5) FROM t WHERE g = {g}"),
            rows[499].to_string(),
        ),
        (
            format!("SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY f) FROM t WHERE g = {g}"),
            format!("{}", half / 2.0),
        ),
        (
            format!("SELECT count(*), max(x) FROM t WHERE g = {g}"),
            format!("1000|{}", rows[999]),
        ),
        (
            format!("SELECT x FROM t WHERE g = {g} ORDER BY x LIMIT 1"),
            rows[0].to_string(),
        ),
        ("SHOW server_version".to_string(), "16.6".to_string()),
    ]
}

/// Runs statements one after the other and gives the time of each in seconds.
async fn run(client: Client, first: usize, count: usize) -> Vec<f64> {
    let prepared = client
        .prepare("SELECT exact_quantiles(x, 0.5) FROM t WHERE g = $1")
        .await
        .unwrap();
    let mut seconds = Vec::new();
    for turn in first..first + count {
        let g = (turn % 10) as i64;
        let started = Instant::now();
        if turn % 7 == 6 {
            let row = client.query_one(&prepared, &[&g]).await.unwrap();
            assert_eq!(row.get::<_, i64>(0).to_string(), statements(g)[1].1);
        } else {
            let (sql, expected) = &statements(g)[turn % 7 % 6];
            assert_eq!(&text(&client, sql).await, expected, "{sql}");
        }
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds
}

async fn load(connections: usize, count: usize) {
    let server = Arc::new(Server::start(&["--max-waiting", "1000", "--memory-limit", "1g"]));
    let tasks = (0..connections).map(|place| {
        let server = Arc::clone(&server);
        tokio::spawn(async move { run(server.connect().await, place, count).await })
    });
    let started = Instant::now();
    let mut seconds = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        seconds.extend(task.await.unwrap());
    }
    let took = started.elapsed().as_secs_f64();
    seconds.sort_by(f64::total_cmp);
    let of = |share: f64| seconds[((seconds.len() - 1) as f64 * share) as usize] * 1e3;
    println!(
        "{connections} connections x {count} statements, all right, in {took:.1} s: p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
        of(0.5),
        of(0.99),
        of(1.0)
    );
    server.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_get_right_answers() {
    load(16, 14).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, of a program that is built for release"]
async fn sixty_four_clients_with_a_thousand_statements_each() {
    load(64, 1000).await;
}
