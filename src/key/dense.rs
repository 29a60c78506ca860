//! Values without NULLs and without filtered rows.

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute::{filter, is_not_null};
use datafusion::common::Result;

/// A mask of the rows that are not NULL and, if there is a `mask`, true in it. `None`: all rows.
///
/// # Errors
/// An error of Arrow if `mask` is not as long as `values`.
pub(crate) fn kept(values: &dyn Array, mask: Option<&BooleanArray>) -> Result<Option<BooleanArray>> {
    if mask.is_none() && values.logical_null_count() == 0 {
        return Ok(None);
    }
    let valid = is_not_null(values)?;
    let keep = match mask {
        None => valid,
        Some(mask) => {
            let mask = match mask.nulls() {
                None => mask.values().clone(),
                Some(nulls) => mask.values() & nulls.inner(),
            };
            BooleanArray::new(valid.values() & &mask, None)
        }
    };
    Ok((keep.true_count() < values.len()).then_some(keep))
}

/// `values` without NULLs and without the rows where `mask` is false or NULL. `None`: there is nothing to drop.
///
/// # Errors
/// An error of Arrow if `mask` is not as long as `values`.
pub fn dense(values: &dyn Array, mask: Option<&BooleanArray>) -> Result<Option<ArrayRef>> {
    Ok(match kept(values, mask)? {
        None => None,
        Some(keep) => Some(filter(values, &keep)?),
    })
}
