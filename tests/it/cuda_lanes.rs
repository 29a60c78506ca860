//! Lanes on devices: every request against the CPU's lanes, every strategy against a sort and the CPU, one device and two.
//!
//! Without a device these tests say that they are skipped, or fail if `QUANTILES_REQUIRE_CUDA=1`.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch};
use datafusion::arrow::compute::concat_batches;
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::cells::{Bracket, Brackets};
use datafusion_quantiles::cells::{CellTable, Cells, Edges, Linear};
use datafusion_quantiles::config::StrategyName;
use datafusion_quantiles::exec::staged::RoundDevice;
use datafusion_quantiles::kernel::cuda::{CudaBackend, Device};
use datafusion_quantiles::kernel::round::{Reply, Request};
use datafusion_quantiles::kernel::{Backend, CpuBackend, Lane};
use datafusion_quantiles::key::KeyVec;
use datafusion_quantiles::key::{KeyBits, KeySpec, Width};
use datafusion_quantiles::pinned::{pin_table, unpin_table, use_devices};
use datafusion_quantiles::select::LocalShards;
use datafusion_quantiles::sketch::{AnySummary, Epsilon};
use datafusion_quantiles::threads::Stop;
use quantiles_literature::NaiveBackend;

use crate::cuda::{columns, device, passes_in_a_process, pinned, rows_joined, same_bits, set, with_nulls};
use crate::cuda_devices::two_devices;
use crate::patterns::{self, Pattern};
use crate::select::{ends_when_stopped, lane, ranks_of, run, skips_nulls_and_filtered_rows, strategies};
use crate::staged::staged_session;
use crate::support::*;

pub(crate) fn sorted_keys(values: &ArrayRef) -> (KeySpec, Vec<KeyBits>) {
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let mut sorted = spec.keys(values).unwrap();
    sorted.sort_unstable();
    (spec, sorted)
}

fn key_vec(keys: &[KeyBits], width: Width) -> KeyVec {
    match width {
        Width::W32 => KeyVec::W32(keys.iter().map(|key| *key as u32).collect()),
        Width::W64 => KeyVec::W64(keys.iter().map(|key| *key as u64).collect()),
        Width::W128 => KeyVec::W128(keys.to_vec()),
    }
}

/// Requests of all kinds about keys, at least one, that are sorted; those where the naive lane answers as all do.
fn requests(sorted: &[KeyBits], width: Width) -> Vec<Request> {
    let mut distinct = sorted.to_vec();
    distinct.dedup();
    let key = |share: usize| distinct[(distinct.len() - 1) * share / 100];
    let all = Brackets::all(width);
    let bracket = |first, last| Bracket { first, last };
    let mut narrow = vec![bracket(key(10), key(20))];
    narrow.extend((key(60) > key(20)).then(|| bracket(key(60), key(61))));
    let narrow = Brackets::try_new(narrow).unwrap();
    let ends = bracket(distinct[0], distinct[distinct.len() - 1]);
    let table = |cells| CellTable::from_sample(&key_vec(sorted, width), cells).unwrap();
    let mut heavy: Vec<KeyBits> = [5, 50, 99].map(key).to_vec();
    heavy.dedup();
    let edges = |shares: std::ops::Range<usize>| {
        let edges = shares.map(|share| distinct[(distinct.len() - 1) * share / 3000]);
        Cells::Edges(Edges::try_new(edges.collect()).unwrap())
    };
    let few = Cells::Edges(
        Edges::try_new(vec![
            key(10),
            key(20).saturating_add(1).min(width.max_key()),
            key(60),
            key(61),
        ])
        .unwrap(),
    );
    let middle = key(50);
    let mut pieces = vec![(bracket(ends.first, middle), 3000)];
    pieces.extend((middle < ends.last).then(|| (bracket(middle + 1, ends.last), 70)));
    let whole = Cells::Linear(Linear::try_new(&pieces, width).unwrap());
    let mut parts = vec![(bracket(key(30), key(31)), 40)];
    parts.extend((key(70) > key(31)).then(|| (bracket(key(70), key(72)), 2)));
    let parts = Cells::Linear(Linear::try_new(&parts, width).unwrap());
    let count = |cells: &Cells, within: &Brackets, keep: &[u32]| Request::Count {
        cells: cells.clone(),
        within: within.clone(),
        keep: keep
            .iter()
            .copied()
            .filter(|cell| (*cell as usize) < cells.len())
            .collect(),
    };
    let extract = |brackets: &Brackets| Request::Extract {
        brackets: brackets.clone(),
    };
    let coarse = Cells::Table(table(1000));
    let most = |cells: &Cells| (0..cells.len() as u32).step_by(7).collect::<Vec<_>>();
    let mut requests = vec![
        extract(&narrow),
        extract(&all),
        count(&coarse, &all, &[0, 3, 500, 900]),
        // Whole cells of the last count, and parts of them.
        extract(&narrow),
        count(&coarse, &narrow, &[2, 100]),
        count(
            &Cells::Table(table(16_000).with_heavy(heavy).unwrap()),
            &all,
            &[1, 17],
        ),
        // More than a block has counters for.
        count(&Cells::Table(table(60_000)), &all, &[]),
        count(&few, &all, &[1, 2]),
        count(&few, &narrow, &[1]),
        count(&edges(0..100), &narrow, &[12, 13]),
        count(&edges(0..3000), &all, &most(&edges(0..3000))),
        count(&whole, &all, &[]),
        extract(&Brackets::try_new(vec![ends]).unwrap()),
        count(&parts, &all, &[0, 40]),
        extract(&Brackets::try_new(vec![bracket(key(30), key(31))]).unwrap()),
        count(&whole, &narrow, &[5]),
        extract(&Brackets::try_new(Vec::new()).unwrap()),
        count(&Cells::Edges(Edges::try_new(Vec::new()).unwrap()), &all, &[0]),
    ];
    // Cells of the first count, one by one.
    if let Some(range) = coarse.cell(key(40)).and_then(|cell| coarse.range(cell, width)) {
        requests.insert(3, extract(&Brackets::try_new(vec![range]).unwrap()));
    }
    requests
}

