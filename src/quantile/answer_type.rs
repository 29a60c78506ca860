//! Types of answers.

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{Result, plan_err};

use super::{Method, builtin, spark};
use crate::key::Order;

impl Method {
    /// The type of the answer for one quantile of a column of type `data_type`.
    ///
    /// # Errors
    /// A planning error if the type has no order, or if the method needs values between two others and the type has
    /// none.
    pub fn result_type(self, data_type: &DataType) -> Result<DataType> {
        let order = Order::try_new(data_type)?;
        if self.is_builtin() {
            return builtin::result_type(self, data_type);
        }
        if self == Method::SparkPercentile {
            return spark::result_type(data_type);
        }
        if !self.interpolates() {
            return Ok(data_type.clone());
        }
        Ok(match data_type {
            DataType::Decimal256(..) => data_type.clone(),
            discrete if matches!(order, Order::Bytes(_)) || matches!(discrete, DataType::Interval(_)) => {
                return plan_err!(
                    "quantile method '{self}' needs values between two others, and type {discrete} has none: allowed \
                     are {}",
                    Method::names(|method| !method.interpolates())
                );
            }
            DataType::Date32 | DataType::Date64 => DataType::Timestamp(TimeUnit::Millisecond, None),
            DataType::Boolean => DataType::Float64,
            integer if integer.is_integer() => DataType::Float64,
            kept => kept.clone(),
        })
    }
}
