//! `mad(x)`: the median of the absolute deviations from the median.
//!
//! Around the median of sorted values, deviations ascend to both sides. So the deviation of a rank is that of two sorted lists, and is found
//! by a binary search; no deviation is stored. The search goes on where of most values only two others are known between which they lie.
//!
//! ```text
//! values:      1  4  6 | 7  9  20      median 6.5
//! deviations:  5.5 2.5 .5 | .5 2.5 13.5
//! ```
//! Deviations of integers, decimals and durations are exact, as twice their size is whole, and the answer is rounded once. Those of
//! floating-point numbers are rounded to their type, which keeps their order.

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::i256;
use datafusion::common::{Result, exec_err, internal_datafusion_err, internal_err};

use super::asked::Asked;
use super::number::{NumberKind, Numbers, float, key_at, rounded};
use super::sorted::Sorted;
use crate::key::{Key, KeyBits, KeySpec};
use crate::quantile::{Interpolation, Method, Pick, Quantile, QuantileSpec};

/// The question for the median absolute deviation.
#[derive(Debug)]
pub(crate) struct Deviation {
    median: QuantileSpec,
    /// Means of two values, and means of two deviations.
    between: [Interpolation; 2],
    kind: NumberKind,
}

/// What the keys that are known tell of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known<T> {
    /// It is this.
    All(T),
    /// The keys of these ranks, which are not known yet, would tell more.
    Wants([u64; 2]),
}

/// A deviation of some rank, and the ranks of the values on both sides of the median that deviate about as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ranked<D> {
    deviation: D,
    around: [u64; 2],
}

/// Which values are between others: the rank of the last one at or below the median, and the keys of the two in the middle.
struct Middle {
    pick: Pick,
    ends: [KeyBits; 2],
}

impl Middle {
    /// The least and the greatest deviation of the value of a rank, between two keys of which its own lies.
    fn between<D: Copy>(
        &self,
        rank: u64,
        [low, high]: [KeyBits; 2],
        deviation: &impl Fn(KeyBits) -> Result<D>,
    ) -> Result<[D; 2]> {
        let is_below = rank <= self.pick.low;
        // The median is as far away as what is next to it, at least.
        let [low, high] = if is_below {
            [low, high.min(self.ends[0])]
        } else {
            [low.max(self.ends[1]), high]
        };
        let near = deviation(if is_below { high } else { low })?;
        Ok(match low == high {
            true => [near; 2],
            false => [near, deviation(if is_below { low } else { high })?],
        })
    }
}

