//! The most frequent values of a column.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::by_reads::{ByReads, ReadPart, append_values};
use crate::functions::CHANGED;
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
    /// Bytes that the counts of a read may take.
    room: usize,
    /// Rows whose values a read may hold, if they are to be counted here.
    most: u64,
    /// Number of rows with a value, that the first read saw.
    seen: Option<u64>,
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
    ) -> Result<Self> {
        let mut keys = Vec::new();
        for batch in sample {
            append_values(&spec, batch, &mut keys)?;
        }
        Ok(Self {
            selection: FrequentSelection::new(frequency.k(), keys, rows),
            frequency,
            spec,
            room: usize::MAX,
            most: u64::MAX,
            seen: None,
        })
    }

    /// The question, whose counts take at most so many bytes; while they are merged, twice that.
    pub(super) fn within(self, room: usize) -> Self {
        Self { room, ..self }
    }

    /// The question, which is left to an aggregation if more rows than these have values that are to be held.
    pub(super) fn of_at_most(self, most: u64) -> Self {
        Self { most, ..self }
    }
}

impl<K: GroupKey> ByReads for MostFrequent<K> {
    type Part = FrequentPart<K>;

    fn part(&self, parts: usize, memory: MemoryReservation) -> Result<FrequentPart<K>> {
        Ok(FrequentPart {
            spec: self.spec.clone(),
            cells: FrequentCells::try_new(Arc::clone(self.selection.wanted()), memory, self.room / parts)?,
            keys: Vec::new(),
        })
    }

    fn is_left(&self) -> bool {
        self.selection.kept_rows() > self.most
    }

    fn narrow(&mut self, parts: Vec<FrequentPart<K>>) -> Result<bool> {
        let mut parts = parts.into_iter().map(|part| part.cells);
        let Some(mut all) = parts.next() else {
            return Ok(true);
        };
        for part in parts {
            all.merge(&part, self.room);
        }
        let now = all.rows.iter().map(|rows| rows.own + rows.others).sum();
        let rows = *self.seen.get_or_insert(now);
        if rows != now {
            return exec_err!("{rows} values were read first, {now} later: {CHANGED}");
        }
        self.selection.narrow(&all)
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
