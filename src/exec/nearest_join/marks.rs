//! Numbers for queries and rows, which are equal where the pair is left out.

use std::collections::HashMap;

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::common::Result;

use super::spec::EqualPairs;
use crate::kernel::cpu::distance::Marks;

/// The mark of rows that are equal to no query.
const NO_QUERY: u32 = Marks::UNWANTED - 1;

/// The marks of all queries.
#[derive(Debug)]
pub(super) struct QueryMarks {
    equal: EqualPairs,
    converter: RowConverter,
    numbers: HashMap<OwnedRow, u32>,
    pub(super) marks: Vec<u32>,
}

impl QueryMarks {
    /// Marks for queries. Equal ones have one mark.
    ///
    /// # Errors
    /// Arrow's, for types that have no rows.
    pub(super) fn try_new(equal: &EqualPairs, queries: &RecordBatch) -> Result<Self> {
        let mut found = Self {
            equal: equal.clone(),
            converter: converter(&queries.schema(), &equal.queries)?,
            numbers: HashMap::new(),
            marks: Vec::with_capacity(queries.num_rows()),
        };
        let columns: Vec<_> = equal
            .queries
            .iter()
            .map(|column| queries.column(*column).clone())
            .collect();
        let rows = found.converter.convert_columns(&columns)?;
        for (at, row) in rows.iter().enumerate() {
            let has_null = columns.iter().any(|column| column.is_null(at));
            found.marks.push(if has_null && !equal.null_is_value {
                Marks::UNWANTED
            } else {
                let next = found.numbers.len() as u32;
                *found.numbers.entry(row.owned()).or_insert(next)
            });
        }
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

    /// Bytes of memory, at most.
    pub(super) fn bytes(&self) -> usize {
        let rows = self
            .numbers
            .keys()
            .map(|row| row.as_ref().len() + 2 * size_of::<(OwnedRow, u32)>());
        self.marks.capacity() * size_of::<u32>() + rows.sum::<usize>()
    }
}

fn converter(schema: &SchemaRef, columns: &[usize]) -> Result<RowConverter> {
    let fields = columns
        .iter()
        .map(|column| SortField::new(schema.field(*column).data_type().clone()));
    Ok(RowConverter::new(fields.collect())?)
}