impl Deviation {
    /// The question about values of a type, with answers of another.
    ///
    /// # Errors
    /// A planning error for types without arithmetic.
    pub(crate) fn try_new(spec: &KeySpec, result: &KeySpec) -> Result<Self> {
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

    /// Makes the answer of its key.
    pub(crate) fn result(&self) -> &KeySpec {
        &self.between[1].result
    }

    /// The ranks of the values in the middle of `n`, the same twice where there is one; `None` of no values.
    pub(crate) fn middle_ranks(&self, n: u64) -> Option<[u64; 2]> {
        self.pick(n).map(|pick| [pick.low, pick.high])
    }

    fn pick(&self, n: u64) -> Option<Pick> {
        (n > 0).then(|| self.median.picks(n))?.iter().next()
    }

    /// The key of the answer for `n` values, of which there is one at least, and the ranks of values that deviate about as much. `keys_at` gives
    /// two keys between which that of a rank lies; equal ones of the ranks in the middle.
    ///
    /// # Errors
    /// Errors of `keys_at`; internal errors.
    pub(crate) fn of(
        &self,
        spec: &KeySpec,
        n: u64,
        mut keys_at: impl FnMut(u64) -> Result<[KeyBits; 2]>,
    ) -> Result<Known<(KeyBits, [u64; 2])>> {
        let Some(pick) = self.pick(n) else {
            return internal_err!("the deviation of no values");
        };
        let ends = [keys_at(pick.low)?[0], keys_at(pick.high)?[0]];
        let middle = Middle { pick, ends };
        match self.kind {
            NumberKind::Floats => self.of_floats(spec, n, &middle, keys_at),
            NumberKind::Integers | NumberKind::Units => self.of_integers(spec, n, &middle, keys_at),
        }
    }

    fn of_floats(
        &self,
        spec: &KeySpec,
        n: u64,
        middle: &Middle,
        mut keys_at: impl FnMut(u64) -> Result<[KeyBits; 2]>,
    ) -> Result<Known<(KeyBits, [u64; 2])>> {
        let [values, deviations] = &self.between;
        let (result, pick) = (&deviations.result, middle.pick);
        let is_low = |rank| rank == pick.low;
        let median = values.answer(spec, pick, &|rank| Ok(middle.ends[usize::from(!is_low(rank))]))?;
        let median = float(result, median)?;
        let deviation = |key| {
            let value = float(spec, key)?;
            // Infinity does not deviate from itself.
            let deviation = if value == median {
                0.0
            } else {
                (value - median).abs()
            };
            Ok(result.float_key(deviation))
        };
        let found = in_middle(n, pick, |rank| middle.between(rank, keys_at(rank)?, &deviation))?;
        Ok(match found {
            Known::Wants(ranks) => Known::Wants(ranks),
            Known::All([low, high]) => {
                let deviation_at = |rank| {
                    Ok(if is_low(rank) {
                        low.deviation
                    } else {
                        high.deviation
                    })
                };
                Known::All((deviations.answer(result, pick, &deviation_at)?, low.around))
            }
        })
    }

    fn of_integers(
        &self,
        spec: &KeySpec,
        n: u64,
        middle: &Middle,
        mut keys_at: impl FnMut(u64) -> Result<[KeyBits; 2]>,
    ) -> Result<Known<(KeyBits, [u64; 2])>> {
        let integer = |key| i256::from_i128(spec.integer(key));
        let twice = |key| integer(key).wrapping_add(integer(key));
        let median = integer(middle.ends[0]).wrapping_add(integer(middle.ends[1]));
        // Twice as large as deviations are.
        let deviation = |key| Ok(twice(key).wrapping_sub(median).wrapping_abs());
        let found = in_middle(n, middle.pick, |rank| {
            middle.between(rank, keys_at(rank)?, &deviation)
        })?;
        Ok(match found {
            Known::Wants(ranks) => Known::Wants(ranks),
            Known::All([low, high]) => {
                let fourfold = low.deviation.wrapping_add(high.deviation);
                Known::All((self.quarter(fourfold)?, low.around))
            }
        })
    }

    /// The key of a quarter of a number.
    fn quarter(&self, fourfold: i256) -> Result<KeyBits> {
        let result = self.result();
        if self.kind == NumberKind::Units {
            let deviation = rounded(fourfold, i256::from_i128(4))?;
            let key = result.integer_key(deviation);
            if result.integer(key) != deviation {
                return exec_err!("mad: {deviation} is more than {} holds", result.data_type());
            }
            return Ok(key);
        }
        let fourfold = fourfold.to_i128();
        let fourfold =
            fourfold.ok_or_else(|| internal_datafusion_err!("a deviation of integers beyond 128 bits"))?;
        Ok(result.float_key(fourfold as f64 / 4.0))
    }
}

/// The two deviations in the middle of those of `n` values, from the least and the greatest deviation that the value of a rank can have.
fn in_middle<D: Copy + Ord>(
    n: u64,
    pick: Pick,
    mut between: impl FnMut(u64) -> Result<[D; 2]>,
) -> Result<Known<[Ranked<D>; 2]>> {
    let low = match of_rank(n, pick.low, pick.low, &mut between)? {
        Known::All(low) => low,
        Known::Wants(ranks) => return Ok(Known::Wants(ranks)),
    };
    if pick.low == pick.high {
        return Ok(Known::All([low; 2]));
    }
    Ok(match of_rank(n, pick.low, pick.high, &mut between)? {
        Known::All(high) => Known::All([low, high]),
        Known::Wants(ranks) => Known::Wants(ranks),
    })
}

/// The deviation of rank `k`, from 1, of `n` values, of which the first `below` are at or below the median and the others at or above it.
/// `between` gives the least and the greatest deviation that the value of a rank can have.
fn of_rank<D: Copy + Ord>(
    n: u64,
    below: u64,
    k: u64,
    between: &mut impl FnMut(u64) -> Result<[D; 2]>,
) -> Result<Known<Ranked<D>>> {
    // How many of the first k deviations are of values below the median: the least number so that the next one there is not too small.
    let (mut least, mut most) = (k.saturating_sub(n - below), k.min(below));
    while least < most {
        let below_taken = least + (most - least) / 2;
        let ranks = [below - below_taken, below + k - below_taken];
        if below_taken == k {
            most = below_taken;
            continue;
        }
        let ([low, high], [low_above, high_above]) = (between(ranks[0])?, between(ranks[1])?);
        if low >= high_above {
            most = below_taken;
        } else if high < low_above {
            least = below_taken + 1;
        } else {
            return Ok(Known::Wants(ranks));
        }
    }
    let around = [(below + 1 - least).min(below), below + k - least];
    let of_below = if least > 0 {
        Some(between(around[0])?)
    } else {
        None
    };
    let of_above = if k > least {
        Some(between(around[1])?)
    } else {
        None
    };
    let found = match (of_below, of_above) {
        (Some(below), Some(above)) => [below[0].max(above[0]), below[1].max(above[1])],
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => return internal_err!("deviation {k} of {n}"),
    };
    Ok(if found[0] == found[1] {
        Known::All(Ranked {
            deviation: found[0],
            around,
        })
    } else {
        Known::Wants(around)
    })
}

impl<K: Key> Asked<Vec<K>> for Deviation {
    type Answers = Numbers;

