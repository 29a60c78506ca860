//! Filling of a summary: keys come in slices of any length.

use super::epsilon::Epsilon;
use super::fold::Fold;
use super::gk::Summary;
use super::tree::Tree;
use crate::key::Key;
use datafusion::common::Result;

/// The algorithm by which values enter a summary (GK Select, section IV). The bound is the same for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// Greenwald and Khanna's own: insert values, compress after every `1 / (2 eps)` of them.
    Classical,
    /// Spark's: a head buffer of 50 000 values, compress above 10 000 tuples.
    Spark,
    /// A buffer that grows with the values seen, and a tree of merges.
    #[default]
    Modified,
}

/// A summary that is being filled.
///
/// It only buffers the first `16 / eps` values. Their summary is exact up to `1 / (2 eps)` values.
pub(crate) struct Sketch<K> {
    eps: Epsilon,
    buffer: Vec<K>,
    /// Number of keys of a full buffer.
    capacity: usize,
    n: u64,
    algorithm: Algorithm<K>,
}

/// Least sixteenths of the invariant's limit that a summary for merges uses.
const PARTIAL: u64 = 10;

enum Algorithm<K> {
    Fold(Box<Fold<K>>),
    /// `None` before the first full buffer.
    Tree(Option<Box<Tree<K>>>),
}

impl<K: Key> Sketch<K> {
    /// An empty sketch.
    pub(crate) fn new(eps: Epsilon, variant: Variant) -> Self {
        let algorithm = match variant {
            Variant::Classical => Algorithm::Fold(Box::new(Fold::classical(eps))),
            Variant::Spark => Algorithm::Fold(Box::new(Fold::spark(eps))),
            Variant::Modified => Algorithm::Tree(None),
        };
        let capacity = match &algorithm {
            Algorithm::Fold(fold) => fold.capacity(),
            Algorithm::Tree(_) => Tree::<K>::capacity(eps, 0),
        };
        Self {
            eps,
            buffer: Vec::new(),
            capacity,
            n: 0,
            algorithm,
        }
    }

    /// Number of values so far.
    pub(crate) fn n(&self) -> u64 {
        self.n
    }

    /// Bytes of memory held on the heap.
    pub(crate) fn size(&self) -> usize {
        let algorithm = match &self.algorithm {
            Algorithm::Fold(fold) => size_of::<Fold<K>>() + fold.size(),
            Algorithm::Tree(None) => 0,
            Algorithm::Tree(Some(tree)) => size_of::<Tree<K>>() + tree.size(),
        };
        self.buffer.capacity() * size_of::<K>() + algorithm
    }

    /// Adds values, given by their keys.
    ///
    /// # Errors
    /// An execution error if there are more than 2^63 - 1 values in all.
    pub(crate) fn extend(&mut self, mut keys: &[K]) -> Result<()> {
        self.n += keys.len() as u64;
        while !keys.is_empty() {
            keys = match &mut self.algorithm {
                Algorithm::Tree(Some(tree)) if tree.counts() => tree.count(keys, &mut self.buffer)?,
                _ => self.keep(keys),
            };
            if self.buffer.len() >= self.capacity {
                self.flush_buffer()?;
            }
        }
        Ok(())
    }

    /// Buffers as many keys as there is room for. Returns the rest.
    fn keep<'a>(&mut self, keys: &'a [K]) -> &'a [K] {
        let room = self.capacity.saturating_sub(self.buffer.len());
        let (now, later) = keys.split_at(room.min(keys.len()));
        self.buffer.extend_from_slice(now);
        later
    }

    fn flush_buffer(&mut self) -> Result<()> {
        match &mut self.algorithm {
            Algorithm::Fold(fold) => fold.flush_buffer(&mut self.buffer),
            Algorithm::Tree(tree) => {
                self.capacity = Tree::<K>::capacity(self.eps, self.n);
                let tree = tree.get_or_insert_with(|| Box::new(Tree::new(self.eps)));
                tree.flush_buffer(&mut self.buffer)
            }
        }
    }

    /// Adds the values of a summary.
    ///
    /// # Errors
    /// An execution error if there are more than 2^63 - 1 values in all.
    pub(crate) fn merge(&mut self, summary: Summary<K>) -> Result<()> {
        self.eps = self.eps.max(summary.epsilon());
        self.n = self.n.saturating_add(summary.n());
        // Few values that are all known are as good as the values themselves, so thousands of small sides cost only a
        // buffer.
        if summary.n() <= (self.capacity / 4) as u64 && summary.is_exact() {
            for (key, count, _) in summary.tuples() {
                self.buffer.extend(std::iter::repeat_n(key, count as usize));
            }
            return if self.buffer.len() >= self.capacity {
                self.flush_buffer()
            } else {
                Ok(())
            };
        }
        match &mut self.algorithm {
            Algorithm::Fold(fold) => fold.push(summary),
            Algorithm::Tree(tree) => tree
                .get_or_insert_with(|| Box::new(Tree::new(self.eps)))
                .push(summary),
        }
    }

    /// The summary of all values, as small as the invariant allows: about `0.6 / eps` tuples. It is meant for answers.
    /// In a merge it leaves no room to drop tuples, so that sizes add up.
    ///
    /// # Errors
    /// An execution error if there are more than 2^63 - 1 values in all.
    pub(crate) fn finish(self) -> Result<Summary<K>> {
        let mut all = self.uncompressed()?;
        all.compress();
        all.shrink();
        Ok(all)
    }

    /// The summary of all values for merges: about `1 / eps` tuples, at most `2 / eps` wherever the invariant allows
    /// it. A part of the invariant's limit is left, so that merges can be compressed to about the same size.
    ///
    /// # Errors
    /// An execution error if there are more than 2^63 - 1 values in all.
    pub(crate) fn partial(self) -> Result<Summary<K>> {
        let mut all = self.uncompressed()?;
        all.compress_to(all.eps.budget(all.n) / 16 * PARTIAL);
        all.reduce(2, PARTIAL);
        all.shrink();
        Ok(all)
    }

    fn uncompressed(mut self) -> Result<Summary<K>> {
        match self.algorithm {
            Algorithm::Fold(fold) => fold.finish(&mut self.buffer),
            Algorithm::Tree(Some(tree)) => tree.finish(&mut self.buffer),
            Algorithm::Tree(None) => Tree::new(self.eps).finish(&mut self.buffer),
        }
    }
}
