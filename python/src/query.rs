//! Queries, which run when their rows are wanted, and answers.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatchOptions, StructArray};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{Field, FieldRef, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::arrow::util::pretty::pretty_format_batches_with_options;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::DataFrame;
use futures::StreamExt;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyTuple};
use pyo3_arrow::ffi::{ArrayIterator, to_stream_pycapsule};

use crate::error::exception;
use crate::output::{object, to_numpy};
use crate::place::{Place, planned};
use crate::wait::Calls;

/// A planned statement.
#[pyclass(module = "dfq", frozen)]
pub(crate) struct Query {
    frame: DataFrame,
    place: Place,
    calls: Calls,
}

impl Query {
    pub(crate) fn new(frame: DataFrame, place: Place, calls: Calls) -> Self {
        Self { frame, place, calls }
    }

    pub(crate) fn frame(&self) -> DataFrame {
        self.frame.clone()
    }

    /// The rows of a frame of the query's session.
    fn rows(&self, py: Python<'_>, frame: DataFrame) -> PyResult<Rows> {
        let schema = Arc::clone(frame.schema().inner());
        let place = self.place.clone();
        let batches = self
            .calls
            .run(py, |watch| async move { place.collect(frame, watch).await })?;
        // What ran may know better which columns have NULLs.
        let schema = batches.first().map_or(schema, |batch| batch.schema());
        Ok(Rows { schema, batches })
    }
}

#[pymethods]
impl Query {
    /// Names of the columns, with their types.
    fn columns(&self) -> Vec<(String, String)> {
        let fields = self.frame.schema().fields().iter();
        fields
            .map(|field| (field.name().clone(), field.data_type().to_string()))
            .collect()
    }

    /// Runs the query for all rows, or for the first ones.
    #[pyo3(signature = (limit=None))]
    fn collect(&self, py: Python<'_>, limit: Option<usize>) -> PyResult<Rows> {
        let frame = match limit {
            Some(limit) => self.frame().limit(0, Some(limit)).map_err(exception)?,
            None => self.frame(),
        };
        self.rows(py, frame)
    }

    /// The plan, or what it did if `analyze`, which runs the query.
    fn explain(&self, py: Python<'_>, analyze: bool) -> PyResult<Rows> {
        let frame = self.frame().explain(false, analyze).map_err(exception)?;
        self.rows(py, frame)
    }

    /// Runs the query while its rows are read; on a cluster, which may have to run it again, before.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let frame = self.frame();
        if self.place.is_remote() {
            return self.rows(py, frame)?.__arrow_c_stream__(py, requested_schema);
        }
        let (plan, stream) = self.calls.run(py, |_| async move {
            let (plan, context) = planned(frame).await?;
            let stream = execute_stream(Arc::clone(&plan), context)?;
            Ok((plan, stream))
        })?;
        let schema = stream.schema();
        let running = Running {
            query: Some((plan, stream)),
            calls: self.calls,
        };
        stream_capsule(py, &schema, running, requested_schema)
    }
}

/// The rows of a query that runs.
struct Running {
    /// The plan and its rows; gone after an error, or when a signal has cancelled the query.
    query: Option<(Arc<dyn ExecutionPlan>, SendableRecordBatchStream)>,
    calls: Calls,
}

impl Iterator for Running {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (plan, mut stream) = self.query.take()?;
        let next = Python::attach(|py| {
            let next = self.calls.run(py, |watch| async move {
                watch.plan(&plan);
                let next = stream.next().await.transpose()?;
                Ok(next.map(|batch| (batch, (plan, stream))))
            });
            next.map_err(|error| match error.is_instance_of::<PyKeyboardInterrupt>(py) {
                true => "interrupted".to_string(),
                false => error.value(py).to_string(),
            })
        });
        match next {
            Ok(Some((batch, query))) => {
                self.query = Some(query);
                Some(Ok(batch))
            }
            Ok(None) => None,
            Err(message) => {
                let error = DataFusionError::Execution(message);
                Some(Err(ArrowError::ExternalError(Box::new(error))))
            }
        }
    }
}

/// A stream of batches, as Arrow's C interface gives it: of structs.
fn stream_capsule<'py>(
    py: Python<'py>,
    schema: &SchemaRef,
    batches: impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send + 'static,
    requested_schema: Option<Bound<'py, PyCapsule>>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let field =
        Field::new_struct("", schema.fields().clone(), false).with_metadata(schema.metadata().clone());
    let field: FieldRef = Arc::new(field);
    let arrays = batches.map(|batch| Ok(Arc::new(StructArray::from(batch?)) as ArrayRef));
    let reader = ArrayIterator::new(arrays, field);
    Ok(to_stream_pycapsule(py, Box::new(reader), requested_schema)?)
}

/// Rows in memory.
#[pyclass(module = "dfq", frozen)]
pub(crate) struct Rows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Rows {
    /// All rows as one batch.
    fn one(&self) -> PyResult<RecordBatch> {
        if self.schema.fields().is_empty() {
            let rows = self.batches.iter().map(RecordBatch::num_rows).sum();
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), Vec::new(), &options);
            return batch.map_err(|error| exception(error.into()));
        }
        concat_batches(&self.schema, &self.batches).map_err(|error| exception(error.into()))
    }
}

/// How values are written.
fn format_options() -> FormatOptions<'static> {
    FormatOptions::default()
        .with_null("NULL")
        .with_display_error(true)
}

#[pymethods]
impl Rows {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let batches = self.batches.clone().into_iter().map(Ok);
        stream_capsule(py, &self.schema, batches, requested_schema)
    }

    /// Number of rows.
    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// A tuple of Python objects for each row.
    fn tuples<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = PyList::empty(py);
        for batch in &self.batches {
            for row in 0..batch.num_rows() {
                let items = batch.columns().iter().map(|column| object(py, column, row));
                rows.append(PyTuple::new(py, items.collect::<PyResult<Vec<_>>>()?)?)?;
            }
        }
        Ok(rows)
    }

    /// A NumPy array for each column, by its name.
    fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (all, columns) = (self.one()?, PyDict::new(py));
        for (field, column) in self.schema.fields().iter().zip(all.columns()) {
            columns.set_item(field.name(), to_numpy(py, column)?)?;
        }
        Ok(columns)
    }

    /// The text of each value, by row.
    fn texts(&self) -> PyResult<Vec<Vec<String>>> {
        let options = format_options();
        let mut rows = Vec::new();
        for batch in &self.batches {
            let formatters = batch
                .columns()
                .iter()
                .map(|column| ArrayFormatter::try_new(column, &options));
            let formatters = formatters
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| exception(error.into()))?;
            let row = |row| {
                formatters
                    .iter()
                    .map(|formatter| formatter.value(row).to_string())
                    .collect()
            };
            rows.extend((0..batch.num_rows()).map(row));
        }
        Ok(rows)
    }

    /// The first rows as a table of text.
    fn table(&self, rows: usize) -> PyResult<String> {
        // Without a batch there would be no names of columns.
        let mut shown = vec![RecordBatch::new_empty(Arc::clone(&self.schema))];
        let mut left = rows;
        for batch in &self.batches {
            let taken = left.min(batch.num_rows());
            shown.push(batch.slice(0, taken));
            left -= taken;
        }
        let table = pretty_format_batches_with_options(&shown, &format_options());
        Ok(table.map_err(|error| exception(error.into()))?.to_string())
    }
}
