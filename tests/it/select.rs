//! Strategies over shards against a sort, on every input pattern, and what they send.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Decimal128Array, Float64Array, Int32Array, Int64Array};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
use datafusion_quantiles::cells::{Bracket, Brackets, CellTable, Cells, Edges, Linear};
use datafusion_quantiles::kernel::round::{Reply, Request};
use datafusion_quantiles::kernel::{Backend, CpuBackend, Shard};
use datafusion_quantiles::key::{KeySpec, KeyVec};
use datafusion_quantiles::select::bms::{Dibms, DistributedBms};
use datafusion_quantiles::select::choose::{Choice, SampleSelectVariant};
use datafusion_quantiles::select::gk_select::GkSelect;
use datafusion_quantiles::select::sample_select::SampleSelect;
use datafusion_quantiles::select::{LocalShards, Strategy, solve_ranks};
use datafusion_quantiles::threads::Stop;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use quantiles_literature::NaiveBackend;

use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::rounds::{
    check, ends_when_stopped, eps, ranks_of, run, shard, shards, simulated, skips_nulls_and_filtered_rows,
    strategies,
};
use quantiles_testing::{cases, runtime};

#[test]
fn every_strategy_finds_every_rank_on_every_pattern() {
    for pattern in patterns::ALL {
        let words: ArrayRef = Arc::new(Int64Array::from(pattern.words(20_011, 1)));
        check(&words, 3, 1000, &ranks_of(20_011, 20));
        let floats: ArrayRef = Arc::new(Float64Array::from(pattern.floats(20_011, 2)));
        check(&floats, 2, 8192, &ranks_of(20_011, 3));
    }
}

#[test]
fn tiny_inputs() {
    for len in [1_usize, 2, 3, 17] {
        let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(len, 3)));
        check(&values, 4, 2, &(1..=len as u64).collect::<Vec<_>>());
    }
}

#[test]
fn wide_and_narrow_keys() {
    let words = Pattern::Clusters.words(30_000, 4);
    let wide: Vec<i128> = words
        .iter()
        .map(|word| i128::from(*word) * i128::from(*word) / 3)
        .collect();
    let wide: ArrayRef = Arc::new(Decimal128Array::from(wide));
    check(&wide, 2, 4096, &ranks_of(30_000, 9));
    let narrow: ArrayRef = Arc::new(Int32Array::from_iter_values(
        words.iter().map(|word| *word as i32),
    ));
    check(&narrow, 2, 4096, &ranks_of(30_000, 9));
}

#[test]
fn threads_share_a_lopsided_input() {
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(1_200_000, 5)));
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let mut sorted = spec.keys(&values).unwrap();
    sorted.sort_unstable();
    let ranks = ranks_of(1_200_000, 99);
    for strategy in strategies() {
        let mut shards = shards(&CpuBackend::default(), &values, 1, 8192);
        shards.push(shard(&CpuBackend::default(), &spec, &[]));
        let mut local = LocalShards::new(spec.width(), shards, 4, Stop::default());
        let solution = run(&mut local, strategy.as_ref(), &ranks);
        for rank in &ranks {
            assert_eq!(
                solution.key_at(*rank).unwrap(),
                sorted[*rank as usize - 1],
                "{}",
                strategy.label()
            );
        }
    }
}

#[test]
fn all_equal_data_copies_nothing() {
    for value in [42, i64::MIN, i64::MAX] {
        let values: ArrayRef = Arc::new(Int64Array::from(vec![value; 100_000]));
        for strategy in strategies().into_iter().skip(1) {
            let shards = shards(&CpuBackend::default(), &values, 4, 8192);
            let width = KeySpec::try_new(values.data_type()).unwrap().width();
            let mut simulated = simulated(width, shards);
            let solution = run(&mut simulated, strategy.as_ref(), &[1, 50_000, 100_000]);
            let names: Vec<_> = solution.rounds.iter().map(|round| round.request).collect();
            let first = match strategy.label() {
                "gk_select" => "sketch",
                _ => "sample",
            };
            assert_eq!(names, [first, "count"], "{} of {value}", strategy.label());
            assert_eq!(solution.rounds[1].candidates, 0);
        }
    }
}

