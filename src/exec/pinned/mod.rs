//! The operator behind queries over pinned columns.

mod group_topk;
mod groups;
mod quantiles;
mod topk;

use std::borrow::Borrow;
use std::fmt::{self, Debug};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
    ReplaceChildrenOptions, execute_stream,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::on_device::record;
use super::quantiles::comma_separated;
use super::run::strategy_metric;
use crate::kernel::cuda::source::Words;
use crate::kernel::cuda::{DeviceColumn, Predicate, Report, RowMask, Selection};
use crate::pinned::PinnedTable;
pub(crate) use group_topk::PinnedGroupTopK;
pub(crate) use groups::{PinnedCount, PinnedGroups};
pub(crate) use quantiles::PinnedQuantiles;
pub(crate) use topk::{PinnedRows, PinnedTopK, PinnedTopKCall};

/// Where values of a query are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinnedSource {
    /// Index of the pinned column.
    pub(crate) column: usize,
    /// Which rows count; `None`: all.
    pub(crate) filter: Option<Predicate>,
}

/// What is made of pinned columns.
pub(crate) trait PinnedWork: Debug + Send + Sync {
    /// Name of the operator.
    fn name(&self) -> &'static str;

    /// All rows, by the device.
    fn batch(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<RecordBatch>;

    /// Pinned columns that are read, each once.
    fn columns(&self) -> Vec<usize>;

    /// What is asked, for `EXPLAIN`.
    fn shown(&self, table: &PinnedTable) -> String;

    /// Whether the device's records have room for the values of these columns, whatever rows a filter leaves.
    ///
    /// # Errors
    /// Those of the device.
    fn fits(&self, _on: &mut OnDevice<'_>) -> Result<bool> {
        Ok(true)
    }

    /// Host memory that grows with what is asked for.
    fn host_bytes(&self, _table: &PinnedTable) -> usize {
        0
    }
}

/// One execution on a device.
pub(crate) struct OnDevice<'a> {
    table: &'a PinnedTable,
    /// Most bytes of device memory that this crate may hold.
    limit: Option<u64>,
    /// Whether the time of each kernel is wanted.
    timed: bool,
    /// Host memory.
    memory: MemoryReservation,
    report: Report,
    /// The rows of each filter on one of the table's devices: several columns may have the same.
    masks: Vec<(usize, Predicate, Arc<RowMask>)>,
    /// How each column was selected, where that was in rounds, and in how many.
    rounds: Vec<(&'static str, usize)>,
}

impl<'a> OnDevice<'a> {
    fn column(&self, index: usize) -> &'a DeviceColumn {
        self.table.column(index)
    }

    /// A question to the rows of a column, to those of `mask` where it is given.
    fn among<'b, M: Borrow<RowMask>>(
        &self,
        column: &'b DeviceColumn,
        words: Words,
        mask: Option<&'b (M, u64)>,
    ) -> Selection<'b> {
        Selection {
            column,
            words,
            mask: mask.map(|(mask, kept)| (mask.borrow().bits(), *kept)),
            limit: self.limit,
            timed: self.timed,
        }
    }

    /// The rows of a filter, and how many of them are not NULL in `column`.
    fn kept(
        &mut self,
        filter: Option<&Predicate>,
        column: &DeviceColumn,
    ) -> Result<Option<(Arc<RowMask>, u64)>> {
        self.kept_of(0, filter, column)
    }

    /// The same of the rows that are on one of the table's devices.
    fn kept_of(
        &mut self,
        share: usize,
        filter: Option<&Predicate>,
        column: &DeviceColumn,
    ) -> Result<Option<(Arc<RowMask>, u64)>> {
        let Some(filter) = filter else {
            return Ok(None);
        };
        let mut masks = self.masks.iter();
        let known = masks.find(|(of, other, _)| *of == share && other == filter);
        let mask = match known {
            Some((_, _, mask)) => Arc::clone(mask),
            None => {
                let columns = self.table.shares()[share].columns.iter().map(Arc::as_ref);
                let columns: Vec<_> = columns.collect();
                let mask = Arc::new(RowMask::evaluate(filter, &columns, self.limit, &mut self.report)?);
                self.masks.push((share, filter.clone(), Arc::clone(&mask)));
                mask
            }
        };
        let kept = mask.count(column, self.limit, &mut self.report)?;
        Ok(Some((mask, kept)))
    }
}

/// Plans what takes over when the device fails.
#[async_trait]
pub(crate) trait PlanFallback: Debug + Send + Sync {
    /// A plan on the CPU that gives the operator's rows in their order.
    async fn plan(&self) -> Result<Arc<dyn ExecutionPlan>>;
}

/// What takes over, and what that was.
#[derive(Debug, Clone)]
struct Fallback {
    planner: Arc<dyn PlanFallback>,
    ran: Arc<OnceLock<Arc<dyn ExecutionPlan>>>,
}

