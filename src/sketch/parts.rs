//! A summary of a buffer of any keys, by radix partitioning from the top digit. It goes on inside a part only as long
//! as the part holds too many keys for one tuple.
//!
//! A full sort would tell more than a summary keeps. The first digit is the cell of a table made from a sample, so that
//! parts are about equal whatever the distribution. Later digits are taken from the distance to a part's least key, so
//! that constant bytes cost nothing. The last digit is only counted: a count, the least and the greatest key are all
//! that a tuple needs. So 2^18 keys at 2^3 keys a tuple take one scatter and one tally. Keys that are so close together
//! that digits do not part them are sorted: O(keys log keys) at worst.

use super::build::Builder;
use super::cells::sample;
use super::epsilon::Epsilon;
use super::gk::Summary;
use crate::cells::CellTable;
use crate::cells::classify::{TableOf, number};
use crate::cells::simd::{Kernel, dispatch};
use crate::key::{Key, KeyVec};
use datafusion::common::Result;

/// log2 of the most parts of a later scatter: its write positions stay in the cache, and their pages in the TLB.
const DIGIT_BITS: u32 = 10;

/// Number of digits after which a part that is still too large is sorted by comparisons.
const MOST_DIGITS: usize = 4;

/// Most keys that are sorted by comparisons right away.
const FEW: usize = 32;

/// Least keys for which the first digit comes from a sample, of one in [`SAMPLED`] keys, with [`FIRST_CELLS`] cells.
const MANY: usize = if cfg!(test) { 1 << 10 } else { 1 << 14 };
const SAMPLED: usize = 64;
const FIRST_CELLS: usize = 1024;

/// log2 of the most counts of a tally: they stay in the first-level cache.
const TALLY_BITS: u32 = 8;

/// Memory that is kept from one buffer to the next.
#[derive(Debug, Default)]
pub(super) struct Scratch<K> {
    pub(super) keys: Vec<K>,
    numbers: Vec<u16>,
}

impl<K> Scratch<K> {
    /// Bytes of memory held on the heap.
    pub(super) fn size(&self) -> usize {
        self.keys.capacity() * size_of::<K>() + self.numbers.capacity() * size_of::<u16>()
    }
}

/// The summary of `keys`, all of whose gaps hold fewer than `most` values. Reorders the keys.
///
/// # Errors
/// None that the arguments can cause.
pub(super) fn summarise<K: Key>(
    eps: Epsilon,
    keys: &mut [K],
    scratch: &mut Scratch<K>,
    most: u64,
) -> Result<Summary<K>> {
    let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
    let mut builder = Builder::new(eps, keys.len() / most.min(keys.len().max(1)) * 2);
    if keys.len() <= FEW {
        keys.sort_unstable();
    } else if keys.is_sorted_by(|a, b| a >= b) {
        keys.reverse();
    } else if !keys.is_sorted() {
        scratch.keys.clear();
        scratch.keys.resize(keys.len(), K::default());
        let mut ends = [[0; 1 << DIGIT_BITS]; MOST_DIGITS];
        if keys.len() >= MANY {
            first_parts(keys, scratch, most, &mut ends, &mut builder)?;
        } else {
            part(keys, &mut scratch.keys, most, &mut ends, &mut builder);
        }
        return Ok(builder.finish());
    }
    builder.sorted(keys, most);
    Ok(builder.finish())
}

/// Counters of the values of digits, for each digit that may still be used.
type Ends = [[u32; 1 << DIGIT_BITS]];

