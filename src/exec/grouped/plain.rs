//! Plain aggregates of groups, which DataFusion's accumulators compute beside quantiles.

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
use crate::exec::plain::{lean, resize_for_accumulators};
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::group_key::HASH_PARTITIONS;

/// An accumulator for each plain aggregate. Each holds all groups.
pub(super) struct PlainGroups {
    accumulators: Vec<Box<dyn GroupsAccumulator>>,
    /// Bytes of the input of each accumulator that holds on to its input arrays. Its own size leaves out the buffers behind string views.
    input_bytes: Vec<Option<usize>>,
    /// Number of groups that the accumulators know, which are those with the lowest numbers.
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

/// Memory of accumulators, which cannot be spilled.
pub(super) struct AccumulatorMemory(MemoryReservation);

impl AccumulatorMemory {
    /// Fewer bytes than this are not reserved.
    const LEAST_BYTES: usize = 64 << 10;

    /// Memory that is reserved for the consumer of `memory`.
    pub(super) fn new(memory: MemoryReservation) -> Self {
        Self(memory)
    }

    /// Reserves the `bytes` that accumulators hold now.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the bytes wanted.
    pub(super) fn resize(&self, bytes: usize) -> Result<()> {
        let reserved = if bytes < Self::LEAST_BYTES { 0 } else { bytes };
        resize_for_accumulators(&self.0, reserved)
    }
}

impl PlainGroups {
    pub(super) fn try_new(plain: &[PlainAggregate]) -> Result<Self> {
        let accumulators = plain.iter().map(accumulator);
        Ok(Self {
            accumulators: accumulators.collect::<Result<_>>()?,
            input_bytes: plain
                .iter()
                .map(|plain| plain.keeps_input().then_some(0))
                .collect(),
            groups: 0,
        })
    }

    /// Bytes held. Input that is kept counts three times: itself, its copy in states or answers, and the lists of its rows while they double.
    pub(super) fn bytes(&self) -> usize {
        let sizes = self.accumulators.iter().zip(&self.input_bytes);
        sizes
            .map(|(accumulator, input_bytes)| {
                let size = accumulator.size();
                input_bytes.map_or(size, |kept| 2 * size.max(kept) + kept)
            })
            .sum()
    }

    /// The inputs of the accumulators from a batch: for each aggregate its arguments and, if it has one, its filter.
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

    /// Adds rows. `ids` has the number of each row's group, of `groups` groups; `inputs` are those that [`Self::inputs`] returned.
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
        let accumulators = self.accumulators.iter_mut().zip(&mut self.input_bytes);
        for (plain, (accumulator, input_bytes)) in plain.iter().zip(accumulators) {
            let count = plain.expr.expressions().len();
            let mut arguments = inputs.by_ref().take(count).collect::<Result<Vec<_>>>()?;
            if let Some(input_bytes) = input_bytes {
                arguments = arguments.iter().map(lean).collect::<Result<_>>()?;
                *input_bytes += arguments.iter().map(row_bytes).sum::<usize>();
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

    /// Takes the states of all groups out of the accumulators, which know no group then. `parts` has the hash partition of each group.
    pub(super) fn states(&mut self, parts: &[u16]) -> Result<PlainStates> {
        let known = std::mem::take(&mut self.groups);
        self.input_bytes.iter_mut().flatten().for_each(|bytes| *bytes = 0);
        let states = self
            .accumulators
            .iter_mut()
            .map(|accumulator| accumulator.state(EmitTo::All));
        Ok(PlainStates {
            states: states.collect::<Result<_>>()?,
            order: PartitionOrder::new(&parts[..known.min(parts.len())]),
        })
    }

    /// Adds the states of some groups. `ids` has their numbers, of `groups` groups.
    pub(super) fn merge(&mut self, states: &[Vec<ArrayRef>], ids: &[usize], groups: usize) -> Result<()> {
        // Some accumulators give states of no groups without columns.
        if ids.is_empty() {
            return Ok(());
        }
        let accumulators = self.accumulators.iter_mut().zip(&mut self.input_bytes);
        for (states, (accumulator, input_bytes)) in states.iter().zip(accumulators) {
            if let Some(input_bytes) = input_bytes {
                *input_bytes += states.iter().map(row_bytes).sum::<usize>();
            }
            accumulator.merge_batch(states, ids, groups)?;
        }
        Ok(())
    }

    /// The answers of all groups, one column for each aggregate.
    pub(super) fn evaluate(&mut self) -> Result<Vec<ArrayRef>> {
        self.accumulators
            .iter_mut()
            .map(|accumulator| accumulator.evaluate(EmitTo::All))
            .collect()
    }
}

/// Groups in the order of their hash partitions.
pub(super) struct PartitionOrder {
    /// Numbers of the groups.
    pub(super) ids: Vec<u32>,
    /// Position of the first group of each hash partition, and the number of groups at the end.
    starts: Vec<usize>,
}

impl PartitionOrder {
    /// The order of groups, from the hash partition of each.
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

    /// Numbers of the groups in a hash partition.
    pub(super) fn part(&self, part: usize) -> &[u32] {
        &self.ids[self.starts[part]..self.starts[part + 1]]
    }

    /// Position of a hash partition's first group in the order.
    pub(super) fn start(&self, part: usize) -> usize {
        self.starts[part]
    }

    /// The rows of `values` that belong to the groups of a hash partition. `values` has one row for each group, by number.
    pub(super) fn take_partition(&self, part: usize, values: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        let ids = UInt32Array::from(self.part(part).to_vec());
        let taken = values.iter().map(|values| take(values.as_ref(), &ids, None));
        Ok(taken.collect::<Result<_, _>>()?)
    }
}

/// States of the plain aggregates of one scan's groups.
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

    /// The states of the groups in a hash partition.
    pub(super) fn part(&self, part: usize) -> Result<Vec<Vec<ArrayRef>>> {
        let states = self
            .states
            .iter()
            .map(|states| self.order.take_partition(part, states));
        states.collect()
    }
}
