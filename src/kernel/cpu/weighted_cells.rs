//! Counts rows with weights by the cells of their keys, and keeps the rows of some cells.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::groups::weighted::too_many;
use crate::cells::Cells;
use crate::cells::classify::{ClassifyBlocks, classifier};
use crate::key::Key;

/// Rows whose cells are computed at a time.
const BLOCK: usize = 1 << 10;

/// Cells, ready for an inner loop, and which of them keep their rows.
pub(crate) struct KeepingCells<K> {
    classifier: Box<dyn ClassifyBlocks<K>>,
    keep: Vec<bool>,
}

impl<K: Key> KeepingCells<K> {
    /// `cells`, each of which keeps its rows if `keep` says so at its number.
    pub(crate) fn new(cells: &Cells, keep: &[bool]) -> Self {
        Self {
            classifier: classifier(cells),
            keep: keep.to_vec(),
        }
    }

    /// Number of cells.
    pub(crate) fn len(&self) -> usize {
        self.keep.len()
    }
}

/// Rows that there is room for once one is kept.
const FIRST_ROWS: usize = 64;

/// Counters of each cell. Rows that follow each other add to different ones, so that none waits for the row before.
const COUNTERS: usize = 4;

/// Bytes of the counters of a cell.
const CELL_BYTES: usize = size_of::<[[u64; 2]; COUNTERS]>();

/// Rows with weights, counted by cell.
pub(crate) struct WeightedCells<K> {
    cells: Arc<KeepingCells<K>>,
    /// The number of rows and the sum of weights (modulo 2^64) of each cell, in several counters.
    counts: Vec<[[u64; 2]; COUNTERS]>,
    /// Sum of all weights.
    total: u128,
    /// The rows of the cells that keep theirs; `None` once there was no room for them.
    kept: Option<Vec<(K, u64)>>,
    memory: MemoryReservation,
    numbers: Vec<u16>,
}

/// The number of rows in each cell, and the sum of their weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CellCounts {
    pub(crate) rows: Vec<u64>,
    pub(crate) weights: Vec<u64>,
    /// Sum of all weights.
    total: u128,
}

impl CellCounts {
    /// No rows in any of `cells` cells.
    pub(crate) fn new(cells: usize) -> Self {
        Self {
            rows: vec![0; cells],
            weights: vec![0; cells],
            total: 0,
        }
    }

    /// Adds the counts of other rows in the same cells.
    pub(crate) fn add(&mut self, other: &Self) {
        let sums = |own: &mut [u64], other: &[u64]| {
            let pairs = own.iter_mut().zip(other);
            pairs.for_each(|(own, other)| *own = own.wrapping_add(*other));
        };
        sums(&mut self.rows, &other.rows);
        sums(&mut self.weights, &other.weights);
        self.total += other.total;
    }

    /// Sum of all weights. If it is given, no cell's sum has passed 64 bits.
    ///
    /// # Errors
    /// An execution error past 64 bits.
    pub(crate) fn total(&self) -> Result<u64> {
        u64::try_from(self.total).map_err(|_| too_many())
    }
}

impl<K: Key> WeightedCells<K> {
    /// A count before its first row, which reserves what it holds in `memory`.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory to begin.
    pub(crate) fn try_new(cells: Arc<KeepingCells<K>>, memory: MemoryReservation) -> Result<Self> {
        memory.try_grow(cells.len() * CELL_BYTES)?;
        Ok(Self {
            counts: vec![Default::default(); cells.len()],
            total: 0,
            cells,
            kept: Some(Vec::new()),
            memory,
            numbers: vec![0; BLOCK],
        })
    }

    /// Counts rows, given by as many keys as weights.
    pub(crate) fn push(&mut self, keys: &[K], weights: &[u64]) {
        for (keys, weights) in keys.chunks(BLOCK).zip(weights.chunks(BLOCK)) {
            let numbers = &mut self.numbers[..keys.len()];
            self.cells.classifier.number(keys, numbers);
            for (numbers, weights) in numbers.chunks(COUNTERS).zip(weights.chunks(COUNTERS)) {
                for (counter, (number, weight)) in numbers.iter().zip(weights).enumerate() {
                    let [rows, sum] = &mut self.counts[usize::from(*number)][counter];
                    *rows += 1;
                    *sum = sum.wrapping_add(*weight);
                }
            }
            // Sums of the halves of a block fit 64 bits.
            let upper: u64 = weights.iter().map(|weight| weight >> 32).sum();
            let lower: u64 = weights.iter().map(|weight| weight & u64::from(u32::MAX)).sum();
            self.total += (u128::from(upper) << 32) + u128::from(lower);
            self.keep(keys, weights);
        }
    }

    /// Counts rows of weight 1.
    pub(crate) fn push_each_once(&mut self, keys: &[K]) {
        for keys in keys.chunks(BLOCK) {
            self.push(keys, &[1; BLOCK][..keys.len()]);
        }
    }

