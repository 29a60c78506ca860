//! What a function of this module asks of the values of a group, and its accumulators.

use std::fmt::Debug;
use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, LargeListArray, UInt64Array};
use datafusion::arrow::datatypes::UInt64Type;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err};
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

use super::held::{Held, HeldState};
use super::sorted::Sorted;
use crate::functions::collected::InOrder;
use crate::functions::groups::{AskedOfGroups, CollectingGroups};
use crate::functions::states::state_column;
use crate::key::dense;

/// What a function asks of the values of a group, in order.
pub(super) trait Asked<C: InOrder>: Debug + Send + Sync + 'static {
    /// The answers of groups, one after the other.
    type Answers: Default;

    /// Adds the answer of a group.
    ///
    /// # Errors
    /// An execution error for values that have no answer.
    fn answer(&self, spec: &C::Spec, sorted: &Sorted<'_, C>, answers: &mut Self::Answers) -> Result<()>;

    /// The answers as an array, one row for each group. `values` tells the values of all items.
    ///
    /// # Errors
    /// Those of making arrays.
    fn finish(&self, spec: &C::Spec, values: &C, answers: Self::Answers) -> Result<ArrayRef>;
}

/// A question with the column that it is about.
#[derive(Debug)]
pub(super) struct Question<C: InOrder, A> {
    pub(super) spec: C::Spec,
    pub(super) asked: A,
    /// Whether each distinct value counts once.
    pub(super) is_distinct: bool,
}

/// A state column of lists, one for each state.
///
/// # Errors
/// An execution error for other columns, which damaged states have.
fn state_lists(states: &[ArrayRef], column: usize) -> Result<&LargeListArray> {
    states
        .get(column)
        .and_then(|state| state.as_list_opt::<i64>())
        .filter(|lists| lists.null_count() == 0)
        .ok_or_else(|| exec_datafusion_err!("a damaged state: column {column} has no lists"))
}

/// A state column of counts, a list for each state.
fn counts_column(counts: Vec<u64>, lengths: Vec<usize>) -> Result<ArrayRef> {
    state_column(Arc::new(UInt64Array::from(counts)), lengths)
}

/// The accumulator of one group or one window frame.
#[derive(Debug)]
pub(super) struct ShapeAccumulator<C: InOrder, A> {
    question: Question<C, A>,
    held: Held<C>,
}

impl<C: InOrder, A: Asked<C>> ShapeAccumulator<C, A> {
    pub(super) fn new(question: Question<C, A>) -> Self {
        Self {
            question,
            held: Held::default(),
        }
    }
}

impl<C: InOrder, A: Asked<C>> Accumulator for ShapeAccumulator<C, A> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let dense = dense(values[0].as_ref(), None)?;
        self.held
            .add(&self.question.spec, dense.as_ref().unwrap_or(&values[0]))
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let dense = dense(values[0].as_ref(), None)?;
        self.held
            .remove(&self.question.spec, dense.as_ref().unwrap_or(&values[0]))
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let Question {
            spec,
            asked,
            is_distinct,
        } = &self.question;
        let answer = self.held.sorted(*is_distinct, |sorted| {
            let mut answers = A::Answers::default();
            asked.answer(spec, &sorted, &mut answers)?;
            asked.finish(spec, sorted.values(), answers)
        })?;
        ScalarValue::try_from_array(&answer, 0)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.held.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let HeldState { values, counts } = self.held.state(&self.question.spec)?;
        let length = values.len();
        let values = state_column(values, vec![length])?;
        let length = counts.len();
        let counts = counts_column(counts, vec![length])?;
        let states = [values, counts];
        states
            .iter()
            .map(|state| ScalarValue::try_from_array(state, 0))
            .collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let (values, counts) = (state_lists(states, 0)?, state_lists(states, 1)?);
        for (values, counts) in values.iter().flatten().zip(counts.iter().flatten()) {
            let counts = counts
                .as_primitive_opt::<UInt64Type>()
                .filter(|counts| counts.null_count() == 0)
                .ok_or_else(|| exec_datafusion_err!("a damaged state: counts that are no whole numbers"))?;
            let counts = counts.values().to_vec();
            self.held
                .add_state(&self.question.spec, &HeldState { values, counts })?;
        }
        Ok(())
    }
}

impl<C: InOrder, A: Asked<C>> AskedOfGroups<C> for Question<C, A> {
    fn spec(&self) -> &C::Spec {
        &self.spec
    }

    fn answers(&self, values: &C, items: &mut [C::Item], starts: &[usize]) -> Result<ArrayRef> {
        let mut answers = A::Answers::default();
        for ends in starts.windows(2) {
            let items = &mut items[ends[0]..ends[1]];
            let items = if self.is_distinct {
                values.sort_distinct(items)
            } else {
                values.sort(items);
                items
            };
            self.asked
                .answer(&self.spec, &Sorted::listed(values, items), &mut answers)?;
        }
        self.asked.finish(&self.spec, values, answers)
    }
}

/// The accumulator of many groups, whose values lie in flat memory. Its states have no counts.
pub(super) struct ShapeGroups<C: InOrder, A>(CollectingGroups<C, Question<C, A>>);

impl<C: InOrder, A: Asked<C>> ShapeGroups<C, A> {
    pub(super) fn new(question: Question<C, A>) -> Self {
        Self(CollectingGroups::new(question))
    }
}

/// State columns of values, with a column of empty lists of counts behind it.
fn without_counts(mut states: Vec<ArrayRef>) -> Result<Vec<ArrayRef>> {
    let rows = states.first().map_or(0, |state| state.len());
    states.push(counts_column(Vec::new(), vec![0; rows])?);
    Ok(states)
}

impl<C: InOrder, A: Asked<C>> GroupsAccumulator for ShapeGroups<C, A> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.0
            .update_batch(&values[..1], group_indices, opt_filter, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        self.0.evaluate(emit_to)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        without_counts(self.0.state(emit_to)?)
    }

    fn merge_batch(
        &mut self,
        states: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        let counts = state_lists(states, 1)?;
        if counts.offsets().lengths().any(|length| length > 0) {
            return exec_err!("a damaged state: counts in the state of a group");
        }
        self.0.merge_batch(&states[..1], group_indices, total_num_groups)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        without_counts(self.0.convert_to_state(&values[..1], opt_filter)?)
    }

    fn size(&self) -> usize {
        self.0.size()
    }
}
