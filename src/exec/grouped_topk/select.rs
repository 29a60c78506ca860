//! A sieve whose keys are of the width that the plan says.

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::buffer::Buffer;
use datafusion::common::Result;

use super::plan::{Numbering, TopKPlan};
use crate::kernel::cpu::groups::partitioned::Partitioned;
use crate::kernel::cpu::top::{Rows, Sieve};
use crate::key::{Key, Width, on_width, with_key, words};
use crate::memory::SpillFile;

/// The best rows of groups: their carried columns, how many each group has, and their numbers if rows are wanted.
pub(super) struct BestRows {
    pub(super) rows: Vec<ArrayRef>,
    pub(super) keys: Buffer,
    pub(super) lengths: Vec<usize>,
    pub(super) numbers: Vec<u64>,
}

/// A [`Sieve`] of any width of keys.
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

    /// Adds rows of `groups` groups at most.
    pub(super) fn push(
        &mut self,
        groups: usize,
        ids: &[u32],
        keys: &Buffer,
        payload: &[ArrayRef],
    ) -> Result<()> {
        on_width!(AnySieve, self, sieve => sieve.push(groups, Rows { groups: ids, keys: words(keys), payload }))
    }

    pub(super) fn held_bytes(&self) -> usize {
        on_width!(AnySieve, self, sieve => sieve.held_bytes())
    }

    pub(super) fn rejected(&self) -> u64 {
        on_width!(AnySieve, self, sieve => sieve.rejected())
    }

    /// Takes out the best rows of the first so many groups, all that there are.
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

/// The keys of a batch.
pub(super) fn keys(plan: &TopKPlan, order: &[ArrayRef]) -> Result<Buffer> {
    with_key!(plan.keys.width(), K => Ok(plan.keys.keys::<K>(order)?.into()))
}

/// The keys of a part.
pub(super) fn partition_keys(
    width: Width,
    keys: &Partitioned,
    part: usize,
    file: Option<&SpillFile>,
) -> Result<Buffer> {
    with_key!(width, K => {
        let mut partition_keys = Vec::<K>::with_capacity(keys.partition_len(part));
        keys.append_partition(part, file, &mut partition_keys)?;
        Ok(partition_keys.into())
    })
}
