//! Too little memory of a device or of the host: the query runs without it, or an error names the limit.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_quantiles::cells::{Brackets, CellTable, Cells};
use datafusion_quantiles::kernel::cuda::{CudaBackend, Device, Report, Selection, SpreadSelection};
use datafusion_quantiles::kernel::round::{Reply, Request};
use datafusion_quantiles::kernel::{Backend, Shard};
use datafusion_quantiles::key::{KeyBits, Width};
use datafusion_quantiles::pinned::{pin_table, use_devices};
use datafusion_quantiles::select::LocalShards;
use datafusion_quantiles::threads::Stop;
use quantiles_testing::patterns::Pattern;
use quantiles_testing::rounds::{ranks_of, run, strategies};
use quantiles_testing::{batch, error, query, register, row, rows, rows_joined, session, set};

use crate::matrix::with_cents;
use crate::requests::key_vec;
use crate::selection::selection;
use crate::several::spread;
use crate::support::{columns, device, pinned, sorted_keys, tests, two_devices};

tests! {
    asynchronous pinned_tables,
    asynchronous page_locked_memory_is_reserved,
    asynchronous a_column_on_its_way_takes_little_more_than_its_size,
    asynchronous best_rows_of_groups,
    asynchronous streamed_columns,
    plain columns_on_two_devices,
    plain shards,
}

async fn pinned_tables() {
    let device = device();
    let ctx = session(2);
    let rows = batch(vec![(
        "x",
        Arc::new(Int64Array::from_iter_values(0..1_000_000)) as ArrayRef,
    )]);
    register(&ctx, "t", &rows, 2, 4000);
    set(&ctx, "cuda_memory_limit", "1k").await;
    let error = pin_table(&ctx, "t", &["x"]).await.unwrap_err();
    assert!(
        matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
        "{error}"
    );
    assert!(
        error.to_string().contains("quantiles.cuda_memory_limit"),
        "{error}"
    );
    // More than any device has.
    set(&ctx, "cuda_memory_limit", "none").await;
    let error = device.allocate(1 << 45, None).unwrap_err();
    assert!(matches!(error, DataFusionError::ResourcesExhausted(_)), "{error}");
    device.check().unwrap();
    // The column fits, but no workspace.
    pin_table(&ctx, "t", &["x"]).await.unwrap();
    device.release_workspace();
    set(&ctx, "cuda_memory_limit", "1k").await;
    set(&ctx, "device", "cuda").await;
    let sql = "SELECT exact_quantiles(x, 0.5) FROM t";
    let refused = query(&ctx, sql)
        .await
        .map(|_| ())
        .map_err(|error| error.find_root().strip_backtrace());
    // Another test may have left a workspace that is large enough.
    assert!(refused.is_ok() || refused.unwrap_err().contains("quantiles.cuda_memory_limit"));
    set(&ctx, "device", "auto").await;
    assert_eq!(row(&ctx, sql).await, "499999");
}

/// The page-locked memory depends on the number of shards, not on the number of columns.
async fn page_locked_memory_is_reserved() {
    let names: Vec<_> = (0..20).map(|number| format!("c{number}")).collect();
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..40_000));
    let rows = batch(
        names
            .iter()
            .map(|name| (name.as_str(), Arc::clone(&numbers)))
            .collect(),
    );
    let columns: Vec<_> = names.iter().map(String::as_str).collect();
    for (limit, is_enough) in [(34 << 20, true), (1 << 20, false)] {
        let runtime = RuntimeEnvBuilder::new().with_memory_limit(limit, 1.0).build_arc();
        let config = SessionConfig::new().with_target_partitions(8);
        let ctx = SessionContext::new_with_config_rt(config, runtime.unwrap());
        datafusion_quantiles::register_all(&ctx).unwrap();
        register(&ctx, "t", &rows, 8, 1000);
        match pin_table(&ctx, "t", &columns).await {
            Ok(()) => assert!(is_enough, "{limit}"),
            Err(error) => {
                let is_refused = matches!(error.find_root(), DataFusionError::ResourcesExhausted(_));
                assert!(is_refused && !is_enough, "{limit}: {error}");
            }
        }
        assert_eq!(ctx.runtime_env().memory_pool.reserved(), 0);
    }
}

/// A column just longer than a size at which pieces that double would waste most.
async fn a_column_on_its_way_takes_little_more_than_its_size() {
    let ctx = session(1);
    // A device of its own, on which no other memory is held.
    use_devices(&ctx, vec![Arc::new(Device::open(0, None).unwrap())]);
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..(65 << 17)));
    register(&ctx, "t", &batch(vec![("x", numbers)]), 1, 8192);
    // 65 MiB, a quarter more, and once more while they are joined.
    set(&ctx, "cuda_memory_limit", "148m").await;
    pin_table(&ctx, "t", &["x"]).await.unwrap();
}

