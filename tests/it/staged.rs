//! Quantiles as stages, in one process: the same answers as the operator's, from two reads.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Date32Array, Decimal128Array, Float64Array, Int64Array};
use datafusion::prelude::SessionContext;

use quantiles_testing::patterns::Pattern;
use quantiles_testing::*;

fn register_rows(ctx: &SessionContext, rows: usize, partitions: usize) {
    let words = Pattern::Clusters.words(rows, 3);
    let floats = Pattern::Random.floats(rows, 5);
    let few = Pattern::FewDistinct.words(rows, 7);
    let nulls = |i: usize| !i.is_multiple_of(7);
    let x = words
        .iter()
        .enumerate()
        .map(|(i, word)| nulls(i).then_some(*word));
    let f = floats
        .iter()
        .enumerate()
        .map(|(i, value)| nulls(i).then_some(*value));
    let d = words.iter().map(|word| i128::from(*word) * 3);
    let decimals = Decimal128Array::from_iter_values(d)
        .with_precision_and_scale(38, 2)
        .unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("x", Arc::new(x.collect::<Int64Array>())),
        ("f", Arc::new(f.collect::<Float64Array>())),
        ("d", Arc::new(decimals)),
        ("few", Arc::new(Int64Array::from(few))),
        (
            "day",
            Arc::new(Date32Array::from_iter_values(
                words.iter().map(|word| (word % 9000) as i32),
            )),
        ),
        ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64))),
    ];
    register(ctx, "t", &batch(columns), partitions, 1000);
}

/// Statements, and how many times their stages read the input.
const STATEMENTS: [(&str, usize); 18] = [
    ("SELECT exact_quantiles(x, 0.5) FROM t", 2),
    (
        "SELECT exact_quantiles(x, [0.01, 0.5, 0.99, 0, 1]), exact_quantiles(f, [0.5, 0.25], 'linear'), \
         exact_quantiles(d, 0.3), exact_quantiles(day, 0.5) FROM t",
        2,
    ),
    (
        "SELECT exact_quantiles(0.2) WITHIN GROUP (ORDER BY f DESC), exact_quantiles(f, 0.2, 'midpoint') FROM t",
        2,
    ),
    (
        "SELECT exact_quantiles(x, 0.5) FILTER (WHERE id % 3 = 0), exact_quantiles(x, 0.5) FILTER (WHERE x < 0), \
         exact_quantiles(x, [0.1, 0.2]) FROM t",
        2,
    ),
    (
        "SELECT exact_quantiles(1000000 / id, 0.5) FILTER (WHERE id <> 0) FROM t",
        2,
    ),
    (
        "SELECT exact_quantiles(few, [0.1, 0.5, 0.9]), percentile_disc(0.5) WITHIN GROUP (ORDER BY few) FROM t",
        2,
    ),
    (
        "SELECT exact_quantiles(x, 0.5), exact_quantiles(f, [0.5]) FROM t WHERE id < 0",
        2,
    ),
    (
        "SELECT exact_quantiles(a.x, 0.5) FROM t AS a JOIN t AS b ON a.id = b.id + 1 WHERE b.few > 0",
        2,
    ),
    (
        "SELECT q + 1 FROM (SELECT exact_quantiles(x, 0.5) AS q FROM t) WHERE q IS NOT NULL",
        2,
    ),
    // Beside ordinary aggregates, in any order.
    (
        "SELECT count(*), exact_quantiles(x, 0.5), min(f), exact_quantiles(f, [0.1]), sum(id) FROM t",
        2,
    ),
    (
        "SELECT exact_quantiles(CAST(few AS TEXT), 0.5), exact_quantiles(x, 0.5) FROM t",
        2,
    ),
    // Distinct values, of each column by themselves.
    (
        "SELECT exact_quantiles(DISTINCT few, [0.5, 0.1]), exact_quantiles(DISTINCT x, 0.5), \
         exact_quantiles(x, 0.5), exact_quantiles(DISTINCT few, 0.9) FROM t",
        6,
    ),
    ("SELECT exact_quantiles(DISTINCT f, 0.5) FROM t", 0),
    (
        "SELECT exact_quantiles(x, 0.5) FROM (SELECT x FROM t ORDER BY id LIMIT 100)",
        0,
    ),
    (
        "SELECT few, exact_quantiles(x, 0.5), count(*) FROM t GROUP BY few ORDER BY few",
        0,
    ),
    (
        "SELECT few, approx_percentile_gk(x, 0.5) FROM t GROUP BY few ORDER BY few",
        0,
    ),
    ("SELECT exact_quantiles(CAST(x AS TEXT), 0.5), count(*) FROM t", 0),
    (
        "SELECT exact_quantiles(x + CAST(random() AS BIGINT), 0.5) IS NULL FROM t",
        0,
    ),
];

