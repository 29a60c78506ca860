//! Window frames over byte strings: what [`frame`](super::frame) does with keys.
//!
//! The tree holds the places of distinct values, and compares what lies there: a row costs a way from the root with some
//! twenty comparisons, whether its frame moves or grows. Values that have left stay in memory until they are more than the
//! others; then those are copied, and the tree is made anew.

use std::mem::{size_of, take};

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};

use super::frame::{Moving, SlidingAccumulator};
use crate::kernel::values::{At, Values};
use crate::key::{ByteSpec, kept};
use crate::quantile::SelectedColumn;
use crate::quantile::byte_values::Picked;
use crate::select::ordered::OrderedKeys;

/// Values that have left and are kept at least, before the others are copied.
const LEFT: u64 = 1024;

/// The values of one frame, in order.
#[derive(Debug)]
pub(super) struct ValuesFrame {
    /// Those of the frame once each, and some that have left it.
    values: Values,
    tree: OrderedKeys<At>,
    /// Distinct values in the tree.
    distinct: u64,
    is_distinct: bool,
    /// Until something comes or goes.
    answer: Option<ScalarValue>,
}

impl ValuesFrame {
    fn new(column: &SelectedColumn<ByteSpec>) -> Self {
        Self {
            values: Values::default(),
            tree: OrderedKeys::new(column.is_distinct()),
            distinct: 0,
            is_distinct: column.is_distinct(),
            answer: None,
        }
    }

    /// A frame of some values.
    pub(super) fn of(column: &SelectedColumn<ByteSpec>, values: Values) -> Result<Self> {
        let mut frame = Self::new(column);
        let mut places = values.places();
        places.try_for_each(|at| frame.insert_value(values.value(at)))?;
        Ok(frame)
    }

    fn insert_value(&mut self, value: &[u8]) -> Result<()> {
        let at = self.values.push(value)?;
        let values = &self.values;
        let is_new = self
            .tree
            .insert_by(at, 1, &|other| values.value(*other).cmp(value))?;
        self.distinct += u64::from(is_new);
        self.compact()
    }

    /// Adds what is not NULL.
    ///
    /// # Errors
    /// Those of [`OrderedKeys::insert`].
    pub(super) fn insert(&mut self, column: &SelectedColumn<ByteSpec>, array: &ArrayRef) -> Result<()> {
        self.answer = None;
        let kept = kept(array.as_ref(), None)?;
        let kept = kept.as_ref().map(BooleanArray::values);
        column.spec().each(array, kept, |value| self.insert_value(value))
    }

    /// Takes out what is not NULL.
    ///
    /// # Errors
    /// An internal error if it is not there.
    fn remove(&mut self, column: &SelectedColumn<ByteSpec>, array: &ArrayRef) -> Result<()> {
        self.answer = None;
        let kept = kept(array.as_ref(), None)?;
        let kept = kept.as_ref().map(BooleanArray::values);
        column.spec().each(array, kept, |value| {
            let values = &self.values;
            let is_last = self.tree.remove_by(&|other| values.value(*other).cmp(value))?;
            self.distinct -= u64::from(is_last);
            self.compact()
        })
    }

    /// Drops the values that have left, and further copies, once they are more than the others.
    fn compact(&mut self) -> Result<()> {
        if self.values.len() <= 2 * self.distinct + LEFT {
            return Ok(());
        }
        let (all, tree) = (take(&mut self.values), OrderedKeys::new(self.is_distinct));
        for (at, copies) in std::mem::replace(&mut self.tree, tree).iter() {
            let value = all.value(at);
            let at = self.values.push(value)?;
            let values = &self.values;
            let place = |other: &At| values.value(*other).cmp(value);
            self.tree.insert_by(at, copies, &place)?;
        }
        Ok(())
    }

    /// The value of a row with this frame.
    ///
    /// # Errors
    /// Those of [`ByteSpec::to_array`].
    pub(super) fn evaluate(&mut self, column: &SelectedColumn<ByteSpec>) -> Result<ScalarValue> {
        if let Some(answer) = &self.answer {
            return Ok(answer.clone());
        }
        let n = self.tree.len();
        let mut picked = Picked::new(column.ask().method);
        if n > 0 {
            picked.add(column.ask(), n, &|rank| {
                let at = self.tree.select(rank);
                let at =
                    at.ok_or_else(|| internal_datafusion_err!("rank {rank} of {n} values in a frame"))?;
                Ok(self.values.value(at))
            })?;
        }
        let answer = column.picked_row(&picked, n)?;
        self.answer = Some(answer.clone());
        Ok(answer)
    }

    /// All values, in no order.
    ///
    /// # Errors
    /// Those of [`ByteSpec::to_array`].
    pub(super) fn array(&self, column: &SelectedColumn<ByteSpec>) -> Result<ArrayRef> {
        let copied = |(at, copies)| std::iter::repeat_n(at, copies as usize);
        column.array(&self.values, self.tree.iter().flat_map(copied))
    }

    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.values.held_bytes() + self.tree.size()
    }
}

impl Moving<ByteSpec> for ValuesFrame {
    fn insert(&mut self, column: &SelectedColumn<ByteSpec>, values: &ArrayRef) -> Result<()> {
        self.insert(column, values)
    }

    fn remove(&mut self, column: &SelectedColumn<ByteSpec>, values: &ArrayRef) -> Result<()> {
        self.remove(column, values)
    }

    fn evaluate(&mut self, column: &SelectedColumn<ByteSpec>) -> Result<ScalarValue> {
        self.evaluate(column)
    }

    fn state(&self, column: &SelectedColumn<ByteSpec>) -> Result<Vec<ScalarValue>> {
        column.state_of(self.array(column)?)
    }

    fn size(&self) -> usize {
        self.size()
    }
}

/// A frame of byte strings that moves.
pub(super) type SlidingValuesAccumulator = SlidingAccumulator<ByteSpec, ValuesFrame>;

impl SlidingValuesAccumulator {
    pub(super) fn new(column: SelectedColumn<ByteSpec>) -> Self {
        let frame = ValuesFrame::new(&column);
        Self::over(column, frame)
    }
}
