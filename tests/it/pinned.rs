//! Statements about pinned tables on a machine that may have no device: what is refused, and that nothing else changes.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, FixedSizeListArray, Float64Array, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type, TimeUnit};
use datafusion::common::DataFusionError;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use datafusion_quantiles::config::DeviceChoice;
use datafusion_quantiles::exec::staged::RoundDevice;
use datafusion_quantiles::pinned::pin_table;
use datafusion_quantiles::planner::{QuantilesPlanner, SessionStateBuilderExt};
use quantiles_testing::patterns::Pattern;
use quantiles_testing::{
    batch, error, physical_plan, query, register, row, session, set, staged_session, texts,
};

/// A table of columns made of `value`, which runs through `range`.
async fn make(ctx: &SessionContext, table: &str, columns: &str, range: &str) {
    let sql = format!("CREATE TABLE {table} AS SELECT {columns} FROM generate_series({range})");
    query(ctx, &sql).await.unwrap();
}

/// The error of a statement about pinned tables.
async fn refusal(ctx: &SessionContext, sql: &str) -> String {
    datafusion_quantiles::statement::sql(ctx, sql)
        .await
        .unwrap_err()
        .strip_backtrace()
}

/// What is wrong with a statement is said on every machine.
#[tokio::test]
async fn mistakes() {
    let ctx = session(2);
    let rows = batch(vec![
        (
            "x",
            cast(
                &Int64Array::from_iter_values(0..10),
                &DataType::Timestamp(TimeUnit::Second, None),
            )
            .unwrap(),
        ),
        (
            "s",
            cast(&Int64Array::from_iter_values(0..10), &DataType::Utf8).unwrap(),
        ),
    ]);
    register(&ctx, "t", &rows, 2, 4);
    for (sql, expected) in [
        ("PIN TABLE nowhere (x)", "No table named 'nowhere'"),
        (
            "PIN TABLE t (y)",
            "table datafusion.public.t has no column y: there are x, s",
        ),
        (
            "PIN TABLE t (x, x)",
            "column x of table datafusion.public.t is named twice",
        ),
        (
            "PIN TABLE t (x, s)",
            "column s of table datafusion.public.t cannot be pinned: values of type Utf8",
        ),
        ("UNPIN TABLE t", "table datafusion.public.t is not pinned"),
        ("PIN t (x)", "Expected: TABLE, found: t at Line: 1, Column: 5"),
    ] {
        let error = datafusion_quantiles::statement::sql(&ctx, sql)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{sql}: {error}");
    }
    set(&ctx, "device", "cpu").await;
    let refused = datafusion_quantiles::statement::sql(&ctx, "PIN TABLE t (x)")
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("quantiles.device is 'cpu'"), "{refused}");
    set(&ctx, "device", "cuda:1000").await;
    let refused = datafusion_quantiles::statement::sql(&ctx, "PIN TABLE t (x)")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("there is no device cuda:1000") || refused.contains("no NVIDIA driver"),
        "{refused}"
    );
    assert!(
        datafusion_quantiles::statement::sql(&ctx, "SHOW PINNED")
            .await
            .unwrap()
            .collect()
            .await
            .unwrap()[0]
            .num_rows()
            == 0
    );
    // All that is not about pinned tables is as ever, with and without a device.
    for device in ["auto", "cpu", "cuda", "cuda:1000"] {
        set(&ctx, "device", device).await;
        let answer = datafusion_quantiles::statement::sql(&ctx, "SELECT exact_quantiles(s, 0.5) FROM t")
            .await
            .unwrap()
            .collect()
            .await;
        assert_eq!(texts(&answer.unwrap()), ["4"]);
    }
}

/// Queries of such a session never look at a device of this process.
#[tokio::test]
async fn a_session_that_plans_for_a_cluster_pins_nothing() {
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_query_planner(Arc::new(QuantilesPlanner::staged()))
        .with_quantiles()
        .build();
    let ctx = SessionContext::new_with_state(state);
    query(&ctx, "CREATE TABLE t AS SELECT 1 AS x").await.unwrap();
    let error = pin_table(&ctx, "t", &["x"]).await.unwrap_err();
    assert!(
        matches!(error.find_root(), DataFusionError::Plan(text) if text.contains("run on a cluster")),
        "{error}"
    );
}

