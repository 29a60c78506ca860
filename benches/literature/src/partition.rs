//! Partition around a pivot, without branches on the keys.

use std::ops::Range;

use super::samplesort::Random;
use datafusion_quantiles::key::Key;

/// Reorders keys to those below the pivot, those equal to it, and those above. Returns the numbers of keys below and equal.
pub(super) fn partition<K: Key>(keys: &mut [K], pivot: K) -> (usize, usize) {
    let below = split(keys, |key| key < pivot);
    let equal = split(&mut keys[below..], |key| key == pivot);
    (below, equal)
}

/// Lomuto's partition: reorders keys so that those that pass the test come first. Returns their number.
fn split<K: Key>(keys: &mut [K], test: impl Fn(K) -> bool) -> usize {
    let mut passed = 0;
    for at in 0..keys.len() {
        let key = keys[at];
        keys.swap(at, passed);
        passed += usize::from(test(key));
    }
    passed
}

/// Keys in a slice up to which it is sorted.
const FEW: usize = 32;

/// The keys at 0-based ranks (ascending, below the number of keys) by quickselect with random pivots (Hoare 1961,
/// "Find"), on both sides of a pivot if both hold ranks. Reorders the keys.
pub(super) fn select<K: Key>(keys: &mut [K], ranks: &[usize], random: &mut Random) -> Vec<K> {
    let mut open: Vec<(Range<usize>, &[usize])> = vec![(0..keys.len(), ranks)];
    while let Some((range, ranks)) = open.pop() {
        if ranks.is_empty() {
            continue;
        }
        let part = &mut keys[range.clone()];
        if part.len() <= FEW {
            part.sort_unstable();
            continue;
        }
        let pivot = part[random.below(part.len() as u64) as usize];
        let (below, equal) = partition(part, pivot);
        let (equal_start, equal_end) = (range.start + below, range.start + below + equal);
        let (lower, rest) = ranks.split_at(ranks.partition_point(|rank| *rank < equal_start));
        let upper = &rest[rest.partition_point(|rank| *rank < equal_end)..];
        open.push((range.start..equal_start, lower));
        open.push((equal_end..range.end, upper));
    }
    // Every rank's key is at its index now.
    ranks.iter().map(|rank| keys[*rank]).collect()
}
