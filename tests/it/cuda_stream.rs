//! Columns that go to a device as they are read: against the CPU, bit by bit.
//!
//! Without a device these tests say that they are skipped, or fail if `QUANTILES_REQUIRE_CUDA=1`.

use datafusion::arrow::compute::{cast, concat_batches};
use datafusion::arrow::datatypes::DataType;
use datafusion::prelude::SessionContext;

use crate::cuda::{columns, device, rows_joined, same_bits, set, with_nulls};
use crate::patterns::{self, Pattern};
use crate::support::*;

/// The answers of both, which must be one: every bit.
async fn same(ctx: &SessionContext, sql: &str, what: &str) {
    let ask = async |device, shown: bool| {
        set(ctx, "device", device).await;
        let plan = physical_plan(ctx, sql).await;
        assert_eq!(
            plan.contains("device=cuda:0, on_device=["),
            shown,
            "{what}: {plan}"
        );
        let answer = query(ctx, sql)
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        concat_batches(&answer[0].schema(), &answer).unwrap()
    };
    let (on_device, on_cpu) = (ask("cuda", true).await, ask("auto", false).await);
    same_bits(&on_device, &on_cpu, what);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type() {
    if device().is_none() {
        return;
    }
    for pattern in [Pattern::Random, Pattern::Extremes, Pattern::HalfEqual] {
        for len in [0, 1, 33, 4097, 100_003] {
            for nulls in [false, true] {
                let ctx = session(5);
                let all = columns(pattern, len, len as u64);
                let rows = batch(if nulls { with_nulls(all) } else { all });
                register(&ctx, "t", &rows, 5, 1000);
                let names = rows
                    .schema_ref()
                    .fields()
                    .iter()
                    .map(|field| field.name().clone());
                let calls = names.map(|x| {
                    format!(
                        "exact_quantiles({x}, [0.5, 0, 1, 0.3, 0.999]), exact_quantiles({x}, 0.1, 'lower') FILTER (WHERE i16 > 7)"
                    )
                });
                let calls: Vec<_> = calls.collect();
                let what = format!("{pattern:?}, {len} rows, nulls: {nulls}");
                same(&ctx, &format!("SELECT {} FROM t", calls.join(", ")), &what).await;
            }
        }
    }
}

/// Pieces of memory that are filled more than once, and ranks that a sample misses.
#[tokio::test(flavor = "multi_thread")]
async fn long_columns() {
    if device().is_none() {
        return;
    }
    for pattern in patterns::ALL {
        let wanted = ["f32", "f64", "i16", "dec"];
        let all = columns(pattern, 3_000_001, 5).into_iter();
        let all = all.filter(|(name, _)| wanted.contains(name)).collect();
        let ctx = session(3);
        register(&ctx, "t", &batch(with_nulls(all)), 7, 8192);
        let calls = wanted.map(|x| format!("exact_quantiles({x}, [0.01, 0.5, 0.75, 0.999])"));
        same(
            &ctx,
            &format!("SELECT {} FROM t", calls.join(", ")),
            &format!("{pattern:?}"),
        )
        .await;
    }
}

/// What is computed, beside other aggregates, and beside columns that stay on the CPU.
#[tokio::test(flavor = "multi_thread")]
async fn expressions_and_what_stays() {
    if device().is_none() {
        return;
    }
    let ctx = session(3);
    let mut all = columns(Pattern::Random, 30_001, 4);
    let key = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Int8));
    let coded = cast(&all[1].1, &key).unwrap();
    all.push(("coded", coded));
    register(&ctx, "t", &batch(all), 4, 999);
    for sql in [
        "SELECT exact_quantiles(i32 / 7, 0.5), count(*), sum(i16), exact_quantiles(coded, [0.1, 0.9]) FROM t WHERE i64 % 3 = 0",
        "SELECT exact_quantiles(100 / i8, 0.5) FILTER (WHERE i8 <> 0), exact_quantiles(CAST(i16 AS VARCHAR), 0.5) FROM t",
        "SELECT exact_quantiles(DISTINCT i16, 0.5), exact_quantiles(i16, 0.5, 'linear') FROM t",
        "SELECT exact_quantiles(f64, 0.5) + exact_quantiles(f32, 0.5) FROM t",
    ] {
        same(&ctx, sql, sql).await;
    }
    set(&ctx, "device", "cuda").await;
    let analyzed = rows_joined(
        &ctx,
        "EXPLAIN ANALYZE SELECT exact_quantiles(f64, 0.5), exact_quantiles(DISTINCT i8, 0.5) FROM t",
    )
    .await;
    for expected in [
        "strategy=auto, device=cuda:0, on_device=[f64@",
        "bytes_to_device=240.0 K",
        "kernels=10",
        "device_time=",
        "input_rows=30.00 K",
    ] {
        assert!(analyzed.contains(expected), "{expected} in {analyzed}");
    }
    // Nothing that a device can select.
    for sql in [
        "SELECT exact_quantiles(CAST(i16 AS VARCHAR), 0.5) FROM t",
        "SELECT exact_quantiles(DISTINCT i8, 0.5) FROM t",
    ] {
        assert!(!physical_plan(&ctx, sql).await.contains("cuda"), "{sql}");
    }
}

/// Memory of the device that ends while values come.
#[tokio::test(flavor = "multi_thread")]
async fn too_little_memory() {
    let Some(device) = device() else { return };
    let ctx = session(3);
    register(&ctx, "t", &batch(columns(Pattern::Random, 500_000, 4)), 4, 8192);
    set(&ctx, "device", "cuda").await;
    set(&ctx, "cuda_memory_limit", "1k").await;
    let refused = error(&ctx, "SELECT exact_quantiles(f64, 0.5) FROM t").await;
    assert!(refused.contains("quantiles.cuda_memory_limit"), "{refused}");
    device.check().unwrap();
}

/// There is no such device: said when the query runs, not before.
#[tokio::test]
async fn no_such_device() {
    let ctx = session(2);
    register(&ctx, "t", &batch(columns(Pattern::Random, 100, 4)), 2, 50);
    set(&ctx, "device", "cuda:1000").await;
    let refused = error(&ctx, "SELECT exact_quantiles(f64, 0.5) FROM t").await;
    assert!(
        refused.contains("there is no device cuda:1000") || refused.contains("no NVIDIA driver"),
        "{refused}"
    );
}
