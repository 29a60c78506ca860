//! SampleSelect's sweep: throughput over sizes and distinct values, and the error of its approximate form.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion_quantiles::config::StrategyName;
use datafusion_quantiles::kernel::{Backend, CpuBackend};
use datafusion_quantiles::key::{KeySpec, Width};
use datafusion_quantiles::memory::MemoryBudget;
use datafusion_quantiles::select::choose::Choice;
use datafusion_quantiles::select::sample_select::SampleSelect;
use datafusion_quantiles::select::splitters::NearestSplitter;
use datafusion_quantiles::select::{LocalShards, Solution, Strategy, solve_ranks};
use datafusion_quantiles::threads::Stop;

use super::Arguments;
use super::methods::mix;
use super::output::{Table, add_point, plot};

/// Inputs of each size, each with a rank at random: the paper's.
const INPUTS: u64 = 10;

pub(crate) fn tables(arguments: &Arguments) -> Result<()> {
    throughput(arguments)?;
    errors(arguments)
}

/// `n` values that are uniform over `distinct` ones.
fn values(n: u64, distinct: u64, seed: u64) -> Vec<u32> {
    let value = |i: u64| {
        let word = mix(i ^ (seed << 40));
        match distinct < n {
            true => mix(word % distinct) as u32,
            false => word as u32,
        }
    };
    (0..n).map(value).collect()
}

fn shards(values: &[u32], threads: usize) -> Result<LocalShards> {
    let array: ArrayRef = Arc::new(UInt32Array::from_iter_values(values.iter().copied()));
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let spec = KeySpec::try_new(array.data_type())?;
    let mut shard = CpuBackend::default().open(&spec, MemoryConsumer::new("bench").register(&pool))?;
    shard.append(&array, None)?;
    Ok(LocalShards::new(
        Width::W32,
        vec![shard],
        threads,
        Stop::default(),
    ))
}

fn timed(shards: &mut LocalShards, strategy: &dyn Strategy, rank: u64) -> Result<(Solution, f64)> {
    let start = Instant::now();
    let solution = futures::executor::block_on(solve_ranks(shards, strategy, vec![rank]))?;
    Ok((solution, start.elapsed().as_secs_f64()))
}

fn throughput(arguments: &Arguments) -> Result<()> {
    let exact = SampleSelect::new(Choice::default());
    let columns = [
        "log2 n",
        "distinct",
        "SampleSelect, values/s",
        "auto, values/s",
        "select_nth_unstable, one thread, values/s",
        "spread of SampleSelect",
    ];
    let title = format!(
        "SampleSelect: {INPUTS} random ranks, u32, {} threads",
        arguments.threads
    );
    let mut table = Table::try_new(&arguments.output, "sample_throughput", &title, &columns)?;
    let mut lines = Vec::new();
    for log in (16..=arguments.sample_log).step_by(2) {
        let n = 1_u64 << log;
        for distinct in [1, 16, 128, 1024, n] {
            let (mut times, mut auto_time, mut nth_time) = (Vec::new(), 0.0, 0.0);
            for seed in 0..INPUTS {
                let mut keys = values(n, distinct, seed);
                let rank = 1 + mix(seed + 77) % n;
                let mut shards = shards(&keys, arguments.threads)?;
                let (found, time) = timed(&mut shards, &exact, rank)?;
                let auto =
                    StrategyName::Auto.strategy(n, &[rank], arguments.threads, &MemoryBudget::UNLIMITED)?;
                auto_time += timed(&mut shards, auto.as_ref(), rank)?.1;
                let start = Instant::now();
                let expected = *keys.select_nth_unstable(rank as usize - 1).1;
                nth_time += start.elapsed().as_secs_f64();
                if found.key_at(rank)? != expected.into() {
                    return exec_err!(
                        "rank {rank} of {n} values, {distinct} distinct, differs from a selection"
                    );
                }
                times.push(time);
            }
            let total: f64 = times.iter().sum();
            let rate = |seconds: f64| n as f64 * INPUTS as f64 / seconds;
            let least = times.iter().copied().fold(f64::INFINITY, f64::min);
            let most = times.iter().copied().fold(0.0, f64::max);
            table.row(&[
                &log,
                &distinct,
                &format!("{:.3e}", rate(total)),
                &format!("{:.3e}", rate(auto_time)),
                &format!("{:.3e}", rate(nth_time)),
                &format!("{:.2}", most / least),
            ])?;
            let name = if distinct == n {
                "d = n".to_owned()
            } else {
                format!("d = {distinct}")
            };
            add_point(&mut lines, &name, (n as f64, rate(total)));
        }
    }
    plot(
        &arguments.output,
        "sample_throughput",
        "SampleSelect: one random rank",
        ["values", "values a second"],
        &lines,
    )
}

/// The approximate form: the paper finds 1% for 64 buckets and 0.1% for 1024, of 2^28 values.
fn errors(arguments: &Arguments) -> Result<()> {
    let exact = SampleSelect::new(Choice::default());
    let columns = [
        "buckets",
        "mean error, share of n",
        "largest",
        "half a bucket",
        "time / exact",
    ];
    let n = 1_u64 << arguments.sample_log;
    let title = format!(
        "Approximate SampleSelect: {} ranks of 2^{} random u32",
        10 * INPUTS,
        arguments.sample_log
    );
    let mut table = Table::try_new(&arguments.output, "sample_error", &title, &columns)?;
    let mut lines = Vec::new();
    let keys = values(n, n, 1);
    let mut shards = shards(&keys, arguments.threads)?;
    for buckets in [64, 128, 256, 512, 1024, 4096, 16_384] {
        let (mut sum, mut most, mut time, mut exact_time) = (0.0, 0.0_f64, 0.0, 0.0);
        for seed in 0..10 * INPUTS {
            let rank = 1 + mix(seed + 77) % n;
            let (near, seconds) = timed(&mut shards, &NearestSplitter::try_new(buckets)?, rank)?;
            time += seconds;
            if seed % 10 == 0 {
                exact_time += 10.0 * timed(&mut shards, &exact, rank)?.1;
            }
            let (first, last) = near.place_at(rank)?;
            let error = first.saturating_sub(rank).max(rank.saturating_sub(last)) as f64 / n as f64;
            sum += error;
            most = most.max(error);
        }
        let mean = sum / (10 * INPUTS) as f64;
        table.row(&[
            &buckets,
            &format!("{mean:.6}"),
            &format!("{most:.6}"),
            &format!("{:.6}", 0.5 / f64::from(buckets)),
            &format!("{:.2}", time / exact_time),
        ])?;
        add_point(&mut lines, "mean", (buckets.into(), mean));
        add_point(&mut lines, "largest", (buckets.into(), most));
    }
    plot(
        &arguments.output,
        "sample_error",
        "Approximate SampleSelect",
        ["buckets", "error, share of n"],
        &lines,
    )
}
