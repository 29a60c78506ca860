//! The operator behind queries over pinned columns.

mod calls;
mod group_rows;
mod group_topk;
mod group_tops;
mod groups;
mod nearest;
mod quantiles;
mod scan;
mod source;
mod table;
mod topk;

use std::fmt::{self, Debug, Display};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
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
use super::operator::comma_separated;
use super::operator::{Execution, Operator, Work};
use super::run_metrics::strategy_metric;
pub(crate) use calls::{FilteredColumn, PinnedCalls};
use calls::{OnDevice, batch_of};
pub(crate) use group_rows::PinnedGroupRows;
pub(crate) use group_topk::PinnedGroupTopK;
pub(crate) use groups::{PinnedCount, PinnedGroups};
pub(crate) use nearest::PinnedNearest;
pub(crate) use quantiles::PinnedQuantiles;
pub(crate) use scan::{PinnedScan, PinnedScanExec};
pub(crate) use source::{PinnedSource, full_name};
pub(crate) use table::{PinnedShare, PinnedTable, PinnedTables};
pub(crate) use topk::{PinnedRows, PinnedTopK, PinnedTopKCall};

/// Makes the plan that runs when the device has failed.
#[async_trait]
pub(crate) trait PlanFallback: Debug + Send + Sync {
    /// A plan on the CPU that gives the same rows as the operator, in the same order.
    async fn plan(&self) -> Result<Arc<dyn ExecutionPlan>>;
}

/// A query to a pinned table.
#[derive(Debug)]
pub(crate) struct PinnedQuery {
    pub(crate) table: Arc<PinnedTable>,
    pub(crate) calls: Box<dyn PinnedCalls>,
    /// The filter of all calls as `EXPLAIN` shows it.
    pub(crate) shown_filter: Option<String>,
    /// Most bytes of device memory that this crate may hold.
    pub(crate) limit: Option<u64>,
    /// Whether to measure the time of each kernel, which takes about 5 microseconds for each.
    pub(crate) timed: bool,
    /// The order of the rows. `None`: any order.
    pub(crate) ordering: Option<LexOrdering>,
    /// Names and types of the columns of the answer.
    pub(crate) schema: SchemaRef,
}

