//! Plain aggregates, which DataFusion's accumulators compute beside quantiles, and the memory that they hold.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::Accumulator;

use super::aggregate::PlainAggregate;
use super::expressions::{mask, values};
use crate::kernel::cpu::columns::{row_bytes, without_others};

/// Copies of fewer bytes than this are made without a reservation.
const UNRESERVED_BYTES: usize = 1 << 16;

/// An accumulator for each plain aggregate, over the same rows.
pub(super) struct PlainAccumulators {
    list: Vec<PlainAggregate>,
    accumulators: Vec<Box<dyn Accumulator>>,
    memory: MemoryReservation,
}

impl PlainAccumulators {
    /// Accumulators before their first row. Their memory is reserved for the consumer of `memory`.
    pub(super) fn try_new(list: &[PlainAggregate], memory: MemoryReservation) -> Result<Self> {
        Ok(Self {
            list: list.to_vec(),
            accumulators: list.iter().map(accumulator).collect::<Result<_>>()?,
            memory,
        })
    }

    /// Adds the rows of a batch. [`Self::reserve`] then reserves the memory that the accumulators hold.
    ///
    /// # Errors
    /// An expression's, or an accumulator's.
    pub(super) fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        for (plain, accumulator) in self.list.iter().zip(&mut self.accumulators) {
            let filtered = match &plain.filter {
                None => None,
                Some(filter) => Some(filter_record_batch(batch, &mask(filter, batch)?)?),
            };
            let batch = filtered.as_ref().unwrap_or(batch);
            let arguments = plain.inputs();
            let arguments = arguments.iter().map(|argument| values(argument, batch));
            accumulator.update_batch(&arguments.collect::<Result<Vec<_>>>()?)?;
        }
        Ok(())
    }

    /// Reserves the memory that the accumulators hold, and what they need to grow.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the bytes wanted.
    pub(super) fn reserve(&self) -> Result<()> {
        let sizes = self.list.iter().zip(&self.accumulators);
        let sizes = sizes.map(|(plain, accumulator)| plain.growth() * accumulator.size());
        resize_for_accumulators(&self.memory, sizes.sum())
    }

    /// Reserves what the accumulators hold, and nothing for further rows.
    fn settle(&self) -> Result<()> {
        let sizes = self.accumulators.iter().map(|accumulator| accumulator.size());
        resize_for_accumulators(&self.memory, sizes.sum())
    }

    /// Adds the states of accumulators over further rows.
    ///
    /// # Errors
    /// An accumulator's, or `ResourcesExhausted` if a state does not fit in memory beside its accumulator.
    pub(super) fn merge(&mut self, others: Self) -> Result<()> {
        self.settle()?;
        others.settle()?;
        let (accumulators, memory) = (others.accumulators, others.memory);
        for (target, mut other) in self.accumulators.iter_mut().zip(accumulators) {
            let held = other.size();
            let copied = reserved_copy(&self.memory, held, "state")?;
            let state = other.state()?;
            let state = state.iter().map(ScalarValue::to_array);
            target.merge_batch(&state.collect::<Result<Vec<ArrayRef>>>()?)?;
            drop((other, copied));
            memory.shrink(held.min(memory.size()));
        }
        drop(memory);
        self.settle()
    }

    /// The answer of the aggregate at `index`, and the memory reserved for it.
    ///
    /// # Errors
    /// The accumulator's, or `ResourcesExhausted` if the answer does not fit in memory beside the accumulator.
    pub(super) fn evaluate(&mut self, index: usize) -> Result<(ScalarValue, MemoryReservation)> {
        self.settle()?;
        let accumulator = &mut self.accumulators[index];
        let copied = reserved_copy(&self.memory, accumulator.size(), "answer")?;
        Ok((accumulator.evaluate()?, copied))
    }
}

/// Resizes a reservation to the `bytes` that accumulators hold.
///
/// # Errors
/// `ResourcesExhausted` that names the bytes wanted.
pub(super) fn resize_for_accumulators(memory: &MemoryReservation, bytes: usize) -> Result<()> {
    memory.try_resize(bytes).map_err(|error| {
        error.context(format!(
            "aggregates beside exact quantiles, which cannot be spilled: {bytes} bytes wanted"
        ))
    })
}

/// A reservation for a copy of the `bytes` that an accumulator holds; empty if they are few.
fn reserved_copy(memory: &MemoryReservation, bytes: usize, what: &str) -> Result<MemoryReservation> {
    let copied = memory.new_empty();
    if bytes >= UNRESERVED_BYTES {
        copied.try_grow(bytes).map_err(|error| {
            error.context(format!(
                "the {what} of an aggregate beside exact quantiles: {bytes} bytes wanted"
            ))
        })?;
    }
    Ok(copied)
}

fn accumulator(plain: &PlainAggregate) -> Result<Box<dyn Accumulator>> {
    let inner = plain.expr.create_accumulator()?;
    Ok(if plain.keeps_input() {
        Box::new(InputCounting { inner, bytes: 0 })
    } else {
        inner
    })
}

/// An accumulator that holds on to its input arrays, as `array_agg` does. Its own size leaves out the buffers behind string views, and the
/// room that buffers have beyond their rows, so the bytes of the input are counted here.
#[derive(Debug)]
struct InputCounting {
    inner: Box<dyn Accumulator>,
    /// Bytes that are [`allocated`] for all input arrays.
    bytes: usize,
}

impl InputCounting {
    fn add(&mut self, columns: &[ArrayRef]) {
        let held = |column: &ArrayRef| column.get_array_memory_size().max(row_bytes(column));
        self.bytes += allocated(columns.iter().map(held).sum());
    }
}

/// Bytes that are reserved for a byte of an array that is kept, as a percentage.
const ALLOCATED_PERCENT: usize = 125;

/// Bytes that an allocator takes for arrays of `bytes` bytes, at most: it rounds the sizes of large buffers up, and memory that other
/// buffers between them have freed may stay with it.
pub(super) fn allocated(bytes: usize) -> usize {
    bytes * ALLOCATED_PERCENT / 100
}

/// The column, or a copy of it if it would keep alive more than twice the bytes of its own rows.
///
/// # Errors
/// Arrow's.
pub(super) fn lean(column: &ArrayRef) -> Result<ArrayRef> {
    if column.get_array_memory_size() > 2 * row_bytes(column) {
        without_others(column)
    } else {
        Ok(Arc::clone(column))
    }
}

impl Accumulator for InputCounting {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values.iter().map(lean).collect::<Result<Vec<_>>>()?;
        self.add(&values);
        self.inner.update_batch(&values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.inner.evaluate()
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.inner.size().max(self.bytes)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.add(states);
        self.inner.merge_batch(states)
    }
}
