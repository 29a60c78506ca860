//! What accumulators collect of a column: keys of one width, or byte strings, each in flat memory.
//!
//! Accumulators and window frames are written once over [`Collected`]; which one a call gets is decided when its
//! accumulator is made. Cost of a value: its key (4, 8 or 16 bytes), or its bytes and four more.

use std::fmt::Debug;
use std::mem::{size_of, take};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::arrow::compute::filter;
use datafusion::common::{Result, internal_datafusion_err};

use super::accumulator::reserve;
use super::frame::{Frame, KeyFrame};
use super::frame_strings::StringFrame;
use crate::kernel::byte_strings::{At, ByteStrings};
use crate::kernel::cpu::groups::segments::{Plan, select_ranks, sorted_distinct};
use crate::key::{ByteSpec, Key, KeyBits, KeySpec};
use crate::quantile::{Ask, Found, SelectedColumn, Typed};

/// The values of a column that are not NULL, in the order in which they came.
pub(super) trait Collected: Default + Debug + Send + Sync + 'static {
    /// How values of the column's type become what is collected.
    type Spec: Typed + Debug + Send + Sync + 'static;
    /// What is moved and sorted in place of a value: the key itself, or where a byte string lies.
    type Item: Copy + Default + Send;
    /// What answers are made of.
    type Value<'a>;
    /// The values of a window frame, in order.
    type Frame: Frame<Self>;

    /// Adds the values of the rows that are true in `kept` (`None`: of all rows), none of which is NULL; how many.
    ///
    /// # Errors
    /// Where memory ends; an internal error for values of another type.
    fn append(&mut self, spec: &Self::Spec, values: &ArrayRef, kept: Option<&BooleanArray>) -> Result<usize>;

    /// Takes out runs of values, the first of which starts with the first value. A run of `(Some(to), length)` goes to
    /// `items[to..to + length]`; what [`Self::value`] needs of it is in the result. One of `(None, length)` stays.
    ///
    /// # Errors
    /// Where memory ends.
    fn take_out(
        &mut self,
        runs: impl Iterator<Item = (Option<usize>, usize)>,
        items: &mut [Self::Item],
    ) -> Result<Self>;

    /// Calls `with` with the items of all values, to be reordered as it likes.
    fn with_items<T>(&mut self, with: impl FnOnce(&Self, &mut [Self::Item]) -> T) -> T;

    /// Reorders items so that each of `ranks` (1-based, ascending, distinct, at most their number) is in its place.
    fn select(&self, items: &mut [Self::Item], ranks: &[u64]);

    /// Sorts items, and moves those of distinct values to the front: these.
    fn sort_distinct<'a>(&self, items: &'a mut [Self::Item]) -> &'a mut [Self::Item];

    /// The value of an item.
    fn value(&self, item: Self::Item) -> Self::Value<'_>;

    /// The answers of `ask` from the values that they are, or lie between.
    ///
    /// # Errors
    /// Those of making an array.
    fn answers(ask: &Ask, spec: &Self::Spec, found: &Found<Self::Value<'_>>) -> Result<ArrayRef>;

    /// The values of some items as an array of the column's type.
    ///
    /// # Errors
    /// Those of making an array.
    fn array(&self, spec: &Self::Spec, items: &[Self::Item]) -> Result<ArrayRef>;

    /// Bytes held.
    fn held_bytes(&self) -> usize;
}

/// Adds the answers of `column` over the values of some items to `found`; how many values were ranked. `plan_of` gives
/// the plan for some number of values.
///
/// # Errors
/// Internal errors only.
pub(super) fn find_answers<'a, C: Collected>(
    column: &SelectedColumn<C::Spec>,
    values: &'a C,
    items: &mut [C::Item],
    plan_of: impl FnOnce(u64) -> Arc<Plan>,
    found: &mut Found<C::Value<'a>>,
) -> Result<u64> {
    let ranked = match column.is_distinct() {
        true => values.sort_distinct(items),
        false => items,
    };
    let n = ranked.len() as u64;
    if n == 0 {
        return Ok(0);
    }
    let plan = plan_of(n);
    if !column.is_distinct() {
        values.select(ranked, &plan.ranks);
    }
    for picks in &plan.picks {
        found.add(picks, &|rank| match ranked.get(rank as usize - 1) {
            Some(item) => Ok(values.value(*item)),
            None => Err(internal_datafusion_err!("rank {rank} of {n} values")),
        })?;
    }
    Ok(n)
}

