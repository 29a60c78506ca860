//! The nearest rows of many query vectors: against DataFusion's own plan, which computes every distance.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use quantiles_testing::{query, texts};

use crate::nearest::{Drawn, sessions, table};

/// Functions, and whether the nearest row is the one of the greatest value.
const FUNCTIONS: [(&str, bool); 3] = [
    ("array_distance", false),
    ("cosine_distance", false),
    ("inner_product", true),
];

/// Sessions of this crate and of DataFusion over a table `t`, and another one `q` of queries.
fn over(
    rng: &mut SmallRng,
    rows: usize,
    queries: usize,
    drawn: Drawn,
    item: &DataType,
    fixed: bool,
) -> [SessionContext; 2] {
    let of = |rows| Drawn { rows, ..drawn };
    let found = sessions(&table(rng, of(rows), item, fixed));
    let asked = table(rng, of(queries), item, fixed);
    for ctx in &found {
        ctx.register_table("q", Arc::clone(&asked) as _).unwrap();
    }
    found
}

async fn rows(ctx: &SessionContext, sql: &str) -> Result<Vec<String>> {
    Ok(texts(&query(ctx, sql).await?))
}

async fn plan(ctx: &SessionContext, sql: &str) -> String {
    rows(ctx, &format!("EXPLAIN {sql}")).await.unwrap().join("\n")
}

/// A statement for the first `k` rows of each query, ties by id.
fn ranked(call: &str, order: &str, from: &str, k: usize) -> String {
    format!(
        "SELECT qid, id, d FROM (SELECT q.id AS qid, t.id AS id, {call} AS d, \
         row_number() OVER (PARTITION BY q.id ORDER BY {call}{order}, t.id) AS r FROM {from}) WHERE r <= {k} ORDER BY qid, r"
    )
}

/// Every function and order, over every type, with NULL, NaN and infinity and without: the same rows with the same distances.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairs_are_those_of_datafusion() {
    let mut rng = SmallRng::seed_from_u64(21);
    for item in [DataType::Float16, DataType::Float32, DataType::Float64] {
        for fixed in [true, false] {
            for (few, special) in [(false, false), (true, false), (false, true), (true, true)] {
                let drawn = Drawn {
                    rows: 0,
                    few,
                    special,
                };
                let [ours, theirs] = over(&mut rng, 300, 23, drawn, &item, fixed);
                for (function, greatest) in FUNCTIONS {
                    let best = if greatest { " DESC NULLS LAST" } else { "" };
                    let other = ["", " DESC", " NULLS FIRST", " DESC NULLS LAST"][rng.random_range(0..4)];
                    for order in [best, other] {
                        let call = ["(t.v, q.v)", "(q.v, t.v)"][rng.random_range(0..2)];
                        let from = [
                            "q CROSS JOIN t",
                            "t CROSS JOIN q",
                            "q JOIN t ON q.id <> t.id",
                            "q JOIN t ON q.id IS DISTINCT FROM t.id",
                            "q CROSS JOIN t WHERE t.g > 2 AND q.g < 5",
                        ][rng.random_range(0..5)];
                        let k = [1, 3, 17, 500][rng.random_range(0..4)];
                        let sql = ranked(&format!("{function}{call}"), order, from, k);
                        let shown = plan(&ours, &sql).await;
                        assert!(shown.contains("NearestJoinExec"), "{sql}\n{shown}");
                        assert!(!plan(&theirs, &sql).await.contains("NearestJoinExec"));
                        assert_eq!(
                            rows(&ours, &sql).await.unwrap(),
                            rows(&theirs, &sql).await.unwrap(),
                            "{item} {fixed} {drawn:?} {sql}"
                        );
                    }
                }
            }
        }
    }
}

/// Lists of the nearest, by `topk_by` and by the negative of a distance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_those_of_the_rows() {
    let mut rng = SmallRng::seed_from_u64(22);
    for few in [false, true] {
        let drawn = Drawn {
            rows: 0,
            few,
            special: false,
        };
        let [ours, theirs] = over(&mut rng, 2000, 40, drawn, &DataType::Float32, true);
        for (call, order, by) in [
            ("array_distance(t.v, q.v)", "", "-array_distance(t.v, q.v), 7"),
            (
                "array_distance(t.v, q.v)",
                "",
                "array_distance(t.v, q.v), 7, 'asc'",
            ),
            ("inner_product(t.v, q.v)", " DESC", "inner_product(q.v, t.v), 7"),
        ] {
            let sql = format!(
                "SELECT q.id AS qid, topk_by(t.id, {by}) AS ids FROM q CROSS JOIN t GROUP BY q.id ORDER BY q.id"
            );
            assert!(plan(&ours, &sql).await.contains("NearestJoinExec"), "{sql}");
            let expected = format!(
                "SELECT qid, array_agg(id ORDER BY d{order}, id) FROM ({}) GROUP BY qid ORDER BY qid",
                ranked(call, order, "q CROSS JOIN t", 7)
            );
            assert_eq!(
                rows(&ours, &sql).await.unwrap(),
                rows(&theirs, &expected).await.unwrap(),
                "{sql}"
            );
        }
    }
}

