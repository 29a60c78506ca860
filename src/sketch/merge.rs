//! Merges of summaries. The proof that they keep the invariant is with [`Summary`].

#[cfg(test)]
use std::{cmp::Reverse, collections::VecDeque};

#[cfg(test)]
use super::epsilon::Epsilon;
use super::gk::{Summary, Tuple};
use crate::key::Key;
use datafusion::common::{Result, exec_err};

/// Number of tuples for each `1 / eps` up to which a merge drops none.
pub(super) const ROOMY: u64 = 8;

/// Least sixteenths of the invariant's limit that a compress uses.
const LEAST: u64 = 4;

impl<K: Key> Summary<K> {
    /// The summary of the values of both sides, with the larger error fraction of the two.
    ///
    /// Drops tuples once there are more than `8 / eps`, but no more than needed: later merges need room in the error.
    ///
    /// # Errors
    /// An execution error if the sides have more than 2^63 - 1 values together.
    pub(crate) fn merge(self, other: Self) -> Result<Self> {
        let mut merged = self.union(other)?;
        merged.reduce(ROOMY, LEAST);
        Ok(merged)
    }

    /// The merge of all summaries, smallest first. `eps` is the error fraction if there are none.
    ///
    /// # Errors
    /// Errors of [`Self::merge`].
    #[cfg(test)]
    pub(crate) fn merge_all(eps: Epsilon, mut summaries: Vec<Self>) -> Result<Self> {
        // Two queues, each ascending by size: given summaries, and merges of two. The smallest of both fronts comes
        // next.
        summaries.sort_by_key(|summary| Reverse(summary.n));
        let mut merges = VecDeque::new();
        let mut least = |merges: &mut VecDeque<Self>| match (summaries.last(), merges.front()) {
            (Some(given), Some(merge)) if given.n <= merge.n => summaries.pop(),
            (Some(_), None) => summaries.pop(),
            _ => merges.pop_front(),
        };
        loop {
            match (least(&mut merges), least(&mut merges)) {
                (Some(a), Some(b)) => merges.push_back(a.merge(b)?),
                (Some(last), None) => return Ok(last),
                _ => return Ok(Self::new(eps)),
            }
        }
    }

    /// The merge of both sides without a compress.
    pub(super) fn union(self, other: Self) -> Result<Self> {
        let n = self.n.checked_add(other.n).filter(|n| i64::try_from(*n).is_ok());
        let Some(n) = n else {
            return exec_err!("{} and {} values are more than 2^63 - 1", self.n, other.n);
        };
        let eps = self.eps.max(other.eps);
        if other.is_empty() || self.is_empty() {
            let tuples = if other.is_empty() {
                self.tuples
            } else {
                other.tuples
            };
            return Ok(Self { eps, n, tuples });
        }
        let tuples = interleave(&self, &other);
        Ok(Self { eps, n, tuples })
    }
}

fn interleave<K: Key>(a: &Summary<K>, b: &Summary<K>) -> Vec<Tuple<K>> {
    let mut tuples = Vec::with_capacity(a.len() + b.len());
    let (mut i, mut j, mut upto_a, mut upto_b) = (0, 0, 0, 0);
    while let (Some(left), Some(right)) = (a.tuples.get(i), b.tuples.get(j)) {
        // Without branches, because it is unpredictable which side comes next.
        let (take_a, take_b) = (left.key <= right.key, right.key <= left.key);
        upto_a = if take_a { left.upto } else { upto_a };
        upto_b = if take_b { right.upto } else { upto_b };
        tuples.push(Tuple {
            key: left.key.min(right.key),
            upto: upto_a + upto_b,
            below: left.below + right.below,
        });
        i += usize::from(take_a);
        j += usize::from(take_b);
    }
    tuples.extend(beyond(&a.tuples[i..], b.n));
    tuples.extend(beyond(&b.tuples[j..], a.n));
    tuples
}

/// The tuples beyond the last key of the other side, all of whose `other` values are below them.
fn beyond<K: Key>(tuples: &[Tuple<K>], other: u64) -> impl Iterator<Item = Tuple<K>> + '_ {
    tuples.iter().map(move |tuple| Tuple {
        key: tuple.key,
        upto: tuple.upto + other,
        below: tuple.below + other,
    })
}
