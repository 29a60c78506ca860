//! Where values lie on the axis of a picture.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};

use crate::quantile::fences::stored;

/// Where a number or a time lies among the values of its type; `None` if that is no finite number.
///
/// # Errors
/// A value of a type without such a place.
pub fn position(value: &ScalarValue) -> Result<Option<f64>> {
    let number = value.cast_to(&stored(&value.data_type()))?;
    Ok(match number.cast_to(&DataType::Float64)? {
        ScalarValue::Float64(Some(number)) if number.is_finite() => Some(number),
        _ => None,
    })
}
