//! Strategies at the edges: keys, brackets and memory at their limits, and answers that are near only.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Decimal128Array, Int64Array};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
use datafusion_quantiles::cells::Brackets;
use datafusion_quantiles::cells::{Cells, Edges};
use datafusion_quantiles::kernel::round::{Reply, Request};
use datafusion_quantiles::kernel::{Backend, CpuBackend};
use datafusion_quantiles::key::{KeyBits, KeySpec};
use datafusion_quantiles::select::LocalShards;
use datafusion_quantiles::select::bms::Dibms;
use datafusion_quantiles::select::choose::Choice;
use datafusion_quantiles::select::sample_select::SampleSelect;
use datafusion_quantiles::select::splitters::NearestSplitter;
use datafusion_quantiles::threads::Stop;

use quantiles_testing::numbers::{normal, uniform};
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::rounds::{check, ranks_of, run, shards, simulated};
use quantiles_testing::runtime;

#[test]
fn keys_at_both_ends_of_the_widest() {
    let values: Vec<i128> = (0..9000)
        .map(|i| [i128::MIN, i128::MAX, i128::MAX - 1, i][i as usize % 4])
        .collect();
    let values: ArrayRef = Arc::new(Decimal128Array::from(values));
    check(&values, 3, 1000, &ranks_of(9000, 20));
    // Prefixes of byte strings are such keys, all over the range.
    let spread: Vec<i128> = (0..20_000)
        .map(|i: i128| i.wrapping_mul(i128::MAX / 9_999))
        .collect();
    let spread: ArrayRef = Arc::new(Decimal128Array::from(spread));
    check(&spread, 2, 4096, &ranks_of(20_000, 20));
}

/// So many brackets stay after a count that their ends leave little room for splitters.
#[test]
fn more_brackets_than_a_search_tree_has_room_for() {
    let n = 2_000_000_u64;
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(1..=n as i64));
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let ranks: Vec<u64> = (1..=30_000).map(|i| i * n / 30_000).collect();
    let mut shards = LocalShards::new(
        spec.width(),
        shards(&CpuBackend::default(), &values, 1, 8192),
        2,
        Stop::default(),
    );
    let solution = run(&mut shards, &SampleSelect::new(Choice::default()), &ranks);
    let least = spec.keys(&values.slice(0, 1)).unwrap()[0];
    for rank in ranks {
        assert_eq!(solution.key_at(rank).unwrap(), least + KeyBits::from(rank) - 1);
    }
}

/// Batches that others keep too are not copied; when memory ends after them, what was copied before is written out.
#[test]
fn a_shard_spills_that_holds_shared_batches() {
    let folder = tempfile::tempdir().unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(800_000));
    let register = |name: &str| MemoryConsumer::new(name.to_owned()).register(&pool);
    let backend = CpuBackend::spilling(&runtime(Arc::clone(&pool), folder.path()), &register("rounds"));
    let words = Int64Array::from(Pattern::Random.words(100_000, 8));
    let spec = KeySpec::try_new(words.data_type()).unwrap();
    let mut shard = backend.open(&spec, register("keys")).unwrap();
    let batch = |from: usize, len: usize| -> ArrayRef { Arc::new(words.slice(from, len)) };
    shard.append(&batch(0, 100), None).unwrap();
    for start in (100..100_000).step_by(8192) {
        let shared = batch(start, 8192.min(100_000 - start));
        let _others = [Arc::clone(&shared), Arc::clone(&shared)];
        shard.append(&shared, None).unwrap();
    }
    // Reading takes memory too.
    assert!(shard.spill(usize::MAX, &Stop::default()).unwrap() > 0);
    let keys = spec.keys(&words).unwrap();
    let request = Request::Count {
        cells: Cells::Edges(Edges::try_new(vec![keys[7]]).unwrap()),
        within: Brackets::all(spec.width()),
        keep: Vec::new(),
    };
    let below = keys.iter().filter(|key| **key < keys[7]).count() as u64;
    let expected = Reply::Counts {
        counts: vec![below, 100_000 - below],
        kept: Vec::new(),
    };
    assert_eq!(shard.answer(&request, &Stop::default()).unwrap(), expected);
}

