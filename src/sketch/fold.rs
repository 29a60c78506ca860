//! The classical algorithm and Spark's (GK Select, section IV-4): one summary, into which a head buffer is
//! folded whenever it is full.
//!
//! A classical insert gives the new value `g = 1, delta = g + delta - 1` of its successor, which is exactly what a
//! merge with that one value gives. The values of a buffer that are merged at once get the same tuples as one after the
//! other, as long as there is no compress between them. So the classical algorithm is the fold with a buffer of `1 / (2
//! eps)` values.

use super::build::Builder;
use super::epsilon::Epsilon;
use super::gk::Summary;
use crate::key::Key;
use datafusion::common::Result;

/// One summary, and the size at which it is compressed.
pub(super) struct Fold<K> {
    summary: Summary<K>,
    head: usize,
    compress_above: usize,
}

impl<K: Key> Fold<K> {
    /// The classical algorithm: compresses after every `1 / (2 eps)` values.
    pub(super) fn classical(eps: Epsilon) -> Self {
        Self {
            summary: Summary::new(eps),
            head: eps.reciprocal(1, 1 << 20).div_ceil(2),
            compress_above: 0,
        }
    }

    /// Spark's algorithm: a head buffer of 50 000 values; compresses above 10 000 tuples.
    pub(super) fn spark(eps: Epsilon) -> Self {
        Self {
            summary: Summary::new(eps),
            head: 50_000,
            compress_above: 10_000,
        }
    }

    /// Bytes of memory held on the heap.
    pub(super) fn size(&self) -> usize {
        self.summary.size()
    }

    /// Number of keys of a full head buffer.
    pub(super) fn capacity(&self) -> usize {
        self.head
    }

    /// Folds the keys of the buffer in, and empties it.
    ///
    /// # Errors
    /// Errors of [`Summary::merge`].
    pub(super) fn flush_buffer(&mut self, buffer: &mut Vec<K>) -> Result<()> {
        let eps = self.summary.epsilon();
        buffer.sort_unstable();
        let mut head = Builder::new(eps, buffer.len());
        head.sorted(buffer, 1);
        buffer.clear();
        self.push(head.finish())
    }

    /// Folds a summary in.
    ///
    /// # Errors
    /// Errors of [`Summary::merge`].
    pub(super) fn push(&mut self, summary: Summary<K>) -> Result<()> {
        let own = std::mem::replace(&mut self.summary, Summary::new(summary.epsilon()));
        self.summary = own.union(summary)?;
        if self.summary.len() > self.compress_above {
            self.summary.compress();
        }
        Ok(())
    }

    /// The summary of all values.
    ///
    /// # Errors
    /// Errors of [`Summary::merge`].
    pub(super) fn finish(mut self, buffer: &mut Vec<K>) -> Result<Summary<K>> {
        self.flush_buffer(buffer)?;
        Ok(self.summary)
    }
}
