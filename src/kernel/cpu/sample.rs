//! Sampling: one key a stripe, at a random place in it. Single keys, not runs of neighbours: neighbours in a table
//! resemble each other, and a sample of 64 runs is worth 64 keys.

use datafusion::common::{Result, internal_err};

use super::extract::BracketsOf;
use super::{CpuLane, LaneKey, Stop};
use crate::kernel::round::{Brackets, Reply};

/// Steele, Lea and Flood's SplitMix64 (2014): a good mix of a counter.
fn mix(counter: u64) -> u64 {
    let mut bits = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Ascending positions below `len`: one in each of `count` equal stripes (`count <= len`).
fn positions(len: u64, count: u64, seed: u64) -> impl Iterator<Item = u64> {
    let start = move |stripe: u64| (u128::from(len) * u128::from(stripe) / u128::from(count.max(1))) as u64;
    (0..count).map(move |stripe| {
        let (from, to) = (start(stripe), start(stripe + 1));
        from + mix(seed.wrapping_add(stripe)) % (to - from)
    })
}

impl<K: LaneKey> CpuLane<K> {
    /// Samples `share(own)` of the `own` keys inside `within`: of `reduced`, or of all.
    pub(super) fn sample(
        &self,
        reduced: bool,
        within: &Brackets,
        share: impl Fn(u64) -> u64,
        seed: u64,
        extremes: bool,
        stop: &Stop,
    ) -> Result<Reply> {
        let (mut keys, extremes) = if reduced {
            let Some(reduced) = &self.reduced else {
                return internal_err!("no reduced keys to sample");
            };
            let mut inside = Vec::new();
            BracketsOf::new(within, self.spec.width())?.filter_all(&reduced.keys, &mut inside);
            let own = inside.len() as u64;
            let ends = inside.iter().min().zip(inside.iter().max()).filter(|_| extremes);
            let ends = ends.map(|(least, greatest)| (least.to_bits(), greatest.to_bits()));
            (
                positions(own, share(own).min(own), seed)
                    .map(|at| inside[at as usize])
                    .collect(),
                ends,
            )
        } else {
            let own = self.store.len();
            let ends = if extremes { self.extremes(stop)? } else { None };
            (self.keys_at(positions(own, share(own).min(own), seed)), ends)
        };
        keys.sort_unstable();
        Ok(Reply::Sample {
            keys: K::vec(keys),
            extremes,
        })
    }

    /// The keys at ascending positions.
    fn keys_at(&self, positions: impl Iterator<Item = u64>) -> Vec<K> {
        let mut chunks = self.store.chunks.iter();
        let (mut chunk, mut start, mut end) = (None, 0, 0);
        let mut keys = Vec::with_capacity(positions.size_hint().0);
        for position in positions {
            while position >= end {
                let Some(next) = chunks.next() else { return keys };
                (chunk, start, end) = (Some(next), end, end + next.len() as u64);
            }
            keys.extend(chunk.map(|chunk| chunk.key((position - start) as usize)));
        }
        keys
    }

    /// The smallest and the largest key.
    fn extremes(&self, stop: &Stop) -> Result<Option<(u128, u128)>> {
        let mut ends: Option<(K, K)> = None;
        self.each_block(stop, |block, _| {
            let seed = ends.unwrap_or((block[0], block[0]));
            ends = Some(block.iter().fold(seed, |(least, greatest), key| {
                (least.min(*key), greatest.max(*key))
            }));
        })?;
        Ok(ends.map(|(least, greatest)| (least.to_bits(), greatest.to_bits())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_one_a_stripe() {
        for (len, count) in [(10, 10), (10, 3), (1, 1), (1000, 999), (u64::MAX, 5), (0, 0)] {
            let found: Vec<u64> = positions(len, count, 7).collect();
            assert_eq!(found.len() as u64, count);
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]) && found.iter().all(|at| *at < len));
        }
    }
}
