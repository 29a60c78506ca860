//! Group keys: unsigned integers that tell groups apart, and a table from group keys to group numbers.

use crate::key::Key;

/// Number of hash partitions of groups that have a key. A group without one (NULL) has a hash partition of its own.
/// With some 30 000 rows in each hash partition, all work on one stays in the second-level cache.
pub(crate) const KEYED_PARTITIONS: usize = 1 << PARTITION_BITS;
/// Number of all hash partitions, the one of NULL included.
pub(crate) const HASH_PARTITIONS: usize = KEYED_PARTITIONS + 1;
/// Number of the hash partition of a group without a key.
pub(crate) const NULL_PARTITION: u16 = KEYED_PARTITIONS as u16;
const PARTITION_BITS: u32 = 10;

/// The number of the hash partition of a hash: its upper bits. Hash tables use the lower bits.
pub(crate) fn hash_partition_of(hash: u64) -> u16 {
    (hash >> (u64::BITS - PARTITION_BITS)) as u16
}

/// An unsigned integer that stands for a group.
pub(crate) trait GroupKey: Key {
    /// A hash of which each bit depends on all bits of the group key.
    fn hash_key(self) -> u64;
}

/// A step of a hash: both halves of a product with an odd constant, combined. Every bit of the key reaches every bit of
/// the result.
#[inline(always)]
fn fold(word: u64, constant: u64) -> u64 {
    let product = u128::from(word ^ 0x243f_6a88_85a3_08d3) * u128::from(constant);
    (product as u64) ^ (product >> 64) as u64
}

const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xd6e8_feb8_6659_fd93;

impl GroupKey for u32 {
    #[inline(always)]
    fn hash_key(self) -> u64 {
        fold(self.into(), FIRST)
    }
}

impl GroupKey for u64 {
    #[inline(always)]
    fn hash_key(self) -> u64 {
        fold(self, FIRST)
    }
}

impl GroupKey for u128 {
    #[inline(always)]
    fn hash_key(self) -> u64 {
        fold(fold(self as u64, FIRST) ^ (self >> 64) as u64, SECOND)
    }
}

/// Numbers of groups by their group keys, from 0, in the order of their first appearance. Open addressing
/// with linear probing, at most half full.
#[derive(Debug)]
pub(crate) struct GroupTable<W> {
    /// Slots, a power of two of them: the number of a group plus 1; 0 if the slot is free.
    slots: Vec<u32>,
    group_keys: Vec<W>,
    /// Slots for small group keys, indexed by the key itself: one load in place of two, and no hash. Empty if not used.
    direct: Vec<u32>,
}

/// Group keys below this are small.
const SMALL: usize = 1 << 14;

impl<W: GroupKey> GroupTable<W> {
    pub(crate) fn new() -> Self {
        Self {
            slots: vec![0; 64],
            group_keys: Vec::new(),
            direct: Vec::new(),
        }
    }

    /// A table for many more look-ups than groups: it finds small group keys faster.
    pub(crate) fn for_rows() -> Self {
        Self {
            direct: vec![0; SMALL],
            ..Self::new()
        }
    }

    /// Number of groups.
    pub(crate) fn len(&self) -> usize {
        self.group_keys.len()
    }

    /// The group keys, by number of the group.
    pub(crate) fn group_keys(&self) -> &[W] {
        &self.group_keys
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        (self.slots.capacity() + self.direct.capacity()) * size_of::<u32>()
            + self.group_keys.capacity() * size_of::<W>()
    }

    /// Bytes at most while as many as `more` groups are added.
    pub(crate) fn bytes_while_adding(&self, more: usize) -> usize {
        let (mut bytes, groups) = (self.bytes(), self.group_keys.len() + more);
        // While entries are moved, there are both.
        if groups * 2 > self.slots.len() {
            bytes += groups.max(self.slots.len()) * 4 * size_of::<u32>();
        }
        if groups > self.group_keys.capacity() {
            bytes += groups.max(self.group_keys.capacity() * 2) * size_of::<W>();
        }
        bytes
    }

