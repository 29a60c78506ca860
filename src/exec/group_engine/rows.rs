//! Rows of one scan in order of their hash partition, in memory or on disk, and those that wait to be put in order.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::ColumnarValue;

use super::{GroupedWork, Shared};
use crate::failpoint::may_fail;
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::runs::{RUN_ROWS, Run, Staged, run_bytes, scatter};
use crate::key::KeySpec;
use crate::memory::FreePages;
use crate::memory::SpillFile;

/// Bytes of runs from which on a scan tries to drop rows that are not wanted.
const COMPACT_BYTES: usize = 64 << 20;

/// Batches that become one run: all have columns and others of the same kinds.
pub(in crate::exec) struct Waiting<W> {
    batches: Vec<Staged<W>>,
    rows: usize,
    /// Bytes of the run that they become.
    bytes: usize,
}

impl<W: GroupKey> Waiting<W> {
    pub(in crate::exec) fn new() -> Self {
        Self {
            batches: Vec::new(),
            rows: 0,
            bytes: 0,
        }
    }

    /// Whether the run of these batches can take this one in.
    fn takes(&self, batch: &Staged<W>) -> bool {
        let kind = |batch: &Staged<W>| (batch.columns.len(), batch.others.len());
        self.batches
            .first()
            .is_none_or(|first| kind(first) == kind(batch))
    }

    /// Adds a batch, which takes `bytes` in a run.
    pub(in crate::exec) fn add(&mut self, batch: Staged<W>, bytes: usize) {
        self.rows += batch.words.len();
        self.bytes += bytes;
        self.batches.push(batch);
    }

    /// Whether the rows make a run, by their number or by their bytes.
    pub(in crate::exec) fn is_full(&self, bytes: usize) -> bool {
        self.rows >= RUN_ROWS || self.bytes >= bytes
    }

    /// The run of all batches, none of which waits then; `None` of no rows.
    ///
    /// # Errors
    /// When the system gives no memory.
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

/// Bytes that a batch takes in a run, and what says where its rows go.
pub(in crate::exec) fn staged_bytes<W>(batch: &Staged<W>, specs: &[KeySpec]) -> usize {
    let others = batch.others.iter().map(|column| match column {
        // Batches may be slices of one array, each of which would count as all of it.
        ColumnarValue::Array(column) => row_bytes(column),
        ColumnarValue::Scalar(_) => 0,
    });
    run_bytes(batch, specs) + size_of::<u16>() * batch.parts.len() + others.sum::<usize>()
}

/// Rows in order of their hash partition, and those that wait to become a run.
pub(in crate::exec) struct PartitionedRows<W> {
    waiting: Vec<Waiting<W>>,
    pub(in crate::exec) runs: Vec<Run>,
    /// Where runs are that left memory.
    pub(in crate::exec) file: Option<SpillFile>,
    /// For the rows that wait, and as much again for the runs that they become.
    staging: MemoryReservation,
    /// For what runs hold in memory.
    held: MemoryReservation,
    /// Once runs hold so many bytes, rows that are not wanted are dropped, if they are most.
    compact_at: usize,
}

impl<W: GroupKey> PartitionedRows<W> {
    /// No rows, whose memory is accounted to the consumer of `memory`.
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

    /// Adds rows. They are written to disk where there is no memory for them.
    ///
    /// # Errors
    /// `ResourcesExhausted` where neither memory nor disk is left.
    pub(in crate::exec) fn stage<T: GroupedWork>(
        &mut self,
        batch: Staged<W>,
        shared: &Shared<T>,
    ) -> Result<()> {
        let bytes = staged_bytes(&batch, shared.work.specs());
        // What waits, and the run that it becomes: about as much.
        let wanted = 2 * bytes;
        if self.held.size() + self.staging.size() + wanted > shared.share {
            self.make_room(shared)?;
        }
        self.reserve(wanted, shared)?;
        let at = self.waiting.iter().position(|waiting| waiting.takes(&batch));
        let at = at.unwrap_or(self.waiting.len());
        if at == self.waiting.len() {
            self.waiting.push(Waiting::new());
        }
        self.waiting[at].add(batch, bytes);
        if self.waiting[at].is_full(T::STAGED_BYTES) {
            self.flush(shared)?;
            self.compact_at_times(shared)?;
        }
        Ok(())
    }

    /// Reserves `wanted` bytes for rows that wait, and makes room in one way after the other until they are there.
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
    /// When the system gives no memory.
    pub(in crate::exec) fn flush<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        for mut waiting in std::mem::take(&mut self.waiting) {
            if let Some(run) = waiting.run(shared.work.specs(), shared.free.as_ref())? {
                // Before the reservation of what waited is given back: nobody else may take it in between.
                self.held.grow(run.bytes() + run.index_bytes());
                self.runs.push(run);
            }
        }
        self.staging.free();
        Ok(())
    }

    /// Drops rows that are not wanted, whenever twice as many bytes are held as after the last time: so what is held grows
    /// with the groups, not with the input.
    fn compact_at_times<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        if self.held.size() >= self.compact_at {
            shared.work.compact(self, shared)?;
            self.compact_at = COMPACT_BYTES.max(2 * self.held.size());
        }
        Ok(())
    }

    /// Drops rows that are not wanted, or if they are not most, moves all to disk, if there is one.
    ///
    /// # Errors
    /// Those of the disk; when the system gives no memory.
    pub(in crate::exec) fn make_room<T: GroupedWork>(&mut self, shared: &Shared<T>) -> Result<()> {
        self.flush(shared)?;
        if shared.work.compact(self, shared)? {
            Ok(())
        } else {
            self.spill(shared)
        }
    }

    /// Moves all to disk, if there is one.
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

    /// Runs in memory that have a value column.
    pub(in crate::exec) fn resident(&self) -> impl Iterator<Item = &Run> {
        let runs = self.runs.iter();
        runs.filter(|run| run.is_in_memory() && !run.columns.is_empty())
    }

    /// Puts `runs` in the place of [`Self::resident`] ones, in their memory.
    ///
    /// # Errors
    /// `ResourcesExhausted` if they hold more.
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
