//! The answers of a cluster are those of one process.

use std::path::Path;
use std::time::Duration;

use datafusion::common::Result;
use datafusion_quantiles::config::StrategyName;
use sqllogictest::Runner;

use crate::support::machines::{ADAPTIVE, SHARED, query, register, session, watched, write_parquet};
use crate::support::tables::rows;
use quantiles_testing::scripts::{Engine, register_tables, scripts, write_tables};
use quantiles_testing::texts;

async fn engine(folder: &Path, partitions: usize, adaptive: bool, strategy: StrategyName) -> Result<Engine> {
    let ctx = session(&SHARED.url, partitions, adaptive).await;
    register_tables(&ctx, folder).await?;
    ctx.sql(&format!("SET quantiles.strategy = '{strategy}'"))
        .await?
        .collect()
        .await?;
    Ok(Engine(ctx))
}

/// Scripts skip what a cluster has no way to run: `skipif cluster`, each with the reason beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_script_runs_on_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    write_tables(folder.path());
    for script in scripts() {
        // Side by side, as most of the time is spent waiting for the scheduler.
        let runs = [(1, true), (1, false), (4, true), (4, false)].map(async |(partitions, adaptive)| {
            let mut runner = Runner::new(|| engine(folder.path(), partitions, adaptive, StrategyName::Auto));
            runner.add_label("cluster");
            let done = tokio::time::timeout(Duration::from_secs(300), runner.run_file_async(&script)).await;
            done.unwrap_or_else(|_| panic!("{}: no end", script.display()))
                .unwrap_or_else(|error| panic!("{partitions} partitions, adaptive {adaptive}: {error}"));
        });
        futures::future::join_all(runs).await;
    }
}

