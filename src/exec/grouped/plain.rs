//! Aggregates that DataFusion computes, beside quantiles.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use datafusion::arrow::compute::take;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::logical_expr::{ColumnarValue, EmitTo, GroupsAccumulator};
use datafusion::physical_expr::GroupsAccumulatorAdapter;

use crate::exec::aggregate::PlainAggregate;
use crate::exec::scan::mask;
use crate::kernel::cpu::groups::words::PARTS;

/// Accumulators, each for all groups.
pub(super) struct PlainGroups {
    accumulators: Vec<Box<dyn GroupsAccumulator>>,
    /// Groups that the accumulators know of: the first so many.
    groups: usize,
}

fn accumulator(plain: &PlainAggregate) -> Result<Box<dyn GroupsAccumulator>> {
    if plain.expr.groups_accumulator_supported() {
        return plain.expr.create_groups_accumulator();
    }
    let expr = Arc::clone(&plain.expr);
    Ok(Box::new(GroupsAccumulatorAdapter::new(move || {
        expr.create_accumulator()
    })))
}

impl PlainGroups {
    pub(super) fn try_new(plain: &[PlainAggregate]) -> Result<Self> {
        let accumulators = plain.iter().map(accumulator);
        Ok(Self {
            accumulators: accumulators.collect::<Result<_>>()?,
            groups: 0,
        })
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.accumulators
            .iter()
            .map(|accumulator| accumulator.size())
            .sum()
    }

    /// What the accumulators want of a batch: for each aggregate its arguments and, if it has one, its filter.
    pub(super) fn inputs(plain: &[PlainAggregate], batch: &RecordBatch) -> Result<Vec<ColumnarValue>> {
        let mut inputs = Vec::new();
        for plain in plain {
            for argument in plain.expr.expressions() {
                inputs.push(argument.evaluate(batch)?);
            }
            if let Some(filter) = &plain.filter {
                inputs.push(ColumnarValue::Array(Arc::new(mask(filter, batch)?)));
            }
        }
        Ok(inputs)
    }

    /// Adds the rows of a batch, by the number of each one's group among `groups`.
    pub(super) fn update(
        &mut self,
        plain: &[PlainAggregate],
        batch: &RecordBatch,
        ids: &[usize],
        groups: usize,
    ) -> Result<()> {
        if plain.is_empty() {
            return Ok(());
        }
        self.update_inputs(plain, &Self::inputs(plain, batch)?, ids, groups)
    }

    /// Adds rows whose inputs are known.
    pub(super) fn update_inputs(
        &mut self,
        plain: &[PlainAggregate],
        inputs: &[ColumnarValue],
        ids: &[usize],
        groups: usize,
    ) -> Result<()> {
        self.groups = groups;
        let mut inputs = inputs.iter().map(|input| input.to_array(ids.len()));
        for (plain, accumulator) in plain.iter().zip(&mut self.accumulators) {
            let count = plain.expr.expressions().len();
            let arguments = inputs.by_ref().take(count).collect::<Result<Vec<_>>>()?;
            let filter = match plain.filter {
                Some(_) => inputs.next().transpose()?,
                None => None,
            };
            let filter = filter.as_ref().and_then(|filter| filter.as_boolean_opt());
            accumulator.update_batch(&arguments, ids, filter, groups)?;
        }
        Ok(())
    }

    /// The states of all groups that they know of, of which none is left; `parts` are those of the groups.
    pub(super) fn states(&mut self, parts: &[u16]) -> Result<PlainStates> {
        let known = std::mem::take(&mut self.groups);
        let states = self
            .accumulators
            .iter_mut()
            .map(|accumulator| accumulator.state(EmitTo::All));
        Ok(PlainStates {
            states: states.collect::<Result<_>>()?,
            order: PartOrder::new(&parts[..known.min(parts.len())]),
        })
    }

    /// Adds the states of groups, by their numbers among `groups`.
    pub(super) fn merge(&mut self, states: &[Vec<ArrayRef>], ids: &[usize], groups: usize) -> Result<()> {
        // Of no groups, some have no columns either.
        if ids.is_empty() {
            return Ok(());
        }
        for (states, accumulator) in states.iter().zip(&mut self.accumulators) {
            accumulator.merge_batch(states, ids, groups)?;
        }
        Ok(())
    }

    /// The answers of all groups.
    pub(super) fn evaluate(&mut self) -> Result<Vec<ArrayRef>> {
        self.accumulators
            .iter_mut()
            .map(|accumulator| accumulator.evaluate(EmitTo::All))
            .collect()
    }
}

/// Numbers of groups in order of their parts.
pub(super) struct PartOrder {
    pub(super) order: Vec<u32>,
    starts: Vec<usize>,
}

impl PartOrder {
    pub(super) fn new(parts: &[u16]) -> Self {
        let mut starts = vec![0; PARTS + 1];
        for part in parts {
            starts[usize::from(*part) + 1] += 1;
        }
        for part in 0..PARTS {
            starts[part + 1] += starts[part];
        }
        let mut next = starts.clone();
        let mut order = vec![0; parts.len()];
        for (id, part) in parts.iter().enumerate() {
            let next = &mut next[usize::from(*part)];
            order[*next] = id as u32;
            *next += 1;
        }
        Self { order, starts }
    }

    /// The groups of a part.
    pub(super) fn part(&self, part: usize) -> &[u32] {
        &self.order[self.starts[part]..self.starts[part + 1]]
    }

    /// Where the groups of a part start in the order.
    pub(super) fn start(&self, part: usize) -> usize {
        self.starts[part]
    }

    /// Values by group, of the groups of a part.
    pub(super) fn take_part(&self, part: usize, values: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        let ids = UInt32Array::from(self.part(part).to_vec());
        let taken = values.iter().map(|values| take(values.as_ref(), &ids, None));
        Ok(taken.collect::<Result<_, _>>()?)
    }
}

/// States of one scan's groups.
pub(super) struct PlainStates {
    states: Vec<Vec<ArrayRef>>,
    pub(super) order: PartOrder,
}

impl PlainStates {
    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        let arrays = self.states.iter().flatten();
        arrays.map(|array| array.get_array_memory_size()).sum::<usize>() + self.order.order.len() * 4
    }

    /// The states of all groups, in the order of their numbers.
    pub(super) fn all(&self) -> &[Vec<ArrayRef>] {
        &self.states
    }

    /// The states of the groups of a part.
    pub(super) fn part(&self, part: usize) -> Result<Vec<Vec<ArrayRef>>> {
        let states = self
            .states
            .iter()
            .map(|states| self.order.take_part(part, states));
        states.collect()
    }
}