    /// Forgets all groups, and keeps the memory for the next ones.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(0);
        self.direct.fill(0);
        self.group_keys.clear();
    }

    /// The number of a group; a new number for a key that was not seen before.
    #[inline(always)]
    pub(crate) fn id(&mut self, key: W) -> u32 {
        let index = key.shr32(0) as usize;
        if index < self.direct.len() && key.to_bits() < SMALL as u128 {
            return match self.direct[index] {
                0 => self.insert_small(index, key),
                slot => slot - 1,
            };
        }
        let mask = self.slots.len() - 1;
        let mut at = key.hash_key() as usize & mask;
        loop {
            match self.slots[at] {
                0 => return self.insert(at, key),
                slot if self.group_keys[slot as usize - 1] == key => return slot - 1,
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// The number of a group that was seen before.
    pub(crate) fn find(&self, key: W) -> Option<u32> {
        if let Some(slot) = self.direct.get(key.to_bits().min(SMALL as u128) as usize) {
            return slot.checked_sub(1);
        }
        let mask = self.slots.len() - 1;
        let mut at = key.hash_key() as usize & mask;
        loop {
            match self.slots[at] {
                0 => return None,
                slot if self.group_keys[slot as usize - 1] == key => return Some(slot - 1),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// A new number, of a group that no key leads to.
    pub(crate) fn without_key(&mut self) -> u32 {
        self.group_keys.push(W::default());
        self.group_keys.len() as u32 - 1
    }

    #[inline(never)]
    fn insert_small(&mut self, index: usize, key: W) -> u32 {
        self.group_keys.push(key);
        self.direct[index] = self.group_keys.len() as u32;
        self.direct[index] - 1
    }

    #[inline(never)]
    fn insert(&mut self, at: usize, key: W) -> u32 {
        self.group_keys.push(key);
        let id = self.group_keys.len() as u32;
        self.slots[at] = id;
        if self.group_keys.len() * 2 > self.slots.len() {
            self.grow();
        }
        id - 1
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.slots);
        self.slots = vec![0; old.len() * 4];
        let mask = self.slots.len() - 1;
        for slot in old.into_iter().filter(|slot| *slot != 0) {
            let mut at = self.group_keys[slot as usize - 1].hash_key() as usize & mask;
            while self.slots[at] != 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids_are_dense<W: GroupKey>(group_keys: impl Iterator<Item = W> + Clone) {
        for table in [GroupTable::new(), GroupTable::for_rows()] {
            ids_of_a_table_are_dense(group_keys.clone(), table);
        }
    }

    fn ids_of_a_table_are_dense<W: GroupKey>(group_keys: impl Iterator<Item = W>, mut table: GroupTable<W>) {
        let mut seen = Vec::new();
        for key in group_keys {
            let id = table.id(key) as usize;
            if id == seen.len() {
                assert_eq!(table.find(key), Some(id as u32));
                seen.push(key);
            }
            assert_eq!(seen[id], key);
        }
        assert_eq!(table.group_keys(), seen);
        let distinct: std::collections::HashSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len());
    }

    #[test]
    fn ids_are_dense_and_stable() {
        ids_are_dense((0..5000_u32).map(|i| i.wrapping_mul(i) % 1777));
        ids_are_dense((0..5000_u64).map(|i| (i % 1500) << 48));
        ids_are_dense((0..5000_u128).map(|i| ((i % 1500) << 100) | (i % 3)));
        let mut table = GroupTable::<u64>::new();
        table.id(7);
        assert_eq!((table.without_key(), table.id(0)), (1, 2));
        assert_eq!(table.find(8), None);
    }

    #[test]
    fn regular_words_spread_over_parts() {
        for shift in [0, 10, 32, 54] {
            let mut counts = vec![0; KEYED_PARTITIONS];
            for i in 0..(64 * KEYED_PARTITIONS as u64).min(u64::MAX >> shift) {
                counts[usize::from(hash_partition_of((i << shift).hash_key()))] += 1;
            }
            let most = counts.iter().max().unwrap();
            let mean = counts.iter().sum::<usize>() / KEYED_PARTITIONS;
            assert!(*most <= 3 * mean.max(8), "shift {shift}: {most} of {mean}");
        }
    }
}
