//! The bound that a row must reach to be among the best.

use crate::key::Key;

/// A row as a bound: rows before it in the order of the answer, and itself, are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Floor<K, R> {
    pub(crate) key: K,
    /// Last row that is admitted with this key.
    pub(crate) row: R,
}

impl<K: Key, R: Key> Floor<K, R> {
    /// Admits all rows.
    pub(crate) fn open() -> Self {
        Self::at(K::default())
    }

    /// Admits keys from this one on, in any row.
    pub(crate) fn at(key: K) -> Self {
        Self { key, row: R::MAX }
    }

    /// Without a branch: it may go either way at every row.
    #[inline(always)]
    pub(crate) fn admits(&self, key: K, row: R) -> bool {
        (key > self.key) | ((key == self.key) & (row <= self.row))
    }

    /// The narrower of two bounds.
    pub(crate) fn higher(self, other: Self) -> Self {
        if self.admits(other.key, other.row) {
            other
        } else {
            self
        }
    }
}