    /// Keeps the rows of a block whose cells were computed last, or none of all rows any more.
    fn keep(&mut self, keys: &[K], weights: &[u64]) {
        let Some(kept) = &mut self.kept else { return };
        let rows = keys.iter().zip(weights).zip(&self.numbers);
        for ((key, weight), number) in rows {
            if !self.cells.keep[usize::from(*number)] {
                continue;
            }
            let counters = self.cells.len() * CELL_BYTES;
            if kept.len() == kept.capacity() && !grow(kept, counters, &self.memory) {
                self.kept = None;
                self.memory.resize(counters);
                return;
            }
            kept.push((*key, *weight));
        }
    }

    /// The counts, and the rows that were kept, with their memory. `None`: there was no room for all of them.
    pub(crate) fn finish(self) -> (CellCounts, Option<Vec<(K, u64)>>, MemoryReservation) {
        let mut counts = CellCounts::new(self.counts.len());
        for (cell, counters) in self.counts.iter().enumerate() {
            for [rows, sum] in counters {
                counts.rows[cell] += rows;
                counts.weights[cell] = counts.weights[cell].wrapping_add(*sum);
            }
        }
        counts.total = self.total;
        (counts, self.kept, self.memory)
    }

    /// Number of rows that are held.
    pub(crate) fn held(&self) -> usize {
        self.kept.as_ref().map_or(0, Vec::len)
    }
}

/// What all parts of a read counted and kept.
pub(crate) struct MergedCells<K> {
    pub(crate) counts: CellCounts,
    /// The rows of the cells that keep theirs, part by part; `None` if there was no room for all of them.
    pub(crate) kept: Option<Vec<Vec<(K, u64)>>>,
    /// Holds the memory of `kept`.
    _reserved: Vec<MemoryReservation>,
}

impl<K: Key> MergedCells<K> {
    /// The parts of a read between `cells` cells.
    pub(crate) fn of(cells: usize, parts: impl Iterator<Item = WeightedCells<K>>) -> Self {
        let (mut counts, mut reserved) = (CellCounts::new(cells), Vec::new());
        let mut kept = Some(Vec::new());
        for part in parts {
            let (own, rows, memory) = part.finish();
            counts.add(&own);
            match (&mut kept, rows) {
                (Some(kept), Some(rows)) => kept.push(rows),
                _ => kept = None,
            }
            reserved.push(memory);
        }
        Self {
            counts,
            kept,
            _reserved: reserved,
        }
    }
}

/// Makes room for as many rows again, beside `others` bytes; `false` if there is no memory for that.
fn grow<K>(kept: &mut Vec<(K, u64)>, others: usize, memory: &MemoryReservation) -> bool {
    let (now, more) = (kept.capacity(), kept.capacity().max(FIRST_ROWS));
    // While rows are copied, there are both.
    if memory
        .try_resize(others + (2 * now + more) * size_of::<(K, u64)>())
        .is_err()
        || kept.try_reserve_exact(more).is_err()
    {
        return false;
    }
    memory.shrink(now * size_of::<(K, u64)>());
    true
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;
    use crate::cells::Edges;

    fn counted(limit: usize, rows: &[(u64, u64)]) -> (CellCounts, Option<Vec<(u64, u64)>>) {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
        let cells = Cells::Edges(Edges::try_new(vec![10, 20]).unwrap());
        let cells = Arc::new(KeepingCells::new(&cells, &[false, true, false]));
        let mut count = WeightedCells::try_new(cells, MemoryConsumer::new("rows").register(&pool)).unwrap();
        let (keys, weights): (Vec<u64>, Vec<u64>) = rows.iter().copied().unzip();
        count.push(&keys, &weights);
        let (counts, kept, memory) = count.finish();
        let held = kept.as_ref().map_or(0, Vec::capacity) * size_of::<(u64, u64)>() + 3 * CELL_BYTES;
        assert_eq!((memory.size(), pool.reserved()), (held, held));
        (counts, kept)
    }

    #[test]
    fn rows_are_counted_by_cell_and_kept_where_wanted() {
        let rows = [(9, 1), (10, 2), (19, 3), (20, 4), (u64::MAX, 5), (0, 6)];
        let (counts, kept) = counted(1 << 20, &rows);
        assert_eq!(
            (counts.rows.as_slice(), counts.weights.as_slice()),
            (&[2, 2, 2][..], &[7, 5, 9][..])
        );
        assert_eq!(
            (counts.total().unwrap(), kept.unwrap()),
            (21, vec![(10, 2), (19, 3)])
        );
    }

    #[test]
    fn rows_without_room_are_counted_all_the_same() {
        let rows: Vec<(u64, u64)> = (0..10_000).map(|row| (row % 30, 1)).collect();
        let (all, kept) = counted(1 << 20, &rows);
        assert_eq!(kept.map(|kept| kept.len() as u64), Some(all.rows[1]));
        let (counts, kept) = counted(50_000, &rows);
        assert_eq!((counts, kept), (all, None));
    }

    #[test]
    fn sums_past_64_bits_are_errors() {
        let (mut counts, _) = counted(1 << 20, &[(1, u64::MAX)]);
        assert_eq!(counts.total().unwrap(), u64::MAX);
        counts.add(&counted(1 << 20, &[(30, 1)]).0);
        assert!(
            counts
                .total()
                .unwrap_err()
                .to_string()
                .contains("more than 18446744073709551615")
        );
    }
}
