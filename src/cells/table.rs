//! The two-level cell table.

use std::ops::Range;

use datafusion::common::{Result, internal_err};

use super::{Bracket, MAX_CELLS};
use crate::key::{KeyBits, KeyVec, Width};

/// One entry of a [`CellTable`]. A key at distance `d` above the base, in the range of the entry, has the cell `(d >>
/// shift) + add`, modulo 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) add: u32,
    pub(crate) shift: u32,
}

/// A two-level table: the upper bits of `key - base` choose an entry, and the entry says how many of the lower bits
/// number the cells inside it. Keys below `base` have the first cell, keys above `top` the last.
///
/// Up to [`CellTable::MOST_HEAVY`] heavy keys get a cell of their own, between the keys below and the keys above them
/// in their former cell (the equality buckets of SampleSelect, section IV-C). Each heavy key adds one to the cell of
/// every key at or above it, and another one to every key above it.
#[derive(Debug, Clone, PartialEq)]
pub struct CellTable {
    pub(crate) base: KeyBits,
    pub(crate) top: KeyBits,
    pub(crate) shift: u32,
    pub(crate) entries: Vec<Entry>,
    /// The heavy keys, ascending and distinct.
    pub(crate) heavy: Vec<KeyBits>,
    /// Number of cells, without those for heavy keys.
    pub(super) cells: u32,
}

impl CellTable {
    /// Most heavy keys: each of them costs two comparisons for every key.
    pub const MOST_HEAVY: usize = 8;

    /// log2 of the most entries.
    pub(crate) const ENTRY_BITS: u32 = 11;

    /// A table with up to `cells` cells, besides one for each entry, which are distributed by the shares of a sorted
    /// sample.
    ///
    /// # Errors
    /// An internal error if the sample is empty or the cells are more than [`MAX_CELLS`].
    pub fn from_sample(sample: &KeyVec, cells: usize) -> Result<Self> {
        Self::from_part(sample, 0..sample.len(), cells)
    }

    /// A table from a part of a sample, as [`CellTable::from_sample`] makes it. Keys outside the part share the two
    /// outer cells.
    ///
    /// # Errors
    /// Errors of [`CellTable::from_sample`]; an internal error if the part is not in the sample.
    pub fn from_part(sample: &KeyVec, part: Range<usize>, cells: usize) -> Result<Self> {
        if part.is_empty()
            || part.end > sample.len()
            || cells + (1 << Self::ENTRY_BITS) + 2 + 2 * Self::MOST_HEAVY > MAX_CELLS
        {
            return internal_err!(
                "a table of {cells} cells from {part:?} of a sample of {} keys",
                sample.len()
            );
        }
        let (base, top) = (sample.get(part.start), sample.get(part.end - 1));
        let (shift, count) = Self::layout(base, top);
        let mut below = part.start;
        let splits = (0..count as KeyBits).map(|index| {
            // The last entry ends at the greatest key, or beyond it.
            let above = if index + 1 == count as KeyBits {
                part.end
            } else {
                sample
                    .lower_bound(base + ((index + 1) << shift))
                    .clamp(part.start, part.end)
            };
            // The greatest power of two within the entry's share, but no cell is narrower than a key.
            let share = ((above - below) as u64 * cells as u64 / part.len() as u64).max(1);
            below = above;
            share.ilog2().min(shift)
        });
        Self::from_splits(base, top, &splits.collect::<Vec<_>>())
    }

    /// A table between two keys whose entries have `2^split` cells each.
    ///
    /// # Errors
    /// An internal error for too many or too few splits, for more cells of an entry than it has keys, or for more than
    /// [`MAX_CELLS`] cells.
    pub(crate) fn from_splits(base: KeyBits, top: KeyBits, splits: &[u32]) -> Result<Self> {
        let (shift, count) = Self::layout(base, top.max(base));
        let is_fine = |split: &u32| *split <= shift && *split < MAX_CELLS.ilog2() + 1;
        let cells = || splits.iter().map(|split| 1_usize << split).sum::<usize>();
        if base > top
            || splits.len() != count
            || !splits.iter().all(is_fine)
            || cells() + 2 + 2 * Self::MOST_HEAVY > MAX_CELLS
        {
            return internal_err!("a table from {base} to {top} of {} entries", splits.len());
        }
        // Cell 0 is for keys below the base.
        let mut next = 1_u32;
        let entries = splits.iter().zip(0_u32..).map(|(split, index)| {
            let add = next.wrapping_sub(index.wrapping_shl(*split));
            next += 1 << split;
            Entry {
                add,
                shift: shift - split,
            }
        });
        let mut table = Self {
            base,
            top,
            shift,
            entries: entries.collect(),
            heavy: Vec::new(),
            cells: 0,
        };
        table.cells = table.light_cell(top) + 2;
        Ok(table)
    }

