//! Collection of keys of groups as they pass: all keys, or those inside the brackets of their group. Each collected key
//! has a *slot*: the number of its bracket, or of its group.
//!
//! Cost: a checksum of each key, and two comparisons with the ends of all brackets of its group. A key between these
//! ends is compared with each bracket, and copied with its slot if it is inside one.

use std::ops::Range;

use datafusion::arrow::buffer::Buffer;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::super::store::encode;
use super::segments::{GroupAnswers, Plans, Segments};
use crate::cells::Bracket;
use crate::key::{KeySpec, KeyVec, ShardKey, mixed, words};
use crate::memory::reserve;

/// Number of keys that are encoded at a time: they stay in the first-level cache.
const BLOCK: usize = 1024;

/// A collector of the keys of one column, of any width.
pub(crate) trait Collect: Send {
    /// Reserves memory for `more` keys more.
    ///
    /// # Errors
    /// `ResourcesExhausted`.
    fn make_room(&mut self, more: usize) -> Result<()>;

    /// Takes the values of an array without NULL, with the number of each value's group.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory for the collected keys.
    fn add(&mut self, ids: &[usize], raw: &Buffer) -> Result<()>;

    /// Collects all of `keys` for one slot.
    ///
    /// # Errors
    /// Errors of [`Self::add`]; an internal error for keys of another width.
    fn add_keys(&mut self, slot: u32, keys: KeyVec) -> Result<()>;

    /// For each group: the number of its values so far, and the sum of their mixed keys, modulo 2^64.
    fn seen(&self) -> &[(u64, u64)];

    /// Number of keys held.
    fn len(&self) -> usize;

    /// The collected keys of each of `slots` slots. The collector is empty afterwards.
    fn take(&mut self, slots: usize) -> Vec<KeyVec>;

    /// The answers of `groups` groups, if the slot of a key is the number of its group.
    ///
    /// # Errors
    /// Internal errors only.
    fn answers(&mut self, groups: usize, plans: &mut Plans) -> Result<GroupAnswers>;
}

/// The brackets of all groups. The brackets of one group lie together and ascend.
#[derive(Debug)]
pub(crate) struct GroupBrackets {
    /// The index of each group's first bracket, and the number of all brackets.
    starts: Vec<u32>,
    brackets: Vec<Bracket>,
}

impl Default for GroupBrackets {
    fn default() -> Self {
        Self {
            starts: vec![0],
            brackets: Vec::new(),
        }
    }
}

impl GroupBrackets {
    /// Adds the brackets of the next group.
    pub(crate) fn push(&mut self, brackets: impl IntoIterator<Item = Bracket>) {
        self.brackets.extend(brackets);
        self.starts.push(self.brackets.len() as u32);
    }

    /// The slots of a group's brackets.
    pub(crate) fn slots(&self, group: usize) -> Range<usize> {
        self.starts[group] as usize..self.starts[group + 1] as usize
    }

    /// Number of slots of all groups.
    pub(crate) fn len(&self) -> usize {
        self.brackets.len()
    }

    fn groups(&self) -> usize {
        self.starts.len() - 1
    }

    /// Bytes of memory that the brackets take, here and as keys in a collector.
    pub(crate) fn bytes(&self) -> usize {
        2 * self.brackets.len() * size_of::<Bracket>() + self.groups() * 40
    }
}

/// [`GroupBrackets`] as keys.
struct BracketKeys<K> {
    starts: Vec<u32>,
    ends: Vec<(K, K)>,
    /// For each group: the first key of its first bracket, and the last key of its last one. For a group without
    /// brackets, an interval that holds no key.
    hulls: Vec<(K, K)>,
}

impl<K: ShardKey> BracketKeys<K> {
    fn new(of: &GroupBrackets) -> Self {
        let ends = |bracket: &Bracket| (K::from_bits(bracket.first), K::from_bits(bracket.last));
        let ends: Vec<_> = of.brackets.iter().map(ends).collect();
        let hull = |group| {
            let own = &ends[of.slots(group)];
            match (own.first(), own.last()) {
                (Some(first), Some(last)) => (first.0, last.1),
                _ => (K::MAX, K::default()),
            }
        };
        Self {
            hulls: (0..of.groups()).map(hull).collect(),
            starts: of.starts.clone(),
            ends,
        }
    }