    fn answer(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>, answers: &mut Numbers) -> Result<()> {
        answers.push(match sorted.n() {
            0 => None,
            n => match self.of(spec, n, |rank| Ok([key_at(sorted, rank)?; 2]))? {
                Known::All((key, _)) => Some(key),
                Known::Wants(ranks) => return internal_err!("the keys of ranks {ranks:?} are not known"),
            },
        });
        Ok(())
    }

    fn finish(&self, _: &KeySpec, _: &Vec<K>, answers: Numbers) -> Result<ArrayRef> {
        answers.finish(self.result())
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::DataType;

    use super::*;

    /// Values in order, drawn from a few or from many.
    fn values(n: u64, shift: u32, word: &mut u64) -> Vec<i64> {
        let mut values: Vec<i64> = (0..n)
            .map(|_| {
                *word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (*word >> shift) as i64
            })
            .collect();
        values.sort_unstable();
        values
    }

    #[test]
    fn deviations_of_ranks_are_those_of_a_sort() {
        let mut word = 1;
        for n in 1..40 {
            let values = values(n, 60, &mut word);
            for center in [-1, 0, 3, 8, 15, 20] {
                let below = values.iter().filter(|value| **value <= center).count() as u64;
                let mut between = |rank: u64| Ok([(values[rank as usize - 1] - center).abs(); 2]);
                let mut sorted: Vec<i64> = values.iter().map(|value| (value - center).abs()).collect();
                sorted.sort_unstable();
                for k in 1..=n {
                    let found = of_rank(n, below, k, &mut between).unwrap();
                    let Known::All(found) = found else {
                        panic!("{found:?}")
                    };
                    assert_eq!(
                        found.deviation,
                        sorted[k as usize - 1],
                        "{k} of {values:?} around {center}"
                    );
                }
            }
        }
    }

    /// Where only parts of the order are known, the answer is that of all values, or asks for what is not known.
    #[test]
    fn what_is_not_known_is_asked_for() {
        let spec = KeySpec::try_new(&DataType::Int64).unwrap();
        let deviation = Deviation::try_new(&spec, &KeySpec::try_new(&DataType::Float64).unwrap()).unwrap();
        let (mut word, mut asked) = (1, 0);
        for (n, shift) in [(1, 50), (2, 50), (99, 60), (100, 56), (1000, 50), (1001, 40)] {
            let values = values(n, shift, &mut word);
            let key = |rank: u64| spec.integer_key(values[rank as usize - 1].into());
            let all = deviation.of(&spec, n, |rank| Ok([key(rank); 2])).unwrap();
            for step in [3, 10, 64] {
                let mut known: Vec<u64> = deviation.middle_ranks(n).unwrap().into();
                let found = loop {
                    // Of other ranks, the keys at the ends of a step are known.
                    let between = |rank: u64| match known.contains(&rank) {
                        true => Ok([key(rank); 2]),
                        false => Ok([
                            key(rank / step * step + u64::from(rank < step)),
                            key((rank / step * step + step).min(n)),
                        ]),
                    };
                    match deviation.of(&spec, n, between).unwrap() {
                        Known::Wants(ranks) => {
                            assert!(ranks.iter().any(|rank| !known.contains(rank)), "{ranks:?}");
                            known.extend(ranks);
                            asked += 1;
                        }
                        found => break found,
                    }
                };
                let answer = |known| match known {
                    Known::All((key, _)) => key,
                    Known::Wants(ranks) => panic!("{ranks:?}"),
                };
                assert_eq!(answer(found), answer(all), "{n} values, {step}");
            }
        }
        assert!(asked > 0);
    }
}
