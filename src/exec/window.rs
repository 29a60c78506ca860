//! DataFusion's window functions, evaluated group by group of `PARTITION BY`, with reserved memory.
//!
//! ```text
//! sorted batches ─┬─ rows of groups that begin and end in the batch ─ evaluated group by group ──┬─> batches
//!                 └─ rows of the batch's last group ─ held and reserved until it ends ────────────┘
//! ```
//! DataFusion's `WindowAggExec` holds its whole input, a copy of it, all answers and a small array for each group. It reserves none of
//! that. Its input is sorted by `PARTITION BY`, so one group at a time is enough. Without `PARTITION BY`, all rows are one group.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::{SortColumn, concat, concat_batches};
use datafusion::common::Result;
use datafusion::common::utils::evaluate_partition_ranges;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::{OrderingRequirements, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{Distribution, ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt};

use super::long_batches::OutputRows;
use super::operator::{Execution, Operator, Work};
use super::plain::lean;
use super::replaced_window::{ReplacedWindow, joined};
use crate::kernel::cpu::columns::row_bytes;

/// Bytes that evaluating a group takes besides its answers, as a multiple of the bytes of its rows: the rows, a copy that joins their
/// batches, and the state of an accumulator.
const GROUP_FACTOR: usize = 3;

/// Part of a partition's share of the memory limit, as a divisor, that is reserved before its input begins.
const FLOOR_PART: usize = 8;

/// A `WindowAggExec` that holds the rows of one group of `PARTITION BY` at a time, and reserves the memory for them. It fails with
/// `ResourcesExhausted` if the pool is too small. Its rows, their order and the answers are those of a `WindowAggExec`.
///
/// An eighth of the memory limit is reserved from the beginning, so that sorts below leave room for groups of that size.
///
/// It is planned if the memory pool has a limit. Metrics: `output_rows`, `elapsed_compute`.
pub type ReservingWindowExec = Operator<WindowWork>;

/// Work of a [`ReservingWindowExec`]: the window functions of the operator that it replaces.
#[derive(Debug)]
pub struct WindowWork {
    window: Arc<WindowAggExec>,
    replaced: ReplacedWindow,
}

impl ReservingWindowExec {
    /// An operator that replaces `window`.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn try_new(window: WindowAggExec) -> Result<Self> {
        let input = Arc::clone(window.input());
        let window = Arc::new(window);
        let exprs = window.window_expr().to_vec();
        let replaced = ReplacedWindow::new(Arc::clone(&window) as _, exprs);
        Self::over(WindowWork { window, replaced }, vec![input])
    }
}

impl Work for WindowWork {
    fn name(&self) -> &'static str {
        "ReservingWindowExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        self.replaced.properties(inputs)
    }

    fn details(&self) -> String {
        self.replaced.details()
    }

    fn tree_details(&self) -> String {
        self.replaced.tree_details()
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.replaced.expressions()
    }

    fn distribution(&self, _inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        self.replaced.distribution()
    }

    fn wanted_order(&self) -> Option<OrderingRequirements> {
        self.replaced.wanted_order()
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let baseline = BaselineMetrics::new(on.metrics, on.partition);
        let memory = on.memory();
        // Before its input begins: a sort merges as many of its files at a time as there is memory for, and would leave none.
        let floor = on.memory_share().unwrap_or(0) / FLOOR_PART;
        let floor = memory.try_grow(floor).map_or(0, |()| floor);
        let rows = WindowRows {
            keys: self.window.partition_by_sort_keys()?,
            input: Some(on.input()?),
            window: Arc::clone(&self.window),
            open: Vec::new(),
            last_keys: Vec::new(),
            open_bytes: 0,
            ready: VecDeque::new(),
            ready_bytes: 0,
            output_rows: OutputRows::of(&on.context),
            memory,
            floor,
            baseline: baseline.clone(),
        };
        let batches = futures::stream::try_unfold(rows, |mut rows| async move {
            Ok(rows.next().await?.map(|batch| (batch, rows)))
        });
        let batches = batches.map(move |batch| batch.record_output(&baseline));
        Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(
            on.schema(),
            batches,
        ))))
    }
}

/// The rows of one partition, with the answers as further columns.
struct WindowRows {
    window: Arc<WindowAggExec>,
    /// The sort keys of `PARTITION BY`.
    keys: Vec<PhysicalSortExpr>,
    /// Rows still to be read; `None` at the end.
    input: Option<SendableRecordBatchStream>,
    /// Rows of a group that may go on, and the keys of the last of them.
    open: Vec<RecordBatch>,
    last_keys: Vec<SortColumn>,
    open_bytes: usize,
    /// Rows with answers, still to be returned.
    ready: VecDeque<RecordBatch>,
    /// Bytes that `ready` holds.
    ready_bytes: usize,
    output_rows: OutputRows,
    memory: MemoryReservation,
    /// Bytes that stay reserved, whatever is held.
    floor: usize,
    baseline: BaselineMetrics,
}