/// Parts the keys by the first digit: cells by the shares of a sample.
fn first_parts<K: Key>(
    keys: &mut [K],
    scratch: &mut Scratch<K>,
    most: usize,
    ends: &mut Ends,
    builder: &mut Builder<K>,
) -> Result<()> {
    let table = CellTable::from_sample(&KeyVec::of(&sample(keys, keys.len() / SAMPLED)), FIRST_CELLS)?;
    let numbers = &mut scratch.numbers;
    numbers.resize(keys.len(), 0);
    number(keys, &TableOf::new(&table), numbers);
    let mut limits = vec![0_u32; table.len()];
    for number in numbers.iter() {
        limits[usize::from(*number)] += 1;
    }
    running(&mut limits);
    for (key, number) in keys.iter().zip(numbers.iter()) {
        let end = &mut limits[usize::from(*number)];
        scratch.keys[*end as usize] = *key;
        *end += 1;
    }
    each_part(&mut scratch.keys, keys, &limits, |own, other| {
        part(own, other, most, ends, builder)
    });
    Ok(())
}

/// Gives `keys` to `builder` in ascending parts of at most `most` keys, or of one key only. `other` is scratch memory
/// of equal length.
fn part<K: Key>(keys: &mut [K], other: &mut [K], most: usize, ends: &mut Ends, builder: &mut Builder<K>) {
    let (least, greatest) = extremes(keys);
    if keys.len() <= most || least == greatest {
        return builder.range(least, greatest, keys.len() as u64, most as u64);
    }
    let (ends, later) = match ends.split_first_mut() {
        Some(split) if keys.len() > FEW => split,
        _ => {
            keys.sort_unstable();
            return builder.sorted(keys, most);
        }
    };
    // Twice as many parts as needed if keys are spread evenly.
    let bits = (keys.len() / most).ilog2() + 2;
    let span = K::BITS - leading_zeros(greatest.minus(least));
    if bits <= TALLY_BITS
        && tally(
            keys,
            other,
            most,
            (least, span.saturating_sub(bits), bits),
            builder,
        )
    {
        return;
    }
    let bits = bits.min(DIGIT_BITS);
    let shift = span.saturating_sub(bits);
    let ends = &mut ends[..1 << bits];
    scatter(keys, other, ends, |key| key.minus(least).shr32(shift));
    each_part(other, keys, ends, |own, other| {
        part(own, other, most, later, builder)
    });
}

/// Calls `with` for each part of `keys` and the same range of `other`.
fn each_part<K>(keys: &mut [K], other: &mut [K], ends: &[u32], mut with: impl FnMut(&mut [K], &mut [K])) {
    let mut start = 0;
    for end in ends.iter().map(|end| *end as usize) {
        if start < end {
            with(&mut keys[start..end], &mut other[start..end]);
        }
        start = end;
    }
}

#[derive(Clone, Copy)]
struct Tally<K> {
    least: K,
    greatest: K,
    count: usize,
}

impl<K: Key> Tally<K> {
    fn none() -> Self {
        Self {
            least: K::MAX,
            greatest: K::default(),
            count: 0,
        }
    }

    fn add(&mut self, key: K) {
        self.least = self.least.min(key);
        self.greatest = self.greatest.max(key);
        self.count += 1;
    }

    /// Whether these keys are too many for one tuple.
    fn is_full(&self, most: usize) -> bool {
        self.count > most && self.least < self.greatest
    }
}

/// Gives keys to `builder` by a digit (least key, shift, bits) whose values are only counted. Returns false, and does
/// nothing, if half of the keys would have to be sorted.
fn tally<K: Key>(
    keys: &[K],
    other: &mut [K],
    most: usize,
    (least, shift, bits): (K, u32, u32),
    builder: &mut Builder<K>,
) -> bool {
    let mut tallies = [Tally::none(); 1 << TALLY_BITS];
    let digit = |key: K| key.minus(least).shr32(shift) as usize % (1 << TALLY_BITS);
    for key in keys {
        tallies[digit(*key)].add(*key);
    }
    let filled = tallies[..1 << bits].iter().filter(|tally| tally.count > 0);
    let full = filled.clone().filter(|tally| tally.is_full(most));
    let crowded = full.map(|tally| tally.count).sum();
    if crowded > keys.len() / 2 {
        return false;
    }
    if crowded > 0 {
        let mut held = 0;
        for key in keys {
            other[held] = *key;
            held += usize::from(tallies[digit(*key)].is_full(most));
        }
    }
    let mut sorted = &mut other[..crowded];
    sorted.sort_unstable();
    for tally in filled {
        if tally.is_full(most) {
            let own;
            (own, sorted) = sorted.split_at_mut(tally.count);
            builder.sorted(own, most);
        } else {
            builder.range(tally.least, tally.greatest, tally.count as u64, most as u64);
        }
    }
    true
}