/// The same rows for the operator and for stages.
fn both(rows: usize, partitions: usize) -> (SessionContext, SessionContext) {
    let (one, staged) = (session(partitions), staged_session(partitions));
    register_rows(&one, rows, partitions);
    register_rows(&staged, rows, partitions);
    (one, staged)
}

/// The answer, which must be one.
async fn same_answer(one: &SessionContext, staged: &SessionContext, sql: &str, rows: usize) -> Vec<String> {
    let expected = texts(&query(one, sql).await.unwrap());
    let found = query(staged, sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let partitions = staged.state().config().target_partitions();
    assert_eq!(
        texts(&found),
        expected,
        "{sql} of {rows} rows in {partitions} partitions"
    );
    expected
}

#[tokio::test]
async fn stages_answer_as_the_operator_does() {
    for (rows, partitions) in [(1, 1), (5000, 1), (5000, 4), (40_000, 3), (40_000, 16)] {
        let (one, staged) = both(rows, partitions);
        for (sql, reads) in STATEMENTS {
            let expected = same_answer(&one, &staged, sql, rows).await;
            let plan = physical_plan(&staged, sql).await;
            assert_eq!(plan.matches("RoundExec").count(), reads, "{sql}\n{plan}");
            for (strategy, more) in [("distributed_bms", 1), ("dibms", 3)] {
                query(&staged, &format!("SET quantiles.strategy = '{strategy}'"))
                    .await
                    .unwrap();
                let found = query(&staged, sql).await.unwrap();
                assert_eq!(texts(&found), expected, "{strategy}: {sql} of {rows} rows");
                let plan = physical_plan(&staged, sql).await;
                let reads = reads + reads / 2 * more;
                assert_eq!(plan.matches("RoundExec").count(), reads, "{sql}\n{plan}");
                assert_eq!(
                    plan.matches(&format!("strategy={strategy}")).count(),
                    reads,
                    "{sql}\n{plan}"
                );
            }
            query(&staged, "SET quantiles.strategy = 'auto'").await.unwrap();
            assert_eq!(plan.matches("RefineExec").count(), reads, "{sql}\n{plan}");
            assert!(!plan.contains("QuantilesExec"), "{sql}\n{plan}");
        }
    }
}

/// Statements with groups, and whether stages answer them where they are asked for by name.
const GROUPED: [(&str, bool); 13] = [
    (
        "SELECT few, exact_quantiles(x, [0.5, 0.1, 1]) FROM t GROUP BY few ORDER BY few",
        true,
    ),
    (
        "SELECT id % 100 AS k, exact_quantiles(x, 0.5), exact_quantiles(f, [0.1, 0.9], 'linear'), \
         exact_quantiles(d, 0.3), exact_quantiles(day, 0.5, 'midpoint') FROM t GROUP BY id % 100 ORDER BY k",
        true,
    ),
    (
        "SELECT CAST(few AS TEXT) AS s, id % 2 AS k, exact_quantiles(0.2) WITHIN GROUP (ORDER BY f DESC) FROM t \
         GROUP BY CAST(few AS TEXT), id % 2 ORDER BY s, k",
        true,
    ),
    (
        "SELECT few, exact_quantiles(x, 0.5) FILTER (WHERE id % 3 = 0), exact_quantiles(x, 0.5) FILTER (WHERE false), \
         exact_quantiles(1000 / id, 0.5) FILTER (WHERE id <> 0) FROM t GROUP BY few ORDER BY few",
        true,
    ),
    (
        "SELECT CASE WHEN id % 5 = 0 THEN NULL ELSE id % 5 END AS k, exact_quantiles(x, 0.5) AS m FROM t WHERE id > 9 \
         GROUP BY 1 HAVING exact_quantiles(x, 0.5) IS NOT NULL ORDER BY k NULLS FIRST",
        true,
    ),
    (
        "SELECT few, exact_quantiles(x, 0.5) FROM t WHERE id < 0 GROUP BY few",
        true,
    ),
    (
        "SELECT exact_quantiles(m, 0.5) FROM (SELECT id % 7 AS k, exact_quantiles(f, 0.5) AS m FROM t GROUP BY id % 7)",
        true,
    ),
    (
        "SELECT few, exact_quantiles(x, 0.5), count(*) FROM t GROUP BY few ORDER BY few",
        false,
    ),
    (
        "SELECT few, exact_quantiles(DISTINCT x, 0.5) FROM t GROUP BY few ORDER BY few",
        false,
    ),
    (
        "SELECT few, exact_quantiles(CAST(x AS TEXT), 0.5) FROM t GROUP BY few ORDER BY few",
        false,
    ),
    (
        "SELECT f, exact_quantiles(x, 0.5) FROM t GROUP BY f ORDER BY f",
        false,
    ),
    (
        "SELECT few, exact_quantiles(x, 0.5) FROM (SELECT few, x FROM t ORDER BY id LIMIT 100) GROUP BY few ORDER BY few",
        false,
    ),
    (
        "SELECT few, id % 2 AS k, exact_quantiles(x, 0.5) FROM t GROUP BY GROUPING SETS ((few), (few, id % 2)) \
         ORDER BY few, k NULLS LAST",
        false,
    ),
];

#[tokio::test]
async fn groups_in_stages_are_answered_as_the_operator_does() {
    for (rows, partitions) in [(1, 1), (3000, 4), (40_000, 3), (40_000, 16)] {
        let (one, staged) = both(rows, partitions);
        query(&staged, "SET quantiles.strategy = 'gk_select'")
            .await
            .unwrap();
        for (sql, in_stages) in GROUPED {
            same_answer(&one, &staged, sql, rows).await;
            let plan = physical_plan(&staged, sql).await;
            let nodes = if in_stages { 4 } else { 0 };
            assert_eq!(
                plan.matches("GroupStageExec").count() % 100,
                nodes * plan_copies(sql),
                "{sql}\n{plan}"
            );
        }
    }
}

/// A call over groups' answers reads them twice.
fn plan_copies(sql: &str) -> usize {
    if sql.contains("exact_quantiles(m,") { 2 } else { 1 }
}

#[tokio::test]
async fn groups_of_every_pattern_are_answered_in_stages() {
    for pattern in quantiles_testing::patterns::ALL {
        let (one, staged) = (session(4), staged_session(4));
        let rows = 60_000;
        let groups = Pattern::Zipf.words(rows, 11);
        let columns: Vec<(&str, ArrayRef)> = vec![
            (
                "g",
                Arc::new(Int64Array::from_iter_values(
                    groups.iter().map(|group| group % 300),
                )),
            ),
            ("x", Arc::new(Int64Array::from(pattern.words(rows, 3)))),
            ("f", Arc::new(Float64Array::from(pattern.floats(rows, 5)))),
        ];
        let rows = batch(columns);
        register(&one, "t", &rows, 4, 1000);
        register(&staged, "t", &rows, 4, 1000);
        query(&staged, "SET quantiles.strategy = 'gk_select'")
            .await
            .unwrap();
        for replaced in [false, true] {
            let set = format!("SET quantiles.replace_builtins = {replaced}");
            query(&one, &set).await.unwrap();
            query(&staged, &set).await.unwrap();
            for sql in [
                "SELECT g, exact_quantiles(x, [0, 0.1, 0.5, 0.9, 1]), exact_quantiles(f, 0.5, 'linear') FROM t \
                 GROUP BY g ORDER BY g",
                "SELECT g, median(f), percentile_cont(0.9) WITHIN GROUP (ORDER BY f) FROM t GROUP BY g ORDER BY g",
            ] {
                let expected = texts(&query(&one, sql).await.unwrap());
                let found = texts(&query(&staged, sql).await.unwrap());
                assert_eq!(found, expected, "{pattern:?}: {sql}");
            }
        }
    }
}

#[tokio::test]
async fn groups_of_text_files_are_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("few.csv");
    let lines: String = (0..1000).map(|i| format!("{},{i}\n", i % 7)).collect();
    std::fs::write(&path, format!("g,x\n{lines}")).unwrap();
    let staged = staged_session(4);
    let create = format!(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{}'",
        path.display()
    );
    query(&staged, &create).await.unwrap();
    let sql = "SELECT g, exact_quantiles(x, 0.5) FROM t GROUP BY g";
    let plan = physical_plan(&staged, sql).await;
    assert!(!plan.contains("GroupStageExec"), "{plan}");
    query(&staged, "SET quantiles.strategy = 'gk_select'")
        .await
        .unwrap();
    let plan = physical_plan(&staged, sql).await;
    assert!(plan.contains("GroupStageExec"), "{plan}");
}
