//! Rows of Parquet files by number: scans that number rows, and scans that fetch rows by their numbers.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, ParquetRowSelection};
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::functions::core::{file_row_index, input_file_name};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;

use super::files::CHANGED;
use crate::exec::file_scan;

/// Number of bits of a row's index in its file. A row's number has the index of its file in the bits above.
const ROW_BITS: u32 = 40;

/// A whole file, with its number of rows.
#[derive(Debug, Clone)]
struct NumberedFile {
    file: PartitionedFile,
    rows: usize,
    /// Byte ranges of the file that the scan reads. They do not overlap.
    ranges: Vec<Range<i64>>,
}

impl NumberedFile {
    /// Whether the scan reads bytes of this range already.
    fn reads_of(&self, range: &Range<i64>) -> bool {
        let overlaps = |other: &Range<i64>| range.start < other.end && other.start < range.end;
        self.ranges.iter().any(overlaps)
    }
}

/// A plain scan of Parquet files, whose rows can be told apart by their file and their index there.
#[derive(Debug)]
pub(super) struct RowSource {
    config: FileScanConfig,
    files: Vec<NumberedFile>,
}

impl RowSource {
    /// The row source that `plan` is. `None` if it is no plain scan of Parquet files, or if the exact number of rows of a file is unknown.
    pub(super) fn of(plan: &dyn ExecutionPlan) -> Option<Self> {
        let config = file_scan(plan)?;
        let parquet: &dyn Any = config.file_source.as_ref();
        parquet.downcast_ref::<ParquetSource>()?;
        let projection = config.file_source.projection()?;
        if config.limit.is_some() || projection.iter().any(|column| is_volatile(&column.expr)) {
            return None;
        }
        let mut files: Vec<NumberedFile> = Vec::new();
        let mut indices = HashMap::new();
        for file in config.file_groups.iter().flat_map(FileGroup::iter) {
            let is_selected = file.extension::<ParquetAccessPlan>().is_some()
                || file.extension::<ParquetRowSelection>().is_some();
            let Precision::Exact(rows) = file.statistics.as_ref()?.num_rows else {
                return None;
            };
            if is_selected || rows >> ROW_BITS > 0 {
                return None;
            }
            // A large file is read in several ranges. A file that is listed twice is not accepted: numbers would not tell its rows apart.
            let range = file
                .range
                .as_ref()
                .map_or(0..i64::MAX, |range| range.start..range.end);
            let index = *indices.entry(file.path().clone()).or_insert(files.len());
            match files.get_mut(index) {
                Some(other) if other.file.partition_values != file.partition_values => return None,
                Some(other) if other.reads_of(&range) => return None,
                Some(other) => other.ranges.push(range),
                None => {
                    let mut file = file.clone();
                    file.range = None;
                    let ranges = vec![range];
                    files.push(NumberedFile { file, rows, ranges });
                }
            }
        }
        let config = config.clone();
        (!files.is_empty() && files.len() < 1 << (63 - ROW_BITS)).then_some(Self { config, files })
    }

    /// Number of rows of all files.
    pub(super) fn rows(&self) -> usize {
        self.files.iter().map(|file| file.rows).sum()
    }

    /// A scan of some columns, with row number columns behind them: the row's index in its file and, if there are several files, the
    /// index of the file.
    ///
    /// # Errors
    /// DataFusion's; an internal error if the source does not take the projection.
    pub(super) fn numbered(&self, schema: &Schema, columns: &[usize]) -> Result<Arc<dyn ExecutionPlan>> {
        let source = self.projected(self.config.file_source.as_ref(), schema, columns)?;
        let builder = FileScanConfigBuilder::from(self.config.clone()).with_source(source);
        Ok(DataSourceExec::from_data_source(builder.build()))
    }

