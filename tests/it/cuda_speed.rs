//! Times of pinned tables: `cargo test --test it --no-default-features --features cuda cuda_speed -- --ignored --nocapture`.
//!
//! For each kind of data: the copy to the device, 101 quantiles and the median there and on the CPU over the same rows in
//! memory, from SQL to rows, and what the device itself says. Every answer is compared with the CPU's, bit by bit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch};
use datafusion::arrow::array::{FixedSizeListArray, Int32Array, UInt16Array, UInt32Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::kernel::cuda::{Device, DeviceColumn, DeviceMatrix, Report, TopMethod};
use datafusion_quantiles::pinned::{pin_table, unpin_table};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cuda_group_topk::best;
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
    /// Whole numbers below this.
    Groups(u32),
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
            Data::Groups(groups) => f64::from(rng.random_range(0..groups)),
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
        DataType::Int32 => Arc::new(Int32Array::from_iter_values(values.map(|x| x as i32))),
        // Numbers of the rows.
        DataType::UInt32 => Arc::new(UInt32Array::from_iter_values(
            (0..rows).map(|i| (part * rows + i) as u32),
        )),
        _ => Arc::new(Int64Array::from_iter_values(values.map(|x| (x * 1e12) as i64))),
    }
}

/// A table `t` of one column `x` in 16 partitions.
fn table(ctx: &SessionContext, data_type: &DataType, data: Data, rows: usize) {
    table_of(ctx, &[("x", data_type.clone(), data)], rows);
}