/// Sizes that a product in `f32` cannot judge, in queries and in the table.
#[tokio::test]
async fn sizes_beyond_single_precision_are_exact() {
    let mut rng = SmallRng::seed_from_u64(23);
    let drawn = Drawn {
        rows: 0,
        few: false,
        special: false,
    };
    let [ours, theirs] = over(&mut rng, 90, 12, drawn, &DataType::Float64, false);
    for scale in [
        "1e-200",
        "1e-30",
        "1e-12",
        "1e12",
        "1e30",
        "1e200",
        "CASE WHEN id % 3 = 0 THEN 1e20 WHEN id % 3 = 1 THEN 0 ELSE 1 END",
    ] {
        for ctx in [&ours, &theirs] {
            query(ctx, "DROP TABLE IF EXISTS scaled").await.unwrap();
            query(
                ctx,
                &format!(
                    "CREATE TABLE scaled AS SELECT t.id, make_array({}) AS v FROM t",
                    (1..12)
                        .map(|at| format!("v[{at}] * ({scale})"))
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            )
            .await
            .unwrap();
        }
        for from in ["q CROSS JOIN scaled AS t", "scaled AS q CROSS JOIN t"] {
            for (function, greatest) in FUNCTIONS {
                let order = if greatest { " DESC" } else { "" };
                let sql = ranked(&format!("{function}(t.v, q.v)"), order, from, 4);
                assert_eq!(
                    rows(&ours, &sql).await.unwrap(),
                    rows(&theirs, &sql).await.unwrap(),
                    "{scale} {sql}"
                );
            }
        }
    }
}

/// Vectors of other lengths are DataFusion's error; rows that do not count in a list are no reason to leave pairs out.
#[tokio::test]
async fn what_a_product_cannot_say_is_left_to_datafusion() {
    let mut rng = SmallRng::seed_from_u64(24);
    let drawn = Drawn {
        rows: 0,
        few: false,
        special: false,
    };
    let [ours, theirs] = over(&mut rng, 400, 9, drawn, &DataType::Float32, false);
    for ctx in [&ours, &theirs] {
        query(ctx, "CREATE TABLE odd AS SELECT id, CASE WHEN id = 3 THEN arrow_cast([1.0], 'List(Float32)') ELSE v END AS v FROM t").await.unwrap();
        for from in ["q CROSS JOIN odd AS t", "odd AS q CROSS JOIN t"] {
            let sql = ranked("array_distance(t.v, q.v)", "", from, 2);
            let error = query(ctx, &sql).await.unwrap_err().strip_backtrace();
            assert!(error.contains("Both arrays must have the same length"), "{error}");
        }
    }
    for sql in [
        "SELECT q.id, max_by(CASE WHEN t.id % 2 = 0 THEN t.id END, -array_distance(t.v, q.v), 3) FROM q CROSS JOIN t GROUP BY q.id",
        "SELECT q.id, topk_by(t.id, -array_distance(t.v, q.v), 3) FILTER (WHERE t.id % 2 = 0) FROM q CROSS JOIN t GROUP BY q.id",
        "SELECT t.g, topk_by(t.id, -array_distance(t.v, t.v), 3) FROM t GROUP BY t.g",
    ] {
        assert!(!plan(&ours, sql).await.contains("NearestJoinExec"), "{sql}");
    }
    // A group that differs from pair to pair, without a column of either side.
    let sql = "SELECT q.id, random() < 2 AS c, topk_by(t.id, -array_distance(t.v, q.v), 3) FROM q CROSS JOIN t GROUP BY q.id, random() < 2";
    assert!(!plan(&ours, sql).await.contains("NearestJoinExec"), "{sql}");
    // Vectors of another length in rows that a condition leaves out.
    let from = "q JOIN (SELECT nullif(id, 3) AS g, id, v FROM odd) AS t ON q.g <> t.g";
    let sql = ranked("array_distance(t.v, q.v)", "", from, 2);
    assert_eq!(
        rows(&ours, &sql).await.unwrap(),
        rows(&theirs, &sql).await.unwrap()
    );
    // Groups of several queries.
    let sql = "SELECT q.g, topk_by(t.id, -array_distance(t.v, q.v), 3) FROM q CROSS JOIN t GROUP BY q.g ORDER BY q.g";
    assert!(plan(&ours, sql).await.contains("NearestJoinExec"));
    let got = rows(&ours, sql).await.unwrap();
    query(&ours, "SET quantiles.topk = false").await.unwrap();
    assert!(!plan(&ours, sql).await.contains("NearestJoinExec"));
    assert_eq!(got, rows(&ours, sql).await.unwrap());
}

/// NULL in the columns that a condition compares: such pairs are no answer, and do not stand in for one.
#[tokio::test]
async fn pairs_that_a_condition_drops_do_not_count() {
    let mut rng = SmallRng::seed_from_u64(25);
    let drawn = Drawn {
        rows: 0,
        few: true,
        special: false,
    };
    let [ours, theirs] = over(&mut rng, 150, 30, drawn, &DataType::Float32, true);
    for ctx in [&ours, &theirs] {
        query(
            ctx,
            "CREATE TABLE h AS SELECT id, v, nullif(g, 4) AS g, CAST(g AS VARCHAR) AS name FROM t",
        )
        .await
        .unwrap();
    }
    for condition in [
        "q.g <> t.g",
        "q.g IS DISTINCT FROM t.g",
        "(q.name IS DISTINCT FROM t.name) OR (q.g IS DISTINCT FROM t.g)",
        "(t.id IS DISTINCT FROM q.id) OR (q.g IS DISTINCT FROM t.g)",
    ] {
        let from = format!("h AS q JOIN h AS t ON {condition}");
        let sql = ranked("array_distance(t.v, q.v)", "", &from, 3);
        let shown = plan(&ours, &sql).await;
        assert!(
            shown.contains("NearestJoinExec") && shown.contains("without=["),
            "{shown}"
        );
        assert_eq!(
            rows(&ours, &sql).await.unwrap(),
            rows(&theirs, &sql).await.unwrap(),
            "{sql}"
        );
    }
    let sql = ranked(
        "array_distance(t.v, q.v)",
        "",
        "h AS q JOIN h AS t ON q.id < t.id",
        3,
    );
    assert!(!plan(&ours, &sql).await.contains("NearestJoinExec"));
    assert_eq!(
        rows(&ours, &sql).await.unwrap(),
        rows(&theirs, &sql).await.unwrap()
    );
}

/// The table function, beside what it stands for.
#[tokio::test]
async fn the_table_function_is_the_statement_that_it_stands_for() {
    let mut rng = SmallRng::seed_from_u64(26);
    let drawn = Drawn {
        rows: 0,
        few: true,
        special: false,
    };
    let [ours, theirs] = over(&mut rng, 500, 20, drawn, &DataType::Float32, true);
    for (measure, call, order) in [
        ("", "array_distance(t.v, q.v)", ""),
        (", 'l2'", "array_distance(t.v, q.v)", ""),
        (", 'COSINE'", "cosine_distance(t.v, q.v)", ""),
        (", 'dot'", "inner_product(t.v, q.v)", " DESC NULLS LAST"),
    ] {
        let sql = format!(
            "SELECT query_id, id, distance FROM nearest(t, 'v', q, 'v', 6{measure}) ORDER BY query_id, rank"
        );
        assert!(
            plan(&ours, &sql).await.contains("NearestJoinExec"),
            "{}",
            plan(&ours, &sql).await
        );
        let expected = ranked(call, order, "q CROSS JOIN t", 6);
        assert_eq!(
            rows(&ours, &sql).await.unwrap(),
            rows(&theirs, &expected).await.unwrap(),
            "{sql}"
        );
    }
    // A table among its own rows.
    let sql = "SELECT query_id, id, distance FROM nearest('public.t', 'v', 'public.t', 'v', 2 + 1) ORDER BY query_id, rank";
    assert!(
        plan(&ours, sql).await.contains("without=["),
        "{}",
        plan(&ours, sql).await
    );
    let expected = ranked("array_distance(t.v, q.v)", "", "t AS q JOIN t ON q.id <> t.id", 3);
    assert_eq!(
        rows(&ours, sql).await.unwrap(),
        rows(&theirs, &expected).await.unwrap()
    );
    let qualified = sql
        .replacen("'public.t'", "t", 1)
        .replacen("'public.t'", "public.t", 1);
    assert_eq!(
        rows(&ours, sql).await.unwrap(),
        rows(&ours, &qualified).await.unwrap()
    );
    // Names of the answer in the queries, and names that need quotes.
    query(&ours, "CREATE TABLE \"Found\" AS SELECT rank, distance, q.v FROM nearest(t, 'v', q, 'v', 1) AS n JOIN q ON n.query_id = q.id").await.unwrap();
    for table in ["\"Found\"", "'\"Found\"'", "public.\"Found\""] {
        let sql =
            format!("SELECT count(query_rank), count(query_distance) FROM nearest(t, 'v', {table}, 'v', 2)");
        assert_eq!(rows(&ours, &sql).await.unwrap(), ["40 | 40"], "{sql}");
    }
    // Queries without other columns, twice the same; all columns and their types.
    query(
        &ours,
        "CREATE TABLE bare AS SELECT v FROM q UNION ALL SELECT v FROM q",
    )
    .await
    .unwrap();
    let sql = "SELECT count(*), min(rank), max(rank) FROM nearest(t, 'v', bare, 'v', 4)";
    assert_eq!(rows(&ours, sql).await.unwrap(), ["160 | 1 | 4"]);
    let sql = "SELECT * FROM nearest(t, 'v', q, 'v', 1)";
    let schema = ours.sql(sql).await.unwrap().schema().to_string();
    for name in ["query_id", "query_g", "id", "g", "distance", "rank"] {
        assert!(schema.contains(name), "{schema}");
    }
}

/// Different tables of one name in one statement, which DataFusion's optimizer alone takes for one.
#[tokio::test]
async fn tables_of_one_name_are_not_taken_for_one() {
    let ctx = SessionContext::new();
    datafusion_quantiles::register_all(&ctx).unwrap();
    for (name, first) in [("a", 0), ("b", 100)] {
        let sql = format!(
            "CREATE TABLE {name} AS SELECT value + {first} AS id, [value * 1.0, 1.0] AS v FROM range(10)"
        );
        query(&ctx, &sql).await.unwrap();
    }
    let least = |table: &str| format!("SELECT min(id) FROM nearest({table}, 'v', a, 'v', 2)");
    let sql = format!("SELECT ({}) AS a, ({}) AS b", least("a"), least("b"));
    assert_eq!(rows(&ctx, &sql).await.unwrap(), ["0 | 100"]);
    let sql = "SELECT (SELECT median(value) FROM range(11)) AS a, (SELECT median(value) FROM range(21)) AS b";
    assert_eq!(rows(&ctx, sql).await.unwrap(), ["5.0 | 10.0"]);
}

#[tokio::test]
async fn calls_that_mean_nothing_are_errors() {
    let mut rng = SmallRng::seed_from_u64(27);
    let drawn = Drawn {
        rows: 0,
        few: true,
        special: false,
    };
    let [ours, _] = over(&mut rng, 50, 5, drawn, &DataType::Float32, true);
    query(
        &ours,
        "CREATE TABLE short AS SELECT arrow_cast([1.0], 'FixedSizeList(1, Float32)') AS v",
    )
    .await
    .unwrap();
    query(&ours, "CREATE TABLE taken AS SELECT id AS rank, v FROM t")
        .await
        .unwrap();
    for (call, message) in [
        (
            "nearest(t, 'v', q, 'v')",
            "nearest takes 5 or 6 arguments, got 4: nearest(table, 'vectors', queries, 'vectors', k",
        ),
        (
            "nearest(t, 'v', q, 'v', 0)",
            "nearest: k is a whole number from 1 to 1048576, got Int64(0)",
        ),
        ("nearest(t, 'v', q, 'v', 'ten')", "nearest: k is a whole number"),
        (
            "nearest(t, 'v', q, 'v', 3, 'l1')",
            "nearest has no measure \"l1\": allowed are 'l2', 'cosine' and 'dot'",
        ),
        ("nearest(none, 'v', q, 'v', 3)", "nearest: there is no table none"),
        (
            "nearest(t, 'w', q, 'v', 3)",
            "nearest: the table t has no column \"w\": it has id, g, v",
        ),
        (
            "nearest(t, 'id', q, 'v', 3)",
            "nearest: the column \"id\" of t has type Int64: allowed are",
        ),
        (
            "nearest(t, 7, q, 'v', 3)",
            "nearest: a column of vectors is a text, got Int64(7)",
        ),
        (
            "nearest(t, 'v', short, 'v', 3)",
            "nearest: vectors of t have 11 components, those of short 1",
        ),
        (
            "nearest(taken, 'v', q, 'v', 3)",
            "nearest: two columns of the answer have the name \"rank\"",
        ),
        (
            "nearest(short, 'v', short, 'v', 3)",
            "need a column that tells rows apart",
        ),
    ] {
        let error = query(&ours, &format!("SELECT * FROM {call}"))
            .await
            .unwrap_err()
            .strip_backtrace();
        assert!(error.contains(message), "{call}: {error}");
    }
}
