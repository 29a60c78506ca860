//! What the statistics of Parquet files say of a column.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, UInt64Array};
use datafusion::common::Result;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::execution::TaskContext;
use datafusion::parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use datafusion::parquet::arrow::parquet_to_arrow_schema;
use datafusion::parquet::file::metadata::ParquetMetaData;
use futures::StreamExt;

use super::extents::{Extent, Extents, KnownValues};
use super::row_source::RowSource;
use crate::cells::Bracket;
use crate::key::{KeyBits, KeySpec};

/// The extents of the column `name` in the files of `source`, whose keys `spec` describes: pages where the files have an index of pages,
/// else row groups. `None` if the metadata of a file cannot be read here, such as that of an encrypted file.
///
/// # Errors
/// Errors of statistics whose types differ from those of their column.
pub(super) async fn extents(
    source: &RowSource,
    name: &str,
    spec: &KeySpec,
    context: &Arc<TaskContext>,
) -> Result<Option<Extents>> {
    let runtime = context.runtime_env();
    let store = runtime.object_store(&source.config().object_store_url)?;
    let cache = runtime.cache_manager.get_file_metadata_cache();
    let concurrency = context
        .session_config()
        .options()
        .execution
        .meta_fetch_concurrency;
    let files = source
        .files()
        .map(|(first, file)| (first, file.object_meta.clone()));
    let files: Vec<_> = files.collect();
    let metadata = futures::stream::iter(files).map(|(first, file)| {
        let (store, cache) = (Arc::clone(&store), Arc::clone(&cache));
        async move {
            let metadata =
                DFParquetMetadata::new(store.as_ref(), &file).with_file_metadata_cache(Some(cache));
            (first, metadata.fetch_metadata().await.ok())
        }
    });
    let mut metadata = metadata.buffered(concurrency.into());
    let mut extents = Vec::new();
    while let Some((first, metadata)) = metadata.next().await {
        let Some(metadata) = metadata else {
            return Ok(None);
        };
        extents.extend(of_file(&metadata, first, name, spec)?);
    }
    Ok(Some(Extents::new(extents)))
}

/// The extents of a column in one file, whose first row has the position `first`.
fn of_file(metadata: &ParquetMetaData, first: u64, name: &str, spec: &KeySpec) -> Result<Vec<Extent>> {
    let of_file = metadata.file_metadata();
    let schema = parquet_to_arrow_schema(of_file.schema_descr(), of_file.key_value_metadata())?;
    let groups = metadata.row_groups();
    let unknown = || {
        let mut next = first;
        let rows = groups.iter().map(|group| {
            let start = next;
            next += group.num_rows() as u64;
            Extent {
                rows: start..next,
                known: None,
            }
        });
        rows.collect()
    };
    if !schema
        .field_with_name(name)
        .is_ok_and(|field| field.data_type() == spec.data_type())
    {
        return Ok(unknown());
    }
    let converter = StatisticsConverter::try_new(name, &schema, of_file.schema_descr())?
        .with_missing_null_counts_as_zero(false);
    let statistics = match (metadata.column_index(), metadata.offset_index()) {
        (Some(columns), Some(offsets)) => {
            let all: Vec<usize> = (0..groups.len()).collect();
            let Some(rows) = converter.data_page_row_counts(offsets, groups, &all)? else {
                return Ok(unknown());
            };
            ColumnStatistics {
                rows,
                nulls: converter.data_page_null_counts(columns, offsets, &all)?,
                least: converter.data_page_mins(columns, offsets, &all)?,
                greatest: converter.data_page_maxes(columns, offsets, &all)?,
            }
        }
        _ => {
            let Some(rows) = converter.row_group_row_counts(groups)? else {
                return Ok(unknown());
            };
            ColumnStatistics {
                rows,
                nulls: converter.row_group_null_counts(groups)?,
                least: converter.row_group_mins(groups)?,
                greatest: converter.row_group_maxes(groups)?,
            }
        }
    };
    statistics.extents(first, spec)
}

/// Statistics of the extents of a column in one file.
struct ColumnStatistics {
    rows: UInt64Array,
    nulls: UInt64Array,
    least: ArrayRef,
    greatest: ArrayRef,
}

impl ColumnStatistics {
    /// The extents, of which the first begins at the position `first`.
    fn extents(&self, first: u64, spec: &KeySpec) -> Result<Vec<Extent>> {
        let (least, greatest) = (keys(&self.least, spec)?, keys(&self.greatest, spec)?);
        let mut next = first;
        let extents = self.rows.iter().enumerate().map(|(index, rows)| {
            let rows = rows.unwrap_or(0);
            let start = next;
            next += rows;
            let values = self
                .nulls
                .is_valid(index)
                .then(|| rows.checked_sub(self.nulls.value(index)));
            let known = match (values.flatten(), least[index], greatest[index]) {
                (Some(0), _, _) => Some(KnownValues {
                    values: 0,
                    bounds: Bracket { first: 0, last: 0 },
                }),
                (Some(values), Some(first), Some(last)) if first <= last => Some(KnownValues {
                    values,
                    bounds: Bracket { first, last },
                }),
                _ => None,
            };
            Extent {
                rows: start..next,
                known,
            }
        });
        Ok(extents.collect())
    }
}

/// The keys of values, `None` for NULL.
fn keys(values: &ArrayRef, spec: &KeySpec) -> Result<Vec<Option<KeyBits>>> {
    let mut keys = spec.keys(values.as_ref())?.into_iter();
    Ok((0..values.len())
        .map(|row| values.is_valid(row).then(|| keys.next()).flatten())
        .collect())
}
