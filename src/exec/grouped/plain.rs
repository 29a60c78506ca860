//! Aggregates that DataFusion computes, beside quantiles.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, UInt32Array};
use datafusion::arrow::compute::take;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::{ColumnarValue, EmitTo, GroupsAccumulator};
use datafusion::physical_expr::GroupsAccumulatorAdapter;

use crate::exec::aggregate::PlainAggregate;
use crate::exec::expressions::mask;
use crate::exec::plain::lean;
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::group_key::HASH_PARTITIONS;

/// Accumulators, each for all groups.
pub(super) struct PlainGroups {
    accumulators: Vec<Box<dyn GroupsAccumulator>>,
    /// For each accumulator that keeps its input as it came, the bytes of that: what such a one says of its size leaves out
    /// what lies behind views.
    kept: Vec<Option<usize>>,
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

/// Memory of accumulators that cannot be spilled.
pub(super) struct Held(MemoryReservation);

impl Held {
    /// So little needs no reservation of its own.
    const LEAST: usize = 64 << 10;

    /// Of the consumer of `memory`.
    pub(super) fn new(memory: MemoryReservation) -> Self {
        Self(memory)
    }

    /// Reserves what accumulators hold now.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the bytes wanted.
    pub(super) fn resize(&self, bytes: usize) -> Result<()> {
        let wanted = if bytes < Self::LEAST { 0 } else { bytes };
        self.0.try_resize(wanted).map_err(|error| {
            error.context(format!(
                "aggregates beside exact quantiles, which cannot be spilled: {bytes} bytes wanted"
            ))
        })
    }
}

impl PlainGroups {
    pub(super) fn try_new(plain: &[PlainAggregate]) -> Result<Self> {
        let accumulators = plain.iter().map(accumulator);
        Ok(Self {
            accumulators: accumulators.collect::<Result<_>>()?,
            kept: plain
                .iter()
                .map(|plain| plain.keeps_input().then_some(0))
                .collect(),
            groups: 0,
        })
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        let sizes = self.accumulators.iter().zip(&self.kept);
        sizes
            .map(|(accumulator, kept)| accumulator.size().max(kept.unwrap_or(0)))
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

    /// Adds rows by the number of each one's group among `groups`; `inputs` as [`Self::inputs`] gave them.
    pub(super) fn update(
        &mut self,
        plain: &[PlainAggregate],
        inputs: &[ColumnarValue],
        ids: &[usize],
        groups: usize,
    ) -> Result<()> {
        if plain.is_empty() {
            return Ok(());
        }
        self.groups = groups;
        let mut inputs = inputs.iter().map(|input| input.to_array(ids.len()));
        let accumulators = self.accumulators.iter_mut().zip(&mut self.kept);
        for (plain, (accumulator, kept)) in plain.iter().zip(accumulators) {
            let count = plain.expr.expressions().len();
            let mut arguments = inputs.by_ref().take(count).collect::<Result<Vec<_>>>()?;
            if let Some(kept) = kept {
                arguments = arguments.iter().map(lean).collect::<Result<_>>()?;
                *kept += arguments.iter().map(row_bytes).sum::<usize>();
            }
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
        self.kept.iter_mut().flatten().for_each(|kept| *kept = 0);
        let states = self
            .accumulators
            .iter_mut()
            .map(|accumulator| accumulator.state(EmitTo::All));
        Ok(PlainStates {
            states: states.collect::<Result<_>>()?,
            order: PartitionOrder::new(&parts[..known.min(parts.len())]),
        })
    }

    /// Adds the states of groups, by their numbers among `groups`.
    pub(super) fn merge(&mut self, states: &[Vec<ArrayRef>], ids: &[usize], groups: usize) -> Result<()> {
        // Of no groups, some have no columns either.
        if ids.is_empty() {
            return Ok(());
        }
        let accumulators = self.accumulators.iter_mut().zip(&mut self.kept);
        for (states, (accumulator, kept)) in states.iter().zip(accumulators) {
            if let Some(kept) = kept {
                *kept += states.iter().map(row_bytes).sum::<usize>();
            }
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
pub(super) struct PartitionOrder {
    pub(super) ids: Vec<u32>,
    starts: Vec<usize>,
}

impl PartitionOrder {
    pub(super) fn new(parts: &[u16]) -> Self {
        let mut starts = vec![0; HASH_PARTITIONS + 1];
        for part in parts {
            starts[usize::from(*part) + 1] += 1;
        }
        for part in 0..HASH_PARTITIONS {
            starts[part + 1] += starts[part];
        }
        let mut next = starts.clone();
        let mut ids = vec![0; parts.len()];
        for (id, part) in parts.iter().enumerate() {
            let next = &mut next[usize::from(*part)];
            ids[*next] = id as u32;
            *next += 1;
        }
        Self { ids, starts }
    }

    /// The groups of a part.
    pub(super) fn part(&self, part: usize) -> &[u32] {
        &self.ids[self.starts[part]..self.starts[part + 1]]
    }

    /// Where the groups of a part start in the order.
    pub(super) fn start(&self, part: usize) -> usize {
        self.starts[part]
    }

    /// Values by group, of the groups of a part.
    pub(super) fn take_partition(&self, part: usize, values: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        let ids = UInt32Array::from(self.part(part).to_vec());
        let taken = values.iter().map(|values| take(values.as_ref(), &ids, None));
        Ok(taken.collect::<Result<_, _>>()?)
    }
}

/// States of one scan's groups.
pub(super) struct PlainStates {
    states: Vec<Vec<ArrayRef>>,
    pub(super) order: PartitionOrder,
}

impl PlainStates {
    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        let arrays = self.states.iter().flatten();
        arrays.map(row_bytes).sum::<usize>() + self.order.ids.len() * 4
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
            .map(|states| self.order.take_partition(part, states));
        states.collect()
    }
}