    /// The ends of the smallest table around two keys whose cells are dyadic intervals: both ends are aligned to
    /// entries.
    pub(crate) fn aligned(least: KeyBits, greatest: KeyBits) -> (KeyBits, KeyBits) {
        let (mut shift, _) = Self::layout(least, greatest);
        loop {
            let inside = (1 << shift) - 1;
            let (base, top) = (least & !inside, greatest | inside);
            if Self::layout(base, top).0 <= shift {
                return (base, top);
            }
            shift += 1;
        }
    }

    /// The number of bits below an entry's number, and the number of entries, of a table between two keys.
    pub(crate) fn layout(base: KeyBits, top: KeyBits) -> (u32, usize) {
        let bits = KeyBits::BITS - (top - base).leading_zeros();
        let shift = bits.saturating_sub(Self::ENTRY_BITS);
        (shift, ((top - base) >> shift) as usize + 1)
    }

    /// log2 of the number of cells of each entry.
    pub(crate) fn splits(&self) -> impl ExactSizeIterator<Item = u32> {
        self.entries.iter().map(|entry| self.shift - entry.shift)
    }

    /// This table with cells of their own for heavy keys.
    ///
    /// # Errors
    /// An internal error if the keys are not ascending, or too many.
    pub fn with_heavy(mut self, heavy: Vec<KeyBits>) -> Result<Self> {
        if heavy.len() > Self::MOST_HEAVY || heavy.windows(2).any(|pair| pair[0] >= pair[1]) {
            return internal_err!("heavy keys {heavy:?}");
        }
        self.heavy = heavy;
        Ok(self)
    }

    /// Number of integers that the table consists of: base, top and shift, one for each entry, one for each heavy key.
    pub fn numbers(&self) -> usize {
        3 + self.entries.len() + self.heavy.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.cells as usize + 2 * self.heavy.len()
    }

    pub(crate) fn cell(&self, key: KeyBits) -> u32 {
        let steps = self
            .heavy
            .iter()
            .map(|heavy| u32::from(key >= *heavy) + u32::from(key > *heavy));
        self.light_cell(key) + steps.sum::<u32>()
    }

    /// The cell of a key as if no key were heavy.
    fn light_cell(&self, key: KeyBits) -> u32 {
        let above = key.clamp(self.base, self.top) - self.base;
        let entry = self.entries[(above >> self.shift) as usize];
        let cell = ((above >> entry.shift) as u32).wrapping_add(entry.add);
        cell + u32::from(key > self.top) - u32::from(key < self.base)
    }

    /// Number of the first cell of an entry.
    fn first_cell(&self, index: usize) -> u32 {
        let entry = self.entries[index];
        (((index as KeyBits) << (self.shift - entry.shift)) as u32).wrapping_add(entry.add)
    }

    fn first_key(&self, cell: u32) -> KeyBits {
        let mut range = 0..self.entries.len();
        while range.len() > 1 {
            let middle = range.start + range.len() / 2;
            if self.first_cell(middle) <= cell {
                range.start = middle
            } else {
                range.end = middle
            }
        }
        let (index, entry) = (range.start, self.entries[range.start]);
        let inside = KeyBits::from(cell - self.first_cell(index)) << entry.shift;
        self.base + ((index as KeyBits) << self.shift) + inside
    }

    /// The keys of a cell; `None` if no key can fall into it.
    pub(super) fn range(&self, cell: u32, width: Width) -> Option<Bracket> {
        let mut below = 0;
        for (index, heavy) in self.heavy.iter().enumerate() {
            let own = self.light_cell(*heavy) + 2 * index as u32 + 1;
            if cell == own {
                return Some(Bracket {
                    first: *heavy,
                    last: *heavy,
                });
            }
            below += usize::from(cell > own);
        }
        let mut range = self.light_range(cell - 2 * below as u32, width)?;
        if let Some(heavy) = below.checked_sub(1).map(|index| self.heavy[index]) {
            range.first = range.first.max(heavy.checked_add(1)?);
        }
        if let Some(heavy) = self.heavy.get(below) {
            range.last = range.last.min(heavy.checked_sub(1)?);
        }
        (range.first <= range.last).then_some(range)
    }

    fn light_range(&self, cell: u32, width: Width) -> Option<Bracket> {
        let (first, last) = match cell {
            0 => (0, self.base.checked_sub(1)?),
            cell if cell + 1 == self.cells => (self.top.checked_add(1)?, width.max_key()),
            cell if cell + 2 == self.cells => (self.first_key(cell), self.top),
            cell => (self.first_key(cell), self.first_key(cell + 1) - 1),
        };
        (first <= last).then_some(Bracket { first, last })
    }
}
