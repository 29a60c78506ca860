//! Counts how often values occur: one value, the candidate, of each of 16 384 cells by itself, the others of a cell together, which bounds how often
//! any of them occurs, and all values of some cells.
//!
//! A cell has the keys whose hashes begin alike. The others can have more cells than the candidates, so that few of them are together.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::cell_bounds::{CellBounds, FEW_BITS, cell_of_hash};
use super::groups::group_key::{GroupKey, GroupTable};

/// Number of cells that have a candidate: their counts fit the second-level cache.
pub(crate) const CELLS: usize = 1 << FEW_BITS;

/// Keys that are counted between two looks at the memory.
const BLOCK: usize = 1 << 10;

/// Bytes of the counts of candidates.
const FIXED: usize = CELLS * size_of::<u64>();

/// The cell of a candidate.
#[inline(always)]
pub(crate) fn cell_of<K: GroupKey>(key: K) -> usize {
    cell_of_hash(key.hash_key(), FEW_BITS)
}

/// What a read counts.
#[derive(Debug)]
pub(crate) struct Wanted<K> {
    /// The value of each cell that is counted by itself. Any value stands where none is known.
    pub(crate) candidates: Vec<K>,
    /// The logarithm of the number of cells that other values have.
    pub(crate) bits: u32,
    /// Whether the others of these cells are counted together.
    pub(crate) bounds: bool,
    /// Of which of these cells all others are counted each.
    pub(crate) keep: BooleanBuffer,
}

/// The counts of a part of the rows.
pub(crate) struct FrequentCells<K> {
    wanted: Arc<Wanted<K>>,
    /// Number of rows.
    pub(crate) rows: u64,
    /// Rows of each candidate, counted where the others are counted together.
    pub(crate) own: Vec<u64>,
    /// Rows of others, if they were to be counted together.
    pub(crate) bounds: Option<CellBounds>,
    /// Numbers of the others of cells below `bound` that keep theirs.
    table: GroupTable<K>,
    counts: Vec<u64>,
    /// Cells from here on keep nothing: there was no room for their values.
    bound: usize,
    /// Most bytes that are held beside the bounds.
    room: usize,
    memory: MemoryReservation,
    /// Whether no cell's others are counted each.
    keeps_none: bool,
}

impl<K: GroupKey> FrequentCells<K> {
    /// Counts before the first row, which reserve what they hold in `memory`: at most `room` bytes, and the bounds.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory to begin.
    pub(crate) fn try_new(wanted: Arc<Wanted<K>>, memory: MemoryReservation, room: usize) -> Result<Self> {
        memory.try_grow(FIXED)?;
        let bounds = wanted
            .bounds
            .then(|| CellBounds::try_new(wanted.bits, memory.new_empty()));
        Ok(Self {
            rows: 0,
            own: vec![0; CELLS],
            bounds: bounds.transpose()?,
            table: GroupTable::new(),
            counts: Vec::new(),
            bound: wanted.keep.len(),
            room,
            memory,
            keeps_none: wanted.keep.count_set_bits() == 0,
            wanted,
        })
    }

    /// Counts the rows of these keys.
    pub(crate) fn push(&mut self, keys: &[K]) {
        self.rows += keys.len() as u64;
        let wanted = Arc::clone(&self.wanted);
        if let Some(bounds) = &mut self.bounds {
            let (candidates, own) = (&wanted.candidates, &mut self.own);
            bounds.count(keys.iter().map(|key| {
                let hash = key.hash_key();
                let cell = cell_of_hash(hash, FEW_BITS);
                let is_own = candidates[cell] == *key;
                own[cell] += u64::from(is_own);
                (hash, !is_own)
            }));
        }
        if self.bound == 0 || self.keeps_none {
            return;
        }
        for keys in keys.chunks(BLOCK) {
            self.make_room();
            for key in keys {
                let hash = key.hash_key();
                let cell = cell_of_hash(hash, wanted.bits);
                let is_kept = wanted.keep.value(cell) && cell < self.bound;
                if is_kept && wanted.candidates[cell_of_hash(hash, FEW_BITS)] != *key {
                    self.add(*key, 1);
                }
            }
        }
    }

