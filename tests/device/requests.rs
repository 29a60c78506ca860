//! Every request to a shard on a device, compared with shards on the CPU.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Float64Array, Int64Array};
use datafusion_quantiles::cells::{Bracket, Brackets, CellTable, Cells, Edges, Linear};
use datafusion_quantiles::kernel::cuda::{CudaBackend, Device};
use datafusion_quantiles::kernel::round::{Reply, Request};
use datafusion_quantiles::kernel::{CpuBackend, Shard};
use datafusion_quantiles::key::{KeyBits, KeySpec, KeyVec, Width};
use datafusion_quantiles::sketch::{AnySummary, Epsilon};
use datafusion_quantiles::threads::Stop;
use quantiles_literature::NaiveBackend;
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::rounds::{ends_when_stopped, shard, skips_nulls_and_filtered_rows};

use crate::support::{columns, device, sorted_keys, tests, with_nulls};

tests! {
    plain every_request_first_patterns,
    plain every_request_second_patterns,
    plain every_request_last_patterns,
    plain long_shards,
    plain filtered_rows_are_skipped_and_stopped_shards_end,
    plain less_shared_memory,
}

/// Keys of a width.
pub(crate) fn key_vec(keys: &[KeyBits], width: Width) -> KeyVec {
    match width {
        Width::W32 => KeyVec::W32(keys.iter().map(|key| *key as u32).collect()),
        Width::W64 => KeyVec::W64(keys.iter().map(|key| *key as u64).collect()),
        Width::W128 => KeyVec::W128(keys.to_vec()),
    }
}

/// Requests of all kinds about the sorted `keys`, of which there is at least one. The naive shard gives the same replies to these.
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
        // Brackets that are whole cells of the last count, and brackets that are parts of them.
        extract(&narrow),
        count(&coarse, &narrow, &[2, 100]),
        count(
            &Cells::Table(table(16_000).with_heavy(heavy).unwrap()),
            &all,
            &[1, 17],
        ),
        // More cells than a block has counters for.
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

/// Requests whose replies depend on the order of the keys. Only the shard of the CPU gives the same replies to these.
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
        shard(backend, &spec, values),
        shard(&CpuBackend::default(), &spec, values),
        shard(&NaiveBackend, &spec, values),
    ];
    assert_eq!(on_device.len(), sorted.len() as u64, "{what}");
    let width = spec.width();
    let answer = |shard: &mut Box<dyn Shard>, request: &Request| {
        let reply = shard.answer(request, &Stop::default());
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
            // With this error values are sketched one by one, so the blocks differ.
            Reply::Sketch(Some(summary)) => found == expected || proves_ranks(summary, &sorted),
            _ => found == expected,
        };
        assert!(is_valid, "{what}, ordered request {number}: {}", request.name());
    }
}

/// Whether the brackets of all ranks hold their keys, and no more keys than the sketch promises.
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
    let device = device();
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

fn every_request_first_patterns() {
    every_request(&patterns::ALL[..4]);
}

fn every_request_second_patterns() {
    every_request(&patterns::ALL[4..8]);
}

fn every_request_last_patterns() {
    every_request(&patterns::ALL[8..]);
}

/// Values that take several tiles and chunks, in several appends between requests.
fn long_shards() {
    let device = device();
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
    let mut shard = shard(&backend, &spec, &[values.slice(0, 100_000)]);
    for end in [100_000, 200_000, 300_000] {
        let all = Request::Extract {
            brackets: Brackets::all(Width::W64),
        };
        let Reply::Extracted(lists) = in_order(shard.answer(&all, &Stop::default()).unwrap()) else {
            panic!()
        };
        assert_eq!((lists[0].len(), shard.len()), (end, end as u64));
        let last = spec.to_array(&[lists[0].get(end - 1)]).unwrap();
        assert_eq!(
            last.as_ref(),
            &Int64Array::from(vec![end as i64 - 1]) as &dyn Array
        );
        if end < 300_000 {
            shard.append(&values.slice(end, 100_000), None).unwrap();
        }
    }
}

fn filtered_rows_are_skipped_and_stopped_shards_end() {
    let device = device();
    let backend = CudaBackend::new(device, None);
    skips_nulls_and_filtered_rows(&backend);
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(10_000, 11)));
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    ends_when_stopped(shard(&backend, &spec, &[values]), spec.width());
    let mut shard = shard(&backend, &spec, &[]);
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
    assert!(
        shard
            .append(&floats, None)
            .unwrap_err()
            .to_string()
            .contains("got values of Float64")
    );
}

/// Shared memory of the sizes that other devices have.
fn less_shared_memory() {
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
