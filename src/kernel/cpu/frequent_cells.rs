//! Counts how often values occur: one value of each cell by itself, and all values of some cells.
//!
//! A cell has the keys whose hashes begin alike. Where its one value, the candidate, is counted by itself, the rest of the cell is a bound of the
//! count of every other value in it.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::groups::group_key::{GroupKey, GroupTable};

/// Number of cells: their counts fit the second-level cache.
pub(crate) const CELLS: usize = 1 << CELL_BITS;
const CELL_BITS: u32 = 14;

/// Keys that are counted between two looks at the memory.
const BLOCK: usize = 1 << 10;

/// The cell of a key.
#[inline(always)]
pub(crate) fn cell_of<K: GroupKey>(key: K) -> usize {
    (key.hash_key() >> (u64::BITS - CELL_BITS)) as usize
}

/// What a read counts of each cell.
#[derive(Debug)]
pub(crate) struct Wanted<K> {
    /// The value of each cell that is counted by itself. Any value stands where none is known.
    pub(crate) candidates: Vec<K>,
    /// Whether all other values of a cell are counted too.
    pub(crate) keep: Vec<bool>,
}

/// The rows of a cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CellRows {
    /// Rows with the candidate.
    pub(crate) own: u64,
    /// Rows with other values.
    pub(crate) others: u64,
}

/// The counts of a part of the rows.
pub(crate) struct FrequentCells<K> {
    wanted: Arc<Wanted<K>>,
    pub(crate) rows: Vec<CellRows>,
    /// Numbers of the values that are no candidates, of cells below `bound` that keep theirs.
    table: GroupTable<K>,
    counts: Vec<u64>,
    /// Cells from here on keep nothing: there was no room for their values.
    bound: usize,
    /// Most bytes that are held.
    room: usize,
    memory: MemoryReservation,
}

impl<K: GroupKey> FrequentCells<K> {
    /// Counts before the first row, which reserve what they hold in `memory`, at most `room` bytes.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory to begin.
    pub(crate) fn try_new(wanted: Arc<Wanted<K>>, memory: MemoryReservation, room: usize) -> Result<Self> {
        memory.try_grow(CELLS * size_of::<CellRows>())?;
        Ok(Self {
            wanted,
            rows: vec![CellRows::default(); CELLS],
            table: GroupTable::new(),
            counts: Vec::new(),
            bound: CELLS,
            room,
            memory,
        })
    }

    /// Counts the rows of these keys.
    pub(crate) fn push(&mut self, keys: &[K]) {
        let wanted = Arc::clone(&self.wanted);
        for keys in keys.chunks(BLOCK) {
            self.make_room();
            for key in keys {
                let cell = cell_of(*key);
                let is_own = wanted.candidates[cell] == *key;
                self.rows[cell].own += u64::from(is_own);
                self.rows[cell].others += u64::from(!is_own);
                if !is_own && wanted.keep[cell] && cell < self.bound {
                    self.add(*key, 1);
                }
            }
        }
    }

    /// Adds the counts of another part of the rows; both together may hold `room` bytes.
    pub(crate) fn merge(&mut self, other: &Self, room: usize) {
        self.room = room;
        for (own, other) in self.rows.iter_mut().zip(&other.rows) {
            own.own += other.own;
            own.others += other.others;
        }
        self.lower_bound(other.bound);
        for (at, (key, count)) in other.kept().enumerate() {
            if at % BLOCK == 0 {
                self.make_room();
            }
            if cell_of(key) < self.bound {
                self.add(key, count);
            }
        }
    }

    /// Whether all values of a cell were counted.
    pub(crate) fn is_known(&self, cell: usize) -> bool {
        self.wanted.keep[cell] && cell < self.bound
    }