/// Two rounds for any data, shards and ranks, and never more copied than is proved.
#[test]
fn gk_select_takes_two_rounds_and_copies_what_its_error_allows() {
    for (n, partitions, accuracy) in [
        (1, 1, 10.0),
        (50, 3, 10.0),
        (5000, 1, 40.0),
        (60_000, 16, 300.0),
        (60_000, 5, 4.0),
        (300_000, 2, 1000.0),
    ] {
        for pattern in patterns::ALL {
            let values: ArrayRef = Arc::new(Int64Array::from(pattern.words(n, 3)));
            let width = KeySpec::try_new(values.data_type()).unwrap().width();
            for count in [1, 9, 99] {
                let ranks = ranks_of(n as u64, count);
                let mut simulated =
                    simulated(width, shards(&CpuBackend::default(), &values, partitions, 8192));
                let solution = run(&mut simulated, &GkSelect::with(eps(accuracy)), &ranks);
                let what = format!("{n} values, {partitions} shards, {count} ranks, {pattern:?}");
                assert_eq!(simulated.log().rounds(), ["sketch", "count"], "{what}");
                let copied = solution.rounds[1].values as f64 - (4 * ranks.len() + 1) as f64;
                let most = 4.0 * n as f64 / accuracy * ranks.len() as f64;
                assert!(copied <= most, "{what}: {copied} values copied, {most} at most");
            }
        }
    }
}

#[test]
fn gk_select_finds_more_ranks_than_a_count_tells_apart() {
    let n = 100_000;
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(n, 9)));
    let ranks: Vec<u64> = (1..=n as u64).step_by(3).collect();
    let mut shards = simulated(
        KeySpec::try_new(values.data_type()).unwrap().width(),
        shards(&CpuBackend::default(), &values, 3, 8192),
    );
    let solution = run(&mut shards, &GkSelect::with(eps(2000.0)), &ranks);
    let mut sorted = KeySpec::try_new(values.data_type())
        .unwrap()
        .keys(&values)
        .unwrap();
    sorted.sort_unstable();
    for rank in ranks {
        assert_eq!(
            solution.key_at(rank).unwrap(),
            sorted[rank as usize - 1],
            "rank {rank}"
        );
    }
}

#[test]
fn traces_are_those_of_the_named_methods() {
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(400_000, 7)));
    let trace = |strategy: &dyn Strategy, ranks: &[u64]| {
        let spec = KeySpec::try_new(values.data_type()).unwrap();
        let mut shards = simulated(spec.width(), shards(&CpuBackend::default(), &values, 4, 8192));
        run(&mut shards, strategy, ranks);
        shards.log().rounds()
    };
    let ranks = ranks_of(400_000, 99);
    let brackets = SampleSelect::new(Choice {
        variant: SampleSelectVariant::Brackets,
        sample: 1 << 14,
    });
    assert_eq!(trace(&brackets, &[200_000]), ["sample", "count"]);
    let cells = SampleSelect::new(Choice {
        variant: SampleSelectVariant::Cells,
        sample: 1 << 14,
    });
    assert_eq!(trace(&cells, &ranks), ["sample", "count", "extract"]);
    assert_eq!(
        trace(&DistributedBms::default(), &ranks),
        ["sample", "count", "extract"]
    );
    // Little is left after one count.
    assert_eq!(trace(&Dibms::default(), &ranks), ["sample", "count", "extract"]);
    let to_the_end = Dibms {
        buckets: 8192,
        collected: 0,
        ..Dibms::default()
    };
    let dibms = trace(&to_the_end, &ranks);
    assert_eq!(dibms[..3], ["sample", "count", "count"]);
    assert_eq!(dibms.iter().filter(|name| **name == "sample").count(), 1);
    assert!(
        dibms.iter().filter(|name| **name == "extract").count() <= 1,
        "{dibms:?}"
    );
}

/// Expected values sent, DIBMS Table 2: `q` nodes of which one is the host.
fn table_2([n, m, q, b]: [f64; 4], iterations: Option<f64>) -> f64 {
    let phase_1 = (50.0 + b + 2.0 * m) * (q - 1.0) + 1024.0;
    match iterations {
        None => phase_1 + m / b * n / q * (q - 1.0),
        Some(iterations) => phase_1 + iterations * ((4.0 * m + b + 3.0 * m) * (q - 1.0) + m),
    }
}

