//! Faults of a device, by failpoints. Each group of tests runs in a process of its own, because failpoints belong to a process.

use std::sync::Arc;

use datafusion_quantiles::exec::staged::RoundDevice;
use datafusion_quantiles::kernel::cuda::Device;
use datafusion_quantiles::pinned::{pin_table, use_devices};
use libtest_mimic::Trial;
use quantiles_testing::patterns::Pattern;
use quantiles_testing::{batch, error, query, register, row, rows_joined, session, set, staged_session};

use crate::support::{asynchronous, columns, passes_in_a_process, plain, refusal, two_devices};

/// The tests of this module. The ignored ones run in processes that the others start.
pub(crate) fn tests() -> Vec<Trial> {
    let shards = asynchronous("faults::shards_in_a_process", shards_in_a_process);
    let tables = asynchronous("faults::pinned_tables_in_a_process", pinned_tables_in_a_process);
    vec![
        plain("faults::shards", || {
            passes_in_a_process("faults::shards_in_a_process")
        }),
        plain("faults::pinned_tables", || {
            passes_in_a_process("faults::pinned_tables_in_a_process");
        }),
        shards.with_ignored_flag(true),
        tables.with_ignored_flag(true),
    ]
}

async fn shards_in_a_process() {
    let devices = two_devices();
    let sql = "SELECT exact_quantiles(i64, 0.5), exact_quantiles(f32, [0.1, 0.9]) FROM t";
    let rows = batch(columns(Pattern::Random, 50_000, 4));
    let plain = session(4);
    register(&plain, "t", &rows, 4, 3000);
    let expected = row(&plain, sql).await;
    // A table on two devices: the CPU reads the table itself if `quantiles.device` is auto.
    let ctx = session(4);
    use_devices(&ctx, devices.clone());
    register(&ctx, "t", &rows, 4, 3000);
    set(&ctx, "device", "cuda:all").await;
    // Kernels are compiled from now on.
    fail::cfg("quantiles::cuda_compile", "return(broken)").unwrap();
    pin_table(&ctx, "t", &["i64", "f32"]).await.unwrap();
    for (phase, strategy) in [
        ("cuda_compile", "auto"),
        ("cuda_select", "auto"),
        ("cuda_round", "dibms"),
    ] {
        fail::cfg(format!("quantiles::{phase}"), "return(broken)").unwrap();
        set(&ctx, "strategy", strategy).await;
        set(&ctx, "device", "cuda").await;
        let failed = error(&ctx, sql).await;
        assert!(failed.contains("broken"), "{phase}: {failed}");
        set(&ctx, "device", "auto").await;
        assert_eq!(row(&ctx, sql).await, expected, "{phase}");
        let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
        assert!(analyzed.contains("cuda_fallback=1"), "{phase}: {analyzed}");
        fail::remove(format!("quantiles::{phase}"));
    }
    assert_eq!(row(&ctx, sql).await, expected);
    // Rounds of an executor, before a device holds anything and when it does, over files, whose scans share a queue.
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("t");
    let copied = plain.table("t").await.unwrap();
    let options = datafusion::dataframe::DataFrameWriteOptions::new();
    copied
        .write_parquet(files.to_str().unwrap(), options, None)
        .await
        .unwrap();
    for falls_back in [false, true] {
        for phase in ["cuda_compile", "cuda_append", "cuda_round"] {
            let devices = vec![Arc::new(Device::open(0, None).unwrap())];
            let staged = staged_session(4);
            RoundDevice::on(devices, falls_back).give(staged.state_ref().write().config_mut());
            let parquet = datafusion::prelude::ParquetReadOptions::default();
            staged
                .register_parquet("t", files.to_str().unwrap(), parquet)
                .await
                .unwrap();
            fail::cfg(format!("quantiles::{phase}"), "return(broken)").unwrap();
            match falls_back {
                true => {
                    assert_eq!(row(&staged, sql).await, expected, "{phase}");
                    let analyzed = rows_joined(&staged, &format!("EXPLAIN ANALYZE {sql}")).await;
                    assert!(!analyzed.contains("cuda_fallback=0"), "{phase}: {analyzed}");
                }
                false => assert!(error(&staged, sql).await.contains("broken"), "{phase}"),
            }
            fail::remove(format!("quantiles::{phase}"));
        }
    }
    // Values that were never added to the shard: no device has failed, and there must be no answer without them.
    for falls_back in [false, true] {
        let staged = staged_session(4);
        RoundDevice::on(devices.clone(), falls_back).give(staged.state_ref().write().config_mut());
        register(&staged, "t", &rows, 4, 3000);
        fail::cfg("quantiles::cuda_hold", "1*off->1*return(broken)->off").unwrap();
        let failed = error(&staged, sql).await;
        assert!(failed.contains("broken"), "{failed}");
        fail::remove("quantiles::cuda_hold");
        assert_eq!(row(&staged, sql).await, expected);
    }
}

async fn pinned_tables_in_a_process() {
    let ctx = session(2);
    query(
        &ctx,
        "CREATE TABLE t AS SELECT value AS x FROM generate_series(1, 1000)",
    )
    .await
    .unwrap();
    fail::cfg("quantiles::cuda_open", "return(the device is away)").unwrap();
    let refused = refusal(&ctx, "PIN TABLE t (x)").await;
    assert!(refused.contains("the device is away"), "{refused}");
    fail::remove("quantiles::cuda_open");
    // Kernels are compiled from now on; that they cannot be is told by the first query.
    fail::cfg("quantiles::cuda_compile", "return(broken)").unwrap();
    datafusion_quantiles::statement::sql(&ctx, "PIN TABLE t (x)")
        .await
        .unwrap();
    query(&ctx, "INSERT INTO t VALUES (5000)").await.unwrap();
    let sql = "SELECT exact_quantiles(x, 1) FROM t";
    for phase in ["cuda_compile", "cuda_select"] {
        fail::cfg(format!("quantiles::{phase}"), "return(broken)").unwrap();
        // The CPU reads the table itself.
        assert_eq!(row(&ctx, sql).await, "5000", "{phase}");
        let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
        assert!(analyzed.contains("cuda_fallback=1"), "{phase}: {analyzed}");
        assert!(analyzed.contains("  QuantilesExec: "), "{phase}: {analyzed}");
        set(&ctx, "device", "cuda").await;
        let failed = error(&ctx, sql).await;
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
        ("SELECT x FROM t ORDER BY x DESC LIMIT 1", "  SortLimitExec: "),
    ] {
        fail::cfg("quantiles::cuda_top", "return(broken)").unwrap();
        assert_eq!(row(&ctx, sql).await, "5000", "{sql}");
        let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
        assert!(analyzed.contains("cuda_fallback=1"), "{sql}: {analyzed}");
        assert!(analyzed.contains(operator), "{sql}: {analyzed}");
        set(&ctx, "device", "cuda").await;
        assert!(error(&ctx, sql).await.contains("broken"), "{sql}");
        fail::remove("quantiles::cuda_top");
        assert_eq!(row(&ctx, sql).await, "1000", "{sql}");
        set(&ctx, "device", "auto").await;
    }
}
