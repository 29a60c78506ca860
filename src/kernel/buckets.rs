//! Cell functions: monotone maps from a key to a small integer, in exact integer arithmetic, so that every device
//! gives the same cells and both ends of a cell are known.
//!
//! | form | cell of a key | cost | made from |
//! | --- | --- | --- | --- |
//! | [`CellTable`] | two shifts and one load | least | a sample: each range of keys gets cells by its share |
//! | [`Linear`] | a search for the piece, one multiplication | middle | pivots (DIBMS, section II: linear projection) |
//! | [`Edges`] | a search tree | most | any splitters (SampleSelect, section IV-B) |
//!
//! An equality cell holds one key only: two neighbouring edges, or cells as narrow as a key. It ends a bracket at
//! once, so heavy duplicates cost nothing after the count.

use std::ops::Range;

use datafusion::common::{Result, internal_err};

use super::round::{Bracket, KeyVec};
use crate::key::{KeyBits, Width};

/// Most cells of a function: their numbers fit in an oracle's two bytes, with one to spare.
pub const MAX_CELLS: usize = u16::MAX as usize;

/// A cell function.
#[derive(Debug, Clone, PartialEq)]
pub enum Cells {
    /// Two-level table.
    Table(CellTable),
    /// Linear projection inside pieces; keys outside all pieces have no cell.
    Linear(Linear),
    /// Arbitrary splitters.
    Edges(Edges),
}

impl Cells {
    /// Number of cells.
    pub fn len(&self) -> usize {
        match self {
            Cells::Table(table) => table.len(),
            Cells::Linear(linear) => linear.len(),
            Cells::Edges(edges) => edges.0.len() + 1,
        }
    }

    /// Never: there is at least one cell.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The cell of a key; `None` outside the pieces of [`Cells::Linear`].
    pub fn cell(&self, key: KeyBits) -> Option<u32> {
        match self {
            Cells::Table(table) => Some(table.cell(key)),
            Cells::Linear(linear) => linear.cell(key),
            Cells::Edges(edges) => Some(edges.0.partition_point(|edge| *edge <= key) as u32),
        }
    }

    /// The keys of a cell; `None` if no key falls into it.
    pub fn range(&self, cell: u32, width: Width) -> Option<Bracket> {
        match self {
            Cells::Table(table) => table.range(cell, width),
            Cells::Linear(linear) => linear.range(cell),
            Cells::Edges(edges) => edges.range(cell, width),
        }
    }

    /// The cells that hold keys of `bracket`: first and last. For [`Cells::Linear`] the bracket lies in a piece.
    ///
    /// # Errors
    /// An internal error if an end of the bracket has no cell.
    pub fn span(&self, bracket: &Bracket) -> Result<(u32, u32)> {
        match (self.cell(bracket.first), self.cell(bracket.last)) {
            (Some(first), Some(last)) => Ok((first, last)),
            _ => internal_err!("{bracket:?} reaches beyond the cells that were counted"),
        }
    }

    /// Values in a message that carries the function.
    pub(crate) fn values(&self) -> u64 {
        match self {
            // Base, top and shift; offset and shift of each entry travel as one value.
            Cells::Table(table) => 3 + (table.entries.len() + table.heavy.len()) as u64,
            // Both pivots, first cell and number of cells: the slope follows from them.
            Cells::Linear(linear) => 4 * linear.pieces.len() as u64,
            Cells::Edges(edges) => edges.0.len() as u64,
        }
    }
}

/// One entry of a [`CellTable`]: a key `d` above the base, in this entry's range, has the cell
/// `(d >> shift) + add`, modulo 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) add: u32,
    pub(crate) shift: u32,
}

/// A two-level table: the upper bits of `key - base` choose an entry, the entry says how many of the lower bits
/// number the cells inside it. Keys below `base` have the first cell, keys above `top` the last.
///
/// Up to [`CellTable::MOST_HEAVY`] heavy keys get a cell of their own between what lies below and above them in theirs
/// (the equality buckets of SampleSelect, section IV-C): each adds one to the cell of every key at or above it, and
/// another to every key above it.
#[derive(Debug, Clone, PartialEq)]
pub struct CellTable {
    pub(crate) base: KeyBits,
    pub(crate) top: KeyBits,
    pub(crate) shift: u32,
    pub(crate) entries: Vec<Entry>,
    /// Ascending and distinct.
    pub(crate) heavy: Vec<KeyBits>,
    /// Without those for heavy keys.
    cells: u32,
}

impl CellTable {
    /// Most heavy keys: each costs two compares an element.
    pub const MOST_HEAVY: usize = 8;

    /// log2 of the most entries.
    pub(crate) const ENTRY_BITS: u32 = 11;

