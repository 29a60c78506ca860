//! One execution of quantiles without groups: reads the streams of all partitions, and answers with one row.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::execution::SendableRecordBatchStream;

use super::aggregate::{Aggregates, KeyColumn, Output, QuantilesCall};
use super::collected::CollectedColumn;
#[cfg(feature = "cuda")]
use super::on_device::{self, OpenDevices, UploadChoice, is_for_device};
use super::plain::PlainAccumulators;
use super::reread::RereadableInput;
use super::round_memory::Columns;
use super::run_metrics::RunMetrics;
use super::scan::PartitionScan;
use super::selection::SelectionContext;
use super::while_reading::{ReadingColumn, WhileReadingContext};
use crate::failpoint::may_fail;
use crate::functions::gk::with_bounds;
use crate::functions::shape::{Fenced, bins_between, fences_array};
use crate::key::KeySpec;
use crate::quantile::{AnswerForm, AnswerSpec, TypedAnswerSpec};
use crate::select::Solution;
use crate::select::byte_strings::ByteStringSolution;
use crate::threads::partitions_in_order;

/// The order statistics of a column.
pub(super) enum Solved {
    Keys(Solution),
    Bytes(ByteStringSolution),
}

/// One execution of a [`QuantilesExec`](super::QuantilesExec).
pub(super) struct QuantilesExecution {
    pub(super) aggregates: Arc<Aggregates>,
    pub(super) schema: SchemaRef,
    pub(super) selection: SelectionContext,
    /// The input, if it may be read again.
    pub(super) input: Option<RereadableInput>,
    pub(super) metrics: RunMetrics,
    /// Devices that select the columns which a device can select; `None`: the CPU selects all.
    #[cfg(feature = "cuda")]
    pub(super) device: Option<UploadChoice>,
}

impl QuantilesExecution {
    /// Reads all partitions, then answers with one row.
    ///
    /// # Errors
    /// The first error of any partition, which stops the others.
    pub(super) async fn batch(self, streams: Vec<SendableRecordBatchStream>) -> Result<RecordBatch> {
        let reading = self.reading();
        let while_reading = match &reading {
            Some(reading) => reading.plan().await?,
            None => self.aggregates.columns.iter().map(|_| None).collect(),
        };
        let rows = while_reading
            .iter()
            .flatten()
            .find_map(ReadingColumn::rows_to_read);
        let streams = match (&reading, rows) {
            (Some(reading), Some(rows)) => reading.input.read_rows(rows)?,
            _ => streams,
        };
        let scans = self.scan(streams, &while_reading).await?;
        let mut columns = Columns::new();
        columns.resize_with(self.aggregates.columns.len(), Vec::new);
        let mut plain = Vec::with_capacity(scans.len());
        for scan in scans {
            for (column, collected) in columns.iter_mut().zip(scan.collected) {
                column.push(collected);
            }
            plain.push(scan.plain);
        }
        self.record_held(&columns);
        let mut solutions = Vec::with_capacity(columns.len());
        for column in 0..columns.len() {
            let start = Instant::now();
            let solved;
            (columns, solved) = match (&reading, &while_reading[column]) {
                (Some(reading), Some(of)) => {
                    let answers = std::mem::take(&mut columns[column]);
                    let solution = reading.solve(column, answers, of).await?;
                    self.metrics.record(&solution);
                    (columns, Solved::Keys(solution))
                }
                _ if self.aggregates.columns[column].bytes.is_some() => {
                    self.solve_byte_strings(column, columns).await?
                }
                _ => self.solve_keys(column, columns).await?,
            };
            solutions.push(solved);
            self.metrics.select_time.add_elapsed(start);
            self.metrics.baseline.elapsed_compute().add_elapsed(start);
        }
        let (files, bytes) = self.selection.backend.spilled();
        self.metrics.spill_count.add(files as usize);
        self.metrics.spilled_bytes.add(bytes as usize);
        self.assemble(&solutions, merged(plain)?)
    }

