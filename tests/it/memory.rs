//! Memory limits: every answer is exact or `ResourcesExhausted`, and nothing stays behind.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Decimal128Array, Float64Array, Int32Array, Int64Array};
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool};
use datafusion::prelude::*;
use datafusion_quantiles::config::StrategyName;
use datafusion_quantiles::kernel::{Backend, CpuBackend};
use datafusion_quantiles::key::{KeyBits, KeySpec};
use datafusion_quantiles::select::{LocalShards, Shards, solve_ranks};
use datafusion_quantiles::threads::Stop;
use tempfile::TempDir;

use quantiles_testing::patterns::Pattern;
use quantiles_testing::*;

/// Values of the tables here.
const ROWS: usize = 1_000_000;

/// From this limit on a table of [`ROWS`] values must be answered, whatever its type and number of partitions.
const ENOUGH: usize = 16 << 20;

/// A column of a name, and the values of some ranks by a sort.
struct Case {
    name: &'static str,
    values: ArrayRef,
    expected: Vec<String>,
    /// Among the distinct values.
    distinct: Vec<String>,
}

const QUANTILES: [f64; 5] = [0.0, 0.001, 0.5, 0.75, 1.0];

impl Case {
    fn new(name: &'static str, values: ArrayRef) -> Self {
        let spec = KeySpec::try_new(values.data_type()).unwrap();
        let mut keys = spec.keys(&values).unwrap();
        keys.sort_unstable();
        let expected = picked(&spec, &keys);
        keys.dedup();
        Self {
            name,
            values,
            expected,
            distinct: picked(&spec, &keys),
        }
    }
}

fn picked(spec: &KeySpec, sorted: &[KeyBits]) -> Vec<String> {
    let rank = |q: &f64| ((q * sorted.len() as f64).ceil() as usize).max(1);
    let picked: Vec<KeyBits> = QUANTILES.iter().map(|q| sorted[rank(q) - 1]).collect();
    let picked = spec.to_array(&picked).unwrap();
    (0..picked.len())
        .map(|at| array_value_to_string(&picked, at).unwrap())
        .collect()
}

fn cases() -> Vec<Case> {
    let random = || pseudo_random(ROWS, 7);
    let with_nulls: Float64Array = random()
        .map(|r| (r % 10 > 0).then_some((r >> 11) as f64))
        .collect();
    let wide: Decimal128Array = random()
        .map(|r| Some(i128::from(r) * i128::from(r >> 7)))
        .collect();
    vec![
        Case::new("float64 with nulls", Arc::new(with_nulls)),
        Case::new(
            "int64 in clusters",
            Arc::new(Int64Array::from(Pattern::Clusters.words(ROWS, 8))),
        ),
        Case::new(
            "int32",
            Arc::new(random().map(|r| Some(r as i32)).collect::<Int32Array>()),
        ),
        Case::new(
            "decimal128",
            Arc::new(wide.with_precision_and_scale(38, 2).unwrap()),
        ),
        Case::new(
            "few values",
            Arc::new(random().map(|r| Some((r % 3) as i64)).collect::<Int64Array>()),
        ),
    ]
}

