//! The best rows of pinned columns, and the nearest rows of a matrix: on a device against the CPU, bit by bit.
//!
//! Without a device these tests say that they are skipped, or fail if `QUANTILES_REQUIRE_CUDA=1`.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryPool, MemoryReservation, UnboundedMemoryPool,
};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::kernel::cuda::{DeviceMatrix, Neighbour, Report, squared_distance};
use datafusion_quantiles::pinned::unpin_table;

use crate::cuda::{columns, device, pinned, rows_joined, same_by, set, with_nulls};
use crate::patterns::{self, Pattern};
use crate::support::*;

const OPERATOR: &str = "PinnedExec";

/// Some of the columns, and the number of each row.
fn table(
    pattern: Pattern,
    len: usize,
    seed: u64,
    nulls: bool,
    names: &[&str],
) -> Vec<(&'static str, ArrayRef)> {
    let all = columns(pattern, len, seed);
    let all = if nulls { with_nulls(all) } else { all };
    let mut some: Vec<_> = all.into_iter().filter(|(name, _)| names.contains(name)).collect();
    let ids = Int64Array::from_iter_values(0..len as i64);
    some.push(("id", Arc::new(ids)));
    some
}

const NAMES: [&str; 9] = ["b", "i8", "f16", "u32", "f32", "date", "i64", "f64", "dec"];

/// Every key with a value of another column, every k.
fn calls(names: &[&str]) -> String {
    let calls = names.iter().enumerate().flat_map(|(i, key)| {
        let value = names[(i + 4) % names.len()];
        [
            format!("topk_by(id, {key}, 10)"),
            format!("topk_by({value}, {key}, 300)"),
            format!("topk_by({value}, {key}, 7, 'asc')"),
            format!("max_by({value}, {key})"),
            format!("min_by({value}, {key}, 40)"),
            format!("topk_by({key}, {key}, 5000)"),
        ]
    });
    format!("SELECT {} FROM t", calls.collect::<Vec<_>>().join(", "))
}