/// Distributes `keys` over `parts` by their digits. Leaves in `ends` the end of each digit's part.
#[inline(always)]
fn scatter<K: Key>(keys: &[K], parts: &mut [K], ends: &mut [u32], digit: impl Fn(K) -> u32) {
    let mask = ends.len() - 1;
    ends.fill(0);
    for key in keys {
        ends[digit(*key) as usize & mask] += 1;
    }
    running(ends);
    for key in keys {
        let end = &mut ends[digit(*key) as usize & mask];
        parts[*end as usize] = *key;
        *end += 1;
    }
}

/// Turns counts into the start of each part.
fn running(counts: &mut [u32]) {
    let mut start = 0;
    for count in counts {
        start += std::mem::replace(count, start);
    }
}

fn leading_zeros<K: Key>(key: K) -> u32 {
    key.to_bits().leading_zeros() - (u128::BITS - K::BITS)
}

/// The least and the greatest of some keys.
fn extremes<K: Key>(keys: &[K]) -> (K, K) {
    let mut extremes = (K::MAX, K::default());
    let scan = Extremes {
        keys,
        extremes: &mut extremes,
    };
    if keys.len() > FEW {
        dispatch(scan)
    } else {
        scan.run()
    }
    extremes
}

struct Extremes<'a, K> {
    keys: &'a [K],
    extremes: &'a mut (K, K),
}

impl<K: Key> Kernel for Extremes<'_, K> {
    #[inline(always)]
    fn run(self) {
        let (mut least, mut greatest) = *self.extremes;
        for key in self.keys {
            (least, greatest) = (least.min(*key), greatest.max(*key));
        }
        *self.extremes = (least, greatest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: &[u64], most: u64) {
        let eps = Epsilon::try_new(0.5).unwrap();
        let summary = summarise(eps, &mut keys.to_vec(), &mut Scratch::default(), most).unwrap();
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        assert_eq!(summary.n(), keys.len() as u64);
        assert!(summary.widest() <= most.max(1), "{} > {most}", summary.widest());
        for tuple in &summary.tuples {
            let below = sorted.partition_point(|key| *key < tuple.key) as u64;
            let upto = sorted.partition_point(|key| *key <= tuple.key) as u64;
            assert!(
                below < upto && tuple.below >= below && tuple.upto <= upto,
                "{tuple:?}"
            );
        }
    }

    #[test]
    fn parts_are_true_and_narrow() {
        let mix = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for most in [0, 1, 2, 7, 64, 1000] {
            for n in [0, 1, 2, 3, 100, 5000] {
                check(&(0..n).map(mix).collect::<Vec<_>>(), most);
                check(&(0..n).map(|i| mix(i) % 7).collect::<Vec<_>>(), most);
                check(&(0..n).collect::<Vec<_>>(), most);
                check(&(0..n).rev().collect::<Vec<_>>(), most);
                check(&vec![u64::MAX; n as usize], most);
                // Keys that are crowded at every scale, so that digits do not part them.
                check(&(0..n).map(|i| mix(i) >> (i % 64)).collect::<Vec<_>>(), most);
                check(
                    &(0..n).map(|i| (1 << (i % 64)) + i / 64 % 2).collect::<Vec<_>>(),
                    most,
                );
            }
        }
    }
}
