//! Late fetching: columns that no row is ordered by are read only for the rows of the answer.

use std::sync::Arc;

use datafusion::arrow::array::Array;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::compute::kernels::cmp::not_distinct;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result, exec_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, TryStreamExt};

use super::super::files::CHANGED;
use super::super::operator::comma_separated;
use super::super::row_source::RowSource;
use super::scan::reserve;
use super::store::RowStore;
use super::{SortLimitExec, SortLimitWork};
use crate::exec::operator::{Execution, Operator, Work};
use crate::kernel::cpu::columns::row_bytes;
use crate::threads::partitions_in_order;

/// Fetches all columns of the rows that its input names. The input has the columns that rows are ordered by, and the position of each
/// row in the files.
///
/// ```text
/// LateFetchExec: columns=[id, text]
///   SortLimitExec: k=100, by=[fare DESC]
///     DataSourceExec: projection=[fare, file_row_index]
/// ```
/// Reads the files once more, but only pages with rows of the answer. The columns that rows are ordered by are read again with them. If
/// these differ from the first read, the files have changed, and the query ends with an error.
///
/// Metrics: `output_rows`, `elapsed_compute`, `fetched_rows`.
pub type LateFetchExec = Operator<LateFetchWork>;

/// Work of a [`LateFetchExec`]: the files, and the columns that its input has already.
#[derive(Debug)]
pub struct LateFetchWork {
    rows: Arc<RowSource>,
    /// Indices of the columns that the input has, in its order.
    early: Arc<[usize]>,
    k: usize,
    /// Properties of the operator that reads all columns at once.
    properties: Arc<PlanProperties>,
}

/// Rows that a page of a column is assumed to have.
const PAGE_ROWS: f64 = 20_000.0;
/// Cost of numbering a row, as bytes of a column that could be read in the same time.
const NUMBER_BYTES: f64 = 4.0;

/// Whether late fetching is faster: `k` of `rows` rows are found by columns of `early` bytes a row, and only for these `k` rows the other
/// columns, of `late` bytes a row, are read.
///
/// Each of the `k` rows takes the reading of one page of every column, those of `early` bytes too, as long as there are many more pages
/// than such rows.
fn pays(k: usize, rows: usize, early: usize, late: usize) -> bool {
    let share = (k as f64 * PAGE_ROWS / rows.max(1) as f64).min(1.0);
    late as f64 * (1.0 - share) > early as f64 * share + NUMBER_BYTES
}

/// Approximate bytes of a value.
fn bytes_of(data_type: &DataType) -> usize {
    match data_type {
        DataType::Boolean => 1,
        DataType::Dictionary(..) => 4,
        DataType::FixedSizeBinary(size) => *size as usize,
        other => other.primitive_width().unwrap_or(24),
    }
}

impl LateFetchExec {
    /// An operator that replaces `top`, if that reads plain Parquet files and late fetching is faster.
    ///
    /// # Errors
    /// DataFusion's.
    pub(crate) fn try_over(top: &SortLimitExec) -> Result<Option<Self>> {
        let SortLimitWork { plan, filter, .. } = top.work();
        let by = &plan.by;
        let Some(rows) = RowSource::of(top.input().as_ref()) else {
            return Ok(None);
        };
        let schema = top.input().schema();
        let mut early: Vec<usize> = by.iter().flat_map(|by| indices(&by.expr)).collect();
        early.sort_unstable();
        early.dedup();
        let bytes = |column: usize| bytes_of(schema.field(column).data_type());
        let all: usize = (0..schema.fields().len()).map(bytes).sum();
        let of_early: usize = early.iter().map(|column| bytes(*column)).sum();
        if early.is_empty()
            || by.iter().any(|by| is_volatile(&by.expr))
            || !pays(plan.k, rows.rows(), of_early, all - of_early)
        {
            return Ok(None);
        }
        let numbered = rows.numbered(&schema, &early)?;
        let moved = by.iter().map(|by| {
            let expr = moved(&by.expr, &early)?;
            Ok(PhysicalSortExpr::new(expr, by.options))
        });
        let Some(moved) = LexOrdering::new(moved.collect::<Result<Vec<_>>>()?) else {
            return internal_err!("an order by nothing");
        };
        let Some(found) = SortLimitExec::try_new(numbered, moved, plan.k, filter.clone())? else {
            return Ok(None);
        };
        let work = LateFetchWork {
            rows: Arc::new(rows),
            early: early.into(),
            k: plan.k,
            properties: Arc::clone(top.properties()),
        };
        Self::over(work, vec![Arc::new(found)]).map(Some)
    }
}