/// Requests whose replies depend on the order of the keys: the CPU's lane alone answers alike.
fn ordered_requests(sorted: &[KeyBits], width: Width) -> Vec<Request> {
    let n = sorted.len() as u64;
    let key = |share: usize| sorted[(sorted.len() - 1) * share / 100];
    let all = Brackets::all(width);
    let part = Bracket {
        first: key(20),
        last: key(45),
    };
    let inside = sorted.iter().filter(|key| part.contains(**key)).count() as u64;
    let narrow = Brackets::try_new(vec![part]).unwrap();
    let sample = |size, population, within: &Brackets, extremes| Request::Sample {
        size,
        population,
        seed: 7 << 32,
        within: within.clone(),
        extremes,
    };
    let eps = |accuracy| Request::Sketch {
        eps: Epsilon::try_new(accuracy).unwrap(),
    };
    vec![
        sample(1000, n, &all, true),
        sample(5000, 3 * n, &all, false),
        sample(u64::from(u32::MAX), n, &all, false),
        sample(300, inside, &narrow, true),
        sample(50, inside, &narrow, false),
        sample(
            300,
            inside,
            &Brackets::try_new(vec![Bracket {
                first: key(30),
                last: key(40),
            }])
            .unwrap(),
            true,
        ),
        eps(100.0),
        eps(3000.0),
        eps(4.0),
    ]
}

fn in_order(mut reply: Reply) -> Reply {
    if let Reply::Counts { kept, .. } | Reply::Extracted(kept) = &mut reply {
        kept.iter_mut().for_each(KeyVec::sort);
    }
    reply
}

