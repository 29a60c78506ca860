//! The functions under other systems' names.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionContext, col, lit};
use datafusion_quantiles::functions::expr_fn::exact_quantiles;
use datafusion_quantiles::{Method, SessionStateBuilderExt, statement};

use quantiles_testing::{batch, error, names, physical_plan, query, register, row, rows, session, texts};

fn context() -> SessionContext {
    let ctx = session(2);
    numbers(&ctx);
    ctx
}

/// `t(g, x)`: 1 to 100 in x, its last digit in g.
fn numbers(ctx: &SessionContext) {
    let x: ArrayRef = Arc::new(Int64Array::from_iter_values((0..100).map(|i| 1 + i * 37 % 100)));
    let g: ArrayRef = Arc::new(Int64Array::from_iter_values(
        (0..100).map(|i| (1 + i * 37 % 100) % 10),
    ));
    register(ctx, "t", &batch(vec![("g", g), ("x", x)]), 3, 7);
}

#[tokio::test]
async fn each_name_runs_in_the_operator_and_keeps_its_column_name() {
    let ctx = context();
    for (call, answer, name) in [
        ("quantile_disc(x, 0.5)", "50", "quantile_disc(t.x,Float64(0.5))"),
        ("quantile_cont(x, 0.5)", "50.5", "quantile_cont(t.x,Float64(0.5))"),
        (
            "percentile_disc(x, 0.5)",
            "50",
            "percentile_disc(t.x,Float64(0.5))",
        ),
        (
            "percentile_disc(0.1) WITHIN GROUP (ORDER BY x DESC)",
            "91",
            "percentile_disc(Float64(0.1)) WITHIN GROUP [t.x DESC NULLS FIRST]",
        ),
        (
            "quantile_cont(0.1) WITHIN GROUP (ORDER BY x)",
            "10.9",
            "quantile_cont(Float64(0.1)) WITHIN GROUP [t.x ASC NULLS LAST]",
        ),
    ] {
        let sql = format!("SELECT {call} FROM t");
        assert_eq!(row(&ctx, &sql).await, answer, "{call}");
        assert_eq!(names(&ctx, &sql).await, [name]);
        let plan = physical_plan(&ctx, &sql).await;
        assert!(plan.contains("QuantilesExec"), "{plan}");
        let filtered = format!("SELECT {call} FILTER (WHERE x > 1000) FROM t");
        assert_eq!(row(&ctx, &filtered).await, "NULL");
    }
}

#[tokio::test]
async fn groups_windows_and_distinct_values() {
    let ctx = context();
    let grouped = "SELECT g, quantile_disc(x, 0.5), quantile_cont(x, 0.5), percentile_disc(0.5) WITHIN GROUP \
                   (ORDER BY x DESC) FROM t WHERE g < 2 GROUP BY g ORDER BY g";
    assert_eq!(
        rows(&ctx, grouped).await,
        ["0 | 50 | 55.0 | 60", "1 | 41 | 46.0 | 51"]
    );
    assert_eq!(
        row(
            &ctx,
            "SELECT quantile_disc(DISTINCT g, 0.5), quantile_cont(DISTINCT g, [0.5]) FROM t"
        )
        .await,
        "4 | [4.5]"
    );
    let window =
        "SELECT DISTINCT quantile_cont(x, 0.5) OVER (PARTITION BY g) AS q FROM t WHERE g < 2 ORDER BY q";
    assert_eq!(rows(&ctx, window).await, ["46.0", "55.0"]);
}

#[tokio::test]
async fn prepared_statements_bind_quantiles() {
    let ctx = context();
    for (call, answer) in [
        ("quantile_cont(x, $1)", "25.75"),
        ("percentile_disc($1) WITHIN GROUP (ORDER BY x)", "25"),
    ] {
        query(&ctx, &format!("PREPARE p(DOUBLE) AS SELECT {call} FROM t"))
            .await
            .unwrap();
        assert_eq!(row(&ctx, "EXECUTE p(0.25)").await, answer);
        let refused = error(&ctx, "EXECUTE p(1.25)").await;
        let function = call.split('(').next().unwrap();
        assert_eq!(
            refused,
            format!(
                "Error during planning: {function}: quantile 1.25 is out of range: allowed is a number from 0 to 1"
            )
        );
        query(&ctx, "DEALLOCATE p").await.unwrap();
    }
}

