//! The bound that a row must reach to be among the best.

use crate::key::Key;

/// A row as a bound: it admits the row itself and all rows before it in the order of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Floor<K, R> {
    pub(crate) key: K,
    /// The greatest row number that is admitted with this key.
    pub(crate) row: R,
}

impl<K: Key, R: Key> Floor<K, R> {
    /// A floor that admits all rows.
    pub(crate) fn open() -> Self {
        Self::at(K::default())
    }

    /// A floor that admits all keys that are at least `key`, with any row number.
    pub(crate) fn at(key: K) -> Self {
        Self { key, row: R::MAX }
    }

    /// Whether the floor admits a row. Without a branch, because the outcome is unpredictable.
    #[inline(always)]
    pub(crate) fn admits(&self, key: K, row: R) -> bool {
        (key > self.key) | ((key == self.key) & (row <= self.row))
    }

    /// The bound of the two that admits fewer rows.
    pub(crate) fn higher(self, other: Self) -> Self {
        if self.admits(other.key, other.row) {
            other
        } else {
            self
        }
    }
}
