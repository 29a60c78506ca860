//! One execution of quantiles without groups: reads the streams of all partitions, and answers with one row.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, Time,
};

use super::aggregate::{Aggregates, Output, QuantilesCall};
use super::collected::CollectedColumn;
#[cfg(feature = "cuda")]
use super::on_device::{self, OpenDevices, UploadChoice, is_for_device};
use super::plain::PlainAccumulators;
use super::round_memory::Columns;
use super::scan::PartitionScan;
use super::selection::SelectionContext;
use crate::failpoint::may_fail;
use crate::functions::gk::with_bounds;
use crate::quantile::AnswerSpec;
use crate::quantile::QuantileSpec;
use crate::select::Solution;
use crate::select::byte_strings::ByteStringSolution;
use crate::threads::PartitionTasks;

/// Metrics of one execution. Their names are stable: users may rely on them.
pub(super) struct RunMetrics {
    set: ExecutionPlanMetricsSet,
    pub(super) baseline: BaselineMetrics,
    /// Rows read from the input.
    input_rows: Count,
    /// Values that are not NULL and not filtered out, added up over all key columns.
    values_kept: Count,
    /// Bytes of keys and values in memory after the scan.
    bytes_held: Gauge,
    /// Files that keys and values were written to.
    spill_count: Count,
    /// Bytes in these files.
    spilled_bytes: Count,
    /// Rounds over the keys, added up over all columns.
    rounds: Count,
    /// Processor time of taking batches in, added up over all partitions.
    scan_time: Time,
    /// Elapsed time of the rounds.
    select_time: Time,
}

impl RunMetrics {
    pub(super) fn new(set: &ExecutionPlanMetricsSet) -> Self {
        let builder = || MetricBuilder::new(set);
        Self {
            set: set.clone(),
            baseline: BaselineMetrics::new(set, 0),
            input_rows: builder().counter("input_rows", 0),
            values_kept: builder().counter("values_kept", 0),
            bytes_held: builder().gauge("bytes_held", 0),
            spill_count: builder().spill_count(0),
            spilled_bytes: builder().spilled_bytes(0),
            rounds: builder().counter("rounds", 0),
            scan_time: builder().subset_time("scan_time", 0),
            select_time: builder().subset_time("select_time", 0),
        }
    }

    /// Adds the strategy that ran for a column, its rounds, and the candidates that each round left.
    fn record(&self, solution: &Solution) {
        self.count(strategy_metric(solution.strategy), 1);
        self.rounds.add(solution.rounds.len());
        for (number, round) in solution.rounds.iter().enumerate() {
            self.count(
                format!("candidates_after_round_{}", number + 1),
                round.candidates as usize,
            );
            let name = format!("{}_time", round.request);
            let time = MetricBuilder::new(&self.set).subset_time(name, 0);
            time.add_duration(round.elapsed);
        }
    }

    /// Adds the rounds of a column of byte strings, its levels of prefixes, and the values that were refined.
    fn record_levels(&self, solution: &ByteStringSolution) {
        solution.rounds.iter().for_each(|rounds| self.record(rounds));
        self.count("levels".to_owned(), solution.levels);
        self.count("refined_values".to_owned(), solution.refined as usize);
    }

    fn count(&self, name: String, n: usize) {
        MetricBuilder::new(&self.set).counter(name, 0).add(n);
    }
}

/// The character as part of a metric name, which is a single word: `sample_select (brackets)` becomes `sample_select__brackets`.
fn word_char(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '_' }
}

/// Name of the metric that counts the columns which the strategy of this label selected.
pub(super) fn strategy_metric(label: &str) -> String {
    let name: String = label.chars().map(word_char).collect();
    format!("strategy_{}", name.trim_matches('_'))
}

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
        let scans = self.scan(streams).await?;
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
            (columns, solved) = match self.aggregates.columns[column].bytes {
                Some(_) => self.solve_byte_strings(column, columns).await?,
                None => self.solve_keys(column, columns).await?,
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

    /// Reads all partitions at once, each in a task. Results come in the order of partitions, so that merging is reproducible.
    async fn scan(&self, streams: Vec<SendableRecordBatchStream>) -> Result<Vec<PartitionScan>> {
        #[cfg(feature = "cuda")]
        let devices = match &self.device {
            Some(choice) if self.aggregates.columns.iter().any(is_for_device) => {
                Some(OpenDevices::open(choice).await?)
            }
            _ => None,
        };
        let mut tasks = PartitionTasks::new();
        for (partition, stream) in streams.into_iter().enumerate() {
            let scan = PartitionScan::try_new(
                &self.aggregates,
                &self.selection.backend,
                &self.selection.memory,
                self.metrics.input_rows.clone(),
                [
                    self.metrics.scan_time.clone(),
                    self.metrics.baseline.elapsed_compute().clone(),
                ],
            )?;
            #[cfg(feature = "cuda")]
            let scan = match &devices {
                Some(devices) => scan.onto_device(devices, partition, &self.selection.memory)?,
                None => scan,
            };
            tasks.spawn(partition, scan.read(stream));
        }
        tasks.in_order().await
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
        let (of, quantile_specs) = (&self.aggregates.columns[column], self.quantile_specs(column));
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
        let quantile_specs = self.quantile_specs(column).into_iter().cloned().collect();
        let limit = self.device.as_ref().and_then(|device| device.limit);
        let (strategy, memory) = (self.selection.strategy, self.selection.memory.new_empty());
        let uploads = uploads.collect::<Result<_>>()?;
        let solved = on_device::solve(uploads, spec, quantile_specs, limit, strategy, memory);
        let (solution, report) = solved.await?;
        self.metrics.record(&solution);
        on_device::record(&report, &self.metrics.set);
        Ok((columns, Solved::Keys(solution)))
    }

    /// The quantiles that the calls over a column want.
    fn quantile_specs(&self, column: usize) -> Vec<&QuantileSpec> {
        let calls = self.aggregates.calls_of(column);
        calls.map(|call| call.answer_spec().quantile_spec()).collect()
    }

    /// Solves a column of byte strings, for all the calls that share it. Returns the other columns too.
    async fn solve_byte_strings(&self, column: usize, columns: Columns) -> Result<(Columns, Solved)> {
        let distinct = self.aggregates.columns[column].distinct;
        let quantile_specs = self.quantile_specs(column);
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
            let key_at = |rank| solution.key_at(rank);
            let answers = column
                .quantile_spec()
                .answers(column.spec(), solution.n, &key_at)?;
            if call.wants_bounds() {
                return with_bounds(column, answers, solution.n, |rank| solution.rank_bounds_at(rank));
            }
            column.row(answers, solution.n)
        }
        (AnswerSpec::Bytes(column), Solved::Bytes(solution)) => {
            let answers = solution.answers(column.quantile_spec(), column.spec())?;
            column.row(answers, solution.n)
        }
        _ => internal_err!("{call} was answered by another column"),
    }
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
