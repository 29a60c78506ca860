//! The accumulator of one group. It collects values and selects the answer at the end.
//!
//! It serves calls that no operator of this crate takes over: windows, aggregations that stages of a cluster cannot
//! answer, and sessions with another query planner. Cost: memory for the [values](super::collected), and one
//! selection, whose time is linear in their number and logarithmic in the number of quantiles. Window frames have a
//! structure of their own, [`Frame`].

use std::mem::{size_of, take};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err};
use datafusion::logical_expr::Accumulator;

use super::collected::{Collected, Frame, Merging};
use super::states::{state_column, state_lists};
use super::weighted::{WeightedKeys, WeightedStrings};
use crate::kernel::byte_strings::ByteStrings;
use crate::kernel::cpu::groups::segments::Plan;
use crate::key::{Width, with_key};
use crate::quantile::{AnswerSpec, Found, TypedAnswerSpec};

/// The accumulator of one group or one window frame. `is_weighted`: the last argument has the weights of the values.
pub(super) fn accumulator(answer_spec: AnswerSpec, is_weighted: bool) -> Box<dyn Accumulator> {
    match (answer_spec, is_weighted) {
        (AnswerSpec::Bytes(column), false) => Box::new(QuantilesAccumulator::<ByteStrings>::new(column)),
        (AnswerSpec::Bytes(column), true) => Box::new(QuantilesAccumulator::<WeightedStrings>::new(column)),
        (AnswerSpec::Keys(column), false) => with_key!(column.spec().width(), K => {
            Box::new(QuantilesAccumulator::<Vec<K>>::new(column))
        }),
        (AnswerSpec::Keys(column), true) => with_key!(column.spec().width(), K => {
            Box::new(QuantilesAccumulator::<WeightedKeys<K>>::new(column))
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
    merging: Merging,
}

impl<C: Collected> QuantilesAccumulator<C> {
    pub(super) fn new(column: TypedAnswerSpec<C::Spec>) -> Self {
        Self {
            column,
            values: C::default(),
            frame: None,
            answer: None,
            merging: Merging::of::<C>(),
        }
    }

    /// Adds the rows that count, of arguments or of the columns of a state.
    fn add(&mut self, args: &[ArrayRef]) -> Result<()> {
        if self.answer.take().is_some() {
            // An answer between values means a window: more answers follow, and one selection for each would cost too much.
            self.make_frame()?;
        }
        match &mut self.frame {
            Some(frame) => frame.insert(&self.column, args),
            None => {
                let (columns, _) = C::counted(args, None)?;
                self.values.append(self.column.spec(), &columns)?;
                self.merge_equal()
            }
        }
    }

    /// Brings equal values together, once there are many items.
    fn merge_equal(&mut self) -> Result<()> {
        let before = self.values.count();
        if !self.merging.is_due(before) {
            return Ok(());
        }
        let merged = self.values.with_items(|values, items| {
            let after = values.merge_equal(items)?;
            let mut merged = C::default();
            merged.add_items(values, &items[..after])?;
            Ok::<_, DataFusionError>(merged)
        })?;
        self.values = merged;
        self.merging.done(before, self.values.count());
        Ok(())
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
            let n = values.find(column, items, plan_of, &mut found)?;
            column.row(C::answers(column.quantile_spec(), column.spec(), &found)?, n)
        })
    }
}

impl<C: Collected> Accumulator for QuantilesAccumulator<C> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.answer = None;
        self.make_frame()?;
        match &mut self.frame {
            Some(frame) => frame.remove(&self.column, values),
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
        let columns = match &self.frame {
            Some(frame) => frame.columns(spec)?,
            None => {
                let merges = self.merging.is_useful();
                self.values.with_items(|values, items| {
                    let count = if merges {
                        values.merge_equal(items)?
                    } else {
                        items.len()
                    };
                    values.columns(spec, &items[..count])
                })?
            }
        };
        let state = |column: ArrayRef| {
            let length = column.len();
            ScalarValue::try_from_array(&state_column(column, vec![length])?, 0)
        };
        columns.into_iter().map(state).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let lists = state_lists(states)?;
        for row in 0..lists[0].len() {
            if lists.iter().all(|list| list.is_valid(row)) {
                let columns: Vec<ArrayRef> = lists.iter().map(|list| list.value(row)).collect();
                self.merging.expect(columns[0].len());
                self.add(&columns)?;
            }
        }
        Ok(())
    }
}