    /// The slot of a key that lies between the ends of its group's brackets, if it is inside one.
    #[inline(always)]
    fn slot(&self, group: usize, key: K) -> Option<u32> {
        let (start, end) = (self.starts[group], self.starts[group + 1]);
        let own = &self.ends[start as usize..end as usize];
        let at = own.partition_point(|ends| ends.1 < key);
        own.get(at)
            .is_some_and(|ends| ends.0 <= key)
            .then_some(start + at as u32)
    }
}

/// Collected keys, and the slot of each.
struct Collector<K> {
    spec: KeySpec,
    /// The brackets. `None`: all keys are collected, and a slot is the number of a group.
    brackets: Option<BracketKeys<K>>,
    seen: Vec<(u64, u64)>,
    slots: Vec<u32>,
    keys: Vec<K>,
    memory: MemoryReservation,
}

/// A collector of keys of `spec` that lie in `brackets` (`None`: of all keys). It reserves what it holds in `memory`.
pub(crate) fn collector<K: ShardKey>(
    spec: &KeySpec,
    brackets: Option<&GroupBrackets>,
    memory: MemoryReservation,
) -> Box<dyn Collect> {
    let brackets = brackets.map(BracketKeys::<K>::new);
    Box::new(Collector {
        seen: vec![(0, 0); brackets.as_ref().map_or(0, |brackets| brackets.hulls.len())],
        spec: spec.clone(),
        brackets,
        slots: Vec::new(),
        keys: Vec::new(),
        memory,
    })
}

impl<K: ShardKey> Collector<K> {
    /// Takes out the collected keys, in order of slot.
    fn segments(&mut self, slots: usize) -> Segments<K> {
        let mut segments = Segments::default();
        segments.fill(slots, &[(&self.slots, &self.keys)]);
        let taken = std::mem::take(&mut self.keys);
        self.slots = Vec::new();
        self.memory
            .shrink(self.memory.size().saturating_sub(size_of_val(taken.as_slice())));
        segments
    }
}

impl<K: ShardKey> Collect for Collector<K> {
    fn make_room(&mut self, more: usize) -> Result<()> {
        if self.keys.capacity() == 0 {
            // The keys that were held were taken out.
            self.memory.free();
        }
        let room = self.keys.capacity() - self.keys.len();
        if room < more {
            // As much memory again as is held, or as little as will do. Keys count twice: they are copied once to bring
            // them together.
            let bytes = |more: usize| more * (size_of::<u32>() + 2 * size_of::<K>());
            let mut more = more - room;
            let double = more.max(self.keys.len()).max(BLOCK);
            match self.memory.try_grow(bytes(double)) {
                Ok(()) => more = double,
                Err(_) => reserve(&self.memory, bytes(more))?,
            }
            self.keys.reserve_exact(room + more);
            self.slots.reserve_exact(room + more);
        }
        Ok(())
    }

    fn add(&mut self, ids: &[usize], raw: &Buffer) -> Result<()> {
        let raw = words::<K>(raw);
        if ids.len() != raw.len() {
            return internal_err!("{} groups for {} keys", ids.len(), raw.len());
        }
        if let Some(greatest) = ids.iter().max()
            && *greatest >= self.seen.len()
        {
            if self.brackets.is_some() {
                return internal_err!("group {greatest} of {}", self.seen.len());
            }
            self.seen.resize(greatest + 1, (0, 0));
        }
        let (mut keys, mut inside) = ([K::default(); BLOCK], [0_u16; BLOCK]);
        for (ids, raw) in ids.chunks(BLOCK).zip(raw.chunks(BLOCK)) {
            let keys = &mut keys[..raw.len()];
            encode(self.spec.encoding(), raw, keys);
            for (id, key) in ids.iter().zip(&*keys) {
                let seen = &mut self.seen[*id];
                seen.0 += 1;
                seen.1 = seen.1.wrapping_add(mixed(key.to_bits()));
            }
            let Some(brackets) = &self.brackets else {
                self.make_room(raw.len())?;
                self.slots.extend(ids.iter().map(|id| *id as u32));
                self.keys.extend_from_slice(keys);
                continue;
            };
            let mut len = 0;
            for (at, (id, key)) in ids.iter().zip(&*keys).enumerate() {
                let hull = brackets.hulls[*id];
                inside[len] = at as u16;
                len += usize::from((hull.0 <= *key) & (*key <= hull.1));
            }
            self.make_room(len)?;
            let Some(brackets) = &self.brackets else { continue };
            for at in &inside[..len] {
                let at = usize::from(*at);
                if let Some(slot) = brackets.slot(ids[at], keys[at]) {
                    self.slots.push(slot);
                    self.keys.push(keys[at]);
                }
            }
        }
        Ok(())
    }