    /// A table with up to `cells` cells beside one for each entry, given out by the shares of a sorted sample.
    ///
    /// # Errors
    /// An internal error if the sample is empty or the cells are more than [`MAX_CELLS`].
    pub fn from_sample(sample: &KeyVec, cells: usize) -> Result<Self> {
        Self::from_part(sample, 0..sample.len(), cells)
    }

    /// The same from a part of the sample: what lies outside shares the two outer cells.
    ///
    /// # Errors
    /// As for [`CellTable::from_sample`]; an internal error if the part is not in the sample.
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
            // The last entry ends at the greatest key, or beyond.
            let above = match index + 1 == count as KeyBits {
                true => part.end,
                false => sample
                    .lower_bound(base + ((index + 1) << shift))
                    .clamp(part.start, part.end),
            };
            // The greatest power of two within the entry's share, but no cell narrower than a key.
            let share = ((above - below) as u64 * cells as u64 / part.len() as u64).max(1);
            below = above;
            share.ilog2().min(shift)
        });
        Self::from_splits(base, top, &splits.collect::<Vec<_>>())
    }

    /// The table between two keys whose entries have `2^split` cells each.
    ///
    /// # Errors
    /// An internal error for a split too many or too few, more than can be told apart, or more than [`MAX_CELLS`].
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

    /// The ends of the least table around two keys whose cells are dyadic intervals: both are multiples of an entry.
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

    /// Bits below an entry's number, and number of entries, of a table between two keys.
    pub(crate) fn layout(base: KeyBits, top: KeyBits) -> (u32, usize) {
        let bits = KeyBits::BITS - (top - base).leading_zeros();
        let shift = bits.saturating_sub(Self::ENTRY_BITS);
        (shift, ((top - base) >> shift) as usize + 1)
    }

    /// log2 of the cells of each entry.
    pub(crate) fn splits(&self) -> impl ExactSizeIterator<Item = u32> {
        self.entries.iter().map(|entry| self.shift - entry.shift)
    }

    /// The same table with cells of their own for heavy keys.
    ///
    /// # Errors
    /// An internal error for keys that are not ascending, or too many.
    pub fn with_heavy(mut self, heavy: Vec<KeyBits>) -> Result<Self> {
        if heavy.len() > Self::MOST_HEAVY || heavy.windows(2).any(|pair| pair[0] >= pair[1]) {
            return internal_err!("heavy keys {heavy:?}");
        }
        self.heavy = heavy;
        Ok(self)
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

    /// The cell as if no key were heavy.
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

    /// `None` if no key can be there.
    fn range(&self, cell: u32, width: Width) -> Option<Bracket> {
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

/// One pivot interval of [`Linear`], both pivots inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub(crate) first: KeyBits,
    pub(crate) last: KeyBits,
    pub(crate) base: u32,
    pub(crate) cells: u32,
    /// Moves the interval's length to the upper end of a 64-bit field (128-bit keys: of 128, then the upper half).
    pub(crate) shift: u32,
    /// Cells for each 2^64 of the moved distance, rounded down.
    pub(crate) slope: u64,
}

impl Piece {
    /// Both pivots.
    pub(crate) fn bracket(&self) -> Bracket {
        Bracket {
            first: self.first,
            last: self.last,
        }
    }
}

/// Linear projection inside disjoint pivot intervals: DIBMS's `slope * (key - left pivot)` (section II-A2, eq. 5),
/// with the slope as an integer, so that the ends of a bucket are exact.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    pub(crate) pieces: Vec<Piece>,
    width: Width,
}

impl Linear {
    /// `(interval, buckets)` in ascending order. An interval of fewer keys than buckets gets one bucket a key.
    ///
    /// # Errors
    /// An internal error for no interval, an interval without a bucket or beyond the keys of `width`, or more than [`MAX_CELLS`].
    pub fn try_new(intervals: &[(Bracket, u32)], width: Width) -> Result<Self> {
        let field = width.bytes() as u32 * 8;
        let field = field.max(64);
        let mut pieces = Vec::with_capacity(intervals.len());
        let mut base = 0_u32;
        for &(Bracket { first, last }, cells) in intervals {
            if first > last || last > width.max_key() {
                return internal_err!("buckets from {first} to {last} of {width:?} keys");
            }
            let cells = KeyBits::from(cells).min((last - first).saturating_add(1)) as u32;
            if cells == 0 || base as usize + cells as usize > MAX_CELLS {
                return internal_err!("{cells} buckets for {first}..={last}, after {base}");
            }
            let shift = (last - first).max(1).leading_zeros() - (KeyBits::BITS - field);
            let longest = upper64(last - first, shift, field);
            let slope = (u128::from(cells) << 64) / (u128::from(longest) + 1);
            let slope = u64::try_from(slope).unwrap_or(u64::MAX);
            pieces.push(Piece {
                first,
                last,
                base,
                cells,
                shift,
                slope,
            });
            base += cells;
        }
        if pieces.is_empty() {
            return internal_err!("linear buckets need an interval");
        }
        Ok(Self { pieces, width })
    }

