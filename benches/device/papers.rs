//! The tables of the papers on one device, and columns on several. Every answer is compared, bit by bit, with that of another method.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::cells::{Bracket, Brackets, CellTable, Cells, Edges, Linear};
use datafusion_quantiles::kernel::cuda::{CudaBackend, Device, DeviceColumn, Report};
use datafusion_quantiles::kernel::round::{Reply, Request};
use datafusion_quantiles::kernel::{Backend, Shard};
use datafusion_quantiles::key::KeySpec;
use datafusion_quantiles::pinned::{pin_table, unpin_table};
use datafusion_quantiles::select::bms::{Dibms, DistributedBms};
use datafusion_quantiles::select::splitters::NearestSplitter;
use datafusion_quantiles::select::{LocalShards, Strategy};
use datafusion_quantiles::threads::Stop;
use quantiles_testing::numbers::{arrays, floats, mixed, normal, parts, percentiles, uniform};
use quantiles_testing::rounds::run;
use quantiles_testing::{session, set};

use crate::selection::selection;
use crate::timing::{RUNS, even_ranks, median, print_kernels};

/// Most repetitions of a measurement that takes up to seconds, and the time after which there is no further one.
const FEW_RUNS: usize = 5;
const LONG: Duration = Duration::from_secs(10);
const THREADS: usize = 16;

/// Shards on the first device, each with the same number of arrays.
fn shards(backend: &CudaBackend, values: &[ArrayRef], shards: usize) -> Vec<Box<dyn Shard>> {
    let spec = KeySpec::try_new(values[0].data_type()).unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let parts = values.chunks(values.len() / shards);
    let shards = parts.map(|part| {
        let mut shard = backend
            .open(&spec, MemoryConsumer::new("test").register(&pool))
            .unwrap();
        part.iter().for_each(|values| shard.append(values, None).unwrap());
        shard
    });
    shards.collect()
}

fn answer(shard: &mut Box<dyn Shard>, request: &Request) -> Reply {
    shard.answer(request, &Stop::default()).unwrap()
}

/// Counts of 2^28 values in buckets: bytes read, divided by the time on the device.
pub(crate) fn counting_buckets() {
    let device = Device::get(0).unwrap();
    println!("{device}; 2^28 Float32, medians of {RUNS}; with about 5 microseconds of measuring");
    println!("| data | buckets | of them | TB/s | with the host, ms |");
    println!("| --- | --- | --- | --- | --- |");
    let n = 1_u64 << 28;
    for (data, value) in [("uniform", uniform as fn(u64) -> f64), ("normal", normal)] {
        let values = floats(n, false, value);
        let spec = KeySpec::try_new(values[0].data_type()).unwrap();
        let width = spec.width();
        let backend = CudaBackend::new(Arc::clone(&device), None);
        // One column, like a pinned one.
        let mut shard = shards(&backend, &values, 1).remove(0);
        let all = Brackets::all(width);
        let sample = Request::Sample {
            size: 1 << 16,
            population: n,
            seed: 1,
            within: all.clone(),
            extremes: true,
        };
        let Reply::Sample { mut keys, extremes } = answer(&mut shard, &sample) else {
            panic!()
        };
        keys.sort();
        let ends = extremes.unwrap();
        let at = |i: usize, of: usize| keys.get(i * keys.len() / of);
        let splitters = |count: usize| {
            let edges = (1..count).map(|i| at(i, count)).collect();
            Cells::Edges(Edges::try_new(edges).unwrap())
        };
        let pieces = |count: usize, cells: u32| {
            let mut lefts: Vec<_> = std::iter::once(ends.0)
                .chain((1..count).map(|i| at(i, count)))
                .collect();
            lefts.dedup();
            let rights = lefts[1..].iter().map(|left| left - 1).chain([ends.1]);
            let intervals: Vec<_> = lefts
                .iter()
                .zip(rights)
                .map(|(first, last)| (Bracket { first: *first, last }, cells / count as u32))
                .collect();
            Cells::Linear(Linear::try_new(&intervals, width).unwrap())
        };
        for (name, cells) in [
            (
                "density model: a cell table",
                Cells::Table(CellTable::from_sample(&keys, 8192).unwrap()),
            ),
            (
                "density model: a cell table",
                Cells::Table(CellTable::from_sample(&keys, 16_384).unwrap()),
            ),
            ("density model: 16 linear pieces", pieces(16, 8192)),
            ("arbitrary splitters", splitters(256)),
            ("arbitrary splitters", splitters(1024)),
            ("arbitrary splitters", splitters(8192)),
        ] {
            let count = Request::Count {
                cells: cells.clone(),
                within: all.clone(),
                keep: Vec::new(),
            };
            let (mut rates, mut times) = (Vec::new(), Vec::new());
            for run in 0..RUNS + 2 {
                let (start, before) = (Instant::now(), backend.report().device_time);
                let Reply::Counts { counts, .. } = answer(&mut shard, &count) else {
                    panic!()
                };
                assert_eq!(counts.iter().sum::<u64>(), n, "{name}");
                if run >= 2 {
                    times.push(start.elapsed().as_secs_f64() * 1e3);
                    let seconds = (backend.report().device_time - before).as_secs_f64();
                    rates.push(4.0 * n as f64 / seconds / 1e12);
                }
            }
            println!(
                "| {data} | {} | {name} | {:.2} | {:.3} |",
                cells.len(),
                median(rates),
                median(times)
            );
        }
    }
}

