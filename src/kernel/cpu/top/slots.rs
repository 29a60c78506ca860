//! Rows of many groups in flat memory. Each group has an extent of the memory, and a floor that rows must reach to be
//! stored there.
//!
//! ```text
//! slots   floor 41 | floor 0  | floor 97 ..       a row of group 2: key < 97 is rejected, else written at `next`
//!         |          |          |
//! keys    52 41 60 . | 3 9 . .  | 99 97 98 99 ..  full: cut to the best k, or moved to a larger extent
//! rows     4  7  9   | 1 2      | ..
//! ```
//! Every row is written to the next free index of its group, which then advances or not: there is no branch that could
//! be mispredicted. Where the lowest floor of all groups rejects most keys, keys are rejected in blocks, before their
//! groups are even read.

use super::cut::{Scratch, Sorter};
use super::filter::{BLOCK, CHUNK, Masks, passing};
use super::floor::Floor;
use super::make_room;
use super::ranking::{FEW, positions, with_size};
use crate::cells::simd::{Kernel, dispatch};
use crate::key::Key;
use datafusion::common::{Result, internal_err};

/// The floor and the extent of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot<K, R> {
    pub(crate) floor: Floor<K, R>,
    pub(crate) start: u32,
    /// The index of its next row: always less than `end`.
    pub(crate) next: u32,
    pub(crate) end: u32,
}

/// Rows in order of group; the memory serves one hash partition after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segments<K, R> {
    /// The index of each group's first row, and the number of all rows.
    pub(crate) offsets: Vec<usize>,
    /// Keys, best first in each group.
    pub(crate) keys: Vec<K>,
    /// The row of each key, ascending among equal keys.
    pub(crate) rows: Vec<R>,
}

impl<K, R> Default for Segments<K, R> {
    fn default() -> Self {
        Self {
            offsets: vec![0],
            keys: Vec::new(),
            rows: Vec::new(),
        }
    }
}

impl<K, R> Segments<K, R> {
    /// Forgets all groups, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.offsets.clear();
        self.offsets.push(0);
        self.keys.clear();
        self.rows.clear();
    }

    /// Bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.offsets.capacity() * size_of::<usize>()
            + self.keys.capacity() * size_of::<K>()
            + self.rows.capacity() * size_of::<R>()
    }
}

/// The treatment of a group whose extent is full.
pub(crate) trait WhenFull<K, R> {
    /// Makes room for at least one more row in the extent of `group`.
    fn make_room(&mut self, slots: &mut Slots<K, R>, group: usize) -> Result<()>;
}

/// The extents and rows of all groups.
#[derive(Debug)]
pub(crate) struct Slots<K, R> {
    pub(crate) slots: Vec<Slot<K, R>>,
    pub(crate) keys: Vec<K>,
    pub(crate) rows: Vec<R>,
    scratch: Scratch<K, R>,
    sorter: Sorter<K, R>,
    /// A lower bound of the floors of all groups.
    lowest: K,
    /// Number of rows until the lowest floor is computed again.
    until_lowest: usize,
}

impl<K: Key, R: Key> Slots<K, R> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            keys: Vec::new(),
            rows: Vec::new(),
            scratch: Scratch::default(),
            sorter: Sorter::default(),
            lowest: K::default(),
            until_lowest: 0,
        }
    }

    /// Bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<K, R>>()
            + self.keys.capacity() * size_of::<K>()
            + self.rows.capacity() * size_of::<R>()
            + self.scratch.held_bytes()
            + self.sorter.held_bytes()
    }

    /// Forgets the lowest floor, because groups were added or laid out anew.
    pub(crate) fn forget_lowest(&mut self) {
        (self.lowest, self.until_lowest) = (K::default(), 0);
    }

    /// Adds the rows that reach the floor of their group. The slices are of equal length.
    ///
    /// # Errors
    /// An internal error for a group number that is too large; when the system gives no memory.
    pub(crate) fn offer(
        &mut self,
        groups: &[u32],
        keys: &[K],
        rows: &[R],
        full: &mut impl WhenFull<K, R>,
    ) -> Result<()> {
        let mut masks = Masks::default();
        let chunks = groups
            .chunks(CHUNK)
            .zip(keys.chunks(CHUNK))
            .zip(rows.chunks(CHUNK));
        for ((groups, keys), rows) in chunks {
            self.look_for_lowest(keys.len());
            if self.lowest == K::default() {
                self.offer_all(groups, keys, rows, full)?;
                continue;
            }
            passing(keys, self.lowest, true, &mut masks);
            for (from, mask) in (0..keys.len()).step_by(BLOCK).zip(masks) {
                self.offer_some(mask, &groups[from..], &keys[from..], &rows[from..], full)?;
            }
        }
        Ok(())
    }

    /// Computes the lowest floor from time to time: once for every 16 rows a group.
    fn look_for_lowest(&mut self, rows: usize) {
        if self.until_lowest > 0 {
            self.until_lowest = self.until_lowest.saturating_sub(rows);
            return;
        }
        let floors = self.slots.iter().map(|slot| slot.floor.key);
        self.lowest = floors.min().unwrap_or_default();
        self.until_lowest = self.slots.len().saturating_mul(16);
    }

    fn offer_all(
        &mut self,
        groups: &[u32],
        keys: &[K],
        rows: &[R],
        full: &mut impl WhenFull<K, R>,
    ) -> Result<()> {
        for ((group, key), row) in groups.iter().zip(keys).zip(rows) {
            self.offer_one(*group, *key, *row, full)?;
        }
        Ok(())
    }

    fn offer_some(
        &mut self,
        mut mask: u64,
        groups: &[u32],
        keys: &[K],
        rows: &[R],
        full: &mut impl WhenFull<K, R>,
    ) -> Result<()> {
        while mask != 0 {
            let at = mask.trailing_zeros() as usize;
            self.offer_one(groups[at], keys[at], rows[at], full)?;
            mask &= mask - 1;
        }
        Ok(())
    }

    #[inline(always)]
    fn offer_one(&mut self, group: u32, key: K, row: R, full: &mut impl WhenFull<K, R>) -> Result<()> {
        let count = self.slots.len();
        let Some(slot) = self.slots.get_mut(group as usize) else {
            return no_group(group, count);
        };
        let at = slot.next as usize;
        (self.keys[at], self.rows[at]) = (key, row);
        slot.next += u32::from(slot.floor.admits(key, row));
        if slot.next == slot.end {
            full.make_room(self, group as usize)?;
        }
        Ok(())
    }

    /// Cuts a group to its best `k` rows.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(crate) fn cut(&mut self, group: usize, k: usize) -> Result<()> {
        let slot = &mut self.slots[group];
        let range = slot.start as usize..slot.next as usize;
        let (keys, rows) = (&mut self.keys[range.clone()], &mut self.rows[range]);
        let cut = self.scratch.exactly(keys, rows, k)?;
        slot.next = slot.start + cut.kept as u32;
        slot.floor = slot.floor.higher(cut.floor);
        Ok(())
    }

    /// Appends the best `k` rows of each group, best first. `ascending`: row numbers are known to ascend in every
    /// group.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(crate) fn rank(&mut self, k: usize, ascending: bool, out: &mut Segments<K, R>) -> Result<()> {
        let len = |slot: &Slot<K, R>| ((slot.next - slot.start) as usize).min(k);
        let total: usize = self.slots.iter().map(len).sum();
        make_room(&mut out.offsets, self.slots.len(), usize::MAX)?;
        // Each group writes all of its rows. The next group overwrites those after the best `k`.
        make_room(&mut out.keys, total + FEW, usize::MAX)?;
        make_room(&mut out.rows, total + FEW, usize::MAX)?;
        let end = out.keys.len() + total;
        out.keys.resize(end + FEW, K::default());
        out.rows.resize(end + FEW, R::default());
        let mut result = Ok(());
        dispatch(Rank {
            slots: self,
            k,
            ascending,
            out,
            result: &mut result,
        });
        out.keys.truncate(end);
        out.rows.truncate(end);
        result
    }
}