#[tokio::test]
async fn errors_name_the_function_that_was_written() {
    let ctx = context();
    for (call, message) in [
        (
            "quantile_disc(x)",
            "quantile_disc takes 2 or 3 arguments, got 1: the values, a constant quantile or list of quantiles from 0 to 1, and optionally a weight",
        ),
        (
            "quantile_cont(x, 0.5, 'linear')",
            "quantile_cont: weights must be integers or decimals, got Utf8",
        ),
        (
            "quantile_cont(x, 'half')",
            "quantile_cont: a quantile must be a number from 0 to 1, got half of type Utf8",
        ),
        (
            "percentile_disc(x) WITHIN GROUP (ORDER BY x)",
            "percentile_disc: quantiles must be a constant number or list of numbers from 0 to 1, got t.x",
        ),
        (
            "quantile_disc(x, 0.5) RESPECT NULLS",
            "quantile_disc skips NULLs: RESPECT NULLS is not allowed",
        ),
        (
            "exact_median(x, 0.5)",
            "write median(..): what stands in for it is not called by name",
        ),
    ] {
        let refused = error(&ctx, &format!("EXPLAIN SELECT {call} FROM t")).await;
        assert_eq!(refused, format!("Error during planning: {message}"), "{call}");
    }
}

/// DataFusion gives `quantile_cont` to `percentile_cont` as an alias; a state's functions are rebuilt in any order.
#[tokio::test]
async fn quantile_cont_is_ours_however_often_the_state_is_rebuilt() {
    let integers = "SELECT quantile_cont(x, [0.5]) FROM t";
    for _ in 0..8 {
        let ctx = context();
        datafusion_quantiles::register_all(&ctx).unwrap();
        let state = SessionStateBuilder::new_from_existing(ctx.state()).build();
        let rebuilt = SessionContext::new_with_state(state);
        let state = SessionStateBuilder::new()
            .with_default_features()
            .with_quantiles()
            .build();
        let built = SessionContext::new_with_state(SessionStateBuilder::new_from_existing(state).build());
        numbers(&built);
        for ctx in [&ctx, &rebuilt, &built] {
            assert_eq!(row(ctx, integers).await, "[50.5]");
            assert_eq!(
                row(
                    ctx,
                    "SELECT percentile_cont(0.25) WITHIN GROUP (ORDER BY x DESC), percentile_cont(x, 0.25) FROM t"
                )
                .await,
                "75.25 | 25.75"
            );
            let plan = physical_plan(ctx, "SELECT percentile_cont(x, 0.25) FROM t").await;
            assert!(!plan.contains("QuantilesExec"), "{plan}");
        }
    }
}

/// The rows of a statement that is rewritten before it is planned.
async fn rewritten(ctx: &SessionContext, sql: &str) -> Vec<String> {
    let answer = statement::sql(ctx, sql).await.unwrap().collect().await.unwrap();
    texts(&answer)
}

