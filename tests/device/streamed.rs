//! Columns that are sent to a device while they are read, and other columns beside them.

use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use quantiles_testing::patterns::Pattern;
use quantiles_testing::{batch, physical_plan, register, rows_joined, session, set};

use crate::support::{On, columns, same, tests};

const STREAMED: On = On {
    device: "cuda",
    shown: "device=cuda:0, on_device=[",
    otherwise: "auto",
};

tests! { asynchronous expressions_and_what_stays }

/// Expressions as values, other aggregates, and columns that stay on the CPU.
async fn expressions_and_what_stays() {
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
        same(&ctx, sql, STREAMED, sql).await;
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
    // No column that a device can select in.
    for sql in [
        "SELECT exact_quantiles(CAST(i16 AS VARCHAR), 0.5) FROM t",
        "SELECT exact_quantiles(DISTINCT i8, 0.5) FROM t",
    ] {
        assert!(!physical_plan(&ctx, sql).await.contains("cuda"), "{sql}");
    }
}