impl WindowRows {
    /// The next rows; `None` at the end.
    ///
    /// # Errors
    /// The input's, a window function's, or `ResourcesExhausted`.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(batch));
            }
            let Some(input) = &mut self.input else {
                return Ok(None);
            };
            let batch = input.try_next().await?;
            let compute = self.baseline.elapsed_compute().clone();
            let _timer = compute.timer();
            self.ready_bytes = 0;
            match batch {
                Some(batch) if batch.num_rows() > 0 => self.push(&batch)?,
                Some(_) => (),
                None => {
                    // Frees the memory of the input before the last group is evaluated.
                    self.input = None;
                    self.end_group()?;
                }
            }
        }
    }

    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let keys = self.keys.iter().map(|key| key.evaluate_to_sort_column(batch));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let rows = batch.num_rows();
        let mut groups = evaluate_partition_ranges(rows, &keys)?;
        if self.goes_on(&keys)? {
            let first = groups.remove(0);
            self.hold(&slice(batch, &first))?;
        }
        let Some(last) = groups.pop() else {
            return Ok(());
        };
        self.end_group()?;
        if let Some(first) = groups.first() {
            let start = first.start;
            let groups: Vec<_> = groups.iter().map(|g| g.start - start..g.end - start).collect();
            self.finish(&slice(batch, &(start..last.start)), &groups)?;
        }
        self.last_keys = keys.iter().map(|key| row_of(key, rows - 1)).collect();
        self.hold(&slice(batch, &last))
    }

    /// Whether the first of further rows, with these keys, belongs to the open group.
    fn goes_on(&self, keys: &[SortColumn]) -> Result<bool> {
        if self.open.is_empty() {
            return Ok(false);
        }
        let both = self.last_keys.iter().zip(keys).map(|(last, key)| {
            let values = concat(&[last.values.as_ref(), row_of(key, 0).values.as_ref()])?;
            Ok(SortColumn {
                values,
                options: key.options,
            })
        });
        let both = both.collect::<Result<Vec<_>>>()?;
        Ok(evaluate_partition_ranges(2, &both)?.len() == 1)
    }

    /// Holds rows of a group that may go on. They are copied if they would keep much more memory alive than their own.
    fn hold(&mut self, rows: &RecordBatch) -> Result<()> {
        let columns = rows.columns().iter().map(lean).collect::<Result<Vec<_>>>()?;
        self.open_bytes += columns.iter().map(row_bytes).sum::<usize>();
        self.reserve()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        let rows = RecordBatch::try_new_with_options(rows.schema(), columns, &options)?;
        self.open.push(rows);
        Ok(())
    }

    /// Evaluates the open group, if there is one.
    fn end_group(&mut self) -> Result<()> {
        let open = std::mem::take(&mut self.open);
        let Some(first) = open.first() else {
            return Ok(());
        };
        let rows = match open.len() {
            1 => first.clone(),
            _ => concat_batches(&first.schema(), &open)?,
        };
        drop(open);
        let group = 0..rows.num_rows();
        self.finish(&rows, std::slice::from_ref(&group))?;
        // From here on, its rows are part of `ready`.
        self.ready_bytes += std::mem::take(&mut self.open_bytes);
        self.reserve()
    }

    /// Evaluates whole groups, which together are all of `rows`.
    fn finish(&mut self, rows: &RecordBatch, groups: &[Range<usize>]) -> Result<()> {
        let mut columns = rows.columns().to_vec();
        let window = Arc::clone(&self.window);
        for expr in window.window_expr() {
            let answers = groups.iter().map(|group| expr.evaluate(&slice(rows, group)));
            let answers = joined(&answers.collect::<Result<Vec<_>>>()?)?;
            self.ready_bytes += row_bytes(&answers);
            self.reserve()?;
            columns.push(answers);
        }
        let batch = RecordBatch::try_new(window.schema(), columns)?;
        self.ready.extend(self.output_rows.slices(batch));
        Ok(())
    }

    /// Reserves the memory of the open group and of `ready`.
    fn reserve(&self) -> Result<()> {
        let bytes = GROUP_FACTOR * self.open_bytes + self.ready_bytes;
        self.memory.try_resize(bytes.max(self.floor)).map_err(|error| {
            error.context(format!(
                "the rows of a window's group, and its answers: {bytes} bytes wanted; PARTITION BY more columns makes groups smaller"
            ))
        })
    }
}

fn slice(batch: &RecordBatch, rows: &Range<usize>) -> RecordBatch {
    batch.slice(rows.start, rows.len())
}

/// One row of a sort key.
fn row_of(key: &SortColumn, row: usize) -> SortColumn {
    SortColumn {
        values: key.values.slice(row, 1),
        options: key.options,
    }
}
