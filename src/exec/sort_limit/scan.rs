//! One input partition, read once.
//!
//! ```text
//! batch -- first column does not reach the floor? --yes--> dropped: no key is made, nothing is copied
//!             | no
//!          its whole key? --no--> dropped
//!             | yes
//!          held, until a cut leaves it out
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
use super::plan::TopPlan;
use super::store::{Store, with_columns};
use crate::exec::expressions::values;
use crate::exec::give_way::give_way;
use crate::failpoint::may_fail;
use crate::kernel::cpu::top::{Best, Places};
use crate::key::Key;

/// Rows that are held beside the best before it is worth to drop them.
const SPARE_ROWS: usize = 1 << 14;

/// What the scans of one execution share.
pub(super) struct Shared {
    pub(super) plan: Arc<TopPlan>,
    pub(super) floor: SharedFloor,
    pub(super) rows: Count,
    pub(super) rejected: Count,
    pub(super) times: [Time; 2],
}

/// Reserves as much as there is to be held.
///
/// # Errors
/// `ResourcesExhausted` that says what it was for.
pub(super) fn reserve(memory: &MemoryReservation, bytes: usize, k: usize) -> Result<()> {
    memory.try_resize(bytes).map_err(|error| {
        error.context(format!(
            "the first {k} rows: {bytes} bytes wanted, {} bytes held",
            memory.size()
        ))
    })
}

/// The scan of one partition.
pub(super) struct TopScan<K> {
    shared: Arc<Shared>,
    pub(super) best: Best<K>,
    pub(super) store: Store,
    pub(super) memory: MemoryReservation,
    /// How often the shared floor had risen when it was last looked at.
    seen: u64,
    places: Vec<u32>,
}

impl<K: Key> TopScan<K> {
    pub(super) fn try_new(shared: Arc<Shared>, memory: &MemoryReservation) -> Result<Self> {
        Ok(Self {
            best: Best::try_new(shared.plan.k)?,
            store: Store::new(Arc::clone(&shared.plan.schema)),
            memory: memory.new_empty(),
            seen: 0,
            places: Vec::new(),
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
        self.best.tighten()?;
        self.publish()?;
        Ok(self)
    }

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
        let lead = values(&plan.by.first().expr, batch)?;
        let is_sparse = self.pass(&lead)?;
        if is_sparse && self.places.is_empty() {
            self.shared.rejected.add(rows);
            return Ok(());
        }
        let others = plan.by.iter().skip(1).map(|by| values(&by.expr, batch));
        let mut columns = vec![lead];
        columns.extend(others.collect::<Result<Vec<_>>>()?);
        if is_sparse {
            let places = UInt32Array::from(self.places.clone());
            for column in &mut columns {
                *column = take(column.as_ref(), &places, None)?;
            }
        }
        let keys = plan.keys.keys::<K>(&columns)?;
        let kept = self.add(batch, &keys, is_sparse)?;
        self.shared.rejected.add(rows - kept);
        self.publish()
    }

    /// Looks for rows that may reach the floor by their first column; whether they are [`Self::places`], and not most.
    fn pass(&mut self, lead: &ArrayRef) -> Result<bool> {
        let (floor, ties) = self.best.floor();
        if ties && floor == K::default() {
            return Ok(false);
        }
        let Some(bound) = self.shared.plan.keys.lead_bound(floor.to_bits(), ties) else {
            return Ok(false);
        };
        self.places.clear();
        bound.append_passing(lead.as_ref(), &mut self.places)?;
        Ok(4 * self.places.len() < 3 * lead.len())
    }

    /// Adds rows of a batch, all or those at [`Self::places`]; how many of them are held.
    fn add(&mut self, batch: &RecordBatch, keys: &[K], is_sparse: bool) -> Result<usize> {
        self.make_room(self.best.more_bytes(keys.len()))?;
        let first = self.store.next();
        let places = if is_sparse {
            Places::At(first, &self.places)
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
            self.store.add(with_columns(batch, &rows)?);
            (first..).zip(new).for_each(|(number, row)| *row = number);
        }
        if self.store.rows() > 2 * self.best.rows().len() + SPARE_ROWS {
            self.compact()?;
        }
        self.make_room(0)?;
        Ok(kept)
    }

    /// Reserves what is held and `more` bytes, if need be after dropping all that is not wanted.
    fn make_room(&mut self, more: usize) -> Result<()> {
        let held = |scan: &Self| scan.best.held_bytes() + scan.store.bytes() + more;
        if self.memory.try_resize(held(self)).is_ok() {
            return Ok(());
        }
        self.best.tighten()?;
        if self.store.rows() > self.best.rows().len() {
            self.compact()?;
        }
        reserve(&self.memory, held(self), self.shared.plan.k)
    }

    /// Drops rows that are not among the best.
    fn compact(&mut self) -> Result<()> {
        may_fail!("top_compact");
        // Old and new are there at the same time.
        let wanted = self.best.rows().len() as f64 / self.store.rows().max(1) as f64;
        let extra = self.memory.new_empty();
        reserve(
            &extra,
            (self.store.bytes() as f64 * wanted) as usize,
            self.shared.plan.k,
        )?;
        self.store.compact(self.best.rows_mut())
    }

    /// Tells the others of the floor.
    fn publish(&self) -> Result<()> {
        match self.best.proven() {
            Some(key) => self.shared.floor.raise(key.to_bits()),
            None => Ok(()),
        }
    }
}
