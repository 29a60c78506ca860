//! The byte strings that accumulators collect, and window frames of byte strings. [`keys`](super::keys) is the same for keys.
//!
//! The tree of a frame holds the positions of distinct values, and compares the values at those positions. A row
//! costs one path from the root, with some twenty comparisons, whether the frame moves or grows. Values that have
//! left the frame stay in memory until they are more than those in it. Then the values in the frame are copied, and
//! the tree is built again.

use std::cmp::Ordering;
use std::mem::{replace, size_of, take};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};

use super::collected::{Collected, Frame, InOrder, Ranking, counted_values, find_answers};
use crate::kernel::byte_strings::{At, ByteStrings};
use crate::kernel::cpu::groups::segments::Plan;
use crate::key::{ByteSpec, kept};
use crate::quantile::{Found, QuantileSpec, TypedAnswerSpec};
use crate::select::ordered::OrderedKeys;

impl Collected for ByteStrings {
    type Spec = ByteSpec;
    type Item = At;
    type Value<'a> = &'a [u8];
    type Frame = StringFrame;

    fn counted(
        args: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
        counted_values(args, filter)
    }

    fn append(&mut self, spec: &ByteSpec, columns: &[ArrayRef]) -> Result<usize> {
        self.append(spec, &columns[0], None)
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

    fn find<'a>(
        &'a self,
        column: &TypedAnswerSpec<ByteSpec>,
        items: &mut [At],
        plan_of: impl FnOnce(u64) -> Arc<Plan>,
        found: &mut Found<&'a [u8]>,
    ) -> Result<u64> {
        let ranking = Ranking {
            select: &|items, ranks| self.select(items, 0, ranks),
            sort_distinct: &|items| self.sort_distinct(items).len(),
            value: &|at| self.value(at),
        };
        find_answers(column, items, &ranking, plan_of, found)
    }

    fn add_items(&mut self, other: &Self, items: &[At]) -> Result<()> {
        items
            .iter()
            .try_for_each(|at| self.push(other.value(*at)).map(drop))
    }

    fn count(&self) -> usize {
        self.len() as usize
    }

    fn answers(quantile_spec: &QuantileSpec, spec: &ByteSpec, found: &Found<&[u8]>) -> Result<ArrayRef> {
        quantile_spec.byte_strings(spec, found)
    }

    fn columns(&self, spec: &ByteSpec, items: &[At]) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.array(spec, items)?])
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes()
    }
}

impl InOrder for ByteStrings {
    fn sort(&self, items: &mut [At]) {
        self.sort(items);
    }

    fn compare(&self, item: At, others: &Self, other: At) -> Ordering {
        self.value(item).cmp(others.value(other))
    }

    fn adopt(&mut self, others: &Self, other: At) -> Result<At> {
        self.push(others.value(other))
    }

    fn sort_distinct<'a>(&self, items: &'a mut [At]) -> &'a mut [At] {
        self.sort_distinct(items)
    }

    fn array(&self, spec: &ByteSpec, items: &[At]) -> Result<ArrayRef> {
        let values: Vec<&[u8]> = items.iter().map(|at| self.value(*at)).collect();
        spec.to_array(&values)
    }
}

/// Number of values outside the frame that are held at least, before those in it are copied.
const LEAST_REMOVED: u64 = 1024;

/// A window frame of byte strings.
#[derive(Debug)]
pub(super) struct StringFrame {
    /// The distinct values of the frame, and some that have left it.
    values: ByteStrings,
    tree: OrderedKeys<At>,
    /// Number of distinct values in the tree.
    distinct: u64,
    is_distinct: bool,
}

impl StringFrame {
    /// Adds `copies` of a value to the tree. Returns whether the value is new there.
    fn insert_value(&mut self, value: &[u8], copies: u64) -> Result<bool> {
        let at = self.values.push(value)?;
        let values = &self.values;
        let order = |other: &At| values.value(*other).cmp(value);
        self.tree.insert_by(at, copies, &order)
    }