#[tokio::test]
async fn ordered_sets_over_windows_have_the_answers_of_their_groups() {
    let ctx = context();
    for replaces in [false, true] {
        query(&ctx, &format!("SET quantiles.replace_builtins = {replaces}"))
            .await
            .unwrap();
        for call in [
            "percentile_cont(0.3) WITHIN GROUP (ORDER BY x)",
            "percentile_cont(0.1) WITHIN GROUP (ORDER BY x DESC)",
            "percentile_cont(0) WITHIN GROUP (ORDER BY x DESC)",
            "percentile_cont([0.1, 0.7]) WITHIN GROUP (ORDER BY x DESC)",
            "percentile_disc(0.1) WITHIN GROUP (ORDER BY x DESC NULLS LAST) FILTER (WHERE x > 20)",
            "percentile_disc([0.1, 0.2]) WITHIN GROUP (ORDER BY -x)",
            "exact_quantiles(0.1, 'hazen') WITHIN GROUP (ORDER BY x DESC)",
            "percentile_disc(0.4, g + 1) WITHIN GROUP (ORDER BY x)",
            "exact_rank([20, 50]) WITHIN GROUP (ORDER BY x DESC)",
            "mode() WITHIN GROUP (ORDER BY x)",
            "approx_percentile_gk(0.1, 1000) WITHIN GROUP (ORDER BY x DESC)",
            "approx_percentile_cont(0.1) WITHIN GROUP (ORDER BY x DESC)",
            "approx_percentile_cont_with_weight(g + 1, 0.3) WITHIN GROUP (ORDER BY x DESC)",
        ] {
            let windows = format!("SELECT DISTINCT g, {call} OVER (PARTITION BY g) AS a FROM t ORDER BY g");
            let groups = format!("SELECT g, {call} AS a FROM t GROUP BY g ORDER BY g");
            assert_eq!(
                rewritten(&ctx, &windows).await,
                rows(&ctx, &groups).await,
                "{call}"
            );
            let refused = error(&ctx, &windows).await;
            assert!(
                refused.contains("OVER and WITHIN GROUP clause cannot be used together"),
                "{refused}"
            );
        }
    }
    let moving = "OVER (ORDER BY x ROWS BETWEEN 4 PRECEDING AND CURRENT ROW)";
    assert_eq!(
        rewritten(
            &ctx,
            &format!(
                "SELECT percentile_disc(0.25) WITHIN GROUP (ORDER BY x DESC) {moving} FROM t ORDER BY x"
            )
        )
        .await,
        rows(
            &ctx,
            &format!("SELECT percentile_disc_desc(x, 0.25) {moving} FROM t ORDER BY x")
        )
        .await
    );
}

#[tokio::test]
async fn ordered_sets_over_windows_stand_wherever_a_query_can() {
    let ctx = context();
    let call = "percentile_disc(0.1) WITHIN GROUP (ORDER BY x DESC) OVER (PARTITION BY g)";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.csv");
    for (sql, expected) in [
        (format!("SELECT max(q) FROM (SELECT {call} AS q FROM t)"), "100"),
        (
            format!("WITH w AS (SELECT {call} AS q FROM t) SELECT min(q) FROM w"),
            "91",
        ),
        (format!("SELECT x FROM t QUALIFY {call} = x AND g = 3"), "93"),
        (
            format!("COPY (SELECT {call} AS q FROM t) TO '{}'", file.display()),
            "100",
        ),
    ] {
        assert_eq!(rewritten(&ctx, &sql).await, [expected], "{sql}");
    }
    for (sql, asked, expected) in [
        (format!("CREATE VIEW v AS SELECT {call} AS q FROM t"), "SELECT max(q) FROM v", "100"),
        (format!("CREATE TABLE c AS SELECT {call} AS q FROM t"), "SELECT min(q) FROM c", "91"),
        (
            "PREPARE p(DOUBLE) AS SELECT DISTINCT percentile_cont($1) WITHIN GROUP (ORDER BY x DESC) OVER () FROM t".to_owned(),
            "EXECUTE p(0.25)",
            "75.25",
        ),
    ] {
        rewritten(&ctx, &sql).await;
        assert_eq!(row(&ctx, asked).await, expected, "{sql}");
    }
    // The definition of a view has the rewritten call, which plans without being rewritten.
    let defined = "SELECT max(q) FROM (SELECT percentile_disc(within_group(x, false), 0.1) OVER (PARTITION BY g) AS q FROM t)";
    assert_eq!(row(&ctx, defined).await, "100");
    let explained = rewritten(&ctx, &format!("EXPLAIN SELECT {call} FROM t"))
        .await
        .join("\n");
    assert!(!explained.contains("within_group"), "{explained}");
    let summary = rewritten(&ctx, &format!("SUMMARIZE SELECT {call} AS q FROM t")).await;
    assert!(
        summary[0].starts_with("q | Int64 | 100 | 0 | NULL | 10"),
        "{summary:?}"
    );
}

#[tokio::test]
async fn the_column_of_an_ordered_set_over_a_window_says_its_order() {
    let ctx = context();
    let sql = "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x DESC) OVER (PARTITION BY g), \
               percentile_cont(0.5) WITHIN GROUP (ORDER BY x) OVER (PARTITION BY g) FROM t";
    let frame = statement::sql(&ctx, sql).await.unwrap();
    let found: Vec<_> = frame
        .schema()
        .fields()
        .iter()
        .map(|field| field.name().as_str())
        .collect();
    let rest = " Float64(0.5)) PARTITION BY [t.g] ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING";
    assert_eq!(
        found,
        [
            format!("percentile_cont(t.x DESC NULLS FIRST,{rest}"),
            format!("percentile_cont(t.x ASC NULLS LAST,{rest}"),
        ]
    );
}

