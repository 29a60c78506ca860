//! Times of pinned tables: `cargo test --test it --no-default-features --features cuda cuda_speed -- --ignored --nocapture`.
//!
//! For each kind of data: the copy to the card, 101 quantiles and the median there and on the CPU over the same rows in
//! memory, from SQL to rows, and what the card itself says. Every answer is compared with the CPU's, bit by bit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::kernel::cuda::Card;
use datafusion_quantiles::pinned::{pin_table, unpin_table};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::support::*;

const PARTITIONS: usize = 16;
const RUNS: usize = 20;

#[derive(Debug, Clone, Copy)]
enum Data {
    Uniform,
    /// The sum of twelve uniform numbers.
    Normal,
    Sorted,
    AllEqual,
    Values16,
    /// Half of them 0.
    Zeros,
}

impl Data {
    /// Value `i` of `n`.
    fn value(self, rng: &mut SmallRng, i: usize, n: usize) -> f64 {
        match self {
            Data::Uniform => rng.random(),
            Data::Normal => {
                let mut word: u128 = u128::from(rng.random::<u64>()) << 64 | u128::from(rng.random::<u64>());
                let mut sum = -6.0;
                for _ in 0..12 {
                    sum += (word & 0x3ff) as f64 / 1024.0;
                    word >>= 10;
                }
                sum * 1e5 + word as f64
            }
            Data::Sorted => i as f64 / n as f64,
            Data::AllEqual => 42.0,
            Data::Values16 => f64::from(rng.random::<u32>() & 15) * 1.37,
            Data::Zeros if rng.random() => 0.0,
            Data::Zeros => rng.random::<f64>() - 0.3,
        }
    }
}

fn array(data_type: &DataType, data: Data, part: usize, rows: usize) -> ArrayRef {
    let mut rng = SmallRng::seed_from_u64(part as u64);
    let values = (0..rows).map(|i| data.value(&mut rng, part * rows + i, PARTITIONS * rows));
    match data_type {
        DataType::Float32 => Arc::new(Float32Array::from_iter_values(values.map(|x| x as f32))),
        DataType::Float64 => Arc::new(Float64Array::from_iter_values(values)),
        _ => Arc::new(Int64Array::from_iter_values(values.map(|x| (x * 1e12) as i64))),
    }
}

/// A table `t` of one column `x` in 16 partitions.
fn table(ctx: &SessionContext, data_type: &DataType, data: Data, rows: usize) {
    let schema = Arc::new(Schema::new(vec![Field::new("x", data_type.clone(), true)]));
    let partitions: Vec<Vec<RecordBatch>> = std::thread::scope(|scope| {
        let parts = (0..PARTITIONS).map(|part| {
            let schema = &schema;
            scope.spawn(move || {
                let array = array(data_type, data, part, rows / PARTITIONS);
                let slices = (0..array.len()).step_by(1 << 16);
                let slices = slices.map(|from| array.slice(from, (1 << 16).min(array.len() - from)));
                slices
                    .map(|slice| RecordBatch::try_new(Arc::clone(schema), vec![slice]).unwrap())
                    .collect()
            })
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    });
    ctx.deregister_table("t").unwrap();
    ctx.register_table("t", Arc::new(MemTable::try_new(schema, partitions).unwrap()))
        .unwrap();
}

/// Milliseconds, medians: planning, execution, and on the card; and the answer.
async fn timed(ctx: &SessionContext, sql: &str, runs: usize) -> ([f64; 3], RecordBatch) {
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut answer = None;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    for run in 0..runs + 2 {
        let start = Instant::now();
        let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let planned = start.elapsed();
        let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
        let whole = start.elapsed();
        answer = batches.into_iter().next();
        if run >= 2 {
            times[0].push(milliseconds(planned));
            times[1].push(milliseconds(whole - planned));
            times[2].push(card_time(plan.as_ref()));
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    (times.map(median), answer.unwrap())
}

fn card_time(plan: &dyn ExecutionPlan) -> f64 {
    let time = plan
        .metrics()
        .and_then(|metrics| metrics.sum_by_name("card_time"));
    time.map_or(0.0, |time| time.as_usize() as f64 / 1e6)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn quantiles_of_pinned_columns() {
    let card = Card::get(0).unwrap();
    println!(
        "{card}, {}; medians of {RUNS} on the card, of 3 on the CPU; milliseconds",
        card.architecture()
    );
    println!(
        "| rows | type | data | ranks | planning | execution | of it kernels | CPU: execution | ratio |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let percentiles: Vec<_> = (0..=100)
        .map(|percent| (f64::from(percent) / 100.0).to_string())
        .collect();
    let percentiles = format!("SELECT exact_quantiles(x, [{}]) FROM t", percentiles.join(", "));
    let median = "SELECT exact_quantiles(x, 0.5) FROM t".to_owned();
    let filtered = "SELECT exact_quantiles(x, [0.1, 0.5, 0.9]) FROM t WHERE x > 0".to_owned();
    let all = [
        Data::Uniform,
        Data::Normal,
        Data::Sorted,
        Data::AllEqual,
        Data::Values16,
        Data::Zeros,
    ];
    for (data_type, log, data) in [
        (DataType::Float32, 28, &all[..]),
        (DataType::Float64, 27, &all[..2]),
        (DataType::Int64, 27, &all[..2]),
    ] {
        for data in data {
            let ctx = session(PARTITIONS);
            table(&ctx, &data_type, *data, 1 << log);
            let start = Instant::now();
            pin_table(&ctx, "t", &["x"]).await.unwrap();
            let pinned = start.elapsed().as_secs_f64();
            for (name, sql) in [("101", &percentiles), ("1", &median), ("3, x > 0", &filtered)] {
                query(&ctx, "SET quantiles.device = 'cuda'").await.unwrap();
                let (on_card, answer) = timed(&ctx, sql, RUNS).await;
                query(&ctx, "SET quantiles.device = 'cpu'").await.unwrap();
                let (on_cpu, expected) = timed(&ctx, sql, 3).await;
                assert!(
                    answer.column(0).to_data() == expected.column(0).to_data(),
                    "{data:?} {data_type}: {answer:?}"
                );
                println!(
                    "| 2^{log} | {data_type} | {data:?} | {name} | {:.2} | {:.3} | {:.3} | {:.1} | {:.0} |",
                    on_card[0],
                    on_card[1],
                    on_card[2],
                    on_cpu[1],
                    on_cpu[1] / on_card[1]
                );
            }
            let bytes = f64::from(1 << log) * data_type.primitive_width().unwrap() as f64;
            println!(
                "| | | | PIN TABLE | | {:.0} | {:.1} GB/s | | |",
                pinned * 1e3,
                bytes / pinned / 1e9
            );
            if matches!(data, Data::Uniform) {
                query(&ctx, "SET quantiles.device = 'cuda'").await.unwrap();
                println!(
                    "{}",
                    rows(&ctx, &format!("EXPLAIN ANALYZE {percentiles}"))
                        .await
                        .join("\n")
                );
            }
            unpin_table(&ctx, "t").unwrap();
        }
    }
}