fn same_replies(values: &[ArrayRef], backend: &CudaBackend, what: &str) {
    let whole =
        datafusion::arrow::compute::concat(&values.iter().map(AsRef::as_ref).collect::<Vec<_>>()).unwrap();
    let (spec, sorted) = sorted_keys(&whole);
    let [mut on_device, mut fast, mut naive] = [
        lane(backend, &spec, values),
        lane(&CpuBackend::default(), &spec, values),
        lane(&NaiveBackend, &spec, values),
    ];
    assert_eq!(on_device.len(), sorted.len() as u64, "{what}");
    let width = spec.width();
    let answer = |lane: &mut Box<dyn Lane>, request: &Request| {
        let reply = lane.answer(request, &Stop::default());
        in_order(reply.unwrap_or_else(|error| panic!("{what}, {}: {error}", request.name())))
    };
    if sorted.is_empty() {
        let all = Brackets::all(width);
        let request = Request::Extract {
            brackets: all.clone(),
        };
        assert_eq!(
            answer(&mut on_device, &request),
            answer(&mut naive, &request),
            "{what}"
        );
        for request in ordered_requests(&[0], width) {
            assert_eq!(
                answer(&mut on_device, &request),
                answer(&mut fast, &request),
                "{what} {request:?}"
            );
        }
        return;
    }
    for (number, request) in requests(&sorted, width).iter().enumerate() {
        let found = answer(&mut on_device, request);
        assert!(
            found == answer(&mut naive, request),
            "{what}, request {number}: {}",
            request.name()
        );
    }
    for (number, request) in ordered_requests(&sorted, width).iter().enumerate() {
        let (found, expected) = (answer(&mut on_device, request), answer(&mut fast, request));
        let is_valid = match &found {
            // Where values are sketched one by one, in blocks of their own.
            Reply::Sketch(Some(summary)) => found == expected || proves_ranks(summary, &sorted),
            _ => found == expected,
        };
        assert!(is_valid, "{what}, ordered request {number}: {}", request.name());
    }
}

/// Whether brackets of all ranks hold their keys, and as few as is promised.
fn proves_ranks(summary: &AnySummary, sorted: &[KeyBits]) -> bool {
    let n = sorted.len() as u64;
    let ranks: Vec<u64> = (1..=n).step_by((n as usize / 50).max(1)).collect();
    let (numerator, denominator) = summary.epsilon().fraction();
    let most = 4 * n * numerator / denominator + 4;
    let brackets = summary.brackets(&ranks).unwrap();
    summary.n() == n
        && ranks.iter().zip(brackets).all(|(rank, (lo, hi))| {
            let key = sorted[*rank as usize - 1];
            let inside = sorted.iter().filter(|key| lo < **key && **key < hi).count() as u64;
            lo <= key && key <= hi && inside <= most
        })
}

fn batches(values: &ArrayRef, rows: usize) -> Vec<ArrayRef> {
    let starts = (0..values.len()).step_by(rows);
    let mut batches: Vec<_> = starts
        .map(|at| values.slice(at, rows.min(values.len() - at)))
        .collect();
    batches.push(values.slice(0, 0));
    batches
}

fn every_request(patterns: &[Pattern]) {
    let Some(device) = device() else { return };
    let backend = CudaBackend::new(device, None);
    for pattern in patterns {
        for (len, nulls) in [(0, false), (1, false), (40, true), (9001, false), (70_003, true)] {
            let all = columns(*pattern, len, 3);
            for (name, values) in if nulls { with_nulls(all) } else { all } {
                let what = format!("{name}, {pattern:?}, {len} rows");
                same_replies(&batches(&values, 4000), &backend, &what);
            }
        }
    }
}

#[test]
fn every_request_first_patterns() {
    every_request(&patterns::ALL[..4]);
}

#[test]
fn every_request_second_patterns() {
    every_request(&patterns::ALL[4..8]);
}

#[test]
fn every_request_last_patterns() {
    every_request(&patterns::ALL[8..]);
}

/// Values that take several tiles and chunks, in several appends between requests.
#[test]
fn long_lanes() {
    let Some(device) = device() else { return };
    let backend = CudaBackend::new(device, None);
    for pattern in [Pattern::Random, Pattern::Clusters, Pattern::Sorted] {
        for (name, values) in columns(pattern, 1_500_007, 9) {
            if ["f32", "i64", "u16", "dec"].contains(&name) {
                same_replies(
                    &batches(&values, 400_000),
                    &backend,
                    &format!("{name}, {pattern:?}"),
                );
            }
        }
    }
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..300_000));
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let mut lane = lane(&backend, &spec, &[values.slice(0, 100_000)]);
    for end in [100_000, 200_000, 300_000] {
        let all = Request::Extract {
            brackets: Brackets::all(Width::W64),
        };
        let Reply::Extracted(lists) = in_order(lane.answer(&all, &Stop::default()).unwrap()) else {
            panic!()
        };
        assert_eq!((lists[0].len(), lane.len()), (end, end as u64));
        let last = spec.to_array(&[lists[0].get(end - 1)]).unwrap();
        assert_eq!(
            last.as_ref(),
            &Int64Array::from(vec![end as i64 - 1]) as &dyn Array
        );
        if end < 300_000 {
            lane.append(&values.slice(end, 100_000), None).unwrap();
        }
    }
}