const STATEMENTS: [&str; 27] = [
    "SELECT exact_quantiles(x, 0.5) FROM t",
    "SELECT exact_quantiles(x, [0, 0.01, 0.5, 0.99, 1]), exact_quantiles(f, [0.5, 0.25], 'linear'), \
     exact_quantiles(g, 0.3), exact_quantiles(s, 0.9), exact_quantiles(u, [0.1, 0.9], 'higher'), \
     exact_quantiles(d, 0.5, 'midpoint'), exact_quantiles(b, 0.7), exact_quantiles(day, 0.5), \
     exact_quantiles(at, [0.5]) FROM t",
    "SELECT exact_quantiles(0.2) WITHIN GROUP (ORDER BY f DESC), percentile_disc(0.2) WITHIN GROUP (ORDER BY c) FROM t",
    "SELECT exact_quantiles(x, 0.5) FILTER (WHERE id % 3 = 0), exact_quantiles(x, 0.5) FILTER (WHERE false) FROM t",
    "SELECT count(*), exact_quantiles(x, 0.5), max(f), exact_quantiles(few, [0.1, 0.9]), avg(s) FROM t WHERE x > 0",
    "SELECT exact_quantiles(DISTINCT few, [0.5, 0.1]), exact_quantiles(DISTINCT f, 0.5), exact_quantiles(few, 0.5) FROM t",
    "SELECT exact_quantiles(name, [0.1, 0.5]), exact_quantiles(x, 0.5) FROM t",
    "SELECT name, exact_quantiles(x, [0.1, 0.5]), count(*), exact_quantiles(f, 0.5) FROM t GROUP BY name ORDER BY name",
    "SELECT few, exact_quantiles(DISTINCT x, 0.5), exact_quantiles(name, 0.5) FROM t GROUP BY few ORDER BY few NULLS LAST LIMIT 20",
    "SELECT id % 1000 AS k, exact_quantiles(x, 0.5) FROM t GROUP BY id % 1000 ORDER BY k",
    "SELECT exact_quantiles(x, 0.5) FROM (SELECT x FROM t ORDER BY id LIMIT 1000)",
    "SELECT exact_quantiles(a.x, 0.5) FROM t AS a JOIN t AS b ON a.id = b.id + 1 WHERE b.few > 0",
    "SELECT exact_quantiles(m, 0.5) FROM (SELECT name, exact_quantiles(x, 0.5) AS m FROM t GROUP BY name)",
    "SELECT count(*) FROM t WHERE x > (SELECT exact_quantiles(x, 0.9) FROM t)",
    "SELECT exact_quantiles(x, 0.5) FROM (SELECT x FROM t UNION ALL SELECT c FROM t)",
    "SELECT id, exact_quantiles(x, 0.5) OVER (ORDER BY id ROWS BETWEEN 50 PRECEDING AND CURRENT ROW) AS m FROM t \
     ORDER BY id LIMIT 100",
    "SELECT approx_percentile_gk(x, [0, 1], 100), gk_quantile(gk_sketch(f, 1000), [0, 1]) FROM t",
    "SELECT median(x), percentile_cont(0.25) WITHIN GROUP (ORDER BY f) FROM t",
    "SELECT name, median(f) FROM t GROUP BY name ORDER BY name",
    "SELECT s, f FROM t ORDER BY f DESC, s LIMIT 100",
    "SELECT id, x + s AS y FROM t WHERE few > 0 ORDER BY x NULLS FIRST, id DESC OFFSET 5 LIMIT 1000",
    "SELECT name, sum(id) FROM (SELECT name, id FROM t ORDER BY s, id LIMIT 7000) GROUP BY name ORDER BY name",
    "SELECT id, name, f, r FROM (SELECT *, row_number() OVER (PARTITION BY name ORDER BY f DESC, id) AS r FROM t) \
     WHERE r <= 3 ORDER BY name, r",
    "SELECT id, few, r FROM (SELECT *, rank() OVER (PARTITION BY few ORDER BY s) AS r FROM t) WHERE r < 4 \
     ORDER BY few, r, id",
    "SELECT id % 7777 AS k, id, r FROM (SELECT *, row_number() OVER (PARTITION BY id % 7777 ORDER BY x, id) AS r FROM t) \
     WHERE r <= 2 AND id > 3 ORDER BY id",
    "SELECT DISTINCT ON (name) name, id, day FROM t ORDER BY name, day DESC, id",
    "SELECT name, topk_by(id, f, 5), max_by(id, x) FROM t GROUP BY name ORDER BY name",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let few = [(4, false), (16, true)].as_slice();
    let many = [(1, true), (2, false), (16, true), (64, true)].as_slice();
    for (count, files, planned) in [(0, 1, few), (1, 1, few), (20_000, 1, few), (50_000, 17, many)] {
        let table = write_parquet(folder.path(), &format!("t{count}"), &rows(count, 42), files);
        let local = quantiles_testing::session(4);
        register(&local, "t", &table).await;
        let mut expected = Vec::new();
        for sql in STATEMENTS {
            expected.push(texts(&query(&local, sql).await.unwrap()));
        }
        for &(partitions, adaptive) in planned {
            let ctx = session(&SHARED.url, partitions, adaptive).await;
            register(&ctx, "t", &table).await;
            for (sql, expected) in STATEMENTS.iter().zip(&expected) {
                let found = watched(&SHARED.url, &ctx, sql).await.unwrap_or_else(|error| {
                    panic!("{sql}: {error} ({count} rows, {partitions} partitions, adaptive {adaptive})")
                });
                assert_eq!(
                    &texts(&found),
                    expected,
                    "{sql} of {count} rows in {files} files, {partitions} partitions, adaptive {adaptive}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(30_000, 8), 16);
    let local = quantiles_testing::session(2);
    register(&local, "t", &table).await;
    for adaptive in ADAPTIVE {
        let ctx = session(&SHARED.url, 16, adaptive).await;
        register(&ctx, "t", &table).await;
        for strategy in StrategyName::ALL {
            query(&ctx, &format!("SET quantiles.strategy = '{strategy}'"))
                .await
                .unwrap();
            for sql in &STATEMENTS[..5] {
                let expected = texts(&query(&local, sql).await.unwrap());
                let found = texts(&watched(&SHARED.url, &ctx, sql).await.unwrap());
                assert_eq!(found, expected, "{strategy}, adaptive {adaptive}: {sql}");
            }
        }
    }
}

/// With groups: in stages by name, the last one with more groups than those have brackets for.
const GROUPED: [&str; 5] = [
    "SELECT name, exact_quantiles(x, 0.5) FROM t WHERE id < 0 GROUP BY name",
    "SELECT name, exact_quantiles(x, [0.1, 0.5]), exact_quantiles(f, 0.5, 'linear') FROM t GROUP BY name ORDER BY name",
    "SELECT id % 1000 AS k, b, exact_quantiles(x, 0.5), exact_quantiles(d, [0, 1]) FILTER (WHERE few > 0) FROM t \
     GROUP BY id % 1000, b HAVING exact_quantiles(x, 0.5) > 0 ORDER BY k, b",
    "SELECT name, median(f), percentile_cont(0.9) WITHIN GROUP (ORDER BY x) FROM t GROUP BY name ORDER BY name",
    "SELECT count(*), sum(k), exact_quantiles(m, [0.1, 0.9]) FROM \
     (SELECT id AS k, exact_quantiles(c, 0.5) AS m FROM t GROUP BY id)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_in_stages_are_those_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(90_000, 21), 16);
    let local = quantiles_testing::session(4);
    register(&local, "t", &table).await;
    let replace = "SET quantiles.replace_builtins = true";
    query(&local, replace).await.unwrap();
    for adaptive in ADAPTIVE {
        for partitions in [1, 16] {
            let ctx = session(&SHARED.url, partitions, adaptive).await;
            register(&ctx, "t", &table).await;
            query(&ctx, replace).await.unwrap();
            query(&ctx, "SET quantiles.strategy = 'gk_select'").await.unwrap();
            for sql in GROUPED {
                let plan = texts(&query(&ctx, &format!("EXPLAIN {sql}")).await.unwrap()).join("\n");
                assert!(plan.contains("GroupStageExec: extract"), "{sql}\n{plan}");
                let expected = texts(&query(&local, sql).await.unwrap());
                let found = watched(&SHARED.url, &ctx, sql).await.unwrap_or_else(|error| {
                    panic!("{sql}: {error} ({partitions} partitions, adaptive {adaptive})")
                });
                assert_eq!(
                    texts(&found),
                    expected,
                    "{sql}, {partitions} partitions, adaptive {adaptive}"
                );
            }
        }
    }
}

/// Over stages that give no rows: with adaptive planning Ballista puts an empty relation in their place.
const OVER_NOTHING: [&str; 7] = [
    "SELECT exact_quantiles(s, [0.1, 0.9]), median(s) FROM (SELECT name, sum(id) AS s FROM t WHERE id < 0 GROUP BY name)",
    "SELECT m, exact_quantiles(s, 0.5) FROM \
     (SELECT name, sum(id) AS s, min(id) AS m FROM t WHERE id < 0 GROUP BY name) GROUP BY m ORDER BY m LIMIT 3",
    "SELECT name, exact_quantiles(x, 0.5) FROM t WHERE id < 0 GROUP BY name ORDER BY name",
    "SELECT name, topk_by(id, f, 5) FROM t WHERE id < 0 GROUP BY name",
    "SELECT name, s FROM (SELECT name, sum(id) AS s FROM t WHERE id < 0 GROUP BY name) ORDER BY s DESC LIMIT 3",
    "SELECT id, r FROM (SELECT *, row_number() OVER (PARTITION BY name ORDER BY f, id) AS r FROM t WHERE id < 0) WHERE r < 4",
    "SELECT s FROM (SELECT *, row_number() OVER (PARTITION BY m ORDER BY s) AS r FROM \
     (SELECT name, sum(id) AS s, min(id) AS m FROM t WHERE id < 0 GROUP BY name)) WHERE r < 4",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_without_rows_are_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(1000, 4), 4);
    let local = quantiles_testing::session(2);
    register(&local, "t", &table).await;
    for adaptive in ADAPTIVE {
        let ctx = session(&SHARED.url, 4, adaptive).await;
        register(&ctx, "t", &table).await;
        for strategy in ["auto", "gk_select"] {
            query(&ctx, &format!("SET quantiles.strategy = '{strategy}'"))
                .await
                .unwrap();
            for sql in OVER_NOTHING {
                let expected = texts(&query(&local, sql).await.unwrap());
                let found = watched(&SHARED.url, &ctx, sql).await;
                assert_eq!(
                    texts(&found.unwrap()),
                    expected,
                    "{sql}, {strategy}, adaptive {adaptive}"
                );
            }
        }
    }
}

/// `SET` of a client reaches the scheduler.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn builtins_are_replaced_where_the_client_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(10_000, 1), 4);
    for adaptive in ADAPTIVE {
        let ctx = session(&SHARED.url, 4, adaptive).await;
        register(&ctx, "t", &table).await;
        let sql = "SELECT median(f), percentile_cont(0.25) WITHIN GROUP (ORDER BY x) FROM t";
        let expected = texts(&query(&ctx, sql).await.unwrap());
        let plan = || async { texts(&query(&ctx, &format!("EXPLAIN {sql}")).await.unwrap()).join("\n") };
        assert!(!plan().await.contains("RoundExec"));
        query(&ctx, "SET quantiles.replace_builtins = true")
            .await
            .unwrap();
        let replaced = plan().await;
        assert!(replaced.contains("RoundExec"), "{replaced}");
        assert_eq!(texts(&query(&ctx, sql).await.unwrap()), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_at_once_are_all_answered() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(20_000, 9), 6);
    let local = quantiles_testing::session(2);
    register(&local, "t", &table).await;
    let mut clients = Vec::new();
    for client in 0..8 {
        let sql = STATEMENTS[client * 2 % STATEMENTS.len()];
        let expected = texts(&query(&local, sql).await.unwrap());
        let table = table.clone();
        clients.push(tokio::spawn(async move {
            let ctx = session(&SHARED.url, 4, client % 2 == 0).await;
            register(&ctx, "t", &table).await;
            for _ in 0..3 {
                let found = watched(&SHARED.url, &ctx, sql).await.unwrap();
                assert_eq!(texts(&found), expected, "{sql}");
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
}
