//! Rows of one scan in the order of their hash partitions, in memory or on disk, and rows that wait to be put in order.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::ColumnarValue;

use super::{GroupedWork, Shared};
use crate::failpoint::may_fail;
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::runs::{RUN_ROWS, Run, WaitingRows, run_bytes, scatter, spill};
use crate::key::KeySpec;
use crate::memory::{FreePages, SpillFile};

/// Once its runs hold this many bytes, a scan tries to drop rows that cannot be part of the answer.
const COMPACT_BYTES: usize = 64 << 20;

/// Bytes that a scan reserves for the rows that it takes in at a time, before it reads; a quarter of its share of the memory at most.
const FLOOR_BYTES: usize = 1 << 20;

/// A scan that is refused these bytes begins with so many times less.
const FEWER: usize = 4;

/// Bytes that a row takes, besides those of its columns, until it is in its hash partition: its group key, its key, and the number of the
/// hash partition.
const ROW_BYTES: usize = 32;

/// Fewest rows that are taken in at a time, however long they are.
const LEAST_ROWS: usize = 64;

/// Batches that wait to become one run. All have the same kinds of columns.
pub(in crate::exec) struct WaitingBatches<W> {
    batches: Vec<WaitingRows<W>>,
    rows: usize,
    /// Bytes of the run that the batches become.
    bytes: usize,
}

impl<W: GroupKey> WaitingBatches<W> {
    pub(in crate::exec) fn new() -> Self {
        Self {
            batches: Vec::new(),
            rows: 0,
            bytes: 0,
        }
    }

    /// Whether this batch can become part of the same run.
    fn takes(&self, batch: &WaitingRows<W>) -> bool {
        let kind = |batch: &WaitingRows<W>| (batch.columns.len(), batch.others.len());
        self.batches
            .first()
            .is_none_or(|first| kind(first) == kind(batch))
    }

    /// Adds a batch, which takes `bytes` bytes in a run.
    pub(in crate::exec) fn add(&mut self, batch: WaitingRows<W>, bytes: usize) {
        self.rows += batch.group_keys.len();
        self.bytes += bytes;
        self.batches.push(batch);
    }

    /// Whether the batches have enough rows for a run, or at least `bytes` bytes.
    pub(in crate::exec) fn is_full(&self, bytes: usize) -> bool {
        self.rows >= RUN_ROWS || self.bytes >= bytes
    }

    /// Makes a run of all batches, so that none waits any more; `None` if there are no rows.
    ///
    /// # Errors
    /// An error if the system gives no memory.
    pub(in crate::exec) fn run(
        &mut self,
        specs: &[KeySpec],
        free: Option<&Arc<FreePages>>,
    ) -> Result<Option<Run>> {
        if self.rows == 0 {
            return Ok(None);
        }
        may_fail!("group_scatter");
        let columns = self.batches[0].columns.len();
        let run = scatter(&self.batches, &specs[..columns], free)?;
        *self = Self::new();
        Ok(Some(run))
    }
}

/// Bytes that a batch takes in a run, with those of its rows' hash partition numbers.
pub(in crate::exec) fn waiting_bytes<W>(batch: &WaitingRows<W>, specs: &[KeySpec]) -> usize {
    let others = batch.others.iter().map(|column| match column {
        // Batches may be slices of one array, so the bytes of whole buffers would be counted several times.
        ColumnarValue::Array(column) => row_bytes(column),
        ColumnarValue::Scalar(_) => 0,
    });
    run_bytes(batch, specs) + size_of::<u16>() * batch.parts.len() + others.sum::<usize>()
}

/// Rows in the order of their hash partitions (runs), and rows that wait to become a run.
pub(in crate::exec) struct PartitionedRows<W> {
    waiting: Vec<WaitingBatches<W>>,
    pub(in crate::exec) runs: Vec<Run>,
    /// File of the runs that are on disk.
    pub(in crate::exec) file: Option<SpillFile>,
    /// Memory of the rows that wait, and as much again for the runs that they become; at least `floor`.
    staging: MemoryReservation,
    /// Bytes of `staging` that are in use.
    staged: usize,
    /// Bytes of `staging` that no other consumer gets, so that there is room for a few rows at a time, which then go to disk.
    floor: usize,
    /// Memory of the runs that are not on disk.
    held: MemoryReservation,
    /// Bytes of runs in memory at which the scan next tries to drop rows.
    compact_at: usize,
}