impl PinnedQuery {
    fn on(&self, memory: MemoryReservation) -> OnDevice<'_> {
        OnDevice::new(&self.table, self.limit, self.timed, memory)
    }

    /// Whether the values of its columns fit in the records that the device sorts. For that the device reads each column once in its
    /// life, which the first execution need not do again.
    pub(crate) async fn fits(self: &Arc<Self>, pool: &Arc<dyn MemoryPool>) -> bool {
        let (query, memory) = (Arc::clone(self), MemoryConsumer::new(NAME).register(pool));
        let asked = SpawnedTask::spawn_blocking(move || query.calls.fits(&mut query.on(memory)));
        match asked.join().await {
            Ok(Ok(fits)) => fits,
            // The execution has the same error, and uses the fallback if there is one.
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// Computes all rows on the device.
    fn answer(
        &self,
        memory: MemoryReservation,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Vec<RecordBatch>> {
        let mut on = self.on(memory);
        let batches = self.calls.batches(&mut on, &self.schema)?;
        record(&on.report, metrics);
        for (strategy, rounds) in on.rounds {
            let count = |name: String, n| MetricBuilder::new(metrics).counter(name, 0).add(n);
            count(strategy_metric(strategy), 1);
            count("rounds".to_owned(), rounds);
        }
        Ok(batches)
    }

    /// The devices as `EXPLAIN` shows them.
    fn devices(&self) -> String {
        let devices = self.table.shares().iter();
        let devices: Vec<_> = devices.map(|share| share.device.to_string()).collect();
        devices.join("+")
    }
}

impl Display for PinnedQuery {
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

/// Answers a query over columns that are pinned in the memory of a device. The answer has one partition. It is one row of exact
/// quantiles or of calls of `topk_by`, or such a row for each group, or the first rows in the order of a column (of the table, or of
/// each group), or of a distance of vectors from a query.
///
/// The operator reads only the pinned columns. If there is a filter, the device first computes a bitmap of the rows that count. Cost on
/// an H200 for each GiB of a column: 0.5 ms for quantiles, 0.3 ms for rows.
///
/// With `quantiles.device = 'auto'` (`fallback=cpu` in `EXPLAIN`) the query runs on the CPU, over the table itself, when the device
/// fails. The log has a warning then, the metric `cuda_fallback` is 1, and `EXPLAIN ANALYZE` shows the plan that ran as the input of this
/// operator. With other settings the failure is the error of the query.
///
/// Device memory: 4 bytes for each row of a table that is ordered by a distance; a workspace of up to 0.4 of the largest column (0.6 of the
/// share of a device, if there are several), which is kept for the next query, within `quantiles.cuda_memory_limit`; with less memory the
/// query is slower. Groups need 16 bytes for each row of the table, on each device. They need 32 bytes if groups and values, or for best
/// rows groups, keys and values, span more than 64 bits together. Host memory: about 100 bytes for each row, group and rank of the answer,
/// reserved in the memory pool.
///
/// | metric | meaning |
/// | --- | --- |
/// | `kernels` | kernels launched |
/// | `bytes_read` | bytes of columns and bitmaps that kernels read |
/// | `bytes_to_device`, `bytes_from_device` | bytes copied |
/// | `device_time` | time from the first kernel to the last; on several devices that of the slowest, with its waits for the others |
/// | `second_reads`, `deepened` | how often a sample misled |
/// | `ss_count_time` and others | time of each kernel, with `EXPLAIN ANALYZE` |
/// | `strategy_sample_select_on_the_devices` | columns that several devices selected together |
/// | `rounds`, `strategy_<name>` | rounds, and columns that were selected in rounds (see below) |
///
/// Columns are selected in rounds if the strategy is not the device's own, or if several devices left ranks open.
pub type PinnedExec = Operator<PinnedWork>;

const NAME: &str = "PinnedExec";

/// The work of a [`PinnedExec`]: its query, and the plan that runs when the device has failed.
#[derive(Debug)]
pub struct PinnedWork {
    query: Arc<PinnedQuery>,
    /// Makes the plan that runs when the device has failed. `None`: a failure is the error of the query.
    fallback: Option<Arc<dyn PlanFallback>>,
    /// The plan that ran after the device had failed.
    ran: OnceLock<Arc<dyn ExecutionPlan>>,
}

impl PinnedExec {
    /// The operator that answers a query.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn try_new(query: Arc<PinnedQuery>, fallback: Option<Arc<dyn PlanFallback>>) -> Result<Self> {
        Self::over(PinnedWork::new(query, fallback), Vec::new())
    }
}

impl PinnedWork {
    fn new(query: Arc<PinnedQuery>, fallback: Option<Arc<dyn PlanFallback>>) -> Self {
        Self {
            query,
            fallback,
            ran: OnceLock::new(),
        }
    }

    /// The rows from the device, or from the CPU if the device fails and there is a fallback.
    async fn rows(
        self: Arc<Self>,
        memory: MemoryReservation,
        metrics: ExecutionPlanMetricsSet,
        context: Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let baseline = BaselineMetrics::new(&metrics, 0);
        let timer = baseline.elapsed_compute().clone();
        let query = Arc::clone(&self.query);
        memory.try_grow(query.calls.host_bytes(&query.table))?;
        let of_device = metrics.clone();
        let answered = SpawnedTask::spawn_blocking(move || {
            let _timer = timer.timer();
            query.answer(memory, &of_device)
        });
        let answered = answered.join().await;
        let answered = answered.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?;
        let (error, fallback) = match (answered, &self.fallback) {
            (Err(error), Some(fallback)) => (error, fallback),
            (answered, _) => {
                let batches = answered?.into_iter();
                let batches: Vec<_> = batches.map(|batch| Ok(batch.record_output(&baseline))).collect();
                return Ok(futures::stream::iter(batches).boxed());
            }
        };
        log::warn!(
            "a query over the pinned table {} runs on the CPU, over the table itself: {error}",
            self.query.table.source.name()
        );
        MetricBuilder::new(&metrics).counter("cuda_fallback", 0).add(1);
        let rows = self.rows_of_fallback(fallback.plan().await?, context)?;
        let schema = Arc::clone(&self.query.schema);
        let rows = rows.map(move |batch| {
            let batch = batch?;
            let renamed = batch_of(&schema, batch.columns().to_vec(), batch.num_rows());
            renamed.record_output(&baseline)
        });
        Ok(rows.boxed())
    }

    /// All rows of the fallback plan, in one partition, and in the order of the answer if it has one.
    fn rows_of_fallback(
        &self,
        mut plan: Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if let (Some(ordering), true) = (
            &self.query.ordering,
            plan.output_partitioning().partition_count() > 1,
        ) {
            plan = Arc::new(SortPreservingMergeExec::new(ordering.clone(), plan));
        }
        // A second execution makes a plan of its own, because a scan can be read only once.
        self.ran.set(Arc::clone(&plan)).ok();
        execute_stream(plan, context)
    }
}

impl Work for PinnedWork {
    fn name(&self) -> &'static str {
        NAME
    }

    fn properties(&self, _inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        let orderings = self.query.ordering.clone();
        let equivalences =
            EquivalenceProperties::new_with_orderings(Arc::clone(&self.query.schema), orderings);
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
        format!("{}{fallback}", self.query)
    }

    fn tree_details(&self) -> String {
        let query = &self.query;
        let mut lines = format!(
            "device={}\ntable={}\n{}",
            query.devices(),
            query.table.source.name(),
            query.calls.shown(&query.table)
        );
        if let Some(filter) = &query.shown_filter {
            lines += &format!("\nwhere={filter}");
        }
        lines
    }

    fn took_over(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        self.ran.get()
    }

    fn renewed(self: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self::new(Arc::clone(&self.query), self.fallback.clone()))
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
