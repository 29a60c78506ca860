//! The engine of operators over groups: reads partitions, numbers groups, and answers them all at once or by hash partition.
//!
//! ```text
//! partition 0 ─ scan ─ few groups:  rows held by the number of their group ─────────────┐
//!                      many groups: runs, rows in order of their group's hash partition ┤ (past the memory limit: on disk)
//! partition 1 ─ scan ─ ...                                                             ─┤
//!                                                                                       │
//!   few:  what all scans hold, under one numbering ─────────────────────────────────────┼─> one answer
//!   many: hash partition by hash partition, numbers of its own ─────────────────────────┴─> an answer for each
//! ```
//! What is kept of rows and how groups are answered is a [`GroupedWork`]: quantiles ([`grouped`](super::grouped)) or best rows
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
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, Time,
};
use futures::StreamExt;
use futures::stream::BoxStream;

pub(super) use self::few::FewGroups;
pub(super) use self::ids::{FrozenIds, GroupColumns, GroupIds};
pub(super) use self::partitions::HashPartitions;
pub(super) use self::rows::{PartitionedRows, Waiting, staged_bytes};
pub(super) use self::run::{sliced, stream};
pub(super) use self::scan::GroupScan;
use super::operator::Execution;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::KeySpec;
use crate::memory::FreePages;
use crate::memory::Spiller;

/// More groups than this, and rows are partitioned.
pub(super) const FEW_GROUPS: usize = 4096;

/// A batch: its group columns, and what else is wanted of it.
pub(super) struct Evaluated<V> {
    pub(super) groups: Vec<ArrayRef>,
    pub(super) values: V,
}

/// An answer, and how many groups it is of.
pub(super) struct Answered {
    pub(super) groups: usize,
    pub(super) batch: RecordBatch,
}

/// What differs between operators over groups. One value for an execution.
pub(super) trait GroupedWork: Sized + Send + Sync + 'static {
    /// What memory is for, in the words of errors.
    const ROWS: &'static str;
    /// Bytes of rows that wait to become a run, at most, but for one batch.
    const STAGED_BYTES: usize;

    /// What is wanted of a batch.
    type Values: Send + 'static;
    /// What a scan holds beside the numbers of its groups and its partitioned rows.
    type Scan<W: GroupKey>: Send + 'static;
    /// What of it is there when rows are partitioned and the scan is over.
    type Scanned<W: GroupKey>: Send + Sync + 'static;
    /// What a thread works on hash partitions with, one after the other.
    type Worker<W: GroupKey>: Send + 'static;

    /// Columns that rows are grouped by.
    fn groups(&self) -> &GroupColumns;

    /// The keys that partitioned rows have; some kinds of rows have none of them.
    fn specs(&self) -> &[KeySpec];

    /// Columns of the answer.
    fn schema(&self) -> &SchemaRef;

    /// Whether rows are partitioned from the start.
    fn starts_partitioned(&self) -> bool {
        false
    }

    /// Rows of a batch of so many bytes that are taken in at a time.
    fn rows_at_a_time(&self, batch: &RecordBatch, _share: usize) -> usize {
        batch.num_rows()
    }

    /// Evaluates a batch.
    ///
    /// # Errors
    /// Those of expressions.
    fn evaluate(&self, batch: &RecordBatch) -> Result<Evaluated<Self::Values>>;

    /// A scan before its first row.
    ///
    /// # Errors
    /// `ResourcesExhausted`; those of accumulators.
    fn scan<W: GroupKey>(&self, shared: &Shared<Self>, memory: &MemoryReservation) -> Result<Self::Scan<W>>;

    /// Whether rows of `scan` are numbered although they are partitioned.
    fn numbers_partitioned<W: GroupKey>(&self, scan: &Self::Scan<W>) -> bool;

    /// Bytes that the rows of few groups hold.
    fn few_bytes<W: GroupKey>(&self, scan: &Self::Scan<W>) -> usize;

    /// Bytes that `scan` holds, but for what has a reservation of its own.
    fn held_bytes<W: GroupKey>(&self, scan: &Self::Scan<W>) -> usize;

    /// Adds rows by the numbers of their groups. A batch for which there is no memory comes back.
    ///
    /// # Errors
    /// Those of the work on the rows.
    fn push_few<W: GroupKey>(
        scan: &mut GroupScan<Self, W>,
        batch: Evaluated<Self::Values>,
    ) -> Result<Option<Evaluated<Self::Values>>>;

    /// Partitions what `scan` holds by number.
    ///
    /// # Errors
    /// As for [`PartitionedRows::stage`].
    fn leave_few<W: GroupKey>(scan: &mut GroupScan<Self, W>) -> Result<()>;

    /// Partitions rows, whose groups have numbers where [`Self::numbers_partitioned`].
    ///
    /// # Errors
    /// As for [`PartitionedRows::stage`].
    fn push_many<W: GroupKey>(scan: &mut GroupScan<Self, W>, batch: Evaluated<Self::Values>) -> Result<()>;

    /// Drops rows that are not wanted; whether half of those in memory or more were dropped. If not, all stay.
    ///
    /// # Errors
    /// Those of taking rows; `ResourcesExhausted` when the system gives no memory.
    fn compact<W: GroupKey>(&self, _rows: &mut PartitionedRows<W>, _shared: &Shared<Self>) -> Result<bool> {
        Ok(false)
    }

    /// Ends a scan whose rows are partitioned. What stays is reserved in `memory`.
    ///
    /// # Errors
    /// `ResourcesExhausted`; DataFusion's.
    fn scanned<W: GroupKey>(
        &self,
        scan: Self::Scan<W>,
        ids: GroupIds<W>,
        memory: &MemoryReservation,
    ) -> Result<Self::Scanned<W>>;

    /// Whether groups that are few are better partitioned.
    fn partitions_few<W: GroupKey>(
        &self,
        _scans: &[GroupScan<Self, W>],
        _memory: &MemoryReservation,
    ) -> bool {
        false
    }

    /// The answer of few groups. What it holds until it is given out is reserved in `memory`.
    ///
    /// # Errors
    /// `ResourcesExhausted`, or when the work was cancelled.
    fn few<W: GroupKey>(
        shared: Arc<Shared<Self>>,
        few: FewGroups<Self, W>,
        memory: Arc<MemoryReservation>,
    ) -> impl Future<Output = Result<Answered>> + Send;

    /// Bytes that a worker sets aside for a hash partition.
    fn partition_bytes<W: GroupKey>(&self, partitions: &HashPartitions<Self, W>, part: usize) -> usize;

    /// Hash partitions with more rows, of `rows` in all, are oversized: not for one worker. `None`: whatever its size and the
    /// memory limit, one worker takes on each.
    fn oversized_rows(&self, _rows: usize, _threads: usize) -> Option<usize> {
        None
    }

    /// Whether oversized hash partitions must have memory for themselves.
    fn oversized_alone(&self, _shared: &Shared<Self>) -> bool {
        false
    }

    /// The answers of oversized hash partitions, one after the other.
    fn oversized<W: GroupKey>(
        _partitions: &Arc<HashPartitions<Self, W>>,
        _groups: &Count,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        futures::stream::empty().boxed()
    }

    /// A worker on hash partitions.
    ///
    /// # Errors
    /// DataFusion's.
    fn worker<W: GroupKey>(partitions: &HashPartitions<Self, W>) -> Result<Self::Worker<W>>;

    /// The answer of a hash partition; `None` if it has no groups.
    ///
    /// # Errors
    /// Those of reading rows back; `ResourcesExhausted`.
    fn partition<W: GroupKey>(
        worker: &mut Self::Worker<W>,
        partitions: &HashPartitions<Self, W>,
        part: usize,
    ) -> Result<Option<Answered>>;
}

