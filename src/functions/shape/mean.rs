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

/// The question for a mean without the ends.
#[derive(Debug)]
pub(super) struct RobustMean {
    /// The share of values that is an end.
    share: Quantile,
    /// Whether the ends are replaced by what is next to them.
    is_winsorized: bool,
    result: KeySpec,
    kind: NumberKind,
}

impl RobustMean {
    /// The question about values of a type, with answers of another.
    pub(super) fn new(spec: &KeySpec, result: KeySpec, share: Quantile, is_winsorized: bool) -> Self {
        Self {
            share,
            is_winsorized,
            kind: NumberKind::of(spec, &result),
            result,
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
        if self.kind == NumberKind::Floats {
            let (mut sum, mut failed) = (ExactSum::default(), None);
            let n = self.for_each_counted(sorted, |key, copies| match float(spec, key) {
                Ok(value) => sum.add(value, copies),
                Err(error) => failed = Some(error),
            });
            return match failed {
                Some(error) => Err(error),
                None => Ok(self.result.float_key(sum.mean(n))),
            };
        }
        let mut sum = IntegerSum::default();
        let n = self.for_each_counted(sorted, |key, copies| sum.add(spec.integer(key), copies));
        Ok(match self.kind {
            NumberKind::Units => {
                let n = i256::from_i128(n.into());
                self.result.integer_key(rounded(sum.total(), n)?)
            }
            _ => self.result.float_key(integer_mean(sum.small, n)),
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
        answers.finish(&self.result)
    }
}