/// Table 4 of DIBMS, with its four shards on one device. It starts at row `QUANTILES_ROW`, from 0, because all rows take minutes.
pub(crate) fn dibms_table_4() {
    /// Of each row: log2 n, m, double, normal, the milliseconds of the paper, and its ratio to DistributedBMS.
    const PAPER: [(u32, u64, bool, bool, f64, f64); 24] = [
        (24, 101, false, false, 97.09, 1.1472),
        (24, 501, false, false, 146.09, 0.4483),
        (26, 101, false, false, 101.82, 0.4106),
        (26, 501, false, false, 139.26, 0.1143),
        (28, 101, false, false, 116.59, 0.1277),
        (28, 501, false, false, 153.87, 0.0324),
        (24, 101, false, true, 112.95, 1.6830),
        (24, 501, false, true, 144.74, 0.3824),
        (26, 101, false, true, 118.44, 0.6485),
        (26, 501, false, true, 165.26, 0.1148),
        (28, 101, false, true, 132.87, 0.2084),
        (28, 501, false, true, 194.97, 0.0346),
        (24, 101, true, false, 83.74, 0.5605),
        (24, 501, true, false, 132.06, 0.2090),
        (26, 101, true, false, 98.61, 0.1961),
        (26, 501, true, false, 149.28, 0.0613),
        (28, 101, true, false, 126.98, 0.0665),
        (28, 501, true, false, 188.51, 0.0194),
        (24, 101, true, true, 83.88, 0.524),
        (24, 501, true, true, 132.64, 0.1835),
        (26, 101, true, true, 101.48, 0.1817),
        (26, 501, true, true, 156.46, 0.0566),
        (28, 101, true, true, 128.90, 0.0608),
        (28, 501, true, true, 190.13, 0.0171),
    ];
    let device = Device::get(0).unwrap();
    println!("{device}; medians of {RUNS}, of distributed_bms of {FEW_RUNS}; milliseconds");
    println!(
        "| n | type | data | m | dibms | of it kernels | counts | distributed_bms | ratio | the paper: DIBMS | ratio |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let from: usize = std::env::var("QUANTILES_ROW").map_or(0, |row| row.parse().unwrap());
    let mut held: Option<((u32, bool, bool), Vec<ArrayRef>)> = None;
    for (log, m, double, is_normal, paper, ratio) in PAPER.into_iter().skip(from) {
        let n = 1_u64 << log;
        let key = (log, double, is_normal);
        if held.as_ref().is_none_or(|held| held.0 != key) {
            held.take();
            held = Some((key, floats(n, double, if is_normal { normal } else { uniform })));
        }
        let (_, values) = held.as_ref().unwrap();
        let backend = CudaBackend::new(Arc::clone(&device), None);
        let width = KeySpec::try_new(values[0].data_type()).unwrap().width();
        let mut shards = LocalShards::blocking(width, shards(&backend, values, 4), 4, Stop::default());
        let ranks: Vec<u64> = (0..m).map(|i| (i * n / (m - 1)).max(1)).collect();
        let mut timed = |strategy: &dyn Strategy, runs: usize| {
            let (mut times, mut kernels, mut last) = (Vec::new(), Vec::new(), None);
            let began = Instant::now();
            for turn in 0..runs + 2 {
                if !times.is_empty() && began.elapsed() > LONG {
                    break;
                }
                let (start, before) = (Instant::now(), backend.report().device_time);
                let solution = run(&mut shards, strategy, &ranks);
                if turn >= 2 {
                    times.push(start.elapsed().as_secs_f64() * 1e3);
                    kernels.push((backend.report().device_time - before).as_secs_f64() * 1e3);
                }
                last = Some(solution);
            }
            (median(times), median(kernels), last.unwrap())
        };
        let (time, kernels, found) = timed(&Dibms::default(), RUNS);
        let (other, _, also) = timed(&DistributedBms::default(), FEW_RUNS);
        for rank in &ranks {
            assert_eq!(found.key_at(*rank).unwrap(), also.key_at(*rank).unwrap());
        }
        let counts = found
            .rounds
            .iter()
            .filter(|round| round.request == "count")
            .count();
        println!(
            "| 2^{log} | {} | {} | {m} | {time:.2} | {kernels:.2} | {counts} | {other:.2} | {:.3} | {paper} | {ratio} |",
            if double { "Float64" } else { "Float32" },
            if is_normal { "normal" } else { "uniform" },
            time / other
        );
    }
}

/// The sweep of SampleSelect: one random rank, for several numbers of distinct values; and its approximate form.
pub(crate) fn sample_select_sweep() {
    let device = Device::get(0).unwrap();
    println!("{device}; one random rank of UInt32, medians of {RUNS} ranks; values a second");
    println!("| n | distinct | kernels, us | with the host, us | values/s | of the read rate |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for log in (16..=28).step_by(2) {
        let n = 1_u64 << log;
        for distinct in [1, 16, 128, 1024, n] {
            let values = arrays(n, |rows| {
                let value = |row| match distinct < n {
                    true => mixed(mixed(row) % distinct) as u32,
                    false => mixed(row) as u32,
                };
                Arc::new(UInt32Array::from_iter_values(rows.map(value)))
            });
            let column = DeviceColumn::upload(&device, &DataType::UInt32, &values).unwrap();
            let selection = selection(&column, None);
            let (mut kernels, mut whole) = (Vec::new(), Vec::new());
            for turn in 0..RUNS as u64 + 2 {
                let rank = 1 + mixed(turn + 77) % n;
                let (start, mut report) = (Instant::now(), Report::default());
                let found = selection.keys(&[rank], &mut report).unwrap();
                if turn >= 2 {
                    whole.push(start.elapsed().as_secs_f64() * 1e6);
                    kernels.push(report.device_time.as_secs_f64() * 1e6);
                }
                if turn == 0 && log <= 22 {
                    let mut all: Vec<u32> = values
                        .iter()
                        .flat_map(|part| {
                            part.as_any()
                                .downcast_ref::<UInt32Array>()
                                .unwrap()
                                .values()
                                .to_vec()
                        })
                        .collect();
                    let expected = *all.select_nth_unstable(rank as usize - 1).1;
                    assert_eq!(found, [u128::from(expected)]);
                }
            }
            let (kernels, whole) = (median(kernels), median(whole));
            let rate = n as f64 / kernels * 1e6;
            println!(
                "| 2^{log} | {distinct} | {kernels:.1} | {whole:.1} | {rate:.2e} | {:.0}% |",
                rate * 4.0 / 4.577e12 * 100.0
            );
        }
    }
    println!(
        "| buckets | mean error, share of n | largest | approximate, ms | exact by the same rounds, ms | exact, one sequence, ms |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let n = 1_u64 << 28;
    let values = floats(n, false, uniform);
    let backend = CudaBackend::new(Arc::clone(&device), None);
    let width = KeySpec::try_new(values[0].data_type()).unwrap().width();
    let mut shards = LocalShards::blocking(width, shards(&backend, &values, 1), 1, Stop::default());
    let column = DeviceColumn::upload(&device, &DataType::Float32, &values).unwrap();
    let selection = selection(&column, None);
    for buckets in [64, 128, 256, 512, 1024, 4096, 8192] {
        let (mut sum, mut most) = (0.0, 0.0_f64);
        let (mut near_times, mut rounds_times, mut own_times) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..100 {
            let rank = 1 + mixed(turn + 77) % n;
            let start = Instant::now();
            let near = run(&mut shards, &NearestSplitter::try_new(buckets).unwrap(), &[rank]);
            near_times.push(start.elapsed().as_secs_f64() * 1e3);
            let (first, last) = near.rank_bounds_at(rank).unwrap();
            let error = first.saturating_sub(rank).max(rank.saturating_sub(last)) as f64 / n as f64;
            sum += error;
            most = most.max(error);
            if turn < RUNS as u64 {
                let start = Instant::now();
                let exact = run(&mut shards, &DistributedBms::default(), &[rank]);
                rounds_times.push(start.elapsed().as_secs_f64() * 1e3);
                let start = Instant::now();
                let own = selection.keys(&[rank], &mut Report::default()).unwrap();
                own_times.push(start.elapsed().as_secs_f64() * 1e3);
                assert_eq!(own[0], exact.key_at(rank).unwrap());
            }
        }
        println!(
            "| {buckets} | {:.6} | {most:.6} | {:.3} | {:.3} | {:.3} |",
            sum / 100.0,
            median(near_times),
            median(rounds_times),
            median(own_times)
        );
    }
}

fn table(ctx: &SessionContext, data_type: &DataType, n: u64) {
    let values = match data_type {
        DataType::Float32 => floats(n, false, uniform),
        _ => floats(n, true, normal),
    };
    let schema = Arc::new(Schema::new(vec![Field::new("x", data_type.clone(), false)]));
    let batches = |values: ArrayRef| -> Vec<RecordBatch> {
        let starts = (0..values.len()).step_by(1 << 16);
        starts
            .map(|from| {
                let part = values.slice(from, (1 << 16).min(values.len() - from));
                RecordBatch::try_new(Arc::clone(&schema), vec![part]).unwrap()
            })
            .collect()
    };
    let partitions = values.into_iter().map(batches).collect();
    ctx.deregister_table("t").unwrap();
    ctx.register_table(
        "t",
        Arc::new(MemTable::try_new(Arc::clone(&schema), partitions).unwrap()),
    )
    .unwrap();
}

/// For each of these values the number of rows, of `n`, that have it.
fn counted(n: u64, distinct: u64, value: impl Fn(u64) -> u64 + Sync) -> Vec<u64> {
    let zeros = || vec![0; distinct as usize];
    let counts = parts(n, |rows| {
        let mut counts = zeros();
        rows.for_each(|row| counts[value(row) as usize] += 1);
        counts
    });
    let mut sums = zeros();
    for counts in counts {
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    sums
}

/// Columns of few distinct values: spread over all keys, and whole numbers from 0.
pub(crate) fn few_distinct_values() {
    let device = Device::get(0).unwrap();
    let n = 1_u64 << 28;
    println!("{device}; kernels over 2^28 values of UInt32, medians of {RUNS}; milliseconds");
    println!("| distinct | values | one rank | 101 ranks | 1000 ranks |");
    println!("| --- | --- | --- | --- | --- |");
    for distinct in [1, 2, 16, 128, 1000, 1024, 3000, 10_000, 100_000] {
        let number = |row| mixed(row) % distinct;
        let counts = counted(n, distinct, number);
        for spread in [true, false] {
            let value = |number| {
                if spread {
                    mixed(number) as u32
                } else {
                    number as u32
                }
            };
            let values = arrays(n, |rows| {
                Arc::new(UInt32Array::from_iter_values(rows.map(|row| value(number(row)))))
            });
            let column = DeviceColumn::upload(&device, &DataType::UInt32, &values).unwrap();
            let mut selection = selection(&column, None);
            let mut sorted: Vec<_> = (0..).map(value).zip(counts.iter().copied()).collect();
            sorted.sort_unstable();
            let key_at = |mut rank: u64| {
                let found = sorted.iter().find(|(_, count)| {
                    let is_here = rank <= *count;
                    rank = rank.saturating_sub(*count);
                    is_here
                });
                u128::from(found.unwrap().0)
            };
            let mut times = Vec::new();
            for ranks in [1, 101, 1000] {
                let mut kernels = Vec::new();
                for turn in 0..RUNS as u64 + 3 {
                    let ranks: Vec<u64> = match ranks {
                        1 => vec![1 + mixed(turn + 77) % n],
                        _ => even_ranks(n, ranks),
                    };
                    let mut report = Report::default();
                    selection.timed = turn == 0;
                    let found = selection.keys(&ranks, &mut report).unwrap();
                    match turn {
                        0..2 => {
                            let expected: Vec<_> = ranks.iter().map(|rank| key_at(*rank)).collect();
                            assert_eq!(found, expected, "{distinct} {spread}");
                        }
                        2 => {}
                        _ => kernels.push(report.device_time.as_secs_f64() * 1e3),
                    }
                    if turn == 0 {
                        print_kernels(&report);
                    }
                }
                times.push(format!("{:.3}", median(kernels)));
            }
            let kind = if spread { "spread" } else { "from 0" };
            println!("| {distinct} | {kind} | {} |", times.join(" | "));
        }
    }
}

/// The time of the execution of a statement in milliseconds, and its answer.
async fn timed(ctx: &SessionContext, sql: &str) -> (f64, f64, RecordBatch) {
    let (mut times, mut kernels, mut answer) = (Vec::new(), Vec::new(), None);
    for turn in 0..RUNS + 2 {
        let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let start = Instant::now();
        let rows = datafusion::physical_plan::collect(Arc::clone(&plan), ctx.task_ctx())
            .await
            .unwrap();
        if turn >= 2 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
            let metrics = plan.metrics().unwrap();
            let time = metrics.sum_by_name("device_time").unwrap();
            kernels.push(time.as_usize() as f64 / 1e6);
        }
        answer = rows.into_iter().next();
    }
    (median(times), median(kernels), answer.unwrap())
}

/// 2^`QUANTILES_LOG` values on one device, and on all devices if there are several.
pub(crate) async fn strategies_and_devices() {
    let log: u32 = std::env::var("QUANTILES_LOG").map_or(28, |log| log.parse().unwrap());
    let devices = Device::count().unwrap();
    println!(
        "{devices} devices, {}; 2^{log} values, medians of {RUNS}; milliseconds",
        Device::get(0).unwrap()
    );
    println!("| type | ranks | device | strategy | execution | kernels |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for data_type in [DataType::Float32, DataType::Float64] {
        let ctx = session(THREADS);
        table(&ctx, &data_type, 1 << log);
        let mut answers: Vec<RecordBatch> = Vec::new();
        for device in ["cuda:0", "cuda:all"] {
            set(&ctx, "device", device).await;
            let start = Instant::now();
            pin_table(&ctx, "t", &["x"]).await.unwrap();
            println!(
                "pinned on {device} in {:.0} ms",
                start.elapsed().as_secs_f64() * 1e3
            );
            for (number, ranks) in ["0.5".to_owned(), percentiles()].iter().enumerate() {
                for strategy in ["auto", "dibms", "distributed_bms", "gk_select"] {
                    if strategy != "auto" && (devices > 1 || device != "cuda:0") {
                        continue;
                    }
                    set(&ctx, "strategy", strategy).await;
                    let sql = format!("SELECT exact_quantiles(x, {ranks}) FROM t");
                    let (time, kernels, answer) = timed(&ctx, &sql).await;
                    match answers.get(number) {
                        Some(first) => assert_eq!(
                            first.column(0).to_data(),
                            answer.column(0).to_data(),
                            "{device} {strategy}"
                        ),
                        None => answers.push(answer),
                    }
                    let ranks = if number == 0 { 1 } else { 101 };
                    println!("| {data_type} | {ranks} | {device} | {strategy} | {time:.3} | {kernels:.3} |");
                }
                set(&ctx, "strategy", "auto").await;
            }
            unpin_table(&ctx, "t").unwrap();
            if devices == 1 {
                break;
            }
        }
    }
}
