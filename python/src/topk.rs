//! The values with the greatest keys.

use std::num::NonZeroU32;
use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::common::internal_datafusion_err;
use pyo3::prelude::*;

use crate::error::{exception, mistake};
use crate::output::Answer;
use crate::session::without_tables;
use crate::tables::array;
use crate::wait::Calls;

/// The `k` values with the greatest keys, or with the least, best first.
#[pyfunction]
pub(crate) fn topk(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    keys: &Bound<'_, PyAny>,
    k: i64,
    largest: bool,
) -> PyResult<Answer> {
    let k = u32::try_from(k).ok().and_then(NonZeroU32::new);
    let k = k.ok_or_else(|| mistake("k is out of range: allowed are whole numbers from 1 to 2^32 - 1"))?;
    let (values, keys) = (array(values)?, array(keys)?);
    if values.len() != keys.len() {
        return Err(mistake(format!(
            "{} values and {} keys: there must be as many",
            values.len(),
            keys.len()
        )));
    }
    let field = |name, array: &dyn Array| Field::new(name, array.data_type().clone(), true);
    let schema = Schema::new(vec![field("value", values.as_ref()), field("key", keys.as_ref())]);
    let batch = RecordBatch::try_new(Arc::new(schema), vec![values, keys])
        .map_err(|error| exception(error.into()))?;
    let session = without_tables()?;
    let order = if largest { "desc" } else { "asc" };
    let call = format!("topk_by(value, key, {k}, '{order}')");
    Calls::new(false).run(py, |_| async move {
        let frame = session.read_batch(batch)?;
        let call = frame.parse_sql_expr(&call)?;
        let rows = frame.aggregate(Vec::new(), vec![call])?.collect().await?;
        let list = rows.first().and_then(|rows| rows.column(0).as_list_opt::<i32>());
        let list = list.ok_or_else(|| internal_datafusion_err!("topk_by gave no list"))?;
        // Without a key there is no list.
        Ok(Answer(if list.is_valid(0) {
            list.value(0)
        } else {
            list.values().slice(0, 0)
        }))
    })
}
