//! Tables in memory.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::SessionContext;

/// Columns as one batch.
pub fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// Registers `rows` as a table of `partitions` partitions, dealt out in batches of `batch_rows` rows.
pub fn register(ctx: &SessionContext, name: &str, rows: &RecordBatch, partitions: usize, batch_rows: usize) {
    let mut dealt = vec![Vec::new(); partitions];
    for (i, start) in (0..rows.num_rows()).step_by(batch_rows).enumerate() {
        let length = batch_rows.min(rows.num_rows() - start);
        dealt[i % partitions].push(rows.slice(start, length));
    }
    let table = MemTable::try_new(rows.schema(), dealt).unwrap();
    ctx.register_table(name, Arc::new(table)).unwrap();
}

/// Writes `rows`, in their order, as a Parquet file. (`COPY` by several partitions writes batches in the order in which they arrive.)
pub fn write_parquet(path: &Path, rows: &RecordBatch, properties: WriterProperties) {
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
}

/// A small generator of reproducible numbers.
pub fn pseudo_random(n: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    })
    .take(n)
}

/// Whether each of many combinations of settings is tried, asked in their order: one in `every`, at random places that are the same in
/// each run. With the environment variable `QUANTILES_EVERY_CASE` all are.
pub fn tried(every: u64) -> impl FnMut() -> bool {
    let all = std::env::var_os("QUANTILES_EVERY_CASE").is_some();
    let mut places = pseudo_random(usize::MAX, every);
    move || all || places.next().is_some_and(|place| (place >> 32) % every == 0)
}
