//! Scan of one input partition.
//!
//! ```text
//! batch -- first column does not reach the floor? --yes--> dropped: no key is made, nothing is copied
//!             | no
//!          whole key does not? --yes--> dropped
//!             | no
//!          held, until a cut to the best rows drops it
//! ```

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};
use datafusion::arrow::compute::take;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::{Count, Time};
use futures::StreamExt;

use super::floor::SharedFloor;
use super::plan::SortLimitPlan;
use super::store::{RowStore, copied_rows};
use crate::exec::expressions::values;
use crate::exec::give_way::give_way;
use crate::failpoint::may_fail;
use crate::kernel::cpu::top::{Best, Places};
use crate::key::Key;

/// Number of rows besides the best that are held before it is worth dropping them.
const SPARE_ROWS: usize = 1 << 14;

/// The state that all scans of one execution share.
pub(super) struct Shared {
    pub(super) plan: Arc<SortLimitPlan>,
    pub(super) floor: SharedFloor,
    /// Counts input rows.
    pub(super) rows: Count,
    /// Counts rows that were never held.
    pub(super) rejected: Count,
    /// Count processor time.
    pub(super) times: [Time; 2],
}

/// Resizes a reservation for the first `k` rows to `bytes`.
///
/// # Errors
/// `ResourcesExhausted` that says what the memory is for.
pub(super) fn reserve(memory: &MemoryReservation, bytes: usize, k: usize) -> Result<()> {
    memory.try_resize(bytes).map_err(|error| {
        error.context(format!(
            "the first {k} rows: {bytes} bytes wanted, {} bytes held",
            memory.size()
        ))
    })
}

/// The scan of one partition.
pub(super) struct SortLimitScan<K> {
    shared: Arc<Shared>,
    pub(super) best: Best<K>,
    pub(super) store: RowStore,
    pub(super) memory: MemoryReservation,
    /// Number of times that the shared floor had risen when it was last looked at.
    seen: u64,
    /// Indices of the rows of the last batch whose first column may reach the floor.
    passing: Vec<u32>,
}

impl<K: Key> SortLimitScan<K> {
    pub(super) fn try_new(shared: Arc<Shared>, memory: &MemoryReservation) -> Result<Self> {
        Ok(Self {
            best: Best::try_new(shared.plan.k)?,
            store: RowStore::new(Arc::clone(&shared.plan.schema)),
            memory: memory.new_empty(),
            seen: 0,
            passing: Vec::new(),
            shared,
        })
    }

    /// Reads the whole partition.
    ///
    /// # Errors
    /// The stream's, an expression's, or `ResourcesExhausted`.
    pub(super) async fn read(mut self, mut stream: SendableRecordBatchStream) -> Result<Self> {
        let mut since = Instant::now();
        while let Some(batch) = stream.next().await {
            let (batch, start) = (batch?, Instant::now());
            self.push(&batch)?;
            self.shared.times.iter().for_each(|time| time.add_elapsed(start));
            give_way(&mut since).await;
        }
        self.tighten()?;
        self.make_room(0)?;
        self.publish()?;
        Ok(self)
    }