#[test]
fn values_sent_are_within_a_tenth_of_the_expected_ones() {
    let n = 1_000_000_u64;
    // Uniform and evenly spread, as the paper's analysis assumes.
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(n as usize, 8)));
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    for (m, q, b) in [
        (101_u64, 4, 8192),
        (11, 4, 8192),
        (101, 8, 4096),
        (501, 4, 8192),
        (1001, 2, 8192),
    ] {
        let ranks: Vec<u64> = (1..=m).map(|i| i * n / (m + 1)).collect();
        let even = || -> Vec<Box<dyn Shard>> {
            let share = n as usize / q;
            (0..q)
                .map(|index| {
                    shard(
                        &CpuBackend::default(),
                        &spec,
                        &[values.slice(index * share, share)],
                    )
                })
                .collect()
        };
        let sizes = [n as f64, m as f64, q as f64, b.into()];
        let close = |sent: u64, expected: f64, name: &str| {
            let ratio = sent as f64 / expected;
            assert!(
                (0.9..1.1).contains(&ratio),
                "{name} m={m} q={q} B={b}: {sent} of {expected} expected"
            );
        };
        let mut shards = simulated(spec.width(), even());
        run(&mut shards, &DistributedBms { buckets: b }, &ranks);
        close(shards.log().values(), table_2(sizes, None), "distributed_bms");

        let mut shards = simulated(spec.width(), even());
        run(
            &mut shards,
            &Dibms {
                buckets: b,
                collected: 0,
                ..Dibms::default()
            },
            &ranks,
        );
        let iterations = shards
            .log()
            .rounds()
            .iter()
            .filter(|name| **name == "count")
            .count()
            - 1;
        let expected = table_2(sizes, Some(iterations as f64));
        let sent = shards.log().values();
        // The paper also sends lists of active buckets, 3m a node and iteration, which our pivots imply.
        if 20 * m < u64::from(b) {
            close(sent, expected, "dibms");
        }
        // Never more, and less by those lists only.
        let lists = iterations as f64 * (3.0 * m as f64 * (q as f64 - 1.0) + m as f64);
        assert!(
            (sent as f64) < 1.1 * expected && sent as f64 > 0.9 * (expected - lists),
            "{sent} {expected}"
        );
    }
}

/// Every request on the fast shard and on the naive one.
#[test]
fn shards_answer_as_the_naive_shard_does() {
    let folder = tempfile::tempdir().unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 30));
    let spilling = CpuBackend::spilling(
        &runtime(Arc::clone(&pool), folder.path()),
        &MemoryConsumer::new("rounds").register(&pool),
    );
    for pattern in patterns::ALL {
        let values: ArrayRef = Arc::new(Int64Array::from(pattern.words(9_001, 9)));
        let spec = KeySpec::try_new(values.data_type()).unwrap();
        let mut sorted = spec.keys(&values).unwrap();
        sorted.sort_unstable();
        sorted.dedup();
        let key = |share: usize| sorted[(sorted.len() - 1) * share / 100];
        let narrow = {
            let mut brackets = vec![Bracket {
                first: key(10),
                last: key(20),
            }];
            brackets.extend((key(60) > key(20)).then(|| Bracket {
                first: key(60),
                last: key(61),
            }));
            Brackets::try_new(brackets).unwrap()
        };
        let sample = KeyVec::W64(sorted.iter().map(|key| *key as u64).collect());
        let whole = Bracket {
            first: sorted[0],
            last: sorted[sorted.len() - 1],
        };
        let few = Cells::Edges(Edges::try_new(vec![key(10), key(20) + 1, key(60), key(61)]).unwrap());
        let all = Brackets::all(spec.width());
        let requests = [
            Request::Extract {
                brackets: narrow.clone(),
            },
            Request::Count {
                cells: Cells::Table(CellTable::from_sample(&sample, 1000).unwrap()),
                within: all.clone(),
                keep: vec![0, 3],
            },
            Request::Extract {
                brackets: narrow.clone(),
            },
            Request::Count {
                cells: few.clone(),
                within: all.clone(),
                keep: vec![1, 2],
            },
            Request::Count {
                cells: few.clone(),
                within: narrow.clone(),
                keep: vec![1],
            },
            Request::Count {
                cells: Cells::Linear(Linear::try_new(&[(whole, 500)], spec.width()).unwrap()),
                within: all.clone(),
                keep: vec![],
            },
            Request::Count {
                cells: Cells::Edges(Edges::try_new((0..100).map(key).collect()).unwrap()),
                within: narrow.clone(),
                keep: vec![12, 13],
            },
        ];
        for shared in [false, true] {
            let batches: Vec<ArrayRef> = (0..9_001)
                .step_by(2048)
                .map(|at| values.slice(at, 2048.min(9_001 - at)))
                .collect();
            // A second owner of each array: the shard may keep the buffers.
            let owners: Vec<ArrayRef> = if shared {
                batches
                    .iter()
                    .flat_map(|b| [Arc::clone(b), Arc::clone(b)])
                    .collect()
            } else {
                vec![]
            };
            let mut fast = shard(&CpuBackend::default(), &spec, &batches);
            let mut on_disk = shard(&spilling, &spec, &batches);
            assert!(on_disk.spill(usize::MAX, &Stop::default()).unwrap() > 0);
            let mut naive = shard(&NaiveBackend, &spec, &batches);
            for request in &requests {
                let mut replies = [
                    fast.answer(request, &Stop::default()),
                    naive.answer(request, &Stop::default()),
                    on_disk.answer(request, &Stop::default()),
                ]
                .map(|reply| reply.unwrap());
                for reply in &mut replies {
                    if let Reply::Counts { kept, .. } | Reply::Extracted(kept) = reply {
                        kept.iter_mut().for_each(KeyVec::sort);
                    }
                }
                assert_eq!(replies[0], replies[1], "{pattern:?} {request:?}");
                assert_eq!(replies[2], replies[1], "{pattern:?} {request:?} on disk");
            }
            drop(owners);
        }
    }
}

