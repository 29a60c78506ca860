//! Cuts: empty stretches that are removed from the key space. A few keys far from all others (sentinels, infinities,
//! clusters far apart) would otherwise take up most of a cell table's resolution.

use crate::cells::simd::{Kernel, dispatch};
use crate::key::Key;

/// Most cuts: each costs three operations for every key.
const MOST_CUTS: usize = 4;

/// A cut is worthwhile if it is longer than one part in this number of the range that is left.
const SHARE: u32 = 8;

/// A stretch without keys, as far as a sample tells. Keys inside it are mapped to its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut<K> {
    start: K,
    end: K,
    length: K,
}

/// The stretches that are cut out, the last one first, so that each is given by the original keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cuts<K>(Vec<Cut<K>>);

impl<K: Key> Cuts<K> {
    /// No cuts.
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// The widest stretches between neighbours of an ascending sample.
    pub(super) fn between(sample: &[K]) -> Self {
        let (Some(first), Some(last)) = (sample.first(), sample.last()) else {
            return Self::none();
        };
        let mut cuts: Vec<Cut<K>> = Vec::new();
        for pair in sample.windows(2).filter(|pair| pair[0] < pair[1]) {
            // The two keys are one apart after the cut.
            let length = pair[1].minus(pair[0]).minus(K::from_bits(1));
            let at = cuts.partition_point(|cut| cut.length >= length);
            if at < MOST_CUTS {
                cuts.truncate(MOST_CUTS - 1);
                cuts.insert(
                    at,
                    Cut {
                        start: pair[0],
                        end: pair[1],
                        length,
                    },
                );
            }
        }
        let mut left = last.minus(*first).to_bits();
        let worth = |cut: &Cut<K>| {
            let worth = cut.length.to_bits() > left / u128::from(SHARE);
            left -= if worth { cut.length.to_bits() } else { 0 };
            worth
        };
        let count = cuts.iter().map(worth).take_while(|worth| *worth).count();
        cuts.truncate(count);
        cuts.sort_unstable_by_key(|cut| std::cmp::Reverse(cut.start));
        Self(cuts)
    }

    /// Whether there is no cut.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Maps keys to the key space without the stretches: monotone, and one to one outside of them.
    pub(super) fn apply(&self, keys: &mut [K]) {
        dispatch(Apply { cuts: &self.0, keys });
    }
}

struct Apply<'a, K> {
    cuts: &'a [Cut<K>],
    keys: &'a mut [K],
}

impl<K: Key> Kernel for Apply<'_, K> {
    #[inline(always)]
    fn run(self) {
        for cut in self.cuts {
            for key in self.keys.iter_mut() {
                *key = if *key >= cut.end {
                    key.minus(cut.length)
                } else {
                    (*key).min(cut.start)
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_monotone_and_keep_what_occurs_apart() {
        let far = [
            0,
            1 << 40,
            (1 << 40) + 5,
            (1 << 40) + 90,
            1 << 63,
            (1 << 63) + 1,
            u64::MAX,
        ];
        let cuts = Cuts::between(&far);
        assert_eq!(cuts.0.len(), MOST_CUTS);
        let mut cut = far.to_vec();
        cuts.apply(&mut cut);
        assert_eq!(cut, [0, 1, 6, 7, 8, 9, 10]);
        // Keys inside a stretch share its start.
        let mut inside = vec![7, (1 << 63) - 1, u64::MAX - 1];
        cuts.apply(&mut inside);
        assert_eq!(inside, [0, 7, 9]);
    }

    #[test]
    fn nothing_to_cut() {
        for sample in [vec![], vec![5], vec![7; 100], (0..1000_u64).collect()] {
            assert!(Cuts::between(&sample).is_empty(), "{sample:?}");
        }
    }
}