async fn answer(
    ctx: &SessionContext,
    strategy: StrategyName,
    distinct: &str,
) -> Result<Vec<String>, DataFusionError> {
    let set = format!("SET quantiles.strategy = '{strategy}'");
    query(ctx, &set).await?;
    let sql = format!("SELECT unnest(exact_quantiles({distinct}x, {QUANTILES:?})) FROM t");
    let batches = query(ctx, &sql).await?;
    let mut found = Vec::new();
    for batch in batches {
        let column = batch.column(0);
        found.extend((0..batch.num_rows()).map(|at| array_value_to_string(column, at).unwrap()));
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_limit_gives_the_exact_answer_or_says_that_it_is_too_small() {
    let folder = TempDir::new().unwrap();
    let (mut is_tried, mut exact_below_enough) = (tried(4), 0);
    for case in cases() {
        for (partitions, megabytes) in [1, 2, 5]
            .into_iter()
            .flat_map(|p| (0..7).map(move |s| (p, 1 << s)))
        {
            let limit = megabytes << 20;
            let pool: Arc<dyn MemoryPool> = match partitions {
                2 => Arc::new(FairSpillPool::new(limit)),
                _ => Arc::new(GreedyMemoryPool::new(limit)),
            };
            let ctx = session_on(runtime(pool, folder.path()), partitions);
            let rows = batch(vec![("x", Arc::clone(&case.values))]);
            register(&ctx, "t", &rows, partitions, 8192);
            let all = StrategyName::ALL.map(|strategy| (strategy, "", &case.expected));
            let distinct = [(StrategyName::Auto, "DISTINCT ", &case.distinct)];
            for (strategy, distinct, expected) in all.into_iter().chain(distinct) {
                if !is_tried() {
                    continue;
                }
                let what = format!(
                    "{distinct}{}, {partitions} partitions, {megabytes} MiB, {strategy}",
                    case.name
                );
                match answer(&ctx, strategy, distinct).await {
                    Ok(found) => {
                        assert_eq!(found, *expected, "{what}");
                        exact_below_enough += usize::from(limit < ENOUGH);
                    }
                    Err(error) => {
                        assert!(
                            matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
                            "{what}: {error}"
                        );
                        assert!(limit < ENOUGH, "{what}: {error}");
                        assert!(
                            error.to_string().contains("memory limit is too small"),
                            "{what}: {error}"
                        );
                    }
                }
                assert_nothing_left(&ctx, folder.path(), &what);
            }
        }
    }
    // Most small limits do as well, or this would test little.
    assert!(exact_below_enough > 40, "{exact_below_enough}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_and_other_aggregates_share_one_limit() {
    let folder = TempDir::new().unwrap();
    let ctx = session_on(runtime(Arc::new(GreedyMemoryPool::new(ENOUGH)), folder.path()), 2);
    let [floats, ints, ..] = &cases()[..] else {
        panic!()
    };
    let rows = batch(vec![
        ("x", Arc::clone(&floats.values)),
        ("y", Arc::clone(&ints.values)),
    ]);
    register(&ctx, "t", &rows, 2, 8192);
    let sql = "SELECT exact_quantiles(x, 0.5), exact_quantiles(y, 0.75), exact_quantiles(y, 1.0) FILTER (WHERE x > 0), \
               count(*), count(DISTINCT y) FILTER (WHERE x < 1e15) > 100 FROM t";
    let found = row(&ctx, sql).await;
    let greatest = &ints.expected[4];
    let expected = format!("{} | {} | ", floats.expected[2], ints.expected[3]);
    assert!(
        found.starts_with(&expected) && found.ends_with(" | 1000000 | true"),
        "{found}"
    );
    let filtered = row(&ctx, "SELECT max(y) FILTER (WHERE x > 0) FROM t").await;
    assert!(
        found.contains(&format!(" | {filtered} | ")),
        "{found}, greatest {greatest}"
    );
    assert_nothing_left(&ctx, folder.path(), sql);
}

#[tokio::test]
async fn explain_analyze_says_what_was_spilled() {
    let folder = TempDir::new().unwrap();
    let values = || Arc::clone(&cases()[0].values);
    for (limit, spills) in [(4 << 20, true), (1 << 30, false)] {
        let ctx = session_on(runtime(Arc::new(GreedyMemoryPool::new(limit)), folder.path()), 2);
        register(&ctx, "t", &batch(vec![("x", values())]), 2, 8192);
        let sql = "EXPLAIN ANALYZE SELECT exact_quantiles(x, 0.5) FROM t";
        let plan = rows(&ctx, sql).await.join("\n");
        assert_eq!(plan.contains("spill_count=2,"), spills, "{plan}");
        assert_eq!(plan.contains("spilled_bytes=0.0 B,"), !spills, "{plan}");
    }
}

#[tokio::test]
async fn without_a_disk_the_error_says_so() {
    let ctx = session_without_disk();
    register(
        &ctx,
        "t",
        &batch(vec![("x", Arc::clone(&cases()[0].values))]),
        2,
        8192,
    );
    for sql in [
        "SELECT exact_quantiles(x, 0.5) FROM t",
        "SELECT exact_quantiles(x, 0.5) FILTER (WHERE x > 1) FROM t",
        "SELECT exact_quantiles(x * 2, 0.5) FROM t",
        "SELECT exact_quantiles(x, 0.5) FILTER (WHERE x < 0), array_agg(x) FROM t",
    ] {
        let error = query(&ctx, sql).await.unwrap_err();
        let root = error.find_root();
        assert!(
            matches!(root, DataFusionError::ResourcesExhausted(_)),
            "{sql}: {error}"
        );
        let message = root.strip_backtrace();
        assert!(
            message.contains("Failed to allocate additional") && message.contains("for QuantilesExec"),
            "{sql}: {message}"
        );
        let message = error.to_string();
        assert!(
            sql.contains("array_agg")
                || message.contains("spilling is off") && message.contains("bytes wanted"),
            "{sql}: {message}"
        );
        // Partitions that another one's error ends are a moment behind it.
        all_is_given_back(&ctx).await;
    }
    let distinct = query(&ctx, "SELECT exact_quantiles(DISTINCT x, 0.5) FROM t").await;
    let error = distinct.unwrap_err();
    assert!(
        matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
        "{error}"
    );
}

#[test]
fn threads_share_a_shard_that_is_on_disk() {
    let folder = TempDir::new().unwrap();
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(1_200_000, 5)));
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let mut sorted = spec.keys(&values).unwrap();
    sorted.sort_unstable();
    let ranks: Vec<u64> = (1..=100).map(|i| i * 12_000).collect();
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(8 << 20));
    let runtime = runtime(Arc::clone(&pool), folder.path());
    for whole in [false, true] {
        for name in StrategyName::ALL {
            let memory = MemoryConsumer::new("shard").register(&pool);
            let backend = CpuBackend::spilling(&runtime, &memory);
            let mut shard = backend.open(&spec, memory.new_empty()).unwrap();
            shard.append(&values, None).unwrap();
            if whole {
                assert!(shard.spill(usize::MAX, &Stop::default()).unwrap() > 1 << 20);
                assert!(shard.held_bytes() <= 64 << 10 && shard.len() == 1_200_000);
            }
            assert_eq!(files_below(folder.path()).len(), 1);
            let mut local = LocalShards::new(spec.width(), vec![shard], 4, Stop::default());
            assert_eq!(local.parallelism(), 4);
            let strategy = name.strategy(1_200_000, &ranks, 4, &local.budget()).unwrap();
            let solution =
                futures::executor::block_on(solve_ranks(&mut local, strategy.as_ref(), ranks.clone()));
            let solution = solution.unwrap();
            for rank in &ranks {
                assert_eq!(
                    solution.key_at(*rank).unwrap(),
                    sorted[*rank as usize - 1],
                    "{name}"
                );
            }
            drop(local);
            assert_eq!(files_below(folder.path()), [] as [PathBuf; 0]);
        }
    }
    assert_eq!(pool.reserved(), 0);
}