/// A table `t` of some columns in 16 partitions.
fn table_of(ctx: &SessionContext, columns: &[(&str, DataType, Data)], rows: usize) {
    let fields = columns
        .iter()
        .map(|(name, data_type, _)| Field::new(*name, data_type.clone(), false));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let partitions: Vec<Vec<RecordBatch>> = std::thread::scope(|scope| {
        let parts = (0..PARTITIONS).map(|part| {
            let schema = &schema;
            scope.spawn(move || {
                let arrays = columns
                    .iter()
                    .map(|(_, data_type, data)| array(data_type, *data, part, rows / PARTITIONS));
                let all = RecordBatch::try_new(Arc::clone(schema), arrays.collect()).unwrap();
                let starts = (0..all.num_rows()).step_by(1 << 16);
                starts
                    .map(|from| all.slice(from, (1 << 16).min(all.num_rows() - from)))
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

/// Milliseconds, medians: planning, execution, and on the device; and the answer.
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
            times[2].push(device_time(plan.as_ref()));
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    (times.map(median), answer.unwrap())
}

fn device_time(plan: &dyn ExecutionPlan) -> f64 {
    let time = plan
        .metrics()
        .and_then(|metrics| metrics.sum_by_name("device_time"));
    time.map_or(0.0, |time| time.as_usize() as f64 / 1e6)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn quantiles_of_pinned_columns() {
    let device = Device::get(0).unwrap();
    println!(
        "{device}, {}; medians of {RUNS} on the device, of 3 on the CPU; milliseconds",
        device.architecture()
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
                let (on_device, answer) = timed(&ctx, sql, RUNS).await;
                query(&ctx, "SET quantiles.device = 'cpu'").await.unwrap();
                let (on_cpu, expected) = timed(&ctx, sql, 3).await;
                assert!(
                    answer.column(0).to_data() == expected.column(0).to_data(),
                    "{data:?} {data_type}: {answer:?}"
                );
                println!(
                    "| 2^{log} | {data_type} | {data:?} | {name} | {:.2} | {:.3} | {:.3} | {:.1} | {:.0} |",
                    on_device[0],
                    on_device[1],
                    on_device[2],
                    on_cpu[1],
                    on_cpu[1] / on_device[1]
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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn streamed_columns() {
    println!(
        "| rows | type | ranks | planning | execution | GB/s | of it kernels | CPU: execution | ratio |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (data_type, log) in [
        (DataType::Float64, 28),
        (DataType::Float32, 28),
        (DataType::Int64, 27),
    ] {
        let ctx = session(PARTITIONS);
        table(&ctx, &data_type, Data::Uniform, 1 << log);
        let bytes = f64::from(1 << log) * data_type.primitive_width().unwrap() as f64;
        for (name, sql) in [
            ("1", "SELECT exact_quantiles(x, 0.5) FROM t"),
            (
                "9",
                "SELECT exact_quantiles(x, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]) FROM t",
            ),
        ] {
            query(&ctx, "SET quantiles.device = 'cuda'").await.unwrap();
            let (on_device, answer) = timed(&ctx, sql, 5).await;
            query(&ctx, "SET quantiles.device = 'cpu'").await.unwrap();
            let (on_cpu, expected) = timed(&ctx, sql, 3).await;
            assert!(
                answer.column(0).to_data() == expected.column(0).to_data(),
                "{data_type}: {answer:?}"
            );
            println!(
                "| 2^{log} | {data_type} | {name} | {:.2} | {:.1} | {:.1} | {:.2} | {:.1} | {:.1} |",
                on_device[0],
                on_device[1],
                bytes / on_device[1] / 1e6,
                on_device[2],
                on_cpu[1],
                on_cpu[1] / on_device[1]
            );
        }
        for _ in 0..2 {
            let start = Instant::now();
            query(&ctx, "SET quantiles.device = 'auto'").await.unwrap();
            pin_table(&ctx, "t", &["x"]).await.unwrap();
            let pinned = start.elapsed().as_secs_f64();
            println!(
                "PIN TABLE: {:.0} ms, {:.1} GB/s",
                pinned * 1e3,
                bytes / pinned / 1e9
            );
            unpin_table(&ctx, "t").unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn groups_of_pinned_columns() {
    println!(
        "| rows | values | groups | ranks | planning | execution | of it kernels | CPU: all, once | ratio |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (data_type, log, data) in [
        (DataType::Float32, 28, Data::Uniform),
        (DataType::Float32, 28, Data::AllEqual),
        (DataType::Float64, 27, Data::Normal),
    ] {
        let ctx = session(PARTITIONS);
        let groups = [("g10", 10), ("g1000", 1000), ("g1000000", 1_000_000)];
        let columns = groups.map(|(name, groups)| (name, DataType::Int32, Data::Groups(groups)));
        let columns: Vec<_> = columns
            .into_iter()
            .chain([("x", data_type.clone(), data)])
            .collect();
        table_of(&ctx, &columns, 1 << log);
        pin_table(&ctx, "t", &["x", "g10", "g1000", "g1000000"])
            .await
            .unwrap();
        for (group, groups) in groups {
            let percentiles: Vec<_> = (1..100)
                .map(|percent| (f64::from(percent) / 100.0).to_string())
                .collect();
            for (name, ranks) in [("3", "0.1, 0.5, 0.9"), ("99", &percentiles.join(", "))] {
                // Long, and no more than the other cases tell.
                if groups != 1000 && (name == "99" || !matches!(data, Data::Uniform)) {
                    continue;
                }
                let sql = format!("SELECT {group}, exact_quantiles(x, [{ranks}]) FROM t GROUP BY {group}");
                query(&ctx, "SET quantiles.device = 'cuda'").await.unwrap();
                let (on_device, _) = timed(&ctx, &sql, 5).await;
                query(&ctx, "SET quantiles.device = 'cpu'").await.unwrap();
                let start = Instant::now();
                query(&ctx, &sql).await.unwrap();
                let on_cpu = start.elapsed().as_secs_f64() * 1e3;
                println!(
                    "| 2^{log} | {data_type}, {data:?} | {groups} | {name} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} |",
                    on_device[0],
                    on_device[1],
                    on_device[2],
                    on_cpu,
                    on_cpu / (on_device[0] + on_device[1])
                );
                // The answers, with a sum of which groups have which.
                let check = format!(
                    "SELECT count(*), sum(g), sum(g * hash) FROM (SELECT {group} AS g, CAST(exact_quantiles(x, 0.3) * 1000000 AS \
                     BIGINT) AS hash FROM t GROUP BY {group})"
                );
                query(&ctx, "SET quantiles.device = 'cuda'").await.unwrap();
                let answer = row(&ctx, &check).await;
                query(&ctx, "SET quantiles.device = 'cpu'").await.unwrap();
                assert_eq!(row(&ctx, &check).await, answer, "{sql}");
            }
        }
        query(&ctx, "SET quantiles.device = 'cuda'").await.unwrap();
        let sql = "EXPLAIN ANALYZE SELECT g1000, exact_quantiles(x, [0.1, 0.5, 0.9]) FROM t GROUP BY g1000";
        println!("{}", rows(&ctx, sql).await.join("\n"));
        unpin_table(&ctx, "t").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn rows_of_pinned_columns() {
    println!("| rows | keys | query | planning | execution | of it kernels | CPU: execution | ratio |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (data_type, log, data) in [
        (DataType::Float32, 28, Data::Uniform),
        (DataType::Float32, 28, Data::AllEqual),
        (DataType::Float32, 28, Data::Values16),
        (DataType::Int64, 27, Data::Normal),
    ] {
        let ctx = session(PARTITIONS);
        let columns = [("x", data_type.clone(), data), ("id", DataType::UInt32, data)];
        table_of(&ctx, &columns, 1 << log);
        pin_table(&ctx, "t", &["x", "id"]).await.unwrap();
        for sql in [
            "SELECT topk_by(id, x, 10) FROM t",
            "SELECT topk_by(id, x, 1000) FROM t",
            "SELECT topk_by(id, x, 100000) FROM t",
            "SELECT min_by(id, x) FROM t",
            "SELECT topk_by(id, x, 10) FROM t WHERE x < CAST(0.5 AS REAL)",
            "SELECT x FROM t ORDER BY x DESC LIMIT 100",
        ] {
            // All of them over one kind of data, those of many rows over the others.
            if !matches!(data, Data::Uniform) && !sql.contains("000,") && !sql.contains("000)") {
                continue;
            }
            query(&ctx, "SET quantiles.device = 'cuda'").await.unwrap();
            let (on_device, answer) = timed(&ctx, sql, RUNS).await;
            query(&ctx, "SET quantiles.device = 'cpu'").await.unwrap();
            let (on_cpu, expected) = timed(&ctx, sql, 1).await;
            assert!(
                answer.column(0).to_data() == expected.column(0).to_data(),
                "{data:?} {data_type}: {sql}"
            );
            println!(
                "| 2^{log} | {data_type}, {data:?} | `{}` | {:.2} | {:.3} | {:.3} | {:.1} | {:.0} |",
                sql.trim_start_matches("SELECT ").replace(" FROM t", ""),
                on_device[0],
                on_device[1],
                on_device[2],
                on_cpu[1],
                on_cpu[1] / on_device[1]
            );
        }
        query(&ctx, "SET quantiles.device = 'cuda'").await.unwrap();
        let analyzed = rows(&ctx, "EXPLAIN ANALYZE SELECT topk_by(id, x, 1000) FROM t").await;
        println!("{}", analyzed.join("\n"));
        unpin_table(&ctx, "t").unwrap();
    }
}

#[test]
#[ignore = "a measurement"]
fn nearest_rows() {
    const ROWS: usize = 1 << 22;
    const WIDTH: usize = 128;
    let device = Device::get(0).unwrap();
    let parts: Vec<ArrayRef> = std::thread::scope(|scope| {
        let parts = (0..PARTITIONS).map(|part| {
            scope.spawn(move || {
                let values = array(&DataType::Float32, Data::Uniform, part, ROWS / PARTITIONS * WIDTH);
                let item = Arc::new(Field::new_list_field(DataType::Float32, false));
                let points = FixedSizeListArray::try_new(item, WIDTH as i32, values, None);
                Arc::new(points.unwrap()) as ArrayRef
            })
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    });
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let reservation = MemoryConsumer::new("points").register(&pool);
    let matrix = DeviceMatrix::upload(&device, &parts, None, &reservation).unwrap();
    println!("{ROWS} points of {WIDTH} coordinates, 2 GiB; milliseconds, medians of {RUNS}");
    println!("| k | with the host | kernels | nr_rows | nr_finish |");
    println!("| --- | --- | --- | --- | --- |");
    for k in [1, 32, 100, 256, 1000] {
        let mut times: [Vec<f64>; 4] = Default::default();
        for run in 0..RUNS + 2 {
            let point = vec![run as f32 / 30.0; WIDTH];
            let mut report = Report::default();
            let start = Instant::now();
            matrix.nearest(&point, k, None, true, &mut report).unwrap();
            let whole = start.elapsed();
            let kernels = report.kernel_times.iter().map(|(_, time)| *time);
            let all = [whole, report.device_time].into_iter().chain(kernels);
            for (times, time) in times.iter_mut().zip(all) {
                if run >= 2 {
                    times.push(time.as_secs_f64() * 1e3);
                }
            }
        }
        let medians = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            format!("{:.3}", times[times.len() / 2])
        });
        println!("| {k} | {} |", medians.join(" | "));
    }
}

/// Best rows of groups by either method: what the choice between them is made from.
#[test]
#[ignore = "a measurement"]
fn ways_to_best_rows_of_groups() {
    const LOG: u32 = 27;
    let device = Device::get(0).unwrap();
    let column = |data_type: DataType, data: Data| {
        let parts: Vec<ArrayRef> = std::thread::scope(|scope| {
            let part = |part| {
                let data_type = &data_type;
                scope.spawn(move || array(data_type, data, part, (1 << LOG) / PARTITIONS))
            };
            let parts: Vec<_> = (0..PARTITIONS).map(part).collect();
            parts.into_iter().map(|part| part.join().unwrap()).collect()
        });
        DeviceColumn::upload(&device, &data_type, &parts).unwrap()
    };
    println!("2^{LOG} rows; kernels, milliseconds, medians of 3");
    println!("| bits of a record | groups | k | all in order | warps | of it ordering | selecting |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (key, value) in [
        (
            (DataType::Float64, Data::Normal),
            (DataType::UInt32, Data::Uniform),
        ),
        (
            (DataType::Int32, Data::Groups(1 << 24)),
            (DataType::Int32, Data::Groups(1 << 16)),
        ),
    ] {
        let (key, value) = (column(key.0, key.1), column(value.0, value.1));
        for groups in [8, 1000, 16_384] {
            let group = column(DataType::Int32, Data::Groups(groups));
            for k in [1, 32, 100, 256, 1000] {
                let mut times: [Vec<f64>; 4] = Default::default();
                for _ in 0..3 {
                    let ask = |method| best(&group, &key, &value, k, false, method).1;
                    let (sort, warps) = (ask(TopMethod::Sort), ask(TopMethod::Warps));
                    let of = |prefix: &str| {
                        let own = warps
                            .kernel_times
                            .iter()
                            .filter(|(name, _)| name.starts_with(prefix));
                        own.map(|(_, time)| *time).sum::<Duration>()
                    };
                    let all = [sort.device_time, warps.device_time, of("so_"), of("gt_select")];
                    for (times, time) in times.iter_mut().zip(all) {
                        times.push(time.as_secs_f64() * 1e3);
                    }
                }
                let medians = times.map(|mut times| {
                    times.sort_by(f64::total_cmp);
                    format!("{:.2}", times[times.len() / 2])
                });
                let bits = if key.data_type() == &DataType::Int32 {
                    64
                } else {
                    128
                };
                println!("| {bits} | {groups} | {k} | {} |", medians.join(" | "));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn best_rows_of_groups() {
    println!(
        "| rows | keys | groups | query | planning | execution | of it kernels | CPU: all, once | ratio |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (data_type, log, data) in [
        (DataType::Float32, 28, Data::Uniform),
        (DataType::Float64, 27, Data::Normal),
    ] {
        let ctx = session(PARTITIONS);
        let groups = [("g10", 10), ("g1000", 1000), ("g1000000", 1_000_000)];
        let columns = groups.map(|(name, groups)| (name, DataType::Int32, Data::Groups(groups)));
        let columns: Vec<_> = columns
            .into_iter()
            .chain([("x", data_type.clone(), data), ("id", DataType::UInt32, data)])
            .collect();
        table_of(&ctx, &columns, 1 << log);
        pin_table(&ctx, "t", &["x", "id", "g10", "g1000", "g1000000"])
            .await
            .unwrap();
        for (group, k) in [
            ("g10", 10),
            ("g10", 1000),
            ("g1000", 10),
            ("g1000", 100),
            ("g1000", 1000),
            ("g1000", 10_000),
            ("g1000000", 3),
        ] {
            if data_type == DataType::Float64 && k != 10 {
                continue;
            }
            let call = format!("topk_by(id, x, {k})");
            let sql = format!("SELECT {group}, {call} FROM t GROUP BY {group}");
            query(&ctx, "SET quantiles.device = 'cuda'").await.unwrap();
            let (on_device, _) = timed(&ctx, &sql, 5).await;
            // The answers, with sums that tell which groups have which.
            let check = format!(
                "SELECT count(*), sum(first), sum(last), sum(g % 1000 * (last % 1000)) FROM (SELECT {group} AS g, {call}[1] AS first, \
                 {call}[{k}] AS last FROM t GROUP BY {group})"
            );
            let answer = row(&ctx, &check).await;
            query(&ctx, "SET quantiles.device = 'cpu'").await.unwrap();
            let start = Instant::now();
            let expected = row(&ctx, &check).await;
            let on_cpu = start.elapsed().as_secs_f64() * 1e3;
            assert_eq!(answer, expected, "{sql}");
            println!(
                "| 2^{log} | {data_type}, {data:?} | {group} | `{call}` | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} |",
                on_device[0],
                on_device[1],
                on_device[2],
                on_cpu,
                on_cpu / (on_device[0] + on_device[1])
            );
        }
        query(&ctx, "SET quantiles.device = 'cuda'").await.unwrap();
        for sql in [
            "SELECT g1000, topk_by(id, x, 100) FROM t GROUP BY g1000",
            "SELECT g1000000, topk_by(id, x, 3) FROM t GROUP BY g1000000",
        ] {
            println!(
                "{}",
                rows(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await.join("\n")
            );
        }
        unpin_table(&ctx, "t").unwrap();
    }
}

/// The rows of a matrix as groups that lie together: kernels that find the best of each, and what all of it takes. The data of
/// Figure 3 of Johnson, Douze and Jegou 2017: lengths of 1000 to 128 000. A time of 0: rows were too short for runs.
#[test]
#[ignore = "a measurement"]
fn rows_of_matrices() {
    const ROWS: usize = 10_000;
    let device = Device::get(0).unwrap();
    for data in [Data::Uniform, Data::Normal] {
        let each = 128_000 * ROWS / PARTITIONS;
        let part = |part| move || array(&DataType::Float32, data, part, each);
        let keys: Vec<ArrayRef> = std::thread::scope(|scope| {
            let parts: Vec<_> = (0..PARTITIONS).map(|index| scope.spawn(part(index))).collect();
            parts.into_iter().map(|part| part.join().unwrap()).collect()
        });
        println!("{data:?}: {ROWS} rows of a matrix of Float32, medians of 9, milliseconds");
        println!(
            "| length | k | a block a row | with the answer | WarpSelect | with the answer | all in order |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        for length in [128_000, 64_000, 32_000, 16_000, 8000, 4000, 2000, 1000] {
            if !matches!(data, Data::Uniform) && length < 128_000 {
                continue;
            }
            let upload = |data_type, parts: &dyn Fn(usize, usize) -> ArrayRef| {
                let whole = (0..PARTITIONS).map(|index| parts(index * each, each));
                let mut left = ROWS * length;
                let cut = whole.map_while(|part| {
                    let own = part.len().min(left);
                    left -= own;
                    (own > 0).then(|| part.slice(0, own))
                });
                DeviceColumn::upload(&device, &data_type, &cut.collect::<Vec<_>>()).unwrap()
            };
            let key = upload(DataType::Float32, &|from, rows| Arc::clone(&keys[from / rows]));
            let value = upload(DataType::UInt32, &|from, rows| {
                Arc::new(UInt32Array::from_iter_values(from as u32..(from + rows) as u32))
            });
            let group = upload(DataType::UInt16, &|from, rows| {
                let numbers = (from..from + rows).map(|row| (row / length) as u16);
                Arc::new(UInt16Array::from_iter_values(numbers))
            });
            for k in [10, 100, 200, 1000] {
                let mut times: [Vec<f64>; 5] = Default::default();
                for run in 0..9 {
                    let ask = |method| best(&group, &key, &value, k, false, method);
                    let (blocks, by_blocks) = ask(TopMethod::RunsByBlocks);
                    let (warps, by_warps) = ask(TopMethod::RunsByWarps);
                    assert!(blocks.values.to_data() == warps.values.to_data());
                    let of = |report: &Report, prefix: &str| {
                        let own = report.kernel_times.iter();
                        let own = own.filter(|(name, _)| name.starts_with(prefix));
                        own.map(|(_, time)| *time).sum::<Duration>()
                    };
                    let all = [
                        of(&by_blocks, "ws_block_runs"),
                        by_blocks.device_time,
                        of(&by_warps, "ws_"),
                        by_warps.device_time,
                    ];
                    for (times, time) in times.iter_mut().zip(all) {
                        times.push(time.as_secs_f64() * 1e3);
                    }
                    if run == 0 {
                        let (sorted, report) = ask(TopMethod::Sort);
                        assert!(blocks.values.to_data() == sorted.values.to_data());
                        times[4].push(report.device_time.as_secs_f64() * 1e3);
                    }
                }
                let medians = times.map(|mut times| {
                    times.sort_by(f64::total_cmp);
                    format!("{:.3}", times[times.len() / 2])
                });
                println!("| {length} | {k} | {} |", medians.join(" | "));
            }
        }
    }
}
