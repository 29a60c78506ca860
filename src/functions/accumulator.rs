//! Accumulators of one group: buffer the keys, select at the end.
//!
//! These serve whatever no operator of this crate takes over: windows, `DISTINCT`, and aggregates of sessions
//! with a foreign planner. Cost: 16 bytes a value, one selection (linear in the values, logarithmic in the number
//! of quantiles). Window frames have their own structure, in [`frame`](super::frame).

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, LargeListArray, ListArray, UInt64Array};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, internal_datafusion_err};
use datafusion::logical_expr::Accumulator;

use super::frame::Frame;
use crate::kernel::cpu::groups::segments::{select_ranks, sorted_distinct};
use crate::key::{ByteSpec, KeyBits, KeySpec, Order, PrefixKey};
use crate::select::quantile::Ask;

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

impl SelectedColumn {
    /// Answers over the keys of one group: one for each quantile. Reorders the keys, drops duplicates if asked to.
    pub(super) fn answers(&self, keys: &mut [KeyBits]) -> Result<ArrayRef> {
        let keys = match self.is_distinct {
            true => sorted_distinct(keys),
            false => {
                select_ranks(keys, &self.ask.ranks(keys.len() as u64));
                keys
            }
        };
        let key_at = |rank: u64| {
            let key = keys.get(rank as usize - 1).copied();
            key.ok_or_else(|| internal_datafusion_err!("rank {rank} of {} values", keys.len()))
        };
        self.ask.answers(&self.spec, keys.len() as u64, &key_at)
    }

    fn evaluate(&self, keys: &mut [KeyBits]) -> Result<ScalarValue> {
        let n = keys.len() as u64;
        self.row(self.answers(keys)?, n)
    }

    pub(super) fn state(&self, keys: &[KeyBits]) -> Result<Vec<ScalarValue>> {
        self.state_of(self.spec.to_array(keys)?)
    }
}

/// Keys of the values in a state column: one list for each row.
pub(super) fn state_rows(states: &[ArrayRef]) -> Result<&LargeListArray> {
    states
        .first()
        .and_then(|state| state.as_list_opt::<i64>())
        .ok_or_else(|| internal_datafusion_err!("a state of exact_quantiles is one column of large lists"))
}

/// Appends, with an error instead of an abort if memory ends.
pub(super) fn extend<T: Copy>(buffer: &mut Vec<T>, values: &[T]) -> Result<()> {
    reserve(buffer, values.len())?;
    buffer.extend_from_slice(values);
    Ok(())
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

/// Keys of one group, in any order; of a window frame that grows, in order from the second answer on.
#[derive(Debug)]
pub(super) struct QuantilesAccumulator {
    column: SelectedColumn,
    keys: Vec<KeyBits>,
    /// That of `keys`, until more come.
    answer: Option<ScalarValue>,
    /// All keys, once there were values after an answer.
    frame: Option<Box<Frame>>,
}

impl QuantilesAccumulator {
    pub(super) fn new(column: SelectedColumn) -> Self {
        Self {
            column,
            keys: Vec::new(),
            answer: None,
            frame: None,
        }
    }

    /// Whoever asks between values will ask again: from here on a selection for each answer would not do.
    fn grow(&mut self) -> Result<()> {
        if self.answer.take().is_some() {
            let mut frame = Frame::try_new(&self.column)?;
            std::mem::take(&mut self.keys)
                .into_iter()
                .try_for_each(|key| frame.insert_key(key))?;
            self.frame = Some(Box::new(frame));
        }
        Ok(())
    }

    fn add(&mut self, values: &dyn Array) -> Result<()> {
        self.grow()?;
        match &mut self.frame {
            Some(frame) => frame.insert(&self.column, values),
            None => extend(&mut self.keys, &self.column.spec.keys(values)?),
        }
    }
}

impl Accumulator for QuantilesAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values[0].as_ref())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if let Some(frame) = &mut self.frame {
            return frame.evaluate(&self.column);
        }
        if let Some(answer) = &self.answer {
            return Ok(answer.clone());
        }
        let answer = self.column.evaluate(&mut self.keys)?;
        self.answer = Some(answer.clone());
        Ok(answer)
    }

    fn size(&self) -> usize {
        let frame = self.frame.as_ref().map_or(0, |frame| frame.size());
        size_of::<Self>() + self.keys.capacity() * size_of::<KeyBits>() + frame
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        match &self.frame {
            Some(frame) => self.column.state(&frame.keys()),
            None => self.column.state(&self.keys),
        }
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        state_rows(states)?
            .iter()
            .flatten()
            .try_for_each(|list| self.add(list.as_ref()))
    }
}
