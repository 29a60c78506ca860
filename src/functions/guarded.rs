//! Aggregates that fail if a partial state is merged twice.
//!
//! An engine that moves states between machines can deliver a state twice when a machine is lost. Every sum and every
//! quantile over the states is then silently wrong. So each state row of a function of this crate carries a number of
//! its own, and the accumulator that merges states fails on a number that it has seen. All aggregates of one
//! aggregation share their state rows, so one guarded function guards the others beside it. An aggregation beside
//! stages without a function of this crate gets a guarded count. Cost: 8 bytes for each state, and some bits for each
//! where states are merged.
//!
//! A state that is lost is not noticed here.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem::size_of;
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, UInt64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_datafusion_err};
use datafusion::logical_expr::expr::AggregateFunctionParams;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, StatisticsArgs,
};

use crate::wire::foreign;

/// Bits of a number that count within one source: a source gives 2^20 numbers, then a new source is drawn.
const NUMBER_BITS: u32 = 20;

/// Start of the error message for a state that is merged twice.
pub(crate) const DELIVERED_TWICE: &str = "a partial state was delivered twice";

/// An aggregate function with numbered states.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Guarded {
    inner: Arc<AggregateUDF>,
}

impl Guarded {
    /// The guarded form of a function.
    pub(crate) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }

    /// The `Guarded` behind an aggregate function, if it is one.
    pub(crate) fn of(function: &AggregateUDF) -> Option<&Self> {
        function.inner().downcast_ref()
    }

    /// The function without its guard.
    pub(crate) fn inner(&self) -> &AggregateUDF {
        &self.inner
    }
}

/// Gives out numbers for partial states, and for rows that stages exchange. Numbers of one source differ, and sources are drawn at random.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    source: u64,
    /// How many numbers the source can still give.
    left: u64,
}

impl Numbers {
    /// The next `count` numbers, none of which was taken before.
    pub(crate) fn take(&mut self, count: usize) -> ArrayRef {
        let number = |_| {
            if self.left == 0 {
                // Hash keys of the standard library are random, and differ with each call.
                self.source = RandomState::new().hash_one(self.source) >> NUMBER_BITS;
                self.left = 1 << NUMBER_BITS;
            }
            self.left -= 1;
            (self.source << NUMBER_BITS) | self.left
        };
        Arc::new((0..count).map(number).collect::<UInt64Array>())
    }
}

/// The set of numbers that were merged, as a hash table of 64-bit words with a bit for each number: numbers of one
/// source follow each other. Damaged or hostile numbers cost no more memory than others.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    words: HashMap<u64, u64>,
}

impl Merged {
    /// Adds a column of numbers to the set.
    ///
    /// # Errors
    /// An execution error for a number that was added before; an internal error for a column of anything else.
    pub(crate) fn add(&mut self, numbers: &dyn Array) -> Result<()> {
        let numbers = numbers
            .as_primitive_opt::<UInt64Type>()
            .filter(|numbers| numbers.null_count() == 0)
            .ok_or_else(|| internal_datafusion_err!("partial states without their numbers"))?;
        for same in numbers.values().chunk_by(|one, next| one / 64 == next / 64) {
            let bits = self.words.entry(same[0] / 64).or_default();
            for bit in same.iter().map(|number| 1 << (number % 64)) {
                if *bits & bit != 0 {
                    return exec_err!(
                        "{DELIVERED_TWICE}, so the answer would be wrong: a machine was lost while others \
                         read its output. Run the query again"
                    );
                }
                *bits |= bit;
            }
        }
        Ok(())
    }

    /// Memory of the set, in bytes.
    pub(crate) fn size(&self) -> usize {
        // The hash table has one more byte for each entry, which says whether the entry is used.
        self.words.capacity() * (size_of::<(u64, u64)>() + 1)
    }
}

/// The state columns without the numbers, which are the last column. Adds the numbers to `merged`.
///
/// # Errors
/// Those of [`Merged::add`]; an internal error for states without columns.
fn without_numbers<'a>(states: &'a [ArrayRef], merged: &mut Merged) -> Result<&'a [ArrayRef]> {
    let (numbers, states) = states
        .split_last()
        .ok_or_else(|| internal_datafusion_err!("partial states without columns"))?;
    merged.add(numbers.as_ref())?;
    Ok(states)
}

