//! The classical algorithm and Spark's (GK Select, section IV-4): one summary, into which a head buffer is
//! folded whenever it is full.
//!
//! A classical insert gives the new value `g = 1, delta = g + delta - 1` of its successor: just what a merge with
//! that one value gives. The values of a buffer merged at once get the same tuples as one after the other, as long as
//! no compress lies between; so the classical algorithm is the fold with a buffer of `1 / (2 eps)`.

use super::build::Builder;
use super::epsilon::Epsilon;
use super::gk::Summary;
use crate::key::Key;
use datafusion::common::Result;

/// One summary and when to compress it.
pub(super) struct Fold<K> {
    summary: Summary<K>,
    head: usize,
    compress_above: usize,
}

impl<K: Key> Fold<K> {
    /// Compresses after every `1 / (2 eps)` values.
    pub(super) fn classical(eps: Epsilon) -> Self {
        Self {
            summary: Summary::new(eps),
            head: eps.reciprocal(1, 1 << 20).div_ceil(2),
            compress_above: 0,
        }
    }

    /// Head buffer of 50 000 values; compresses above 10 000 tuples.
    pub(super) fn spark(eps: Epsilon) -> Self {
        Self {
            summary: Summary::new(eps),
            head: 50_000,
            compress_above: 10_000,
        }
    }

    /// Bytes on the heap.
    pub(super) fn size(&self) -> usize {
        self.summary.size()
    }

    /// Keys of the head buffer.
    pub(super) fn capacity(&self) -> usize {
        self.head
    }

    /// Folds the buffer in, and empties it.
    ///
    /// # Errors
    /// As for [`Summary::merge`].
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
    /// As for [`Summary::merge`].
    pub(super) fn push(&mut self, summary: Summary<K>) -> Result<()> {
        let own = std::mem::replace(&mut self.summary, Summary::new(summary.epsilon()));
        self.summary = own.union(summary)?;
        if self.summary.len() > self.compress_above {
            self.summary.compress();
        }
        Ok(())
    }

    /// The summary of everything.
    ///
    /// # Errors
    /// As for [`Summary::merge`].
    pub(super) fn finish(mut self, buffer: &mut Vec<K>) -> Result<Summary<K>> {
        self.flush_buffer(buffer)?;
        Ok(self.summary)
    }
}
