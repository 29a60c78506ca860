//! Accumulators of one group: buffer the keys, select at the end.
//!
//! These serve whatever no operator of this crate takes over: windows, `DISTINCT`, and aggregates of sessions
//! with a foreign planner. Cost: 16 bytes a value, one selection (linear in the values, logarithmic in the number
//! of quantiles). Window frames have their own structure, in [`frame`](super::frame).

use std::mem::size_of;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, LargeListArray};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, internal_datafusion_err};
use datafusion::logical_expr::Accumulator;

use super::frame::Frame;
use crate::kernel::cpu::groups::segments::{select_ranks, sorted_distinct};
use crate::key::KeyBits;
use crate::quantile::SelectedColumn;

impl SelectedColumn {
    /// Answers over the keys of one group: one for each quantile. Reorders the keys, drops duplicates if asked to.
    pub(super) fn answers(&self, keys: &mut [KeyBits]) -> Result<ArrayRef> {
        let keys = match self.is_distinct() {
            true => sorted_distinct(keys),
            false => {
                select_ranks(keys, &self.ask().ranks(keys.len() as u64));
                keys
            }
        };
        let key_at = |rank: u64| {
            let key = keys.get(rank as usize - 1).copied();
            key.ok_or_else(|| internal_datafusion_err!("rank {rank} of {} values", keys.len()))
        };
        self.ask().answers(self.spec(), keys.len() as u64, &key_at)
    }

    fn evaluate(&self, keys: &mut [KeyBits]) -> Result<ScalarValue> {
        let n = keys.len() as u64;
        self.row(self.answers(keys)?, n)
    }

    pub(super) fn state(&self, keys: &[KeyBits]) -> Result<Vec<ScalarValue>> {
        self.state_of(self.spec().to_array(keys)?)
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
            None => extend(&mut self.keys, &self.column.spec().keys(values)?),
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