    /// A frame without values.
    pub(super) fn empty(column: &TypedAnswerSpec<ByteSpec>) -> Self {
        Self {
            values: ByteStrings::default(),
            tree: OrderedKeys::new(column.is_distinct()),
            distinct: 0,
            is_distinct: column.is_distinct(),
        }
    }

    /// Adds copies of a value to the frame.
    ///
    /// # Errors
    /// `ResourcesExhausted` past 2^64 - 1 copies of all values.
    pub(super) fn add(&mut self, value: &[u8], copies: u64) -> Result<()> {
        self.distinct += u64::from(self.insert_value(value, copies)?);
        self.compact()
    }

    /// Removes copies of a value from the frame.
    ///
    /// # Errors
    /// An internal error if there are fewer.
    pub(super) fn take(&mut self, value: &[u8], copies: u64) -> Result<()> {
        let values = &self.values;
        let is_last = self
            .tree
            .remove_by(copies, &|other| values.value(*other).cmp(value))?;
        self.distinct -= u64::from(is_last);
        self.compact()
    }

    /// The answer for a row that has this frame.
    ///
    /// # Errors
    /// Those of building an array.
    pub(super) fn row(&self, column: &TypedAnswerSpec<ByteSpec>) -> Result<ScalarValue> {
        let n = self.tree.len();
        let value_at = |rank| match self.tree.select(rank) {
            Some(at) => Ok(self.values.value(at)),
            None => Err(internal_datafusion_err!("rank {rank} of {n} values in a frame")),
        };
        let answers = column
            .quantile_spec()
            .byte_string_answers(column.spec(), n, &value_at)?;
        column.row(answers, n)
    }

    /// Number of values, with their copies.
    pub(super) fn len(&self) -> u64 {
        self.tree.len()
    }

    /// Each distinct value with its number of copies, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.tree
            .iter()
            .map(|(at, copies)| (self.values.value(at), copies))
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.values.held_bytes() + self.tree.size()
    }

    /// Drops the values that have left the frame, and second copies of values, once they are more than the distinct values in it.
    fn compact(&mut self) -> Result<()> {
        if self.values.len() <= 2 * self.distinct + LEAST_REMOVED {
            return Ok(());
        }
        let (all, tree) = (take(&mut self.values), OrderedKeys::new(self.is_distinct));
        for (at, copies) in replace(&mut self.tree, tree).iter() {
            self.insert_value(all.value(at), copies)?;
        }
        Ok(())
    }
}

impl Frame<ByteStrings> for StringFrame {
    fn of(column: &TypedAnswerSpec<ByteSpec>, values: ByteStrings) -> Result<Self> {
        let mut frame = Self::empty(column);
        let mut places = values.places();
        places.try_for_each(|at| frame.add(values.value(at), 1))?;
        Ok(frame)
    }

    fn insert(&mut self, column: &TypedAnswerSpec<ByteSpec>, args: &[ArrayRef]) -> Result<()> {
        let kept = kept(args[0].as_ref(), None)?;
        let kept = kept.as_ref().map(BooleanArray::values);
        column.spec().each(&args[0], kept, |value| self.add(value, 1))
    }

    fn remove(&mut self, column: &TypedAnswerSpec<ByteSpec>, args: &[ArrayRef]) -> Result<()> {
        let kept = kept(args[0].as_ref(), None)?;
        let kept = kept.as_ref().map(BooleanArray::values);
        column.spec().each(&args[0], kept, |value| self.take(value, 1))
    }

    fn answer(&mut self, column: &TypedAnswerSpec<ByteSpec>) -> Result<ScalarValue> {
        self.row(column)
    }

    fn columns(&self, spec: &ByteSpec) -> Result<Vec<ArrayRef>> {
        let copies = |(at, copies)| std::iter::repeat_n(at, copies as usize);
        let places: Vec<At> = self.tree.iter().flat_map(copies).collect();
        Collected::columns(&self.values, spec, &places)
    }

    fn size(&self) -> usize {
        self.held_bytes()
    }
}

#[cfg(test)]
mod tests;
