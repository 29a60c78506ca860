//! The accumulators of calls that count each distinct value once: `DISTINCT`, and `dense_rank`.
//!
//! They hold the distinct values of each group, and how often each is in the window frame. A state has the values and, for `dense_rank`, the
//! number of NULLs.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt64Array};
use datafusion::arrow::compute::filter;
use datafusion::arrow::datatypes::UInt64Type;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

use super::accumulator::{add, passes};
use super::spec::RankSpec;
use crate::functions::collected::counted_values;
use crate::functions::groups::emitted_count;
use crate::functions::states::{rows_as_states, state_column, state_rows};
use crate::key::{KeyBits, Order, kept};

/// A value, as it is told from others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Value {
    Key(KeyBits),
    Bytes(Box<[u8]>),
}

impl Value {
    /// Memory of an entry of a hash table with this value, in bytes.
    fn bytes(&self) -> usize {
        let owned = match self {
            Value::Key(_) => 0,
            Value::Bytes(bytes) => bytes.len(),
        };
        size_of::<(Value, u64)>() + 1 + owned
    }
}

/// Calls `each` with every value. None is NULL.
fn each_value(order: &Order, values: &ArrayRef, mut each: impl FnMut(Value) -> Result<()>) -> Result<()> {
    match order {
        Order::Keys(spec) => spec.for_each_key(values.as_ref(), |key| each(Value::Key(key))),
        Order::Bytes(spec) => spec.each(values.as_ref(), None, |bytes| each(Value::Bytes(bytes.into()))),
    }
}

/// Values as an array of their type.
fn array<'a>(order: &Order, values: impl Iterator<Item = &'a Value>) -> Result<ArrayRef> {
    let (mut keys, mut strings) = (Vec::<KeyBits>::new(), Vec::<&[u8]>::new());
    for value in values {
        match value {
            Value::Key(key) => keys.push(*key),
            Value::Bytes(bytes) => strings.push(bytes),
        }
    }
    match order {
        Order::Keys(spec) => spec.to_array(&keys),
        Order::Bytes(spec) => spec.to_array(&strings),
    }
}

/// The distinct values of one group or window frame.
#[derive(Debug, Default)]
struct DistinctValues {
    /// How often each value is there.
    values: HashMap<Value, u64>,
    nulls: u64,
    /// Memory of the entries, in bytes.
    bytes: usize,
}

impl DistinctValues {
    fn insert(&mut self, value: Value) {
        if let Some(count) = self.values.get_mut(&value) {
            *count += 1;
        } else {
            self.bytes += value.bytes();
            self.values.insert(value, 1);
        }
    }

    fn remove(&mut self, value: &Value) -> Result<()> {
        match self.values.get_mut(value) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                self.values.remove(value);
                self.bytes -= value.bytes();
            }
            None => return internal_err!("a window retracts a row that it never added"),
        }
        Ok(())
    }

    /// Adds the counts of distinct values, and of NULL as one more, to `counts`.
    fn count(&self, spec: &RankSpec, counts: &mut [u64]) -> Result<()> {
        let (cells, nulls) = counts.split_at_mut(spec.cells());
        nulls[0] += u64::from(spec.counts_nulls() && self.nulls > 0);
        spec.counter()
            .count(&array(spec.order(), self.values.keys())?, cells)
    }
}

/// The accumulator of one group or one window frame.
#[derive(Debug)]
pub(super) struct DistinctAccumulator {
    spec: RankSpec,
    seen: DistinctValues,
}

impl DistinctAccumulator {
    pub(super) fn new(spec: RankSpec) -> Self {
        Self {
            spec,
            seen: DistinctValues::default(),
        }
    }
}

/// The values of an array that are not NULL, and the number of those that are.
fn valid(values: &ArrayRef) -> Result<(ArrayRef, u64)> {
    let valid = match kept(values.as_ref(), None)? {
        Some(kept) => filter(values.as_ref(), &kept)?,
        None => Arc::clone(values),
    };
    let nulls = values.len() - valid.len();
    Ok((valid, nulls as u64))
}

/// The numbers of NULLs in a state.
fn state_nulls(states: &[ArrayRef]) -> Result<&UInt64Array> {
    states
        .get(1)
        .and_then(|state| state.as_primitive_opt::<UInt64Type>())
        .filter(|nulls| nulls.null_count() == 0)
        .ok_or_else(|| {
            internal_datafusion_err!("the state of a rank of distinct values has a number of NULLs")
        })
}

