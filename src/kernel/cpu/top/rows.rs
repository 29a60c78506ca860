//! Rows of a batch with what is carried beside their keys.

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::common::Result;

use super::chunks::Chunks;
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

/// Rows of several batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeldRows<'a, K> {
    /// The number of each row's group.
    pub(super) groups: &'a [u32],
    /// The key of each row: larger keys are better.
    pub(super) keys: &'a [K],
    /// Further columns that belong to the rows.
    pub(super) payload: &'a Chunks,
}

/// The columns of `payload` that `order` compares, of some rows.
pub(super) fn compared(order: &RowOrder, payload: &Chunks, rows: &[u32]) -> Result<Vec<ArrayRef>> {
    let rows = UInt32Array::from(rows.to_vec());
    payload.rows_of(order.columns(), &rows)
}