    /// How columns are selected while they are read; `None` if the input is not read again.
    fn reading(&self) -> Option<WhileReadingContext<'_>> {
        #[cfg(feature = "cuda")]
        let is_sent = |column: &KeyColumn| self.device.is_some() && is_for_device(column);
        #[cfg(not(feature = "cuda"))]
        let is_sent = |_: &KeyColumn| false;
        let columns = self.aggregates.columns.iter().enumerate();
        let counted = columns.filter(|(_, column)| column.can_be_counted() && !is_sent(column));
        Some(WhileReadingContext {
            input: self.input.as_ref()?,
            columns: counted.map(|(column, _)| column).collect(),
            aggregates: &self.aggregates,
            selection: &self.selection,
            metrics: &self.metrics,
        })
    }

    /// Reads all partitions at once, each in a task. Results come in the order of partitions, so that merging is reproducible.
    async fn scan(
        &self,
        streams: Vec<SendableRecordBatchStream>,
        while_reading: &[Option<ReadingColumn>],
    ) -> Result<Vec<PartitionScan>> {
        self.metrics.read_again();
        #[cfg(feature = "cuda")]
        let devices = match &self.device {
            Some(choice) if self.aggregates.columns.iter().any(is_for_device) => {
                Some(OpenDevices::open(choice).await?)
            }
            _ => None,
        };
        let mut scans = Vec::with_capacity(streams.len());
        for stream in streams {
            let columns = self.aggregates.columns.iter().zip(while_reading);
            let collected = columns.map(|(column, reading)| {
                let collected = match reading {
                    Some(reading) => CollectedColumn::Answered(reading.first_answer(column)?),
                    None => self.selection.open(column)?,
                };
                Ok((column.clone(), collected))
            });
            let scan = PartitionScan::new(
                collected.collect::<Result<_>>()?,
                PlainAccumulators::try_new(&self.aggregates.plain, self.selection.memory.new_empty())?,
                self.metrics.input_rows.clone(),
                self.metrics.scan_times(),
            );
            #[cfg(feature = "cuda")]
            let scan = match &devices {
                Some(devices) => scan.onto_device(devices, scans.len(), &self.selection.memory)?,
                None => scan,
            };
            scans.push(scan.read(stream));
        }
        partitions_in_order(scans).await
    }

    fn record_held(&self, columns: &[Vec<CollectedColumn>]) {
        let collected = || columns.iter().flatten();
        let values: u64 = collected().map(CollectedColumn::len).sum();
        self.metrics.values_kept.add(values as usize);
        self.metrics
            .bytes_held
            .add(collected().map(CollectedColumn::held_bytes).sum());
    }

    /// Solves a column of keys, for all the calls that share it. Returns the other columns too.
    async fn solve_keys(&self, column: usize, columns: Columns) -> Result<(Columns, Solved)> {
        #[cfg(feature = "cuda")]
        if columns[column]
            .iter()
            .any(|collected| matches!(collected, CollectedColumn::Device(_)))
        {
            return self.solve_on_device(column, columns).await;
        }
        let (of, quantile_specs) = (
            &self.aggregates.columns[column],
            self.aggregates.quantile_specs(column),
        );
        let (columns, solution) = self
            .selection
            .solve_keys(columns, column, of, &quantile_specs)
            .await?;
        self.metrics.record(&solution);
        Ok((columns, Solved::Keys(solution)))
    }

    /// Solves a column on the devices that it was sent to. Returns the other columns too.
    #[cfg(feature = "cuda")]
    async fn solve_on_device(&self, column: usize, mut columns: Columns) -> Result<(Columns, Solved)> {
        let uploads = std::mem::take(&mut columns[column]).into_iter();
        let uploads = uploads.map(|collected| match collected {
            CollectedColumn::Device(upload) => Ok(*upload),
            _ => internal_err!("a column was sent to devices by some partitions only"),
        });
        let spec = self.aggregates.columns[column].spec.clone();
        let quantile_specs = self
            .aggregates
            .quantile_specs(column)
            .into_iter()
            .cloned()
            .collect();
        let limit = self.device.as_ref().and_then(|device| device.limit);
        let (strategy, memory) = (self.selection.strategy, self.selection.memory.new_empty());
        let uploads = uploads.collect::<Result<_>>()?;
        let solved = on_device::solve(uploads, spec, quantile_specs, limit, strategy, memory);
        let (solution, report) = solved.await?;
        self.metrics.record(&solution);
        on_device::record(&report, &self.metrics.set);
        Ok((columns, Solved::Keys(solution)))
    }

    /// Solves a column of byte strings, for all the calls that share it. Returns the other columns too.
    async fn solve_byte_strings(&self, column: usize, columns: Columns) -> Result<(Columns, Solved)> {
        let distinct = self.aggregates.columns[column].distinct;
        let quantile_specs = self.aggregates.quantile_specs(column);
        let (columns, solution) = self
            .selection
            .solve_byte_strings(columns, column, distinct, &quantile_specs)
            .await?;
        self.metrics.record_levels(&solution);
        Ok((columns, Solved::Bytes(solution)))
    }

    /// The row of answers, from the order statistics of each column and the plain accumulators of all partitions.
    fn assemble(&self, solutions: &[Solved], mut plain: PlainAccumulators) -> Result<RecordBatch> {
        may_fail!("answer");
        let mut copies = Vec::new();
        let columns = self.aggregates.outputs.iter().map(|output| {
            let value = match *output {
                Output::Call(index) => {
                    let (column, call) = &self.aggregates.calls[index];
                    answer(call, &solutions[*column])?
                }
                Output::Plain(index) => {
                    let (value, copy) = plain.evaluate(index)?;
                    copies.push(copy);
                    value
                }
            };
            value.to_array()
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

/// The answer of a call, from the order statistics of its column.
///
/// # Errors
/// Errors of interpolation and of making arrays; an internal error if `solved` is of another kind of column.
pub(super) fn answer(call: &QuantilesCall, solved: &Solved) -> Result<ScalarValue> {
    match (call.answer_spec(), solved) {
        (AnswerSpec::Keys(column), Solved::Keys(solution)) => {
            match call.form() {
                AnswerForm::Values => {}
                AnswerForm::Count => return Ok(count(solution.n)),
                AnswerForm::Bins => return bins(column, solution),
                AnswerForm::Fences => return fences(column.spec(), solution),
            }
            let key_at = |rank| solution.key_at(rank);
            let answers = column
                .quantile_spec()
                .answers(column.spec(), solution.n, &key_at)?;
            if call.wants_bounds() {
                return with_bounds(column, answers, solution.n, |rank| solution.rank_bounds_at(rank));
            }
            column.row(answers, solution.n)
        }
        (AnswerSpec::Bytes(_), Solved::Bytes(solution)) if call.form() == AnswerForm::Count => {
            Ok(count(solution.n))
        }
        (AnswerSpec::Bytes(column), Solved::Bytes(solution)) => {
            let answers = solution.answers(column.quantile_spec(), column.spec())?;
            column.row(answers, solution.n)
        }
        _ => internal_err!("{call} was answered by another column"),
    }
}

/// A number of values as an answer.
fn count(n: u64) -> ScalarValue {
    ScalarValue::Int64(Some(n as i64))
}

/// The bins between the values of a call's quantiles, of which the first one is 0.
fn bins(column: &TypedAnswerSpec, solution: &Solution) -> Result<ScalarValue> {
    let quantiles = &column.quantile_spec().quantiles;
    let edges = quantiles.iter().filter(|_| solution.n > 0).map(|quantile| {
        let rank = quantile.rank(solution.n);
        Ok((solution.key_at(rank)?, solution.rank_bounds_at(rank)?.1))
    });
    let bins = bins_between(column.spec(), &edges.collect::<Result<Vec<_>>>()?)?;
    ScalarValue::try_from_array(&bins, 0)
}

/// The fences of a column, with the numbers of values beyond.
fn fences(spec: &KeySpec, solution: &Solution) -> Result<ScalarValue> {
    let (key_at, less_than) = (|rank| solution.key_at(rank), |cut| solution.less_than(cut));
    let found = Fenced::of(spec, solution.n, key_at, less_than)?;
    ScalarValue::try_from_array(&fences_array(spec.data_type(), &[found])?, 0)
}

/// The accumulators of all partitions, merged into one.
fn merged(parts: Vec<PlainAccumulators>) -> Result<PlainAccumulators> {
    let mut parts = parts.into_iter();
    let mut merged = parts
        .next()
        .ok_or_else(|| internal_datafusion_err!("an input has at least one partition"))?;
    parts.try_for_each(|part| merged.merge(part))?;
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use datafusion::arrow::array::{AsArray, Int64Array, RecordBatch};
    use datafusion::arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
    use datafusion::execution::memory_pool::MemoryConsumer;
    use datafusion::execution::{SendableRecordBatchStream, TaskContext};
    use datafusion::physical_expr::expressions::col;
    use datafusion::physical_plan::ExecutionPlan;
    use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
    use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

    use super::*;
    use crate::config::StrategyName;
    use crate::exec::aggregate::ExecAggregate;
    use crate::exec::files::CHANGED;
    use crate::quantile::{Method, Quantile, QuantileSpec};

    /// A table that gives other numbers in each execution: `reads[i]` in execution `i`, the last ones in every later one.
    #[derive(Debug)]
    struct Changing {
        reads: Vec<std::ops::Range<i64>>,
        executed: AtomicUsize,
        schema: SchemaRef,
    }

    impl PartitionStream for Changing {
        fn schema(&self) -> &SchemaRef {
            &self.schema
        }

        fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
            let read = self
                .executed
                .fetch_add(1, Ordering::Relaxed)
                .min(self.reads.len() - 1);
            let numbers = Int64Array::from_iter_values(self.reads[read].clone());
            let batch = RecordBatch::try_new(Arc::clone(&self.schema), vec![Arc::new(numbers)]);
            let batches = futures::stream::iter([Ok(batch.unwrap())]);
            Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches))
        }
    }

    /// The median of a table that gives these ranges in turn.
    async fn median(reads: Vec<std::ops::Range<i64>>) -> Result<i64> {
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
        let changing = Changing {
            reads,
            executed: AtomicUsize::new(0),
            schema: Arc::clone(&schema),
        };
        let plan: Arc<dyn ExecutionPlan> = Arc::new(StreamingTableExec::try_new(
            Arc::clone(&schema),
            vec![Arc::new(changing)],
            None,
            [],
            false,
            None,
        )?);
        let spec = QuantileSpec {
            quantiles: vec![Quantile::try_from_f64(0.5)?],
            method: Method::Disc,
            descending: false,
        };
        let call = QuantilesCall::try_new(col("x", &schema)?, &DataType::Int64, None, spec, false)?;
        let context = Arc::new(TaskContext::default());
        let input = RereadableInput::assumed(&plan, &context, 8000);
        let memory = MemoryConsumer::new("test").register(context.memory_pool());
        let set = ExecutionPlanMetricsSet::new();
        let run = QuantilesExecution {
            aggregates: Arc::new(Aggregates::new(vec![ExecAggregate::Quantiles(call)])),
            schema,
            selection: SelectionContext::new(StrategyName::Auto, memory, &context),
            input: Some(input.clone()),
            metrics: RunMetrics::new(&set),
            #[cfg(feature = "cuda")]
            device: None,
        };
        let answer = run.batch(input.read()?).await?;
        Ok(answer.column(0).as_primitive::<Int64Type>().value(0))
    }

    #[tokio::test]
    async fn an_input_that_changes_between_two_reads_is_an_error() {
        // The first execution is that of the plan itself, the second the sample.
        let (sample, all) = (0..1000, 0..400_000);
        let unchanged = vec![all.clone(), sample.clone(), all.clone()];
        assert_eq!(median(unchanged).await.unwrap(), 199_999);
        for other in [0..399_999, 1..400_001] {
            let error = median(vec![all.clone(), sample.clone(), other])
                .await
                .unwrap_err();
            assert!(error.to_string().contains(CHANGED), "{error}");
        }
    }
}
