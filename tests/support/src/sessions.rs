//! Sessions: with the extension, with limits, in stages, and what they must give back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::execution::FunctionRegistry;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_quantiles::functions::QuantilesExprPlanner;
use datafusion_quantiles::{QuantilesPlanner, SessionStateBuilderExt};
use futures::StreamExt;

use crate::answers::query;

/// The folder of the workspace: the one that the tests run in, should another have compiled them.
pub fn root() -> PathBuf {
    let package: PathBuf = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let root = package
        .ancestors()
        .find(|folder| folder.join("Cargo.lock").exists());
    root.expect("Cargo.lock lies at the root of the workspace")
        .to_owned()
}

/// A session with the extension and this many target partitions.
pub fn session(target_partitions: usize) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(target_partitions)
        .with_information_schema(true);
    let ctx = SessionContext::new_with_config(config);
    datafusion_quantiles::register_all(&ctx).unwrap();
    ctx
}

/// A session that plans as a Ballista scheduler's does, which deals no rows out anew.
pub fn staged_session(partitions: usize) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_round_robin_repartition(false);
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_query_planner(Arc::new(QuantilesPlanner::staged()))
        .with_quantiles()
        .build();
    SessionContext::new_with_state(state)
}

/// A session where the functions are ordinary aggregates, without the planner of this crate.
pub fn ordinary() -> SessionContext {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    for function in session(1).state().aggregate_functions().values() {
        ctx.register_udaf(function.as_ref().clone());
    }
    let state = ctx.state_ref();
    state
        .write()
        .register_expr_planner(Arc::new(QuantilesExprPlanner))
        .unwrap();
    ctx
}

/// A session whose memory is limited to some megabytes, with a disk.
pub fn limited(megabytes: usize, partitions: usize) -> SessionContext {
    within(Arc::new(GreedyMemoryPool::new(megabytes << 20)), partitions)
}

/// A session of this pool, with a disk.
pub fn within(pool: Arc<dyn MemoryPool>, partitions: usize) -> SessionContext {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool);
    session_on(runtime.build_arc().unwrap(), partitions)
}

/// A runtime of this pool that spills into `folder`.
pub fn runtime(pool: Arc<dyn MemoryPool>, folder: &Path) -> Arc<RuntimeEnv> {
    let mode = DiskManagerMode::Directories(vec![folder.to_owned()]);
    RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(mode))
        .build_arc()
        .unwrap()
}

/// A session of this runtime with the extension.
pub fn session_on(runtime: Arc<RuntimeEnv>, target_partitions: usize) -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(target_partitions);
    let ctx = SessionContext::new_with_config_rt(config, runtime);
    datafusion_quantiles::register_all(&ctx).unwrap();
    ctx
}

/// A session with a megabyte of memory, and no disk.
pub fn session_without_disk() -> SessionContext {
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_limit(1_000_000, 1.0)
        .with_disk_manager_builder(disk)
        .build_arc()
        .unwrap();
    session_on(runtime, 2)
}

/// Fails where a session holds memory or disk, or `folder` a file.
pub fn assert_nothing_left(ctx: &SessionContext, folder: &Path, what: &str) {
    let runtime = ctx.runtime_env();
    assert_eq!(runtime.memory_pool.reserved(), 0, "{what}");
    assert_eq!(runtime.disk_manager.used_disk_space(), 0, "{what}");
    assert_eq!(files_below(folder), [] as [PathBuf; 0], "{what}");
}

/// Sets an option of this crate.
pub async fn set(ctx: &SessionContext, option: &str, value: &str) {
    query(ctx, &format!("SET quantiles.{option} = '{value}'"))
        .await
        .unwrap();
}

/// Waits until nothing is reserved and no file is left: a task that is cancelled ends a moment after its stream.
pub async fn all_is_given_back(ctx: &SessionContext) {
    let start = Instant::now();
    let runtime = ctx.runtime_env();
    while runtime.memory_pool.reserved() > 0 || runtime.disk_manager.used_disk_space() > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "memory or disk is still held"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Asserts that a query whose stream is dropped after some milliseconds gives back its memory and its files within 250 ms more. The least
/// of five times counts: the machine has other work, too.
pub async fn drop_ends_the_work(ctx: &SessionContext, sql: &str, millis: u64) {
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let mut stream = ctx.sql(sql).await.unwrap().execute_stream().await.unwrap();
        let answer = tokio::time::timeout(Duration::from_millis(millis), stream.next()).await;
        drop((answer, stream));
        let start = Instant::now();
        all_is_given_back(ctx).await;
        least = least.min(start.elapsed());
    }
    assert!(
        least < Duration::from_millis(250),
        "{least:?} after {millis} ms: {sql}"
    );
}

/// Files anywhere below a folder; what vanishes meanwhile may be missing.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}
