//! Shards, strategies and ranks, without a session.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, Int64Array};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion_quantiles::cells::Brackets;
use datafusion_quantiles::kernel::round::{Reply, Request};
use datafusion_quantiles::kernel::{Backend, CpuBackend, Shard};
use datafusion_quantiles::key::{KeyBits, KeySpec, Width};
use datafusion_quantiles::select::bms::{Dibms, DistributedBms};
use datafusion_quantiles::select::choose::{Choice, Form};
use datafusion_quantiles::select::gk_select::GkSelect;
use datafusion_quantiles::select::sample_select::SampleSelect;
use datafusion_quantiles::select::{Shards, Solution, Strategy, solve_ranks};
use datafusion_quantiles::sketch::Epsilon;
use datafusion_quantiles::threads::Stop;
use quantiles_literature::SimulatedShards;

/// A shard of these values.
pub fn shard(backend: &dyn Backend, spec: &KeySpec, values: &[ArrayRef]) -> Box<dyn Shard> {
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let mut shard = backend
        .open(spec, MemoryConsumer::new("test").register(&pool))
        .unwrap();
    values
        .iter()
        .for_each(|values| shard.append(values, None).unwrap());
    shard
}

/// Splits an array into `count` shards of unequal size, fed in batches of `batch` rows.
pub fn shards(backend: &dyn Backend, values: &ArrayRef, count: usize, batch: usize) -> Vec<Box<dyn Shard>> {
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let cut = |index: usize| values.len() * index * (index + 1) / (count * (count + 1));
    (0..count)
        .map(|index| {
            let (from, to) = (cut(index), cut(index + 1));
            let batches: Vec<ArrayRef> = (from..to)
                .step_by(batch)
                .map(|at| values.slice(at, batch.min(to - at)))
                .collect();
            shard(backend, &spec, &batches)
        })
        .collect()
}

/// Every strategy, with parameters that make it go each of its ways.
pub fn strategies() -> Vec<Box<dyn Strategy>> {
    let form = |form, sample| Box::new(SampleSelect::new(Choice { form, sample })) as Box<dyn Strategy>;
    vec![
        form(Form::Gather, 0),
        form(Form::Brackets, 256),
        form(Form::Brackets, 1 << 12),
        form(Form::Cells, 512),
        form(Form::Cells, 1 << 12),
        Box::new(DistributedBms::default()),
        Box::new(DistributedBms { buckets: 64 }),
        Box::new(Dibms::default()),
        Box::new(Dibms {
            buckets: 64,
            collected: 0,
            ..Dibms::default()
        }),
        Box::new(Dibms {
            buckets: 300,
            collected: 9,
            ..Dibms::default()
        }),
        Box::new(GkSelect::with(eps(100.0))),
        Box::new(GkSelect::with(eps(3.0))),
        Box::new(GkSelect::try_new(1000, 3, 5, u64::MAX).unwrap()),
    ]
}

/// The error of an accuracy, as SQL says it.
pub fn eps(accuracy: f64) -> Epsilon {
    Epsilon::try_new(accuracy).unwrap()
}

/// Shards that log what is sent.
pub fn simulated(width: Width, shards: Vec<Box<dyn Shard>>) -> SimulatedShards {
    SimulatedShards::try_new(width, shards, 1).unwrap()
}

/// Runs a strategy to its end.
pub fn run(shards: &mut dyn Shards, strategy: &dyn Strategy, ranks: &[u64]) -> Solution {
    let solution = futures::executor::block_on(solve_ranks(shards, strategy, ranks.to_vec()));
    solution.unwrap_or_else(|error| panic!("{}: {error}", strategy.label()))
}

/// Ranks at the ends, at even steps and in a close pair.
pub fn ranks_of(n: u64, count: u64) -> Vec<u64> {
    let mut ranks: Vec<u64> = (0..count)
        .map(|i| 1 + (n - 1) * i / count.max(2).saturating_sub(1).max(1))
        .collect();
    ranks.extend([1, n, n / 2 + 1, (n / 2 + 2).min(n)]);
    ranks.retain(|rank| (1..=n).contains(rank));
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Fails where a strategy over simulated shards finds another key than a sort does.
pub fn check(values: &ArrayRef, count: usize, batch: usize, ranks: &[u64]) {
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let mut sorted = spec.keys(values).unwrap();
    sorted.sort_unstable();
    let expected: Vec<KeyBits> = ranks.iter().map(|rank| sorted[*rank as usize - 1]).collect();
    for strategy in strategies() {
        let shards = shards(&CpuBackend::default(), values, count, batch);
        let mut simulated = simulated(spec.width(), shards);
        let solution = run(&mut simulated, strategy.as_ref(), ranks);
        let found: Vec<KeyBits> = ranks.iter().map(|rank| solution.key_at(*rank).unwrap()).collect();
        assert_eq!(found, expected, "{} on {count} shards", strategy.label());
    }
}

/// Fails where a shard of the backend keeps a NULL or a row that a filter leaves out.
pub fn skips_nulls_and_filtered_rows(backend: &dyn Backend) {
    let values: ArrayRef = Arc::new(Int64Array::from(vec![
        Some(1),
        None,
        Some(3),
        Some(4),
        None,
        Some(6),
    ]));
    let mask = BooleanArray::from(vec![
        Some(true),
        Some(true),
        None,
        Some(false),
        Some(true),
        Some(true),
    ]);
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let mut shard = shard(backend, &spec, &[]);
    shard.append(&values, Some(&mask)).unwrap();
    shard.append(&values.slice(1, 1), None).unwrap();
    assert_eq!(shard.len(), 2);
    let request = Request::Extract {
        brackets: Brackets::all(spec.width()),
    };
    let Reply::Extracted(mut kept) = shard.answer(&request, &Stop::default()).unwrap() else {
        panic!()
    };
    kept[0].sort();
    let bits: Vec<KeyBits> = (0..2).map(|at| kept[0].get(at)).collect();
    assert_eq!(
        spec.to_array(&bits).unwrap().as_ref(),
        &Int64Array::from(vec![1, 6]) as &dyn Array
    );
}

/// Fails where a shard answers although the query was stopped.
pub fn ends_when_stopped(mut shard: Box<dyn Shard>, width: Width) {
    let stop = Stop::default();
    stop.stop();
    let request = Request::Extract {
        brackets: Brackets::all(width),
    };
    let error = shard.answer(&request, &stop).unwrap_err();
    assert!(error.to_string().contains("cancelled"), "{error}");
}