#[test]
fn nulls_and_filtered_rows_are_skipped() {
    for backend in [&CpuBackend::default() as &dyn Backend, &NaiveBackend] {
        skips_nulls_and_filtered_rows(backend);
    }
}

#[test]
fn memory_is_asked_for_by_name_and_a_missing_oracle_is_no_loss() {
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(200_000, 10)));
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let small: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
    let mut shard = CpuBackend::default()
        .open(&spec, MemoryConsumer::new("small").register(&small))
        .unwrap();
    let error = shard.append(&values, None).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(
            error.find_root(),
            datafusion::error::DataFusionError::ResourcesExhausted(_)
        ),
        "{text}"
    );
    assert!(text.contains("more bytes wanted"), "{text}");

    // Enough for the keys and a little for candidates, not for two more bytes a key.
    let tight: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new((4 << 20) + (256 << 10)));
    let mut filled = CpuBackend::default()
        .open(&spec, MemoryConsumer::new("tight").register(&tight))
        .unwrap();
    filled.append(&values, None).unwrap();
    let mut shards = simulated(spec.width(), vec![filled]);
    let cells = SampleSelect::new(Choice {
        variant: SampleSelectVariant::Cells,
        sample: 1 << 12,
    });
    let ranks = ranks_of(200_000, 9);
    let solution = run(&mut shards, &cells, &ranks);
    let mut sorted = spec.keys(&values).unwrap();
    sorted.sort_unstable();
    assert!(
        ranks
            .iter()
            .all(|rank| solution.key_at(*rank).unwrap() == sorted[*rank as usize - 1])
    );
    drop(shards);
    drop(shard);
    assert_eq!((small.reserved(), tight.reserved()), (0, 0));
}

#[test]
fn a_stopped_shard_answers_with_an_error() {
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(10_000, 11)));
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    for backend in [&CpuBackend::default() as &dyn Backend, &NaiveBackend] {
        ends_when_stopped(shard(backend, &spec, &[Arc::clone(&values)]), spec.width());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// Bit-identical for every strategy, number of shards and batch size.
    #[test]
    fn strategies_agree_with_a_sort(
        pattern in proptest::sample::select(patterns::ALL.to_vec()),
        strategy in 0..strategies().len(),
        len in prop_oneof![1..50_usize, 1000..6000_usize, 20_000..40_000_usize],
        partitions in 1..9_usize,
        batch in prop_oneof![Just(1000_usize), Just(8192), 100..3000_usize],
        floats: bool,
        count in prop_oneof![Just(1_u64), 2..10_u64, Just(99)],
        seed: u64,
    ) {
        let values: ArrayRef = match floats {
            true => Arc::new(Float64Array::from(pattern.floats(len, seed))),
            false => Arc::new(Int64Array::from(pattern.words(len, seed))),
        };
        let spec = KeySpec::try_new(values.data_type()).unwrap();
        let mut sorted = spec.keys(&values).unwrap();
        sorted.sort_unstable();
        let ranks = ranks_of(len as u64, count);
        let strategy = &strategies()[strategy];
        let mut shards = simulated(spec.width(), shards(&CpuBackend::default(), &values, partitions, batch));
        let solution = futures::executor::block_on(solve_ranks(&mut shards, strategy.as_ref(), ranks.clone()))
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        for rank in ranks {
            prop_assert_eq!(solution.key_at(rank).unwrap(), sorted[rank as usize - 1], "{}", strategy.label());
        }
    }
}