/// What is collected in the end is less than what a count sends, so ten times the data send about as much.
#[test]
fn dibms_sends_as_much_for_more_data() {
    let sent = |n: usize, ranks: u64| {
        let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(n, 4)));
        let spec = KeySpec::try_new(values.data_type()).unwrap();
        let mut shards = simulated(spec.width(), shards(&CpuBackend::default(), &values, 4, 8192));
        let n = n as u64;
        let ranks: Vec<u64> = (1..=ranks).map(|i| i * n / (ranks + 1)).collect();
        run(&mut shards, &Dibms::default(), &ranks);
        shards.log().values() as f64
    };
    for ranks in [11, 101] {
        let (few, many) = (sent(100_000, ranks), sent(1_000_000, ranks));
        assert!(
            (0.85..1.15).contains(&(many / few)),
            "{ranks} ranks: {few}, {many}"
        );
    }
}

/// One sample and one count: keys of the data, and the ranks that they have.
#[test]
fn nearest_splitters_have_the_ranks_that_they_say() {
    for pattern in patterns::ALL {
        let values: ArrayRef = Arc::new(Int64Array::from(pattern.words(60_000, 6)));
        let spec = KeySpec::try_new(values.data_type()).unwrap();
        let mut sorted = spec.keys(&values).unwrap();
        sorted.sort_unstable();
        for buckets in [2, 64, 1024] {
            let strategy = NearestSplitter::try_new(buckets).unwrap();
            let mut shards = simulated(spec.width(), shards(&CpuBackend::default(), &values, 3, 8192));
            let ranks = ranks_of(60_000, 99);
            let solution = run(&mut shards, &strategy, &ranks);
            assert_eq!(shards.log().rounds(), ["sample", "count"]);
            let mut worst = 0;
            for rank in ranks {
                let key = solution.key_at(rank).unwrap();
                let (first, last) = solution.place_at(rank).unwrap();
                let what = format!("{pattern:?}, {buckets} buckets, rank {rank}: {first}..={last}");
                assert!(first <= last, "{what}");
                // The first rank that the key has, and another that it has.
                assert_eq!(
                    sorted.partition_point(|other| *other < key) as u64 + 1,
                    first,
                    "{what}"
                );
                assert_eq!(sorted[last as usize - 1], key, "{what}");
                worst = worst
                    .max(first.saturating_sub(rank))
                    .max(rank.saturating_sub(last));
            }
            // The outer ranks lie a bucket from the next splitter, whose size a sample of 32 a bucket tells roughly.
            let most = 2 * 60_000 / u64::from(buckets);
            assert!(worst <= most, "{pattern:?}, {buckets} buckets: off by {worst}");
        }
    }
}

#[test]
fn few_values_are_ranked_exactly_whatever_the_buckets() {
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(60, 6)));
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let mut sorted = spec.keys(&values).unwrap();
    sorted.sort_unstable();
    let mut shards = simulated(spec.width(), shards(&CpuBackend::default(), &values, 2, 7));
    let ranks: Vec<u64> = (1..=60).collect();
    let solution = run(&mut shards, &NearestSplitter::try_new(2).unwrap(), &ranks);
    for rank in ranks {
        assert_eq!(solution.key_at(rank).unwrap(), sorted[rank as usize - 1]);
        assert_eq!(solution.place_at(rank).unwrap(), (rank, rank));
    }
    for buckets in [0, 1, NearestSplitter::MOST + 1] {
        assert!(NearestSplitter::try_new(buckets).is_err(), "{buckets}");
    }
}

#[test]
fn numbers_are_as_they_are_said_to_be() {
    let mean = |of: fn(u64) -> f64| (0..10_000).map(of).sum::<f64>() / 10_000.0;
    assert!((mean(uniform) - 0.5).abs() < 0.02 && mean(normal).abs() < 0.05);
}
