//! Pinned tables under load, limits of memory, mistakes in statements, and faults of the device.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::DataFusionError;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_quantiles::kernel::cuda::Device;
use datafusion_quantiles::pinned::{self, pin_table, use_devices};
use datafusion_quantiles::planner::{QuantilesPlanner, SessionStateBuilderExt};

use crate::cuda::{columns, device, passes_in_a_process, pinned, rows_joined, set};
use crate::patterns::Pattern;
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn queries_at_the_same_time() {
    if device().is_none() {
        return;
    }
    let ctx = session(2);
    let rows = batch(columns(Pattern::Zipf, 500_000, 2));
    pinned(&ctx, &rows, 2).await;
    let sql = "SELECT exact_quantiles(f64, [0.1, 0.5]), exact_quantiles(u16, 0.75) FROM t";
    let expected = row(&ctx, sql).await;
    let tasks = (0..16).map(|_| {
        let ctx = ctx.clone();
        tokio::spawn(async move { row(&ctx, sql).await })
    });
    for answer in futures::future::join_all(tasks).await {
        assert_eq!(answer.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_memory() {
    let Some(device) = device() else { return };
    let ctx = session(2);
    let rows = batch(vec![(
        "x",
        Arc::new(Int64Array::from_iter_values(0..1_000_000)) as ArrayRef,
    )]);
    register(&ctx, "t", &rows, 2, 4000);
    set(&ctx, "cuda_memory_limit", "1k").await;
    let error = pin_table(&ctx, "t", &["x"]).await.unwrap_err();
    assert!(
        matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
        "{error}"
    );
    assert!(
        error.to_string().contains("quantiles.cuda_memory_limit"),
        "{error}"
    );
    // More than any device has.
    set(&ctx, "cuda_memory_limit", "none").await;
    let error = device.allocate(1 << 45, None).unwrap_err();
    assert!(matches!(error, DataFusionError::ResourcesExhausted(_)), "{error}");
    device.check().unwrap();
    // The column fits, and nothing to work in.
    pin_table(&ctx, "t", &["x"]).await.unwrap();
    device.release_workspace();
    set(&ctx, "cuda_memory_limit", "1k").await;
    set(&ctx, "device", "cuda").await;
    let sql = "SELECT exact_quantiles(x, 0.5) FROM t";
    let refused = query(&ctx, sql)
        .await
        .map(|_| ())
        .map_err(|error| error.find_root().strip_backtrace());
    // Another test may have left a workspace that is large enough.
    assert!(refused.is_ok() || refused.unwrap_err().contains("quantiles.cuda_memory_limit"));
    set(&ctx, "device", "auto").await;
    assert_eq!(row(&ctx, sql).await, "499999");
}

/// Page-locked memory is that of the lanes, however many columns they read.
#[tokio::test(flavor = "multi_thread")]
async fn page_locked_memory_is_reserved() {
    if device().is_none() {
        return;
    }
    let names: Vec<_> = (0..20).map(|number| format!("c{number}")).collect();
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..40_000));
    let rows = batch(
        names
            .iter()
            .map(|name| (name.as_str(), Arc::clone(&numbers)))
            .collect(),
    );
    let columns: Vec<_> = names.iter().map(String::as_str).collect();
    for (limit, is_enough) in [(34 << 20, true), (1 << 20, false)] {
        let runtime = RuntimeEnvBuilder::new().with_memory_limit(limit, 1.0).build_arc();
        let config = SessionConfig::new().with_target_partitions(8);
        let ctx = SessionContext::new_with_config_rt(config, runtime.unwrap());
        datafusion_quantiles::register_all(&ctx).unwrap();
        register(&ctx, "t", &rows, 8, 1000);
        match pin_table(&ctx, "t", &columns).await {
            Ok(()) => assert!(is_enough, "{limit}"),
            Err(error) => {
                let is_refused = matches!(error.find_root(), DataFusionError::ResourcesExhausted(_));
                assert!(is_refused && !is_enough, "{limit}: {error}");
            }
        }
        assert_eq!(ctx.runtime_env().memory_pool.reserved(), 0);
    }
}

/// A column just longer than pieces that double would make a good sum.
#[tokio::test(flavor = "multi_thread")]
async fn a_column_on_its_way_takes_little_more_than_its_size() {
    if device().is_none() {
        return;
    }
    let ctx = session(1);
    // Of its own: nothing else is held there.
    use_devices(&ctx, vec![Arc::new(Device::open(0, None).unwrap())]);
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..(65 << 17)));
    register(&ctx, "t", &batch(vec![("x", numbers)]), 1, 8192);
    // 65 MiB, a quarter of it, and once more where they are joined.
    set(&ctx, "cuda_memory_limit", "148m").await;
    pin_table(&ctx, "t", &["x"]).await.unwrap();
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
        let error = pinned::sql(&ctx, sql).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{sql}: {error}");
    }
    set(&ctx, "device", "cpu").await;
    let refused = pinned::sql(&ctx, "PIN TABLE t (x)")
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("quantiles.device is 'cpu'"), "{refused}");
    set(&ctx, "device", "cuda:1000").await;
    let refused = pinned::sql(&ctx, "PIN TABLE t (x)")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("there is no device cuda:1000") || refused.contains("no NVIDIA driver"),
        "{refused}"
    );
    assert!(
        pinned::sql(&ctx, "SHOW PINNED")
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
        let answer = pinned::sql(&ctx, "SELECT exact_quantiles(s, 0.5) FROM t")
            .await
            .unwrap()
            .collect()
            .await;
        assert_eq!(texts(&answer.unwrap()), ["4"]);
    }
}