/// Indices of the columns that an expression reads.
fn indices(expr: &Arc<dyn PhysicalExpr>) -> Vec<usize> {
    collect_columns(expr).iter().map(Column::index).collect()
}

/// The expression over an input that has only these columns, in this order.
fn moved(expr: &Arc<dyn PhysicalExpr>, columns: &[usize]) -> Result<Arc<dyn PhysicalExpr>> {
    let moved = Arc::clone(expr).transform_up(|node| {
        let Some(column) = node.downcast_ref::<Column>() else {
            return Ok(Transformed::no(node));
        };
        match columns.iter().position(|index| *index == column.index()) {
            Some(index) => Ok(Transformed::yes(Arc::new(Column::new(column.name(), index)) as _)),
            None => internal_err!("column {} is fetched late", column.name()),
        }
    })?;
    Ok(moved.data)
}

/// One execution of the operator.
struct LateFetch {
    rows: Arc<RowSource>,
    early: Arc<[usize]>,
    k: usize,
    schema: SchemaRef,
    memory: MemoryReservation,
    fetched: Count,
    context: Arc<TaskContext>,
}

/// All rows of the answer, and their numbers in the order of the answer.
struct FetchedRows {
    found: RecordBatch,
    store: RowStore,
    numbers: Vec<u64>,
    fetch: LateFetch,
}

impl LateFetch {
    /// Fetches the rows that `found` names, in this order.
    async fn fetch(self, mut found: SendableRecordBatchStream) -> Result<FetchedRows> {
        let (schema, mut batches, mut held) = (found.schema(), Vec::new(), 0);
        while let Some(batch) = found.next().await {
            let batch = batch?;
            held += 2 * batch.get_array_memory_size();
            reserve(&self.memory, held, self.k)?;
            batches.push(batch);
        }
        drop(found);
        let found = concat_batches(&schema, &batches)?;
        drop(batches);
        let wanted = self.rows.numbers(&found, self.early.len())?;
        let mut sorted = wanted.clone();
        sorted.sort_unstable();
        let mut store = RowStore::new(Arc::clone(&self.schema));
        // Pairs of a row's number in the files and its number in the store.
        let mut stored = Vec::with_capacity(sorted.len());
        if !sorted.is_empty() {
            let (read, memory) = self.read(&sorted).await?;
            for batch in read.into_iter().flatten() {
                memory.shrink(batch_bytes(&batch));
                let columns: Vec<usize> = (0..self.schema.fields().len()).collect();
                let first = store.next();
                let numbers = self.rows.numbers(&batch, columns.len())?;
                stored.extend(numbers.into_iter().zip(first..));
                let columns = batch.project(&columns)?.columns().to_vec();
                store.add(RecordBatch::try_new(Arc::clone(&self.schema), columns)?);
                reserve(&self.memory, held + store.bytes(), self.k)?;
            }
        }
        self.fetched.add(stored.len());
        stored.sort_unstable();
        if !stored.iter().map(|(number, _)| number).eq(&sorted) {
            return exec_err!("{} rows found, {} fetched: {CHANGED}", sorted.len(), stored.len());
        }
        let in_store = |number: &u64| match stored.binary_search_by_key(number, |(number, _)| *number) {
            Ok(at) => Ok(stored[at].1),
            Err(_) => internal_err!("row {number} was not fetched"),
        };
        let numbers = wanted.iter().map(in_store).collect::<Result<_>>()?;
        Ok(FetchedRows {
            found,
            store,
            numbers,
            fetch: self,
        })
    }

