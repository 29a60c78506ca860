//! The round `sample`: one key from each of equally long stripes, at a random position in it. Single keys are taken,
//! not runs of neighbours: neighbours in a table resemble each other, so a sample of 64 runs is worth only 64 keys.

use datafusion::common::Result;

use super::{CpuShard, Stop};
use crate::cells::Brackets;
use crate::failpoint::may_fail;
use crate::kernel::round::Reply;
use crate::key::{GOLDEN, KeyBits, ShardKey, finalised};

/// A pseudorandom number from a counter.
pub(crate) fn mix(counter: u64) -> u64 {
    finalised(counter.wrapping_mul(GOLDEN))
}

/// Ascending positions below `len`, one in each of `count` equal stripes (`count <= len`).
fn positions(len: u64, count: u64, seed: u64) -> impl Iterator<Item = u64> {
    let start = move |stripe: u64| (u128::from(len) * u128::from(stripe) / u128::from(count.max(1))) as u64;
    (0..count).map(move |stripe| {
        let (from, to) = (start(stripe), start(stripe + 1));
        from + mix(seed.wrapping_add(stripe)) % (to - from)
    })
}

impl<K: ShardKey> CpuShard<K> {
    /// Samples `share(own)` of the `own` keys inside `within`.
    pub(super) fn sample(
        &mut self,
        within: &Brackets,
        share: impl Fn(u64) -> u64,
        seed: u64,
        extremes: bool,
        stop: &Stop,
    ) -> Result<Reply> {
        may_fail!("sample");
        let _work = self.working_memory(0, 2 * within.as_slice().len())?;
        let all = within.is_all(self.spec.width());
        self.reduce(within, stop)?;
        let (own, ends) = if all && !extremes {
            (self.store.len(), None)
        } else {
            self.measure(within, stop)?
        };
        let count = share(own).min(own);
        let bytes = count as usize * size_of::<K>();
        self.reply_memory = Some(self.round_memory().hold(bytes, "a sample")?);
        let positions = positions(own, count, seed);
        let mut keys = if all {
            self.store.keys_at(positions, count, stop)?
        } else {
            self.keys_inside_at(within, positions, count, stop)?
        };
        keys.sort_unstable();
        Ok(Reply::Sample {
            keys: K::vec(keys),
            extremes: ends.filter(|_| extremes),
        })
    }

    /// The number of keys inside `within`, and the smallest and the largest of them.
    fn measure(&self, within: &Brackets, stop: &Stop) -> Result<(u64, Option<(KeyBits, KeyBits)>)> {
        let (mut own, mut least, mut greatest) = (0, K::MAX, K::default());
        self.each_inside(within, stop, |block| {
            own += block.len() as u64;
            (least, greatest) = block.iter().fold((least, greatest), |(least, greatest), key| {
                (least.min(*key), greatest.max(*key))
            });
            Ok(())
        })?;
        Ok((own, (own > 0).then(|| (least.to_bits(), greatest.to_bits()))))
    }

    /// The keys at ascending positions among the keys inside `within`.
    fn keys_inside_at(
        &self,
        within: &Brackets,
        positions: impl Iterator<Item = u64>,
        count: u64,
        stop: &Stop,
    ) -> Result<Vec<K>> {
        let mut positions = positions.peekable();
        let mut keys = Vec::with_capacity(count as usize);
        let mut start = 0;
        self.each_inside(within, stop, |block| {
            let end = start + block.len() as u64;
            while let Some(position) = positions.next_if(|position| *position < end) {
                keys.push(block[(position - start) as usize]);
            }
            start = end;
            Ok(())
        })?;
        Ok(keys)
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