#[test]
fn faults() {
    if device().is_some() {
        passes_in_a_process("cuda_trouble::faults_in_a_process");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test `faults`"]
async fn faults_in_a_process() {
    let ctx = session(2);
    query(
        &ctx,
        "CREATE TABLE t AS SELECT value AS x FROM generate_series(1, 1000)",
    )
    .await
    .unwrap();
    fail::cfg("quantiles::cuda_open", "return(the device is away)").unwrap();
    let error = pinned::sql(&ctx, "PIN TABLE t (x)")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("the device is away"), "{error}");
    fail::remove("quantiles::cuda_open");
    pinned::sql(&ctx, "PIN TABLE t (x)").await.unwrap();
    query(&ctx, "INSERT INTO t VALUES (5000)").await.unwrap();
    let sql = "SELECT exact_quantiles(x, 1) FROM t";
    for phase in ["cuda_select", "cuda_compile"] {
        fail::cfg(format!("quantiles::{phase}"), "return(broken)").unwrap();
        // The table itself, by the CPU.
        assert_eq!(row(&ctx, sql).await, "5000", "{phase}");
        let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
        assert!(analyzed.contains("cuda_fallback=1"), "{phase}: {analyzed}");
        assert!(analyzed.contains("  QuantilesExec: "), "{phase}: {analyzed}");
        set(&ctx, "device", "cuda").await;
        let failed = crate::support::error(&ctx, sql).await;
        assert!(failed.contains("broken"), "{phase}: {failed}");
        set(&ctx, "device", "auto").await;
        fail::remove(format!("quantiles::{phase}"));
    }
    // Kernels are compiled at the first query, which comes now.
    assert_eq!(row(&ctx, sql).await, "1000");
    let grouped = "SELECT x, exact_quantiles(x, 1) FROM t GROUP BY x ORDER BY x DESC LIMIT 1";
    fail::cfg("quantiles::cuda_group", "return(broken)").unwrap();
    assert_eq!(row(&ctx, grouped).await, "5000 | 5000");
    let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {grouped}")).await;
    assert!(analyzed.contains("cuda_fallback=1"), "{analyzed}");
    assert!(analyzed.contains("  GroupedQuantilesExec: "), "{analyzed}");
    fail::remove("quantiles::cuda_group");
    assert_eq!(row(&ctx, grouped).await, "1000 | 1000");
    let best = "SELECT x, topk_by(x, x, 2) FROM t GROUP BY x ORDER BY x DESC LIMIT 1";
    for phase in ["cuda_group", "cuda_group_top"] {
        fail::cfg(format!("quantiles::{phase}"), "return(broken)").unwrap();
        assert_eq!(row(&ctx, best).await, "5000 | [5000]", "{phase}");
        let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {best}")).await;
        assert!(analyzed.contains("cuda_fallback=1"), "{phase}: {analyzed}");
        assert!(analyzed.contains("  GroupedTopKExec: "), "{phase}: {analyzed}");
        fail::remove(format!("quantiles::{phase}"));
        assert_eq!(row(&ctx, best).await, "1000 | [1000]", "{phase}");
    }
    for (sql, operator) in [
        ("SELECT max_by(x, x) FROM t", "  AggregateExec: "),
        ("SELECT x FROM t ORDER BY x DESC LIMIT 1", "  TopKByExec: "),
    ] {
        fail::cfg("quantiles::cuda_top", "return(broken)").unwrap();
        assert_eq!(row(&ctx, sql).await, "5000", "{sql}");
        let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
        assert!(analyzed.contains("cuda_fallback=1"), "{sql}: {analyzed}");
        assert!(analyzed.contains(operator), "{sql}: {analyzed}");
        set(&ctx, "device", "cuda").await;
        assert!(crate::support::error(&ctx, sql).await.contains("broken"), "{sql}");
        fail::remove("quantiles::cuda_top");
        assert_eq!(row(&ctx, sql).await, "1000", "{sql}");
        set(&ctx, "device", "auto").await;
    }
}
