//! DataFusion's accumulators beside quantiles, with the memory that they hold.

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

/// Copies of less than so many bytes are not reserved before they are made.
const SMALL_BYTES: usize = 1 << 16;

/// An accumulator for each plain aggregate, over the same rows.
pub(super) struct PlainAccumulators {
    list: Vec<PlainAggregate>,
    accumulators: Vec<Box<dyn Accumulator>>,
    memory: MemoryReservation,
}

impl PlainAccumulators {
    /// Empty ones, whose memory is accounted to the consumer of `memory`.
    pub(super) fn try_new(list: &[PlainAggregate], memory: MemoryReservation) -> Result<Self> {
        Ok(Self {
            list: list.to_vec(),
            accumulators: list.iter().map(accumulator).collect::<Result<_>>()?,
            memory,
        })
    }

    /// Adds the rows of a batch. What is held then is reserved by [`Self::reserve`].
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

    /// Reserves what is held.
    ///
    /// # Errors
    /// `ResourcesExhausted` that says how much is wanted.
    pub(super) fn reserve(&self) -> Result<()> {
        let held = self.accumulators.iter().map(|accumulator| accumulator.size());
        let held = held.sum();
        self.memory.try_resize(held).map_err(|error| {
            error.context(format!(
                "aggregates beside exact quantiles, which cannot be spilled: {held} bytes wanted"
            ))
        })
    }

    /// Adds what others, of further rows, have.
    ///
    /// # Errors
    /// An accumulator's, or `ResourcesExhausted` where states do not fit beside what they are made of.
    pub(super) fn merge(&mut self, others: Self) -> Result<()> {
        let (accumulators, memory) = (others.accumulators, others.memory);
        for (target, mut part) in self.accumulators.iter_mut().zip(accumulators) {
            let held = part.size();
            let copied = reserved_copy(&self.memory, held, "state")?;
            let state = part.state()?;
            let state = state.iter().map(ScalarValue::to_array);
            target.merge_batch(&state.collect::<Result<Vec<ArrayRef>>>()?)?;
            drop((part, copied));
            memory.shrink(held.min(memory.size()));
        }
        drop(memory);
        self.reserve()
    }

    /// The answer of the aggregate at `index`, and its memory.
    ///
    /// # Errors
    /// The accumulator's, or `ResourcesExhausted` where the answer does not fit beside what it is made of.
    pub(super) fn evaluate(&mut self, index: usize) -> Result<(ScalarValue, MemoryReservation)> {
        let accumulator = &mut self.accumulators[index];
        let copied = reserved_copy(&self.memory, accumulator.size(), "answer")?;
        Ok((accumulator.evaluate()?, copied))
    }
}

/// Memory for a copy of what an accumulator holds.
fn reserved_copy(memory: &MemoryReservation, bytes: usize, what: &str) -> Result<MemoryReservation> {
    let copied = memory.new_empty();
    if bytes >= SMALL_BYTES {
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
        Box::new(Keeping { inner, bytes: 0 })
    } else {
        inner
    })
}

/// An accumulator that keeps its input as it came: what it says of its size leaves out what lies behind views.
#[derive(Debug)]
struct Keeping {
    inner: Box<dyn Accumulator>,
    /// Of all that came.
    bytes: usize,
}

impl Keeping {
    fn add(&mut self, columns: &[ArrayRef]) {
        self.bytes += columns.iter().map(row_bytes).sum::<usize>();
    }
}

/// The column, or a copy that does not keep much more alive than its own rows.
pub(super) fn lean(column: &ArrayRef) -> Result<ArrayRef> {
    if column.get_array_memory_size() > 2 * row_bytes(column) {
        without_others(column)
    } else {
        Ok(Arc::clone(column))
    }
}

impl Accumulator for Keeping {
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