impl Accumulator for DistinctAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (valid, nulls) = valid(&values[0])?;
        self.seen.nulls += nulls;
        each_value(self.spec.order(), &valid, |value| {
            self.seen.insert(value);
            Ok(())
        })
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (valid, nulls) = valid(&values[0])?;
        self.seen.nulls = self.seen.nulls.saturating_sub(nulls);
        each_value(self.spec.order(), &valid, |value| self.seen.remove(&value))
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut counts = vec![0; self.spec.width()];
        self.seen.count(&self.spec, &mut counts)?;
        let answers = self.spec.answers([counts.as_slice()].into_iter())?;
        ScalarValue::try_from_array(&answers, 0)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.spec.size() + self.seen.bytes
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = array(self.spec.order(), self.seen.values.keys())?;
        let length = values.len();
        let values = state_column(values, vec![length])?;
        let nulls = ScalarValue::UInt64(Some(self.seen.nulls));
        Ok(vec![ScalarValue::try_from_array(&values, 0)?, nulls])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for list in state_rows(states)?.iter().flatten() {
            each_value(self.spec.order(), &valid(&list)?.0, |value| {
                self.seen.insert(value);
                Ok(())
            })?;
        }
        state_nulls(states)?
            .values()
            .iter()
            .try_for_each(|nulls| add(&mut self.seen.nulls, *nulls))
    }
}

/// The accumulator of many groups.
#[derive(Debug)]
pub(super) struct DistinctGroups {
    spec: RankSpec,
    groups: Vec<DistinctValues>,
    /// Memory of the entries of all groups, in bytes.
    bytes: usize,
}

impl DistinctGroups {
    pub(super) fn new(spec: RankSpec) -> Self {
        Self {
            spec,
            groups: Vec::new(),
            bytes: 0,
        }
    }

    /// Takes out the groups that are emitted.
    fn emitted(&mut self, emit_to: EmitTo) -> Vec<DistinctValues> {
        let rest = self.groups.split_off(emitted_count(emit_to, self.groups.len()));
        let emitted = std::mem::replace(&mut self.groups, rest);
        self.bytes -= emitted.iter().map(|group| group.bytes).sum::<usize>();
        emitted
    }

    /// Adds values, none of which is NULL, each to its group.
    fn insert(&mut self, values: &ArrayRef, mut groups: impl Iterator<Item = usize>) -> Result<()> {
        each_value(self.spec.order(), values, |value| {
            let Some(group) = groups.next() else {
                return internal_err!("a value without a group");
            };
            let group = &mut self.groups[group];
            let before = group.bytes;
            group.insert(value);
            self.bytes += group.bytes - before;
            Ok(())
        })
    }
}

impl GroupsAccumulator for DistinctGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.groups.resize_with(total_num_groups, DistinctValues::default);
        let values = &values[0];
        match kept(values.as_ref(), opt_filter)? {
            None => self.insert(values, group_indices.iter().copied())?,
            Some(kept) => {
                let groups = kept.values().set_indices().map(|row| group_indices[row]);
                self.insert(&filter(values.as_ref(), &kept)?, groups)?;
            }
        }
        if let Some(nulls) = values.logical_nulls() {
            for row in (!nulls.inner())
                .set_indices()
                .filter(|row| passes(opt_filter, *row))
            {
                self.groups[group_indices[row]].nulls += 1;
            }
        }
        Ok(())
    }

    fn merge_batch(
        &mut self,
        states: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.groups.resize_with(total_num_groups, DistinctValues::default);
        for (list, group) in state_rows(states)?.iter().zip(group_indices) {
            if let Some(list) = list {
                self.insert(&valid(&list)?.0, std::iter::repeat(*group))?;
            }
        }
        let nulls = state_nulls(states)?.values().iter().zip(group_indices);
        nulls
            .into_iter()
            .try_for_each(|(nulls, group)| add(&mut self.groups[*group].nulls, *nulls))
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (emitted, width) = (self.emitted(emit_to), self.spec.width());
        let mut counts = vec![0; emitted.len() * width];
        for (group, counts) in emitted.iter().zip(counts.chunks_exact_mut(width)) {
            group.count(&self.spec, counts)?;
        }
        self.spec.answers(counts.chunks_exact(width))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let emitted = self.emitted(emit_to);
        let values = array(
            self.spec.order(),
            emitted.iter().flat_map(|group| group.values.keys()),
        )?;
        let lengths = emitted.iter().map(|group| group.values.len()).collect();
        let nulls: UInt64Array = emitted.iter().map(|group| group.nulls).collect();
        Ok(vec![state_column(values, lengths)?, Arc::new(nulls)])
    }

    /// A state for each row: its value, or that it is NULL.
    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let (columns, kept) = counted_values(&values[..1], opt_filter)?;
        let mut states = rows_as_states(columns, kept.as_ref(), values[0].len())?;
        let is_null = |row: &usize| values[0].is_null(*row) && passes(opt_filter, *row);
        let nulls = (0..values[0].len()).map(|row| u64::from(is_null(&row)));
        states.push(Arc::new(UInt64Array::from_iter_values(nulls)));
        Ok(states)
    }

    fn size(&self) -> usize {
        let groups = self.groups.capacity() * size_of::<DistinctValues>();
        size_of::<Self>() + self.spec.size() + groups + self.bytes
    }
}
