//! The accumulator of one group. It collects values and selects the answer at the end.
//!
//! It serves calls that no operator of this crate takes over: windows, aggregations that stages of a cluster cannot
//! answer, and sessions with another query planner. Cost: memory for the [values](super::collected), and one
//! selection, whose time is linear in their number and logarithmic in the number of quantiles. Window frames have a
//! structure of their own, [`Frame`].

use std::mem::{size_of, take};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, LargeListArray};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, internal_datafusion_err, internal_err};
use datafusion::logical_expr::Accumulator;

use super::collected::{Collected, Frame, find_answers};
use crate::kernel::byte_strings::ByteStrings;
use crate::kernel::cpu::groups::segments::Plan;
use crate::key::{Width, kept, with_key};
use crate::quantile::{AnswerSpec, Found, TypedAnswerSpec};

/// The lists of values in a state column, one list for each row.
pub(super) fn state_rows(states: &[ArrayRef]) -> Result<&LargeListArray> {
    states
        .first()
        .and_then(|state| state.as_list_opt::<i64>())
        .ok_or_else(|| internal_datafusion_err!("a state of exact_quantiles is one column of large lists"))
}

/// Makes room for `count` more items in `buffer`.
///
/// # Errors
/// An execution error where memory ends, instead of an abort.
pub(super) fn reserve<T>(buffer: &mut Vec<T>, count: usize) -> Result<()> {
    buffer.try_reserve(count).map_err(|error| {
        exec_datafusion_err!(
            "exact_quantiles cannot buffer {} more bytes: {error}",
            count * size_of::<T>()
        )
    })
}

/// The accumulator of one group or one window frame.
pub(super) fn accumulator(answer_spec: AnswerSpec) -> Box<dyn Accumulator> {
    match answer_spec {
        AnswerSpec::Bytes(column) => Box::new(QuantilesAccumulator::<ByteStrings>::new(column)),
        AnswerSpec::Keys(column) => with_key!(column.spec().width(), K => {
            Box::new(QuantilesAccumulator::<Vec<K>>::new(column))
        }),
    }
}

/// Collects the values of one group, in any order. Once values come or go after an answer, they move to a [`Frame`].
#[derive(Debug)]
pub(super) struct QuantilesAccumulator<C: Collected> {
    column: TypedAnswerSpec<C::Spec>,
    /// All values; none once there is a frame.
    values: C,
    frame: Option<Box<C::Frame>>,
    /// The last answer; `None` after values have come or gone.
    answer: Option<ScalarValue>,
}

impl<C: Collected> QuantilesAccumulator<C> {
    pub(super) fn new(column: TypedAnswerSpec<C::Spec>) -> Self {
        Self {
            column,
            values: C::default(),
            frame: None,
            answer: None,
        }
    }

    /// Adds the values that are not NULL.
    fn add(&mut self, values: &ArrayRef) -> Result<()> {
        if self.answer.take().is_some() {
            // An answer between values means a window: more answers follow, and one selection for each would cost too much.
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

    /// Moves the values to a frame, if there is none yet.
    fn make_frame(&mut self) -> Result<()> {
        if self.frame.is_none() {
            let frame = C::Frame::of(&self.column, take(&mut self.values))?;
            self.frame = Some(Box::new(frame));
        }
        Ok(())
    }

    /// The answer over all values.
    fn select(&mut self) -> Result<ScalarValue> {
        let column = &self.column;
        self.values.with_items(|values, items| {
            let mut found = Found::default();
            let plan_of = |n| Arc::new(Plan::new(std::slice::from_ref(column.quantile_spec()), n));
            let n = find_answers(column, values, items, plan_of, &mut found)?;
            column.row(C::answers(column.quantile_spec(), column.spec(), &found)?, n)
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
