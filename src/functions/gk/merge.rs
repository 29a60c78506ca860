//! The accumulator of `gk_merge`, which merges stored sketches.

use std::mem::size_of;

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::Accumulator;

use super::accumulator::stored;
use crate::sketch::{AnySketch, AnySummary, Header, Variant};

/// Merges stored sketches.
#[derive(Debug, Default)]
pub(super) struct MergeAccumulator {
    /// The name of the values' type, and the merged sketch; `None` before the first sketch.
    merged: Option<(Vec<u8>, AnySketch)>,
}

impl MergeAccumulator {
    /// Merges one stored sketch.
    fn merge(&mut self, bytes: &[u8]) -> Result<()> {
        let tag = Header::read(bytes)?.tag;
        let summary = AnySummary::read(bytes, tag)?;
        let (own, sketch) = self.merged.get_or_insert_with(|| {
            (
                tag.to_vec(),
                AnySketch::new(summary.width(), summary.epsilon(), Variant::Modified),
            )
        });
        if own != tag {
            return exec_err!(
                "gk_merge of sketches of two types: {} and {}",
                String::from_utf8_lossy(own),
                String::from_utf8_lossy(tag)
            );
        }
        sketch.merge(summary)
    }

    /// The merged sketch in its stored form; `None` if there was none.
    fn stored(&mut self) -> Result<Option<Vec<u8>>> {
        let Some((tag, sketch)) = self.merged.take() else {
            return Ok(None);
        };
        let summary = sketch.partial()?;
        let bytes = summary.write(&tag);
        let mut sketch = AnySketch::new(summary.width(), summary.epsilon(), Variant::Modified);
        sketch.merge(summary)?;
        self.merged = Some((tag, sketch));
        Ok(Some(bytes))
    }
}

impl Accumulator for MergeAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        stored(values)?
            .iter()
            .flatten()
            .try_for_each(|bytes| self.merge(bytes))
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Binary(self.stored()?))
    }

    fn size(&self) -> usize {
        let held = self
            .merged
            .as_ref()
            .map_or(0, |(tag, sketch)| tag.capacity() + sketch.size());
        size_of::<Self>() + held
    }
}
