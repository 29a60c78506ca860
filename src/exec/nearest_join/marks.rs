//! Numbers for queries and rows, which are equal where the pair is left out.

use std::collections::HashMap;

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::spec::EqualPairs;
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::distance::Marks;

/// The mark of rows that are equal to no query.
const NO_QUERY: u32 = Marks::UNWANTED - 1;

/// Most bytes of a value as a part of a comparable row, beside twice its own.
const FIELD_BYTES: usize = 36;

/// The marks of all queries.
#[derive(Debug)]
pub(super) struct QueryMarks {
    equal: EqualPairs,
    converter: RowConverter,
    numbers: HashMap<OwnedRow, u32>,
    pub(super) marks: Vec<u32>,
    memory: MemoryReservation,
}

/// Bytes of a slot of a hash table of [`QueryMarks`].
const SLOT_BYTES: usize = size_of::<(OwnedRow, u32)>() + 1;

impl QueryMarks {
    /// Marks for queries, in memory of their own. Equal ones have one mark.
    ///
    /// # Errors
    /// Arrow's, for types that have no rows. `ResourcesExhausted` if the memory pool is too small.
    pub(super) fn try_new(
        equal: &EqualPairs,
        queries: &RecordBatch,
        memory: MemoryReservation,
    ) -> Result<Self> {
        let count = queries.num_rows();
        let columns: Vec<_> = equal
            .queries
            .iter()
            .map(|column| queries.column(*column).clone())
            .collect();
        let held: usize = columns.iter().map(row_bytes).sum();
        memory.try_grow(2 * held + count * (size_of::<usize>() + columns.len() * FIELD_BYTES))?;
        let converter = converter(&queries.schema(), &equal.queries)?;
        let rows = converter.convert_columns(&columns)?;
        // A table that grows has twice the slots that it needs, and those of half the size beside them; each row has a copy.
        memory.try_resize(2 * rows.size() + count * (size_of::<u32>() + 4 * SLOT_BYTES))?;
        let mut found = Self {
            equal: equal.clone(),
            converter,
            numbers: HashMap::new(),
            marks: Vec::with_capacity(count),
            memory,
        };
        for (at, row) in rows.iter().enumerate() {
            let has_null = columns.iter().any(|column| column.is_null(at));
            found.marks.push(if has_null && !equal.null_is_value {
                Marks::UNWANTED
            } else {
                let next = found.numbers.len() as u32;
                *found.numbers.entry(row.owned()).or_insert(next)
            });
        }
        let kept = rows.size() + found.numbers.capacity() * 2 * SLOT_BYTES;
        drop(rows);
        found.memory.try_resize(kept + count * size_of::<u32>())?;
        Ok(found)
    }

    /// The marks of the rows of a batch.
    ///
    /// # Errors
    /// Arrow's.
    pub(super) fn of(&self, batch: &RecordBatch) -> Result<Vec<u32>> {
        let columns: Vec<_> = self
            .equal
            .rows
            .iter()
            .map(|column| batch.column(*column).clone())
            .collect();
        let rows = self.converter.convert_columns(&columns)?;
        let mark = |(at, row): (usize, datafusion::arrow::row::Row<'_>)| {
            let has_null = columns.iter().any(|column| column.is_null(at));
            if has_null && !self.equal.null_is_value {
                return Marks::UNWANTED;
            }
            self.numbers.get(&row.owned()).copied().unwrap_or(NO_QUERY)
        };
        Ok(rows.iter().enumerate().map(mark).collect())
    }
}

fn converter(schema: &SchemaRef, columns: &[usize]) -> Result<RowConverter> {
    let fields = columns
        .iter()
        .map(|column| SortField::new(schema.field(*column).data_type().clone()));
    Ok(RowConverter::new(fields.collect())?)
}
