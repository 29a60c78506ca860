//! The nearest rows of a matrix on a device, compared with a sort.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, FixedSizeListArray, Float16Array, Float32Array, Int64Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::kernel::cuda::{
    DeviceColumn, NearestSelection, Neighbour, Report, squared_distance,
};
use half::f16;
use quantiles_testing::{batch, physical_plan, pseudo_random, register, session, set, texts};

use crate::support::{On, device, pinned, refusal, run, same, tests};

tests! {
    plain nearest_rows,
    plain nearest_rows_of_what_is_wrong,
    asynchronous by_distance_in_sql,
    asynchronous distances_that_single_precision_cannot_tell,
    asynchronous near_rows_that_lie_together,
    asynchronous vectors_of_zeros,
    asynchronous vectors_in_pinned_tables,
}

fn points(values: Vec<f32>, width: usize, nulls: Option<NullBuffer>) -> FixedSizeListArray {
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let values = Arc::new(Float32Array::from(values));
    FixedSizeListArray::try_new(item, width as i32, values, nulls).unwrap()
}

/// The `k` nearest of `rows` by a sort: NaN last, and the lower row first where distances are equal.
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

fn nearest_rows() {
    let device = device();
    for width in [1, 3, 4, 31, 128, 200] {
        for rows in [1, 31, 100, 10_007] {
            // Whole numbers, whose distances tie; fractions, where the order of additions matters; a NaN.
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
                    let vectors = DeviceColumn::upload(&device, array.data_type(), &parts).unwrap();
                    for k in [1, 32, 33, 200, 1024] {
                        let nearest = NearestSelection {
                            vectors: &vectors,
                            k,
                            limit: None,
                            timed: false,
                        };
                        let found = nearest.rows(&point, &mut Report::default());
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

fn nearest_rows_of_what_is_wrong() {
    let device = device();
    let upload =
        |array: ArrayRef| DeviceColumn::upload(&device, array.data_type(), std::slice::from_ref(&array));
    let refusal = |array: ArrayRef, point: &[f32], k| {
        let vectors = upload(array).unwrap();
        let nearest = NearestSelection {
            vectors: &vectors,
            k,
            limit: None,
            timed: false,
        };
        let found = nearest.rows(point, &mut Report::default());
        found.unwrap_err().strip_backtrace()
    };
    let array = || Arc::new(points(vec![0.0; 12], 3, None)) as ArrayRef;
    assert!(refusal(array(), &[0.0; 4], 1).contains("a point of 4 components among vectors of 3"));
    assert!(refusal(array(), &[0.0; 3], 0).contains("0 nearest rows: allowed are 1 to 1024"));
    assert!(refusal(array(), &[0.0; 3], 1025).contains("1025 nearest rows: allowed are 1 to 1024"));
    let numbers = Arc::new(Int64Array::from(vec![1]));
    assert!(refusal(numbers, &[0.0; 3], 1).contains("FixedSizeList<Float32>"));
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let holed = Float32Array::from(vec![Some(1.0), Some(2.0), None, Some(3.0)]);
    let holed = FixedSizeListArray::try_new(item, 2, Arc::new(holed), None).unwrap();
    let error = upload(Arc::new(holed)).unwrap_err().to_string();
    assert!(
        error.contains("vector 1 of a batch has a component that is NULL"),
        "{error}"
    );
}

/// Vectors of `width` components of `Float32` or `Float16`, a quarter of them NULL if `holes`, whose components are one of few numbers, or
/// fractions.
fn vectors(rows: usize, width: usize, (half, holes, few): (bool, bool, bool)) -> ArrayRef {
    let numbers = pseudo_random(rows * width, 7).map(|word| match few {
        true => (word % 3) as f32 - 1.0,
        false => (word >> 40) as f32 / 1e5 - 80.0,
    });
    let (item, values): (_, ArrayRef) = if half {
        let numbers = numbers.map(f16::from_f32);
        (
            DataType::Float16,
            Arc::new(Float16Array::from_iter_values(numbers)),
        )
    } else {
        (
            DataType::Float32,
            Arc::new(Float32Array::from_iter_values(numbers)),
        )
    };
    let nulls = holes.then(|| NullBuffer::from_iter(pseudo_random(rows, 3).map(|word| word % 4 != 0)));
    let item = Arc::new(Field::new_list_field(item, true));
    Arc::new(FixedSizeListArray::try_new(item, width as i32, values, nulls).unwrap())
}

/// Registers and pins a table of these vectors with an `id`, and a number from 0 to 9.
async fn table(ctx: &SessionContext, vectors: ArrayRef) {
    let rows = vectors.len() as i64;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..rows))),
        (
            "tens",
            Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row % 10))),
        ),
        ("v", vectors),
    ];
    pinned(ctx, &batch(columns), 3).await;
}

fn list(numbers: impl Iterator<Item = f64>) -> String {
    let numbers: Vec<_> = numbers
        .map(|number| format!("CAST({number:?} AS DOUBLE)"))
        .collect();
    format!("[{}]", numbers.join(", "))
}