    /// Adds the counts of another part of the rows; both together may hold `room` bytes.
    pub(crate) fn merge(&mut self, other: &Self, room: usize) {
        self.room = room;
        self.rows += other.rows;
        self.own
            .iter_mut()
            .zip(&other.own)
            .for_each(|(own, other)| *own += other);
        if let (Some(bounds), Some(others)) = (&mut self.bounds, &other.bounds) {
            bounds.merge(others);
        }
        self.lower_bound(other.bound);
        for (at, (key, count)) in other.kept().enumerate() {
            if at % BLOCK == 0 {
                self.make_room();
            }
            if self.cell(key) < self.bound {
                self.add(key, count);
            }
        }
    }

    /// The cells of which all values were counted.
    pub(crate) fn known(&self) -> BooleanBuffer {
        let keep = &self.wanted.keep;
        match self.bound < keep.len() {
            true => BooleanBuffer::collect_bool(keep.len(), |cell| cell < self.bound && keep.value(cell)),
            false => keep.clone(),
        }
    }

    /// The others of cells whose values were all counted, with their counts, each once.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (K, u64)> {
        let keys = self.table.group_keys().iter().copied();
        keys.zip(self.counts.iter().copied())
    }

    /// Number of values that are held.
    pub(crate) fn held(&self) -> usize {
        self.counts.len()
    }

    /// The cell of a value that is no candidate.
    fn cell(&self, key: K) -> usize {
        cell_of_hash(key.hash_key(), self.wanted.bits)
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
            let bytes = FIXED + self.table.bytes_while_adding(BLOCK) + counts * size_of::<u64>();
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
        let kept = self.wanted.keep.slice(0, self.bound);
        kept.set_indices().nth(kept.count_set_bits() / 2).unwrap_or(0)
    }

    /// Forgets what was kept of cells from `bound` on.
    fn lower_bound(&mut self, bound: usize) {
        if bound >= self.bound {
            return;
        }
        self.bound = bound;
        let kept: Vec<(K, u64)> = self.kept().filter(|(key, _)| self.cell(*key) < bound).collect();
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

    fn counted(limit: usize, bits: u32, keep: bool, keys: &[&[u64]]) -> FrequentCells<u64> {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
        let mut candidates = vec![0; CELLS];
        candidates[cell_of(7_u64)] = 7;
        let keep = if keep {
            BooleanBuffer::new_set(1 << bits)
        } else {
            BooleanBuffer::new_unset(1 << bits)
        };
        let wanted = Arc::new(Wanted {
            candidates,
            bits,
            bounds: true,
            keep,
        });
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
        let counts = counted(1 << 22, FEW_BITS, false, &[one, other]);
        let own = expected(&[&keys])[&7];
        assert_eq!((counts.own[cell_of(7_u64)], counts.held()), (own, 0));
        let (cells, others) = counts
            .bounds
            .unwrap()
            .reaching(1, &BooleanBuffer::new_unset(CELLS));
        assert_eq!((others + own, counts.rows), (20_000, 20_000));
        assert!(cells.count_set_bits() > 8000);
    }

    #[test]
    fn values_are_counted_in_as_many_cells_as_there_is_room_for() {
        let keys: Vec<u64> = (0..200_000).map(|row| row * row % 65_537).collect();
        let (one, other) = keys.split_at(77_777);
        let expected = expected(&[&keys]);
        for (limit, bits) in [
            (1 << 24, FEW_BITS),
            (2_600_000, FEW_BITS),
            (1_800_000, FEW_BITS),
            (2_600_000, 16),
        ] {
            let counts = counted(limit, bits, true, &[one, other]);
            let known = counts.known();
            let cells = known.count_set_bits();
            assert!(
                cells > 0 && (limit == 1 << 24) == (cells == known.len()),
                "{limit} {cells}"
            );
            for (key, count) in counts.kept() {
                assert_eq!(expected.get(&key), Some(&count), "{key}");
            }
            let mut kept: HashMap<u64, u64> = counts.kept().collect();
            // 0 and 7 are candidates of their cells.
            kept.extend([0, 7].map(|key| (key, counts.own[cell_of(key)])));
            let is_known = |key: &u64| known.value(counts.cell(*key));
            assert!(
                expected
                    .keys()
                    .filter(|key| is_known(key))
                    .all(|key| kept.contains_key(key))
            );
        }
    }
}
