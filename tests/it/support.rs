//! What the tests share: sessions, tables, and ways to look at results.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};

/// The folder of the workspace: the one that the tests run in, should another have compiled them.
pub(crate) fn root() -> PathBuf {
    let package: PathBuf = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let root = package
        .ancestors()
        .find(|folder| folder.join("Cargo.lock").exists());
    root.expect("Cargo.lock lies at the root of the workspace")
        .to_owned()
}

/// A session with the extension and this many target partitions.
pub(crate) fn session(target_partitions: usize) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(target_partitions)
        .with_information_schema(true);
    let ctx = SessionContext::new_with_config(config);
    datafusion_quantiles::register_all(&ctx).unwrap();
    ctx
}

/// Columns as one batch.
pub(crate) fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// Registers `rows` as a table of `partitions` partitions, dealt out in batches of `batch_rows` rows.
pub(crate) fn register(
    ctx: &SessionContext,
    name: &str,
    rows: &RecordBatch,
    partitions: usize,
    batch_rows: usize,
) {
    let mut dealt = vec![Vec::new(); partitions];
    for (i, start) in (0..rows.num_rows()).step_by(batch_rows).enumerate() {
        let length = batch_rows.min(rows.num_rows() - start);
        dealt[i % partitions].push(rows.slice(start, length));
    }
    let table = MemTable::try_new(rows.schema(), dealt).unwrap();
    ctx.register_table(name, Arc::new(table)).unwrap();
}

/// The result of a query.
pub(crate) async fn query(ctx: &SessionContext, sql: &str) -> Result<Vec<RecordBatch>> {
    ctx.sql(sql).await?.collect().await
}

/// The rows of a query, values as text, columns joined by ` | `.
pub(crate) async fn rows(ctx: &SessionContext, sql: &str) -> Vec<String> {
    let batches = query(ctx, sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    texts(&batches)
}

/// Rows as text, columns joined by ` | `.
pub(crate) fn texts(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let values = batch.columns().iter().map(|column| match column.is_null(row) {
                true => "NULL".to_owned(),
                false => array_value_to_string(column, row).unwrap(),
            });
            rows.push(values.collect::<Vec<_>>().join(" | "));
        }
    }
    rows
}

/// The one row of a query.
pub(crate) async fn row(ctx: &SessionContext, sql: &str) -> String {
    let mut rows = rows(ctx, sql).await;
    assert_eq!(rows.len(), 1, "{sql}: {rows:?}");
    rows.remove(0)
}

/// Names of the result columns.
pub(crate) async fn names(ctx: &SessionContext, sql: &str) -> Vec<String> {
    let df = ctx.sql(sql).await.unwrap();
    df.schema()
        .fields()
        .iter()
        .map(|field| field.name().clone())
        .collect()
}

/// The message of the error that a query must end with, without the contexts around it.
pub(crate) async fn error(ctx: &SessionContext, sql: &str) -> String {
    match query(ctx, sql).await {
        Ok(batches) => panic!("{sql} must fail, gave {batches:?}"),
        Err(error) => error.find_root().strip_backtrace(),
    }
}

/// The physical plan of a query, as `EXPLAIN` shows it.
pub(crate) async fn physical_plan(ctx: &SessionContext, sql: &str) -> String {
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let plan = datafusion::physical_plan::displayable(plan.as_ref())
        .indent(false)
        .to_string();
    plan.trim_end().to_owned()
}

/// A small generator of reproducible numbers.
pub(crate) fn pseudo_random(n: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    })
    .take(n)
}

/// The value of rank `max(1, ceil(q n))` by a full sort. `q` is a fraction of 1000, so that the rank is exact.
pub(crate) fn by_sort<T: PartialOrd + Copy>(values: &[T], per_mille: usize) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("no NaN"));
    let rank = (per_mille * sorted.len()).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied()
}

/// Waits until nothing is reserved and no file is left: a task that is cancelled ends a moment after its stream.
pub(crate) async fn all_is_given_back(ctx: &SessionContext) {
    let start = Instant::now();
    let runtime = ctx.runtime_env();
    while runtime.memory_pool.reserved() > 0 || runtime.disk_manager.used_disk_space() > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "memory or disk is still held"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Says on standard error, past the capture of tests that pass, that a test has not run, and why.
#[cfg(feature = "cuda")]
pub(crate) fn skipped(why: &str) {
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    writeln!(std::io::stderr(), "SKIPPED {test}: {why}").ok();
}

/// Files anywhere below a folder; what vanishes meanwhile may be missing.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
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
