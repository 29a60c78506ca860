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
async fn grafana() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    let time = "floor(extract(epoch from at)/300)*300";
    let within = "at BETWEEN '1970-01-01T00:00:00Z' AND '1970-01-01T01:00:00Z'";
    for (sql, expected) in [
        ("SELECT 1".to_string(), "1"),
        ("SELECT current_setting('server_version_num')::int/100 as version".to_string(), "1600"),
        (
            "SELECT quote_ident(column_name) AS \"column\", data_type AS \"type\" FROM information_schema.columns
             WHERE quote_ident(table_name) = 't' AND column_name = 'x'"
                .to_string(),
            "x|Int64",
        ),
        (
            format!(
                "SELECT {time} AS \"time\", percentile_cont(0.5) WITHIN GROUP (ORDER BY f) AS \"p50\" FROM t WHERE {within}
                 GROUP BY 1 ORDER BY 1 LIMIT 2"
            ),
            "0|1.25\n300.0|3.5",
        ),
        (
            format!(
                "SELECT date_bin(INTERVAL '30 minutes', at, TIMESTAMP '1970-01-01') AS time, max(x) FROM t WHERE {within}
                 GROUP BY time ORDER BY time LIMIT 1"
            ),
            "1970-01-01 00:00:00.000000|29",
        ),
    ] {
        assert_eq!(both(&client, &sql).await, expected, "{sql}");
    }
    let tables = "SELECT CASE WHEN quote_ident(table_schema) IN (
            SELECT CASE WHEN trim(s[i]) = '\"$user\"' THEN user ELSE trim(s[i]) END
            FROM generate_series(
                array_lower(string_to_array(current_setting('search_path'),','),1),
                array_upper(string_to_array(current_setting('search_path'),','),1)
            ) as i, string_to_array(current_setting('search_path'),',') s)
        THEN quote_ident(table_name) ELSE quote_ident(table_schema) || '.' || quote_ident(table_name) END AS \"table\"
        FROM information_schema.tables
        WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog', '_timescaledb_cache')
        ORDER BY CASE WHEN quote_ident(table_schema) = 'public' THEN 0 ELSE 1 END, 1";
    assert_eq!(both(&client, tables).await, "public.halves\npublic.t");
}

#[tokio::test(flavor = "multi_thread")]
async fn superset() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    let version = both(&client, "select pg_catalog.version()").await;
    assert!(version.starts_with("PostgreSQL 16.6 "), "{version}");
    for (sql, expected) in [
        ("select current_schema()", "public"),
        ("show standard_conforming_strings", "on"),
        ("show transaction isolation level", "read committed"),
        ("SELECT CAST('test plain returns' AS VARCHAR(60)) AS anon_1", "test plain returns"),
        (
            "SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname NOT LIKE 'pg_%' ORDER BY nspname",
            "public",
        ),
        (
            "SELECT pg_catalog.pg_class.relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace
             ON pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
             WHERE pg_catalog.pg_class.relkind = ANY (ARRAY['r', 'p']) AND pg_catalog.pg_class.relpersistence != 't'
             AND pg_catalog.pg_table_is_visible(pg_catalog.pg_class.oid) AND pg_catalog.pg_namespace.nspname != 'pg_catalog'",
            "t",
        ),
        (
            "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a
             JOIN pg_catalog.pg_class c ON c.oid = a.attrelid WHERE c.relname = 't' AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum LIMIT 2",
            "x|bigint\ng|bigint",
        ),
        (
            "SELECT DATE_TRUNC('hour', at) AS at, PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY f) AS \"MEDIAN(f)\"
             FROM public.t WHERE at >= '1970-01-01 01:00:00.000000' AND at < '1970-01-01 03:00:00.000000'
             GROUP BY DATE_TRUNC('hour', at) ORDER BY \"MEDIAN(f)\" DESC LIMIT 10000",
            "1970-01-01 02:00:00.000000|74.75\n1970-01-01 01:00:00.000000|44.75",
        ),
        (
            "SELECT * FROM (SELECT g, count(*) AS n FROM t GROUP BY g) AS virtual_table ORDER BY g LIMIT 1",
            "0|1000",
        ),
    ] {
        assert_eq!(both(&client, sql).await, expected, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metabase() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    for sql in [
        "SET SESSION TIMEZONE TO 'UTC'",
        "SET extra_float_digits = 3",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    ] {
        assert_eq!(both(&client, sql).await, "", "{sql}");
    }
    for (sql, expected) in [
        (
            "-- Metabase:: userID: 1 queryType: MBQL queryHash: 1f\nSELECT \"public\".\"t\".\"g\" AS \"g\",
             PERCENTILE_CONT(0.5) within group (order by \"public\".\"t\".\"f\") AS \"median\" FROM \"public\".\"t\"
             WHERE \"public\".\"t\".\"g\" < 2 GROUP BY \"public\".\"t\".\"g\" ORDER BY \"public\".\"t\".\"g\" ASC",
            "0|2502.5\n1|2498.0",
        ),
        (
            "SELECT CAST(\"source\".\"at\" AS date) AS \"at\", COUNT(*) AS \"count\" FROM (SELECT \"public\".\"t\".\"at\" AS \"at\"
             FROM \"public\".\"t\") AS \"source\" GROUP BY CAST(\"source\".\"at\" AS date) ORDER BY 1 ASC LIMIT 1",
            "1970-01-01|1439",
        ),
        (
            "SELECT \"public\".\"t\".\"x\" AS \"x\", SUBSTRING(\"public\".\"t\".\"s\", 1, 6) AS \"s\" FROM \"public\".\"t\"
             ORDER BY \"x\" LIMIT 1",
            "1|name 1",
        ),
        (
            "SELECT n.nspname AS schema, c.relname AS name, CASE c.relkind WHEN 'r' THEN 'TABLE' WHEN 'v' THEN 'VIEW' END AS type
             FROM pg_catalog.pg_class AS c INNER JOIN pg_catalog.pg_namespace AS n ON c.relnamespace = n.oid
             WHERE n.nspname !~ '^information_schema|catalog_history|pg_' AND c.relkind IN ('r', 'p', 'v', 'f', 'm')
             ORDER BY type, schema, name",
            "public|t|TABLE\npublic|halves|VIEW",
        ),
    ] {
        assert_eq!(both(&client, sql).await, expected, "{sql}");
    }
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
