//! The nearest rows of many queries on a device, compared with the CPU.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, FixedSizeListArray, Float16Array, Float32Array, Int64Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::Field;
use datafusion::prelude::SessionContext;
use half::f16;
use quantiles_testing::{
    batch, error, physical_plan, pseudo_random, register, row, rows_joined, session, set,
};

use crate::support::{On, pinned, run, same, tests};

tests! {
    asynchronous nearest_rows_of_queries,
    asynchronous rows_that_come_nearer,
    asynchronous pairs_that_no_product_tells_apart,
    asynchronous graphs_of_neighbours,
    asynchronous what_is_left_to_the_cpu,
    asynchronous a_device_with_little_memory,
    asynchronous another_table_of_the_same_shape,
}

/// The operator that plans of the nearest rows of queries show.
const NEAREST: &str = "device=cuda:0";

fn vectors(values: Vec<f32>, width: usize, half: bool, nulls: Option<NullBuffer>) -> ArrayRef {
    let values: ArrayRef = if half {
        Arc::new(Float16Array::from_iter_values(
            values.into_iter().map(f16::from_f32),
        ))
    } else {
        Arc::new(Float32Array::from(values))
    };
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    Arc::new(FixedSizeListArray::try_new(item, width as i32, values, nulls).unwrap())
}

/// Components that are fractions, or of few different numbers.
fn components(count: usize, seed: u64, few: bool) -> Vec<f32> {
    let words = pseudo_random(count, seed);
    let numbers = words.map(|word| match few {
        true => (word % 3) as f32 - 1.0,
        false => (word >> 40) as f32 / 1e5 - 80.0,
    });
    numbers.collect()
}

fn numbered(vectors: ArrayRef) -> Vec<(&'static str, ArrayRef)> {
    let rows = vectors.len() as i64;
    let tens = (0..rows).map(|row| row % 10);
    vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("tens", Arc::new(Int64Array::from_iter_values(tens))),
        ("v", vectors),
    ]
}

/// A session with a pinned table `t` of some vectors, and a table `q` of others.
async fn tables(of_table: ArrayRef, of_queries: ArrayRef) -> SessionContext {
    let ctx = session(2);
    pinned(&ctx, &batch(numbered(of_table)), 3).await;
    register(&ctx, "q", &batch(numbered(of_queries)), 2, 1000);
    ctx
}

