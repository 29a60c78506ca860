//! The accumulator of one group: collects values, selects at the end.
//!
//! It serves whatever no operator of this crate takes over: windows, `DISTINCT`, and aggregates of sessions with a
//! foreign planner. Cost: the [values](super::collected), one selection (linear in them, logarithmic in the number of
//! quantiles). Window frames have their own structure, in [`frame`](super::frame).

use std::mem::{size_of, take as taken};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, LargeListArray, ListArray, UInt64Array};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, internal_datafusion_err, internal_err};
use datafusion::logical_expr::Accumulator;

use super::collected::{Collected, find_answers};
use super::frame::Frame;
use crate::kernel::cpu::groups::runs::with_key;
use crate::kernel::cpu::groups::segments::Plan;
use crate::kernel::values::Values;
use crate::key::{ByteSpec, KeySpec, Order, PrefixKey, Width, kept};
use crate::select::quantile::{Ask, Found};

/// What is asked of one column, and how its keys, or the bytes of its values, become the answer.
#[derive(Debug, Clone)]
pub(crate) struct SelectedColumn<S = KeySpec> {
    spec: S,
    ask: Ask,
    is_list: bool,
    is_distinct: bool,
}

/// A [`SelectedColumn`] of either kind.
#[derive(Debug, Clone)]
pub(crate) enum Selected {
    Keys(SelectedColumn),
    Bytes(SelectedColumn<ByteSpec>),
}

impl Selected {
    /// # Errors
    /// A planning error if values of this type have no order, or none between them where the method needs it.
    pub(crate) fn try_new(data_type: &DataType, ask: Ask, is_list: bool, is_distinct: bool) -> Result<Self> {
        ask.method.result_type(data_type)?;
        Ok(match Order::try_new(data_type)? {
            Order::Keys(_) => Self::Keys(SelectedColumn {
                spec: ask.method.key_spec(data_type)?,
                ask,
                is_list,
                is_distinct,
            }),
            Order::Bytes(spec) => Self::Bytes(SelectedColumn {
                spec,
                ask,
                is_list,
                is_distinct,
            }),
        })
    }

    /// The keys of the values, or the widest that their prefixes have.
    pub(crate) fn spec(&self) -> KeySpec {
        match self {
            Selected::Keys(column) => column.spec.clone(),
            Selected::Bytes(_) => u128::spec(),
        }
    }

    /// How values become bytes, where they have no keys.
    pub(crate) fn bytes(&self) -> Option<&ByteSpec> {
        match self {
            Selected::Keys(_) => None,
            Selected::Bytes(column) => Some(&column.spec),
        }
    }

    /// The same over distinct values.
    pub(crate) fn distinct(self) -> Self {
        match self {
            Selected::Keys(column) => Selected::Keys(column.distinct()),
            Selected::Bytes(column) => Selected::Bytes(column.distinct()),
        }
    }

    pub(crate) fn is_distinct(&self) -> bool {
        match self {
            Selected::Keys(column) => column.is_distinct,
            Selected::Bytes(column) => column.is_distinct,
        }
    }

    pub(crate) fn ask(&self) -> &Ask {
        match self {
            Selected::Keys(column) => &column.ask,
            Selected::Bytes(column) => &column.ask,
        }
    }

    pub(crate) fn is_list(&self) -> bool {
        match self {
            Selected::Keys(column) => column.is_list,
            Selected::Bytes(column) => column.is_list,
        }
    }
}

/// What is known of values besides their order.
pub(crate) trait Typed {
    /// Their type.
    fn data_type(&self) -> &DataType;
}

impl Typed for KeySpec {
    fn data_type(&self) -> &DataType {
        self.data_type()
    }
}

impl Typed for ByteSpec {
    fn data_type(&self) -> &DataType {
        self.data_type()
    }
}

impl<S: Typed> SelectedColumn<S> {
    pub(crate) fn spec(&self) -> &S {
        &self.spec
    }

    pub(crate) fn ask(&self) -> &Ask {
        &self.ask
    }

    /// The same over distinct values.
    pub(crate) fn distinct(mut self) -> Self {
        self.is_distinct = true;
        self
    }

    pub(crate) fn is_distinct(&self) -> bool {
        self.is_distinct
    }

    pub(crate) fn is_list(&self) -> bool {
        self.is_list
    }

    /// Type of the answer to one quantile.
    pub(super) fn answer_type(&self) -> Result<DataType> {
        self.ask.method.result_type(self.spec.data_type())
    }

    /// Type of the answer.
    pub(super) fn result_type(&self) -> Result<DataType> {
        let one = self.answer_type()?;
        Ok(match self.is_list {
            true => DataType::new_list(one, true),
            false => one,
        })
    }

    /// The answers of one group, as the value of its row: NULL if it has no values.
    pub(crate) fn row(&self, answers: ArrayRef, n: u64) -> Result<ScalarValue> {
        let one = answers.data_type();
        match self.is_list {
            true if n == 0 => ScalarValue::try_from(&DataType::new_list(one.clone(), true)),
            false if n == 0 => ScalarValue::try_from(one),
            true => Ok(SingleRowListArrayBuilder::new(answers)
                .with_nullable(true)
                .build_list_scalar()),
            false => ScalarValue::try_from_array(&answers, 0),
        }
    }

