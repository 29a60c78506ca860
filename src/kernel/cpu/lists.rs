//! Keys that a shard collects for a reply, with the memory they take.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::key::Key;
use crate::key::KeyVec;
use crate::key::ShardKey;
use crate::memory::COLLECTED_BYTES;
use crate::memory::{Lease, RoundMemory};

/// Least that lists grow by.
const STEP: usize = 64 << 10;

/// Lists of keys that grow as memory permits: when it does not, all are dropped, and stay so.
pub(super) struct Lists<K> {
    lists: Vec<Vec<K>>,
    keys: usize,
    /// `None`: dropped.
    held: Option<Lease>,
}

impl<K: ShardKey> Lists<K> {
    /// Lists in memory of `round_memory`.
    ///
    /// # Errors
    /// `ResourcesExhausted` where there is not even room for empty ones.
    pub(super) fn new(count: usize, round_memory: &Arc<RoundMemory>) -> Result<Self> {
        let held = round_memory.hold(count * size_of::<Vec<K>>(), "candidates")?;
        Ok(Self {
            lists: vec![Vec::new(); count],
            keys: 0,
            held: Some(held),
        })
    }

    /// Whether keys were dropped.
    pub(super) fn are_dropped(&self) -> bool {
        self.held.is_none()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Lets `collect` add to the lists; it says how many keys it added: at most a block.
    pub(super) fn add(&mut self, collect: impl FnOnce(&mut [Vec<K>]) -> usize) {
        let Some(held) = &mut self.held else { return };
        self.keys += collect(&mut self.lists);
        let wanted = self.keys * size_of::<K>() * COLLECTED_BYTES + self.lists.len() * size_of::<Vec<K>>();
        let missing = wanted.saturating_sub(held.bytes());
        if missing > 0 && held.grow(missing.max(STEP)).is_err() && held.grow(missing).is_err() {
            (self.held, self.lists) = (None, Vec::new());
        }
    }

    /// The lists (none if they were dropped), and what is held for them.
    pub(super) fn finish(self) -> (Vec<Vec<K>>, Option<Lease>) {
        (self.lists, self.held)
    }
}

/// The lists as a part of a reply.
pub(super) fn key_vecs<K: ShardKey>(lists: Vec<Vec<K>>) -> Vec<KeyVec> {
    lists.into_iter().map(K::vec).collect()
}

/// Keys that grow in a reservation of their own.
pub(super) struct Reserved<K> {
    pub(super) keys: Vec<K>,
    reservation: MemoryReservation,
}

impl<K: Key> Reserved<K> {
    /// None yet, to be reserved where `reservation` is.
    pub(super) fn new(reservation: &MemoryReservation) -> Self {
        Self {
            keys: Vec::new(),
            reservation: reservation.new_empty(),
        }
    }

    /// Makes room for `more` keys.
    ///
    /// # Errors
    /// The pool's.
    pub(super) fn make_room(&mut self, more: usize) -> Result<()> {
        let (len, capacity) = (self.keys.len(), self.keys.capacity());
        if len + more > capacity {
            // Old and new are there at the same time for a moment.
            self.reservation
                .try_grow((len + more).max(2 * capacity) * size_of::<K>())?;
            self.keys.reserve_exact((len + more).max(2 * capacity) - len);
            self.reservation
                .try_resize(self.keys.capacity() * size_of::<K>())?;
        }
        Ok(())
    }
}
