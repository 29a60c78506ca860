//! The summary: tuples, their invariant, and the queries that it answers.

use super::epsilon::Epsilon;
use crate::key::Key;
use datafusion::common::{Result, exec_datafusion_err};

/// A key that occurs among the values, and bounds of its ranks.
///
/// In Greenwald and Khanna's words: `r_min = upto`, `r_max = below + 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tuple<K> {
    pub(super) key: K,
    /// A lower bound of the number of values at or below `key`.
    pub(super) upto: u64,
    /// An upper bound of the number of values below `key`.
    pub(super) below: u64,
}

/// A summary of `n` values, from which every order statistic is known up to `floor(eps n)` ranks.
///
/// # Tuples
/// Keys are distinct and ascending; the first is the minimum, the last the maximum. Each tuple bounds two counts:
/// at least `upto` values are at or below its key, at most `below` values are below it. The paper's form is
///
/// ```text
/// g[i] = upto[i] - upto[i-1]          delta[i] = below[i] + 1 - upto[i]
/// ```
///
/// For distinct values the two forms are equivalent. For equal values this form says more: where a run of equal keys is
/// known to fill the ranks `below + 1..=upto`, delta is negative, and one tuple stands for the run, however long it is.
/// So all-equal data is one tuple, and a heavy value is known exactly.
///
/// # Invariant
/// Between neighbours lie at most `gap[i] = below[i] - upto[i-1] = g[i] + delta[i] - 1` values, and
///
/// ```text
/// g[i] + delta[i] <= max(1, floor(2 eps n))
/// ```
///
/// **Error.** Let `M` be the largest `g + delta`, `e = floor(M / 2)`, and `1 <= r <= n`. Take the last `i` with
/// `below[i] + 1 <= r + e`; there is one, since `below[0] = 0`. If it is the last tuple, `upto[i] = n >= r`. If not,
/// `upto[i] >= below[i+1] + 1 - M >= r + e + 1 - M >= r - e`. Either way key `i` has a rank within `e` of `r`, and
/// `e <= floor(eps n)`.
///
/// **Merge.** In the merge of A and B a key `x` has `upto = upto_A(x) + upto_B(x)` and `below = below_A(x) +
/// below_B(x)`, where a side that lacks `x` gives `upto` of its greatest key below `x` (0 if none) and `below` of
/// its least key above `x` (all its values if none): true bounds, as counts over A and B add. (In the paper's form:
/// `r_min = r_min_A(x) + r_min_B(predecessor)`, `r_max = r_max_A(x) + r_max_B(successor) - 1`.) Let `x < y` be
/// neighbours in the merge. No key of A lies strictly between, so A contributes to their gap `below_A(y) -
/// upto_A(x)`, a gap of A or 0 beyond its ends; the same for B. So gaps at most add, and with `f = floor(2 eps n)`:
///
/// ```text
/// gap <= gap_A + gap_B <= max(0, f_A - 1) + max(0, f_B - 1) <= max(0, f - 1),    eps = max(eps_A, eps_B)
/// ```
///
/// as `f_A + f_B <= f`. Nothing but `n` and `eps` of the sides enters, so the invariant holds after any tree of merges:
/// balanced, a chain, with empty sides, in any order.
///
/// **Compress** drops a tuple where the gap that this leaves is within the invariant: it keeps it by construction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary<K> {
    pub(super) eps: Epsilon,
    pub(super) n: u64,
    pub(super) tuples: Vec<Tuple<K>>,
}

/// An answer: a value, and the ranks that it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Estimate<K> {
    /// The value, which is one of those that were summarised.
    pub(crate) key: K,
    /// The least rank, from 1, that the value may have.
    pub(crate) rank_min: u64,
    /// The greatest rank that the value may have. Equal to `rank_min` where the rank is certain.
    pub(crate) rank_max: u64,
}

/// The keys between which an order statistic lies: it is `lo`, `hi`, or strictly between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bracket<K> {
    /// The greatest key of the summary that is certainly at or below the order statistic.
    pub(crate) lo: K,
    /// The least key of the summary that is certainly at or above it. Equal to `lo` where the answer is certain.
    pub(crate) hi: K,
    /// A lower and an upper bound of the number of values at or below `lo`.
    pub(crate) upto_lo: (u64, u64),
    /// An upper bound of the number of values strictly between `lo` and `hi`: less than `4 eps n`, and 0 if `2 eps n <
    /// 2`.
    pub(crate) between: u64,
}

