//! Quantiles as stages, in one process: the same answers as the operator's, from two reads.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Date32Array, Decimal128Array, Float64Array, Int64Array};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_quantiles::{QuantilesPlanner, SessionStateBuilderExt};

use crate::patterns::Pattern;
use crate::support::*;

pub(crate) fn staged_session(partitions: usize) -> SessionContext {
    let state = SessionStateBuilder::new()
        .with_config(SessionConfig::new().with_target_partitions(partitions))
        .with_default_features()
        .with_query_planner(Arc::new(QuantilesPlanner::staged()))
        .with_quantiles()
        .build();
    SessionContext::new_with_state(state)
}

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

#[tokio::test]
async fn stages_answer_as_the_operator_does() {
    for (rows, partitions) in [(1, 1), (5000, 1), (5000, 4), (40_000, 3), (40_000, 16)] {
        let (one, staged) = (session(partitions), staged_session(partitions));
        register_rows(&one, rows, partitions);
        register_rows(&staged, rows, partitions);
        for (sql, reads) in STATEMENTS {
            let expected = texts(&query(&one, sql).await.unwrap());
            let found = query(&staged, sql)
                .await
                .unwrap_or_else(|error| panic!("{sql}: {error}"));
            assert_eq!(
                texts(&found),
                expected,
                "{sql} of {rows} rows in {partitions} partitions"
            );
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