    fn add_keys(&mut self, slot: u32, keys: KeyVec) -> Result<()> {
        let Some(keys) = K::keys(keys) else {
            return internal_err!("keys of another width than {} bits", K::BITS);
        };
        self.make_room(keys.len())?;
        self.slots.resize(self.slots.len() + keys.len(), slot);
        self.keys.extend_from_slice(&keys);
        Ok(())
    }

    fn seen(&self) -> &[(u64, u64)] {
        &self.seen
    }

    fn len(&self) -> usize {
        self.keys.len()
    }

    fn take(&mut self, slots: usize) -> Vec<KeyVec> {
        let mut segments = self.segments(slots);
        (0..slots)
            .map(|slot| K::vec(segments.segment_mut(slot).to_vec()))
            .collect()
    }

    fn answers(&mut self, groups: usize, plans: &mut Plans) -> Result<GroupAnswers> {
        self.segments(groups).answers(plans, false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::datatypes::DataType;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;
    use crate::key::Key;

    fn memory(bytes: usize) -> (Arc<dyn MemoryPool>, MemoryReservation) {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(bytes));
        let reservation = MemoryConsumer::new("test").register(&pool);
        (pool, reservation)
    }

    #[test]
    fn keys_in_brackets_are_taken_and_all_are_seen() {
        let bracket = |first, last| Bracket { first, last };
        let max = KeyVec::W64(vec![u64::MAX]).get(0);
        let of = [
            vec![bracket(10, 19), bracket(30, 30), bracket(max - 5, max)],
            vec![],
            vec![bracket(0, max)],
        ];
        let mut brackets = GroupBrackets::default();
        of.iter().for_each(|own| brackets.push(own.iter().copied()));
        assert_eq!((brackets.len(), brackets.slots(2)), (4, 3..4));
        let spec = KeySpec::try_new(&DataType::UInt64).unwrap();
        let keys: Vec<u64> = (0..5000)
            .map(|i| if i % 7 == 0 { u64::MAX - i % 9 } else { i % 50 })
            .collect();
        let ids: Vec<usize> = (0..5000).map(|i| i / 3 % 3).collect();
        let raw = Buffer::from_slice_ref(&keys);
        let (pool, reservation) = memory(1 << 20);
        let mut own = collector::<u64>(&spec, Some(&brackets), reservation);
        own.add(&ids, &raw).unwrap();
        own.add(&ids[..2], &raw.slice_with_length(0, 16)).unwrap();
        let rows = || ids.iter().zip(&keys).chain(ids[..2].iter().zip(&keys));
        for group in 0..3 {
            let of_group = rows().filter(|row| *row.0 == group);
            let seen = of_group.fold((0_u64, 0_u64), |(n, check), (_, key)| {
                (n + 1, check.wrapping_add(mixed(Key::to_bits(*key))))
            });
            assert_eq!(own.seen()[group], seen);
        }
        let lists = own.take(brackets.len());
        assert_eq!(own.len(), 0);
        for (slot, (group, bracket)) in [(0, of[0][0]), (0, of[0][1]), (0, of[0][2]), (2, of[2][0])]
            .into_iter()
            .enumerate()
        {
            let inside = rows().filter(|(id, key)| **id == group && bracket.contains(Key::to_bits(**key)));
            let mut inside: Vec<u64> = inside.map(|(_, key)| *key).collect();
            inside.sort_unstable();
            let mut found = lists[slot].clone();
            found.sort();
            assert_eq!(found, KeyVec::W64(inside), "slot {slot}");
        }
        assert!(own.add(&[7], &raw.slice_with_length(0, 8)).is_err());
        drop(own);
        assert_eq!(pool.reserved(), 0);
    }

    #[test]
    fn all_keys_are_taken_by_group_and_memory_is_asked_for() {
        let spec = KeySpec::try_new(&DataType::UInt32).unwrap();
        let (_pool, reservation) = memory(50_000);
        let mut own = collector::<u32>(&spec, None, reservation);
        own.add(&[2, 0, 2], &Buffer::from_slice_ref([5_u32, 6, 7]))
            .unwrap();
        own.add_keys(1, KeyVec::W32(vec![9; 3])).unwrap();
        assert!(own.add_keys(1, KeyVec::W64(vec![9])).is_err());
        let expected = [vec![6], vec![9; 3], vec![5, 7]].map(KeyVec::W32);
        assert_eq!(own.take(3), expected);
        assert!(own.make_room(10_000).is_err());
        own.make_room(3000).unwrap();
    }
}
