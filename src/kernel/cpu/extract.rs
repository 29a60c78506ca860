//! Copying the few keys that are still possible: branch-free, because a branch that is taken at random costs more
//! than ten elements.

use std::ops::RangeInclusive;

use super::dispatch::{Kernel, dispatch};
use super::store::BLOCK;
use crate::kernel::round::Brackets;
use crate::key::Key;

/// The keys of a block (at most [`BLOCK`]) for which `wanted` holds, appended to `out`.
#[inline(always)]
fn compact<K: Key>(block: &[K], out: &mut Vec<K>, wanted: impl Fn(usize, K) -> bool) {
    let mut scratch = [K::default(); BLOCK];
    let mut len = 0;
    for (at, &key) in block.iter().enumerate() {
        scratch[len % BLOCK] = key;
        len += usize::from(wanted(at, key));
    }
    out.extend_from_slice(&scratch[..len.min(BLOCK)]);
}

/// Keys whose cell, written down by an earlier count, is wanted.
pub(super) fn by_oracle<K: Key>(block: &[K], oracle: &[u16], wanted: &[bool; 1 << 16], out: &mut Vec<K>) {
    dispatch(ByOracle {
        block,
        oracle: &oracle[..block.len()],
        wanted,
        out,
    });
}

struct ByOracle<'a, K> {
    block: &'a [K],
    oracle: &'a [u16],
    wanted: &'a [bool; 1 << 16],
    out: &'a mut Vec<K>,
}

impl<K: Key> Kernel for ByOracle<'_, K> {
    #[inline(always)]
    fn run(self) {
        compact(self.block, self.out, |at, _| {
            self.wanted[usize::from(self.oracle[at])]
        });
    }
}

/// Keys inside any of a few brackets, by compares. `counts[i]` grows by the keys at or above edge `i`.
pub(super) fn by_compares<K: Key>(
    block: &[K],
    edges: &[K],
    counts: &mut [u64],
    brackets: &[RangeInclusive<K>],
    out: &mut Vec<K>,
) {
    dispatch(ByCompares {
        block,
        edges,
        counts,
        brackets,
        out,
    });
}

struct ByCompares<'a, K> {
    block: &'a [K],
    edges: &'a [K],
    counts: &'a mut [u64],
    brackets: &'a [RangeInclusive<K>],
    out: &'a mut Vec<K>,
}

impl<K: Key> Kernel for ByCompares<'_, K> {
    #[inline(always)]
    fn run(self) {
        for (edge, count) in self.edges.iter().zip(self.counts) {
            *count += self.block.iter().map(|key| u64::from(key >= edge)).sum::<u64>();
        }
        match self.brackets {
            [] => {}
            [only] => {
                let (first, span) = (*only.start(), only.end().minus(*only.start()));
                compact(self.block, self.out, |_, key| key.minus(first) <= span);
            }
            several => {
                let span = |range: &RangeInclusive<K>| (*range.start(), range.end().minus(*range.start()));
                let spans: Vec<(K, K)> = several.iter().map(span).collect();
                compact(self.block, self.out, |_, key| {
                    spans
                        .iter()
                        .fold(false, |any, (first, span)| any | (key.minus(*first) <= *span))
                });
            }
        }
    }
}

/// Brackets over keys of one width, with a search for the one that holds a key.
pub(super) struct BracketsOf<K> {
    firsts: Vec<K>,
    lasts: Vec<K>,
}

impl<K: Key> BracketsOf<K> {
    pub(super) fn new(brackets: &Brackets) -> Self {
        let ends = |end: fn(&crate::kernel::round::Bracket) -> u128| {
            brackets
                .as_slice()
                .iter()
                .map(|bracket| K::from_bits(end(bracket)))
                .collect()
        };
        Self {
            firsts: ends(|bracket| bracket.first),
            lasts: ends(|bracket| bracket.last),
        }
    }

    /// The bracket that holds `key`, if any.
    #[inline(always)]
    pub(super) fn find(&self, key: K) -> Option<usize> {
        let (mut at, mut left) = (0, self.firsts.len());
        while left > 1 {
            let half = left / 2;
            at += if self.firsts[at + half] <= key { half } else { 0 };
            left -= half;
        }
        (left > 0 && self.firsts[at] <= key && key <= self.lasts[at]).then_some(at)
    }

    pub(super) fn len(&self) -> usize {
        self.firsts.len()
    }

    /// Those of any number of keys that lie in a bracket.
    pub(super) fn filter_all(&self, keys: &[K], out: &mut Vec<K>) {
        keys.chunks(BLOCK).for_each(|block| self.filter(block, out));
    }

    /// The keys of a block (at most [`BLOCK`]) that lie in a bracket.
    pub(super) fn filter(&self, block: &[K], out: &mut Vec<K>) {
        compact(block, out, |_, key| self.find(key).is_some());
    }
}
