//! A sieve for keys of any width, and the best rows that it gives.

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::buffer::Buffer;
use datafusion::common::Result;

use super::plan::{Numbering, TopKPlan};
use crate::kernel::cpu::top::{Rows, Sieve};
use crate::key::{Key, Width, on_width, with_key, words};

/// The best rows of groups, in the order of groups, best first.
pub(super) struct BestRows {
    /// Carried columns.
    pub(super) rows: Vec<ArrayRef>,
    pub(super) keys: Buffer,
    /// Number of rows of each group.
    pub(super) lengths: Vec<usize>,
    /// Number of each row in its group, from 1; empty if the answer is lists.
    pub(super) numbers: Vec<u64>,
}

/// A [`Sieve`] for keys of any width.
pub(super) enum AnySieve {
    W32(Sieve<u32>),
    W64(Sieve<u64>),
    W128(Sieve<u128>),
}

impl AnySieve {
    pub(super) fn new(plan: &TopKPlan) -> Result<Self> {
        let (wanted, types) = (plan.wanted()?, plan.carried_types.clone());
        Ok(match plan.keys.width() {
            Width::W32 => AnySieve::W32(Sieve::new(wanted, types)),
            Width::W64 => AnySieve::W64(Sieve::new(wanted, types)),
            Width::W128 => AnySieve::W128(Sieve::new(wanted, types)),
        })
    }

    /// Adds rows. `ids` has the number of each row's group, which is below `groups`.
    pub(super) fn push(
        &mut self,
        groups: usize,
        ids: &[u32],
        keys: &Buffer,
        payload: &[ArrayRef],
    ) -> Result<()> {
        on_width!(AnySieve, self, sieve => sieve.push(groups, Rows { groups: ids, keys: words(keys), payload }))
    }

    /// Bytes of memory to reserve for the rows: those held, and as many again for the copy that a cut makes.
    pub(super) fn working_bytes(&self) -> usize {
        on_width!(AnySieve, self, sieve => sieve.working_bytes())
    }

    /// Number of rows that did not reach the floor of their group.
    pub(super) fn rejected(&self) -> u64 {
        on_width!(AnySieve, self, sieve => sieve.rejected())
    }

    /// Takes out the best rows of all groups, of which there are `groups`.
    pub(super) fn take(&mut self, groups: usize, plan: &TopKPlan) -> Result<BestRows> {
        on_width!(AnySieve, self, sieve => {
            let best = sieve.take_first(groups)?;
            let lengths = best.lengths();
            Ok(BestRows {
                numbers: match plan.rows() {
                    Some((numbering, _)) => numbers(numbering, &best.keys, &lengths),
                    None => Vec::new(),
                },
                rows: best.payload,
                keys: best.keys.into(),
                lengths,
            })
        })
    }
}

/// The number of each row in its group, from 1. `lengths` has the number of rows of each group.
fn numbers<K: Key>(numbering: Numbering, keys: &[K], lengths: &[usize]) -> Vec<u64> {
    let mut numbers = Vec::with_capacity(keys.len());
    let mut rest = keys;
    for length in lengths {
        let (keys, after) = rest.split_at(*length);
        rest = after;
        let mut number = 0;
        for (index, key) in keys.iter().enumerate() {
            if numbering == Numbering::RowNumber || index == 0 || keys[index - 1] != *key {
                number = index as u64 + 1;
            }
            numbers.push(number);
        }
    }
    numbers
}

/// The sort keys of a batch.
pub(super) fn keys(plan: &TopKPlan, order: &[ArrayRef]) -> Result<Buffer> {
    with_key!(plan.keys.width(), K => Ok(plan.keys.keys::<K>(order)?.into()))
}
