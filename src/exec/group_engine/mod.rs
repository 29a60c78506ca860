//! The engine of operators over groups: reads partitions, numbers groups, and answers all groups at once or by hash partition.
//!
//! ```text
//! partition 0 ─ scan ─ few groups:  rows with the number of their group ────────────────┐
//!                      many groups: runs, rows in order of their group's hash partition ┤ (past the memory limit: on disk)
//! partition 1 ─ scan ─ ...                                                             ─┤
//!                                                                                       │
//!   few:  rows of all scans, under one numbering of groups ─────────────────────────────┼─> one answer
//!   many: one hash partition after the other, each with a numbering of its own ─────────┴─> an answer for each
//! ```
//! A [`GroupedWork`] says what is kept of rows and how groups are answered: quantiles ([`grouped`](super::grouped)) or best rows
//! ([`grouped_topk`](super::grouped_topk)).

mod few;
mod ids;
mod packing;
mod partitions;
mod rows;
mod run;
mod scan;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, Time,
};
use futures::StreamExt;
use futures::stream::BoxStream;

pub(super) use self::few::FewGroups;
pub(super) use self::ids::{FrozenIds, GroupColumns, GroupIds};
pub(super) use self::partitions::HashPartitions;
pub(super) use self::rows::{PartitionedRows, WaitingBatches, waiting_bytes};
pub(super) use self::run::stream;
pub(super) use self::scan::GroupScan;
use super::operator::Execution;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::KeySpec;
use crate::memory::{FreePages, Spiller, limit};

/// Most groups that count as few. Rows of more groups are partitioned by hash.
pub(super) const FEW_GROUPS: usize = 4096;

/// A batch whose expressions have been evaluated: its group columns, and the values that the work wants.
pub(super) struct EvaluatedBatch<V> {
    pub(super) groups: Vec<ArrayRef>,
    pub(super) values: V,
}

/// Answers of some groups, and the number of these groups.
pub(super) struct AnsweredGroups {
    pub(super) groups: usize,
    pub(super) batch: RecordBatch,
}

/// What one kind of operator over groups does. There is one value for each execution of an operator.
pub(super) trait GroupedWork: Sized + Send + Sync + 'static {
    /// What memory is reserved for, as errors call it.
    const ROWS: &'static str;
    /// Most bytes of rows that wait to become a run, not counting one last batch.
    const WAITING_BYTES: usize;

    /// The values of a batch that the work wants, besides group columns.
    type Values: Send + 'static;
    /// The state of a scan, besides the numbers of its groups and its partitioned rows.
    type Scan<W: GroupKey>: Send + 'static;
    /// The part of a scan's state that remains at its end, if its rows are partitioned.
    type Scanned<W: GroupKey>: Send + Sync + 'static;
    /// The state of a thread that answers hash partitions, one after the other.
    type Worker<W: GroupKey>: Send + 'static;

    /// The columns that rows are grouped by.
    fn groups(&self) -> &GroupColumns;

    /// The key columns of partitioned rows. Some kinds of rows have none of them.
    fn specs(&self) -> &[KeySpec];

    /// Schema of the answer.
    fn schema(&self) -> &SchemaRef;

    /// Whether rows are partitioned from the start.
    fn starts_partitioned(&self) -> bool {
        false
    }

    /// Evaluates the expressions over a batch.
    ///
    /// # Errors
    /// Errors of expressions.
    fn evaluate(&self, batch: &RecordBatch) -> Result<EvaluatedBatch<Self::Values>>;

    /// The state of a scan before its first row.
    ///
    /// # Errors
    /// `ResourcesExhausted`; errors of accumulators.
    fn scan<W: GroupKey>(&self, shared: &Shared<Self>, memory: &MemoryReservation) -> Result<Self::Scan<W>>;

    /// Whether the partitioned rows of `scan` keep the numbers of their groups, as plain aggregates beside need them.
    fn numbers_partitioned<W: GroupKey>(&self, scan: &Self::Scan<W>) -> bool;

    /// Bytes that the rows of few groups hold.
    fn few_bytes<W: GroupKey>(&self, scan: &Self::Scan<W>) -> usize;

    /// Bytes that `scan` holds, without those that have a reservation of their own.
    fn held_bytes<W: GroupKey>(&self, scan: &Self::Scan<W>) -> usize;

    /// Adds rows of few groups, by the numbers of their groups. Returns the batch if there is no memory for it.
    ///
    /// # Errors
    /// Errors of the work on the rows.
    fn push_few<W: GroupKey>(
        scan: &mut GroupScan<Self, W>,
        batch: EvaluatedBatch<Self::Values>,
    ) -> Result<Option<EvaluatedBatch<Self::Values>>>;

    /// Moves the rows that `scan` holds by group number to hash partitions.
    ///
    /// # Errors
    /// As for [`PartitionedRows::append`].
    fn leave_few<W: GroupKey>(scan: &mut GroupScan<Self, W>) -> Result<()>;

    /// Adds rows to hash partitions. Their groups have numbers if [`Self::numbers_partitioned`] says so.
    ///
    /// # Errors
    /// As for [`PartitionedRows::append`].
    fn push_many<W: GroupKey>(
        scan: &mut GroupScan<Self, W>,
        batch: EvaluatedBatch<Self::Values>,
    ) -> Result<()>;

    /// Drops rows that cannot be part of the answer, and returns whether at least half of those in memory were dropped. If fewer would
    /// be, all stay.
    ///
    /// # Errors
    /// Errors of taking rows; `ResourcesExhausted` if the system gives no memory.
    fn compact<W: GroupKey>(&self, _rows: &mut PartitionedRows<W>, _shared: &Shared<Self>) -> Result<bool> {
        Ok(false)
    }

    /// Ends a scan whose rows are partitioned. `memory`, which is that of its state, becomes that of the state that remains.
    ///
    /// # Errors
    /// `ResourcesExhausted`; DataFusion's.
    fn scanned<W: GroupKey>(
        &self,
        scan: Self::Scan<W>,
        ids: GroupIds<W>,
        memory: &MemoryReservation,
    ) -> Result<Self::Scanned<W>>;

    /// Whether the rows of these scans should be partitioned although groups are few.
    fn partitions_few<W: GroupKey>(
        &self,
        _scans: &[GroupScan<Self, W>],
        _memory: &MemoryReservation,
    ) -> bool {
        false
    }

    /// The answers of few groups. Their memory is reserved in `memory` until they are given out.
    ///
    /// # Errors
    /// `ResourcesExhausted`; an error if the query was cancelled.
    fn few<W: GroupKey>(
        shared: Arc<Shared<Self>>,
        few: FewGroups<Self, W>,
        memory: Arc<MemoryReservation>,
    ) -> impl Future<Output = Result<AnsweredGroups>> + Send;

    /// Bytes that a worker needs for each hash partition.
    fn partition_bytes<W: GroupKey>(&self, partitions: &HashPartitions<Self, W>) -> Vec<usize>;

    /// Most rows of a hash partition that one worker answers, of `rows` rows in all; larger ones are oversized. `None`: none is
    /// oversized, whatever its size and the memory limit.
    fn oversized_rows(&self, _rows: usize, _threads: usize) -> Option<usize> {
        None
    }

    /// Whether oversized hash partitions are answered before workers start, so that they have the memory to themselves.
    fn oversized_alone(&self, _shared: &Shared<Self>) -> bool {
        false
    }

    /// The answers of oversized hash partitions, a batch for each, one after the other.
    fn oversized<W: GroupKey>(
        _partitions: &Arc<HashPartitions<Self, W>>,
        _groups: &Count,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        futures::stream::empty().boxed()
    }

    /// The state of a worker before its first hash partition.
    ///
    /// # Errors
    /// DataFusion's.
    fn worker<W: GroupKey>(partitions: &HashPartitions<Self, W>) -> Result<Self::Worker<W>>;

    /// The answers of a hash partition; `None` if it has no groups.
    ///
    /// # Errors
    /// Errors of reading rows back; `ResourcesExhausted`.
    fn partition<W: GroupKey>(
        worker: &mut Self::Worker<W>,
        partitions: &HashPartitions<Self, W>,
        part: usize,
    ) -> Result<Option<AnsweredGroups>>;
}