/// Compares a statement on the device, which must not leave it to the CPU, with the CPU.
async fn answers(ctx: &SessionContext, sql: &str) {
    same(ctx, sql, On::device(NEAREST), sql).await;
    set(ctx, "device", "cuda").await;
    let ran = rows_joined(ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    assert!(
        ran.contains("kernels=") && !ran.contains("left_to_cpu"),
        "{sql}: {ran}"
    );
}

async fn nearest_rows_of_queries() {
    for (width, rows, queries) in [
        (1, 300, 5),
        (3, 9000, 200),
        (31, 5000, 129),
        (128, 20_000, 300),
        (200, 3000, 1),
    ] {
        for (half, few) in [(false, false), (true, true)] {
            let of_table = vectors(components(rows * width, 7, few), width, half, None);
            let of_queries = vectors(components(queries * width, 9, few), width, false, None);
            let ctx = tables(of_table, of_queries).await;
            for function in ["array_distance", "inner_product", "cosine_distance"] {
                // Few numbers make vectors of zeros, which have no cosine.
                if function == "cosine_distance" && few {
                    continue;
                }
                for (k, order) in [(1, ""), (10, "DESC"), (100, ""), (700, "DESC")] {
                    let d = format!("{function}(t.v, q.v)");
                    let sql = format!(
                        "SELECT q.id AS query, t.id, {d} AS d FROM q CROSS JOIN t \
                         QUALIFY row_number() OVER (PARTITION BY q.id ORDER BY {d} {order}, t.id) <= {k} ORDER BY 1, 3, 2"
                    );
                    answers(&ctx, &sql).await;
                }
            }
        }
    }
    let (of_table, of_queries) = (components(40_000, 3, false), components(4000, 4, false));
    let ctx = tables(
        vectors(of_table, 4, false, None),
        vectors(of_queries, 4, true, None),
    )
    .await;
    for sql in [
        "SELECT * FROM nearest(t, 'v', q, 'v', 7) ORDER BY query_id, rank",
        "SELECT * FROM nearest(t, 'v', q, 'v', 20, 'dot') ORDER BY query_id, rank",
        "SELECT * FROM nearest(t, 'v', q, 'v', 3, 'cosine') ORDER BY query_id, rank",
        "SELECT q.id, topk_by(t.id, -array_distance(t.v, q.v), 10) FROM q CROSS JOIN t GROUP BY q.id ORDER BY 1",
        "SELECT q.tens, topk_by(t.id, -array_distance(t.v, q.v), 10) FROM q CROSS JOIN t WHERE t.tens < 3 GROUP BY q.tens ORDER BY 1",
        "SELECT DISTINCT ON (q.id) q.id, t.tens FROM q CROSS JOIN t WHERE t.id BETWEEN 100 AND 120 ORDER BY q.id, array_distance(q.v, t.v), t.id",
        "SELECT count(*) FROM (SELECT q.id FROM q CROSS JOIN t WHERE t.id < 0 \
         QUALIFY row_number() OVER (PARTITION BY q.id ORDER BY array_distance(t.v, q.v)) <= 3)",
    ] {
        answers(&ctx, sql).await;
    }
}

/// Each row is nearer than those before it, so that every list overflows at every step.
async fn rows_that_come_nearer() {
    let rows = 200_000;
    let values = (0..rows).flat_map(|row| [(rows - row) as f32, 1.0]).collect();
    let of_queries = (0..150).flat_map(|query| [query as f32 * 0.25, 0.0]).collect();
    let ctx = tables(
        vectors(values, 2, false, None),
        vectors(of_queries, 2, false, None),
    )
    .await;
    for k in [1, 50, 300] {
        let sql = format!("SELECT * FROM nearest(t, 'v', q, 'v', {k}) ORDER BY query_id, rank");
        answers(&ctx, &sql).await;
    }
}

/// Vectors that differ in their last bits, at several distances from 0, beside queries that do; and many that are the same.
async fn pairs_that_no_product_tells_apart() {
    let width = 16;
    let near = |count: usize, seed: u64, apart: f32, at: f32| -> Vec<f32> {
        pseudo_random(count * width, seed)
            .map(|word| at + (word % 1000) as f32 * apart)
            .collect()
    };
    for (apart, at) in [(1e-7, 1.0), (1.0, 1e6), (1e-4, 0.0), (1e-9, 1e-6)] {
        let of_table = vectors(near(3000, 1, apart, at), width, false, None);
        let of_queries = vectors(near(70, 2, apart, at), width, false, None);
        let ctx = tables(of_table, of_queries).await;
        for function in ["array_distance", "inner_product", "cosine_distance"] {
            for (k, order) in [(1, "DESC"), (40, ""), (900, "")] {
                let d = format!("{function}(q.v, t.v)");
                let sql = format!(
                    "SELECT q.id, t.id AS other, {d} AS d FROM q CROSS JOIN t \
                     QUALIFY row_number() OVER (PARTITION BY q.id ORDER BY {d} {order}, t.id) <= {k} ORDER BY 1, 3, 2"
                );
                answers(&ctx, &sql).await;
            }
        }
    }
    // Some thousand equal vectors are fetched in between; more of them are left to the CPU.
    for (rows, is_left) in [(3000, false), (250_000, true)] {
        let ctx = tables(
            vectors(vec![2.0; rows], 1, false, None),
            vectors(vec![1.0; 3], 1, false, None),
        )
        .await;
        let sql = "SELECT * FROM nearest(t, 'v', q, 'v', 3) ORDER BY query_id, rank";
        same(&ctx, sql, On::device(NEAREST), sql).await;
        set(&ctx, "device", "cuda").await;
        let ran = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
        assert_eq!(ran.contains("left_to_cpu"), is_left, "{rows}: {ran}");
    }
}

async fn graphs_of_neighbours() {
    let ctx = session(2);
    let values = vectors(components(5000 * 8, 3, true), 8, false, None);
    pinned(&ctx, &batch(numbered(values)), 3).await;
    for sql in [
        "SELECT * FROM nearest(t, 'v', t, 'v', 10) ORDER BY query_id, rank",
        "SELECT a.id, topk_by(b.id, -array_distance(a.v, b.v), 5) FROM t a JOIN t b ON a.tens <> b.tens GROUP BY a.id ORDER BY 1",
    ] {
        answers(&ctx, sql).await;
    }
}

/// A pinned table beside one that is not, of the same columns: each call of `nearest` finds the rows of its own.
async fn another_table_of_the_same_shape() {
    let of = |seed| vectors(components(300 * 4, seed, false), 4, false, None);
    let ctx = tables(of(1), of(2)).await;
    register(&ctx, "other", &batch(numbered(of(3))), 2, 1000);
    let call = |table: &str| format!("SELECT * FROM nearest({table}, 'v', q, 'v', 5)");
    let sql = format!(
        "{} UNION ALL {} ORDER BY query_id, rank, distance, id",
        call("t"),
        call("other")
    );
    same(&ctx, &sql, On::device(NEAREST), &sql).await;
    run(&ctx, "PIN TABLE other (id, tens, v)").await;
    let plan = physical_plan(&ctx, &sql).await;
    assert_eq!(plan.matches(NEAREST).count(), 2, "{plan}");
    same(&ctx, &sql, On::device(NEAREST), &sql).await;
}

/// Without room on the device, the CPU answers, or the error names the limit.
async fn a_device_with_little_memory() {
    let of_table = vectors(components(2000 * 32, 1, false), 32, false, None);
    let ctx = tables(of_table, vectors(components(60 * 32, 2, false), 32, false, None)).await;
    let sql = "SELECT * FROM nearest(t, 'v', q, 'v', 5) ORDER BY query_id, rank";
    set(&ctx, "cuda_memory_limit", "1k").await;
    set(&ctx, "device", "cuda").await;
    let failed = error(&ctx, sql).await;
    assert!(failed.contains("quantiles.cuda_memory_limit"), "{failed}");
    set(&ctx, "device", "auto").await;
    let ran = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    assert!(ran.contains("cuda_fallback=1"), "{ran}");
    same(
        &ctx,
        sql,
        On {
            device: "auto",
            ..On::device(NEAREST)
        },
        sql,
    )
    .await;
}

/// Vectors without a distance, columns that are not pinned, and settings.
async fn what_is_left_to_the_cpu() {
    let sql = "SELECT * FROM nearest(t, 'v', q, 'v', 5) ORDER BY query_id, rank";
    let holes = |count: usize| Some(NullBuffer::from_iter((0..count).map(|row| row % 7 != 3)));
    let own = |seed, nulls| vectors(components(300 * 4, seed, false), 4, false, nulls);
    let mut infinite = components(300 * 4, 5, false);
    infinite[17] = f32::INFINITY;
    for (of_table, of_queries) in [
        (own(1, holes(300)), own(2, None)),
        (own(1, None), own(2, holes(300))),
        (vectors(infinite, 4, false, None), own(2, None)),
    ] {
        let ctx = tables(of_table, of_queries).await;
        same(&ctx, sql, On::device(NEAREST), sql).await;
        set(&ctx, "device", "cuda").await;
        let ran = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
        assert!(ran.contains("left_to_cpu=1"), "{ran}");
    }
    // Rows that a filter drops need no distance.
    let ctx = tables(own(1, holes(300)), own(2, None)).await;
    let filtered = "SELECT q.id, topk_by(t.id, -array_distance(t.v, q.v), 10) FROM q CROSS JOIN t \
                    WHERE t.v IS NOT NULL GROUP BY q.id ORDER BY 1";
    answers(&ctx, filtered).await;
    set(&ctx, "device", "cpu").await;
    assert!(!physical_plan(&ctx, sql).await.contains(NEAREST));
    set(&ctx, "device", "auto").await;
    let plan = physical_plan(&ctx, sql).await;
    assert!(plan.contains(NEAREST) && plan.contains("fallback=cpu"), "{plan}");
    assert!(!plan.contains("PinnedScanExec"), "{plan}");
    set(&ctx, "topk", "false").await;
    assert!(!physical_plan(&ctx, sql).await.contains(NEAREST));
    set(&ctx, "topk", "true").await;
    run(&ctx, "UNPIN TABLE t").await;
    run(&ctx, "PIN TABLE t (v)").await;
    assert!(!physical_plan(&ctx, sql).await.contains(NEAREST));
    let counted = "SELECT count(*) FROM (SELECT q.id FROM q CROSS JOIN t \
                   QUALIFY row_number() OVER (PARTITION BY q.id ORDER BY array_distance(t.v, q.v)) <= 3)";
    assert!(physical_plan(&ctx, counted).await.contains(NEAREST));
    assert_eq!(row(&ctx, counted).await, "900");
}