#[test]
fn filtered_rows_are_skipped_and_stopped_lanes_end() {
    let Some(device) = device() else { return };
    let backend = CudaBackend::new(device, None);
    skips_nulls_and_filtered_rows(&backend);
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(10_000, 11)));
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    ends_when_stopped(lane(&backend, &spec, &[values]), spec.width());
    let mut lane = lane(&backend, &spec, &[]);
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
    assert!(
        lane.append(&floats, None)
            .unwrap_err()
            .to_string()
            .contains("got values of Float64")
    );
}

/// Shared memory as other devices have it.
#[test]
fn less_shared_memory() {
    if device().is_none() {
        return;
    }
    for bytes in [64 << 10, 99 << 10, 163 << 10] {
        let backend = CudaBackend::new(Arc::new(Device::open(0, Some(bytes)).unwrap()), None);
        for pattern in [Pattern::Random, Pattern::Zipf] {
            for (name, values) in columns(pattern, 50_021, 4) {
                if ["f32", "i64", "u8", "dec"].contains(&name) {
                    let what = format!("{name}, {pattern:?}, {bytes} bytes of shared memory");
                    same_replies(&batches(&values, 9000), &backend, &what);
                }
            }
        }
    }
}

/// Every strategy over lanes on two devices, one of which has most values, and over one.
#[test]
fn every_strategy_over_lanes() {
    let Some(devices) = two_devices() else { return };
    for pattern in patterns::ALL {
        for (name, values) in columns(pattern, 60_013, 6) {
            if !["f64", "i32", "dec"].contains(&name) {
                continue;
            }
            let (spec, sorted) = sorted_keys(&values);
            let ranks = ranks_of(sorted.len() as u64, 12);
            let expected: Vec<KeyBits> = ranks.iter().map(|rank| sorted[*rank as usize - 1]).collect();
            for strategy in strategies() {
                for shares in [vec![60_013], vec![50_000, 10_013], vec![1, 60_012]] {
                    let mut from = 0;
                    let lanes = shares.iter().zip(&devices).map(|(share, device)| {
                        let own = values.slice(from, *share);
                        from += share;
                        lane(&CudaBackend::new(Arc::clone(device), None), &spec, &[own])
                    });
                    let lanes: Vec<_> = lanes.collect();
                    let mut shards = LocalShards::blocking(spec.width(), lanes, 2, Stop::default());
                    let solution = run(&mut shards, strategy.as_ref(), &ranks);
                    let found: Vec<KeyBits> =
                        ranks.iter().map(|rank| solution.key_at(*rank).unwrap()).collect();
                    assert_eq!(
                        found,
                        expected,
                        "{} on {shares:?} of {name}, {pattern:?}",
                        strategy.label()
                    );
                }
            }
        }
    }
}

/// The answers of the device and of the CPU, which must be one: every bit; and how the device came to them.
async fn same(ctx: &SessionContext, sql: &str, shown: &str, what: &str) {
    same_on(ctx, "cuda", sql, shown, what).await;
}

pub(crate) async fn same_on(ctx: &SessionContext, devices: &str, sql: &str, shown: &str, what: &str) {
    let ask = async |device| {
        set(ctx, "device", device).await;
        let plan = physical_plan(ctx, sql).await;
        assert_eq!(plan.contains(shown), device == devices, "{what}: {plan}");
        let answer = query(ctx, sql).await;
        let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
        concat_batches(&answer[0].schema(), &answer).unwrap()
    };
    let (on_device, on_cpu): (RecordBatch, RecordBatch) = (ask(devices).await, ask("cpu").await);
    same_bits(&on_device, &on_cpu, what);
}

pub(crate) fn calls(rows: &RecordBatch) -> String {
    let names = rows
        .schema_ref()
        .fields()
        .iter()
        .map(|field| field.name().clone());
    let calls = names.map(|x| {
        format!("exact_quantiles({x}, [0.5, 0, 1, 0.25, 0.001, 0.9]), exact_quantiles({x}, 0.7, 'lower')")
    });
    format!("SELECT {} FROM t", calls.collect::<Vec<_>>().join(", "))
}