/// Metrics of one output partition.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    pub(super) set: ExecutionPlanMetricsSet,
    pub(super) partition: usize,
}

impl Metrics {
    /// Those of one execution.
    pub(super) fn of(on: &Execution<'_>) -> Self {
        Self {
            set: on.metrics.clone(),
            partition: on.partition,
        }
    }

    pub(super) fn count(&self, name: &'static str) -> Count {
        MetricBuilder::new(&self.set).counter(name, self.partition)
    }

    pub(super) fn time(&self, name: &'static str) -> Time {
        MetricBuilder::new(&self.set).subset_time(name, self.partition)
    }
}

/// What the scans and workers of one execution share.
pub(super) struct Shared<T> {
    pub(super) work: T,
    /// Whether any scan has met too many groups.
    many: AtomicBool,
    pub(super) free: Option<Arc<FreePages>>,
    pub(super) spiller: Spiller,
    /// Bytes that the rows of one scan may hold, so that it leaves the others theirs.
    share: usize,
    pub(super) metrics: Metrics,
    pub(super) rows: Count,
    times: [Time; 2],
}

impl<T: GroupedWork> Shared<T> {
    /// For so many scans.
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
            free: FreePages::of(pool),
            spiller: Spiller::new(&context.runtime_env()),
            share: share(pool, scans),
            rows: metrics.count("input_rows"),
            times: [metrics.time("scan_time"), baseline.elapsed_compute().clone()],
            metrics,
        }
    }

    /// Reserves `bytes`.
    ///
    /// # Errors
    /// `ResourcesExhausted` that says what they were for.
    pub(super) fn reserve(&self, memory: &MemoryReservation, bytes: usize) -> Result<()> {
        memory.try_grow(bytes).map_err(|error| {
            let (rows, held) = (T::ROWS, memory.size());
            error.context(format!("{rows}: {bytes} more bytes wanted, {held} bytes held"))
        })
    }

    /// Whether the pool has a limit that is known.
    pub(super) fn is_bounded(&self) -> bool {
        self.share < usize::MAX
    }
}

/// What each of `scans` scans may hold of a pool: together half of it. The rest is for what is in flight.
fn share(pool: &dyn MemoryPool, scans: usize) -> usize {
    match pool.memory_limit() {
        MemoryLimit::Finite(limit) => limit / 2 / scans.max(1),
        MemoryLimit::Infinite | MemoryLimit::Unknown => usize::MAX,
    }
}