impl Fallback {
    fn new(planner: Arc<dyn PlanFallback>) -> Self {
        let ran = Arc::default();
        Self { planner, ran }
    }

    /// All rows, in one partition; in `ordering`, where there is one.
    async fn rows(
        &self,
        ordering: Option<&LexOrdering>,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let mut plan = self.planner.plan().await?;
        if let (Some(ordering), true) = (ordering, plan.output_partitioning().partition_count() > 1) {
            plan = Arc::new(SortPreservingMergeExec::new(ordering.clone(), plan));
        }
        // A second execution plans anew: scans can be read once.
        self.ran.set(Arc::clone(&plan)).ok();
        execute_stream(plan, context)
    }
}

/// A query over columns that are pinned in a device's memory: exact quantiles and calls of `topk_by`, which are one row, or a
/// row for each group, or the first rows in the order of a column. One partition.
///
/// Reads nothing but that memory. A filter becomes a bitmap on the device first, whose rows are counted. Cost on an H200 for
/// each GiB of a column: quantiles 0.5 ms, rows 0.3 ms.
///
/// With `quantiles.device = 'auto'` (`fallback=cpu` in `EXPLAIN`) the same is planned for the CPU, over the table itself, when
/// the device fails, with a warning in the log and the metric `cuda_fallback`; what ran then is the operator's input in `EXPLAIN
/// ANALYZE`. Otherwise the failure is the query's error.
///
/// Device memory: up to 0.4 of the largest column to work in (0.6 of a device's share, on several), kept for the next query, within
/// `quantiles.cuda_memory_limit`; with less there, slower. Groups need 16 bytes a row, or 32 where groups and values, of best rows
/// groups, keys and values, together span more than 64 bits. Host memory: about 100 bytes for each row, group and rank that is
/// asked for, reserved in the memory pool.
///
/// Metrics: `kernels` launched, `bytes_read` by them of columns and bitmaps, `bytes_to_device`, `bytes_from_device`, `device_time`
/// from the first kernel to the last, `second_reads` and `deepened`, which say how often a sample misled, and under
/// `EXPLAIN ANALYZE` the time of each kernel, such as `ss_count_time`. On a table on several devices times are those of the slowest,
/// with what it waited for the others, and a counter `strategy_sample_select_on_the_devices` says that they selected together.
/// What they leave open, and all with another strategy than the device's own, is selected in rounds: then `rounds`, and a counter
/// `strategy_<name>` of that.
#[derive(Debug, Clone)]
pub struct PinnedExec {
    table: Arc<PinnedTable>,
    work: Arc<dyn PinnedWork>,
    fallback: Option<Fallback>,
    /// The filter of all calls, as it was written.
    shown_filter: Option<String>,
    limit: Option<u64>,
    timed: bool,
    /// The order of the rows.
    ordering: Option<LexOrdering>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl PinnedExec {
    /// `work` over `table`, under the names and types of `schema`.
    pub(crate) fn new(
        table: Arc<PinnedTable>,
        work: Arc<dyn PinnedWork>,
        limit: Option<u64>,
        schema: SchemaRef,
    ) -> Self {
        Self {
            table,
            work,
            fallback: None,
            shown_filter: None,
            limit,
            timed: false,
            ordering: None,
            properties: Arc::new(properties(EquivalenceProperties::new(Arc::clone(&schema)))),
            schema,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The same, showing the filter that is part of all its sources.
    pub(crate) fn showing(mut self, filter: Option<String>) -> Self {
        self.shown_filter = filter;
        self
    }

    /// Gives the operator a planner of what runs in its place when the device fails.
    pub(crate) fn with_fallback(mut self, planner: Arc<dyn PlanFallback>) -> Self {
        self.fallback = Some(Fallback::new(planner));
        self
    }

    /// The same, whose rows come in this order.
    pub(crate) fn ordered(mut self, ordering: LexOrdering) -> Self {
        let schema = Arc::clone(&self.schema);
        let equivalences = EquivalenceProperties::new_with_orderings(schema, [ordering.clone()]);
        self.properties = Arc::new(properties(equivalences));
        self.ordering = Some(ordering);
        self
    }

    /// The same, not executed yet.
    pub(crate) fn fresh(&self) -> Self {
        let fallback = self.fallback.as_ref();
        Self {
            fallback: fallback.map(|fallback| Fallback::new(Arc::clone(&fallback.planner))),
            metrics: ExecutionPlanMetricsSet::new(),
            ..self.clone()
        }
    }

    /// The same, with the time of each kernel among its metrics, which costs about 5 microseconds for each.
    pub(crate) fn timed(&self) -> Self {
        Self {
            timed: true,
            ..self.fresh()
        }
    }

    fn on(&self, memory: MemoryReservation) -> OnDevice<'_> {
        OnDevice {
            table: &self.table,
            limit: self.limit,
            timed: self.timed,
            memory,
            report: Report::default(),
            masks: Vec::new(),
            rounds: Vec::new(),
        }
    }

    /// Whether the values of its columns fit into what the device sorts. The first time that a column is asked for, the device reads
    /// it, as the first execution would have.
    pub(crate) async fn fits(&self, pool: &Arc<dyn MemoryPool>) -> bool {
        let (exec, memory) = (self.clone(), MemoryConsumer::new(self.name()).register(pool));
        let asked = SpawnedTask::spawn_blocking(move || exec.work.fits(&mut exec.on(memory)));
        match asked.join().await {
            Ok(Ok(fits)) => fits,
            // The execution meets that too, and has a way out where there is one.
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// All rows, by the device.
    fn on_device(&self, memory: MemoryReservation) -> Result<RecordBatch> {
        let mut on = self.on(memory);
        let batch = self.work.batch(&mut on, &self.schema)?;
        record(&on.report, &self.metrics);
        for (strategy, rounds) in on.rounds {
            let count = |name: String, n| MetricBuilder::new(&self.metrics).counter(name, 0).add(n);
            count(strategy_metric(strategy), 1);
            count("rounds".to_owned(), rounds);
        }
        Ok(batch)
    }

    /// The rows of the device, or of the CPU where the device fails and that is allowed.
    async fn rows(self, context: Arc<TaskContext>) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let baseline = BaselineMetrics::new(&self.metrics, 0);
        let exec = self.clone();
        let timer = baseline.elapsed_compute().clone();
        let memory = MemoryConsumer::new(self.name()).register(context.memory_pool());
        memory.try_grow(self.work.host_bytes(&self.table))?;
        let solved = SpawnedTask::spawn_blocking(move || {
            let _timer = timer.timer();
            exec.on_device(memory)
        });
        let solved = solved.join().await;
        let solved = solved.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?;
        let (error, fallback) = match (solved, &self.fallback) {
            (Err(error), Some(fallback)) => (error, fallback),
            (solved, _) => {
                let batch = solved.record_output(&baseline)?;
                return Ok(futures::stream::once(async { Ok(batch) }).boxed());
            }
        };
        log::warn!(
            "a query over the pinned table {} runs on the CPU, over the table itself: {error}",
            self.table.source.name()
        );
        MetricBuilder::new(&self.metrics)
            .counter("cuda_fallback", 0)
            .add(1);
        let rows = fallback.rows(self.ordering.as_ref(), context).await?;
        let schema = Arc::clone(&self.schema);
        let rows = rows.map(move |batch| renamed(&batch?, &schema).record_output(&baseline));
        Ok(rows.boxed())
    }
}

/// The same columns under the names of `schema`.
fn renamed(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = batch.columns().to_vec();
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns,
        &options,
    )?)
}

fn properties(equivalences: EquivalenceProperties) -> PlanProperties {
    PlanProperties::new(
        equivalences,
        Partitioning::UnknownPartitioning(1),
        EmissionType::Final,
        Boundedness::Bounded,
    )
    .with_scheduling_type(SchedulingType::Cooperative)
}

/// Each once, as they come.
fn distinct(columns: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut all = Vec::new();
    columns.for_each(|column| {
        if !all.contains(&column) {
            all.push(column);
        }
    });
    all
}

impl DisplayAs for PinnedExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let columns = self.work.columns();
        let columns = columns.iter().map(|column| self.table.name(*column));
        let columns = comma_separated(columns);
        let (name, shown) = (self.name(), self.work.shown(&self.table));
        let devices = self.table.shares().iter();
        let devices: Vec<_> = devices.map(|share| share.device.to_string()).collect();
        let (device, table) = (devices.join("+"), &self.table.source.name());
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(
                    f,
                    "{name}: device={device}, table={table}, columns=[{columns}], {shown}"
                )?;
                if let Some(filter) = &self.shown_filter {
                    write!(f, ", where=[{filter}]")?;
                }
                match self.fallback {
                    Some(_) => write!(f, ", fallback=cpu"),
                    None => Ok(()),
                }
            }
            DisplayFormatType::TreeRender => {
                writeln!(f, "device={device}")?;
                writeln!(f, "table={table}")?;
                writeln!(f, "{shown}")?;
                match &self.shown_filter {
                    Some(filter) => writeln!(f, "where={filter}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl ExecutionPlan for PinnedExec {
    fn name(&self) -> &str {
        self.work.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        // Only once the device has failed: for those who look at what ran.
        let ran = self.fallback.as_ref().and_then(|fallback| fallback.ran.get());
        ran.into_iter().collect()
    }

    fn replace_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.fresh()))
    }

    fn with_new_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.fresh()))
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        // Its columns are those of the device.
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!(
                "{} has one partition, asked for partition {partition}",
                self.name()
            );
        }
        let rows = self.clone().rows(context);
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            futures::stream::once(rows).try_flatten(),
        )))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