impl<K: Key> Collected for Vec<K> {
    type Spec = KeySpec;
    type Item = K;
    type Value<'a> = KeyBits;
    type Frame = KeyFrame<K>;

    fn append(&mut self, spec: &KeySpec, values: &ArrayRef, kept: Option<&BooleanArray>) -> Result<usize> {
        let dense = match kept {
            None => Arc::clone(values),
            Some(kept) => filter(values.as_ref(), kept)?,
        };
        reserve(self, dense.len())?;
        spec.append_keys(dense.as_ref(), self)?;
        Ok(dense.len())
    }

    fn take_out(
        &mut self,
        runs: impl Iterator<Item = (Option<usize>, usize)>,
        items: &mut [K],
    ) -> Result<Self> {
        let (mut from, mut stay) = (0, 0);
        for (to, length) in runs {
            match to {
                Some(to) if length == 1 => items[to] = self[from],
                Some(to) => items[to..to + length].copy_from_slice(&self[from..from + length]),
                None => {
                    self.copy_within(from..from + length, stay);
                    stay += length;
                }
            }
            from += length;
        }
        self.truncate(stay);
        if stay == 0 {
            *self = Vec::new();
        }
        // A key is its own value.
        Ok(Vec::new())
    }

    fn with_items<T>(&mut self, with: impl FnOnce(&Self, &mut [K]) -> T) -> T {
        with(&Vec::new(), self)
    }

    fn select(&self, items: &mut [K], ranks: &[u64]) {
        select_ranks(items, ranks);
    }

    fn sort_distinct<'a>(&self, items: &'a mut [K]) -> &'a mut [K] {
        sorted_distinct(items)
    }

    fn value(&self, item: K) -> KeyBits {
        item.to_bits()
    }

    fn answers(ask: &Ask, spec: &KeySpec, found: &Found<KeyBits>) -> Result<ArrayRef> {
        ask.values(spec, found)
    }

    fn array(&self, spec: &KeySpec, items: &[K]) -> Result<ArrayRef> {
        spec.values_of(items)
    }

    fn held_bytes(&self) -> usize {
        self.capacity() * size_of::<K>()
    }
}

impl Collected for ByteStrings {
    type Spec = ByteSpec;
    type Item = At;
    type Value<'a> = &'a [u8];
    type Frame = StringFrame;

    fn append(&mut self, spec: &ByteSpec, values: &ArrayRef, kept: Option<&BooleanArray>) -> Result<usize> {
        self.append(spec, values, kept)
    }

    fn take_out(
        &mut self,
        runs: impl Iterator<Item = (Option<usize>, usize)>,
        items: &mut [At],
    ) -> Result<Self> {
        let all = take(self);
        let mut places = all.places();
        for (to, length) in runs {
            for (index, at) in places.by_ref().take(length).enumerate() {
                match to {
                    Some(to) => items[to + index] = at,
                    None => self.push(all.value(at)).map(drop)?,
                }
            }
        }
        drop(places);
        Ok(all)
    }

    fn with_items<T>(&mut self, with: impl FnOnce(&Self, &mut [At]) -> T) -> T {
        with(self, &mut self.places().collect::<Vec<_>>())
    }

    fn select(&self, items: &mut [At], ranks: &[u64]) {
        self.select(items, 0, ranks);
    }

    fn sort_distinct<'a>(&self, items: &'a mut [At]) -> &'a mut [At] {
        self.sort_distinct(items)
    }

    fn value(&self, item: At) -> &[u8] {
        self.value(item)
    }

    fn answers(ask: &Ask, spec: &ByteSpec, found: &Found<&[u8]>) -> Result<ArrayRef> {
        ask.byte_strings(spec, found)
    }

    fn array(&self, spec: &ByteSpec, items: &[At]) -> Result<ArrayRef> {
        let values: Vec<&[u8]> = items.iter().map(|at| self.value(*at)).collect();
        spec.to_array(&values)
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes()
    }
}

#[cfg(test)]
mod tests;
