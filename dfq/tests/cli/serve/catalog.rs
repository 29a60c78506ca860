//! Statements like those that dashboards and drivers send before and between the statements of their users: probes, listings of tables, panels.

use tokio_postgres::Client;

use super::server::{Server, text, told};

/// Asks as those do that use simple queries, and as those that prepare.
async fn both(client: &Client, sql: &str) -> String {
    let answer = text(client, sql).await;
    let statement = client.prepare(sql).await;
    let statement = statement.unwrap_or_else(|error| panic!("{sql}: {}", told(&error)));
    let rows = client.query(&statement, &[]).await;
    let rows = rows.unwrap_or_else(|error| panic!("{sql}: {}", told(&error)));
    assert_eq!(rows.len(), answer.lines().count(), "{sql}");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    for (sql, expected) in [
        ("SHOW TRANSACTION ISOLATION LEVEL", "read committed"),
        ("SELECT current_database()", "datafusion"),
        ("SELECT typname FROM pg_catalog.pg_type WHERE oid = 20", "int8"),
        (
            "SELECT t.oid, typname FROM pg_type t WHERE typname IN ('text', 'int4') ORDER BY 1",
            "23|int4\n25|text",
        ),
        ("SELECT x FROM t WHERE x = ANY(ARRAY[3, 4]) ORDER BY x", "3\n4"),
        (
            "SELECT n.nspname FROM pg_catalog.pg_namespace n WHERE n.nspname NOT LIKE 'pg/_' || '%' ESCAPE '/' ORDER BY 1",
            "public",
        ),
        (
            "SELECT NULL AS TABLE_CAT, result.KEY_SEQ FROM (SELECT (information_schema._pg_expandarray(i.indkey)).n AS KEY_SEQ
             FROM pg_catalog.pg_index i) result",
            "",
        ),
        ("UNLISTEN *", ""),
        ("CLOSE ALL", ""),
        ("DEALLOCATE ALL", ""),
    ] {
        assert_eq!(both(&client, sql).await, expected, "{sql}");
    }
}
