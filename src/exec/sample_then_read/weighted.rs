//! Quantiles of rows with weights.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::buffer::ScalarBuffer;
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::by_reads::{ByReads, ReadPart};
use crate::functions::{CHANGED, counted_weights, weights_of};
use crate::kernel::cpu::weighted_cells::{KeepingCells, MergedCells, WeightedCells};
use crate::key::{Key, KeySpec};
use crate::quantile::TypedAnswerSpec;
use crate::select::weighted::WeightedSelection;

/// The quantiles of values in the first column with the weights in the second one.
pub(super) struct Weighted<K> {
    column: TypedAnswerSpec,
    selection: WeightedSelection<K>,
    /// The cells of the next read.
    cells: Arc<KeepingCells<K>>,
    /// Number of rows, and the sum of their weights, that the first read saw.
    seen: Option<[u64; 2]>,
}

impl<K: Key> Weighted<K> {
    /// The question before the first read of about `rows` rows, of which each may keep `most`.
    ///
    /// # Errors
    /// An execution error for a weight that is not allowed.
    pub(super) fn try_new(
        column: TypedAnswerSpec,
        sample: &[RecordBatch],
        rows: u64,
        most: u64,
    ) -> Result<Self> {
        let (mut keys, mut weights) = (Vec::new(), Vec::new());
        for batch in sample {
            weights.extend(append_rows(column.spec(), batch, &mut keys)?.iter().copied());
        }
        let sample = keys.into_iter().zip(weights).collect();
        let (quantile_spec, width) = (column.quantile_spec().clone(), column.spec().width());
        let ranks = Box::new(move |n| quantile_spec.ranks(n));
        let selection = WeightedSelection::try_new(ranks, width, sample, rows, most)?;
        Ok(Self {
            cells: Arc::new(selection.keeping_cells()),
            selection,
            column,
            seen: None,
        })
    }
}

/// Appends the keys of the rows of a batch that count, and gives their weights.
fn append_rows<K: Key>(spec: &KeySpec, batch: &RecordBatch, keys: &mut Vec<K>) -> Result<ScalarBuffer<u64>> {
    let (columns, _) = counted_weights(batch.columns(), None)?;
    spec.append_keys(columns[0].as_ref(), keys)?;
    Ok(weights_of(&columns).values().clone())
}

impl<K: Key> ByReads for Weighted<K> {
    type Part = WeightedPart<K>;

    fn part(&self, _parts: usize, memory: MemoryReservation) -> Result<WeightedPart<K>> {
        Ok(WeightedPart {
            spec: self.column.spec().clone(),
            count: WeightedCells::try_new(Arc::clone(&self.cells), memory)?,
            keys: Vec::new(),
        })
    }

    fn narrow(&mut self, parts: Vec<WeightedPart<K>>) -> Result<bool> {
        let parts = parts.into_iter().map(|part| part.count);
        let read = MergedCells::of(self.cells.len(), parts);
        let now = [read.counts.rows.iter().sum(), read.counts.total()?];
        let [rows, weight] = *self.seen.get_or_insert(now);
        if [rows, weight] != now {
            return exec_err!(
                "{rows} rows with a weight of {weight} were read first, {} with {} later: {CHANGED}",
                now[0],
                now[1]
            );
        }
        let is_done = self.selection.narrow(&read.counts, read.kept.as_deref())?;
        if !is_done {
            self.cells = Arc::new(self.selection.keeping_cells());
        }
        Ok(is_done)
    }

    fn answer(&self) -> Result<ArrayRef> {
        let [_, weight] = self.seen.unwrap_or_default();
        let key_at = |rank| self.selection.key_at(rank);
        let quantile_spec = self.column.quantile_spec();
        let answers = quantile_spec.answers(self.column.spec(), weight, &key_at)?;
        self.column.row(answers, weight)?.to_array()
    }
}

/// A part of the rows.
pub(super) struct WeightedPart<K> {
    spec: KeySpec,
    count: WeightedCells<K>,
    /// Keys of a batch.
    keys: Vec<K>,
}

impl<K: Key> ReadPart for WeightedPart<K> {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.keys.clear();
        let weights = append_rows(&self.spec, batch, &mut self.keys)?;
        self.count.push(&self.keys, &weights);
        Ok(())
    }

    fn held(&self) -> usize {
        self.count.held()
    }
}