/// The operator that plans of rows by their distance show.
const NEAREST: &str = "PinnedExec: device=cuda:0";

/// The rows of the device are those of the CPU, in every order, with the same distances.
async fn by_distance_in_sql() {
    for width in [1, 3, 32, 130] {
        for kind in [
            (false, false, false),
            (false, true, true),
            (true, true, false),
            (true, false, true),
        ] {
            let ctx = session(2);
            table(&ctx, vectors(10_007, width, kind)).await;
            let query = list(pseudo_random(width, 9).map(|word| (word % 7) as f64 * 0.3 - 0.8));
            for function in ["array_distance", "cosine_distance", "inner_product"] {
                for order in ["ASC", "DESC", "ASC NULLS FIRST", "DESC NULLS LAST"] {
                    for (k, clause) in [
                        (1, ""),
                        (40, "WHERE tens < 4"),
                        (150, ""),
                        (3000, "WHERE v IS NOT NULL"),
                        (9000, ""),
                    ] {
                        let d = format!("{function}(v, {query})");
                        let next = if order.len() > 4 {
                            "tens DESC, id DESC"
                        } else {
                            "id"
                        };
                        let sql = format!(
                            "SELECT id, {d} AS d FROM t {clause} ORDER BY {d} {order}, {next} LIMIT {k}"
                        );
                        same(&ctx, &sql, On::device(NEAREST), &sql).await;
                    }
                }
            }
        }
    }
    let ctx = session(2);
    table(&ctx, vectors(5000, 8, (false, true, true))).await;
    let query = list((0..8).map(f64::from));
    for sql in [
        format!("SELECT id FROM t ORDER BY -inner_product({query}, v), id DESC LIMIT 20 OFFSET 7"),
        format!("SELECT * FROM t ORDER BY array_distance(v, {query}), id LIMIT 20"),
        format!("SELECT id, 1 - cosine_distance(v, {query}) AS alike FROM t ORDER BY cosine_distance(v, {query}), id LIMIT 20"),
        format!("SELECT sum(id) FROM (SELECT id FROM t WHERE tens = 3 ORDER BY array_distance(v, {query}), id LIMIT 50)"),
        format!("SELECT tens, id + 1 AS next FROM t AS other ORDER BY array_distance(other.v, {query}), next LIMIT 9"),
        format!("SELECT id FROM t WHERE id < 0 ORDER BY array_distance(v, {query}) LIMIT 5"),
        "SELECT id, v FROM t ORDER BY id DESC LIMIT 12".to_owned(),
        "SELECT count(*) FILTER (WHERE v IS NULL), exact_quantiles(id, 0.5) FILTER (WHERE v IS NOT NULL) FROM t GROUP BY tens ORDER BY 1, 2".to_owned(),
    ] {
        same(&ctx, &sql, On::device(NEAREST), &sql).await;
    }
}

/// Vectors that differ only in their last bits, that are far from 0, infinite, too large for sums in 32 bits, or all the same.
async fn distances_that_single_precision_cannot_tell() {
    let width = 16;
    let near = |seed: u64, apart: f32, at: f32| -> Vec<f32> {
        pseudo_random(3000 * width, seed)
            .map(|word| at + (word % 1000) as f32 * apart)
            .collect()
    };
    let mut odd = near(5, 0.01, 1.0);
    odd[5 * width] = f32::NAN;
    odd[6 * width] = f32::INFINITY;
    odd[7 * width] = f32::NEG_INFINITY;
    odd[8 * width..9 * width].fill(0.0);
    odd[9 * width..10 * width].fill(1e-30);
    odd[10 * width..11 * width].fill(2e25);
    odd[11 * width] = -f32::NAN;
    for values in [
        near(1, 1e-7, 1.0),
        near(2, 1.0, 1e7),
        near(3, 1e-42, 0.0),
        near(4, 0.0, 3.0),
        odd,
    ] {
        let ctx = session(2);
        table(&ctx, Arc::new(points(values, width, None))).await;
        for at in [0.1, 1.0, 1e7, 1e-40] {
            let query = list((0..width).map(|i| at * (1.0 + i as f64 * 1e-9)));
            for function in ["array_distance", "inner_product", "cosine_distance"] {
                // Too small for the size of a query of the cosine.
                if function == "cosine_distance" && at < 1e-15 {
                    continue;
                }
                for order in ["ASC", "DESC"] {
                    for k in [1, 40, 2000] {
                        let d = format!("{function}(v, {query})");
                        let sql = format!("SELECT id, {d} AS d FROM t ORDER BY {d} {order}, id LIMIT {k}");
                        same(&ctx, &sql, On::device(NEAREST), &sql).await;
                    }
                }
            }
        }
    }
}