#[tokio::test]
async fn what_is_no_ordered_set_over_a_window_is_refused() {
    let ctx = context();
    for (call, message) in [
        (
            "sum() WITHIN GROUP (ORDER BY x)",
            "WITHIN GROUP is only supported for ordered-set aggregate functions: sum is none",
        ),
        (
            "iqr() WITHIN GROUP (ORDER BY x)",
            "WITHIN GROUP is only supported for ordered-set aggregate functions: iqr is none",
        ),
        (
            "rank(3) WITHIN GROUP (ORDER BY x)",
            "rank takes WITHIN GROUP or OVER, not both",
        ),
        (
            "percentile_cont(1.5) WITHIN GROUP (ORDER BY x DESC)",
            "percentile_cont: quantile 1.5 is out of range: allowed is a number from 0 to 1",
        ),
        (
            "percentile_disc(0.5) WITHIN GROUP (ORDER BY x, g)",
            "Only a single ordering expression is permitted in a WITHIN GROUP clause",
        ),
        (
            "percentile_disc(within_group(x, g), 0.5)",
            "within_group stands for WITHIN GROUP, and is not called by name",
        ),
    ] {
        let failed = statement::sql(&ctx, &format!("SELECT {call} OVER () FROM t")).await;
        let refused = failed
            .err()
            .map(|error| error.strip_backtrace())
            .unwrap_or_default();
        assert!(refused.contains(message), "{call}: {refused}");
    }
    let outside = error(&ctx, "SELECT within_group(x, true) FROM t").await;
    assert!(outside.contains("WITHIN GROUP together with OVER"), "{outside}");
}

/// The examples of ClickHouse's documentation, over `numbers(n)`, which are 0 to n - 1.
#[tokio::test]
async fn clickhouse_s_functions_have_clickhouse_s_answers() {
    let ctx = session(2);
    for (n, call, expected) in [
        (10, "quantileExact(0.5)(number)", "5"),
        (10, "medianExact(number)", "5"),
        (10, "quantileExactLow(0.5)(number)", "4"),
        (10, "medianExactLow(number)", "4"),
        (10, "quantileExactLow(0.1)(number)", "1"),
        (10, "quantileExactHigh(0.1)(number)", "1"),
        (10, "medianExactHigh(number)", "5"),
        (10, "quantilesExactLow(0.25, 0.5, 0.75)(number)", "[2, 4, 7]"),
        (10, "quantilesExactHigh(0.25, 0.5, 0.75)(number)", "[2, 5, 7]"),
        (10, "quantilesExact(0.5)(number)", "[5]"),
        (10, "quantileExact(1)(number)", "9"),
        (5, "quantileExactInclusive(0.25)(number)", "1.0"),
        (5, "quantileExactExclusive(0.25)(number)", "0.5"),
        (10, "quantileExactInclusive(0.1)(number)", "0.9"),
        (1000, "quantileExactInclusive(0.6)(number)", "599.4"),
        (1000, "quantileExactExclusive(0.6)(number)", "599.6"),
        (
            1000,
            "quantilesExactExclusive(0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)(number)",
            "[249.25, 499.5, 749.75, 899.9, 949.95, 989.99, 998.999]",
        ),
        (10, "quantileExact(0.9)(number) FILTER (WHERE number < 5)", "4"),
        (
            10,
            "max(q) FROM (SELECT quantileExact(0.5)(number) OVER (PARTITION BY number % 2) AS q",
            "5",
        ),
        // Without two pairs of parentheses.
        (10, "quantile_exact(number, [0, 0.5, 1])", "[0, 5, 9]"),
        (10, "quantile_exact(0.1) WITHIN GROUP (ORDER BY number DESC)", "8"),
        (10, "quantile_exact(DISTINCT number / 5, 0.5)", "1"),
    ] {
        let closing = if call.contains("FROM (") { ")" } else { "" };
        let sql = format!("SELECT {call} FROM (SELECT value AS number FROM range(0, {n})){closing}");
        assert_eq!(rewritten(&ctx, &sql).await, [expected], "{sql}");
    }
    let weighted = "FROM (VALUES (0, 3), (1, 2), (2, 1), (5, 4)) AS t(n, val)";
    for call in [
        "medianExactWeighted(n, val)",
        "quantileExactWeighted(0.5)(n, val)",
        "quantile_exact_weighted(n, 0.5, val)",
    ] {
        assert_eq!(
            rewritten(&ctx, &format!("SELECT {call} {weighted}")).await,
            ["1"],
            "{call}"
        );
    }
    let many = format!("SELECT quantilesExactWeighted(0.2, 0.6, 0.61)(n, val) {weighted}");
    assert_eq!(rewritten(&ctx, &many).await, ["[0, 2, 5]"]);
}

