//! The functions under other systems' names.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use datafusion_quantiles::SessionStateBuilderExt;

use quantiles_testing::{batch, error, names, physical_plan, query, register, row, rows, session};

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