/// Near rows in few chunks, so that the device lists many more than are wanted; and more that tie than it can tell apart.
async fn near_rows_that_lie_together() {
    let rows = 200_000;
    let ascending: Vec<f32> = (0..rows).flat_map(|row| [row as f32, 1.0]).collect();
    for values in [ascending, vec![2.0; 2 * rows]] {
        let ctx = session(2);
        table(&ctx, Arc::new(points(values, 2, None))).await;
        for (k, at) in [(5, 7.5), (1000, 150_000.0), (7000, 0.0)] {
            let d = format!("array_distance(v, [CAST({at:?} AS DOUBLE), 0.0])");
            let sql = format!("SELECT id, {d} AS d FROM t ORDER BY {d}, id DESC LIMIT {k}");
            same(&ctx, &sql, On::device(NEAREST), &sql).await;
        }
    }
    // More rows tie than a selection has room for.
    let ctx = session(2);
    table(&ctx, Arc::new(points(vec![2.0; (1 << 20) + 1], 1, None))).await;
    for k in [3, 1 << 20] {
        let sql = format!(
            "SELECT sum(id), count(*) FROM (SELECT id FROM t ORDER BY array_distance(v, [1.0]), id LIMIT {k})"
        );
        same(&ctx, &sql, On::device(NEAREST), &sql).await;
    }
}

/// Vectors of zeros have no cosine, as those that are NULL.
async fn vectors_of_zeros() {
    let rows = 20_000;
    let mut values: Vec<f32> = pseudo_random(3 * rows, 5)
        .map(|word| (word % 100) as f32 - 50.0)
        .collect();
    for row in (0..rows).filter(|row| row % 50 == 7) {
        values[3 * row..3 * row + 3].fill(0.0);
    }
    // Too small for a square in 32 bits, but not 0.
    values[3 * 1000..3 * 1000 + 3].fill(1e-30);
    let nulls = NullBuffer::from_iter((0..rows).map(|row| row % 70 != 9));
    for nulls in [None, Some(nulls)] {
        let ctx = session(2);
        table(&ctx, Arc::new(points(values.clone(), 3, nulls))).await;
        for order in ["ASC", "DESC", "ASC NULLS FIRST", "DESC NULLS LAST"] {
            for (k, clause) in [
                (5, ""),
                (600, ""),
                (19_990, ""),
                (30, "WHERE id < 2000 AND tens = 7"),
                (30, "WHERE id < 40"),
            ] {
                for next in ["id", "id DESC"] {
                    let d = "cosine_distance(v, [1.0, 2.0, 3.0])";
                    let sql =
                        format!("SELECT id, {d} AS d FROM t {clause} ORDER BY {d} {order}, {next} LIMIT {k}");
                    same(&ctx, &sql, On::device(NEAREST), &sql).await;
                }
            }
        }
    }
}

/// What is pinned of vectors, and what is refused or left to the CPU.
async fn vectors_in_pinned_tables() {
    let ctx = session(2);
    table(&ctx, vectors(1000, 4, (false, true, false))).await;
    set(&ctx, "device", "cuda").await;
    for sql in [
        "SELECT id FROM t ORDER BY array_distance(v, [1.0, 2.0, 3.0, 4.0]) LIMIT 2097152",
        "SELECT id FROM t ORDER BY array_distance(v, [1.0, 2.0, 3.0, 1e300]) LIMIT 3",
        "SELECT id FROM t ORDER BY cosine_distance(v, [0.0, 0.0, 0.0, 0.0]) LIMIT 3",
        "SELECT id FROM t ORDER BY id + array_distance(v, [1.0, 2.0, 3.0, 4.0]) LIMIT 3",
        "SELECT topk_by(v, id, 3) FROM t",
    ] {
        let plan = physical_plan(&ctx, sql).await;
        assert!(!plan.contains("PinnedExec"), "{plan}");
    }
    run(&ctx, "UNPIN TABLE t").await;
    run(&ctx, "PIN TABLE t").await;
    let plan = physical_plan(
        &ctx,
        "SELECT id FROM t ORDER BY array_distance(v, [1.0, 2.0, 3.0, 4.0]) LIMIT 3",
    )
    .await;
    assert!(
        plan.contains("nearest=3") && plan.contains("columns=[v, id]"),
        "{plan}"
    );
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let holed = Float32Array::from(vec![Some(1.0), Some(2.0), None, Some(3.0)]);
    let holed = FixedSizeListArray::try_new(item, 2, Arc::new(holed), None).unwrap();
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![5, 7]));
    let columns: Vec<(&str, ArrayRef)> = vec![("v", Arc::new(holed)), ("id", ids)];
    register(&ctx, "holed", &batch(columns), 1, 10);
    let error = refusal(&ctx, "PIN TABLE holed (id, v)").await;
    assert!(
        error.contains("column v of table datafusion.public.holed cannot be pinned: vector 1 of a batch"),
        "{error}"
    );
    // Of a whole table the others are pinned.
    let told = texts(&run(&ctx, "PIN TABLE holed").await).join("\n");
    assert!(told.contains("has a component that is NULL"), "{told}");
    let plan = physical_plan(&ctx, "SELECT exact_quantiles(id, 0.5) FROM holed").await;
    assert!(plan.contains("columns=[id]"), "{plan}");
}