    fn len(&self) -> usize {
        let last = self.pieces[self.pieces.len() - 1];
        (last.base + last.cells) as usize
    }

    fn field(&self) -> u32 {
        (self.width.bytes() as u32 * 8).max(64)
    }

    fn cell(&self, key: KeyBits) -> Option<u32> {
        let at = self
            .pieces
            .partition_point(|piece| piece.first <= key)
            .checked_sub(1)?;
        let piece = self.pieces[at];
        (key <= piece.last).then(|| {
            let distance = upper64(key - piece.first, piece.shift, self.field());
            piece.base + ((u128::from(distance) * u128::from(piece.slope)) >> 64) as u32
        })
    }

    fn range(&self, cell: u32) -> Option<Bracket> {
        let at = self
            .pieces
            .partition_point(|piece| piece.base <= cell)
            .checked_sub(1)?;
        let piece = self.pieces[at];
        let local = cell - piece.base;
        let first = self.first_distance(&piece, local)?;
        let next = (local + 1..piece.cells).find_map(|next| self.first_distance(&piece, next));
        let last = next.map_or(piece.last, |next| piece.first + (next - 1));
        let first = piece.first + first;
        (first <= last).then_some(Bracket { first, last })
    }

    /// The least distance from the left pivot that falls into a piece's bucket or a later one.
    fn first_distance(&self, piece: &Piece, local: u32) -> Option<KeyBits> {
        let moved = (u128::from(local) << 64).div_ceil(u128::from(piece.slope));
        // Back from the field's upper 64 bits: a distance of at least moved * 2^(field - 64) / 2^shift.
        let up = self.field() - 64;
        let distance = if up >= piece.shift {
            moved
                .checked_shl(up - piece.shift)
                .filter(|far| far >> (up - piece.shift) == moved)?
        } else {
            moved.div_ceil(1 << (piece.shift - up))
        };
        (distance <= piece.last - piece.first).then_some(distance)
    }
}

/// The upper 64 bits of `distance << shift` in a field of this many bits.
fn upper64(distance: KeyBits, shift: u32, field: u32) -> u64 {
    ((distance << shift) >> (field - 64)) as u64
}

/// Splitters, ascending and distinct: the cell of a key is the number of edges at or below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edges(Vec<KeyBits>);

impl Edges {
    /// From edges in any order; duplicates and the edge 0, which nothing lies below, are dropped.
    ///
    /// # Errors
    /// An internal error for more than [`MAX_CELLS`] cells.
    pub fn try_new(mut edges: Vec<KeyBits>) -> Result<Self> {
        edges.sort_unstable();
        edges.dedup();
        edges.retain(|edge| *edge != 0);
        if edges.len() >= MAX_CELLS {
            return internal_err!("{} edges are more than an oracle can tell apart", edges.len());
        }
        Ok(Self(edges))
    }

    /// The edges, ascending.
    pub fn as_slice(&self) -> &[KeyBits] {
        &self.0
    }