impl<K: Key> Summary<K> {
    /// A summary of no values.
    pub(crate) fn new(eps: Epsilon) -> Self {
        Self {
            eps,
            n: 0,
            tuples: Vec::new(),
        }
    }

    /// The error fraction.
    pub(crate) fn epsilon(&self) -> Epsilon {
        self.eps
    }

    /// Number of values.
    pub(crate) fn n(&self) -> u64 {
        self.n
    }

    /// Number of tuples.
    pub(crate) fn len(&self) -> usize {
        self.tuples.len()
    }

    /// Whether there are no values.
    pub(crate) fn is_empty(&self) -> bool {
        self.tuples.is_empty()
    }

    /// The smallest value.
    #[cfg(test)]
    pub(crate) fn min(&self) -> Option<K> {
        self.tuples.first().map(|tuple| tuple.key)
    }

    /// The largest value.
    #[cfg(test)]
    pub(crate) fn max(&self) -> Option<K> {
        self.tuples.last().map(|tuple| tuple.key)
    }

    /// Bytes of memory held on the heap.
    pub(crate) fn size(&self) -> usize {
        self.tuples.capacity() * size_of::<Tuple<K>>()
    }

    /// The tuples in the paper's form `(v, g, delta)`, ascending. A negative delta means that the last `1 - delta` of
    /// the ranks up to `r_min` are all of values equal to `v`.
    pub(crate) fn tuples(&self) -> impl Iterator<Item = (K, u64, i64)> + '_ {
        let mut before = 0;
        self.tuples.iter().map(move |tuple| {
            let g = tuple.upto - std::mem::replace(&mut before, tuple.upto);
            (tuple.key, g, (tuple.below + 1) as i64 - tuple.upto as i64)
        })
    }

    /// The largest `g + delta`; 0 without values.
    #[cfg(test)]
    pub(crate) fn widest(&self) -> u64 {
        let gaps = self
            .tuples
            .windows(2)
            .map(|pair| pair[1].below - pair[0].upto + 1);
        gaps.max().unwrap_or(u64::from(!self.is_empty()))
    }

    /// Whether every value and its rank are known.
    pub(super) fn is_exact(&self) -> bool {
        self.tuples.windows(2).all(|pair| pair[1].below == pair[0].upto)
    }

    /// The value whose rank is nearest to `rank` (from 1) in the worst case; `None` unless `1 <= rank <= n`.
    ///
    /// The value has a rank within `floor(eps n)` of `rank`. For ranks 1 and `n` it is exact.
    pub(crate) fn value_at(&self, rank: u64) -> Option<Estimate<K>> {
        if rank == 0 || rank > self.n {
            return None;
        }
        // The worst distance falls up to the tuple where both sides balance, and rises from there.
        let balance = |tuple: &Tuple<K>| u128::from(tuple.below) + 1 + u128::from(tuple.upto);
        let above = self
            .tuples
            .partition_point(|tuple| balance(tuple) < 2 * u128::from(rank));
        let nearest = [above.checked_sub(1), Some(above)].into_iter().flatten();
        let nearest = nearest.filter_map(|index| self.tuples.get(index));
        let tuple = nearest.min_by_key(|tuple| {
            let (before, after) = (
                rank.saturating_sub(tuple.upto),
                (tuple.below + 1).saturating_sub(rank),
            );
            before.max(after)
        })?;
        let (first, last) = (tuple.below + 1, tuple.upto);
        let (rank_min, rank_max) = if last <= first {
            (last, first)
        } else {
            // A run of equal keys: the nearest of its ranks.
            let own = rank.clamp(first, last);
            (own, own)
        };
        Some(Estimate {
            key: tuple.key,
            rank_min,
            rank_max,
        })
    }

    /// A lower and an upper bound of the number of values at or below `key`, which need not be one of the values. They
    /// differ by less than `max(1, floor(2 eps n))`.
    pub(crate) fn rank(&self, key: K) -> (u64, u64) {
        let above = self.tuples.partition_point(|tuple| tuple.key <= key);
        (self.upto(above), self.below(above))
    }

    /// The bracket of the order statistic of `rank` (from 1); `None` unless `1 <= rank <= n`.
    ///
    /// With the largest gap `G <= floor(2 eps n) - 1`: `lo` is the last key with `below < rank`, so `upto(lo) >=
    /// below(next) - G >= rank - G`; `hi` is the first with `upto >= rank`, so `below(hi) <= upto(previous) + G <=
    /// rank - 1 + G`; between them lie at most `below(hi) - upto(lo) <= 2 G - 1` values.
    pub(crate) fn bracket(&self, rank: u64) -> Option<Bracket<K>> {
        if rank == 0 || rank > self.n {
            return None;
        }
        let after = self.tuples.partition_point(|tuple| tuple.below < rank);
        let hi = self
            .tuples
            .get(self.tuples.partition_point(|tuple| tuple.upto < rank))?;
        let lo = self.tuples.get(after.checked_sub(1)?)?;
        Some(Bracket {
            lo: lo.key,
            hi: hi.key,
            upto_lo: self.rank(lo.key),
            between: if lo.key == hi.key { 0 } else { hi.below - lo.upto },
        })
    }

    /// [`Self::bracket`] for each rank, in the caller's order.
    ///
    /// # Errors
    /// An execution error if a rank is not in `1..=n`.
    pub(crate) fn brackets(&self, ranks: &[u64]) -> Result<Vec<Bracket<K>>> {
        let bracket = |rank: &u64| {
            self.bracket(*rank).ok_or_else(|| {
                exec_datafusion_err!("rank {rank} of {} values: allowed are 1..={}", self.n, self.n)
            })
        };
        ranks.iter().map(bracket).collect()
    }

    /// Drops tuples as far as the invariant allows.
    pub(crate) fn compress(&mut self) {
        self.compress_to(self.eps.budget(self.n));
    }

    /// Drops tuples as long as `g + delta` of the others is at most `most`, which is at most `max(1, floor(2 eps n))`.
    ///
    /// It goes from the left, each time to the farthest tuple in reach: no other choice leaves fewer tuples. The first
    /// and the last tuple stay.
    pub(super) fn compress_to(&mut self, most: u64) {
        let len = self.tuples.len();
        if most <= 1 || len <= 2 {
            return;
        }
        let mut kept = 0;
        for index in 1..len - 1 {
            let (tuple, next) = (self.tuples[index], self.tuples[index + 1]);
            // Without a branch, because it is unpredictable whether a tuple stays.
            let stays = next.below - self.tuples[kept].upto >= most;
            self.tuples[kept + 1] = tuple;
            kept += usize::from(stays);
        }
        self.tuples[kept + 1] = self.tuples[len - 1];
        self.tuples.truncate(kept + 2);
    }

    /// Drops tuples until there are at most `multiple / eps` of them, using as little of the invariant's limit as
    /// possible, in sixteenths from `least` on. Any part that a compress uses now is an error that all later merges
    /// inherit.
    pub(super) fn reduce(&mut self, multiple: u64, least: u64) {
        let (enough, budget) = (self.eps.reciprocal(multiple, usize::MAX), self.eps.budget(self.n));
        for sixteenths in least..=16 {
            if self.len() <= enough {
                return;
            }
            self.compress_to((u128::from(budget) * u128::from(sixteenths) / 16) as u64);
        }
    }

    /// Drops tuples that no value is counted for (`g = 0`), which leaves all gaps as they are. Every key occurs, so at
    /// least one value is at or below the first one, and none has all values below it.
    pub(super) fn settle(&mut self) {
        if let Some(first) = self.tuples.first_mut() {
            first.upto = first.upto.max(1);
        }
        let (mut before, most) = (0, self.n.saturating_sub(1));
        self.tuples.retain_mut(|tuple| {
            tuple.below = tuple.below.min(most);
            tuple.upto > std::mem::replace(&mut before, tuple.upto)
        });
    }

    /// Gives back memory where more than half of it is unused.
    pub(super) fn shrink(&mut self) {
        if self.tuples.capacity() > 2 * self.tuples.len() {
            self.tuples.shrink_to_fit();
        }
    }

    fn upto(&self, above: usize) -> u64 {
        above.checked_sub(1).map_or(0, |last| self.tuples[last].upto)
    }

    fn below(&self, index: usize) -> u64 {
        self.tuples.get(index).map_or(self.n, |tuple| tuple.below)
    }
}
