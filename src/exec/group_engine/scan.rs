//! Scan of one input partition, by groups.
//!
//! While groups are few, rows are held by the numbers of their groups. Once any partition has met too many groups, or memory does not
//! suffice, rows are partitioned by the hash of their group. Past the pool's limit, they go to disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::StreamExt;

use super::{EvaluatedBatch, FEW_GROUPS, GroupIds, GroupedWork, PartitionedRows, Shared};
use crate::exec::give_way::give_way;
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::threads::blocking;

/// The scan of one partition.
pub(in crate::exec) struct GroupScan<T: GroupedWork, W: GroupKey> {
    pub(in crate::exec) shared: Arc<Shared<T>>,
    pub(in crate::exec) ids: GroupIds<W>,
    /// The state of the work.
    pub(in crate::exec) held: T::Scan<W>,
    /// A batch that could not be added to the rows of few groups: memory did not suffice, or groups are many with it.
    pub(in crate::exec) rest: Option<EvaluatedBatch<T::Values>>,
    /// Whether rows are held by group number; otherwise they are partitioned.
    pub(super) is_few: bool,
    pub(in crate::exec) rows: PartitionedRows<W>,
    /// Memory for [`Self::held_bytes`].
    pub(in crate::exec) memory: MemoryReservation,
    /// Number of the group of each row of the last batch.
    pub(in crate::exec) numbers: Vec<usize>,
}

impl<T: GroupedWork, W: GroupKey> GroupScan<T, W> {
    pub(in crate::exec) fn try_new(shared: Arc<Shared<T>>, memory: &MemoryReservation) -> Result<Self> {
        let work = &shared.work;
        Ok(Self {
            ids: work.groups().ids()?,
            held: work.scan(&shared, memory)?,
            rest: None,
            is_few: !work.starts_partitioned(),
            rows: PartitionedRows::new(memory),
            memory: memory.new_empty(),
            numbers: Vec::new(),
            shared,
        })
    }

    /// Reads the whole partition.
    ///
    /// # Errors
    /// The stream's, an expression's, or `ResourcesExhausted` if neither memory nor disk is left.
    pub(super) async fn read(mut self, mut stream: SendableRecordBatchStream) -> Result<Self> {
        let mut since = Instant::now();
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            let rows = batch.num_rows();
            self.shared.rows.add(rows);
            let most = self
                .rows
                .rows_at_a_time(batch.columns(), rows, &self.shared)
                .max(1);
            for from in (0..rows).step_by(most) {
                let piece = batch.slice(from, most.min(rows - from));
                if !self.is_few {
                    self.timed(|scan| scan.push(&piece))?;
                } else if self.timed(|scan| scan.push_few(&piece))? {
                    self = blocking(move || self.timed(Self::leave_few).map(|()| self)).await?;
                }
                give_way(&mut since).await;
            }
        }
        if !self.is_few {
            self.rows.end(&self.shared)?;
        }
        Ok(self)
    }

    /// Reads while groups are few and memory suffices for their rows. What comes after these has not been looked at, except for
    /// [`Self::rest`].
    ///
    /// # Errors
    /// The stream's or an expression's.
    pub(in crate::exec) async fn read_few(&mut self, stream: &mut SendableRecordBatchStream) -> Result<()> {
        let mut since = Instant::now();
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            self.shared.rows.add(batch.num_rows());
            if self.timed(|scan| scan.push_few(&batch))? {
                return Ok(());
            }
            give_way(&mut since).await;
        }
        Ok(())
    }

    /// Runs `push`, and counts its time.
    fn timed<R>(&mut self, push: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let start = Instant::now();
        let pushed = push(self);
        self.shared.times.iter().for_each(|time| time.add_elapsed(start));
        pushed
    }

    /// Adds rows to those of few groups. If groups are many then, or memory does not suffice, tells all scans to partition. Returns
    /// whether any scan has told so.
    fn push_few(&mut self, batch: &RecordBatch) -> Result<bool> {
        may_fail!("group_scan");
        if batch.num_rows() == 0 {
            return Ok(self.shared.many.load(Ordering::Relaxed));
        }
        let batch = self.shared.work.evaluate(batch)?;
        self.ids.number(&batch.groups, &mut self.numbers)?;
        self.rest = if self.ids.len() > FEW_GROUPS || self.shared.many.load(Ordering::Relaxed) {
            Some(batch)
        } else {
            T::push_few(self, batch)?
        };
        let is_full = || {
            self.shared.work.few_bytes(&self.held) > self.shared.memory_share
                || self.memory.try_resize(self.held_bytes()).is_err()
        };
        if self.rest.is_some() || is_full() {
            // In hash partitions, rows can go to disk.
            self.shared.many.store(true, Ordering::Relaxed);
        }
        Ok(self.shared.many.load(Ordering::Relaxed))
    }

    /// Adds rows to hash partitions.
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        may_fail!("group_scan");
        let batch = self.shared.work.evaluate(batch)?;
        if self.shared.work.numbers_partitioned(&self.held) {
            self.ids.number(&batch.groups, &mut self.numbers)?;
        }
        self.push_many(batch)
    }

    /// Adds rows to hash partitions. Their groups are numbered, if they have to be.
    fn push_many(&mut self, batch: EvaluatedBatch<T::Values>) -> Result<()> {
        T::push_many(self, batch)?;
        let bytes = self.held_bytes();
        if self.memory.try_resize(bytes).is_err() {
            self.rows.make_room(&self.shared)?;
            let wanted = bytes.saturating_sub(self.memory.size());
            self.shared.reserve(&self.memory, wanted).map_err(|error| {
                error.context(format!("groups and what is held of them: {bytes} bytes wanted"))
            })?;
        }
        Ok(())
    }

    /// Bytes of the numbers of groups, and of the state of the work.
    fn held_bytes(&self) -> usize {
        let numbers = self.is_few || self.shared.work.numbers_partitioned(&self.held);
        let ids = if numbers { self.ids.bytes() } else { 0 };
        ids + self.shared.work.held_bytes(&self.held)
    }

    /// Moves all rows to hash partitions, if they are not there yet.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub(super) fn into_many(mut self) -> Result<Self> {
        if self.is_few {
            self.timed(Self::leave_few)?;
        }
        self.rows.end(&self.shared)?;
        Ok(self)
    }

    /// Moves the rows of few groups to hash partitions.
    fn leave_few(&mut self) -> Result<()> {
        self.is_few = false;
        T::leave_few(self)?;
        let held = self.held_bytes();
        self.memory.shrink(self.memory.size().saturating_sub(held));
        self.rest.take().map_or(Ok(()), |batch| self.push_many(batch))
    }
}