#[derive(Debug)]
struct GuardedAccumulator {
    inner: Box<dyn Accumulator>,
    numbers: Numbers,
    merged: Merged,
}

impl Accumulator for GuardedAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.inner.evaluate()
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.inner.size() + self.merged.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let mut states = self.inner.state()?;
        states.push(ScalarValue::try_from_array(&self.numbers.take(1), 0)?);
        Ok(states)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let states = without_numbers(states, &mut self.merged)?;
        foreign("state", || self.inner.merge_batch(states))
    }
}

struct GuardedGroups {
    inner: Box<dyn GroupsAccumulator>,
    /// Behind a lock, because `convert_to_state` has a shared reference only.
    numbers: Mutex<Numbers>,
    merged: Merged,
}

impl GuardedGroups {
    /// State columns with a column of numbers after them.
    fn numbered(&self, mut states: Vec<ArrayRef>) -> Result<Vec<ArrayRef>> {
        let count = states.first().map_or(0, |state| state.len());
        let mut numbers = self
            .numbers
            .lock()
            .map_err(|_| internal_datafusion_err!("another thread failed while it numbered states"))?;
        states.push(numbers.take(count));
        Ok(states)
    }
}

impl GroupsAccumulator for GuardedGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.inner
            .update_batch(values, group_indices, opt_filter, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        self.inner.evaluate(emit_to)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let states = self.inner.state(emit_to)?;
        self.numbered(states)
    }

    fn merge_batch(
        &mut self,
        states: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        let states = without_numbers(states, &mut self.merged)?;
        foreign("state", || {
            self.inner.merge_batch(states, group_indices, total_num_groups)
        })
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        self.numbered(self.inner.convert_to_state(values, opt_filter)?)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.inner.size() + self.merged.size()
    }
}

impl AggregateUDFImpl for Guarded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn schema_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.schema_name(params)
    }

    fn human_display(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.human_display(params)
    }

    fn display_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.display_name(params)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arg_types)
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arg_types)
    }

    fn return_field(&self, arg_fields: &[FieldRef]) -> Result<FieldRef> {
        self.inner.return_field(arg_fields)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let number = Field::new(format_state_name(args.name, "number"), DataType::UInt64, true);
        let mut fields = self.inner.state_fields(args)?;
        fields.push(number.into());
        Ok(fields)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(GuardedAccumulator {
            inner: self.inner.accumulator(args)?,
            numbers: Numbers::default(),
            merged: Merged::default(),
        }))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(GuardedGroups {
            inner: self.inner.create_groups_accumulator(args)?,
            numbers: Mutex::default(),
            merged: Merged::default(),
        }))
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(data_type)
    }

    fn value_from_stats(&self, statistics: &StatisticsArgs) -> Option<ScalarValue> {
        self.inner.value_from_stats(statistics)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.inner.supports_null_handling_clause()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_merged_once() {
        let (mut one, mut other, mut merged) = (Numbers::default(), Numbers::default(), Merged::default());
        let batches = [one.take(3), other.take(2), one.take(1), one.take(0)];
        for batch in &batches {
            merged.add(batch).unwrap();
        }
        for batch in &batches[..3] {
            let again = batch.slice(batch.len() - 1, 1);
            let error = merged.add(&again).unwrap_err().strip_backtrace();
            assert!(error.contains(DELIVERED_TWICE), "{error}");
        }
        assert!(merged.size() > 0);
    }

    #[test]
    fn numbers_of_many_states_differ() {
        let (mut numbers, mut merged) = (Numbers::default(), Merged::default());
        let mut sources = std::collections::HashSet::new();
        for count in [1 << NUMBER_BITS, 5, 1 << NUMBER_BITS] {
            let taken = numbers.take(count);
            sources.extend(
                taken
                    .as_primitive::<UInt64Type>()
                    .values()
                    .iter()
                    .map(|number| number >> NUMBER_BITS),
            );
            merged.add(&taken).unwrap();
        }
        assert_eq!(sources.len(), 3);
        // Some bits for each number.
        assert!(merged.size() < 1 << NUMBER_BITS, "{} bytes", merged.size());
        assert!(merged.add(&UInt64Array::new_null(1)).is_err());
        assert!(merged.add(&BooleanArray::from(vec![true])).is_err());
    }
}
