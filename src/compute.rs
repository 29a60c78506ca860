//! Quantiles of an array, without a session and without a runtime.

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::cast;
use datafusion::common::{Result, internal_datafusion_err};

use crate::functions::{ordered_type, select_ranks};
use crate::key::KeySpec;
use crate::select::quantile::{Ask, Method, Quantile};

/// Exact quantiles of `values`: one for each of `quantiles` (numbers in [0, 1]), in that order.
///
/// The same answers as `exact_quantiles` in SQL: NULLs are skipped, all NaNs are one value above every other, and
/// without values each answer is NULL. Cost: 16 bytes for each value beside the array, and one selection, linear in
/// the values times the logarithm of the number of quantiles.
///
/// ```
/// # use datafusion::arrow::array::{AsArray, Int64Array};
/// # use datafusion::arrow::datatypes::Int64Type;
/// # use datafusion_quantiles::compute::quantiles;
/// # use datafusion_quantiles::select::quantile::Method;
/// let values = Int64Array::from(vec![Some(30), None, Some(10), Some(20)]);
/// let answers = quantiles(&values, &[1.0, 0.5], Method::Disc)?;
/// assert_eq!(answers.as_primitive::<Int64Type>().values(), &[30, 20]);
/// # Ok::<(), datafusion::error::DataFusionError>(())
/// ```
///
/// # Errors
/// A planning error that names a quantile outside [0, 1], a type that has no order, or one that `method` cannot
/// interpolate.
pub fn quantiles(values: &dyn Array, quantiles: &[f64], method: Method) -> Result<ArrayRef> {
    let list = quantiles.iter().map(|&quantile| Quantile::try_from_f64(quantile));
    let ask = Ask {
        quantiles: list.collect::<Result<_>>()?,
        method,
        descending: false,
    };
    let data_type = ordered_type(values.data_type());
    method.result_type(data_type)?;
    let spec = KeySpec::try_new(data_type)?;
    let mut keys = match data_type == values.data_type() {
        true => spec.keys(values)?,
        false => spec.keys(cast(values, data_type)?.as_ref())?,
    };
    let n = keys.len() as u64;
    select_ranks(&mut keys, &ask.ranks(n));
    let key_at = |rank: u64| {
        let key = keys.get(rank as usize - 1).copied();
        key.ok_or_else(|| internal_datafusion_err!("rank {rank} of {n} values"))
    };
    ask.answers(&spec, n, &key_at)
}