async fn every_strategy_from_sql(patterns: &[Pattern]) {
    if device().is_none() {
        return;
    }
    for pattern in patterns {
        for (len, nulls) in [(0, false), (33, true), (60_001, false), (100_003, true)] {
            let all = columns(*pattern, len, len as u64 + 1);
            let rows = batch(if nulls { with_nulls(all) } else { all });
            for strategy in StrategyName::ALL {
                let ctx = session(4);
                set(&ctx, "strategy", &strategy.to_string()).await;
                let what = format!("{strategy}, {pattern:?}, {len} rows");
                register(&ctx, "t", &rows, 4, 5000);
                let shown = format!("QuantilesExec: strategy={strategy}, device=cuda:0, on_device=[");
                same(&ctx, &calls(&rows), &shown, &what).await;
                if [StrategyName::Dibms, StrategyName::GkSelect].contains(&strategy) {
                    ctx.deregister_table("t").unwrap();
                    set(&ctx, "device", "cuda").await;
                    pinned(&ctx, &rows, 4).await;
                    let sql = calls(&rows);
                    same(&ctx, &sql, &format!("strategy={strategy}, calls="), &what).await;
                    same(&ctx, &format!("{sql} WHERE i16 > 5"), "PinnedExec: ", &what).await;
                    unpin_table(&ctx, "t").unwrap();
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_strategy_from_sql_first_patterns() {
    every_strategy_from_sql(&patterns::ALL[..4]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_strategy_from_sql_second_patterns() {
    every_strategy_from_sql(&patterns::ALL[4..8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_strategy_from_sql_last_patterns() {
    every_strategy_from_sql(&patterns::ALL[8..]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ran_is_shown() {
    if device().is_none() {
        return;
    }
    let ctx = session(3);
    register(&ctx, "t", &batch(columns(Pattern::Random, 200_000, 4)), 4, 8192);
    set(&ctx, "device", "cuda").await;
    let sql = "EXPLAIN ANALYZE SELECT exact_quantiles(f64, [0.1, 0.5, 0.9]) FROM t";
    for (strategy, metrics) in [
        (
            "dibms",
            vec![
                "strategy_dibms=1",
                "rounds=",
                "candidates_after_round_2=",
                "sample_time=",
            ],
        ),
        (
            "gk_select",
            vec!["strategy_gk_select=1", "rounds=2", "sketch_time="],
        ),
        (
            "distributed_bms",
            vec!["strategy_distributed_bms=1", "rounds=3", "extract_time="],
        ),
    ] {
        set(&ctx, "strategy", strategy).await;
        let analyzed = rows_joined(&ctx, sql).await;
        let shown = format!("QuantilesExec: strategy={strategy}, device=cuda:0, on_device=[f64@");
        for expected in
            metrics
                .into_iter()
                .chain([shown.as_str(), "kernels=", "bytes_to_device=1.6", "device_time="])
        {
            assert!(analyzed.contains(expected), "{expected} in {analyzed}");
        }
    }
    pin_table(&ctx, "t", &["f64"]).await.unwrap();
    let analyzed = rows_joined(&ctx, sql).await;
    for expected in [
        "PinnedExec: device=cuda:0",
        "strategy=distributed_bms, calls=",
        "strategy_distributed_bms=1",
        "rounds=3",
    ] {
        assert!(analyzed.contains(expected), "{expected} in {analyzed}");
    }
}

fn small_pool(bytes: usize) -> Arc<dyn MemoryPool> {
    Arc::new(GreedyMemoryPool::new(bytes))
}

/// Device memory that ends: said, or gone without where that is possible.
#[test]
fn limits_of_device_memory() {
    if device().is_none() {
        return;
    }
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(1_000_000, 3)));
    let (spec, sorted) = sorted_keys(&values);
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let open = |limit| {
        let device = Arc::new(Device::open(0, None).unwrap());
        let backend = CudaBackend::new(Arc::clone(&device), Some(limit));
        let lane = backend.open(&spec, MemoryConsumer::new("test").register(&pool));
        (device, lane.unwrap())
    };
    let answer = |lane: &mut Box<dyn Lane>, request: &Request| lane.answer(request, &Stop::default());
    let all = Request::Extract {
        brackets: Brackets::all(Width::W64),
    };
    let (_device, mut lane) = open(1 << 20);
    lane.append(&values, None).unwrap();
    let error = answer(&mut lane, &all).unwrap_err();
    assert!(
        matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
        "{error}"
    );
    assert!(
        error.to_string().contains("quantiles.cuda_memory_limit"),
        "{error}"
    );
    let count = Request::Count {
        cells: Cells::Table(CellTable::from_sample(&key_vec(&sorted, Width::W64), 5000).unwrap()),
        within: Brackets::all(Width::W64),
        keep: vec![100],
    };
    let strategies = strategies();
    let ranks = ranks_of(1_000_000, 9);
    for strategy in &strategies[6..9] {
        // Enough for the copy, and then something takes most of it.
        let (device, mut lane) = open(24 << 20);
        lane.append(&values, None).unwrap();
        let Reply::Counts { counts, kept } = answer(&mut lane, &count).unwrap() else {
            panic!()
        };
        assert_eq!((counts.iter().sum::<u64>(), kept.len()), (1_000_000, 1));
        let held = device.allocate(15 << 20, None).unwrap();
        assert_eq!(answer(&mut lane, &all).unwrap(), Reply::Extracted(Vec::new()));
        let mut shards = LocalShards::blocking(Width::W64, vec![lane], 1, Stop::default());
        let solution = run(&mut shards, strategy.as_ref(), &ranks);
        for rank in &ranks {
            let expected = sorted[*rank as usize - 1];
            assert_eq!(solution.key_at(*rank).unwrap(), expected, "{}", strategy.label());
        }
        drop((held, shards));
        device.release_workspace();
        assert_eq!(device.held_bytes(), 0);
    }
    // No memory of the host for the keys: counts, but no lists.
    let pool = small_pool(100_000);
    let device = Arc::new(Device::open(0, None).unwrap());
    let mut lane = CudaBackend::new(device, None)
        .open(&spec, MemoryConsumer::new("test").register(&pool))
        .unwrap();
    lane.append(&values, None).unwrap();
    assert_eq!(answer(&mut lane, &all).unwrap(), Reply::Extracted(Vec::new()));
    drop(lane);
    assert_eq!(pool.reserved(), 0);
}

/// The rounds of executors: their devices', and the CPU's where devices fail.
#[tokio::test(flavor = "multi_thread")]
async fn staged_rounds() {
    let Some(devices) = two_devices() else { return };
    let rows = batch(with_nulls(columns(Pattern::Clusters, 90_001, 4)));
    let plain = session(4);
    register(&plain, "t", &rows, 4, 3000);
    let sql = calls(&rows);
    let expected = row(&plain, &sql).await;
    for falls_back in [false, true] {
        let ctx = staged_session(4);
        RoundDevice::on(devices.clone(), falls_back).give(ctx.state_ref().write().config_mut());
        register(&ctx, "t", &rows, 4, 3000);
        for strategy in StrategyName::ALL {
            set(&ctx, "strategy", &strategy.to_string()).await;
            // Whatever a client says of its own.
            set(&ctx, "device", "cpu").await;
            assert_eq!(row(&ctx, &sql).await, expected, "{strategy}");
            let analyzed = rows_joined(&ctx, "EXPLAIN ANALYZE SELECT exact_quantiles(f64, 0.5) FROM t").await;
            for shown in ["kernels=", "device_time=", "cuda_fallback=0"] {
                assert!(analyzed.contains(shown), "{shown} in {analyzed}");
            }
        }
        if !falls_back {
            // The executor's own limit, whatever a client allows.
            let limited = RoundDevice::on(devices.clone(), false).with_memory_limit(Some(100 << 10));
            limited.give(ctx.state_ref().write().config_mut());
            let refused = error(&ctx, &sql).await;
            assert!(refused.contains("--cuda-memory-limit"), "{refused}");
            RoundDevice::on(devices.clone(), false).give(ctx.state_ref().write().config_mut());
        }
        // Too little for one partition's values.
        set(&ctx, "cuda_memory_limit", "100k").await;
        match falls_back {
            true => {
                assert_eq!(row(&ctx, &sql).await, expected);
                let analyzed =
                    rows_joined(&ctx, "EXPLAIN ANALYZE SELECT exact_quantiles(f64, 0.5) FROM t").await;
                assert!(analyzed.contains("cuda_fallback=4"), "{analyzed}");
            }
            false => {
                let refused = error(&ctx, &sql).await;
                assert!(refused.contains("quantiles.cuda_memory_limit"), "{refused}");
            }
        }
    }
}

#[test]
fn faults() {
    if device().is_some() {
        passes_in_a_process("cuda_lanes::faults_in_a_process");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test `faults`"]
async fn faults_in_a_process() {
    let Some(devices) = two_devices() else {
        panic!("no device")
    };
    let sql = "SELECT exact_quantiles(i64, 0.5), exact_quantiles(f32, [0.1, 0.9]) FROM t";
    let rows = batch(columns(Pattern::Random, 50_000, 4));
    let plain = session(4);
    register(&plain, "t", &rows, 4, 3000);
    let expected = row(&plain, sql).await;
    // Pinned on two devices: the table itself, by the CPU, where the session leaves it to us.
    let ctx = session(4);
    use_devices(&ctx, devices.clone());
    register(&ctx, "t", &rows, 4, 3000);
    set(&ctx, "device", "cuda:all").await;
    pin_table(&ctx, "t", &["i64", "f32"]).await.unwrap();
    for (phase, strategy) in [
        ("cuda_compile", "auto"),
        ("cuda_select", "auto"),
        ("cuda_round", "dibms"),
    ] {
        fail::cfg(format!("quantiles::{phase}"), "return(broken)").unwrap();
        set(&ctx, "strategy", strategy).await;
        set(&ctx, "device", "cuda").await;
        let failed = error(&ctx, sql).await;
        assert!(failed.contains("broken"), "{phase}: {failed}");
        set(&ctx, "device", "auto").await;
        assert_eq!(row(&ctx, sql).await, expected, "{phase}");
        let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
        assert!(analyzed.contains("cuda_fallback=1"), "{phase}: {analyzed}");
        fail::remove(format!("quantiles::{phase}"));
    }
    assert_eq!(row(&ctx, sql).await, expected);
    // Rounds of an executor, before a device holds anything and when it does, over files, whose scans share a queue.
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("t");
    let copied = plain.table("t").await.unwrap();
    let options = datafusion::dataframe::DataFrameWriteOptions::new();
    copied
        .write_parquet(files.to_str().unwrap(), options, None)
        .await
        .unwrap();
    for falls_back in [false, true] {
        for phase in ["cuda_compile", "cuda_append", "cuda_round"] {
            let devices = vec![Arc::new(Device::open(0, None).unwrap())];
            let staged = staged_session(4);
            RoundDevice::on(devices, falls_back).give(staged.state_ref().write().config_mut());
            let parquet = datafusion::prelude::ParquetReadOptions::default();
            staged
                .register_parquet("t", files.to_str().unwrap(), parquet)
                .await
                .unwrap();
            fail::cfg(format!("quantiles::{phase}"), "return(broken)").unwrap();
            match falls_back {
                true => {
                    assert_eq!(row(&staged, sql).await, expected, "{phase}");
                    let analyzed = rows_joined(&staged, &format!("EXPLAIN ANALYZE {sql}")).await;
                    assert!(!analyzed.contains("cuda_fallback=0"), "{phase}: {analyzed}");
                }
                false => assert!(error(&staged, sql).await.contains("broken"), "{phase}"),
            }
            fail::remove(format!("quantiles::{phase}"));
        }
    }
    // Values that never came to the lane: no device has failed, and nothing may answer without them.
    for falls_back in [false, true] {
        let staged = staged_session(4);
        RoundDevice::on(devices.clone(), falls_back).give(staged.state_ref().write().config_mut());
        register(&staged, "t", &rows, 4, 3000);
        fail::cfg("quantiles::cuda_hold", "1*off->1*return(broken)->off").unwrap();
        let failed = error(&staged, sql).await;
        assert!(failed.contains("broken"), "{failed}");
        fail::remove("quantiles::cuda_hold");
        assert_eq!(row(&staged, sql).await, expected);
    }
}

/// What an executor is started with.
#[test]
fn devices_of_executors() {
    use datafusion_quantiles::config::DeviceChoice;
    RoundDevice::try_new(DeviceChoice::Cpu).unwrap();
    RoundDevice::try_new(DeviceChoice::Auto).unwrap();
    let error = RoundDevice::try_new(DeviceChoice::Cuda(Some(1000)))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("there is no device cuda:1000") || error.contains("no NVIDIA driver"),
        "{error}"
    );
    if device().is_some() {
        RoundDevice::try_new(DeviceChoice::Cuda(None)).unwrap();
    }
}
