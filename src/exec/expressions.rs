//! Expressions evaluated over a batch.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute::prep_null_mask_filter;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_err};
use datafusion::physical_expr::PhysicalExpr;

/// The values of an expression, one for each row of the batch.
///
/// # Errors
/// The expression's.
pub(super) fn values(expr: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<ArrayRef> {
    expr.evaluate(batch)?.into_array(batch.num_rows())
}

/// The rows of a batch that pass a FILTER, as an array without NULLs. A row whose predicate is NULL does not pass.
///
/// # Errors
/// The expression's; an execution error for a predicate that is not Boolean.
pub(super) fn mask(filter: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<BooleanArray> {
    let mask = values(filter, batch)?;
    let Some(mask) = mask.as_any().downcast_ref::<BooleanArray>() else {
        return exec_err!("FILTER ({filter}) must be Boolean, got {}", mask.data_type());
    };
    Ok(match mask.null_count() {
        0 => BooleanArray::new(mask.values().clone(), None),
        _ => prep_null_mask_filter(mask),
    })
}
