//! Distinct byte strings: a hash table of values in flat memory.

use std::hash::BuildHasher;

use datafusion::common::Result;
use datafusion::common::hash_utils::QualityRandomState;

use super::{At, ByteStrings};
use crate::memory::Lease;

/// One state for all tables, so that hashes of different threads agree.
const STATE: QualityRandomState = QualityRandomState::with_seed(0x1337);

/// A hash of a value. Each of its bits depends on all bytes of the value.
pub(crate) fn hash(value: &[u8]) -> u64 {
    STATE.hash_one(value)
}

/// Number of slots that a table begins with.
const SLOTS: usize = 1 << 10;

/// The location of a value and 32 bits of its hash. The slot is free if `hash` is 0.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    hash: u32,
    at: At,
}

/// Distinct values, in the order of their first appearance. Open addressing with linear probing, at most half full. A
/// value costs its bytes, four more, and 24 to 96 bytes of slots.
#[derive(Debug)]
pub(crate) struct DistinctByteStrings {
    values: ByteStrings,
    /// The slots, a power of two of them.
    slots: Vec<Slot>,
    lease: Lease,
}

impl DistinctByteStrings {
    /// An empty table. The memory of values is added to `lease`.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory for the first slots.
    pub(crate) fn try_new(mut lease: Lease) -> Result<Self> {
        lease.grow(SLOTS * size_of::<Slot>())?;
        Ok(Self {
            values: ByteStrings::default(),
            slots: vec![Slot::default(); SLOTS],
            lease,
        })
    }

    /// Adds a value unless it is there already. `hash` is its [`hash`].
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory for the value; the other values stay.
    pub(crate) fn insert(&mut self, hash: u64, value: &[u8]) -> Result<()> {
        let tag = tag(hash);
        let mask = self.slots.len() - 1;
        let mut index = start(tag, self.slots.len());
        loop {
            let slot = self.slots[index];
            match slot.hash {
                0 => break,
                other if other == tag && self.values.value(slot.at) == value => return Ok(()),
                _ => index = (index + 1) & mask,
            }
        }
        let at = self.push(value)?;
        self.slots[index] = Slot { hash: tag, at };
        if self.values.len() as usize * 2 > self.slots.len() {
            self.grow()?;
        }
        Ok(())
    }

    fn push(&mut self, value: &[u8]) -> Result<At> {
        if self.values.has_room(value.len()) {
            return self.values.push(value);
        }
        let before = self.values.held_bytes();
        let at = self.values.push(value)?;
        // Reserved after it was allocated: nothing but this value was written to it yet.
        self.lease.grow(self.values.held_bytes() - before)?;
        Ok(at)
    }

    fn grow(&mut self) -> Result<()> {
        let slots = self.slots.len() * 4;
        // Old and new slots exist at the same time.
        self.lease.grow(slots * size_of::<Slot>())?;
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); slots]);
        for slot in old.into_iter().filter(|slot| slot.hash != 0) {
            let mut index = start(slot.hash, slots);
            while self.slots[index].hash != 0 {
                index = (index + 1) & (slots - 1);
            }
            self.slots[index] = slot;
        }
        self.lease.shrink(slots / 4 * size_of::<Slot>());
        Ok(())
    }

    /// The values.
    pub(crate) fn values(&self) -> &ByteStrings {
        &self.values
    }
}

/// The 32 bits of a hash that a slot holds: never 0.
fn tag(hash: u64) -> u32 {
    ((hash >> 32) as u32 ^ hash as u32) | 1
}

/// The slot where the search for a tag starts. Values that were partitioned by some bits of their hashes are spread
/// evenly too.
fn start(tag: u32, slots: usize) -> usize {
    let mixed = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - slots.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;
    use crate::memory::RoundMemory;

    #[test]
    fn every_value_is_there_once() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
        let round_memory = RoundMemory::new(MemoryConsumer::new("distinct").register(&pool));
        let mut distinct = DistinctByteStrings::try_new(round_memory.hold(0, "values").unwrap()).unwrap();
        let value = |i: u32| format!("{}", (i * 7919) % 5003);
        for i in 0..20_000 {
            let value = value(i);
            distinct.insert(hash(value.as_bytes()), value.as_bytes()).unwrap();
        }
        let values = distinct.values();
        let texts = values
            .places()
            .map(|at| std::str::from_utf8(values.value(at)).unwrap());
        let expected: Vec<String> = (0..5003).map(value).collect();
        assert!(texts.eq(expected.iter().map(String::as_str)));
        let slots = distinct.slots.capacity() * size_of::<Slot>();
        assert_eq!(pool.reserved(), values.held_bytes() + slots);
        // Until there is no room.
        let refused = (0..200_000_u32).find_map(|i| {
            let value = i.to_be_bytes();
            distinct.insert(hash(&value), &value).err()
        });
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("bytes wanted for values"), "{refused}");
        drop(distinct);
        assert_eq!(pool.reserved(), 0);
    }
}