impl<W: GroupKey> PartitionedRows<W> {
    /// Without rows. Memory is reserved for the consumer of `memory`.
    pub(in crate::exec) fn new(memory: &MemoryReservation) -> Self {
        Self {
            waiting: Vec::new(),
            runs: Vec::new(),
            file: None,
            staging: memory.new_empty(),
            staged: 0,
            floor: 0,
            held: memory.new_empty(),
            compact_at: COMPACT_BYTES,
        }
    }

    /// Reserves the memory for a few rows at a time, before the first of them.
    ///
    /// # Errors
    /// `ResourcesExhausted`.
    pub(super) fn begin<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        let usual = FLOOR_BYTES.min(shared.memory_share / 4);
        self.floor = match self.staging.try_grow(usual) {
            Ok(()) => usual,
            Err(_) => shared
                .reserve(&self.staging, usual / FEWER)
                .map(|()| usual / FEWER)?,
        };
        Ok(())
    }

    /// Number of rows that are taken in at a time, of `rows` rows with these columns: as many as there is always room for under a memory
    /// limit, and no more than may wait. What rows share, such as the values of dictionaries, is not counted.
    pub(in crate::exec) fn rows_at_a_time<T: GroupedWork>(
        &self,
        columns: &[ArrayRef],
        rows: usize,
        shared: &Shared<T>,
    ) -> usize {
        if rows <= LEAST_ROWS {
            return rows;
        }
        // Rows wait, and are copied to their run.
        let room = if shared.is_bounded() {
            self.floor / 2
        } else {
            T::WAITING_BYTES
        };
        let bytes = |column: &ArrayRef| row_bytes(column).saturating_sub(row_bytes(&column.slice(0, 1)));
        let row = columns.iter().map(bytes).sum::<usize>() / (rows - 1) + ROW_BYTES;
        (room / row).clamp(LEAST_ROWS, rows)
    }

    /// Makes runs of the last rows that wait, and gives back the memory for further ones.
    ///
    /// # Errors
    /// As for [`Self::flush`].
    pub(super) fn end<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        self.floor = 0;
        self.flush(shared)
    }

    /// Adds rows. Rows are written to disk if there is no memory for them.
    ///
    /// # Errors
    /// `ResourcesExhausted` if neither memory nor disk is left.
    pub(in crate::exec) fn append<T: GroupedWork>(
        &mut self,
        batch: WaitingRows<W>,
        shared: &Shared<T>,
    ) -> Result<()> {
        let bytes = waiting_bytes(&batch, shared.work.specs());
        // The rows that wait, and the run that they become, which takes about as much.
        let wanted = 2 * bytes;
        if self.held.size() + self.staged + wanted > shared.memory_share {
            self.make_room(shared)?;
        }
        self.reserve(wanted, shared)?;
        let at = self.waiting.iter().position(|waiting| waiting.takes(&batch));
        let at = at.unwrap_or(self.waiting.len());
        if at == self.waiting.len() {
            self.waiting.push(WaitingBatches::new());
        }
        self.waiting[at].add(batch, bytes);
        if self.waiting[at].is_full(T::WAITING_BYTES) {
            self.flush(shared)?;
            self.compact_at_times(shared)?;
        }
        Ok(())
    }

    /// Reserves `wanted` bytes for rows that wait. If they are not there, frees memory in one way after the other.
    fn reserve<T: GroupedWork>(&mut self, wanted: usize, shared: &Shared<T>) -> Result<()> {
        for make_room in [Self::flush::<T>, Self::make_room::<T>, Self::spill::<T>] {
            let more = (self.staged + wanted).saturating_sub(self.staging.size());
            if more == 0 || self.staging.try_grow(more).is_ok() {
                self.staged += wanted;
                return Ok(());
            }
            make_room(self, shared)?;
        }
        shared.reserve(&self.staging, wanted.saturating_sub(self.staging.size()))?;
        self.staged += wanted;
        Ok(())
    }

    /// Makes runs of all rows that wait. If there is no memory for both the runs and the next rows, the runs give way.
    ///
    /// # Errors
    /// Errors of the disk; an error if the system gives no memory.
    pub(in crate::exec) fn flush<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        self.make_runs(shared)?;
        if self.has_floor() {
            return Ok(());
        }
        self.free_runs(shared)
    }

    /// Makes runs of all rows that wait. Their memory is taken from that of the rows.
    fn make_runs<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        let before = self.held.size();
        for mut waiting in std::mem::take(&mut self.waiting) {
            if let Some(run) = waiting.run(shared.work.specs(), shared.free.as_ref())? {
                // Grown before `staging` shrinks, so that no other consumer takes the memory in between.
                self.held.grow(run.bytes() + run.index_bytes());
                self.runs.push(run);
            }
        }
        self.staged = 0;
        let (staging, taken) = (self.staging.size(), self.held.size() - before);
        // What exceeds the floor is given back; what the runs took of the floor is to be reserved again.
        self.staging
            .shrink(staging.min(taken.max(staging.saturating_sub(self.floor))));
        Ok(())
    }

    /// Whether there is memory for the next few rows, if need be by reserving more.
    fn has_floor(&mut self) -> bool {
        let missing = self.floor.saturating_sub(self.staging.size());
        missing == 0 || self.staging.try_grow(missing).is_ok()
    }

    /// Drops rows that cannot be part of the answer, each time that runs hold twice as many bytes as after the last time. So memory
    /// grows with the number of groups, not with the input.
    fn compact_at_times<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        if self.held.size() >= self.compact_at {
            shared.work.compact(self, shared)?;
            self.compact_at = COMPACT_BYTES.max(2 * self.held.size());
        }
        Ok(())
    }

    /// Frees memory: drops rows that cannot be part of the answer or, if they are less than half, moves all rows to disk, if there is
    /// one.
    ///
    /// # Errors
    /// Errors of the disk; an error if the system gives no memory.
    pub(in crate::exec) fn make_room<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        self.make_runs(shared)?;
        self.free_runs(shared)
    }

    /// As [`Self::make_room`], where no rows wait.
    fn free_runs<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        if shared.work.compact(self, shared)? && self.has_floor() {
            return Ok(());
        }
        self.spill(shared)
    }

    /// Moves all rows to disk, if there is one.
    ///
    /// # Errors
    /// As for [`Self::make_room`].
    pub(in crate::exec) fn spill<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        self.make_runs(shared)?;
        if !shared.spiller.is_enabled() || !self.runs.iter().any(Run::is_in_memory) {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(shared.spiller.create(T::ROWS)?),
        };
        let freed = spill::<W>(&mut self.runs, shared.work.specs(), file)?;
        let missing = self.floor.saturating_sub(self.staging.size());
        // Grown before `held` shrinks, so that no other consumer takes the memory in between.
        self.staging.grow(freed.min(missing));
        self.held.shrink(freed);
        Ok(())
    }

    /// Runs in memory that have a key column.
    pub(in crate::exec) fn resident(&self) -> impl Iterator<Item = &Run> {
        let runs = self.runs.iter();
        runs.filter(|run| run.is_in_memory() && !run.columns.is_empty())
    }

    /// Replaces the [`Self::resident`] runs by `runs`, and resizes the reservation.
    ///
    /// # Errors
    /// `ResourcesExhausted` if `runs` hold more bytes than there are.
    pub(in crate::exec) fn replace_resident(&mut self, runs: Vec<Run>) -> Result<()> {
        self.runs
            .retain(|run| !run.is_in_memory() || run.columns.is_empty());
        self.runs.extend(runs);
        let bytes = self.runs.iter().map(|run| run.bytes() + run.index_bytes());
        self.held.try_resize(bytes.sum())
    }

    /// An empty reservation of the consumer that holds the rows.
    pub(in crate::exec) fn new_reservation(&self) -> MemoryReservation {
        self.held.new_empty()
    }
}
