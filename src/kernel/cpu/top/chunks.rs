//! Columns of rows that came in batches, which are copied once only: where rows are taken out.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array, new_empty_array};
use datafusion::arrow::compute::{concat, interleave, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, internal_datafusion_err};

use crate::kernel::cpu::columns::{row_bytes, without_others};
use crate::kernel::cpu::row_ranges::RowRanges;

/// Rows of an array, about.
const ROWS: usize = 256;

/// Most bytes of a short row.
const SHORT: usize = 256;

/// Whether values of a type lie one behind the other in an array.
fn is_flat(data_type: &DataType) -> bool {
    data_type.is_primitive()
        || matches!(
            data_type,
            DataType::Boolean
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Binary
                | DataType::LargeBinary
        )
}

/// Columns of equal length, each as the arrays in which its rows came.
#[derive(Debug)]
pub(super) struct Chunks {
    types: Vec<DataType>,
    /// The arrays of each column.
    columns: Vec<Vec<ArrayRef>>,
    /// The rows of each array.
    ranges: RowRanges,
    bytes: usize,
}

impl Chunks {
    /// Columns of these types, without rows.
    pub(super) fn new(types: Vec<DataType>) -> Self {
        Self {
            columns: vec![Vec::new(); types.len()],
            types,
            ranges: RowRanges::of_about(ROWS),
            bytes: 0,
        }
    }

    /// Number of columns.
    pub(super) fn width(&self) -> usize {
        self.columns.len()
    }

    /// Bytes of all rows.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds `rows` rows, an array for each column.
    pub(super) fn push(&mut self, columns: &[ArrayRef], rows: usize) {
        if rows == 0 {
            return;
        }
        self.ranges.push(rows);
        for (chunks, column) in self.columns.iter_mut().zip(columns) {
            self.bytes += row_bytes(column);
            chunks.push(Arc::clone(column));
        }
    }

    /// Joins the arrays of short rows: to take most rows out of one array, twice, costs less than to find each of them in one of many.
    ///
    /// # Errors
    /// Arrow's.
    pub(super) fn join(&mut self) -> Result<()> {
        let rows = self.ranges.rows();
        let is_short = self.bytes <= rows.saturating_mul(SHORT).min(i32::MAX as usize);
        if self.ranges.len() < 2 || !is_short || !self.types.iter().all(is_flat) {
            return Ok(());
        }
        for chunks in &mut self.columns {
            let arrays: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
            *chunks = vec![concat(&arrays)?];
        }
        self.ranges.clear();
        self.ranges.push(rows);
        Ok(())
    }

    /// These columns in place of all rows.
    pub(super) fn replace(&mut self, columns: Vec<ArrayRef>, rows: usize) {
        self.columns.iter_mut().for_each(Vec::clear);
        self.ranges.clear();
        self.bytes = 0;
        self.push(&columns, rows);
    }

    /// Copies of some rows of some columns, in the order of their numbers in `rows`.
    ///
    /// # Errors
    /// Arrow's; an internal error for a column that is not there.
    pub(super) fn rows_of(
        &self,
        columns: impl IntoIterator<Item = usize>,
        rows: &UInt32Array,
    ) -> Result<Vec<ArrayRef>> {
        let places = match self.ranges.len() {
            0 | 1 => Vec::new(),
            _ => self.places(rows)?,
        };
        let of_column = |column: usize| {
            let chunks = self.columns.get(column);
            let chunks =
                chunks.ok_or_else(|| internal_datafusion_err!("no column {column} of rows that are held"))?;
            match chunks.as_slice() {
                [] => Ok(new_empty_array(&self.types[column])),
                [one] => Ok(take(one.as_ref(), rows, None)?),
                many => {
                    let arrays: Vec<&dyn Array> = many.iter().map(AsRef::as_ref).collect();
                    Ok(interleave(&arrays, &places)?)
                }
            }
        };
        columns.into_iter().map(of_column).collect()
    }

    /// Copies of some rows of all columns, which keep no values of other rows alive.
    ///
    /// # Errors
    /// Those of [`Self::rows_of`].
    pub(super) fn taken(&self, rows: &UInt32Array) -> Result<Vec<ArrayRef>> {
        let columns = self.rows_of(0..self.width(), rows)?;
        columns.iter().map(without_others).collect()
    }

    /// The columns, whose rows are in one array each, or of which there are none.
    ///
    /// # Errors
    /// An internal error if they came in several batches.
    pub(super) fn whole(&self) -> Result<Vec<ArrayRef>> {
        let columns = self.columns.iter().zip(&self.types);
        columns
            .map(|(chunks, data_type)| match chunks.as_slice() {
                [] => Ok(new_empty_array(data_type)),
                [one] => Ok(Arc::clone(one)),
                many => Err(internal_datafusion_err!(
                    "{} arrays of rows that were cut",
                    many.len()
                )),
            })
            .collect()
    }

    /// The array with each row, and the row's index there.
    fn places(&self, rows: &UInt32Array) -> Result<Vec<(usize, usize)>> {
        let places = rows.values().iter().map(|row| {
            let row = *row as usize;
            let found = self.ranges.find(row).map(|(chunk, start)| (chunk, row - start));
            found.ok_or_else(|| {
                internal_datafusion_err!("no row {row} of {} that are held", self.ranges.rows())
            })
        });
        places.collect()
    }
}
