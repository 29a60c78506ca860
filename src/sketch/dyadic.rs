//! Summaries whose keys are ends of dyadic intervals: short to write, and with the same ends on every shard.
//!
//! An interval is dyadic if it holds all keys that agree in some of their upper bits (Shrivastava, Buragohain, Agrawal and
//! Suri: "Medians and Beyond", 2004, where the same tree of intervals is the sketch). A shard's keys are divided into the
//! largest dyadic intervals that hold at most `most` of them, or one key only:
//!
//! ```text
//! keys of 4 bits, most = 2      0 0 1 | 2 3 | 5 6 | 9 13        ->     [0] [1] [2 3] [4..7] [8..15]
//! ```
//! The count up to each end is exact. Shards whose keys are distributed alike choose the same ends except for the last
//! few bits. So counts add without the uncertainty that keys of their own would bring: a bracket around a rank is about
//! one interval wide, where it is two wide with sketches that keep values (see `Summary`, whose invariant holds for any
//! shards).

use datafusion::common::{Result, internal_err};

use super::epsilon::Epsilon;
use super::gk::{Summary, Tuple};
use crate::key::{Key, KeyBits};
use crate::wire::{Reader, put};

/// A dyadic interval: the `2^bits` keys from `first` on, which is a multiple of `2^bits`, and the number of values
/// inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) first: KeyBits,
    pub(crate) bits: u32,
    pub(crate) count: u64,
}

impl Interval {
    pub(crate) fn last(&self) -> KeyBits {
        self.first | mask(self.bits)
    }
}

fn mask(bits: u32) -> KeyBits {
    match bits {
        0 => 0,
        bits => KeyBits::MAX >> (KeyBits::BITS - bits),
    }
}

/// The smallest dyadic interval that holds all keys from `least` to `greatest`: its first key and its number of bits.
pub(crate) fn around(least: KeyBits, greatest: KeyBits) -> (KeyBits, u32) {
    let bits = KeyBits::BITS - (least ^ greatest).leading_zeros();
    (least & !mask(bits), bits)
}

/// Intervals that are joined with their siblings as long as both together hold few values.
#[derive(Debug)]
pub(crate) struct Joined {
    most: u64,
    intervals: Vec<Interval>,
}

impl Joined {
    /// A list that joins intervals as long as the result holds at most `most` values.
    pub(crate) fn new(most: u64) -> Self {
        Self {
            most,
            intervals: Vec::new(),
        }
    }

    /// Adds the interval that follows on the last one.
    pub(crate) fn push(&mut self, mut next: Interval) {
        while let Some(last) = self.intervals.last() {
            let are_siblings = last.bits == next.bits
                && next.bits < KeyBits::BITS
                && last.first ^ next.first == 1 << next.bits;
            if !are_siblings || last.count + next.count > self.most {
                break;
            }
            next = Interval {
                first: last.first,
                bits: next.bits + 1,
                count: last.count + next.count,
            };
            self.intervals.pop();
        }
        self.intervals.push(next);
    }

    /// Adds an interval whose values are all known, ascending. It is divided as long as it holds too many.
    pub(crate) fn divide<K: Key>(&mut self, first: KeyBits, bits: u32, sorted: &[K]) {
        let take = |first, bits, sorted: &[K]| {
            let count = sorted.len() as u64;
            let is_small = bits == 0 || count <= self.most;
            if is_small {
                self.push(Interval { first, bits, count });
            }
            is_small
        };
        let split = |sorted: &[K], middle| sorted.partition_point(|key| key.to_bits() < middle);
        halved((first, bits), sorted, take, split);
    }

    pub(crate) fn finish(self) -> Vec<Interval> {
        self.intervals
    }
}

/// Adds up the counts of both sides, in the coarser of their intervals wherever these differ: two dyadic intervals are
/// disjoint, or one lies inside the other. The intervals of each side must be ascending and disjoint, and hold all of
/// its values. The result has at most [`MOST`] intervals.
pub(crate) fn merged(one: &[Interval], other: &[Interval]) -> Vec<Interval> {
    let mut all = interleaved(one, other);
    let total = all
        .iter()
        .fold(0_u64, |sum, interval| sum.saturating_add(interval.count));
    let mut most = total / (MOST as u64 / 2);
    while all.len() > MOST {
        most = (2 * most).max(1);
        all = coarser(&all, most);
    }
    all
}

/// Most intervals of a merge.
const MOST: usize = 1 << 13;

