//! The accumulator of one group: a sketch.

use std::mem::size_of;

use datafusion::arrow::array::{ArrayRef, AsArray};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::logical_expr::Accumulator;

use super::column::GkColumn;
use crate::sketch::AnySketch;

/// Adds the values of one group to a sketch.
#[derive(Debug)]
pub(super) struct GkAccumulator {
    column: GkColumn,
    /// The sketch; `None` before the first values.
    sketch: Option<AnySketch>,
}

/// The stored sketches in a state column.
pub(super) fn stored(states: &[ArrayRef]) -> Result<&datafusion::arrow::array::BinaryArray> {
    states
        .first()
        .and_then(|state| state.as_binary_opt::<i32>())
        .ok_or_else(|| internal_datafusion_err!("the state of a quantile sketch is one binary column"))
}

impl GkAccumulator {
    pub(super) fn new(column: GkColumn) -> Self {
        Self { column, sketch: None }
    }

    /// The sketch, which starts empty.
    fn sketch(&mut self) -> &mut AnySketch {
        self.sketch.get_or_insert_with(|| self.column.sketch())
    }
}

impl Accumulator for GkAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let spec = self.column.answer_spec().spec().clone();
        self.sketch().extend(&spec, values[0].as_ref())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for state in stored(states)?.iter().flatten() {
            let summary = self.column.read(state)?;
            self.sketch().merge(summary)?;
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let sketch = self.sketch.take().filter(|sketch| sketch.n() > 0);
        let state = sketch.map(|sketch| self.column.state(sketch)).transpose()?;
        Ok(vec![ScalarValue::Binary(state)])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sketch = self.sketch.take().filter(|sketch| sketch.n() > 0);
        let summary = sketch.map(|sketch| self.column.summary(sketch)).transpose()?;
        // A growing window frame goes on after its answer: merging the summary into a new sketch keeps the bound of the error.
        if let Some(summary) = &summary {
            self.sketch().merge(summary.clone())?;
        }
        ScalarValue::try_from_array(&self.column.rows(&[summary])?, 0)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.sketch.as_ref().map_or(0, AnySketch::size)
    }
}
