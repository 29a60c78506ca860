//! The rows of one partition, with quantiles of their frames as further columns.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, new_empty_array};
use datafusion::arrow::compute::{SortColumn, SortOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::utils::evaluate_partition_ranges;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::WindowFrameUnits;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::metrics::BaselineMetrics;
use futures::TryStreamExt;

use super::frames::FramedRows;
use crate::exec::operator::Execution;
use crate::exec::plain::lean;
use crate::exec::replaced_window::joined;
use crate::functions::{MovingCall, answers_of_frames};
use crate::kernel::cpu::columns::row_bytes;
use crate::threads::{Stop, ThreadPool};

/// New rows for each thread after which frames are answered.
const STEP_ROWS: usize = 1 << 15;

/// New rows after which frames are answered, as a multiple of the rows that are held: those are ranked again with each step.
const HELD_FACTOR: usize = 3;

/// Least frames of a chunk: fewer would be ranked in less time than it takes to hand them to a thread.
const CHUNK_FRAMES: usize = 1 << 12;

/// Bytes of working memory for each row of a call: its key and position while rows are ranked.
const ROW_BYTES: usize = 48;

/// Bytes of one quantile of a row: its key, and the value made of it.
const QUANTILE_BYTES: usize = 32;

/// Times that the bytes of columns are held: as they came, and joined with those before.
const COLUMN_FACTOR: usize = 2;

/// The rows of one partition, with the answers of all calls.
pub(super) struct MovingRows {
    calls: Arc<[MovingCall]>,
    /// The columns that frames need of each row: of `PARTITION BY`, of `ORDER BY` unless frames are of `ROWS`, and the arguments of calls.
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    /// Number of columns of `PARTITION BY`.
    partition_columns: usize,
    /// How the columns of `ORDER BY` are sorted.
    order_options: Vec<SortOptions>,
    schema: SchemaRef,
    /// Rows still to be read; `None` at the end.
    input: Option<SendableRecordBatchStream>,
    /// For each column: the values of rows that frames may still need, and those that are new.
    columns: Vec<Vec<ArrayRef>>,
    /// Rows that frames may still need, the new ones left out.
    held: usize,
    /// Rows that are new.
    new: usize,
    /// The first row without answers, among those of `columns`.
    next: usize,
    /// Rows that are not returned yet.
    batches: VecDeque<RecordBatch>,
    /// The answers of each call for the first rows of `batches`.
    answers: Vec<ArrayRef>,
    pool: ThreadPool,
    memory: MemoryReservation,
    baseline: BaselineMetrics,
}

impl MovingRows {
    /// The rows of the input of `on`. All calls are over the same `PARTITION BY` and `ORDER BY`, those of `window`.
    pub(super) fn new(
        window: &dyn WindowExpr,
        calls: Arc<[MovingCall]>,
        on: &Execution<'_>,
        threads: usize,
        baseline: BaselineMetrics,
    ) -> Result<Self> {
        let mut exprs = window.partition_by().to_vec();
        let partition_columns = exprs.len();
        // Frames of ROWS are counted.
        let is_ordered = calls
            .iter()
            .any(|call| call.frame.units != WindowFrameUnits::Rows);
        let order_by = if is_ordered { window.order_by() } else { &[] };
        exprs.extend(order_by.iter().map(|order| Arc::clone(&order.expr)));
        exprs.extend(calls.iter().map(|call| Arc::clone(&call.argument)));
        let schema = on.schema();
        let answers = &schema.fields()[schema.fields().len() - calls.len()..];
        Ok(Self {
            columns: vec![Vec::new(); exprs.len()],
            answers: answers
                .iter()
                .map(|field| new_empty_array(field.data_type()))
                .collect(),
            calls,
            exprs,
            partition_columns,
            order_options: order_by.iter().map(|order| order.options).collect(),
            schema,
            input: Some(on.input()?),
            held: 0,
            new: 0,
            next: 0,
            batches: VecDeque::new(),
            pool: ThreadPool::new(threads, Stop::default()),
            memory: on.memory(),
            baseline,
        })
    }

    /// The next rows; `None` at the end.
    ///
    /// # Errors
    /// The input's, those of frames, or `ResourcesExhausted`.
    pub(super) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.answered()? {
                return Ok(Some(batch));
            }
            let Some(input) = &mut self.input else {
                return Ok(None);
            };
            match input.try_next().await? {
                Some(batch) if batch.num_rows() > 0 => {
                    self.push(batch)?;
                    let is_enough =
                        self.new >= (HELD_FACTOR * self.held).max(STEP_ROWS * self.pool.threads());
                    if is_enough {
                        self.step(false).await?;
                    }
                }
                Some(_) => (),
                None => {
                    self.input = None;
                    self.step(true).await?;
                }
            }
        }
    }

    /// The first batch, once all of its rows have answers.
    fn answered(&mut self) -> Result<Option<RecordBatch>> {
        let (Some(batch), Some(answers)) = (self.batches.front(), self.answers.first()) else {
            return Ok(None);
        };
        let rows = batch.num_rows();
        if answers.len() < rows {
            return Ok(None);
        }
        let mut columns = batch.columns().to_vec();
        for answers in &mut self.answers {
            // A slice would count, and keep, the memory of all answers.
            columns.push(lean(&answers.slice(0, rows))?);
            *answers = answers.slice(rows, answers.len() - rows);
        }
        self.batches.pop_front();
        Ok(Some(RecordBatch::try_new(Arc::clone(&self.schema), columns)?))
    }

    fn push(&mut self, batch: RecordBatch) -> Result<()> {
        for (expr, column) in self.exprs.iter().zip(&mut self.columns) {
            column.push(expr.evaluate(&batch)?.into_array(batch.num_rows())?);
        }
        self.new += batch.num_rows();
        self.batches.push_back(batch);
        self.reserve()
    }

    /// Answers the frames that are complete, and lets go of rows that no frame needs any more.
    async fn step(&mut self, is_end: bool) -> Result<()> {
        let compute = self.baseline.elapsed_compute().clone();
        let timer = compute.timer();
        self.held += std::mem::take(&mut self.new);
        if self.held == 0 {
            return Ok(());
        }
        let columns = self.columns.iter().map(|column| joined(column));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let frames = Arc::new(self.complete_frames(&columns, is_end)?);
        let mut answers: Vec<Vec<ArrayRef>> = self
            .answers
            .iter()
            .map(|before| vec![Arc::clone(before)])
            .collect();
        for (call, chunk) in self.answer(&columns, &frames).await? {
            answers[call].push(chunk);
        }
        self.answers = answers
            .iter()
            .map(|answers| joined(answers))
            .collect::<Result<_>>()?;
        // Frames begin nowhere before those of the last row with an answer.
        let keep = frames
            .iter()
            .filter_map(|frames| frames.last().map(|frame| frame.start));
        let keep = keep.min().unwrap_or(0).min(self.next + frames[0].len());
        self.next = self.next + frames[0].len() - keep;
        self.held -= keep;
        let kept = columns.iter().map(|column| {
            // Joined views keep the bytes of all rows before.
            Ok(vec![lean(&column.slice(keep, self.held))?])
        });
        self.columns = kept.collect::<Result<_>>()?;
        timer.done();
        Ok(())
    }

    /// For each call the frames of the next rows, of as many as are complete for all calls.
    fn complete_frames(&self, columns: &[ArrayRef], is_end: bool) -> Result<Vec<Vec<Range<usize>>>> {
        let options = std::iter::repeat_n(None, self.partition_columns)
            .chain(self.order_options.iter().copied().map(Some));
        let sorted: Vec<SortColumn> = columns
            .iter()
            .zip(options)
            .map(|(values, options)| SortColumn {
                values: Arc::clone(values),
                options,
            })
            .collect();
        let (partition, order) = sorted.split_at(self.partition_columns);
        let groups = evaluate_partition_ranges(self.held, partition)?;
        let rows = FramedRows {
            order,
            groups: &groups,
            is_last_ended: is_end,
        };
        let frames = self.calls.iter().map(|call| rows.frames(&call.frame, self.next));
        let mut frames = frames.collect::<Result<Vec<_>>>()?;
        let complete = frames.iter().map(Vec::len).min().unwrap_or(0);
        frames.iter_mut().for_each(|frames| frames.truncate(complete));
        Ok(frames)
    }

    /// The answers over the frames, in chunks, each with the number of its call.
    async fn answer(
        &mut self,
        columns: &[ArrayRef],
        frames: &Arc<Vec<Vec<Range<usize>>>>,
    ) -> Result<Vec<(usize, ArrayRef)>> {
        let (mut chunks, threads) = (Vec::new(), self.pool.threads());
        let values = &columns[columns.len() - self.calls.len()..];
        for (call, (frames, values)) in frames.iter().zip(values).enumerate() {
            let length = chunk_frames(frames, threads);
            for first in (0..frames.len()).step_by(length) {
                let of_chunk = first..frames.len().min(first + length);
                let (start, end) = (frames[first].start, frames[of_chunk.end - 1].end);
                chunks.push((call, of_chunk, start, values.slice(start, end - start)));
            }
        }
        let (calls, frames) = (Arc::clone(&self.calls), Arc::clone(frames));
        let answered = self
            .pool
            .map(chunks, move |(call, of_chunk, start, values), stop| {
                let frames = frames[call][of_chunk].iter();
                let frames = frames.map(|frame| frame.start - start..frame.end - start);
                Ok((
                    call,
                    answers_of_frames(&calls[call].column, &values, frames, stop)?,
                ))
            });
        answered.await
    }

    /// Reserves the memory of all rows.
    fn reserve(&self) -> Result<()> {
        let columns = self.columns.iter().flatten().map(row_bytes).sum::<usize>();
        let batches = self
            .batches
            .iter()
            .flat_map(|batch| batch.columns())
            .map(row_bytes);
        let answers = self.calls.iter().map(|call| {
            let quantiles = call.column.quantile_spec().quantiles.len();
            ROW_BYTES + quantiles * QUANTILE_BYTES
        });
        let rows = (self.held + self.new) * answers.sum::<usize>();
        let bytes = COLUMN_FACTOR * columns + batches.sum::<usize>() + rows;
        self.memory.try_resize(bytes).map_err(|error| {
            error.context(format!(
                "the rows of moving frames, and their answers: {bytes} bytes wanted; narrower frames need fewer rows"
            ))
        })
    }
}

/// How many frames are answered at a time: few enough that all threads have work and that what is ranked fits the caches, and enough that
/// most rows are ranked once.
fn chunk_frames(frames: &[Range<usize>], threads: usize) -> usize {
    let rows: usize = frames.iter().map(ExactSizeIterator::len).sum();
    let mean = rows / frames.len().max(1);
    let share = frames.len().div_ceil(threads).max(mean / 4);
    (4 * mean).min(share).max(CHUNK_FRAMES)
}