/// The error for a group number that is too large. Out of line, because the caller is a hot loop.
#[cold]
#[inline(never)]
fn no_group(group: u32, groups: usize) -> Result<()> {
    internal_err!("group {group} of {groups}")
}

struct Rank<'a, K, R> {
    slots: &'a mut Slots<K, R>,
    k: usize,
    ascending: bool,
    out: &'a mut Segments<K, R>,
    result: &'a mut Result<()>,
}

impl<K: Key, R: Key> Kernel for Rank<'_, K, R> {
    #[inline(always)]
    fn run(self) {
        let Segments { offsets, keys, rows } = self.out;
        let mut at = offsets.last().copied().unwrap_or_default();
        for group in 0..self.slots.slots.len() {
            let slot = &self.slots.slots[group];
            let (start, n) = (slot.start as usize, (slot.next - slot.start) as usize);
            let (out_keys, out_rows) = (&mut keys[at..], &mut rows[at..]);
            let ascending = self.ascending || self.slots.rows[start..start + n].is_sorted();
            if n <= FEW && ascending {
                let (keys, rows) = (&self.slots.keys[start..], &self.slots.rows[start..]);
                rank_few(keys, rows, n, out_keys, out_rows);
            } else if let Err(error) = self.slots.rank_many(group, self.k, out_keys, out_rows) {
                *self.result = Err(error);
                return;
            }
            at += n.min(self.k);
            offsets.push(at);
        }
    }
}

/// Writes the first `n` rows in descending order of their keys. The output has room for [`FEW`] rows, and [`FEW`] rows
/// may be read.
#[inline(always)]
fn rank_few<K: Key, R: Key>(keys: &[K], rows: &[R], n: usize, out_keys: &mut [K], out_rows: &mut [R]) {
    if n == 1 {
        (out_keys[0], out_rows[0]) = (keys[0], rows[0]);
        return;
    }
    with_size!(n, N => {
        let (Some(keys), Some(rows)) = (keys.first_chunk::<N>(), rows.first_chunk::<N>()) else {
            return;
        };
        let (Some(out_keys), Some(out_rows)) = (out_keys.first_chunk_mut::<N>(), out_rows.first_chunk_mut::<N>()) else {
            return;
        };
        let positions = positions(keys, n);
        for ((position, key), row) in positions.iter().zip(keys).zip(rows).take(n) {
            let position = *position as usize % N;
            (out_keys[position], out_rows[position]) = (*key, *row);
        }
    });
}

impl<K: Key, R: Key> Slots<K, R> {
    /// Writes the best `k` rows of a group of any size.
    #[inline(never)]
    fn rank_many(&mut self, group: usize, k: usize, out_keys: &mut [K], out_rows: &mut [R]) -> Result<()> {
        let slot = self.slots[group];
        if (slot.next - slot.start) as usize > k {
            self.cut(group, k)?;
        }
        let slot = self.slots[group];
        let range = slot.start as usize..slot.next as usize;
        let (out_keys, out_rows) = (&mut out_keys[..range.len()], &mut out_rows[..range.len()]);
        out_keys.copy_from_slice(&self.keys[range.clone()]);
        out_rows.copy_from_slice(&self.rows[range]);
        self.sorter.sort(out_keys, out_rows)
    }
}