/// Programs name the methods that have a name of their own in SQL.
#[tokio::test]
async fn methods_of_other_systems_are_there_without_sql() {
    let ctx = context();
    for (method, expected) in [
        (Method::ClickHouse, "51 | 50"),
        (Method::ClickHouseLow, "50 | 51"),
        (Method::SparkPercentile, "50.5 | 50.5"),
    ] {
        let call = |descending| exact_quantiles(col("x"), lit(0.5), method, descending);
        let frame = ctx.table("t").await.unwrap();
        let frame = frame
            .aggregate(Vec::new(), vec![call(false), call(true)])
            .unwrap();
        assert_eq!(texts(&frame.collect().await.unwrap()), [expected], "{method}");
    }
}

#[tokio::test]
async fn clickhouse_s_functions_skip_nan() {
    let ctx = session(2);
    let values =
        "FROM (VALUES (1.0, 1), ('NaN'::double, 5), (2.0, 1), (NULL, 1), (-'NaN'::double, 1)) AS t(x, w)";
    for (call, expected) in [
        ("quantile_exact(x, 1)", "2.0"),
        ("quantile_exact_high(x, 0.5)", "2.0"),
        ("median_exact_low(x)", "1.0"),
        ("quantile_exact_inclusive(x, 0.5)", "1.5"),
        ("quantile_exact_exclusive(x::float, 0.5)", "1.5"),
        ("quantile_exact_weighted(x, 0.5, w)", "1.0"),
        ("exact_quantiles(x, 1)", "NaN"),
    ] {
        assert_eq!(
            row(&ctx, &format!("SELECT {call} {values}")).await,
            expected,
            "{call}"
        );
    }
}

#[tokio::test]
async fn clickhouse_s_functions_never_take_a_dropped_level_for_the_median() {
    let ctx = context();
    // DataFusion's planner drops the level; statement::sql keeps it.
    for call in [
        "quantileExact(0.9)(x)",
        "quantileExact(x)",
        "quantilesExactLow(0.9)(x)",
    ] {
        let refused = error(&ctx, &format!("SELECT {call} FROM t")).await;
        assert!(
            refused.contains("takes 2 arguments, got 1") && refused.contains("statement::sql"),
            "{call}: {refused}"
        );
    }
    for (call, message) in [
        (
            "quantileExact(0.1, 0.9)(x)",
            "quantile_exact takes 2 arguments, got 1",
        ),
        (
            "quantileExact(2)(x)",
            "quantile_exact: quantile 2 is out of range",
        ),
        (
            "quantileExactWeighted(0.5)(x)",
            "quantile_exact_weighted takes 3 arguments, got 2",
        ),
        (
            "medianExactWeighted(x)",
            "median_exact_weighted takes 2 arguments, got 1",
        ),
        ("medianExact(x, 0.5)", "median_exact takes 1 argument, got 2"),
        (
            "quantile_exact(x, 0.5, g)",
            "quantile_exact takes 2 arguments, got 3",
        ),
    ] {
        let failed = statement::sql(&ctx, &format!("SELECT {call} FROM t")).await;
        let refused = failed
            .err()
            .map(|error| error.strip_backtrace())
            .unwrap_or_default();
        assert!(refused.contains(message), "{call}: {refused}");
    }
}
