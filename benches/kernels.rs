//! Selection over keys in memory, without SQL: `cargo bench --bench kernels`.
//!
//! `QUANTILES_BENCH_ROWS` sets the rows (default 3e7), `QUANTILES_BENCH_THREADS` the threads (default 2). The sum of
//! the same array on the same threads stands beside: it is one read.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int32Array, Int64Array};
use datafusion::arrow::datatypes::Float64Type;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion_quantiles::config::StrategyName;
use datafusion_quantiles::kernel::{Backend, CpuBackend, Shard};
use datafusion_quantiles::key::KeySpec;
use datafusion_quantiles::quantile::{Method, Quantile, QuantileSpec};
use datafusion_quantiles::select::{LocalShards, Shards, solve};
use datafusion_quantiles::threads::Stop;
use quantiles_testing::patterns::{self, Pattern};

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse::<f64>().ok())
        .map_or(default, |number| number as usize)
}

fn shards(values: &ArrayRef) -> Vec<Box<dyn Shard>> {
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let mut shard = CpuBackend::default()
        .open(&spec, MemoryConsumer::new("bench").register(&pool))
        .unwrap();
    for at in (0..values.len()).step_by(8192) {
        shard
            .append(&values.slice(at, 8192.min(values.len() - at)), None)
            .unwrap();
    }
    vec![shard]
}

fn quantile_spec(count: usize) -> QuantileSpec {
    let quantile = |i: usize| Quantile::try_from_f64(i as f64 / (count + 1) as f64).unwrap();
    QuantileSpec {
        quantiles: (1..=count).map(quantile).collect(),
        method: Method::Disc,
        descending: false,
    }
}

fn inputs(rows: usize) -> Vec<(String, ArrayRef)> {
    let words = |pattern: Pattern| -> ArrayRef { Arc::new(Int64Array::from(pattern.words(rows, 1))) };
    let lognormal =
        Float64Array::from_iter_values(Pattern::Random.words(rows, 2).chunks(2).flat_map(|pair| {
            let [a, b] =
                [pair[0], pair[pair.len() - 1]].map(|word| (word as u64 >> 11) as f64 / (1_u64 << 53) as f64);
            let radius = (-2.0 * (1.0 - a).ln()).sqrt();
            let angle = std::f64::consts::TAU * b;
            [3.0 + 1.5 * radius * angle.cos(), 3.0 + 1.5 * radius * angle.sin()].map(f64::exp)
        }));
    let mut inputs: Vec<(String, ArrayRef)> = vec![("Lognormal".into(), Arc::new(lognormal))];
    let zipf = Pattern::Zipf.words(rows, 3);
    inputs.push((
        "Zipf32".into(),
        Arc::new(Int32Array::from_iter_values(zipf.iter().map(|word| *word as i32))),
    ));
    let all = [Pattern::Random, Pattern::AllEqual, Pattern::FewDistinct];
    inputs.extend(
        all.iter()
            .chain(&patterns::MISLEADING)
            .map(|pattern| (format!("{pattern:?}"), words(*pattern))),
    );
    inputs
}

fn selection(criterion: &mut Criterion) {
    let rows = setting("QUANTILES_BENCH_ROWS", 30_000_000);
    let threads = setting("QUANTILES_BENCH_THREADS", 2);
    let mut group = criterion.benchmark_group("selection");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(2))
        .warm_up_time(Duration::from_millis(500));
    for (name, values) in inputs(rows) {
        if name == "Lognormal" {
            let values = values.as_primitive::<Float64Type>().values().to_vec();
            group.bench_function(BenchmarkId::new("sum", &name), |bench| {
                bench.iter(|| {
                    std::thread::scope(|scope| {
                        let sum = |part: &[f64]| part.chunks(8).map(|c| c.iter().sum::<f64>()).sum::<f64>();
                        let parts = values.chunks(values.len().div_ceil(threads));
                        let work: Vec<_> = parts.map(|part| scope.spawn(move || sum(part))).collect();
                        black_box(work.into_iter().map(|part| part.join().unwrap()).sum::<f64>())
                    })
                });
            });
        }
        let width = KeySpec::try_new(values.data_type()).unwrap().width();
        let mut shards = LocalShards::new(width, shards(&values), threads, Stop::default());
        for count in [1, 99, 999] {
            let quantile_spec = quantile_spec(count);
            group.bench_function(BenchmarkId::new(format!("{count}"), &name), |bench| {
                bench.iter(|| {
                    let shards: &mut dyn Shards = &mut shards;
                    black_box(
                        futures::executor::block_on(solve(shards, StrategyName::Auto, &[&quantile_spec]))
                            .unwrap(),
                    )
                });
            });
        }
        if name == "Random" || name == "Lognormal" {
            for strategy in [StrategyName::DistributedBms, StrategyName::Dibms] {
                let quantile_spec = quantile_spec(99);
                group.bench_function(BenchmarkId::new(format!("99 {strategy}"), &name), |bench| {
                    bench.iter(|| {
                        let shards: &mut dyn Shards = &mut shards;
                        black_box(
                            futures::executor::block_on(solve(shards, strategy, &[&quantile_spec])).unwrap(),
                        )
                    });
                });
            }
        }
    }
    group.finish();
}

criterion_group!(benches, selection);
criterion_main!(benches);
