//! Data of Python as tables in memory.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, RecordBatchOptions, new_empty_array};
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3_arrow::input::AnyRecordBatch;

use crate::error::{exception, mistake};
use crate::foreign;
use crate::input::Input;

/// Rows of a batch of a table: large ones are cut, so that all threads have some. A multiple of 8, so that bits are shared.
const BATCH_ROWS: usize = 1 << 16;

/// A table of `object`: one that it offers by DataFusion's C interface, or else one in memory, read by `partitions` threads: of anything that
/// offers Arrow's C interface, without a copy, or of a dict of arrays.
///
/// # Errors
/// An exception that names what cannot be a table.
pub(crate) fn table(object: &Bound<'_, PyAny>, partitions: usize) -> PyResult<Arc<dyn TableProvider>> {
    if foreign::is_table(object)? {
        return foreign::table(object);
    }
    let (schema, batches) = match object.cast::<PyDict>() {
        Ok(columns) => columns_of(columns)?,
        Err(_) => batches_of(object)?,
    };
    let batches: Vec<RecordBatch> = batches.iter().flat_map(cut).collect();
    let each = batches.len().div_ceil(partitions.max(1)).max(1);
    let mut parts: Vec<Vec<RecordBatch>> = batches.chunks(each).map(<[_]>::to_vec).collect();
    if parts.is_empty() {
        parts.push(Vec::new());
    }
    Ok(Arc::new(MemTable::try_new(schema, parts).map_err(exception)?))
}

/// The batches of an object that offers Arrow's C interface.
fn batches_of(object: &Bound<'_, PyAny>) -> PyResult<(SchemaRef, Vec<RecordBatch>)> {
    let reader = object.extract::<AnyRecordBatch>()?.into_reader()?;
    let schema = reader.schema();
    // Whoever made the stream may want the interpreter's lock on another thread.
    let batches = object
        .py()
        .detach(|| reader.collect::<Result<Vec<_>, ArrowError>>());
    Ok((schema, batches.map_err(|error| exception(error.into()))?))
}

/// The batch in pieces.
fn cut(batch: &RecordBatch) -> Vec<RecordBatch> {
    let starts = (0..batch.num_rows()).step_by(BATCH_ROWS);
    starts
        .map(|start| batch.slice(start, BATCH_ROWS.min(batch.num_rows() - start)))
        .collect()
}

/// The columns of a dict from names to arrays.
fn columns_of(columns: &Bound<'_, PyDict>) -> PyResult<(SchemaRef, Vec<RecordBatch>)> {
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for (name, values) in columns {
        let name: String = name
            .extract()
            .map_err(|_| mistake("names of columns are strings"))?;
        let array = array(&values)?;
        fields.push(Field::new(name, array.data_type().clone(), true));
        arrays.push(array);
    }
    let schema = Arc::new(Schema::new(fields));
    let batch = batch(Arc::clone(&schema), arrays).map_err(|error| exception(error.into()))?;
    Ok((schema, vec![batch]))
}

/// A batch of these columns, which may be none.
fn batch(schema: SchemaRef, arrays: Vec<ArrayRef>) -> Result<RecordBatch, ArrowError> {
    let rows = arrays.first().map_or(0, |array| array.len());
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, arrays, &options)
}

/// The values of an object as one array: shared if they are one array of Arrow, else copied.
pub(crate) fn array(object: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let input = Input::of(object)?;
    let read = input.with(|values| {
        let pieces = values.read(0..values.rows())?;
        match pieces.as_slice() {
            [] => Ok(new_empty_array(values.data_type())),
            [one] => Ok(Arc::clone(one)),
            several => {
                let several: Vec<&dyn Array> = several.iter().map(AsRef::as_ref).collect();
                Ok(concat(&several)?)
            }
        }
    })?;
    read.map_err(exception)
}
