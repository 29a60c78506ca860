//! `trimmed_mean(x, p)` and `winsorized_mean(x, p)`: means in which the ends of the order do not count, or count no more than what is next
//! to them.
//!
//! With g = floor(p n) of n values, p being the decimal that was written, the trimmed mean is that of the values of ranks g + 1 to n - g.
//! The winsorized mean is that of all n values, of which the first g are replaced by that of rank g + 1 and the last g by that of rank n - g.
//!
//! Sums are exact, of floating-point numbers too ([`ExactSum`]), and the mean is rounded once, so that it does not depend on the order in
//! which rows come.

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::i256;
use datafusion::common::Result;

use super::asked::Asked;
use super::number::{NumberKind, Numbers, float, key_of, rounded};
use super::sorted::Sorted;
use crate::kernel::cpu::exact_sum::{ExactSum, integer_mean};
use crate::key::{Key, KeyBits, KeySpec};
use crate::quantile::Quantile;
use crate::wire::{Message, Reader, put};

/// The question for a mean without the ends.
#[derive(Debug)]
pub(super) struct RobustMean {
    /// The share of values that is an end.
    share: Quantile,
    /// Whether the ends are replaced by what is next to them.
    is_winsorized: bool,
    mean: ExactMean,
}

impl RobustMean {
    /// The question about values of a type, with answers of another.
    pub(super) fn new(spec: &KeySpec, result: KeySpec, share: Quantile, is_winsorized: bool) -> Self {
        Self {
            share,
            is_winsorized,
            mean: ExactMean::new(spec, result),
        }
    }

    /// Calls `each` with the key of each distinct value that counts, and how often it does. Returns the sum of those numbers.
    fn for_each_counted<K: Key>(
        &self,
        sorted: &Sorted<'_, Vec<K>>,
        mut each: impl FnMut(KeyBits, u64),
    ) -> u64 {
        let n = sorted.n();
        let end = self.share.whole_part_of(n);
        let (from, to) = (end, n - end);
        let (mut before, ends) = (0, if self.is_winsorized { end } else { 0 });
        sorted.for_each_distinct(|item, count| {
            let through = before + count;
            let inside = through.min(to).saturating_sub(before.max(from));
            // The values of the ranks `from + 1` and `to` stand in for the ends.
            let is_first = before <= from && from < through;
            let is_last = before < to && to <= through;
            let replacing = ends * (u64::from(is_first) + u64::from(is_last));
            if inside + replacing > 0 {
                each(key_of(item), inside + replacing);
            }
            before = through;
        });
        to - from + 2 * ends
    }

    /// The key of the answer of a group that has values.
    fn mean<K: Key>(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>) -> Result<KeyBits> {
        let (mut sum, mut failed) = (ExactTotal::default(), None);
        let n = self.for_each_counted(sorted, |key, copies| {
            if let Err(error) = self.mean.add(&mut sum, spec, key, copies) {
                failed = Some(error);
            }
        });
        match failed {
            Some(error) => Err(error),
            None => self.mean.of(&sum, n),
        }
    }
}

/// Means of a column, from exact sums.
#[derive(Debug)]
pub(crate) struct ExactMean {
    pub(crate) result: KeySpec,
    kind: NumberKind,
}

impl ExactMean {
    /// Means of values of a type, as numbers of another.
    pub(crate) fn new(spec: &KeySpec, result: KeySpec) -> Self {
        Self {
            kind: NumberKind::of(spec, &result),
            result,
        }
    }

    /// Adds a value `copies` times to a sum.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn add(&self, sum: &mut ExactTotal, spec: &KeySpec, key: KeyBits, copies: u64) -> Result<()> {
        match self.kind {
            NumberKind::Floats if copies == 1 => sum.floats.add_one(float(spec, key)?),
            NumberKind::Floats => sum.floats.add(float(spec, key)?, copies),
            _ => sum.integers.add(spec.integer(key), copies),
        }
        Ok(())
    }

    /// Adds values by their keys. `numbers` is a buffer.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn add_all<K: Key>(
        &self,
        sum: &mut ExactTotal,
        spec: &KeySpec,
        keys: &[K],
        numbers: &mut Vec<f64>,
    ) -> Result<()> {
        if self.kind != NumberKind::Floats {
            return keys
                .iter()
                .try_for_each(|key| self.add(sum, spec, key.to_bits(), 1));
        }
        numbers.clear();
        spec.append_floats(keys, numbers);
        sum.floats.add_all(numbers);
        Ok(())
    }

    /// The key of the mean of `n` values, which is not 0.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn of(&self, sum: &ExactTotal, n: u64) -> Result<KeyBits> {
        Ok(match self.kind {
            NumberKind::Floats => self.result.float_key(sum.floats.mean(n)),
            NumberKind::Units => {
                let n = i256::from_i128(n.into());
                self.result.integer_key(rounded(sum.integers.total(), n)?)
            }
            NumberKind::Integers => self.result.float_key(integer_mean(sum.integers.small, n)),
        })
    }
}

/// An exact sum, of floating-point numbers or of integers.
#[derive(Debug, Default)]
pub(crate) struct ExactTotal {
    floats: ExactSum,
    integers: IntegerSum,
}

impl ExactTotal {
    /// Adds another sum.
    pub(crate) fn merge(&mut self, other: Self) {
        self.floats.merge(other.floats);
        let IntegerSum { small, large } = other.integers;
        self.integers.add(small, 1);
        self.integers.large = self.integers.large.wrapping_add(large);
    }
}

impl Message for ExactTotal {
    fn write(&self, out: &mut Vec<u8>) {
        self.floats.write(out);
        let (low, high) = self.integers.large.to_parts();
        [self.integers.small as u128, low, high as u128]
            .into_iter()
            .for_each(|part| put(out, part));
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let floats = ExactSum::read(input)?;
        let mut part = || input.number::<u128>("sum");
        let (small, low, high) = (part()? as i128, part()?, part()? as i128);
        let large = i256::from_parts(low, high);
        Ok(Self {
            floats,
            integers: IntegerSum { small, large },
        })
    }
}

/// An exact sum of integers of up to 128 bits. Those of up to 64 bits stay in `small`.
#[derive(Debug, Default)]
struct IntegerSum {
    small: i128,
    large: i256,
}

impl IntegerSum {
    fn add(&mut self, value: i128, copies: u64) {
        let added = value.checked_mul(copies.into());
        match added.and_then(|added| self.small.checked_add(added)) {
            Some(sum) => self.small = sum,
            None => {
                let product = i256::from_i128(value).wrapping_mul(i256::from_i128(copies.into()));
                self.large = self.large.wrapping_add(product);
            }
        }
    }

    fn total(&self) -> i256 {
        self.large.wrapping_add(i256::from_i128(self.small))
    }
}

impl<K: Key> Asked<Vec<K>> for RobustMean {
    type Answers = Numbers;

    fn answer(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>, answers: &mut Numbers) -> Result<()> {
        answers.push(match sorted.n() {
            0 => None,
            _ => Some(self.mean(spec, sorted)?),
        });
        Ok(())
    }

    fn finish(&self, _: &KeySpec, _: &Vec<K>, answers: Numbers) -> Result<ArrayRef> {
        answers.finish(&self.mean.result)
    }
}