fn interleaved(one: &[Interval], other: &[Interval]) -> Vec<Interval> {
    let mut all = Vec::with_capacity(one.len().max(other.len()) + 1);
    let (mut i, mut j) = (0, 0);
    // Of two intervals with the same start the coarser one comes first.
    let order = |interval: &Interval| (interval.first, std::cmp::Reverse(interval.bits));
    loop {
        let next = match (one.get(i), other.get(j)) {
            (Some(left), Some(right)) if order(left) <= order(right) => left,
            (Some(left), None) => left,
            (_, Some(right)) => {
                j += 1;
                add_next(&mut all, right);
                continue;
            }
            (None, None) => return all,
        };
        i += 1;
        add_next(&mut all, next);
    }
}

fn add_next(all: &mut Vec<Interval>, next: &Interval) {
    match all.last_mut() {
        Some(last) if next.first <= last.last() => last.count = last.count.saturating_add(next.count),
        _ => all.push(*next),
    }
}

/// Coarser intervals: the largest dyadic intervals that hold at most `most` values, or are one of the given ones.
fn coarser(intervals: &[Interval], most: u64) -> Vec<Interval> {
    let (Some(least), Some(greatest)) = (intervals.first(), intervals.last()) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let take = |first, bits, inside: &[Interval]| {
        let count = inside.iter().map(|interval| interval.count).sum();
        match inside {
            [] => return true,
            [one] => all.push(*one),
            _ if count <= most => all.push(Interval { first, bits, count }),
            _ => return false,
        }
        true
    };
    // If there are several intervals, none of them reaches across the middle.
    let split = |inside: &[Interval], middle| inside.partition_point(|own| own.first < middle);
    halved(around(least.first, greatest.last()), intervals, take, split);
    all
}