    /// One row for each group, from the answers of the groups that have values.
    pub(crate) fn group_rows(&self, answers: ArrayRef, lengths: &[u64]) -> Result<ArrayRef> {
        let valid = NullBuffer::from_iter(lengths.iter().map(|&length| length > 0));
        if self.is_list() {
            let quantiles = self.ask.quantiles.len();
            let lengths = lengths
                .iter()
                .map(|&length| if length > 0 { quantiles } else { 0 });
            let item = Arc::new(Field::new_list_field(answers.data_type().clone(), true));
            let offsets = OffsetBuffer::from_lengths(lengths);
            let list = ListArray::try_new(item, offsets, answers, Some(valid))?;
            return Ok(Arc::new(list));
        }
        if valid.null_count() == 0 {
            return Ok(answers);
        }
        let mut next = 0;
        let indices = valid.iter().map(|has_answer| {
            has_answer.then(|| {
                next += 1;
                next - 1_u64
            })
        });
        let indices = indices.collect::<UInt64Array>();
        Ok(take(answers.as_ref(), &indices, None)?)
    }

    /// The state of one group.
    pub(super) fn state_of(&self, values: ArrayRef) -> Result<Vec<ScalarValue>> {
        let list = LargeListArray::try_new(
            state_item(self.spec.data_type()),
            OffsetBuffer::from_lengths([values.len()]),
            values,
            None,
        )?;
        Ok(vec![ScalarValue::LargeList(Arc::new(list))])
    }
}

/// Type of an accumulator's state: the values themselves.
pub(super) fn state_type(data_type: &DataType) -> DataType {
    DataType::LargeList(state_item(data_type))
}

pub(super) fn state_item(data_type: &DataType) -> FieldRef {
    Arc::new(Field::new_list_field(data_type.clone(), true))
}

/// The values in a state column: one list for each row.
pub(super) fn state_rows(states: &[ArrayRef]) -> Result<&LargeListArray> {
    states
        .first()
        .and_then(|state| state.as_list_opt::<i64>())
        .ok_or_else(|| internal_datafusion_err!("a state of exact_quantiles is one column of large lists"))
}

/// Makes room for so many more, with an error instead of an abort if memory ends.
pub(super) fn reserve<T>(buffer: &mut Vec<T>, count: usize) -> Result<()> {
    buffer.try_reserve(count).map_err(|error| {
        exec_datafusion_err!(
            "exact_quantiles cannot buffer {} more bytes: {error}",
            count * size_of::<T>()
        )
    })
}

/// The accumulator of one group, also of a window frame.
pub(super) fn accumulator(selected: Selected) -> Box<dyn Accumulator> {
    match selected {
        Selected::Bytes(column) => Box::new(QuantilesAccumulator::<Values>::new(column)),
        Selected::Keys(column) => with_key!(column.spec().width(), K => {
            Box::new(QuantilesAccumulator::<Vec<K>>::new(column))
        }),
    }
}

/// Values of one group, in any order; once they come or go after an answer, in a [`Frame`].
#[derive(Debug)]
pub(super) struct QuantilesAccumulator<C: Collected> {
    column: SelectedColumn<C::Spec>,
    /// All values, unless there is a frame.
    values: C,
    frame: Option<Box<C::Frame>>,
    /// Until something comes or goes.
    answer: Option<ScalarValue>,
}

impl<C: Collected> QuantilesAccumulator<C> {
    pub(super) fn new(column: SelectedColumn<C::Spec>) -> Self {
        Self {
            column,
            values: C::default(),
            frame: None,
            answer: None,
        }
    }

    fn add(&mut self, values: &ArrayRef) -> Result<()> {
        if self.answer.take().is_some() {
            // Whoever asks between values will ask again: a selection for each answer would not do.
            self.make_frame()?;
        }
        match &mut self.frame {
            Some(frame) => frame.insert(&self.column, values),
            None => {
                let kept = kept(values.as_ref(), None)?;
                let added = self.values.append(self.column.spec(), values, kept.as_ref());
                added.map(drop)
            }
        }
    }

    fn make_frame(&mut self) -> Result<()> {
        if self.frame.is_none() {
            let frame = C::Frame::of(&self.column, taken(&mut self.values))?;
            self.frame = Some(Box::new(frame));
        }
        Ok(())
    }

    fn select(&mut self) -> Result<ScalarValue> {
        let column = &self.column;
        self.values.with_items(|values, items| {
            let mut found = Found::default();
            let plan_of = |n| Arc::new(Plan::new(std::slice::from_ref(column.ask()), n));
            let n = find_answers(column, values, items, plan_of, &mut found)?;
            column.row(C::answers(column.ask(), column.spec(), &found)?, n)
        })
    }
}

impl<C: Collected> Accumulator for QuantilesAccumulator<C> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(&values[0])
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.answer = None;
        self.make_frame()?;
        match &mut self.frame {
            Some(frame) => frame.remove(&self.column, &values[0]),
            None => internal_err!("a window frame without values"),
        }
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if let Some(answer) = &self.answer {
            return Ok(answer.clone());
        }
        let answer = match &mut self.frame {
            Some(frame) => frame.answer(&self.column)?,
            None => self.select()?,
        };
        self.answer = Some(answer.clone());
        Ok(answer)
    }

    fn size(&self) -> usize {
        let frame = self.frame.as_ref().map_or(0, |frame| frame.size());
        size_of::<Self>() + self.values.held_bytes() + frame
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let spec = self.column.spec();
        let values = match &self.frame {
            Some(frame) => frame.array(spec)?,
            None => {
                let array = |values: &C, items: &mut [C::Item]| values.array(spec, items);
                self.values.with_items(array)?
            }
        };
        self.column.state_of(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let mut lists = state_rows(states)?.iter().flatten();
        lists.try_for_each(|list| self.add(&list))
    }
}
