//! Statements over pinned and streamed columns. For each kind of data: the time of the copy to the device, the times from SQL to rows on
//! the device and on the CPU over rows in memory, and the time that the device reports. Every answer is compared with the CPU's, bit by bit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::DataType;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::kernel::cuda::Device;
use datafusion_quantiles::pinned::{pin_table, unpin_table};
use quantiles_testing::*;

use crate::tables::{Data, PARTITIONS, table, table_of};
use crate::timing::RUNS;

/// Medians in milliseconds: planning, execution, and the time on the device; and the answer.
pub(crate) async fn timed(ctx: &SessionContext, sql: &str, runs: usize) -> ([f64; 3], RecordBatch) {
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut answer = Vec::new();
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    for run in 0..runs + 2 {
        let start = Instant::now();
        let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let planned = start.elapsed();
        let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
        let whole = start.elapsed();
        answer = batches;
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
    (
        times.map(median),
        concat_batches(&answer[0].schema(), &answer).unwrap(),
    )
}

/// Milliseconds on the device of all operators of a plan.
fn device_time(plan: &dyn ExecutionPlan) -> f64 {
    let metrics = plan.metrics();
    let own = metrics.and_then(|metrics| metrics.sum_by_name("device_time"));
    let below = plan
        .children()
        .into_iter()
        .map(|child| device_time(child.as_ref()));
    own.map_or(0.0, |time| time.as_usize() as f64 / 1e6) + below.sum::<f64>()
}

pub(crate) async fn quantiles_of_pinned_columns() {
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

pub(crate) async fn streamed_columns() {
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

pub(crate) async fn groups_of_pinned_columns() {
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
                // Takes long, and shows no more than the other cases.
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
                // The answers, with a sum that depends on the groups that have them.
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

pub(crate) async fn rows_of_pinned_columns() {
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
            // All statements over one kind of data, and the statements of many rows over the others.
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

pub(crate) async fn best_rows_of_groups() {
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
            // The answers, with sums that depend on the groups that have them.
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
