//! Arguments of scalar functions that are the same in all rows.

use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::ColumnarValue;

/// The value that an argument has in all rows.
///
/// # Errors
/// An error of DataFusion's for an argument without rows.
pub(super) fn first_value(argument: &ColumnarValue) -> Result<ScalarValue> {
    match argument {
        ColumnarValue::Scalar(value) => Ok(value.clone()),
        ColumnarValue::Array(values) => ScalarValue::try_from_array(values, 0),
    }
}