/// Access to the metrics of one output partition.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    pub(super) set: ExecutionPlanMetricsSet,
    pub(super) partition: usize,
}

impl Metrics {
    /// The metrics of one execution.
    pub(super) fn of(on: &Execution<'_>) -> Self {
        Self {
            set: on.metrics.clone(),
            partition: on.partition,
        }
    }

    /// The counter of this name.
    pub(super) fn count(&self, name: &'static str) -> Count {
        MetricBuilder::new(&self.set).counter(name, self.partition)
    }

    /// The time of this name.
    pub(super) fn time(&self, name: &'static str) -> Time {
        MetricBuilder::new(&self.set).subset_time(name, self.partition)
    }
}

/// The state that all scans and workers of one execution share.
pub(super) struct Shared<T> {
    pub(super) work: T,
    /// Whether any scan has met too many groups.
    many: AtomicBool,
    /// Pages that were given back, for further use.
    pub(super) free: Option<Arc<FreePages>>,
    pub(super) spiller: Spiller,
    /// Bytes that the rows of one scan may hold, so that all scans have an equal share of the memory.
    memory_share: usize,
    pub(super) metrics: Metrics,
    /// Counts the input rows.
    pub(super) rows: Count,
    /// Count processor time of scans.
    times: [Time; 2],
}

impl<T: GroupedWork> Shared<T> {
    /// The shared state of an execution with `scans` scans.
    pub(super) fn new(
        work: T,
        scans: usize,
        metrics: Metrics,
        baseline: &BaselineMetrics,
        context: &TaskContext,
    ) -> Self {
        let pool = context.memory_pool().as_ref();
        Self {
            work,
            many: AtomicBool::new(false),
            free: FreePages::for_execution(context.memory_pool()),
            spiller: Spiller::new(&context.runtime_env()),
            memory_share: memory_share(pool, scans),
            rows: metrics.count("input_rows"),
            times: [metrics.time("scan_time"), baseline.elapsed_compute().clone()],
            metrics,
        }
    }

    /// Gives back pages that are kept for further runs: there are none.
    pub(super) fn close_pages(&self) {
        self.free.iter().for_each(|free| free.close());
    }

    /// Reserves `bytes` more.
    ///
    /// # Errors
    /// `ResourcesExhausted` that says what the memory is for.
    pub(super) fn reserve(&self, memory: &MemoryReservation, bytes: usize) -> Result<()> {
        // As in `memory::reserve`.
        if bytes == 0 {
            return Ok(());
        }
        memory.try_grow(bytes).map_err(|error| {
            let (rows, held) = (T::ROWS, memory.size());
            error.context(format!("{rows}: {bytes} more bytes wanted, {held} bytes held"))
        })
    }

    /// Whether the pool has a limit that is known.
    pub(super) fn is_bounded(&self) -> bool {
        self.memory_share < usize::MAX
    }
}

/// Bytes that each of `scans` scans may hold of a pool. Together they may hold half of it; the rest is for batches in flight.
fn memory_share(pool: &dyn MemoryPool, scans: usize) -> usize {
    limit(pool).map_or(usize::MAX, |limit| limit / 2 / scans.max(1))
}
