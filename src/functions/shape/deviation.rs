//! `mad(x)`: the median of the absolute deviations from the median.
//!
//! Around the median of sorted values, deviations ascend to both sides. So the deviation of a rank is that of two sorted lists, and is found
//! by a binary search; no deviation is stored.
//!
//! ```text
//! values:      1  4  6 | 7  9  20      median 6.5
//! deviations:  5.5 2.5 .5 | .5 2.5 13.5
//! ```
//! Deviations of integers, decimals and durations are exact, as twice their size is whole, and the answer is rounded once. Those of
//! floating-point numbers are rounded to their type, which keeps their order.

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::i256;
use datafusion::common::{Result, internal_datafusion_err};

use super::asked::Asked;
use super::number::{NumberKind, Numbers, float, key_at, key_of, rounded};
use super::sorted::Sorted;
use crate::key::{Key, KeyBits, KeySpec};
use crate::quantile::{Interpolation, Method, Pick, Quantile, QuantileSpec};

/// The question for the median absolute deviation.
#[derive(Debug)]
pub(super) struct Deviation {
    median: QuantileSpec,
    /// Means of two values, and means of two deviations.
    between: [Interpolation; 2],
    kind: NumberKind,
}

impl Deviation {
    /// The question about values of a type, with answers of another.
    ///
    /// # Errors
    /// A planning error for types without arithmetic.
    pub(super) fn try_new(spec: &KeySpec, result: &KeySpec) -> Result<Self> {
        let median = QuantileSpec {
            quantiles: vec![Quantile::try_from_f64(0.5)?],
            method: Method::Linear,
            descending: false,
        };
        Ok(Self {
            between: [median.interpolation(spec)?, median.interpolation(result)?],
            median,
            kind: NumberKind::of(spec, result),
        })
    }

    /// The key of the answer for floating-point numbers.
    fn of_floats<K: Key>(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>, pick: Pick) -> Result<KeyBits> {
        let [values, deviations] = &self.between;
        let result = &deviations.result;
        let median = values.answer(spec, pick, &|rank| key_at(sorted, rank))?;
        let below = sorted.count_while(|item| key_of(item) <= median);
        let median = float(result, median)?;
        let deviation = |rank| {
            let value = float(spec, key_at(sorted, rank)?)?;
            // Infinity does not deviate from itself.
            let deviation = if value == median {
                0.0
            } else {
                (value - median).abs()
            };
            Ok(result.float_key(deviation))
        };
        let deviation_at = |rank| of_rank(sorted.n(), below, rank, &deviation);
        deviations.answer(result, pick, &deviation_at)
    }

    /// Four times the answer for integers.
    fn of_integers<K: Key>(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>, pick: Pick) -> Result<i256> {
        let integer = |key| i256::from_i128(spec.integer(key));
        let twice = |key| integer(key).wrapping_add(integer(key));
        let [low, high] = [key_at(sorted, pick.low)?, key_at(sorted, pick.high)?];
        let median = integer(low).wrapping_add(integer(high));
        let below = sorted.count_while(|item| twice(key_of(item)) <= median);
        let deviation = |rank| Ok(twice(key_at(sorted, rank)?).wrapping_sub(median).wrapping_abs());
        let deviation_at = |rank| of_rank(sorted.n(), below, rank, &deviation);
        Ok(deviation_at(pick.low)?.wrapping_add(deviation_at(pick.high)?))
    }
}

/// The deviation of rank `k`, from 1, of `n` values, of which the first `below` are at or below the median. `deviation` gives that of the
/// value with a rank.
fn of_rank<D: Ord>(n: u64, below: u64, k: u64, deviation: &impl Fn(u64) -> Result<D>) -> Result<D> {
    // How many of the first k deviations are of values below the median: the least number so that the next one there is not too small.
    let (mut least, mut most) = (k.saturating_sub(n - below), k.min(below));
    while least < most {
        let below_taken = least + (most - least) / 2;
        let above_taken = k - below_taken;
        let is_enough =
            above_taken == 0 || deviation(below - below_taken)? >= deviation(below + above_taken)?;
        if is_enough {
            most = below_taken;
        } else {
            least = below_taken + 1;
        }
    }
    let of_below = (least > 0).then(|| deviation(below + 1 - least)).transpose()?;
    let of_above = (k > least).then(|| deviation(below + k - least)).transpose()?;
    let found = of_below.into_iter().chain(of_above).max();
    found.ok_or_else(|| internal_datafusion_err!("deviation {k} of {n}"))
}

impl<K: Key> Asked<Vec<K>> for Deviation {
    type Answers = Numbers;

    fn answer(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>, answers: &mut Numbers) -> Result<()> {
        let n = sorted.n();
        let picks = (n > 0).then(|| self.median.picks(n));
        let Some(pick) = picks.as_ref().and_then(|picks| picks.iter().next()) else {
            answers.push(None);
            return Ok(());
        };
        let result = &self.between[1].result;
        answers.push(Some(match self.kind {
            NumberKind::Floats => self.of_floats(spec, sorted, pick)?,
            NumberKind::Integers => {
                let fourfold = self.of_integers(spec, sorted, pick)?.to_i128();
                let fourfold = fourfold
                    .ok_or_else(|| internal_datafusion_err!("a deviation of integers beyond 128 bits"))?;
                result.float_key(fourfold as f64 / 4.0)
            }
            NumberKind::Units => {
                let fourfold = self.of_integers(spec, sorted, pick)?;
                result.integer_key(rounded(fourfold, i256::from_i128(4))?)
            }
        }));
        Ok(())
    }

    fn finish(&self, _: &KeySpec, _: &Vec<K>, answers: Numbers) -> Result<ArrayRef> {
        answers.finish(&self.between[1].result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_of_ranks_are_those_of_a_sort() {
        let mut word = 1_u64;
        for n in 1..40_u64 {
            let mut values: Vec<i64> = (0..n)
                .map(|_| {
                    word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (word >> 60) as i64
                })
                .collect();
            values.sort_unstable();
            for center in [-1, 0, 3, 8, 15, 20] {
                let below = values.iter().filter(|value| **value <= center).count() as u64;
                let deviation = |rank: u64| Ok((values[rank as usize - 1] - center).abs());
                let mut sorted: Vec<i64> = values.iter().map(|value| (value - center).abs()).collect();
                sorted.sort_unstable();
                for k in 1..=n {
                    let found = of_rank(n, below, k, &deviation).unwrap();
                    assert_eq!(found, sorted[k as usize - 1], "{k} of {values:?} around {center}");
                }
            }
        }
    }
}
