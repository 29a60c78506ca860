//! The operator behind queries over pinned columns.

mod calls;
mod group_topk;
mod groups;
mod quantiles;
mod source;
mod table;
mod topk;

use std::fmt::{self, Debug, Display};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, RecordOutput,
};
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties, execute_stream,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::on_device::record;
use super::operator::{Execution, Operator, Work};
use super::operator::comma_separated;
use super::run::strategy_metric;
use calls::OnDevice;
pub(crate) use calls::{FilteredColumn, PinnedCalls};
pub(crate) use group_topk::PinnedGroupTopK;
pub(crate) use groups::{PinnedCount, PinnedGroups};
pub(crate) use quantiles::PinnedQuantiles;
pub(crate) use source::{PinnedSource, full_name};
pub(crate) use table::{PinnedShare, PinnedTable, PinnedTables};
pub(crate) use topk::{PinnedRows, PinnedTopK, PinnedTopKCall};

/// Plans what takes over when the device fails.
#[async_trait]
pub(crate) trait PlanFallback: Debug + Send + Sync {
    /// A plan on the CPU that gives the operator's rows in their order.
    async fn plan(&self) -> Result<Arc<dyn ExecutionPlan>>;
}

/// What is asked of a pinned table.
#[derive(Debug)]
pub(crate) struct PinnedQuestion {
    pub(crate) table: Arc<PinnedTable>,
    pub(crate) calls: Box<dyn PinnedCalls>,
    /// The filter of all calls, as it was written.
    pub(crate) shown_filter: Option<String>,
    /// Most bytes of device memory that this crate may hold.
    pub(crate) limit: Option<u64>,
    /// Whether the time of each kernel is wanted, which costs about 5 microseconds for each.
    pub(crate) timed: bool,
    /// The order of the rows, where they have one.
    pub(crate) ordering: Option<LexOrdering>,
    /// Names and types of the answer.
    pub(crate) schema: SchemaRef,
}