/// Halves a dyadic interval, and the halves again, until `take` accepts each part. `take` is called in order, with the
/// items that lie inside the part. `split` gives the number of items below the middle.
fn halved<'a, T>(
    whole: (KeyBits, u32),
    inside: &'a [T],
    mut take: impl FnMut(KeyBits, u32, &'a [T]) -> bool,
    split: impl Fn(&'a [T], KeyBits) -> usize,
) {
    // The parts that are still to come, the next one last.
    let mut open = vec![(whole, inside)];
    while let Some(((first, bits), inside)) = open.pop() {
        if take(first, bits, inside) {
            continue;
        }
        let middle = first | 1 << (bits - 1);
        let (lower, upper) = inside.split_at(split(inside, middle));
        open.push(((middle, bits - 1), upper));
        open.push(((first, bits - 1), lower));
    }
}

/// The largest dyadic intervals that hold at most `most` of some ascending keys, or one key only.
pub(crate) fn divided<K: Key>(sorted: &[K], most: u64) -> Vec<Interval> {
    let mut joined = Joined::new(most);
    if let (Some(least), Some(greatest)) = (sorted.first(), sorted.last()) {
        let (first, bits) = around(least.to_bits(), greatest.to_bits());
        joined.divide(first, bits, sorted);
    }
    joined.finish()
}

/// Appends ascending and disjoint intervals. Of each it writes the length in bits, the distance from the one before in
/// units of that length, and the count.
pub(crate) fn put_intervals(out: &mut Vec<u8>, intervals: &[Interval]) {
    put(out, intervals.len() as u64);
    let mut next = 0;
    for interval in intervals {
        out.push(interval.bits as u8);
        put(
            out,
            shifted(interval.first, interval.bits) - shifted_up(next, interval.bits),
        );
        put(out, interval.count);
        next = interval.last().wrapping_add(1);
    }
}

/// Reads intervals, as [`put_intervals`] writes them. None of them reaches beyond the key `greatest`.
///
/// # Errors
/// An execution error for bytes that are no such intervals.
pub(crate) fn intervals(input: &mut Reader<'_>, greatest: KeyBits) -> Result<Vec<Interval>> {
    let mut next = Some(0);
    input.list("intervals", |input| {
        let bits = u32::from(input.byte("length of an interval")?);
        let gap: KeyBits = input.number("gap between intervals")?;
        let count = input.number("count")?;
        let first = next.filter(|_| bits <= KeyBits::BITS);
        let first = first.and_then(|next| shifted_up(next, bits).checked_add(gap));
        // The shift must not lose bits.
        let first = first.and_then(|units| match bits {
            KeyBits::BITS => (units == 0).then_some(0),
            bits => Some(units << bits).filter(|first| first >> bits == units),
        });
        match first {
            Some(first) if first | mask(bits) <= greatest => {
                next = (first | mask(bits)).checked_add(1);
                Ok(Interval { first, bits, count })
            }
            _ => input.damaged("intervals beyond the greatest key"),
        }
    })
}

/// A key in units of an interval of `bits` bits, rounded down.
fn shifted(key: KeyBits, bits: u32) -> KeyBits {
    key.checked_shr(bits).unwrap_or(0)
}

/// A key in units of an interval of `bits` bits, rounded up.
fn shifted_up(key: KeyBits, bits: u32) -> KeyBits {
    shifted(key, bits) + KeyBits::from(key & mask(bits) != 0)
}

impl<K: Key> Summary<K> {
    /// A summary from ascending intervals that hold all values, and the least and the greatest value.
    ///
    /// # Errors
    /// An internal error if the intervals are too coarse for the error fraction, or not ascending and disjoint.
    pub(super) fn from_intervals(
        eps: Epsilon,
        (least, greatest): (KeyBits, KeyBits),
        intervals: &[Interval],
    ) -> Result<Self> {
        let mut summary = Self::new(eps);
        let n = intervals.iter().map(|interval| interval.count).sum();
        summary.n = n;
        // Both ends are values: merges rely on that.
        let end = |key, upto, below| Tuple {
            key: K::from_bits(key),
            upto,
            below,
        };
        summary.tuples.push(end(least, 1, 0));
        let mut upto = 0;
        for interval in intervals.iter().filter(|interval| interval.count > 0) {
            let before = upto;
            upto += interval.count;
            let last = interval.last().min(greatest);
            // A single key has all ranks of its interval. An end that is not a value may have all values of its
            // interval below it.
            let below = match interval.bits {
                0 => before,
                _ => upto.min(n - 1),
            };
            match summary.tuples.last_mut() {
                Some(tuple) if tuple.key.to_bits() == last => *tuple = end(last, upto, before.min(below)),
                // Only the least value lies here, and it has a tuple.
                Some(tuple) if tuple.upto == upto => {}
                _ => summary.tuples.push(end(last, upto, below)),
            }
        }
        if summary.is_sound(least, greatest) {
            Ok(summary)
        } else {
            internal_err!(
                "{} intervals of {n} keys from {least} to {greatest} are no summary",
                intervals.len()
            )
        }
    }

    /// Whether keys ascend between the two ends, ranks ascend, and no gap is wider than the invariant allows.
    fn is_sound(&self, least: KeyBits, greatest: KeyBits) -> bool {
        let most = self.eps.budget(self.n).max(1);
        let pairs = self.tuples.windows(2);
        let ends = (self.tuples.first(), self.tuples.last());
        let are_ends = matches!(ends, (Some(first), Some(last))
            if first.key.to_bits() == least && last.key.to_bits() == greatest && last.upto == self.n);
        are_ends
            && pairs.into_iter().all(|pair| {
                pair[0].key < pair[1].key
                    && pair[0].upto < pair[1].upto
                    && pair[0].below <= pair[1].below
                    && pair[1].below < pair[0].upto + most
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_the_largest_that_hold_few() {
        let found = divided::<u64>(&[0, 0, 1, 2, 3, 5, 6, 9, 13], 2);
        let interval = |first, bits, count| Interval { first, bits, count };
        let expected = [
            interval(0, 0, 2),
            interval(1, 0, 1),
            interval(2, 1, 2),
            interval(4, 2, 2),
            interval(8, 3, 2),
        ];
        assert_eq!(found, expected);
        assert_eq!(divided::<u64>(&[7; 100], 2), [interval(7, 0, 100)]);
        let ends = divided::<u64>(&[0, u64::MAX], 1);
        assert_eq!(ends, [interval(0, 63, 1), interval(1 << 63, 63, 1)]);
        let mut joined = Joined::new(5);
        joined.divide(0, 128, &[0, u128::MAX]);
        assert_eq!(joined.finish(), [interval(0, 128, 2)]);
    }

    /// However the leaves were cut, the same intervals come out.
    #[test]
    fn finer_leaves_join_to_the_same_intervals() {
        let mut keys: Vec<u64> = (0..500_u64).map(|i| (i * i * 7919) % 4096).collect();
        keys.sort_unstable();
        let whole = {
            let mut joined = Joined::new(20);
            joined.divide(0, 12, &keys);
            joined.finish()
        };
        for bits in 0..12 {
            let mut joined = Joined::new(20);
            for first in (0..4096_u64).step_by(1 << bits) {
                let inside = |bound| keys.partition_point(|key| *key < bound);
                joined.divide(
                    first.into(),
                    bits,
                    &keys[inside(first)..inside(first + (1 << bits))],
                );
            }
            assert_eq!(joined.finish(), whole, "{bits} bits");
        }
    }

    #[test]
    fn counts_of_a_summary_are_those_of_the_keys() {
        let eps = Epsilon::try_new(20.0).unwrap();
        for (name, mut keys) in [
            (
                "random",
                (0..3000_u64)
                    .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                    .collect::<Vec<_>>(),
            ),
            ("few", (0..3000).map(|i| i % 7).collect()),
            ("equal", vec![u64::MAX; 3000]),
            (
                "ends",
                (0..3000).map(|i| if i % 3 == 0 { 0 } else { u64::MAX }).collect(),
            ),
            ("close", (0..3000).map(|i| (1 << 63) + i % 900).collect()),
        ] {
            keys.sort_unstable();
            let most = eps.budget(3000) - 1;
            let ends = (keys[0].into(), keys[2999].into());
            let summary = Summary::<u64>::from_intervals(eps, ends, &divided(&keys, most)).unwrap();
            for tuple in &summary.tuples {
                let upto = keys.partition_point(|key| *key <= tuple.key) as u64;
                let below = keys.partition_point(|key| *key < tuple.key) as u64;
                assert!(
                    tuple.upto <= upto && below <= tuple.below,
                    "{name}: {tuple:?}, {upto}, {below}"
                );
            }
            assert!(summary.widest() <= eps.budget(3000), "{name}");
        }
    }

    #[test]
    fn merged_intervals_are_the_coarser_ones() {
        let interval = |first, bits, count| Interval { first, bits, count };
        let one = [interval(0, 0, 2), interval(4, 1, 3), interval(8, 3, 5)];
        let other = [
            interval(0, 2, 1),
            interval(5, 0, 7),
            interval(10, 0, 1),
            interval(15, 0, 1),
        ];
        let expected = vec![interval(0, 2, 3), interval(4, 1, 10), interval(8, 3, 7)];
        assert_eq!(merged(&one, &other), expected);
        assert_eq!(merged(&other, &one), expected);
        assert_eq!(merged(&one, &[]), one);
        let all = [interval(0, 128, 9)];
        assert_eq!(merged(&all, &one), [interval(0, 128, 19)]);
    }

    #[test]
    fn a_merge_of_many_intervals_is_coarser_and_loses_none() {
        let intervals = |from: u64| -> Vec<Interval> {
            let first = |i: u64| u128::from(from + 3 * i * (1 + i % 5));
            let mut firsts: Vec<u128> = (0..MOST as u64).map(first).collect();
            firsts.sort_unstable();
            firsts.dedup();
            let one = |first| Interval {
                first,
                bits: 0,
                count: 1,
            };
            firsts.into_iter().map(one).collect()
        };
        let (one, other) = (intervals(0), intervals(1 << 40));
        let all = merged(&one, &other);
        assert!(all.len() <= MOST && all.len() > MOST / 4, "{}", all.len());
        assert!(all.windows(2).all(|pair| pair[0].last() < pair[1].first));
        for interval in &all {
            let inside = one.iter().chain(&other);
            let inside = inside.filter(|own| interval.first <= own.first && own.first <= interval.last());
            assert_eq!(interval.count, inside.count() as u64, "{interval:?}");
            assert_eq!(interval.first & mask(interval.bits), 0);
        }
        assert_eq!(
            all.iter().map(|own| own.count).sum::<u64>(),
            (one.len() + other.len()) as u64
        );
    }

    #[test]
    fn intervals_come_back_and_pieces_of_them_do_not() {
        let interval = |first, bits, count| Interval { first, bits, count };
        for (intervals, greatest) in [
            (vec![], KeyBits::MAX),
            (vec![interval(0, 128, 3)], KeyBits::MAX),
            (
                vec![interval(3, 0, 1), interval(4, 2, 300), interval(1 << 40, 40, 1)],
                u64::MAX.into(),
            ),
            (
                vec![interval(0, 0, 1), interval(1 << 127, 127, 1 << 60)],
                KeyBits::MAX,
            ),
        ] {
            let mut out = Vec::new();
            put_intervals(&mut out, &intervals);
            let mut reader = Reader::new("list", &out);
            assert_eq!(super::intervals(&mut reader, greatest).unwrap(), intervals);
            reader.end().unwrap();
            for end in 0..out.len() {
                assert!(super::intervals(&mut Reader::new("list", &out[..end]), greatest).is_err());
            }
        }
        for bytes in [
            vec![1, 129, 0, 1],
            vec![1, 128, 1, 1],
            vec![1, 33, 0, 1],
            vec![2, 32, 0, 1, 0, 0, 1],
        ] {
            let mut reader = Reader::new("list", &bytes);
            assert!(
                super::intervals(&mut reader, u32::MAX.into()).is_err(),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn intervals_that_are_too_coarse_are_refused() {
        let eps = Epsilon::try_new(20.0).unwrap();
        let interval = |first, bits, count| Interval { first, bits, count };
        let refused =
            |ends, intervals: &[Interval]| Summary::<u64>::from_intervals(eps, ends, intervals).is_err();
        assert!(refused((0, 15), &[interval(0, 3, 50), interval(8, 3, 50)]));
        assert!(refused((0, 15), &[]));
    }
}
