//! Batches of more rows where the rows are short, under a memory limit.
//!
//! A session with a memory limit takes batches of few rows, since rows may be long and nobody reserves memory for the batches that
//! operators pass on: see [`SessionLimits`](crate::session::SessionLimits). Few rows cost time, 18% of quantiles of a million groups
//! over 16 threads within 200 MB. Parquet files say how long their rows are.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::parquet::metadata::CachedParquetMetaData;
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::logical_expr::Operator;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use super::sorts::{is_fixed, width};
use crate::exec::with_file_scans;
use crate::session::{WIDE_ROW_BYTES, batch_rows};

/// Bytes of a string or binary value beside its text: those of a view.
const VIEW_BYTES: usize = 16;

/// Has scans of Parquet files whose rows are known to be short read batches of more rows than the session's, as many as take the same
/// memory, up to DataFusion's default.
///
/// It leaves plans as they are if the session's batches have not the number of rows that [`SessionLimits`](crate::session::SessionLimits)
/// gives them, or if an expression may make long values of short ones.
#[derive(Debug)]
pub(super) struct ScanBatchesRule {
    /// The memory limit, in bytes.
    pub(super) limit: usize,
    /// The metadata of the files that have been planned.
    pub(super) metadata: Arc<FileMetadataCache>,
}

impl PhysicalOptimizerRule for ScanBatchesRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if !has_limited_batches(config, self.limit) || makes_long_values(&plan)? {
            return Ok(plan);
        }
        let own = config.execution.batch_size.get();
        let partitions = config.execution.target_partitions;
        with_file_scans(plan, |scan| {
            let rows = self
                .row_bytes(scan)?
                .map(|bytes| batch_rows(self.limit, partitions, bytes));
            Ok(rows
                .filter(|&rows| rows > own && scan.batch_size.is_none())
                .map(|rows| {
                    let longer = FileScanConfigBuilder::from(scan.clone()).with_batch_size(Some(rows));
                    DataSourceExec::from_data_source(longer.build()) as Arc<dyn ExecutionPlan>
                }))
        })
    }

    fn name(&self) -> &str {
        "scan_batches"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether batches of a session have the number of rows that [`SessionLimits`](crate::session::SessionLimits) gives them for this limit.
pub(super) fn has_limited_batches(config: &ConfigOptions, limit: usize) -> bool {
    let execution = &config.execution;
    execution.batch_size.get() == batch_rows(limit, execution.target_partitions, WIDE_ROW_BYTES)
}

impl ScanBatchesRule {
    /// Bytes of a row of the columns that a scan reads, by the row group with the longest; `None` if unknown.
    fn row_bytes(&self, scan: &FileScanConfig) -> Result<Option<usize>> {
        let schema = scan.file_source.table_schema().table_schema();
        let mut columns = match scan.file_source.projection() {
            Some(projection) if projection.expr_iter().all(|expr| expr.is::<Column>()) => {
                projection.column_indices()
            }
            Some(_) => return Ok(None),
            None => (0..schema.fields().len()).collect(),
        };
        let filtered = scan.file_source.filter().map(|filter| collect_columns(&filter));
        columns.extend(filtered.iter().flatten().map(Column::index));
        columns.sort_unstable();
        columns.dedup();
        let fields: Vec<&Field> = columns.iter().map(|&column| schema.field(column)).collect();
        let is_known = fields.iter().all(|field| is_fixed(field.data_type()));
        let files = if is_known {
            Vec::new()
        } else {
            match self.files(scan) {
                Some(files) => files,
                None => return Ok(None),
            }
        };
        Ok(fields
            .into_iter()
            .map(|field| value_bytes(field.name(), field.data_type(), &files))
            .sum())
    }

    /// The metadata of all files of a scan; `None` if that of a file is not in the cache.
    fn files(&self, scan: &FileScanConfig) -> Option<Vec<Arc<ParquetMetaData>>> {
        let files = scan.file_groups.iter().flat_map(|group| group.iter());
        let cached = files.map(|file| {
            let entry = self.metadata.get(&file.object_meta.location)?;
            let parquet = entry
                .file_metadata
                .as_any()
                .downcast_ref::<CachedParquetMetaData>()?;
            entry
                .is_valid_for(&file.object_meta)
                .then(|| Arc::clone(parquet.parquet_metadata()))
        });
        cached.collect()
    }
}

/// Bytes of a value of a column in memory, on average over the row group with the longest; `None` if unknown.
fn value_bytes(name: &str, data_type: &DataType, files: &[Arc<ParquetMetaData>]) -> Option<usize> {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => text_bytes(name, files),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => text_bytes(name, files),
        DataType::Dictionary(keys, values) => Some(width(keys) + value_bytes(name, values, files)?),
        fixed => is_fixed(fixed).then(|| width(fixed)),
    }
}

/// Bytes of a value of a column of strings or binary values, as [`value_bytes`].
fn text_bytes(name: &str, files: &[Arc<ParquetMetaData>]) -> Option<usize> {
    let groups = files.iter().flat_map(|file| file.row_groups());
    let mut averages = groups.filter(|group| group.num_rows() > 0).map(|group| {
        let column = group
            .columns()
            .iter()
            .find(|column| column.column_path().parts() == [name])?;
        let text = usize::try_from(column.unencoded_byte_array_data_bytes()?).ok()?;
        Some(text.div_ceil(usize::try_from(group.num_rows()).ok()?) + VIEW_BYTES)
    });
    averages.try_fold(0, |longest, bytes| Some(longest.max(bytes?)))
}

/// Whether a plan has an expression that may make values longer than those it takes: a function, or `||`, that gives no value of fixed
/// width.
fn makes_long_values(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut found = false;
    plan.apply(|node| {
        node.apply_expressions(&mut |expr| {
            expr.apply(|part| {
                found |= makes_long_value(part.as_ref());
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(if found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(found)
}

fn makes_long_value(expr: &dyn PhysicalExpr) -> bool {
    if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
        return !is_fixed(call.return_type());
    }
    let concat = expr.downcast_ref::<BinaryExpr>().map(|binary| *binary.op());
    concat == Some(Operator::StringConcat)
}