impl PinnedQuestion {
    fn on(&self, memory: MemoryReservation) -> OnDevice<'_> {
        OnDevice::new(&self.table, self.limit, self.timed, memory)
    }

    /// Whether the values of its columns fit into what the device sorts. The first time that a column is asked for, the device reads
    /// it, as the first execution would have.
    pub(crate) async fn fits(self: &Arc<Self>, pool: &Arc<dyn MemoryPool>) -> bool {
        let (question, memory) = (Arc::clone(self), MemoryConsumer::new(NAME).register(pool));
        let asked = SpawnedTask::spawn_blocking(move || question.calls.fits(&mut question.on(memory)));
        match asked.join().await {
            Ok(Ok(fits)) => fits,
            // The execution meets that too, and has a way out where there is one.
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// All rows, by the device.
    fn answer(&self, memory: MemoryReservation, metrics: &ExecutionPlanMetricsSet) -> Result<RecordBatch> {
        let mut on = self.on(memory);
        let batch = self.calls.batch(&mut on, &self.schema)?;
        record(&on.report, metrics);
        for (strategy, rounds) in on.rounds {
            let count = |name: String, n| MetricBuilder::new(metrics).counter(name, 0).add(n);
            count(strategy_metric(strategy), 1);
            count("rounds".to_owned(), rounds);
        }
        Ok(batch)
    }

    /// The devices, as they are shown.
    fn devices(&self) -> String {
        let devices = self.table.shares().iter();
        let devices: Vec<_> = devices.map(|share| share.device.to_string()).collect();
        devices.join("+")
    }
}

impl Display for PinnedQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.calls.columns().into_iter();
        let columns = comma_separated(columns.map(|column| self.table.name(column)));
        let (device, table) = (self.devices(), self.table.source.name());
        let calls = self.calls.shown(&self.table);
        write!(f, "device={device}, table={table}, columns=[{columns}], {calls}")?;
        match &self.shown_filter {
            Some(filter) => write!(f, ", where=[{filter}]"),
            None => Ok(()),
        }
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
pub type PinnedExec = Operator<PinnedWork>;

const NAME: &str = "PinnedExec";

/// What a [`PinnedExec`] asks, and what takes over when the device fails.
#[derive(Debug)]
pub struct PinnedWork {
    question: Arc<PinnedQuestion>,
    /// Plans what takes over; `None`: a failure is the query's error.
    fallback: Option<Arc<dyn PlanFallback>>,
    /// What took over.
    ran: OnceLock<Arc<dyn ExecutionPlan>>,
}

impl PinnedExec {
    /// The operator that answers a question.
    ///
    /// # Errors
    /// None but internal ones.
    pub(crate) fn try_new(
        question: Arc<PinnedQuestion>,
        fallback: Option<Arc<dyn PlanFallback>>,
    ) -> Result<Self> {
        Self::over(PinnedWork::new(question, fallback), Vec::new())
    }
}

impl PinnedWork {
    fn new(question: Arc<PinnedQuestion>, fallback: Option<Arc<dyn PlanFallback>>) -> Self {
        Self {
            question,
            fallback,
            ran: OnceLock::new(),
        }
    }

    /// The rows of the device, or of the CPU where the device fails and that is allowed.
    async fn rows(
        self: Arc<Self>,
        memory: MemoryReservation,
        metrics: ExecutionPlanMetricsSet,
        context: Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let baseline = BaselineMetrics::new(&metrics, 0);
        let timer = baseline.elapsed_compute().clone();
        let question = Arc::clone(&self.question);
        memory.try_grow(question.calls.host_bytes(&question.table))?;
        let of_device = metrics.clone();
        let answered = SpawnedTask::spawn_blocking(move || {
            let _timer = timer.timer();
            question.answer(memory, &of_device)
        });
        let answered = answered.join().await;
        let answered = answered.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?;
        let (error, fallback) = match (answered, &self.fallback) {
            (Err(error), Some(fallback)) => (error, fallback),
            (answered, _) => {
                let batch = answered.record_output(&baseline)?;
                return Ok(futures::stream::once(async { Ok(batch) }).boxed());
            }
        };
        log::warn!(
            "a query over the pinned table {} runs on the CPU, over the table itself: {error}",
            self.question.table.source.name()
        );
        MetricBuilder::new(&metrics).counter("cuda_fallback", 0).add(1);
        let rows = self.rows_of_fallback(fallback.plan().await?, context)?;
        let schema = Arc::clone(&self.question.schema);
        let rows = rows.map(move |batch| renamed(&batch?, &schema).record_output(&baseline));
        Ok(rows.boxed())
    }

    /// All rows of what takes over, in one partition; in the order of the answer, where it has one.
    fn rows_of_fallback(
        &self,
        mut plan: Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if let (Some(ordering), true) = (
            &self.question.ordering,
            plan.output_partitioning().partition_count() > 1,
        ) {
            plan = Arc::new(SortPreservingMergeExec::new(ordering.clone(), plan));
        }
        // A second execution plans anew: scans can be read once.
        self.ran.set(Arc::clone(&plan)).ok();
        execute_stream(plan, context)
    }
}

impl Work for PinnedWork {
    fn name(&self) -> &'static str {
        NAME
    }

    fn properties(&self, _inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        let orderings = self.question.ordering.clone();
        let equivalences =
            EquivalenceProperties::new_with_orderings(Arc::clone(&self.question.schema), orderings);
        let properties = PlanProperties::new(
            equivalences,
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Ok(Arc::new(
            properties.with_scheduling_type(SchedulingType::Cooperative),
        ))
    }

    fn details(&self) -> String {
        let fallback = if self.fallback.is_some() {
            ", fallback=cpu"
        } else {
            ""
        };
        format!("{}{fallback}", self.question)
    }

    fn tree_details(&self) -> String {
        let question = &self.question;
        let mut lines = format!(
            "device={}\ntable={}\n{}",
            question.devices(),
            question.table.source.name(),
            question.calls.shown(&question.table)
        );
        if let Some(filter) = &question.shown_filter {
            lines += &format!("\nwhere={filter}");
        }
        lines
    }

    fn took_over(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        self.ran.get()
    }

    fn renewed(self: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self::new(Arc::clone(&self.question), self.fallback.clone()))
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let context = Arc::clone(&on.context);
        let rows = Arc::clone(self).rows(on.memory(), on.metrics.clone(), context);
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            on.schema(),
            futures::stream::once(rows).try_flatten(),
        )))
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
