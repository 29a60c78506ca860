//! The modified algorithm (GK Select, section IV-A3): a buffer that grows with the values seen, and summaries
//! merged in a tree, like with like.
//!
//! A tuple's rank is uncertain by the other side's gap after a merge, and no compress can take that back. With tuples
//! `p n` values apart at every level it costs about `p / 2` a level. So a leaf is finer than the bound asks for, and
//! each level drops no more tuples than it must to stay at `8 / eps`.

use super::cells::Cells;
use super::epsilon::Epsilon;
use super::gk::Summary;
use super::merge::ROOMY;
use super::parts::{Scratch, summarise};
use crate::key::Key;
use datafusion::common::Result;

/// Keys of the first buffer, for each `1 / eps`: a summary would not be much smaller.
const FIRST: u64 = 16;

/// Keys of the largest buffer, for each `1 / eps`: the more, the cheaper are merges.
const LARGEST: u64 = 32;

/// Bounds of a buffer, whatever `eps`; smaller in tests, so that few keys reach every path.
const LEAST_KEYS: usize = if cfg!(test) { 1 << 6 } else { 1 << 10 };
pub(super) const FAST_KEYS: usize = if cfg!(test) { 1 << 10 } else { 1 << 16 };
const MOST_KEYS: usize = 1 << 20;

/// Keys that cells count between two looks at how many they hand back.
const STEP: usize = if cfg!(test) { 1 << 12 } else { 1 << 18 };

/// Sixteenths of the invariant that a leaf uses.
const LEAF: u64 = 3;

/// Summaries, cells, and what the buffer needs to become one.
pub(super) struct Tree<K> {
    eps: Epsilon,
    /// Fewer and fewer values.
    levels: Vec<Summary<K>>,
    cells: Option<Cells<K>>,
    /// Keys given to the cells since the last look, and handed back.
    given: usize,
    back: usize,
    /// Buffers to go before new cells are tried, and how many the next failure adds.
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
            given: 0,
            back: 0,
            wait: 0,
            penalty: 1,
            scratch: Scratch::default(),
        }
    }

    /// Bytes on the heap.
    pub(super) fn size(&self) -> usize {
        self.levels.iter().map(Summary::size).sum::<usize>()
            + self.levels.capacity() * size_of::<Summary<K>>()
            + self.cells.as_ref().map_or(0, Cells::size)
            + self.scratch.size()
    }

    /// Keys of a buffer after `n` values.
    pub(super) fn capacity(eps: Epsilon, n: u64) -> usize {
        let first = eps.reciprocal(FIRST, MOST_KEYS).max(LEAST_KEYS);
        let largest = eps.reciprocal(LARGEST, MOST_KEYS).max(FAST_KEYS);
        usize::try_from(n).map_or(largest, |n| n.clamp(first, largest))
    }

    /// Whether keys are counted by cells, without a buffer.
    pub(super) fn counts(&self) -> bool {
        self.cells.is_some()
    }

    /// Counts some of the keys by cells, if there are any; what cells hand back goes into `buffer`. Returns the keys
    /// that are left.
    ///
    /// # Errors
    /// As for [`Summary::merge`].
    pub(super) fn count<'a>(&mut self, keys: &'a [K], buffer: &mut Vec<K>) -> Result<&'a [K]> {
        let Some(cells) = &mut self.cells else {
            return Ok(keys);
        };
        let (keys, rest) = keys.split_at(keys.len().min(STEP));
        let before = buffer.len();
        cells.add(keys, buffer);
        self.given += keys.len();
        self.back += buffer.len() - before;
        let moved = self.given >= FAST_KEYS && self.back > self.given / 4;
        if moved || !cells.has_room(STEP) {
            self.close()?;
        } else if self.given >= STEP {
            (self.given, self.back, self.penalty) = (0, 0, 1);
        }
        Ok(rest)
    }

    /// Makes a full buffer a summary, or the beginning of cells that may then hand some of it back.
    ///
    /// # Errors
    /// As for [`Summary::merge`].
    pub(super) fn flush_buffer(&mut self, buffer: &mut Vec<K>) -> Result<()> {
        if self.cells.is_none() && buffer.len() >= FAST_KEYS && !is_monotone(buffer) {
            self.wait = self.wait.saturating_sub(1);
            if self.wait == 0 && self.open(buffer)? {
                return Ok(());
            }
        }
        let most = self.eps.budget(buffer.len() as u64) * LEAF / 16;
        let leaf = summarise(self.eps, buffer, &mut self.scratch, most)?;
        buffer.clear();
        self.push(leaf)
    }

    /// Whether cells count the keys of the buffer now, apart from those left in it.
    fn open(&mut self, buffer: &mut Vec<K>) -> Result<bool> {
        let Some(mut cells) = Cells::try_new(self.eps, buffer)? else {
            self.retreat();
            return Ok(false);
        };
        self.scratch.keys.clear();
        cells.add(buffer, &mut self.scratch.keys);
        if self.scratch.keys.len() > buffer.len() / 4 {
            self.retreat();
            return Ok(false);
        }
        std::mem::swap(buffer, &mut self.scratch.keys);
        (self.given, self.back) = (0, 0);
        self.cells = Some(cells);
        Ok(true)
    }

    /// Cells do not serve: the next ones only after some buffers, and after more each time.
    fn retreat(&mut self) {
        self.wait = self.penalty;
        self.penalty = (2 * self.penalty).min(64);
    }

    /// Ends the cells, if any.
    fn close(&mut self) -> Result<()> {
        let Some(cells) = self.cells.take() else {
            return Ok(());
        };
        self.retreat();
        let mut summary = cells.finish();
        summary.reduce(ROOMY, LEAF);
        self.push(summary)
    }

    /// Adds a summary to the tree.
    ///
    /// # Errors
    /// As for [`Summary::merge`].
    pub(super) fn push(&mut self, mut summary: Summary<K>) -> Result<()> {
        while let Some(last) = self.levels.pop_if(|last| last.n() <= summary.n()) {
            summary = last.union(summary)?;
            summary.reduce(ROOMY, LEAF);
            summary.shrink();
        }
        self.levels.push(summary);
        Ok(())
    }

    /// The summary of everything, not compressed.
    ///
    /// # Errors
    /// As for [`Summary::merge`].
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
