//! How long the rows of a scan of Parquet files are, and the values that are computed of them.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::physical_plan::parquet::metadata::CachedParquetMetaData;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::logical_expr::Operator;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;

use crate::exec::files::file_scan;

/// Bytes of a string or binary value beside its text: those of a view.
const VIEW_BYTES: usize = 16;

/// How much longer than the average some values may be: all rows of a batch, where long values are neighbours.
const LONGER: usize = 4;

/// Bytes of a value of fixed width that was made a string.
const PRINTED_BYTES: usize = 64;

/// Bytes that a row of `input` takes in memory, with all that the expressions of its filters and projections and `exprs` make of it; `None` if
/// that is not known: the input is another than filters and projections of a scan of Parquet files, or an expression may make a value that is
/// longer than those it is made of.
pub(super) fn row_bytes(
    input: &Arc<dyn ExecutionPlan>,
    exprs: &[Arc<dyn PhysicalExpr>],
    metadata: &FileMetadataCache,
) -> Option<usize> {
    let Row { columns, beside } = row(input.as_ref(), metadata)?;
    let made = made(exprs.iter(), &columns, &input.schema())?;
    Some(beside + columns.iter().chain(&made).sum::<usize>())
}

/// A row of a plan: bytes of the value of each column, and of what is in memory beside it, for its conditions.
struct Row {
    columns: Vec<usize>,
    beside: usize,
}

/// A row of a plan of filters and projections of a scan of Parquet files.
fn row(plan: &dyn ExecutionPlan, metadata: &FileMetadataCache) -> Option<Row> {
    if let Some(scan) = file_scan(plan) {
        return scanned(scan, metadata);
    }
    let children = plan.children();
    let [input] = children.as_slice() else {
        return None;
    };
    let Row { columns, mut beside } = row(input.as_ref(), metadata)?;
    let schema = input.schema();
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let exprs = projection.expr().iter().map(|projected| &projected.expr);
        beside += columns.iter().sum::<usize>();
        let columns = made(exprs, &columns, &schema)?;
        return Some(Row { columns, beside });
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        beside += made([filter.predicate()], &columns, &schema)?[0];
        let kept = filter.projection().as_ref();
        let columns = match kept {
            Some(kept) => kept.iter().map(|column| columns[*column]).collect(),
            None => columns,
        };
        return Some(Row { columns, beside });
    }
    plan.is::<CooperativeExec>().then_some(Row { columns, beside })
}

/// A row of a scan of Parquet files.
fn scanned(scan: &FileScanConfig, metadata: &FileMetadataCache) -> Option<Row> {
    if scan.file_source.file_type() != "parquet" {
        return None;
    }
    let files = files(scan, metadata)?;
    let schema = scan.file_source.table_schema().table_schema();
    let fields = schema.fields().iter();
    // Columns that are not read may be of any length.
    let all = fields.map(|field| stored(field.name(), field.data_type(), &files));
    let all: Vec<Option<usize>> = all.collect();
    let column = |index: usize| all.get(index).copied().flatten();
    let known = |expr: &Arc<dyn PhysicalExpr>| value_bytes(expr, &column, schema);
    let beside = match scan.file_source.filter() {
        Some(filter) => known(&filter)?,
        None => 0,
    };
    let columns = match scan.file_source.projection() {
        Some(projection) => projection.expr_iter().map(|expr| known(&expr)).collect(),
        None => all.iter().copied().collect::<Option<Vec<_>>>(),
    };
    Some(Row {
        columns: columns?,
        beside,
    })
}

/// The metadata of all files of a scan; `None` if that of a file is not in the cache.
fn files(scan: &FileScanConfig, metadata: &FileMetadataCache) -> Option<Vec<Arc<ParquetMetaData>>> {
    let files = scan.file_groups.iter().flat_map(|group| group.iter());
    let cached = files.map(|file| {
        let entry = metadata.get(&file.object_meta.location)?;
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

/// Bytes of a value of a column of files; `None` if unknown.
fn stored(name: &str, data_type: &DataType, files: &[Arc<ParquetMetaData>]) -> Option<usize> {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => text_bytes(name, files),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => text_bytes(name, files),
        DataType::Dictionary(_, values) => stored(name, values, files),
        fixed => fixed_bytes(fixed),
    }
}

/// Bytes of a string or binary value of a column: [`LONGER`] times the average of the row group with the longest.
fn text_bytes(name: &str, files: &[Arc<ParquetMetaData>]) -> Option<usize> {
    let groups = files.iter().flat_map(|file| file.row_groups());
    let mut averages = groups.filter(|group| group.num_rows() > 0).map(|group| {
        let mut columns = group.columns().iter();
        let column = columns.find(|column| column.column_path().parts() == [name])?;
        let text = usize::try_from(column.unencoded_byte_array_data_bytes()?).ok()?;
        Some(text.div_ceil(usize::try_from(group.num_rows()).ok()?))
    });
    let longest = averages.try_fold(0, |longest, bytes| Some(longest.max(bytes?)))?;
    Some(LONGER * longest + VIEW_BYTES)
}

/// Bytes of each value of a type, if all have the same number.
fn fixed_bytes(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean | DataType::Null => Some(1),
        DataType::FixedSizeBinary(bytes) => usize::try_from(*bytes).ok(),
        other => other.primitive_width(),
    }
}

/// Bytes of what each expression makes of columns with these bytes; `None` if one is not known.
fn made<'a>(
    exprs: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>,
    columns: &[usize],
    schema: &Schema,
) -> Option<Vec<usize>> {
    let column = |index: usize| columns.get(index).copied();
    exprs
        .into_iter()
        .map(|expr| value_bytes(expr, &column, schema))
        .collect()
}

/// Bytes of the value of an expression and of all values on the way to it.
fn value_bytes(
    expr: &Arc<dyn PhysicalExpr>,
    column: &impl Fn(usize) -> Option<usize>,
    schema: &Schema,
) -> Option<usize> {
    if let Some(read) = expr.downcast_ref::<Column>() {
        return column(read.index());
    }
    if let Some(constant) = expr.downcast_ref::<Literal>() {
        let value = constant.value();
        return Some(fixed_bytes(&value.data_type()).unwrap_or(value.size()));
    }
    let parts = expr
        .children()
        .into_iter()
        .map(|part| value_bytes(part, column, schema));
    let parts = parts.sum::<Option<usize>>()?;
    let own = match fixed_bytes(&expr.data_type(schema).ok()?) {
        Some(bytes) => bytes,
        None if expr.is::<CastExpr>() => parts + PRINTED_BYTES,
        None => {
            let binary = expr.downcast_ref::<BinaryExpr>()?;
            (*binary.op() == Operator::StringConcat).then_some(parts)?
        }
    };
    Some(parts + own)
}
