//! From the streams of all partitions to the one row of answers.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::runtime::JoinSet;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};
use datafusion::logical_expr::Accumulator;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, Time,
};

use super::aggregate::{Aggregates, Output, QuantilesCall};
use super::room::{Columns, make_room};
use super::scan::PartitionScan;
use crate::kernel::memory::Workspace;
use crate::kernel::{CpuBackend, Stop, may_fail};
use crate::select::{LocalShards, Solution, StrategyName, solve};

/// Metrics of one execution. Their names are stable.
pub(super) struct RunMetrics {
    set: ExecutionPlanMetricsSet,
    pub(super) baseline: BaselineMetrics,
    /// Rows read.
    input_rows: Count,
    /// Values that calls may still answer with: not NULL, not filtered out. Once for each key column.
    values_kept: Count,
    /// Bytes of keys in memory at the end of the scan.
    bytes_held: Gauge,
    /// Files that keys were written to.
    spill_count: Count,
    /// Bytes of keys in them.
    spilled_bytes: Count,
    /// Rounds over the keys, of all columns.
    rounds: Count,
    /// Processor time to take batches in, of all partitions.
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

    /// Strategy that ran, and what each round left to search. Figures of several columns add up.
    fn record(&self, solution: &Solution) {
        let name: String = solution.strategy.chars().map(word_char).collect();
        self.count(format!("strategy_{}", name.trim_matches('_')), 1);
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

    fn count(&self, name: String, n: usize) {
        MetricBuilder::new(&self.set).counter(name, 0).add(n);
    }
}

/// Metric names are single words: `sample_select (brackets)` is `sample_select__brackets`.
fn word_char(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '_' }
}

/// One execution of the operator.
pub(super) struct Run {
    pub(super) aggregates: Arc<Aggregates>,
    pub(super) strategy: StrategyName,
    pub(super) schema: SchemaRef,
    /// Shards of one column that are worked on at a time.
    pub(super) threads: usize,
    pub(super) memory: MemoryReservation,
    pub(super) pool: Arc<dyn MemoryPool>,
    pub(super) backend: CpuBackend,
    /// What the rounds work in.
    pub(super) workspace: Arc<Workspace>,
    pub(super) metrics: RunMetrics,
}

impl Run {
    /// Reads all partitions, then answers.
    ///
    /// # Errors
    /// The first error of any partition: the others are stopped.
    pub(super) async fn batch(self, streams: Vec<SendableRecordBatchStream>) -> Result<RecordBatch> {
        let scans = self.scan(streams).await?;
        let mut lanes = Columns::new();
        lanes.resize_with(self.aggregates.columns.len(), Vec::new);
        let mut accumulators = Vec::with_capacity(scans.len());
        for scan in scans {
            for (column, lane) in scan.lanes.into_iter().enumerate() {
                lanes[column].push(lane);
            }
            accumulators.push(scan.accumulators);
        }
        self.record_held(&lanes);
        let mut solutions = Vec::with_capacity(lanes.len());
        for column in 0..lanes.len() {
            let solution;
            (lanes, solution) = self.solve(column, lanes).await?;
            solutions.push(solution);
        }
        let (files, bytes) = self.backend.spilled();
        self.metrics.spill_count.add(files as usize);
        self.metrics.spilled_bytes.add(bytes as usize);
        let mut plain = merged(accumulators)?;
        self.assemble(&solutions, &mut plain)
    }

    /// All partitions at once, in a task each. Results in the order of partitions, so that merging is reproducible.
    async fn scan(&self, streams: Vec<SendableRecordBatchStream>) -> Result<Vec<PartitionScan>> {
        let mut tasks = JoinSet::new();
        for (partition, stream) in streams.into_iter().enumerate() {
            let scan = PartitionScan::try_new(
                &self.aggregates,
                &self.backend,
                &self.memory,
                self.metrics.input_rows.clone(),
                [
                    self.metrics.scan_time.clone(),
                    self.metrics.baseline.elapsed_compute().clone(),
                ],
            )?;
            tasks.spawn(async move { (partition, scan.read(stream).await) });
        }
        let mut scans = Vec::with_capacity(tasks.len());
        while let Some(joined) = tasks.join_next().await {
            match joined {
                Ok((partition, scan)) => scans.push((partition, scan?)),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(error) => return internal_err!("a scan task ended early: {error}"),
            }
        }
        scans.sort_by_key(|(partition, _)| *partition);
        Ok(scans.into_iter().map(|(_, scan)| scan).collect())
    }

    fn record_held(&self, lanes: &Columns) {
        let lanes = || lanes.iter().flatten();
        let kept: u64 = lanes().map(|lane| lane.len()).sum();
        self.metrics.values_kept.add(kept as usize);
        self.metrics
            .bytes_held
            .add(lanes().map(|lane| lane.held_bytes()).sum());
    }

    /// Rounds over one column, for all the calls that share it. The lanes of the others come back.
    async fn solve(&self, column: usize, lanes: Columns) -> Result<(Columns, Solution)> {
        let start = Instant::now();
        let asks: Vec<_> = self
            .aggregates
            .calls_of(column)
            .map(|call| call.selected().ask())
            .collect();
        let width = self.aggregates.columns[column].spec.width();
        let values = lanes[column].iter().map(|lane| lane.len()).sum();
        let (mut lanes, plan) = make_room(
            lanes,
            (values, width),
            self.threads,
            self.pool.as_ref(),
            &self.workspace,
        )
        .await?;
        // Dropping the shards, be it with this future, stops their kernels: a flag for each column.
        let own = std::mem::take(&mut lanes[column]);
        let mut shards = LocalShards::new(width, own, plan.threads, Stop::default())
            .within(plan.room, Arc::clone(&self.workspace));
        let solution = solve(&mut shards, self.strategy, &asks).await?;
        self.metrics.select_time.add_elapsed(start);
        self.metrics.baseline.elapsed_compute().add_elapsed(start);
        self.metrics.record(&solution);
        Ok((lanes, solution))
    }

    fn assemble(&self, solutions: &[Solution], plain: &mut [Box<dyn Accumulator>]) -> Result<RecordBatch> {
        may_fail!("answer");
        let columns = self.aggregates.outputs.iter().map(|output| {
            let value = match *output {
                Output::Call(index) => {
                    let (column, call) = &self.aggregates.calls[index];
                    answer(call, &solutions[*column])?
                }
                Output::Plain(index) => plain[index].evaluate()?,
            };
            value.to_array()
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

fn answer(call: &QuantilesCall, solution: &Solution) -> Result<ScalarValue> {
    let selected = call.selected();
    let key_at = |rank| solution.key_at(rank);
    let answers = selected.ask().answers(selected.spec(), solution.n, &key_at)?;
    selected.row(answers, solution.n)
}

/// One accumulator for each aggregate, from those of all partitions.
fn merged(partitions: Vec<Vec<Box<dyn Accumulator>>>) -> Result<Vec<Box<dyn Accumulator>>> {
    let mut partitions = partitions.into_iter();
    let mut merged = partitions
        .next()
        .ok_or_else(|| internal_datafusion_err!("an input has at least one partition"))?;
    for partition in partitions {
        for (target, mut part) in merged.iter_mut().zip(partition) {
            let state = part.state()?;
            let state = state.iter().map(ScalarValue::to_array);
            target.merge_batch(&state.collect::<Result<Vec<ArrayRef>>>()?)?;
        }
    }
    Ok(merged)
}
