//! Accumulators that tell the most memory that they held.

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Accumulator;

/// An accumulator whose size never falls: it is the most that the accumulator inside held after any of its steps.
///
/// DataFusion's aggregation without groups reserves by how much an accumulator grows with each batch, and gives nothing back where one shrinks. One
/// that collects values and then brings equal ones together would be charged for every batch of a scan.
#[derive(Debug)]
pub(crate) struct PeakSize {
    inner: Box<dyn Accumulator>,
    most: usize,
}

impl PeakSize {
    /// The accumulator `inner`, with a size that never falls.
    pub(crate) fn of(inner: Box<dyn Accumulator>) -> Box<dyn Accumulator> {
        Box::new(Self { inner, most: 0 })
    }

    fn after<T>(&mut self, step: Result<T>) -> Result<T> {
        self.most = self.most.max(self.inner.size());
        step
    }
}

impl Accumulator for PeakSize {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let step = self.inner.update_batch(values);
        self.after(step)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let step = self.inner.evaluate();
        self.after(step)
    }

    fn size(&self) -> usize {
        self.most.max(self.inner.size())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let step = self.inner.state();
        self.after(step)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let step = self.inner.merge_batch(states);
        self.after(step)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let step = self.inner.retract_batch(values);
        self.after(step)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }
}
