//! Super scalar sample sort on keys (Sanders and Winkel 2004), out of place and in place (Axtmann, Witt, Ferizovic and
//! Sanders 2017).
//!
//! ```text
//! sample ── splitters ── search tree ── bucket of every key ──┬─ scatter: count, then each key to its place
//!                                       (the oracle, a byte)  └─ blocks: a buffer a bucket, whole blocks permuted
//!           then the buckets, each sorted the same way; at most SMALL keys: the small sort
//! ```
//!
//! | form | memory beside the keys | extra work a level and key |
//! | --- | --- | --- |
//! | [`OutOfPlace`] | as many keys again, and a byte each | one move |
//! | [`InPlace`] | about 1 MB, whatever the number of keys | two moves, in blocks |
//!
//! Cost: about `log2 n` comparisons a key, no branch on any of them before the small sort, in `log2(n / 256) / 8` levels.
//! A splitter that repeats in the sample gets a bucket of its own whose keys are equal and done. Keys that the sample
//! misleads for `4 + log2 n` levels fall back to the standard library's sort, whose worst case is `n log n`.
//!
//! It loses to `slice::sort_unstable` where there are few distinct keys. Keys in ascending or descending order cost one read.

mod in_place;
mod scatter;
mod tree;

#[cfg(test)]
mod tests;

use datafusion_quantiles::key::Key;
use datafusion_quantiles::key::{GOLDEN, finalised};
use tree::Classifier;

pub(crate) use in_place::InPlace;
pub(crate) use scatter::OutOfPlace;

/// Number of keys in a bucket up to which the small sort sorts it.
const SMALL: usize = 1024;

/// Number of keys that the last level's buckets should have.
const TARGET: usize = 256;

/// Sampled keys for each range: with 4, few buckets are more than twice as large as they should be.
const OVERSAMPLING: usize = 4;

/// Steele, Lea and Flood's SplitMix64 (2014): random enough to pick samples and pivots.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        finalised(self.0)
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// Sorts few keys by the small sort, ordered keys by a read, and others by `unordered`, which gets the most levels that it may take.
fn sort_by<K: Key>(keys: &mut [K], unordered: impl FnOnce(&mut [K], u32)) {
    if keys.len() <= SMALL {
        sort_small(keys);
    } else if !sort_ordered(keys) {
        let levels = patience(keys.len());
        unordered(keys, levels);
    }
}

/// Number of levels after which the splitters are of no use: a good sample needs a tenth as many.
fn patience(len: usize) -> u32 {
    4 + len.max(1).ilog2()
}

/// A classifier for these keys, which are more than [`SMALL`].
fn classifier<K: Key>(keys: &[K], random: &mut Random) -> Classifier<K> {
    let log = log_ranges(keys.len());
    let len = keys.len() as u64;
    let mut sample: Vec<K> = (0..OVERSAMPLING << log)
        .map(|_| keys[random.below(len) as usize])
        .collect();
    sort_small(&mut sample);
    Classifier::of_sample(&sample, log)
}

/// log2 of the number of ranges that leave about [`TARGET`] keys in each range. There are at most 256 ranges.
fn log_ranges(len: usize) -> u32 {
    let ratio = len as f64 / TARGET as f64;
    (ratio.log2().round() as u32).clamp(1, 8)
}

/// The small sort: the standard library's sorting networks and insertion sorts, which only `unsafe` code could match.
fn sort_small<K: Key>(keys: &mut [K]) {
    keys.sort_unstable();
}

/// Sorts keys that are in ascending or descending order already, in one read. False for other keys, mostly after few of them.
fn sort_ordered<K: Key>(keys: &mut [K]) -> bool {
    if keys.is_sorted() {
        return true;
    }
    let descending = keys.is_sorted_by(|left, right| left >= right);
    if descending {
        keys.reverse();
    }
    descending
}