    /// A scan of the rows of these ascending numbers, in up to `threads` partitions, with all columns and the row number columns of
    /// [`Self::numbered`].
    ///
    /// # Errors
    /// As for [`Self::numbered`].
    pub(super) fn fetching(
        &self,
        schema: &Schema,
        numbers: &[u64],
        threads: usize,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let parquet: &dyn Any = self.config.file_source.as_ref();
        let Some(parquet) = parquet.downcast_ref::<ParquetSource>() else {
            return internal_err!("rows of other files than Parquet");
        };
        // The rows are known already, so the predicate that was to find them is removed.
        let all = parquet.with_predicate(lit(true));
        let columns: Vec<usize> = (0..schema.fields().len()).collect();
        let source = self.projected(&all, schema, &columns)?;
        let each = numbers.len().div_ceil(threads.max(1)).max(1);
        let groups = numbers.chunks(each).map(|numbers| {
            let rows = numbers.iter().map(|number| {
                let row = (number & ((1 << ROW_BITS) - 1)) as usize;
                ((number >> ROW_BITS) as usize, row..row + 1)
            });
            self.selected(&rows.collect::<Vec<_>>())
        });
        self.of_groups(source, groups.collect::<Result<_>>()?)
    }

    /// The scan itself, of the rows in these ascending ranges of positions among all rows only, in up to `threads` partitions.
    ///
    /// # Errors
    /// As for [`Self::numbered`].
    pub(super) fn of_positions(
        &self,
        ranges: &[Range<u64>],
        threads: usize,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let rows: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let each = rows.div_ceil(threads.max(1) as u64).max(1);
        let (mut groups, mut group, mut free) = (Vec::new(), Vec::new(), each);
        for (index, (first, file)) in self.positioned().enumerate() {
            let own = first..first + file.rows as u64;
            let next = ranges.partition_point(|range| range.end <= own.start);
            for range in ranges[next..].iter().take_while(|range| range.start < own.end) {
                let (mut start, end) = (range.start.max(own.start), range.end.min(own.end));
                while start < end {
                    let part = start..end.min(start + free);
                    free -= part.end - part.start;
                    start = part.end;
                    group.push((index, (part.start - first) as usize..(part.end - first) as usize));
                    if free == 0 {
                        groups.push(std::mem::take(&mut group));
                        free = each;
                    }
                }
            }
        }
        groups.push(group);
        let groups = groups.iter().filter(|group| !group.is_empty());
        let groups = groups.map(|group| self.selected(group)).collect::<Result<_>>()?;
        self.of_groups(Arc::clone(&self.config.file_source), groups)
    }

    /// The files, each with the position of its first row among all rows.
    fn positioned(&self) -> impl Iterator<Item = (u64, &NumberedFile)> {
        self.files.iter().scan(0, |next, file| {
            let first = *next;
            *next += file.rows as u64;
            Some((first, file))
        })
    }

    /// The files that are read, each with the position of its first row among all rows.
    pub(super) fn files(&self) -> impl Iterator<Item = (u64, &PartitionedFile)> {
        self.positioned().map(|(first, file)| (first, &file.file))
    }

    /// The name in the files of the column that `argument` is in the scan's output. `None` if it is computed, or rows are filtered.
    pub(super) fn plain_column(&self, argument: &Arc<dyn PhysicalExpr>) -> Option<String> {
        let source = &self.config.file_source;
        let projected = source
            .projection()?
            .iter()
            .nth(argument.downcast_ref::<Column>()?.index())?;
        let column = projected.expr.downcast_ref::<Column>()?;
        let is_in_files = self.config.file_schema().index_of(column.name()).is_ok();
        (source.filter().is_none() && is_in_files).then(|| column.name().to_owned())
    }

    /// The scan's configuration.
    pub(super) fn config(&self) -> &FileScanConfig {
        &self.config
    }

    /// A scan of these files by `source`, one partition for each group.
    fn of_groups(
        &self,
        source: Arc<dyn FileSource>,
        groups: Vec<FileGroup>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let builder = FileScanConfigBuilder::from(self.config.clone())
            .with_source(source)
            .with_output_partitioning(None)
            .with_file_groups(groups);
        Ok(DataSourceExec::from_data_source(builder.build()))
    }