    /// The values that are no candidates, of cells whose values were all counted, with their counts, each once.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (K, u64)> {
        let keys = self.table.group_keys().iter().copied();
        keys.zip(self.counts.iter().copied())
    }

    /// Number of values that are held.
    pub(crate) fn held(&self) -> usize {
        self.counts.len()
    }

    fn add(&mut self, key: K, count: u64) {
        let number = self.table.id(key) as usize;
        if number == self.counts.len() {
            self.counts.push(0);
        }
        self.counts[number] += count;
    }

    /// Reserves memory for the values of another block, and gives cells up until there is enough.
    fn make_room(&mut self) {
        loop {
            let values = self.counts.len() + BLOCK;
            let counts = match values > self.counts.capacity() {
                // While they are moved, there are both.
                true => self.counts.capacity() + values.max(2 * self.counts.capacity()),
                false => self.counts.capacity(),
            };
            let bytes = CELLS * size_of::<CellRows>()
                + self.table.bytes_while_adding(BLOCK)
                + counts * size_of::<u64>();
            let fits =
                bytes <= self.memory.size() || bytes <= self.room && self.memory.try_resize(bytes).is_ok();
            if fits || self.bound == 0 {
                return;
            }
            self.lower_bound(self.half_bound());
        }
    }

    /// The bound below which are half of the cells that keep their values.
    fn half_bound(&self) -> usize {
        let keep = self.wanted.keep.iter().take(self.bound).enumerate();
        let cells: Vec<usize> = keep.filter(|(_, keep)| **keep).map(|(cell, _)| cell).collect();
        cells.get(cells.len() / 2).copied().unwrap_or(0)
    }

    /// Forgets what was kept of cells from `bound` on.
    fn lower_bound(&mut self, bound: usize) {
        if bound >= self.bound {
            return;
        }
        self.bound = bound;
        let kept: Vec<(K, u64)> = self.kept().filter(|(key, _)| cell_of(*key) < bound).collect();
        (self.table, self.counts) = (GroupTable::new(), Vec::new());
        for (key, count) in kept {
            self.add(key, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;

    fn counted(limit: usize, keep: bool, keys: &[&[u64]]) -> FrequentCells<u64> {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
        let mut candidates = vec![0; CELLS];
        candidates[cell_of(7_u64)] = 7;
        let keep = vec![keep; CELLS];
        let wanted = Arc::new(Wanted { candidates, keep });
        let share = limit / 2 / keys.len();
        let mut parts = keys.iter().map(|keys| {
            let memory = MemoryConsumer::new("counts").register(&pool);
            let mut part = FrequentCells::try_new(Arc::clone(&wanted), memory, share).unwrap();
            part.push(keys);
            part
        });
        let mut all = parts.next().unwrap();
        parts.for_each(|part| all.merge(&part, limit / 2));
        all
    }

    fn expected(keys: &[&[u64]]) -> HashMap<u64, u64> {
        let mut counts = HashMap::new();
        keys.iter()
            .copied()
            .flatten()
            .for_each(|key| *counts.entry(*key).or_default() += 1);
        counts
    }

    #[test]
    fn a_candidate_is_counted_apart_from_its_cell() {
        let keys: Vec<u64> = (0..20_000)
            .map(|row| if row % 3 == 0 { 7 } else { row })
            .collect();
        let (one, other) = keys.split_at(7000);
        let counts = counted(1 << 22, false, &[one, other]);
        let own = expected(&[&keys])[&7];
        assert_eq!((counts.rows[cell_of(7_u64)].own, counts.held()), (own, 0));
        let others: u64 = counts.rows.iter().map(|rows| rows.others).sum();
        assert_eq!(others + own, 20_000);
    }

    #[test]
    fn values_are_counted_in_as_many_cells_as_there_is_room_for() {
        let keys: Vec<u64> = (0..200_000).map(|row| row * row % 65_537).collect();
        let (one, other) = keys.split_at(77_777);
        let expected = expected(&[&keys]);
        for limit in [1 << 24, 2_600_000, 1_800_000] {
            let counts = counted(limit, true, &[one, other]);
            let known = (0..CELLS).filter(|cell| counts.is_known(*cell)).count();
            assert!(
                known > 0 && (limit == 1 << 24) == (known == CELLS),
                "{limit} {known}"
            );
            for (key, count) in counts.kept() {
                assert_eq!(expected.get(&key), Some(&count), "{key}");
            }
            let mut kept: HashMap<u64, u64> = counts.kept().collect();
            // 0 and 7 are candidates of their cells.
            kept.extend([0, 7].map(|key| (key, counts.rows[cell_of(key)].own)));
            let is_known = |key: &u64| counts.is_known(cell_of(*key));
            assert!(
                expected
                    .keys()
                    .filter(|key| is_known(key))
                    .all(|key| kept.contains_key(key))
            );
        }
    }
}