    fn range(&self, cell: u32, width: Width) -> Option<Bracket> {
        let cell = cell as usize;
        let first = if cell == 0 { 0 } else { *self.0.get(cell - 1)? };
        let last = self.0.get(cell).map_or(width.max_key(), |edge| edge - 1);
        Some(Bracket { first, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(keys: &[u64]) -> KeyVec {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        KeyVec::W64(keys)
    }

    /// Every cell's range must hold exactly the keys that map to it, at both ends.
    fn check(cells: &Cells, width: Width) {
        for cell in 0..cells.len() as u32 {
            let Some(range) = cells.range(cell, width) else {
                continue;
            };
            assert_eq!(cells.cell(range.first), Some(cell), "{range:?}");
            assert_eq!(cells.cell(range.last), Some(cell), "{range:?}");
            if range.first > 0 {
                assert_ne!(cells.cell(range.first - 1), Some(cell), "{range:?}");
            }
            if range.last < width.max_key() {
                assert_ne!(cells.cell(range.last + 1), Some(cell), "{range:?}");
            }
        }
    }

    #[test]
    fn table_cells_are_exact_at_their_ends() {
        let spread: Vec<u64> = (0..5000).map(|i| i * 0x0003_1415_9265_3589).collect();
        let clustered: Vec<u64> = (0..5000)
            .map(|i| if i % 50 == 0 { i << 50 } else { 77_000 + i % 97 })
            .collect();
        let few: Vec<u64> = (0..5000).map(|i| i % 3).collect();
        for keys in [
            spread,
            clustered,
            few,
            vec![5],
            vec![0, u64::MAX],
            vec![u64::MAX; 4],
        ] {
            let table = CellTable::from_sample(&sample(&keys), 4096).unwrap();
            assert!(table.cells <= 4096 + 2048 + 2);
            check(&Cells::Table(table.clone()), Width::W64);
            let mut heavy: Vec<u128> = keys.iter().step_by(997).map(|key| (*key).into()).collect();
            heavy.extend([0, 1, u64::MAX.into()]);
            heavy.sort_unstable();
            heavy.dedup();
            heavy.truncate(CellTable::MOST_HEAVY);
            let table = Cells::Table(table.with_heavy(heavy.clone()).unwrap());
            check(&table, Width::W64);
            for key in heavy {
                let cell = table.cell(key).unwrap();
                let only = Bracket {
                    first: key,
                    last: key,
                };
                assert_eq!(table.range(cell, Width::W64), Some(only));
            }
        }
    }

    #[test]
    fn tables_reach_over_all_keys_of_the_widest() {
        let keys: Vec<u128> = (0..5000_u128).map(|i| i * (u128::MAX / 4999)).collect();
        let table = CellTable::from_sample(&KeyVec::W128(keys), 4096).unwrap();
        assert!(
            (2048..=4096 + 2048 + 2).contains(&table.cells),
            "{} cells",
            table.cells
        );
        check(&Cells::Table(table), Width::W128);
        let ends = CellTable::from_sample(&KeyVec::W128(vec![0, u128::MAX]), 4096).unwrap();
        check(&Cells::Table(ends), Width::W128);
    }

    #[test]
    fn table_gives_cells_by_share() {
        let keys: Vec<u64> = (0..10_000)
            .map(|i| if i < 9_000 { i << 30 } else { i << 41 })
            .collect();
        let table = CellTable::from_sample(&sample(&keys), 8192).unwrap();
        let cell = |key| table.cell(key);
        assert!(cell(8_999 << 30) > 2_000, "{}", cell(8_999 << 30));
    }

    #[test]
    fn linear_buckets_are_exact_at_their_ends() {
        let bracket = |first, last| Bracket { first, last };
        for (width, intervals) in [
            (Width::W64, vec![(bracket(0, u64::MAX.into()), 512)]),
            (
                Width::W64,
                vec![
                    (bracket(10, 10), 512),
                    (bracket(11, 13), 2),
                    (bracket(100, 1099), 7),
                ],
            ),
            (
                Width::W64,
                vec![(bracket(u64::MAX as u128 - 4, u64::MAX.into()), 512)],
            ),
            (
                Width::W32,
                vec![(bracket(0, 99), 100), (bracket(1 << 20, u32::MAX.into()), 1000)],
            ),
            (Width::W128, vec![(bracket(0, u128::MAX), 512)]),
            (
                Width::W128,
                vec![(bracket(5, 9), 512), (bracket(1 << 100, 1 << 101), 3)],
            ),
        ] {
            let linear = Cells::Linear(Linear::try_new(&intervals, width).unwrap());
            check(&linear, width);
            for (interval, _) in &intervals {
                let (first, last) = linear.span(interval).unwrap();
                let covered: Vec<_> = (first..=last)
                    .filter_map(|cell| linear.range(cell, width))
                    .collect();
                assert_eq!(covered[0].first, interval.first);
                assert_eq!(covered[covered.len() - 1].last, interval.last);
                assert!(covered.windows(2).all(|pair| pair[0].last + 1 == pair[1].first));
            }
        }
    }

    #[test]
    fn a_short_interval_gets_one_bucket_a_key() {
        for length in 1..200_u128 {
            let interval = Bracket {
                first: 1000,
                last: 999 + length,
            };
            let linear = Linear::try_new(&[(interval, 8192)], Width::W64).unwrap();
            for key in interval.first..=interval.last {
                assert_eq!(linear.cell(key), Some((key - 1000) as u32));
            }
            assert_eq!((linear.cell(999), linear.cell(1000 + length)), (None, None));
        }
    }

    #[test]
    fn edges_are_exact_at_their_ends() {
        let edges = Edges::try_new(vec![7, 0, 3, 8, 3, u64::MAX.into()]).unwrap();
        assert_eq!(edges.as_slice(), [3, 7, 8, u64::MAX.into()]);
        check(&Cells::Edges(edges), Width::W64);
        check(&Cells::Edges(Edges::try_new(vec![]).unwrap()), Width::W128);
    }
}