/// Without memory for a workspace there is an error that says so, or the CPU answers.
async fn best_rows_of_groups() {
    let ctx = session(2);
    pinned(&ctx, &batch(with_cents(Pattern::Random, 5000, 2, true)), 2).await;
    let sql = "SELECT i8, topk_by(f32, f64, 3) FROM t GROUP BY i8 ORDER BY i8";
    Device::get(0).unwrap().release_workspace();
    set(&ctx, "cuda_memory_limit", "1k").await;
    set(&ctx, "device", "cuda").await;
    let refused = error(&ctx, sql).await;
    assert!(refused.contains("quantiles.cuda_memory_limit"), "{refused}");
    set(&ctx, "device", "cpu").await;
    let expected = rows(&ctx, sql).await;
    set(&ctx, "device", "auto").await;
    assert_eq!(rows(&ctx, sql).await, expected, "{sql}");
    let analyzed = rows_joined(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    assert!(analyzed.contains("cuda_fallback=1"), "{sql}: {analyzed}");
}

/// Device memory that ends while values are uploaded.
async fn streamed_columns() {
    let device = device();
    let ctx = session(3);
    register(&ctx, "t", &batch(columns(Pattern::Random, 500_000, 4)), 4, 8192);
    set(&ctx, "device", "cuda").await;
    set(&ctx, "cuda_memory_limit", "1k").await;
    let refused = error(&ctx, "SELECT exact_quantiles(f64, 0.5) FROM t").await;
    assert!(refused.contains("quantiles.cuda_memory_limit"), "{refused}");
    device.check().unwrap();
}

/// With too little memory for a workspace there is an error that says so, or the query runs without it.
fn columns_on_two_devices() {
    let devices = two_devices();
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(2_000_000, 3)));
    let columns = spread(&values, &[0..1_000_000, 1_000_000..2_000_000], &devices);
    let (_, sorted) = sorted_keys(&values);
    let ranks = ranks_of(2_000_000, 101);
    let expected: Vec<KeyBits> = ranks.iter().map(|rank| sorted[*rank as usize - 1]).collect();
    let select = |limit| {
        let shares = columns.iter().map(|column| Selection {
            limit: Some(limit),
            ..selection(column, None)
        });
        let shares = shares.collect();
        SpreadSelection { shares }.keys(&ranks, &mut Report::default())
    };
    let mut found = 0;
    for megabytes in [9, 10, 12, 16, 32, 64] {
        devices.iter().for_each(|device| device.release_workspace());
        match select(megabytes << 20) {
            Ok(Some(keys)) => {
                assert_eq!(keys, expected, "{megabytes} MB");
                found += 1;
            }
            // Without room for copied keys, the ranks are found in rounds.
            Ok(None) => {}
            Err(error) => assert!(
                matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
                "{megabytes} MB: {error}"
            ),
        }
    }
    devices.iter().for_each(|device| device.release_workspace());
    let refused = select(8 << 20).unwrap_err();
    assert!(
        refused.to_string().contains("quantiles.cuda_memory_limit"),
        "{refused}"
    );
    assert!(found >= 2, "{found}");
    drop(columns);
    devices.iter().for_each(|device| device.release_workspace());
    assert!(devices.iter().all(|device| device.held_bytes() == 0));
}

fn small_pool(bytes: usize) -> Arc<dyn MemoryPool> {
    Arc::new(GreedyMemoryPool::new(bytes))
}

/// When device memory ends, the query runs without it if possible, or there is an error that says so.
fn shards() {
    let values: ArrayRef = Arc::new(Int64Array::from(Pattern::Random.words(1_000_000, 3)));
    let (spec, sorted) = sorted_keys(&values);
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let open = |limit| {
        let device = Arc::new(Device::open(0, None).unwrap());
        let backend = CudaBackend::new(Arc::clone(&device), Some(limit));
        let shard = backend.open(&spec, MemoryConsumer::new("test").register(&pool));
        (device, shard.unwrap())
    };
    let answer = |shard: &mut Box<dyn Shard>, request: &Request| shard.answer(request, &Stop::default());
    let all = Request::Extract {
        brackets: Brackets::all(Width::W64),
    };
    let (_device, mut shard) = open(1 << 20);
    shard.append(&values, None).unwrap();
    let error = answer(&mut shard, &all).unwrap_err();
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
        // Enough for the copy of the values, but then other memory takes most of it.
        let (device, mut shard) = open(24 << 20);
        shard.append(&values, None).unwrap();
        let Reply::Counts { counts, kept } = answer(&mut shard, &count).unwrap() else {
            panic!()
        };
        assert_eq!((counts.iter().sum::<u64>(), kept.len()), (1_000_000, 1));
        let held = device.allocate(15 << 20, None).unwrap();
        assert_eq!(answer(&mut shard, &all).unwrap(), Reply::Extracted(Vec::new()));
        let mut shards = LocalShards::blocking(Width::W64, vec![shard], 1, Stop::default());
        let solution = run(&mut shards, strategy.as_ref(), &ranks);
        for rank in &ranks {
            let expected = sorted[*rank as usize - 1];
            assert_eq!(solution.key_at(*rank).unwrap(), expected, "{}", strategy.label());
        }
        drop((held, shards));
        device.release_workspace();
        assert_eq!(device.held_bytes(), 0);
    }
    // Without host memory for the keys there are counts, but no lists.
    let pool = small_pool(100_000);
    let device = Arc::new(Device::open(0, None).unwrap());
    let mut shard = CudaBackend::new(device, None)
        .open(&spec, MemoryConsumer::new("test").register(&pool))
        .unwrap();
    shard.append(&values, None).unwrap();
    assert_eq!(answer(&mut shard, &all).unwrap(), Reply::Extracted(Vec::new()));
    drop(shard);
    assert_eq!(pool.reserved(), 0);
}
