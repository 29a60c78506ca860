//! Rows of a batch with what is carried beside their keys.

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::arrow::compute::take;
use datafusion::common::{Result, internal_err};

use crate::key::RowOrder;

/// The rows of a batch: slices and columns of equal length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a, K> {
    /// The number of each row's group.
    pub(crate) groups: &'a [u32],
    /// The key of each row: larger keys are better.
    pub(crate) keys: &'a [K],
    /// Further columns that belong to the rows.
    pub(crate) payload: &'a [ArrayRef],
}

/// The columns of `payload` that `order` compares, of some rows.
pub(super) fn compared(order: &RowOrder, payload: &[ArrayRef], rows: &[u32]) -> Result<Vec<ArrayRef>> {
    let rows = UInt32Array::from(rows.to_vec());
    let column = |column: usize| match payload.get(column) {
        Some(values) => Ok(take(values.as_ref(), &rows, None)?),
        None => internal_err!("no column {column} to order by"),
    };
    order.columns().map(column).collect()
}
