//! Vectors on a device: the rows nearest to one query, by the kernel that selects as it reads, and by SQL.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float16Array, RecordBatch, UInt32Array,
};
use datafusion::arrow::datatypes::{DataType, Field, Float32Type, Schema};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use datafusion_quantiles::kernel::cuda::{Device, DeviceColumn, NearestSelection, Report};
use datafusion_quantiles::pinned::{pin_table, unpin_table};
use quantiles_testing::*;

use crate::statements::timed;
use crate::tables::{Data, PARTITIONS, array};
use crate::timing::{RUNS, median};

const WIDTH: usize = 128;

/// Uniform vectors, a part for each partition.
fn parts(item: &DataType, rows: usize) -> Vec<ArrayRef> {
    std::thread::scope(|scope| {
        let parts = (0..PARTITIONS).map(|part| {
            scope.spawn(move || {
                let values = array(&DataType::Float32, Data::Uniform, part, rows / PARTITIONS * WIDTH);
                let values = match item {
                    DataType::Float16 => {
                        let values = values.as_primitive::<Float32Type>().values().iter();
                        let values = values.map(|value| half::f16::from_f32(*value));
                        Arc::new(Float16Array::from_iter_values(values)) as ArrayRef
                    }
                    _ => values,
                };
                let item = Arc::new(Field::new_list_field(item.clone(), false));
                let vectors = FixedSizeListArray::try_new(item, WIDTH as i32, values, None);
                Arc::new(vectors.unwrap()) as ArrayRef
            })
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    })
}

/// Selection fused with the distances, without SQL.
pub(crate) fn nearest_rows() {
    const ROWS: usize = 10_000_000;
    let device = Device::get(0).unwrap();
    let parts = parts(&DataType::Float32, ROWS);
    let vectors = DeviceColumn::upload(&device, parts[0].data_type(), &parts).unwrap();
    println!("{ROWS} vectors of {WIDTH} Float32; milliseconds, medians of {RUNS}");
    println!("| k | with the host | kernels | nr_rows | nr_finish |");
    println!("| --- | --- | --- | --- | --- |");
    for k in [1, 10, 32, 100, 256, 1000] {
        let mut times: [Vec<f64>; 4] = Default::default();
        for run in 0..RUNS + 2 {
            let point = vec![run as f32 / 30.0; WIDTH];
            let mut report = Report::default();
            let nearest = NearestSelection {
                vectors: &vectors,
                k,
                limit: None,
                timed: true,
            };
            let start = Instant::now();
            nearest.rows(&point, &mut report).unwrap();
            let whole = start.elapsed();
            let kernels = report.kernel_times.iter().map(|(_, time)| *time);
            let all = [whole, report.device_time].into_iter().chain(kernels);
            for (times, time) in times.iter_mut().zip(all) {
                if run >= 2 {
                    times.push(time.as_secs_f64() * 1e3);
                }
            }
        }
        let medians = times.map(|times| format!("{:.3}", median(times)));
        println!("| {k} | {} |", medians.join(" | "));
    }
}

/// Registers a table `t` of `id` and the vectors `v`.
fn register_vectors(ctx: &SessionContext, parts: Vec<ArrayRef>) {
    let item = parts[0].data_type().clone();
    let fields = vec![
        Field::new("id", DataType::UInt32, false),
        Field::new("v", item, false),
    ];
    let schema = Arc::new(Schema::new(fields));
    let mut next = 0;
    let partitions = parts.into_iter().map(|vectors| {
        let rows = vectors.len() as u32;
        let ids: ArrayRef = Arc::new(UInt32Array::from_iter_values(next..next + rows));
        next += rows;
        let all = RecordBatch::try_new(Arc::clone(&schema), vec![ids, vectors]).unwrap();
        let starts = (0..all.num_rows()).step_by(8192);
        starts
            .map(|from| all.slice(from, 8192.min(all.num_rows() - from)))
            .collect()
    });
    let table = MemTable::try_new(Arc::clone(&schema), partitions.collect()).unwrap();
    ctx.register_table("t", Arc::new(table)).unwrap();
}

/// `ORDER BY` a distance `LIMIT k` from SQL to rows, on the device and on the CPU, whose rows must be the same.
pub(crate) async fn by_distance_in_sql() {
    const ROWS: usize = 10_000_000;
    println!(
        "{ROWS} vectors of {WIDTH}, in {PARTITIONS} partitions; milliseconds, medians of {RUNS} on the device, of 3 on the CPU"
    );
    println!(
        "| components | measure | k | where | planning | execution | of it kernels | CPU: execution | ratio |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let query: Vec<_> = (0..WIDTH)
        .map(|i| format!("{:?}", (i * 37 % 101) as f64 / 101.0))
        .collect();
    let query = query.join(", ");
    for item in [DataType::Float32, DataType::Float16] {
        let ctx = session(PARTITIONS);
        register_vectors(&ctx, parts(&item, ROWS));
        let start = Instant::now();
        pin_table(&ctx, "t", &["id", "v"]).await.unwrap();
        println!(
            "| {item} | PIN TABLE | | | {:.0} | | | | |",
            start.elapsed().as_secs_f64() * 1e3
        );
        let asked = [
            ("array_distance", "", 10, ""),
            ("array_distance", "", 100, ""),
            ("array_distance", "", 1000, ""),
            ("array_distance", "", 10_000, ""),
            ("array_distance", "", 10, "WHERE id BETWEEN 1000000 AND 8999999"),
            ("array_distance", "", 10, "WHERE id < 5000000"),
            ("cosine_distance", "", 10, ""),
            ("inner_product", "DESC", 10, ""),
        ];
        for (measure, direction, k, filter) in asked {
            let sql = format!(
                "SELECT id FROM t {filter} ORDER BY {measure}(v, [{query}]) {direction}, id LIMIT {k}"
            );
            set(&ctx, "device", "cuda").await;
            let (on_device, answer) = timed(&ctx, &sql, RUNS).await;
            if std::env::var_os("QUANTILES_KERNELS").is_some() {
                let shown = rows(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await.join("\n");
                println!("{}", shown.replace(&query, ".."));
            }
            set(&ctx, "device", "cpu").await;
            let (on_cpu, expected) = timed(&ctx, &sql, 3).await;
            assert!(
                answer.column(0).to_data() == expected.column(0).to_data(),
                "{sql}"
            );
            println!(
                "| {item} | {measure} | {k} | {filter} | {:.2} | {:.3} | {:.3} | {:.1} | {:.0} |",
                on_device[0],
                on_device[1],
                on_device[2],
                on_cpu[1],
                on_cpu[1] / on_device[1]
            );
        }
        unpin_table(&ctx, "t").unwrap();
    }
}