#[tokio::test]
async fn tables_that_no_query_would_find_cannot_be_pinned() {
    let here = session(2);
    make(&here, "s", "value AS x, value AS y", "1, 10").await;
    query(&here, "CREATE VIEW w AS SELECT x FROM s").await.unwrap();
    let refused = refusal(&here, "PIN TABLE w (x)").await;
    assert!(refused.contains("datafusion.public.w is a view"), "{refused}");
    let cluster = staged_session(2);
    make(&cluster, "s", "value AS x, value AS y", "1, 10").await;
    let refused = refusal(&cluster, "PIN TABLE s (x)").await;
    assert!(refused.contains("run on a cluster"), "{refused}");
    let bare = SessionContext::new();
    make(&bare, "s", "value AS x, value AS y", "1, 10").await;
    let refused = refusal(&bare, "PIN TABLE s (x)").await;
    assert!(refused.contains("register_all"), "{refused}");
}

/// Without a pinned table nothing changes, with and without a device.
#[tokio::test]
async fn without_pinned_tables() {
    let ctx = session(2);
    query(
        &ctx,
        "CREATE TABLE t AS SELECT value AS x, value % 7 AS y FROM generate_series(1, 100)",
    )
    .await
    .unwrap();
    for device in ["auto", "cpu", "cuda", "cuda:1000"] {
        set(&ctx, "device", device).await;
        let plan = physical_plan(&ctx, "SELECT topk_by(x, y, 2) FROM t").await;
        assert!(plan.starts_with("AggregateExec"), "{plan}");
        let plan = physical_plan(&ctx, "SELECT x FROM t ORDER BY x DESC LIMIT 2").await;
        assert!(plan.starts_with("SortLimitExec"), "{plan}");
        assert_eq!(
            row(&ctx, "SELECT topk_by(x, y, 2), max_by(x, y) FROM t").await,
            "[6, 13] | 6"
        );
    }
}

/// A device ranks vectors of 16 and 32 bits a component.
#[tokio::test]
async fn vectors_of_doubles_cannot_be_pinned() {
    let ctx = session(1);
    let points = FixedSizeListArray::from_iter_primitive::<Float64Type, _, _>([Some([Some(0.0); 2]); 2], 2);
    let rows = batch(vec![("p", Arc::new(points) as ArrayRef)]);
    register(&ctx, "t", &rows, 1, 10);
    let error = pin_table(&ctx, "t", &["p"]).await.unwrap_err();
    assert!(error.to_string().contains("cannot be pinned"), "{error}");
}

/// There is no such device: said when the query runs, not before.
#[tokio::test]
async fn no_such_device() {
    let ctx = session(2);
    let words = Pattern::Random.words(100, 4);
    let numbers = Float64Array::from_iter_values(words.iter().map(|word| *word as f64));
    register(
        &ctx,
        "t",
        &batch(vec![("f64", Arc::new(numbers) as ArrayRef)]),
        2,
        50,
    );
    set(&ctx, "device", "cuda:1000").await;
    let refused = error(&ctx, "SELECT exact_quantiles(f64, 0.5) FROM t").await;
    assert!(
        refused.contains("there is no device cuda:1000") || refused.contains("no NVIDIA driver"),
        "{refused}"
    );
}

/// What an executor is started with.
#[test]
fn devices_of_executors() {
    RoundDevice::try_new(DeviceChoice::Cpu).unwrap();
    RoundDevice::try_new(DeviceChoice::Auto).unwrap();
    let error = RoundDevice::try_new(DeviceChoice::Cuda(Some(1000)))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("there is no device cuda:1000") || error.contains("no NVIDIA driver"),
        "{error}"
    );
}
