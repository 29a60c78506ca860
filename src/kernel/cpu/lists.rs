//! Keys that a shard collects for a reply, and the memory that they take.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::key::{Key, KeyVec, ShardKey};
use crate::memory::{COLLECTED_BYTES, Lease, RoundMemory};

/// Least bytes by which the memory of lists grows.
const STEP: usize = 64 << 10;

/// Lists of keys that grow as memory permits. When it does not, all keys are dropped, and the lists stay empty.
pub(super) struct Lists<K> {
    lists: Vec<Vec<K>>,
    keys: usize,
    /// The memory of the lists. `None`: the keys were dropped.
    lease: Option<Lease>,
}

impl<K: ShardKey> Lists<K> {
    /// Empty lists, whose memory is taken from `round_memory`.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is not even memory for empty lists.
    pub(super) fn new(count: usize, round_memory: &Arc<RoundMemory>) -> Result<Self> {
        let lease = round_memory.hold(count * size_of::<Vec<K>>(), "candidates")?;
        Ok(Self {
            lists: vec![Vec::new(); count],
            keys: 0,
            lease: Some(lease),
        })
    }

    /// Lists whose keys were dropped.
    pub(super) fn dropped() -> Self {
        Self {
            lists: Vec::new(),
            keys: 0,
            lease: None,
        }
    }

    /// Whether keys were dropped.
    pub(super) fn are_dropped(&self) -> bool {
        self.lease.is_none()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Lets `collect` add keys to the lists. It returns how many it added: at most one block.
    pub(super) fn add(&mut self, collect: impl FnOnce(&mut [Vec<K>]) -> usize) {
        let Some(lease) = &mut self.lease else { return };
        self.keys += collect(&mut self.lists);
        let needed = self.keys * size_of::<K>() * COLLECTED_BYTES + self.lists.len() * size_of::<Vec<K>>();
        let missing = needed.saturating_sub(lease.bytes());
        if missing > 0 && lease.grow(missing.max(STEP)).is_err() && lease.grow(missing).is_err() {
            (self.lease, self.lists) = (None, Vec::new());
        }
    }

    /// The lists (none if the keys were dropped), and the memory that they hold.
    pub(super) fn finish(self) -> (Vec<Vec<K>>, Option<Lease>) {
        (self.lists, self.lease)
    }
}

/// The lists in the form that a reply has.
pub(super) fn key_vecs<K: ShardKey>(lists: Vec<Vec<K>>) -> Vec<KeyVec> {
    lists.into_iter().map(K::vec).collect()
}

/// A list of keys with a reservation of its own.
pub(super) struct Reserved<K> {
    pub(super) keys: Vec<K>,
    reservation: MemoryReservation,
}

impl<K: Key> Reserved<K> {
    /// An empty list, which will reserve memory from the pool of `reservation`.
    pub(super) fn new(reservation: &MemoryReservation) -> Self {
        Self {
            keys: Vec::new(),
            reservation: reservation.new_empty(),
        }
    }

    /// Makes room for `more` keys.
    ///
    /// # Errors
    /// Errors of the memory pool.
    pub(super) fn make_room(&mut self, more: usize) -> Result<()> {
        let (len, capacity) = (self.keys.len(), self.keys.capacity());
        if len + more > capacity {
            // Both the old and the new memory exist for a moment.
            self.reservation
                .try_grow((len + more).max(2 * capacity) * size_of::<K>())?;
            self.keys.reserve_exact((len + more).max(2 * capacity) - len);
            self.reservation
                .try_resize(self.keys.capacity() * size_of::<K>())?;
        }
        Ok(())
    }
}