async fn every_type(patterns: &[Pattern]) {
    if device().is_none() {
        return;
    }
    for pattern in patterns {
        for len in [0, 1, 2, 33, 1000, 4097, 70_003] {
            for nulls in [false, true] {
                let what = format!("{pattern:?}, {len} rows, nulls: {nulls}");
                let ctx = session(3);
                pinned(&ctx, &batch(table(*pattern, len, len as u64, nulls, &NAMES)), 3).await;
                same_by(&ctx, &calls(&NAMES), &what, OPERATOR).await;
                unpin_table(&ctx, "t").unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn best_rows_first_patterns() {
    every_type(&[Pattern::Random, Pattern::AllEqual, Pattern::Sorted]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn best_rows_last_patterns() {
    every_type(&[Pattern::FewDistinct, Pattern::Extremes, Pattern::Clusters]).await;
}

/// Thresholds from samples that mislead, more rows than a block holds, values that tie in their turn.
#[tokio::test(flavor = "multi_thread")]
async fn best_rows_of_data_that_mislead_samples() {
    if device().is_none() {
        return;
    }
    let names = ["i16", "f32", "f64", "i64"];
    for pattern in patterns::ALL {
        let ctx = session(2);
        pinned(&ctx, &batch(table(pattern, 3_000_001, 5, true, &names)), 4).await;
        let calls = names.map(|key| {
            format!(
                "topk_by(i64, {key}, 100000), topk_by(f64, {key}, 1000, 'asc'), max_by(id, {key}), \
                 topk_by(i16, {key}, 20000)"
            )
        });
        let sql = format!("SELECT {} FROM t", calls.join(", "));
        same_by(&ctx, &sql, &format!("{pattern:?}"), OPERATOR).await;
        unpin_table(&ctx, "t").unwrap();
    }
}

/// `WHERE` and `FILTER`, decided on the device; keys and values of the rows that are left.
#[tokio::test(flavor = "multi_thread")]
async fn best_of_filtered_rows() {
    if device().is_none() {
        return;
    }
    for pattern in [Pattern::Random, Pattern::FewDistinct, Pattern::Extremes] {
        for len in [33, 70_001] {
            let ctx = session(3);
            let names = ["b", "i8", "f32", "i64", "f64"];
            pinned(&ctx, &batch(table(pattern, len, 77, true, &names)), 3).await;
            for condition in [
                "i64 > 0",
                "NOT b",
                "i8 IS NULL",
                "f64 <> 0.0 AND i8 IS NOT NULL",
                "id < 0",
            ] {
                let what = format!("{condition}, {pattern:?}, {len} rows");
                for sql in [
                    format!(
                        "SELECT topk_by(f32, i8, 50), min_by(id, f64, 3), max_by(i8, f32) FROM t WHERE {condition}"
                    ),
                    format!(
                        "SELECT topk_by(f64, b, 20) FILTER (WHERE {condition}), topk_by(f64, b, 20) FROM t AS a WHERE a.i8 < 100"
                    ),
                    format!("SELECT id FROM t WHERE {condition} AND f64 > 1 ORDER BY id DESC LIMIT 30"),
                ] {
                    same_by(&ctx, &sql, &what, OPERATOR).await;
                }
            }
            unpin_table(&ctx, "t").unwrap();
        }
    }
}

/// `ORDER BY` with a `LIMIT`: the key tells rows apart, or nothing else is selected.
#[tokio::test(flavor = "multi_thread")]
async fn first_rows_of_a_sort() {
    if device().is_none() {
        return;
    }
    for pattern in [Pattern::Random, Pattern::Extremes, Pattern::AllEqual] {
        for len in [0, 5, 70_003] {
            let ctx = session(3);
            let names = ["i8", "f32", "f64", "dec"];
            pinned(&ctx, &batch(table(pattern, len, 3, false, &names)), 3).await;
            for sql in [
                "SELECT f64 FROM t ORDER BY f64 LIMIT 100",
                "SELECT f32 FROM t ORDER BY f32 DESC LIMIT 1000",
                "SELECT id, dec, i8 FROM t ORDER BY id DESC LIMIT 77",
                "SELECT f64 AS z, id FROM t ORDER BY id LIMIT 10 OFFSET 3",
                "SELECT x.id, x.f32 FROM (SELECT id, f32 FROM t ORDER BY id DESC LIMIT 5) AS x ORDER BY x.id LIMIT 2",
                "SELECT dec FROM t WHERE i8 > 3 ORDER BY dec DESC NULLS LAST LIMIT 20",
            ] {
                same_by(&ctx, sql, &format!("{sql}, {pattern:?}, {len} rows"), OPERATOR).await;
            }
            // Not on the device: two keys, a key that is computed, no limit, other columns.
            for sql in [
                "SELECT id FROM t ORDER BY i8, id LIMIT 5",
                "SELECT id FROM t ORDER BY id + 1 LIMIT 5",
                "SELECT id FROM t ORDER BY id",
                "SELECT id, i8 + 1 FROM t ORDER BY id LIMIT 5",
            ] {
                let plan = physical_plan(&ctx, sql).await;
                assert!(
                    !plan.contains("Pinned") || sql.contains("i8 + 1"),
                    "{sql}: {plan}"
                );
            }
            unpin_table(&ctx, "t").unwrap();
        }
    }
    // A key that may be NULL.
    let ctx = session(3);
    pinned(&ctx, &batch(table(Pattern::Random, 100, 3, true, &["f64"])), 3).await;
    let plan = physical_plan(&ctx, "SELECT f64 FROM t ORDER BY f64 LIMIT 3").await;
    assert!(!plan.contains("Pinned"), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_what_ran() {
    let Some(device) = device() else { return };
    let ctx = session(2);
    pinned(
        &ctx,
        &batch(table(Pattern::Random, 100_003, 1, false, &["f32", "i8"])),
        2,
    )
    .await;
    let sql = "SELECT min_by(id, f32, 3), max_by(f32, id), topk_by(i8, f32, 5) FILTER (WHERE i8 > 0) FROM t \
               WHERE f32 < CAST(7 AS REAL)";
    let first = format!(
        "PinnedExec: device=cuda:0 ({}), table=datafusion.public.t, columns=[id, f32, i8], \
         calls=[min_by(id, f32, 3), max_by(f32, id), topk_by(i8, f32, 5) FILTER (t.i8 > Int8(0))], \
         where=[t.f32 < Float32(7)]",
        device.name()
    );
    let plan = physical_plan(&ctx, sql).await;
    assert_eq!(plan, format!("{first}, fallback=cpu"));
    set(&ctx, "device", "cuda").await;
    assert_eq!(physical_plan(&ctx, sql).await, first);
    let plan = physical_plan(&ctx, "SELECT topk_by(id, f32, 3, 'asc') FROM t").await;
    assert!(plan.contains("calls=[topk_by(id, f32, 3, asc)]"), "{plan}");
    let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    for expected in [
        "kernels=",
        "bytes_read=",
        "device_time=",
        "tk_filter_time=",
        "tk_emit_time=",
        "ga_values_time=",
        "second_reads=0",
        "output_rows=1",
    ] {
        assert!(analyzed.contains(expected), "{expected} in {analyzed}");
    }
    set(&ctx, "device", "auto").await;
    let plan = physical_plan(&ctx, "SELECT id, i8 FROM t ORDER BY id DESC LIMIT 4").await;
    assert_eq!(
        plan,
        format!(
            "PinnedExec: device=cuda:0 ({}), table=datafusion.public.t, columns=[id, i8], fetch=4, order_by=[id DESC], \
             fallback=cpu",
            device.name()
        )
    );
    // Beside other aggregates, over what is computed, over distinct pairs: the table itself.
    for sql in [
        "SELECT topk_by(id, f32, 3), count(*) FROM t",
        "SELECT topk_by(id, f32 + 1, 3) FROM t",
        "SELECT topk_by(DISTINCT id, f32, 3) FROM t",
        "SELECT topk_by(id, f32, 2000000) FROM t",
    ] {
        let plan = physical_plan(&ctx, sql).await;
        assert!(!plan.contains("Pinned"), "{sql}: {plan}");
    }
    // No memory to work in.
    device.release_workspace();
    set(&ctx, "cuda_memory_limit", "1k").await;
    let sql = "SELECT max_by(id, f32) FROM t";
    let expected = row(&ctx, sql).await;
    set(&ctx, "cuda_memory_limit", "none").await;
    assert_eq!(row(&ctx, sql).await, expected);
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
        assert!(plan.starts_with("TopKByExec"), "{plan}");
        assert_eq!(
            row(&ctx, "SELECT topk_by(x, y, 2), max_by(x, y) FROM t").await,
            "[6, 13] | 6"
        );
    }
}

// ---------------------------------------------------------------- nearest rows

fn reservation() -> MemoryReservation {
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    MemoryConsumer::new("points").register(&pool)
}

fn points(values: Vec<f32>, width: usize, nulls: Option<NullBuffer>) -> FixedSizeListArray {
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let values = Arc::new(Float32Array::from(values));
    FixedSizeListArray::try_new(item, width as i32, values, nulls).unwrap()
}

/// The `k` nearest of `rows` by a sort: NaN last, among equal distances the first row.
fn by_sort(
    values: &[f32],
    width: usize,
    point: &[f32],
    k: usize,
    is_null: impl Fn(usize) -> bool,
) -> Vec<(u64, u32)> {
    let rows = values.chunks_exact(width).enumerate();
    let mut all: Vec<(bool, f32, u64)> = rows
        .filter(|(row, _)| !is_null(*row))
        .map(|(row, other)| {
            let distance = squared_distance(other, point);
            (distance.is_nan(), distance, row as u64)
        })
        .collect();
    all.sort_by(|a, b| {
        a.0.cmp(&b.0)
            .then(a.1.abs().total_cmp(&b.1.abs()))
            .then(a.2.cmp(&b.2))
    });
    all.truncate(k);
    let bits = |distance: f32| {
        if distance.is_nan() {
            f32::NAN.to_bits()
        } else {
            distance.to_bits()
        }
    };
    all.into_iter()
        .map(|(_, distance, row)| (row, bits(distance)))
        .collect()
}

#[test]
fn nearest_rows() {
    let Some(device) = device() else { return };
    for width in [1, 3, 4, 31, 128, 200] {
        for rows in [1, 31, 100, 10_007] {
            // Whole numbers, so that distances tie; fractions, so that the order of additions shows; a NaN.
            for whole in [false, true] {
                let mut values: Vec<f32> = pseudo_random(rows * width, 7)
                    .map(|word| match whole {
                        true => (word % 3) as f32,
                        false => (word >> 40) as f32 / 1e5 - 80.0,
                    })
                    .collect();
                values[rows / 2 * width] = f32::NAN;
                let point: Vec<f32> = pseudo_random(width, 9)
                    .map(|word| (word % 5) as f32 * 0.4)
                    .collect();
                let valid: Vec<bool> = pseudo_random(rows, 3).map(|word| word % 4 != 0).collect();
                for nulls in [None, Some(NullBuffer::from(valid.clone()))] {
                    let array = points(values.clone(), width, nulls.clone());
                    let parts = [array.slice(0, rows / 3), array.slice(rows / 3, rows - rows / 3)];
                    let parts = parts.map(|part| Arc::new(part) as ArrayRef);
                    let matrix = DeviceMatrix::upload(&device, &parts, None, &reservation()).unwrap();
                    for k in [1, 32, 33, 200, 1024] {
                        let found = matrix.nearest(&point, k, None, false, &mut Report::default());
                        let found: Vec<_> = found
                            .unwrap()
                            .into_iter()
                            .map(
                                |Neighbour {
                                     row,
                                     squared_distance,
                                 }| (row, squared_distance.to_bits()),
                            )
                            .collect();
                        let is_null = |row: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                        let expected = by_sort(&values, width, &point, k, is_null);
                        assert!(
                            found == expected,
                            "{rows} rows of {width}, k = {k}, nulls: {}, whole: {whole}",
                            nulls.is_some()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn nearest_rows_of_what_is_wrong() {
    let Some(device) = device() else { return };
    let array: ArrayRef = Arc::new(points(vec![0.0; 12], 3, None));
    let upload = |arrays: &[ArrayRef]| DeviceMatrix::upload(&device, arrays, None, &reservation());
    let matrix = upload(std::slice::from_ref(&array)).unwrap();
    let ask = |point: &[f32], k| {
        let found = matrix.nearest(point, k, None, false, &mut Report::default());
        found.unwrap_err().strip_backtrace()
    };
    assert!(ask(&[0.0; 4], 1).contains("a point of 4 coordinates among points of 3"));
    assert!(ask(&[0.0; 3], 0).contains("0 nearest rows: allowed are 1 to 1024"));
    assert!(ask(&[0.0; 3], 1025).contains("1025 nearest rows: allowed are 1 to 1024"));
    let other: ArrayRef = Arc::new(points(vec![0.0; 12], 4, None));
    for arrays in [
        vec![],
        vec![Arc::new(Int64Array::from(vec![1])) as ArrayRef],
        vec![array, other],
    ] {
        let error = upload(&arrays).unwrap_err().to_string();
        assert!(error.contains("FixedSizeList<Float32>"), "{error}");
    }
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let holed = Float32Array::from(vec![Some(1.0), Some(2.0), None, Some(3.0)]);
    let holed = FixedSizeListArray::try_new(item, 2, Arc::new(holed), None).unwrap();
    let error = upload(&[Arc::new(holed)]).unwrap_err().to_string();
    assert!(error.contains("point 1 has a coordinate that is NULL"), "{error}");
    let limited = DeviceMatrix::upload(
        &device,
        &[Arc::new(points(vec![0.0; 4096], 4, None)) as ArrayRef],
        Some(1),
        &reservation(),
    );
    assert!(
        limited
            .unwrap_err()
            .to_string()
            .contains("quantiles.cuda_memory_limit")
    );
}

/// A session is not needed for points; this one shows that they are apart from its pinned tables.
#[tokio::test]
async fn points_cannot_be_pinned() {
    let ctx: SessionContext = session(1);
    let rows = batch(vec![("p", Arc::new(points(vec![0.0; 4], 2, None)) as ArrayRef)]);
    register(&ctx, "t", &rows, 1, 10);
    let error = datafusion_quantiles::pinned::pin_table(&ctx, "t", &["p"])
        .await
        .unwrap_err();
    assert!(error.to_string().contains("cannot be pinned"), "{error}");
}
