//! The most frequent values of a column.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::by_reads::{ByReads, ReadPart, append_values, keys_of, same_number};
use crate::functions::shape::Frequency;
use crate::kernel::cpu::frequent_cells::FrequentCells;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::KeySpec;
use crate::select::frequent::FrequentSelection;

/// The most frequent values of the only column.
pub(super) struct MostFrequent<K> {
    frequency: Frequency,
    spec: KeySpec,
    selection: FrequentSelection<K>,
    limits: CountLimits,
    /// Number of rows with a value, that the first read saw.
    seen: Option<u64>,
}

/// What the counts of a read may take.
pub(super) struct CountLimits {
    /// Bytes for the values that are held; while they are merged, twice that. `None`: any number, but where more than `most_kept` rows have such
    /// values, the question is left to an aggregation.
    pub(super) room: Option<usize>,
    /// Rows whose values a read should hold at most.
    pub(super) most_kept: u64,
    /// The logarithm of the most cells for values that are no candidates.
    pub(super) most_bits: u32,
}

impl<K: GroupKey> MostFrequent<K> {
    /// The question before the first read of about `rows` rows.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn try_new(
        frequency: Frequency,
        spec: KeySpec,
        sample: &[RecordBatch],
        rows: u64,
        limits: CountLimits,
    ) -> Result<Self> {
        let keys = keys_of(&spec, sample)?;
        let CountLimits {
            most_kept, most_bits, ..
        } = limits;
        Ok(Self {
            selection: FrequentSelection::new(frequency.k(), keys, rows, most_kept, most_bits),
            frequency,
            spec,
            limits,
            seen: None,
        })
    }

    /// Bytes for the values that are held.
    fn room(&self) -> usize {
        self.limits.room.unwrap_or(usize::MAX)
    }
}

impl<K: GroupKey> ByReads for MostFrequent<K> {
    type Part = FrequentPart<K>;

    fn part(&self, parts: usize, memory: MemoryReservation) -> Result<FrequentPart<K>> {
        Ok(FrequentPart {
            spec: self.spec.clone(),
            cells: FrequentCells::try_new(Arc::clone(self.selection.wanted()), memory, self.room() / parts)?,
            keys: Vec::new(),
        })
    }

    fn is_left(&self) -> bool {
        self.limits.room.is_none() && self.selection.kept_rows() > self.limits.most_kept
    }

    fn narrow(&mut self, parts: Vec<FrequentPart<K>>) -> Result<bool> {
        let room = self.room();
        let mut parts = parts.into_iter().map(|part| part.cells);
        let Some(mut all) = parts.next() else {
            return Ok(true);
        };
        for part in parts {
            all.merge(&part, room);
        }
        same_number(&mut self.seen, all.rows)?;
        self.selection.narrow(all)
    }

    fn answer(&self) -> Result<ArrayRef> {
        self.frequency.row(&self.spec, self.selection.best())
    }
}

/// A part of the rows.
pub(super) struct FrequentPart<K> {
    spec: KeySpec,
    cells: FrequentCells<K>,
    /// Keys of a batch.
    keys: Vec<K>,
}

impl<K: GroupKey> ReadPart for FrequentPart<K> {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.keys.clear();
        append_values(&self.spec, batch, &mut self.keys)?;
        self.cells.push(&self.keys);
        Ok(())
    }

    fn held(&self) -> usize {
        self.cells.held()
    }
}
