//! Rows of a batch with what is carried beside their keys.

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::arrow::compute::take;
use datafusion::common::{Result, internal_err};

use crate::key::RowOrder;

/// A batch: slices and columns of one length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a, K> {
    /// The number of each row's group.
    pub(crate) groups: &'a [u32],
    /// Its key, larger ones are better.
    pub(crate) keys: &'a [K],
    /// What belongs to it.
    pub(crate) payload: &'a [ArrayRef],
}

/// Columns of `payload` that an order looks at, of some rows.
pub(super) fn compared(order: &RowOrder, payload: &[ArrayRef], rows: &[u32]) -> Result<Vec<ArrayRef>> {
    let rows = UInt32Array::from(rows.to_vec());
    let column = |column: usize| match payload.get(column) {
        Some(values) => Ok(take(values.as_ref(), &rows, None)?),
        None => internal_err!("no column {column} to order by"),
    };
    order.columns().map(column).collect()
}
