//! Byte strings with weights, and window frames of them.

use std::mem::{size_of, take};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, UInt64Array};
use datafusion::common::{Result, ScalarValue};

use super::weights::counted;
use super::{MERGED_FROM, add_selected, weights_of};
use crate::functions::collected::{Collected, Frame, reserve};
use crate::functions::strings::StringFrame;
use crate::kernel::byte_strings::{At, ByteStrings};
use crate::kernel::cpu::groups::segments::Plan;
use crate::kernel::cpu::groups::weighted::{too_many, total};
use crate::key::ByteSpec;
use crate::quantile::{Found, QuantileSpec, TypedAnswerSpec};

/// The values of a column as byte strings, and their weights, none of which is 0.
#[derive(Debug, Default)]
pub(in crate::functions) struct WeightedStrings {
    values: ByteStrings,
    /// The weight of each value, in the order of [`ByteStrings::places`].
    weights: Vec<u64>,
}

impl WeightedStrings {
    fn push(&mut self, value: &[u8], weight: u64) -> Result<()> {
        self.values.push(value)?;
        reserve(&mut self.weights, 1)?;
        self.weights.push(weight);
        Ok(())
    }

    /// Each value's location and weight.
    fn items(&self) -> impl Iterator<Item = (At, u64)> {
        self.values.places().zip(self.weights.iter().copied())
    }
}

/// Byte strings and their weights as columns of states.
fn columns(spec: &ByteSpec, values: &[&[u8]], weights: Vec<u64>) -> Result<Vec<ArrayRef>> {
    Ok(vec![spec.to_array(values)?, Arc::new(UInt64Array::from(weights))])
}

/// Calls `each` with the byte string and the weight of each row of columns that [`counted`] gives.
fn each_weighted(
    spec: &ByteSpec,
    columns: &[ArrayRef],
    mut each: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut weights = weights_of(columns).values().iter();
    spec.each(columns[0].as_ref(), None, |value| {
        each(value, weights.next().copied().unwrap_or(0))
    })
}

impl Collected for WeightedStrings {
    type Spec = ByteSpec;
    type Item = (At, u64);
    type Value<'a> = &'a [u8];
    type Frame = StringFrame;

    const MERGED_FROM: usize = MERGED_FROM;

    fn counted(
        args: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
        counted(args, filter)
    }

    fn append(&mut self, spec: &ByteSpec, columns: &[ArrayRef]) -> Result<usize> {
        let before = self.weights.len();
        each_weighted(spec, columns, |value, weight| self.push(value, weight))?;
        Ok(self.weights.len() - before)
    }

    fn take_out(
        &mut self,
        runs: impl Iterator<Item = (Option<usize>, usize)>,
        items: &mut [(At, u64)],
    ) -> Result<Self> {
        let all = take(self);
        let mut rest = all.items();
        for (to, length) in runs {
            for (index, item) in rest.by_ref().take(length).enumerate() {
                match to {
                    Some(to) => items[to + index] = item,
                    None => self.push(all.values.value(item.0), item.1)?,
                }
            }
        }
        drop(rest);
        Ok(all)
    }

    fn with_items<T>(&mut self, with: impl FnOnce(&Self, &mut [(At, u64)]) -> T) -> T {
        with(self, &mut self.items().collect::<Vec<_>>())
    }

    fn find<'a>(
        &'a self,
        _column: &TypedAnswerSpec<ByteSpec>,
        items: &mut [(At, u64)],
        plan_of: impl FnOnce(u64) -> Arc<Plan>,
        found: &mut Found<&'a [u8]>,
    ) -> Result<u64> {
        let n = total(items)?;
        if n > 0 {
            let plan = plan_of(n);
            let selected = self.values.select_weighted(items, &plan.ranks);
            add_selected(&plan, &selected, |at| self.values.value(at), found)?;
        }
        Ok(n)
    }

    fn merge_equal(&self, items: &mut [(At, u64)]) -> Result<usize> {
        self.values.merge_weighted(items)
    }

    fn add_items(&mut self, other: &Self, items: &[(At, u64)]) -> Result<()> {
        let mut items = items.iter();
        items.try_for_each(|(at, weight)| self.push(other.values.value(*at), *weight))
    }

    fn count(&self) -> usize {
        self.weights.len()
    }

    fn answers(quantile_spec: &QuantileSpec, spec: &ByteSpec, found: &Found<&[u8]>) -> Result<ArrayRef> {
        quantile_spec.byte_strings(spec, found)
    }

    fn columns(&self, spec: &ByteSpec, items: &[(At, u64)]) -> Result<Vec<ArrayRef>> {
        let values: Vec<&[u8]> = items.iter().map(|(at, _)| self.values.value(*at)).collect();
        columns(spec, &values, items.iter().map(|(_, weight)| *weight).collect())
    }

    fn held_bytes(&self) -> usize {
        self.values.held_bytes() + self.weights.capacity() * size_of::<u64>()
    }
}

impl StringFrame {
    /// Adds a value as often as its weight says.
    fn insert_weighted(&mut self, value: &[u8], weight: u64) -> Result<()> {
        match self.len().checked_add(weight) {
            Some(_) => self.add(value, weight),
            None => Err(too_many()),
        }
    }
}

impl Frame<WeightedStrings> for StringFrame {
    fn of(column: &TypedAnswerSpec<ByteSpec>, values: WeightedStrings) -> Result<Self> {
        let mut frame = Self::empty(column);
        let mut items = values.items();
        items.try_for_each(|(at, weight)| frame.insert_weighted(values.values.value(at), weight))?;
        Ok(frame)
    }

    fn insert(&mut self, column: &TypedAnswerSpec<ByteSpec>, args: &[ArrayRef]) -> Result<()> {
        let (columns, _) = counted(args, None)?;
        each_weighted(column.spec(), &columns, |value, weight| {
            self.insert_weighted(value, weight)
        })
    }

    fn remove(&mut self, column: &TypedAnswerSpec<ByteSpec>, args: &[ArrayRef]) -> Result<()> {
        let (columns, _) = counted(args, None)?;
        each_weighted(column.spec(), &columns, |value, weight| self.take(value, weight))
    }

    fn answer(&mut self, column: &TypedAnswerSpec<ByteSpec>) -> Result<ScalarValue> {
        self.row(column)
    }

    fn columns(&self, spec: &ByteSpec) -> Result<Vec<ArrayRef>> {
        let (values, weights): (Vec<&[u8]>, Vec<u64>) = self.iter().unzip();
        columns(spec, &values, weights)
    }

    fn size(&self) -> usize {
        self.held_bytes()
    }
}
