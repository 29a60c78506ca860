//! What a sorted sample of the keys tells: which keys repeat, and where cells are to begin.

use std::ops::Range;

use datafusion::common::Result;

use crate::cells::{Bracket, Cells, Edges};
use crate::key::{KeyBits, KeyVec, Width};

/// The key that follows `key`; `None` for the greatest key of this width.
pub(super) fn next_key(key: KeyBits, width: Width) -> Option<KeyBits> {
    (key < width.max_key()).then(|| key + 1)
}

/// The edges that give `key` a cell of its own: the key, and the next one if there is one.
pub(super) fn edges_around(key: KeyBits, width: Width) -> impl Iterator<Item = KeyBits> {
    std::iter::once(key).chain(next_key(key, width))
}

/// Number of copies of `key` in a sorted sample.
pub(super) fn copies(sample: &KeyVec, key: KeyBits) -> usize {
    sample.upper_bound(key) - sample.lower_bound(key)
}

/// Positions in a sorted sample, from 0, of the keys that a bracket holds.
pub(super) fn positions(sample: &KeyVec, bracket: &Bracket) -> Range<usize> {
    sample.lower_bound(bracket.first)..sample.upper_bound(bracket.last)
}

/// A cell of its own for each key of a sorted sample; `None` if the sample has more than `most` different keys.
///
/// # Errors
/// An internal error if an oracle cannot tell so many cells apart.
pub(super) fn cells_of_few(sample: &KeyVec, most: usize, width: Width) -> Result<Option<Cells>> {
    let (mut distinct, mut at) = (Vec::new(), 0);
    while at < sample.len() {
        if distinct.len() == most {
            return Ok(None);
        }
        distinct.push(sample.get(at));
        at = sample.upper_bound(sample.get(at));
    }
    let edges = distinct.into_iter().flat_map(|key| edges_around(key, width));
    Ok(Some(Cells::Edges(Edges::try_new(edges.collect())?)))
}

/// Order statistics of a sorted sample at equal distances, without repetition: they cut the keys into at most `ranges` ranges.
pub(super) fn splitters(sample: &KeyVec, ranges: usize) -> Vec<KeyBits> {
    if sample.is_empty() {
        return Vec::new();
    }
    let at = |i: usize| sample.get(i * sample.len() / ranges);
    let mut splitters: Vec<KeyBits> = (1..ranges).map(at).collect();
    splitters.dedup();
    splitters
}

/// Edges at the splitters. A splitter that repeats in the sample gets a cell of its own (the equality buckets of SampleSelect,
/// section IV-C).
pub(super) fn splitter_edges(sample: &KeyVec, splitters: &[KeyBits], width: Width) -> Vec<KeyBits> {
    let repeating = splitters.iter().filter(|key| copies(sample, **key) > 1);
    let ends = repeating.filter_map(|key| next_key(*key, width));
    splitters.iter().copied().chain(ends).collect()
}
