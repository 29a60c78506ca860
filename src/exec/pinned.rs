//! The operator behind ungrouped `exact_quantiles` of pinned columns.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::{StreamExt, TryStreamExt};

use super::aggregate::{Aggregates, ExecAggregate, Output, QuantilesCall};
use super::quantiles::comma_separated;
use super::run::{Solved, answer};
use crate::kernel::cuda::{DeviceColumn, Predicate, Report, RowMask, Selection};
use crate::pinned::PinnedTable;
use crate::select::{Ask, Solution, wanted_ranks};

/// What runs on the card, for `EXPLAIN ANALYZE`.
const STRATEGY: &str = "sample_select on the card";

/// Where the values of a call are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinnedSource {
    /// Index of the pinned column.
    pub(crate) column: usize,
    /// Which rows count; `None`: all.
    pub(crate) filter: Option<Predicate>,
}

/// Exact quantiles of columns that are pinned in a card's memory. One partition, one row.
///
/// Reads nothing but that memory: for each column one sequence of kernels, which finds the ranks of all calls over it. A
/// filter becomes a bitmap on the card first, whose rows are counted. Cost on an H200: 0.5 ms for each GiB of a column.
///
/// Where it has an input, that computes the same from the table itself, and takes over when the card fails, with a warning
/// in the log and the metric `cuda_fallback`. Otherwise the failure is the query's error.
///
/// Device memory: up to 0.4 of the largest column to work in, kept for the next query, within `quantiles.cuda_memory_limit`;
/// with less there, slower.
///
/// Metrics: `kernels` launched, `bytes_read` by them of columns and bitmaps, `bytes_to_card`, `bytes_from_card`, `card_time`
/// from the first kernel to the last, `second_reads` and `deepened`, which say how often a sample misled, and under
/// `EXPLAIN ANALYZE` the time of each kernel, such as `ss_count_time`.
#[derive(Debug, Clone)]
pub struct PinnedQuantilesExec {
    table: Arc<PinnedTable>,
    aggregates: Arc<Aggregates>,
    /// Of each column of `aggregates`.
    sources: Vec<PinnedSource>,
    ordinary: Option<Arc<dyn ExecutionPlan>>,
    /// The filter of all calls, as it was written.
    shown_filter: Option<String>,
    /// Most bytes of device memory that this crate may hold.
    limit: Option<u64>,
    /// Whether the time of each kernel is wanted.
    timed: bool,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl PinnedQuantilesExec {
    /// `calls` over columns of `table`, one output column for each, under the names and types of `schema`; `ordinary`
    /// computes the same without the card.
    pub(crate) fn try_new(
        table: Arc<PinnedTable>,
        calls: Vec<(QuantilesCall, PinnedSource)>,
        ordinary: Option<Arc<dyn ExecutionPlan>>,
        limit: Option<u64>,
        schema: SchemaRef,
    ) -> Result<Self> {
        if schema.fields().len() != calls.len() {
            return internal_err!(
                "{} calls for {} output columns",
                calls.len(),
                schema.fields().len()
            );
        }
        let (calls, of_calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let aggregates = Aggregates::new(calls.into_iter().map(ExecAggregate::Quantiles).collect());
        let mut sources = vec![None; aggregates.columns.len()];
        for ((column, _), source) in aggregates.calls.iter().zip(of_calls) {
            sources[*column] = Some(source);
        }
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Ok(Self {
            table,
            aggregates: Arc::new(aggregates),
            sources: sources.into_iter().flatten().collect(),
            ordinary,
            shown_filter: None,
            limit,
            timed: false,
            schema,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// The same, showing the filter that is part of all its sources.
    pub(crate) fn showing(mut self, filter: Option<String>) -> Self {
        self.shown_filter = filter;
        self
    }

    /// The same, with the time of each kernel among its metrics, which costs about 5 microseconds for each.
    pub(crate) fn timed(&self) -> Self {
        Self {
            timed: true,
            metrics: ExecutionPlanMetricsSet::new(),
            ..self.clone()
        }
    }

    fn with_inputs(&self, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != self.children().len() {
            return internal_err!("PinnedQuantilesExec keeps the number of its inputs");
        }
        Ok(Arc::new(Self {
            ordinary: children.pop(),
            metrics: ExecutionPlanMetricsSet::new(),
            ..self.clone()
        }))
    }

    /// The one row, by the card.
    fn on_card(&self) -> Result<RecordBatch> {
        let mut report = Report::default();
        let mut masks = Masks::default();
        let solutions = (0..self.sources.len()).map(|column| self.solve(column, &mut masks, &mut report));
        let solutions = solutions.collect::<Result<Vec<_>>>()?;
        self.record(&report);
        let columns = self.aggregates.outputs.iter().map(|output| match *output {
            Output::Call(index) => {
                let (column, call) = &self.aggregates.calls[index];
                answer(call, &solutions[*column])?.to_array()
            }
            Output::Plain(_) => internal_err!("a card computes quantiles only"),
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }

    fn solve(&self, column: usize, masks: &mut Masks, report: &mut Report) -> Result<Solved> {
        let asks: Vec<&Ask> = self
            .aggregates
            .calls_of(column)
            .map(|call| call.selected().ask())
            .collect();
        let source = &self.sources[column];
        let values = &self.table.columns[source.column].column;
        let mask = match &source.filter {
            None => None,
            Some(filter) => {
                let columns: Vec<_> = self.table.columns.iter().map(|pinned| &pinned.column).collect();
                let mask = masks.mask(filter, &columns, self.limit, report)?;
                let kept = mask.count(values, self.limit, report)?;
                Some((mask.bits(), kept))
            }
        };
        let selection = Selection {
            column: values,
            spec: &self.aggregates.columns[column].spec,
            mask,
            limit: self.limit,
            timed: self.timed,
        };
        let n = selection.population();
        let ranks = wanted_ranks(&asks, n);
        let keys = selection.keys(&ranks, report)?;
        Ok(Solved::Keys(Solution::found(n, STRATEGY, ranks, keys)))
    }

    fn record(&self, report: &Report) {
        let count = |name: &'static str, n: usize| MetricBuilder::new(&self.metrics).counter(name, 0).add(n);
        count("kernels", report.kernels);
        count("bytes_read", report.bytes_read as usize);
        count("bytes_to_card", report.bytes_to_card as usize);
        count("bytes_from_card", report.bytes_from_card as usize);
        count("second_reads", report.second_reads);
        count("deepened", report.deepened);
        let time = |name: String, time| {
            MetricBuilder::new(&self.metrics)
                .subset_time(name, 0)
                .add_duration(time)
        };
        time("card_time".to_owned(), report.card_time);
        for (kernel, elapsed) in &report.kernel_times {
            time(format!("{kernel}_time"), *elapsed);
        }
    }

    /// The row of the card, or of the input where the card fails and there is one.
    async fn row(self, context: Arc<TaskContext>) -> Result<RecordBatch> {
        let baseline = BaselineMetrics::new(&self.metrics, 0);
        let exec = self.clone();
        let timer = baseline.elapsed_compute().clone();
        let solved = SpawnedTask::spawn_blocking(move || {
            let _timer = timer.timer();
            exec.on_card()
        });
        let solved = solved.join().await;
        let solved = solved.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?;
        let (error, ordinary) = match (solved, &self.ordinary) {
            (Err(error), Some(ordinary)) => (error, Arc::clone(ordinary)),
            (solved, _) => return solved.record_output(&baseline),
        };
        log::warn!(
            "quantiles of the pinned table {} run on the CPU, over the table itself: {error}",
            self.table.name
        );
        MetricBuilder::new(&self.metrics)
            .counter("cuda_fallback", 0)
            .add(1);
        let mut rows = ordinary.execute(0, context)?;
        match (rows.next().await, rows.try_next().await?) {
            (Some(row), None) => row.record_output(&baseline),
            _ => internal_err!("quantiles without groups are one batch"),
        }
    }
}

/// The rows of each filter of a query: several columns may have the same.
#[derive(Default)]
struct Masks(Vec<(Predicate, RowMask)>);

impl Masks {
    fn mask(
        &mut self,
        filter: &Predicate,
        columns: &[&DeviceColumn],
        limit: Option<u64>,
        report: &mut Report,
    ) -> Result<&RowMask> {
        let known = self.0.iter().position(|(other, _)| other == filter);
        let index = match known {
            Some(index) => index,
            None => {
                let mask = RowMask::evaluate(filter, columns, limit, report)?;
                self.0.push((filter.clone(), mask));
                self.0.len() - 1
            }
        };
        Ok(&self.0[index].1)
    }
}

impl DisplayAs for PinnedQuantilesExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let columns = self
            .sources
            .iter()
            .map(|source| &self.table.columns[source.column].name);
        let columns = comma_separated(columns);
        let calls = comma_separated(self.aggregates.calls.iter().map(|(_, call)| call));
        let (card, table) = (&self.table.card, &self.table.name);
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(
                    f,
                    "PinnedQuantilesExec: device={card}, table={table}, columns=[{columns}], calls=[{calls}]"
                )?;
                if let Some(filter) = &self.shown_filter {
                    write!(f, ", where=[{filter}]")?;
                }
                match self.ordinary {
                    Some(_) => write!(f, ", input=[if the card fails]"),
                    None => Ok(()),
                }
            }
            DisplayFormatType::TreeRender => {
                writeln!(f, "device={card}")?;
                writeln!(f, "table={table}")?;
                writeln!(f, "calls={calls}")?;
                match &self.shown_filter {
                    Some(filter) => writeln!(f, "where={filter}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl ExecutionPlan for PinnedQuantilesExec {
    fn name(&self) -> &str {
        "PinnedQuantilesExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.ordinary.iter().collect()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::SinglePartition; self.children().len()]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_inputs(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_inputs(children)
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        // Its columns are those of the card, not of the input, whose own operator has the expressions.
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("PinnedQuantilesExec has one partition, asked for partition {partition}");
        }
        let row = self.clone().row(context);
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            futures::stream::once(row),
        )))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
