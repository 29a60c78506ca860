//! What clients ask, and what they are told.

use futures::TryStreamExt;
use tokio_postgres::types::Type;

use super::server::{Server, failure, text, told};

#[tokio::test(flavor = "multi_thread")]
async fn statements_of_this_crate_run() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    for (sql, expected) in [
        ("SELECT exact_quantiles(x, [0.5, 0.99]) FROM t", "{5000,9900}"),
        ("SELECT exact_quantiles(x, 0.5) FROM t WHERE g = 3", "4993"),
        (
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY f) FROM t",
            "2500.25",
        ),
        (
            "SELECT DISTINCT percentile_cont(0.25) WITHIN GROUP (ORDER BY f DESC) OVER (PARTITION BY g > 100) FROM t",
            "3750.125",
        ),
        (
            "SELECT quantileExact(0.9)(x), medianExactLow(x) FROM t",
            "9001|5000",
        ),
        (
            "SELECT g, half FROM halves WHERE g < 2 ORDER BY g",
            "0|2502.5\n1|2498",
        ),
        ("SELECT topk_by(x, f, 2) FROM t", "{10000,9999}"),
        (
            "SHOW quantiles.replace_builtins",
            "quantiles.replace_builtins|true",
        ),
        (
            "SELECT median(x) FROM t; SELECT 1 WHERE false; SELECT 'a;b'",
            "5000.5\na;b",
        ),
        ("EXPLAIN SELECT 1", ""),
        (
            "SELECT NULL, true, 1.5::DECIMAL(5,2), DATE '2026-01-02', [1, NULL]",
            "NULL|t|1.50|2026-01-02|{1,NULL}",
        ),
        ("", ""),
        (" ; -- nothing", ""),
    ] {
        let answer = text(&client, sql).await;
        if !sql.starts_with("EXPLAIN") {
            assert_eq!(answer, expected, "{sql}");
        }
    }
    assert!(
        text(&client, "EXPLAIN SELECT exact_quantiles(x, 0.5) FROM t")
            .await
            .contains("QuantilesExec")
    );
    assert!(
        text(&client, "EXPLAIN SELECT median(x) FROM t")
            .await
            .contains("QuantilesExec")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_client_sets_is_not_set_for_others() {
    let server = Server::start(&[]);
    let (one, other) = (server.connect().await, server.connect().await);
    text(
        &one,
        "SET quantiles.strategy = 'gk_select'; SET application_name = 'one'; PREPARE p AS SELECT 7",
    )
    .await;
    assert_eq!(
        text(&one, "SHOW quantiles.strategy").await,
        "quantiles.strategy|gk_select"
    );
    assert_eq!(
        text(&other, "SHOW quantiles.strategy").await,
        "quantiles.strategy|auto"
    );
    assert_eq!(text(&one, "SHOW application_name").await, "one");
    assert_eq!(text(&other, "SHOW application_name").await, "");
    assert_eq!(text(&one, "EXECUTE p").await, "7");
    assert!(
        failure(&other, "EXECUTE p")
            .await
            .contains("Prepared statement 'p' does not exist")
    );
    text(&one, "DISCARD ALL").await;
    assert_eq!(
        text(&one, "SHOW quantiles.strategy").await,
        "quantiles.strategy|auto"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_bound_by_their_types() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    let row = client
        .query_one(
            "SELECT count(*), min(s) FROM t WHERE x > $1 AND s LIKE $2",
            &[&9998_i64, &"name %"],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1)), (2, "name 10000"));
    let row = client
        .query_one("SELECT $1, $2::DOUBLE + 1, $3", &[&"a", &0.5_f64, &None::<&str>])
        .await
        .unwrap();
    assert_eq!(
        (
            row.get::<_, &str>(0),
            row.get::<_, f64>(1),
            row.get::<_, Option<&str>>(2)
        ),
        ("a", 1.5, None)
    );
    let statement = client.prepare_typed("SELECT $1", &[Type::INT4]).await.unwrap();
    assert_eq!(
        client
            .query_one(&statement, &[&5_i32])
            .await
            .unwrap()
            .get::<_, i32>(0),
        5
    );
    // Before they are bound they are described, also where NULL is not allowed.
    let sql = "SELECT exact_quantiles(f, $1), topk_by(x, f, $2) FROM t";
    let statement = client
        .prepare_typed(sql, &[Type::FLOAT8, Type::INT8])
        .await
        .unwrap();
    let row = client.query_one(&statement, &[&0.5_f64, &3_i64]).await.unwrap();
    assert_eq!(
        (row.get::<_, f64>(0), row.get::<_, Vec<i64>>(1)),
        (2500.0, vec![10_000, 9_999, 9_998])
    );
    // Types of an answer are told before it runs: both sides of a union are as wide as the wider.
    let row = client
        .query("SELECT 1::INT AS n UNION ALL SELECT 2.5 ORDER BY 1", &[])
        .await
        .unwrap();
    assert_eq!(row.iter().map(|row| row.get(0)).collect::<Vec<f64>>(), [1.0, 2.5]);
    let row = client
        .query_one(
            "SELECT exact_quantiles(f, [0.5, 1]), at FROM t WHERE x = 1 GROUP BY at",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, Vec<f64>>(0), [0.5, 0.5]);
    let error = client.query("SELECT 1 WHERE 1 = $1", &[]).await;
    assert!(error.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_statements_are_forgotten() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    let prepared = client.prepare("SELECT 1").await.unwrap();
    text(&client, "PREPARE p AS SELECT 7; DEALLOCATE p").await;
    assert!(
        failure(&client, "DEALLOCATE p")
            .await
            .contains("'p' does not exist")
    );
    client.query(&prepared, &[]).await.unwrap();
    text(&client, "DEALLOCATE ALL").await;
    let error = client.query(&prepared, &[]).await.unwrap_err();
    assert!(
        told(&error).starts_with("26000 prepared statement"),
        "{}",
        told(&error)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn portals_give_rows_in_parts() {
    let server = Server::start(&[]);
    let mut client = server.connect().await;
    let transaction = client.transaction().await.unwrap();
    let portal = transaction.bind("SELECT x FROM t ORDER BY x", &[]).await.unwrap();
    let mut next = 1_i64;
    for _ in 0..2 {
        let rows = transaction.query_portal(&portal, 100).await.unwrap();
        for row in rows {
            assert_eq!(row.get::<_, i64>(0), next);
            next += 1;
        }
    }
    assert_eq!(next, 201);
    let rest: Vec<_> = transaction
        .query_portal_raw(&portal, 0)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(rest.len(), 9800);
    transaction.commit().await.unwrap();
    server.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_have_codes() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    for (sql, expected) in [
        ("SELEC 1", "42601"),
        ("SELECT * FROM nowhere", "42P01"),
        ("SELECT nothing FROM t", "42703"),
        ("SELECT nothing(1)", "42883"),
        ("SELECT 1 / 0", "22012"),
        ("SELECT CAST('a' AS INT)", "22P02"),
        ("SET nothing = 1", "42704"),
        ("SET statement_timeout = 'x'", "22023"),
        ("SET TIME ZONE 'Nowhere/Else'", "22023"),
        ("SET quantiles.strategy = 'x'", "22023"),
        ("SAVEPOINT a", "0A000"),
        ("SELECT exact_quantiles(x, 2) FROM t", "4"),
    ] {
        let told = failure(&client, sql).await;
        assert!(told.starts_with(expected), "{sql}: {told}");
    }
    // The connection goes on.
    assert_eq!(text(&client, "SELECT 1").await, "1");
    let error = client.query("SELECT 1; SELECT 2", &[]).await.unwrap_err();
    assert_eq!(
        told(&error),
        "42601 cannot insert multiple commands into a prepared statement"
    );
    let error = client
        .query("SELECT * FROM nowhere WHERE x = $1", &[&1_i64])
        .await
        .unwrap_err();
    assert!(told(&error).starts_with("42P01"), "{}", told(&error));
    assert_eq!(
        client.query_one("SELECT 1", &[]).await.unwrap().get::<_, i64>(0),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_transaction_is_over() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    text(&client, "BEGIN; SELECT 1").await;
    assert!(failure(&client, "SELECT 1 / 0").await.starts_with("22012"));
    assert!(failure(&client, "SELECT 1").await.starts_with("25P02"));
    text(&client, "ROLLBACK").await;
    assert_eq!(text(&client, "SELECT 1").await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_postgres_are_kept_and_told() {
    let server = Server::start(&[]);
    let mut config = server.config();
    config
        .application_name("tests")
        .options("-c statement_timeout=90s -c TimeZone=Europe/Berlin");
    let client = super::server::connect(&config).await.unwrap();
    for (name, expected) in [
        ("application_name", "tests"),
        ("statement_timeout", "90s"),
        ("timezone", "Europe/Berlin"),
        ("server_version", "16.6"),
        ("transaction isolation level", "read committed"),
        ("standard_conforming_strings", "on"),
        ("default_transaction_read_only", "on"),
    ] {
        assert_eq!(text(&client, &format!("SHOW {name}")).await, expected, "{name}");
    }
    text(
        &client,
        "SET DateStyle = 'ISO, DMY'; SET extra_float_digits = 3; SET TIME ZONE 'UTC'",
    )
    .await;
    assert_eq!(text(&client, "SHOW datestyle").await, "ISO, DMY");
    assert_eq!(text(&client, "SELECT f FROM t WHERE x = 3").await, "1.5");
    config.options("-c nothing=1");
    let error = super::server::connect(&config).await.unwrap_err();
    assert!(told(&error).starts_with("42704"), "{}", told(&error));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_happened() {
    let server = Server::start(&[]);
    assert_eq!(server.get("/healthz").await, "ok\n");
    let client = server.connect().await;
    text(&client, "SELECT x FROM t").await;
    failure(&client, "SELECT 1 / 0").await;
    client.query("SELECT x FROM t LIMIT $1", &[&5_i64]).await.unwrap();
    for (name, value) in [
        ("dfq_connections", 1.0),
        ("dfq_rows_sent_total", 10_005.0),
        ("dfq_statements_total{outcome=\"success\"}", 2.0),
        ("dfq_statements_total{outcome=\"error\"}", 1.0),
        ("dfq_statement_seconds_count", 3.0),
        ("dfq_memory_reserved_bytes", 0.0),
    ] {
        assert_eq!(server.metric(name).await, value, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_written_as_postgres_does() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    for (sql, expected) in [
        (
            "SELECT 2.0::DOUBLE, -0.0::DOUBLE, 'inf'::DOUBLE, '-inf'::REAL, 'NaN'::DOUBLE",
            "2|-0|Infinity|-Infinity|NaN",
        ),
        (
            "SELECT 1e15::DOUBLE, 0.00001::DOUBLE, 0.1::REAL, 1e6::REAL",
            "1e+15|1e-05|0.1|1e+06",
        ),
        (
            "SELECT [1.0, NULL, 2.5], ['inf'::DOUBLE], ['a b', '', 'NULL', 'c']",
            "{1,NULL,2.5}|{Infinity}|{\"a b\",\"\",\"NULL\",c}",
        ),
        (
            "SELECT [true, false], [DATE '2026-01-02'], [TIMESTAMP '2026-01-02 03:04:05.5']",
            "{t,f}|{2026-01-02}|{\"2026-01-02 03:04:05.5\"}",
        ),
        (
            "SELECT named_struct('a', 1.0, 'b', 'x y', 'c', NULL, 'd', true)",
            "(1,\"x y\",,t)",
        ),
        (
            "SELECT named_struct('l', [1.0, NULL], 'e', '', 'q', 'a\"b', 'b', arrow_cast('a', 'Binary'))",
            "(\"{1,NULL}\",\"\",\"a\"\"b\",\"\\\\x61\")",
        ),
        ("SELECT [[1, 2], [3]], [[1.0]]", "{\"{1,2}\",\"{3}\"}|{\"{1}\"}"),
        (
            "SELECT [named_struct('a', 2.0, 'b', 'x,y')]",
            "{\"(2,\\\"x,y\\\")\"}",
        ),
        (
            "SELECT TIMESTAMP '2026-01-02 03:04:05', TIMESTAMP '2026-01-02 03:04:05.120', TIME '10:11:12'",
            "2026-01-02 03:04:05|2026-01-02 03:04:05.12|10:11:12",
        ),
        (
            "SELECT TIMESTAMP '2026-01-02 03:04:05' AT TIME ZONE 'UTC'",
            "2026-01-02 03:04:05+00",
        ),
        (
            "SELECT INTERVAL '1 day 2 hours', INTERVAL '14 months', INTERVAL '-1 minute'",
            "1 day 02:00:00|1 year 2 mons|-00:01:00",
        ),
        (
            "SELECT arrow_cast(NULL, 'Interval(MonthDayNano)'), arrow_cast(1.5, 'Decimal256(60, 2)')",
            "NULL|1.50",
        ),
    ] {
        assert_eq!(text(&client, sql).await, expected, "{sql}");
    }
    text(&client, "SET extra_float_digits = 0").await;
    assert_eq!(text(&client, "SELECT 0.1::DOUBLE + 0.2::DOUBLE").await, "0.3");
    let statement = "SELECT arrow_cast(NULL, 'Interval(MonthDayNano)') IS NULL, arrow_cast(1.5, 'Decimal256(60, 2)')::TEXT";
    let row = client.query_one(statement, &[]).await.unwrap();
    assert_eq!((row.get::<_, bool>(0), row.get::<_, &str>(1)), (true, "1.50"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_summarized() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    let summary = text(&client, "SUMMARIZE t").await;
    let columns: Vec<_> = summary
        .lines()
        .map(|line| line.split('|').next().unwrap())
        .collect();
    assert_eq!(columns, ["x", "g", "f", "s", "at"]);
    assert!(
        summary.starts_with("x|Int64|10000|0|NULL|10000|t|1|10000|5000.5|"),
        "{summary}"
    );
    let statement = client
        .prepare("SUMMARIZE SELECT f FROM t WHERE g = 3")
        .await
        .unwrap();
    let rows = client.query(&statement, &[]).await.unwrap();
    let row = rows.first().unwrap();
    assert_eq!(
        (row.get::<_, &str>("column_name"), row.get::<_, &str>("p50")),
        ("f", "2496.5")
    );
    assert_eq!(statement.columns().len(), row.len());
    for (sql, expected) in [
        ("SUMMARIZE nothing", "42P01"),
        ("SUMMARIZE '/etc/passwd'", "42P01"),
        ("SUMMARIZE SELECT nothing FROM t", "42703"),
    ] {
        let told = failure(&client, sql).await;
        assert!(told.starts_with(expected), "{sql}: {told}");
    }
    server.holds_nothing().await;
}
