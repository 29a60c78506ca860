//! Constant arguments where the optimizer has moved them or takes them for something else, and aggregates with an order of
//! their own beside quantiles.

use quantiles_testing::samples::{expect, table, values};
use quantiles_testing::*;

#[tokio::test]
async fn a_parameter_may_come_twice_in_a_prepared_statement() {
    let ctx = session(2);
    let kept = values(&table(&ctx, 500, 2));
    let small: Vec<i64> = kept.iter().copied().filter(|x| *x < 50).collect();
    for sql in [
        "PREPARE filtered(DOUBLE) AS SELECT exact_quantiles(x, $1) FILTER (WHERE x < $1 * 100) FROM t",
        "PREPARE two(DOUBLE) AS SELECT exact_quantiles(x, $1), exact_quantiles(f, $1) FROM t WHERE f < 1000",
        "PREPARE lists(DOUBLE) AS SELECT exact_quantiles(x, [$1, 1]), exact_quantiles(f, [$1, 1]) FROM t",
        "PREPARE over(DOUBLE) AS SELECT DISTINCT exact_quantiles(x, $1) OVER (), sum(x * $1) OVER () IS NULL FROM t",
        "PREPARE top(BIGINT) AS SELECT topk_by(x, g * $1, $1), count(*) > $1 FROM t WHERE x IS NOT NULL",
        "PREPARE near(DOUBLE) AS SELECT approx_percentile_gk(x, $1), approx_percentile_gk(f, $1) FROM t",
    ] {
        query(&ctx, sql).await.unwrap();
    }
    assert_eq!(row(&ctx, "EXECUTE filtered(0.5)").await, expect(&small, 500));
    let literally = [
        (
            "EXECUTE two(0.25)",
            "SELECT exact_quantiles(x, 0.25), exact_quantiles(f, 0.25) FROM t",
        ),
        (
            "EXECUTE lists(0.25)",
            "SELECT exact_quantiles(x, [0.25, 1]), exact_quantiles(f, [0.25, 1]) FROM t",
        ),
        (
            "EXECUTE over(0.25)",
            "SELECT exact_quantiles(x, 0.25), false FROM t",
        ),
        (
            "EXECUTE top(3)",
            "SELECT topk_by(x, g * 3, 3), true FROM t WHERE x IS NOT NULL",
        ),
        (
            "EXECUTE near(0.25)",
            "SELECT approx_percentile_gk(x, 0.25), approx_percentile_gk(f, 0.25) FROM t",
        ),
    ];
    for (prepared, literal) in literally {
        assert_eq!(row(&ctx, prepared).await, row(&ctx, literal).await, "{prepared}");
    }
    let said = error(&ctx, "EXECUTE two(2)").await;
    assert!(
        said.contains("exact_quantiles: quantile 2 is out of range"),
        "{said}"
    );
}

#[tokio::test]
async fn distinct_calls_may_have_equal_arguments() {
    let ctx = session(2);
    table(&ctx, 500, 2);
    for (call, answer) in [
        ("topk_by(DISTINCT 2, 2, 2)", "[2]"),
        ("topk_by(DISTINCT 2, 2, 2, 'asc')", "[2]"),
        ("topk_by(DISTINCT 1 + 1, 2, 2)", "[2]"),
        ("max_by(DISTINCT 2, 2, 2)", "[2]"),
        ("min_by(DISTINCT 3, 3, 3)", "[3]"),
        ("max_by(DISTINCT 2, 2)", "2"),
        ("max_by(DISTINCT g, g)", "4"),
        ("min_by(DISTINCT g + 0, g)", "0"),
        ("topk_by(DISTINCT g, g, 2)", "[4, 3]"),
        ("exact_quantiles(DISTINCT 0.5, 0.5)", "0.5"),
        ("exact_quantiles(DISTINCT 1, 1), count(DISTINCT 1)", "1 | 1"),
        ("approx_percentile_gk(DISTINCT 0.5, 0.5)", "0.5"),
        ("topk_by(DISTINCT 2, 2, 2) FILTER (WHERE false)", "NULL"),
    ] {
        assert_eq!(
            row(&ctx, &format!("SELECT {call} FROM t")).await,
            answer,
            "{call}"
        );
        let grouped = format!("SELECT {call} FROM t WHERE g = 4 OR g = 3 OR g = 0 GROUP BY g IS NULL");
        assert_eq!(row(&ctx, &grouped).await, answer, "{grouped}");
    }
    assert_eq!(
        names(&ctx, "SELECT topk_by(DISTINCT 2, 2, 2) FROM t").await,
        ["topk_by(DISTINCT Int64(2),Int64(2),Int64(2))"]
    );
    for (prepared, executed, answer) in [
        (
            "top(BIGINT) AS SELECT topk_by(DISTINCT 2, 2, $1) FROM t",
            "top(2)",
            "[2]",
        ),
        (
            "some(BIGINT) AS SELECT topk_by(DISTINCT g, g, $1) FROM t",
            "some(2)",
            "[4, 3]",
        ),
        (
            "same(DOUBLE) AS SELECT exact_quantiles(DISTINCT $1, $1) FROM t",
            "same(0.5)",
            "0.5",
        ),
    ] {
        query(&ctx, &format!("PREPARE {prepared}")).await.unwrap();
        assert_eq!(
            row(&ctx, &format!("EXECUTE {executed}")).await,
            answer,
            "{prepared}"
        );
    }
}

#[tokio::test]
async fn bounds_from_a_sample_stand_beside_aggregates_with_an_order_of_their_own() {
    let ctx = session(3);
    let numbers = "CREATE TABLE numbers AS SELECT value AS x FROM range(1, 1001)";
    query(&ctx, numbers).await.unwrap();
    let all = "percentile_cont(0.25) WITHIN GROUP (ORDER BY x DESC), percentile_cont(x, 0.25), \
         first_value(x ORDER BY x % 10, x DESC), last_value(x ORDER BY x % 10, x), \
         array_agg(x ORDER BY x % 7, x) FILTER (WHERE x < 9), array_agg(x * 2 ORDER BY x DESC) FILTER (WHERE x < 4), \
         first_value(x ORDER BY x DESC) FILTER (WHERE x % 100 = 7)";
    let answers = "750.25 | 250.75 | 1000 | 999 | [7, 1, 8, 2, 3, 4, 5, 6] | [6, 4, 2] | 907";
    for replaced in ["true", "false"] {
        query(&ctx, &format!("SET quantiles.replace_builtins = {replaced}"))
            .await
            .unwrap();
        let sampled = format!("SELECT {all}, approx_percentile_sample_bounds(x, 0.5)['n'] FROM numbers");
        assert_eq!(row(&ctx, &sampled).await, format!("{answers} | 1000"));
        let exactly = format!("SELECT exact_quantiles(x, 0.5), {all} FROM numbers");
        assert_eq!(row(&ctx, &exactly).await, format!("500 | {answers}"));
        let plan = physical_plan(&ctx, &exactly).await;
        assert!(plan.contains("QuantilesExec"), "{plan}");
    }
    let sorted = "SELECT approx_percentile_sample_bounds(x, 0.5), nth_value(x, 2 ORDER BY x) FROM numbers";
    let said = error(&ctx, sorted).await;
    assert!(
        said.contains("beside aggregates that need no sorted rows"),
        "{said}"
    );
}
