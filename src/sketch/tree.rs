//! The modified algorithm (GK Select, section IV-A3): a buffer that grows with the number of values seen, and summaries
//! of similar sizes that are merged in a tree.
//!
//! After a merge, a tuple's rank is uncertain by the gap of the other side, and no compress can undo that. With tuples
//! `p n` values apart at every level, a level costs about `p / 2`. So a leaf is finer than the bound requires, and each
//! level drops no more tuples than it must to stay at `8 / eps`.

use super::cells::Cells;
use super::epsilon::Epsilon;
use super::gk::Summary;
use super::merge::ROOMY;
use super::parts::{Scratch, summarise};
use crate::key::Key;
use datafusion::common::Result;

/// Number of keys of the first buffer, for each `1 / eps`: a summary would not be much smaller.
const FIRST: u64 = 16;

/// Number of keys of the largest buffer, for each `1 / eps`: the more keys, the cheaper the merges.
const LARGEST: u64 = 32;

/// Bounds of the number of keys of a buffer, whatever `eps` is: the least of a first buffer, the least of a largest
/// buffer, and the most. They are smaller in tests, so that few keys reach every path.
const LEAST_KEYS: usize = if cfg!(test) { 1 << 6 } else { 1 << 10 };
pub(super) const FAST_KEYS: usize = if cfg!(test) { 1 << 10 } else { 1 << 16 };
const MOST_KEYS: usize = 1 << 20;

/// Number of keys that cells count between two checks of how many they hand back.
const STEP: usize = if cfg!(test) { 1 << 12 } else { 1 << 18 };

/// Sixteenths of the invariant's limit that a leaf uses.
const LEAF: u64 = 3;

/// Summaries, cells, and scratch memory to summarise a buffer.
pub(super) struct Tree<K> {
    eps: Epsilon,
    /// Summaries of fewer and fewer values.
    levels: Vec<Summary<K>>,
    cells: Option<Cells<K>>,
    /// Number of keys that were given to the cells since the last check, and that they handed back.
    counted: usize,
    handed_back: usize,
    /// Number of buffers until new cells are tried, and the number that the next failure adds.
    wait: u32,
    penalty: u32,
    scratch: Scratch<K>,
}

impl<K: Key> Tree<K> {
    pub(super) fn new(eps: Epsilon) -> Self {
        Self {
            eps,
            levels: Vec::new(),
            cells: None,
            counted: 0,
            handed_back: 0,
            wait: 0,
            penalty: 1,
            scratch: Scratch::default(),
        }
    }

    /// Bytes of memory held on the heap.
    pub(super) fn size(&self) -> usize {
        self.levels.iter().map(Summary::size).sum::<usize>()
            + self.levels.capacity() * size_of::<Summary<K>>()
            + self.cells.as_ref().map_or(0, Cells::size)
            + self.scratch.size()
    }

    /// Number of keys of a full buffer after `n` values.
    pub(super) fn capacity(eps: Epsilon, n: u64) -> usize {
        let first = eps.reciprocal(FIRST, MOST_KEYS).max(LEAST_KEYS);
        let largest = eps.reciprocal(LARGEST, MOST_KEYS).max(FAST_KEYS);
        usize::try_from(n).map_or(largest, |n| n.clamp(first, largest))
    }

    /// Whether keys are counted by cells, without a buffer.
    pub(super) fn counts(&self) -> bool {
        self.cells.is_some()
    }

    /// Counts some of the keys by cells, if there are any cells. Keys that the cells hand back go into `buffer`.
    /// Returns the keys that are left.
    ///
    /// # Errors
    /// Errors of [`Summary::merge`].
    pub(super) fn count<'a>(&mut self, keys: &'a [K], buffer: &mut Vec<K>) -> Result<&'a [K]> {
        let Some(cells) = &mut self.cells else {
            return Ok(keys);
        };
        let (keys, rest) = keys.split_at(keys.len().min(STEP));
        let before = buffer.len();
        cells.add(keys, buffer);
        self.counted += keys.len();
        self.handed_back += buffer.len() - before;
        let moved = self.counted >= FAST_KEYS && self.handed_back > self.counted / 4;
        if moved || !cells.has_room(STEP) {
            self.end_cells()?;
        } else if self.counted >= STEP {
            (self.counted, self.handed_back, self.penalty) = (0, 0, 1);
        }
        Ok(rest)
    }

    /// Turns a full buffer into a summary, or into new cells, which may hand some of its keys back.
    ///
    /// # Errors
    /// Errors of [`Summary::merge`].
    pub(super) fn flush_buffer(&mut self, buffer: &mut Vec<K>) -> Result<()> {
        if self.cells.is_none() && buffer.len() >= FAST_KEYS && !is_monotone(buffer) {
            self.wait = self.wait.saturating_sub(1);
            if self.wait == 0 && self.try_cells(buffer)? {
                return Ok(());
            }
        }
        let most = self.eps.budget(buffer.len() as u64) * LEAF / 16;
        let leaf = summarise(self.eps, buffer, &mut self.scratch, most)?;
        buffer.clear();
        self.push(leaf)
    }

    /// Tries to count the keys of the buffer by new cells. Returns whether they do; keys that the cells hand back stay
    /// in the buffer.
    fn try_cells(&mut self, buffer: &mut Vec<K>) -> Result<bool> {
        let Some(mut cells) = Cells::try_new(self.eps, buffer)? else {
            self.postpone_cells();
            return Ok(false);
        };
        self.scratch.keys.clear();
        cells.add(buffer, &mut self.scratch.keys);
        if self.scratch.keys.len() > buffer.len() / 4 {
            self.postpone_cells();
            return Ok(false);
        }
        std::mem::swap(buffer, &mut self.scratch.keys);
        (self.counted, self.handed_back) = (0, 0);
        self.cells = Some(cells);
        Ok(true)
    }

    /// Waits for some buffers before the next cells, and longer after each failure, because cells did not serve.
    fn postpone_cells(&mut self) {
        self.wait = self.penalty;
        self.penalty = (2 * self.penalty).min(64);
    }

    /// Turns the cells, if there are any, into a summary.
    fn end_cells(&mut self) -> Result<()> {
        let Some(cells) = self.cells.take() else {
            return Ok(());
        };
        self.postpone_cells();
        let mut summary = cells.finish();
        summary.reduce(ROOMY, LEAF);
        self.push(summary)
    }

    /// Adds a summary to the tree.
    ///
    /// # Errors
    /// Errors of [`Summary::merge`].
    pub(super) fn push(&mut self, mut summary: Summary<K>) -> Result<()> {
        while let Some(last) = self.levels.pop_if(|last| last.n() <= summary.n()) {
            summary = last.union(summary)?;
            summary.reduce(ROOMY, LEAF);
            summary.shrink();
        }
        self.levels.push(summary);
        Ok(())
    }

    /// The summary of all values, not compressed.
    ///
    /// # Errors
    /// Errors of [`Summary::merge`].
    pub(super) fn finish(mut self, buffer: &mut [K]) -> Result<Summary<K>> {
        let most = self.eps.budget(buffer.len() as u64) * LEAF / 16;
        let mut all = summarise(self.eps, buffer, &mut self.scratch, most)?;
        while let Some(last) = self.levels.pop() {
            all = last.union(all)?;
        }
        if let Some(cells) = &self.cells {
            all = cells.finish().union(all)?;
        }
        all.settle();
        Ok(all)
    }
}

fn is_monotone<K: Key>(keys: &[K]) -> bool {
    keys.is_sorted() || keys.is_sorted_by(|a, b| a >= b)
}
