//! Plans that Ballista 55 would run wrongly or for ever: branches of unions that every task ran, branches without a table, joins without
//! equal columns whose tasks do not know of each other's matches, and windows over stages without rows; and one that stays an error, of dictionaries under the adaptive planner.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::prelude::SessionContext;

use crate::support::machines::{ADAPTIVE, SHARED, query, register, session, write_parquet};
use crate::support::tables::rows;
use quantiles_testing::{batch, texts, types};

/// `t` has four files, `u` one.
async fn registered(ctx: &SessionContext, folder: &Path) {
    register(ctx, "t", &folder.join("t")).await;
    register(ctx, "u", &folder.join("u")).await;
}

async fn same_as_one_process(statements: &[&str], rows_of_t: usize) {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(folder.path(), "t", &rows(rows_of_t, 3), 4);
    write_parquet(folder.path(), "u", &rows(rows_of_t / 2, 4), 1);
    let local = quantiles_testing::session(3);
    registered(&local, folder.path()).await;
    for adaptive in ADAPTIVE {
        for partitions in [1, 4] {
            let ctx = session(&SHARED.url, partitions, adaptive).await;
            registered(&ctx, folder.path()).await;
            for sql in statements {
                let expected = texts(&query(&local, sql).await.unwrap());
                let case = format!("{sql} ({partitions} partitions, adaptive {adaptive})");
                let found = query(&ctx, sql).await;
                let found = found.unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!(texts(&found), expected, "{case}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_of_unions_are_counted_once() {
    let statements = [
        "SELECT sum(q) FROM (SELECT avg(s) AS q FROM t UNION ALL SELECT avg(s) FROM t UNION ALL SELECT avg(s) FROM t)",
        "SELECT q FROM (SELECT exact_quantiles(x, 0.5) AS q FROM t UNION ALL SELECT exact_quantiles(x, 0.9) FROM t \
         UNION ALL SELECT median(c) FROM u) ORDER BY q",
        "SELECT count(*), sum(a.q) FROM (SELECT count(*) AS q FROM t UNION ALL SELECT count(*) FROM u \
         UNION ALL SELECT max(id) FROM t) AS a CROSS JOIN (SELECT min(id) AS m FROM u)",
        "SELECT exact_quantiles(x, [0.1, 0.5]), count(*) FROM (SELECT x FROM t UNION ALL SELECT c FROM t UNION ALL SELECT x FROM u)",
        "SELECT id, x FROM (SELECT id, x FROM u UNION ALL SELECT id, c FROM u) ORDER BY id, x LIMIT 50",
        "SELECT id, x FROM (SELECT id, x FROM u UNION ALL SELECT id, c FROM t WHERE id < 40) ORDER BY id, x",
        "SELECT few, count(*) FROM (SELECT few FROM t UNION SELECT few FROM u UNION ALL SELECT max(few) FROM t) \
         GROUP BY few ORDER BY few",
        "SELECT name, sum(n) FROM (SELECT name, count(*) AS n FROM t GROUP BY name UNION ALL \
         SELECT name, count(*) FROM u GROUP BY name) GROUP BY name ORDER BY name",
        "SELECT sum(r), count(*) FROM (SELECT row_number() OVER (ORDER BY id) AS r FROM t UNION ALL \
         SELECT row_number() OVER (PARTITION BY name ORDER BY id) FROM u)",
        "SELECT sum(id), count(*) FROM (SELECT a.id FROM t AS a JOIN u AS b ON a.id = b.id UNION ALL \
         SELECT id FROM (SELECT id FROM t ORDER BY id LIMIT 10) UNION ALL SELECT id FROM u WHERE id IN (SELECT id FROM t WHERE id < 7))",
        "SELECT id, n FROM (SELECT *, row_number() OVER (ORDER BY f NULLS FIRST, id) AS n FROM (SELECT * FROM t WHERE \
         name >= 'z' UNION ALL SELECT * FROM t WHERE s <= 1) AS q) WHERE n <= 3 ORDER BY n",
        "SELECT f FROM (SELECT f, id FROM t UNION ALL SELECT f, id FROM u) ORDER BY f DESC, id LIMIT 7",
        "SELECT sum(v), count(*) FROM (SELECT v FROM (SELECT max(id) AS v FROM t UNION ALL SELECT id FROM u) \
         UNION ALL SELECT min(id) + 100000 FROM t)",
    ];
    same_as_one_process(&statements, 3000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_without_a_table_are_answered() {
    let statements = [
        "SELECT median(c), count(*), count(c) FROM (SELECT c FROM t UNION ALL SELECT NULL)",
        "SELECT median(c), count(*), count(c) FROM (SELECT NULL AS c UNION ALL SELECT c FROM t)",
        "SELECT exact_quantiles(c, [0, 0.5]) FROM (SELECT c FROM t UNION ALL SELECT NULL)",
        "SELECT exact_quantiles(c, 0.5), count(*) FROM (SELECT 7 AS c UNION ALL SELECT c FROM t UNION ALL SELECT c FROM u)",
        "SELECT sum(c), count(*) FROM (SELECT 1 AS c UNION ALL SELECT 2 UNION ALL SELECT 3)",
        "SELECT c FROM (SELECT 5 AS c UNION ALL VALUES (1), (2) UNION ALL SELECT max(id) FROM t) ORDER BY c",
    ];
    same_as_one_process(&statements, 3000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_without_equal_columns_match_over_all_tasks() {
    let joins = |first: &str, second: &str| {
        let answer = "SELECT count(*), count(a.id), sum(a.id), count(b.id), sum(b.id)";
        let on = "a.id + 5 < b.id AND a.id + 9 > b.id AND b.id % 3 = 0";
        let mut all: Vec<String> = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]
            .map(|join| format!("{answer} FROM {first} AS a {join} {second} AS b ON {on}"))
            .into();
        for not in ["", "NOT "] {
            let exists = format!("{not}EXISTS (SELECT 1 FROM {second} AS b WHERE {on})");
            all.push(format!(
                "SELECT count(*), sum(a.id) FROM {first} AS a WHERE {exists}"
            ));
        }
        let marked = format!("EXISTS (SELECT 1 FROM {second} AS b WHERE {on})");
        all.push(format!(
            "SELECT count(*), sum(a.id) FROM {first} AS a WHERE a.id < 50 OR {marked}"
        ));
        all.push(format!(
            "SELECT a.few, exact_quantiles(b.id, 0.5), count(*) FROM {first} AS a LEFT JOIN {second} AS b ON {on} GROUP BY a.few ORDER BY a.few"
        ));
        all
    };
    let twice = "(SELECT id, few FROM t UNION ALL SELECT id, few FROM t)";
    let ranked = "(SELECT id, few, rank() OVER (PARTITION BY few ORDER BY id) AS r FROM t)";
    // DataFusion takes it for a fifth of the table.
    let filtered = "(SELECT id, few FROM t WHERE id % 2 >= 0)";
    let tables = [
        ("t", "u"),
        ("u", "t"),
        ("u", twice),
        (twice, "u"),
        ("u", ranked),
        (filtered, "u"),
        ("u", filtered),
    ];
    let all = tables.map(|(first, second)| joins(first, second)).concat();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    same_as_one_process(&all, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_over_stages_without_rows_end() {
    let statements = [
        "SELECT x, sum(x) OVER (PARTITION BY few ORDER BY x) FROM t WHERE id < 0",
        "SELECT name, rank() OVER (PARTITION BY name ORDER BY s), count(*) OVER (PARTITION BY name) FROM \
         (SELECT name, sum(id) AS s FROM t WHERE id < 0 GROUP BY name)",
        "SELECT exact_quantiles(x, 0.5) OVER (PARTITION BY few ORDER BY id ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) \
         FROM t WHERE id < 0",
        "SELECT count(*), sum(r) FROM (SELECT row_number() OVER (PARTITION BY few ORDER BY id) AS r FROM t WHERE id < 0)",
        "SELECT few, r, n FROM (SELECT few, row_number() OVER (PARTITION BY few ORDER BY id) AS r, \
         count(*) OVER (PARTITION BY few, name) AS n FROM t) ORDER BY few, r LIMIT 20",
        "SELECT * FROM (SELECT id, rank() OVER (PARTITION BY name ORDER BY f DESC, id DESC) AS n FROM t \
         WHERE name = 'name 3' AND name <> 'k') WHERE n <= 1 ORDER BY id",
        "SELECT few, name, count(*) FROM t WHERE id < 0 GROUP BY ROLLUP(few, name) ORDER BY few, name",
    ];
    same_as_one_process(&statements, 3000).await;
}

/// Files that say that they are in order: merging joins and merges of sorted partitions relied on it beyond an exchange, which
/// keeps none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_files_are_not_trusted_beyond_an_exchange() {
    let folder = tempfile::tempdir().unwrap();
    let tables = [
        ("t", write_parquet(folder.path(), "t", &rows(4000, 3), 4)),
        ("u", write_parquet(folder.path(), "u", &rows(1000, 4), 1)),
    ];
    let statements = [
        "SELECT id FROM t EXCEPT SELECT id FROM u ORDER BY id LIMIT 5",
        "SELECT id FROM (SELECT id FROM t EXCEPT SELECT id FROM u) ORDER BY id",
        "SELECT a.id, b.id FROM t AS a LEFT JOIN u AS b ON a.id = b.id ORDER BY a.id",
        "SELECT a.id, a.r, b.few FROM (SELECT id, name, row_number() OVER (PARTITION BY name ORDER BY id) AS r FROM t) AS a \
         JOIN u AS b ON a.name = b.name AND a.id = b.id ORDER BY a.id",
        "SELECT id, sum(x % 100) OVER (PARTITION BY id % 3 ORDER BY id) FROM t ORDER BY id",
        "SELECT id, count(*) FROM t GROUP BY id ORDER BY id",
    ];
    let ordered = async |ctx: &SessionContext| {
        for (name, table) in &tables {
            let create = format!(
                "CREATE EXTERNAL TABLE {name} STORED AS PARQUET WITH ORDER (id ASC) LOCATION '{}/'",
                table.display()
            );
            query(ctx, &create).await.unwrap();
        }
    };
    let local = quantiles_testing::session(3);
    ordered(&local).await;
    for adaptive in ADAPTIVE {
        for partitions in [1, 4] {
            let ctx = session(&SHARED.url, partitions, adaptive).await;
            ordered(&ctx).await;
            for sql in statements {
                let expected = texts(&query(&local, sql).await.unwrap());
                let found = texts(&query(&ctx, sql).await.unwrap());
                assert_eq!(
                    found, expected,
                    "{sql} ({partitions} partitions, adaptive {adaptive})"
                );
            }
        }
    }
}

/// With adaptive planning, which is off unless it is asked for, Ballista exchanges the side of an outer join that has no rows again
/// and again.
#[test]
fn a_statement_that_is_planned_without_end_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(2000, 3), 4);
    let ended = |adaptive: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dfq"));
        command.args([
            "sql",
            "--cluster",
            &SHARED.url,
            "--format",
            "csv",
            "--partitions",
            "4",
        ]);
        command.args(["--timeout", "300", "-c", adaptive, "-c"]);
        let table = format!("'{}/*.parquet'", table.display());
        command.arg(format!(
            "SELECT count(*), sum(b.id) FROM {table} AS a LEFT JOIN (SELECT id FROM {table} WHERE few + id = -1) AS b ON a.id = b.id"
        ));
        command.output().unwrap()
    };
    let output = ended("SHOW ballista.planner.adaptive.enabled");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.ends_with("enabled,false\ncount(*),sum(b.id)\n2000,\n"),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = ended("SET ballista.planner.adaptive.enabled = true");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || said.contains("SET ballista.planner.adaptive.enabled = false"),
        "{said}"
    );
}

/// FILTER and IGNORE NULLS of window functions would be lost on the way to the executors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn window_calls_that_would_lose_a_part_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(100, 3), 2);
    for adaptive in ADAPTIVE {
        let ctx = session(&SHARED.url, 4, adaptive).await;
        register(&ctx, "t", &table).await;
        for (sql, hint) in [
            (
                "SELECT sum(s) FILTER (WHERE b) OVER (ORDER BY id) FROM t",
                "sum(CASE WHEN",
            ),
            (
                "SELECT 1 FROM t WHERE id IN (SELECT min_by(id, x) FILTER (WHERE b) OVER () FROM t)",
                "min_by(CASE WHEN",
            ),
            (
                "SELECT first_value(x) IGNORE NULLS OVER (ORDER BY id) FROM t",
                "leave the NULLs out by WHERE",
            ),
        ] {
            let error = query(&ctx, sql).await.unwrap_err().to_string();
            assert!(error.contains(hint), "{sql}: {error}");
        }
        let allowed =
            "SELECT count(*) FROM (SELECT first_value(id) OVER (ORDER BY id), sum(s) OVER () FROM t)";
        assert_eq!(texts(&query(&ctx, allowed).await.unwrap()), ["100"]);
    }
}

/// What the guide says of dictionaries: with the adaptive planner some of these statements may be errors, as their tasks happen to
/// end; none is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dictionaries_are_right_but_for_adaptive_planning_which_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let dictionary = |values: ArrayRef, keys: DataType| {
        let values_type = values.data_type().clone();
        let data_type = DataType::Dictionary(Box::new(keys), Box::new(values_type));
        cast(&values, &data_type).unwrap()
    };
    let g = StringArray::from_iter((0..3000).map(|i| (i % 4 > 0).then(|| format!("g{}", i % 4))));
    let v = Int64Array::from_iter((0..3000).map(|i| (i % 11 > 0).then_some(i * 7 % 1000)));
    let columns = vec![
        ("g", dictionary(Arc::new(g), DataType::Int16)),
        ("v", dictionary(Arc::new(v), DataType::Int32)),
    ];
    let table = write_parquet(folder.path(), "d", &batch(columns), 4);
    let local = quantiles_testing::session(3);
    register(&local, "d", &table).await;
    let statements = [
        ("SELECT count(*), count(g) FROM d", true),
        ("SELECT exact_quantiles(v, [0.1, 0.5]) FROM d", true),
        (
            "SELECT g, arrow_cast([v], 'LargeList(Int64)') FROM d WHERE v < 20 ORDER BY v, g LIMIT 9",
            false,
        ),
        (
            "SELECT g, exact_quantiles(v, 0.5) FROM d GROUP BY g ORDER BY g",
            false,
        ),
        ("SELECT g, count(*) FROM d GROUP BY g ORDER BY g", false),
    ];
    for adaptive in ADAPTIVE {
        let ctx = session(&SHARED.url, 4, adaptive).await;
        register(&ctx, "d", &table).await;
        for (sql, by_both) in statements {
            let expected = texts(&query(&local, sql).await.unwrap());
            let found = query(&ctx, sql).await;
            match found {
                Ok(found) => {
                    assert_eq!(texts(&found), expected, "{sql} (adaptive {adaptive})");
                    let planned = types(ctx.sql(sql).await.unwrap().schema().fields());
                    for batch in &found {
                        assert_eq!(types(batch.schema().fields()), planned, "{sql}");
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    let named = [
                        "RowConverter column schema mismatch",
                        "column types must match schema types",
                    ];
                    assert!(
                        adaptive && !by_both && named.iter().any(|text| error.contains(text)),
                        "{sql} (adaptive {adaptive}): {error}"
                    );
                }
            }
        }
    }
}