    /// Adds the rows of a batch that may be part of the answer.
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        may_fail!("top_scan");
        let rows = batch.num_rows();
        self.shared.rows.add(rows);
        if rows == 0 {
            return Ok(());
        }
        if let Some(key) = self.shared.floor.risen_since(&mut self.seen) {
            self.best.exceed(K::from_bits(key));
        }
        let plan = Arc::clone(&self.shared.plan);
        let (lead, is_sparse) = self.leading(batch)?;
        if is_sparse && self.passing.is_empty() {
            self.shared.rejected.add(rows);
            return Ok(());
        }
        let others = plan.by.iter().skip(1).map(|by| values(&by.expr, batch));
        let mut others = others.collect::<Result<Vec<_>>>()?;
        if is_sparse {
            let passing = UInt32Array::from(self.passing.clone());
            for column in &mut others {
                *column = take(column.as_ref(), &passing, None)?;
            }
        }
        let columns: Vec<ArrayRef> = std::iter::once(lead).chain(others).collect();
        let keys = plan.keys.keys::<K>(&columns)?;
        let kept = self.add(batch, &keys, is_sparse)?;
        self.shared.rejected.add(rows - kept);
        self.publish()
    }

    /// The first column of the rows of a batch that may reach the floor, and whether that leaves some out: then they are in
    /// [`Self::passing`].
    fn leading(&mut self, batch: &RecordBatch) -> Result<(ArrayRef, bool)> {
        let (estimated, lead) = match self.reaching(batch)? {
            Some((rows, lead)) => (Some(rows), lead),
            None => (None, values(&self.shared.plan.by.first().expr, batch)?),
        };
        let is_sparse = self.pass(&lead)?;
        let lead = if is_sparse {
            take(lead.as_ref(), &UInt32Array::from(self.passing.clone()), None)?
        } else {
            lead
        };
        let Some(rows) = estimated else {
            return Ok((lead, is_sparse));
        };
        self.passing = if is_sparse {
            self.passing.iter().map(|row| rows[*row as usize]).collect()
        } else {
            rows
        };
        Ok((lead, true))
    }

    /// The rows of a batch whose first column may reach the floor by an estimate, and that column of them; `None` if there is no floor, or
    /// no estimate.
    fn reaching(&self, batch: &RecordBatch) -> Result<Option<(Vec<u32>, ArrayRef)>> {
        let (floor, ties) = self.best.floor();
        let plan = &self.shared.plan;
        let Some(distance) = plan.distance.as_ref().filter(|_| !ties || floor != K::default()) else {
            return Ok(None);
        };
        match plan.keys.values(floor.to_bits())?.first() {
            Some(floor) => distance.reaching(batch, floor),
            None => Ok(None),
        }
    }

    /// Looks for rows whose first column may reach the floor. Returns whether they are less than three quarters of all, and then in
    /// [`Self::passing`].
    fn pass(&mut self, lead: &ArrayRef) -> Result<bool> {
        let (floor, ties) = self.best.floor();
        if ties && floor == K::default() {
            return Ok(false);
        }
        let Some(bound) = self.shared.plan.keys.lead_bound(floor.to_bits(), ties) else {
            return Ok(false);
        };
        self.passing.clear();
        bound.append_passing(lead.as_ref(), &mut self.passing)?;
        Ok(4 * self.passing.len() < 3 * lead.len())
    }

    /// Adds rows of a batch: if `is_sparse`, those in [`Self::passing`], else all. Returns how many of them are held.
    fn add(&mut self, batch: &RecordBatch, keys: &[K], is_sparse: bool) -> Result<usize> {
        self.make_room(self.best.more_bytes(keys.len()))?;
        let first = self.store.next();
        let places = if is_sparse {
            Places::At(first, &self.passing)
        } else {
            Places::From(first)
        };
        self.best.push(keys, places)?;
        self.best.settle()?;
        let from = self.best.rows().partition_point(|row| *row < first);
        let new = &mut self.best.rows_mut()[from..];
        let kept = new.len();
        if kept == 0 {
            return Ok(0);
        }
        if 2 * kept > batch.num_rows() {
            self.store.add(batch.clone());
        } else {
            let rows = UInt32Array::from_iter_values(new.iter().map(|row| (*row - first) as u32));
            self.store.add(copied_rows(batch, &rows)?);
            (first..).zip(new).for_each(|(number, row)| *row = number);
        }
        if self.store.rows() > 2 * self.best.rows().len() + SPARE_ROWS {
            self.compact()?;
        }
        self.make_room(0)?;
        Ok(kept)
    }

    /// Reserves the memory of the rows and `more` bytes. If they are not there, drops all rows that are not among the best first, if it can.
    fn make_room(&mut self, more: usize) -> Result<()> {
        let held = |scan: &Self| scan.best.held_bytes() + scan.store.bytes() + more;
        if self.memory.try_resize(held(self)).is_ok() {
            return Ok(());
        }
        self.tighten()?;
        if self.store.rows() > self.best.rows().len() {
            self.compact()?;
        }
        reserve(&self.memory, held(self), self.shared.plan.k)
    }

    /// Lets go of keys that are not among the best. While it selects them there is a copy.
    fn tighten(&mut self) -> Result<()> {
        let held = self.best.held_bytes() + self.store.bytes();
        reserve(&self.memory, held + self.best.cut_bytes(), self.shared.plan.k)?;
        self.best.tighten()
    }

    /// Drops rows that are not among the best, if there is memory for the copy of those that stay.
    fn compact(&mut self) -> Result<()> {
        may_fail!("top_compact");
        // The old chunks and the new ones are in memory at the same time.
        let wanted = self.best.rows().len() as f64 / self.store.rows().max(1) as f64;
        let extra = self.memory.new_empty();
        if extra
            .try_resize((self.store.bytes() as f64 * wanted) as usize)
            .is_err()
        {
            return Ok(());
        }
        self.store.compact(self.best.rows_mut())
    }

    /// Raises the shared floor to that of this partition.
    fn publish(&self) -> Result<()> {
        match self.best.proven() {
            Some(key) => self.shared.floor.raise(key.to_bits()),
            None => Ok(()),
        }
    }
}
