//! Rows of one scan in the order of their hash partitions, in memory or on disk, and rows that wait to be put in order.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::ColumnarValue;

use super::{GroupedWork, Shared};
use crate::failpoint::may_fail;
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::runs::{RUN_ROWS, Run, WaitingRows, run_bytes, scatter};
use crate::key::KeySpec;
use crate::memory::FreePages;
use crate::memory::SpillFile;

/// Once its runs hold this many bytes, a scan tries to drop rows that cannot be part of the answer.
const COMPACT_BYTES: usize = 64 << 20;

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
    /// Memory of the rows that wait, and as much again for the runs that they become.
    staging: MemoryReservation,
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
            held: memory.new_empty(),
            compact_at: COMPACT_BYTES,
        }
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
        if self.held.size() + self.staging.size() + wanted > shared.memory_share {
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
            if self.staging.try_grow(wanted).is_ok() {
                return Ok(());
            }
            make_room(self, shared)?;
        }
        shared.reserve(&self.staging, wanted)
    }

    /// Makes runs of all rows that wait.
    ///
    /// # Errors
    /// An error if the system gives no memory.
    pub(in crate::exec) fn flush<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        for mut waiting in std::mem::take(&mut self.waiting) {
            if let Some(run) = waiting.run(shared.work.specs(), shared.free.as_ref())? {
                // Grown before `staging` is given back, so that no other consumer takes the memory in between.
                self.held.grow(run.bytes() + run.index_bytes());
                self.runs.push(run);
            }
        }
        self.staging.free();
        Ok(())
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
        self.flush(shared)?;
        if shared.work.compact(self, shared)? {
            Ok(())
        } else {
            self.spill(shared)
        }
    }

    /// Moves all rows to disk, if there is one.
    ///
    /// # Errors
    /// As for [`Self::make_room`].
    pub(in crate::exec) fn spill<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        self.flush(shared)?;
        if !shared.spiller.is_enabled() || !self.runs.iter().any(Run::is_in_memory) {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(shared.spiller.create(T::ROWS)?),
        };
        for run in &mut self.runs {
            self.held.shrink(run.spill::<W>(shared.work.specs(), file)?);
        }
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