    /// Reads the rows of these ascending numbers: the batches of each partition of the scan, and the reservation of their bytes.
    async fn read(&self, numbers: &[u64]) -> Result<(Vec<Vec<RecordBatch>>, Arc<MemoryReservation>)> {
        let memory = Arc::new(self.memory.new_empty());
        let threads = self.context.session_config().target_partitions();
        let scan = self.rows.fetching(&self.schema, numbers, threads)?;
        let partitions = 0..scan.output_partitioning().partition_count();
        let reads = partitions.map(|partition| {
            let stream = scan.execute(partition, Arc::clone(&self.context))?;
            let (memory, k) = (Arc::clone(&memory), self.k);
            let reserved = stream.map(move |batch| {
                let batch = batch?;
                let bytes = batch_bytes(&batch);
                memory.try_grow(bytes).map_err(|error| {
                    error.context(format!(
                        "the first {k} rows: {bytes} more bytes wanted for those that are fetched"
                    ))
                })?;
                Ok(batch)
            });
            Ok(reserved.try_collect::<Vec<_>>())
        });
        let batches = partitions_in_order(reads.collect::<Result<_>>()?).await?;
        Ok((batches, memory))
    }
}

/// Bytes of the rows of a batch.
fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(row_bytes).sum()
}

impl FetchedRows {
    /// A batch of `rows` rows of the answer, from index `from` on.
    fn batch(&self, from: usize, rows: usize) -> Result<RecordBatch> {
        let batch = self.store.gather(&self.numbers[from..from + rows])?;
        for (found, column) in self.fetch.early.iter().enumerate() {
            let (then, now) = (self.found.column(found).slice(from, rows), batch.column(*column));
            let same = not_distinct(&then, now)?;
            if same.true_count() < rows {
                let name = self.fetch.schema.field(*column).name();
                return exec_err!("{name} of a row is not what it was: {CHANGED}");
            }
        }
        Ok(batch)
    }
}

impl Work for LateFetchWork {
    fn name(&self) -> &'static str {
        "LateFetchExec"
    }

    fn properties(&self, _inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        Ok(Arc::clone(&self.properties))
    }

    fn details(&self) -> String {
        let late = self.properties.eq_properties.schema().fields().iter().enumerate();
        let late = late.filter(|(index, _)| !self.early.contains(index));
        format!(
            "columns=[{}]",
            comma_separated(late.map(|(_, field)| field.name()))
        )
    }

    fn wants_partitions(&self) -> bool {
        true
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let found = on.input()?;
        let batch_rows = on.context.session_config().batch_size().max(1);
        let fetch = LateFetch {
            rows: Arc::clone(&self.rows),
            early: Arc::clone(&self.early),
            k: self.k,
            schema: on.schema(),
            memory: on.memory(),
            fetched: on.counter("fetched_rows"),
            context: Arc::clone(&on.context),
        };
        let baseline = BaselineMetrics::new(on.metrics, on.partition);
        let batches = async move {
            let fetched = fetch.fetch(found).await?;
            let len = fetched.numbers.len();
            let batches = (0..len).step_by(batch_rows).map(move |from| {
                let _timer = baseline.elapsed_compute().timer();
                fetched
                    .batch(from, batch_rows.min(len - from))
                    .record_output(&baseline)
            });
            Ok::<_, DataFusionError>(futures::stream::iter(batches))
        };
        let batches = futures::stream::once(batches).try_flatten();
        let stream = RecordBatchStreamAdapter::new(on.schema(), batches);
        Ok(make_cooperative(Box::pin(stream)))
    }
}

#[cfg(test)]
mod tests {
    use super::pays;

    #[test]
    fn few_rows_of_wide_tables_are_fetched_late() {
        assert!(pays(100, 30_000_000, 8, 8));
        assert!(!pays(1000, 30_000_000, 8, 8));
        assert!(pays(1000, 30_000_000, 8, 80));
        assert!(!pays(100, 30_000_000, 8, 4));
        assert!(!pays(10_000, 30_000_000, 8, 800));
        assert!(!pays(1, 100, 8, 800));
        assert!(!pays(1, 0, 8, 800));
    }
}