    /// A file source that reads these columns, with row number columns behind them.
    fn projected(
        &self,
        source: &dyn FileSource,
        schema: &Schema,
        columns: &[usize],
    ) -> Result<Arc<dyn FileSource>> {
        let column = |index: &usize| {
            let name = schema.field(*index).name();
            ProjectionExpr::new(Arc::new(Column::new(name, *index)), name)
        };
        let mut exprs: Vec<ProjectionExpr> = columns.iter().map(column).collect();
        let free = |mut name: String| {
            while schema.index_of(&name).is_ok() {
                name.push('_');
            }
            name
        };
        let call = |name: &str, function: Arc<ScalarUDF>, args, data_type| -> Arc<dyn PhysicalExpr> {
            let field = Arc::new(Field::new(name, data_type, true));
            let options = Arc::new(ConfigOptions::default());
            Arc::new(ScalarFunctionExpr::new(name, function, args, field, options))
        };
        let row = call("file_row_index", file_row_index(), Vec::new(), DataType::Int64);
        exprs.push(ProjectionExpr::new(row, free("file_row_index".to_owned())));
        if self.files.len() > 1 {
            let paths = self.files.iter().map(|file| file.file.path().to_string());
            let numbers = Arc::new(ScalarUDF::from(FileNumber::new(paths.collect())));
            let name = call("input_file_name", input_file_name(), Vec::new(), DataType::Utf8);
            let number = call("file_number", numbers, vec![name], DataType::Int32);
            exprs.push(ProjectionExpr::new(number, free("file_number".to_owned())));
        }
        match source.try_pushdown_projection(&ProjectionExprs::new(exprs))? {
            Some(source) => Ok(source),
            None => internal_err!("a Parquet source does not take a projection"),
        }
    }

    /// The numbers of a batch's rows, whose row number columns start at index `from`.
    ///
    /// # Errors
    /// An internal error if they are missing.
    pub(super) fn numbers(&self, batch: &RecordBatch, from: usize) -> Result<Vec<u64>> {
        let columns = &batch.columns()[from..];
        let (Some(rows), true) = (
            columns.first(),
            columns.iter().all(|column| column.null_count() == 0),
        ) else {
            return internal_err!("rows without a number");
        };
        let rows = rows.as_primitive::<Int64Type>().values().iter();
        Ok(match columns.get(1) {
            Some(files) => {
                let files = files.as_primitive::<Int32Type>().values().iter();
                rows.zip(files)
                    .map(|(row, file)| (*file as u64) << ROW_BITS | *row as u64)
                    .collect()
            }
            None => rows.map(|row| *row as u64).collect(),
        })
    }

    /// The files of these rows, each with a selection of its rows: ascending pairs of a file's index and a range of its rows.
    fn selected(&self, rows: &[(usize, Range<usize>)]) -> Result<FileGroup> {
        let mut files = Vec::new();
        for own in rows.chunk_by(|a, b| a.0 == b.0) {
            let index = own.first().map_or(0, |(index, _)| *index);
            let Some(NumberedFile { file, rows, .. }) = self.files.get(index) else {
                return internal_err!("file {index} of {}", self.files.len());
            };
            let (mut selectors, mut at): (Vec<RowSelector>, usize) = (Vec::new(), 0);
            for (_, range) in own {
                let (row, count) = (range.start, range.len());
                if row < at || range.end > *rows {
                    return exec_err!("row {row} of {}, which had {rows} rows: {CHANGED}", file.path());
                }
                match selectors.last_mut() {
                    Some(last) if row == at && !last.skip => last.row_count += count,
                    _ => {
                        selectors.push(RowSelector::skip(row - at));
                        selectors.push(RowSelector::select(count));
                    }
                }
                at = range.end;
            }
            selectors.push(RowSelector::skip(rows - at));
            let selection = ParquetRowSelection::new(RowSelection::from(selectors));
            files.push(file.clone().with_extension(selection));
        }
        Ok(FileGroup::new(files))
    }
}

/// A function that gives the index of a file in the scan, by its path.
#[derive(Debug, PartialEq, Eq, Hash)]
struct FileNumber {
    paths: Vec<String>,
    signature: Signature,
}

impl FileNumber {
    fn new(paths: Vec<String>) -> Self {
        Self {
            paths,
            signature: Signature::exact(vec![DataType::Utf8], Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for FileNumber {
    fn name(&self) -> &str {
        "file_number"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _args: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int32)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [ColumnarValue::Scalar(ScalarValue::Utf8(Some(path)))] = args.args.as_slice() else {
            return internal_err!("a file is numbered by one path");
        };
        match self.paths.iter().position(|other| other == path) {
            Some(number) => Ok(ColumnarValue::Scalar(ScalarValue::Int32(Some(number as i32)))),
            None => internal_err!("{path} is none of the {} files of the scan", self.paths.len()),
        }
    }
}
