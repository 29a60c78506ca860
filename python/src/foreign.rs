//! DataFusion's C interface: tables of other packages that have DataFusion inside, and functions for sessions of the package `datafusion`.
//!
//! What crosses lies in capsules of Python, whose layout is that of one major version of DataFusion.

use std::ffi::CStr;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::execution::{SessionStateBuilder, TaskContextProvider};
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};
use datafusion_ffi::execution::FFI_TaskContextProvider;
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_ffi::table_provider::FFI_TableProvider;
use datafusion_ffi::udaf::FFI_AggregateUDF;
use datafusion_ffi::udf::FFI_ScalarUDF;
use datafusion_quantiles::SessionStateBuilderExt;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use crate::error::mistake;
use crate::session::without_tables;

/// Names of capsules, which say what is in them.
const TABLE: &CStr = c"datafusion_table_provider";
const CODEC: &CStr = c"datafusion_logical_extension_codec";
const TASK_CONTEXT: &CStr = c"datafusion_task_context_provider";
const AGGREGATE: &CStr = c"datafusion_aggregate_udf";
const SCALAR: &CStr = c"datafusion_scalar_udf";

/// The session that another package makes a table for.
#[pyclass(module = "dfq", frozen)]
struct Host;

/// What gives a session's functions to another package. It lives as long as the process.
fn task_context() -> PyResult<Arc<dyn TaskContextProvider>> {
    let session: Arc<dyn TaskContextProvider> = without_tables()?.clone();
    Ok(session)
}

#[pymethods]
impl Host {
    #[pyo3(signature = (_session=None))]
    fn __datafusion_logical_extension_codec__<'py>(
        &self,
        py: Python<'py>,
        _session: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let codec = FFI_LogicalExtensionCodec::new_default(&task_context()?);
        PyCapsule::new_with_value(py, codec, CODEC)
    }

    fn __datafusion_task_context_provider__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        PyCapsule::new_with_value(py, FFI_TaskContextProvider::from(&task_context()?), TASK_CONTEXT)
    }
}

/// Whether an object offers a table by DataFusion's C interface.
pub(crate) fn is_table(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.hasattr(intern!(object.py(), "__datafusion_table_provider__"))
}

/// The table that an object offers by DataFusion's C interface. Its package reads it, filtered, for each query anew.
///
/// # Errors
/// The object's exception; one that says that it has another major version of DataFusion.
pub(crate) fn table(object: &Bound<'_, PyAny>) -> PyResult<Arc<dyn TableProvider>> {
    let (py, of) = (object.py(), object.get_type().fully_qualified_name()?);
    let capsule = object.call_method1(intern!(py, "__datafusion_table_provider__"), (Host,));
    let capsule = capsule.map_err(|error| match error.is_instance_of::<PyTypeError>(py) {
        // Before DataFusion 52 the method took no argument.
        true => other_version(&of.to_string_lossy(), &format!("({})", error.value(py))),
        false => error,
    })?;
    let capsule = capsule
        .cast::<PyCapsule>()
        .ok()
        .filter(|capsule| capsule.is_valid_checked(Some(TABLE)));
    let capsule = capsule.ok_or_else(|| mistake(format!("{of} gives no table, but something else")))?;
    provider(capsule)?.map_err(|version| other_version(&of.to_string_lossy(), &version.to_string()))
}

/// An exception that says that an object has another version of DataFusion.
fn other_version(of: &str, version: &str) -> PyErr {
    mistake(format!(
        "this {of} was made with DataFusion {version}, and dfq with {}: tables of other packages cross only between the same major \
         versions. Rows cross between all: give it as a table of PyArrow or Polars",
        datafusion_ffi::version()
    ))
}

/// The table in a capsule, or the major version of DataFusion that made it, if that is another.
#[allow(unsafe_code)]
fn provider(capsule: &Bound<'_, PyCapsule>) -> PyResult<Result<Arc<dyn TableProvider>, u64>> {
    let pointer = capsule.pointer_checked(Some(TABLE))?.cast::<FFI_TableProvider>();
    // SAFETY: a capsule of this name holds such a table for as long as it lives. From DataFusion 54 on its version stands in the same
    // place, and nothing else of it is used if that is not ours.
    let (provider, version) = unsafe {
        let provider = pointer.as_ref();
        (provider, (provider.version)())
    };
    Ok(match version == datafusion_ffi::version() {
        true => Ok(provider.into()),
        false => Err(version),
    })
}

/// An aggregate function for a session of the package `datafusion`.
#[pyclass(module = "dfq", frozen)]
pub(crate) struct AggregateFunction(Arc<AggregateUDF>);

#[pymethods]
impl AggregateFunction {
    fn __datafusion_aggregate_udf__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        PyCapsule::new_with_value(py, FFI_AggregateUDF::from(Arc::clone(&self.0)), AGGREGATE)
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

/// A scalar function for a session of the package `datafusion`.
#[pyclass(module = "dfq", frozen)]
pub(crate) struct ScalarFunction(Arc<ScalarUDF>);

#[pymethods]
impl ScalarFunction {
    fn __datafusion_scalar_udf__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        PyCapsule::new_with_value(py, FFI_ScalarUDF::from(Arc::clone(&self.0)), SCALAR)
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

/// Whether a function means what its name says in the hands of this crate's planner of calls only: ClickHouse's skip NaN by what it adds.
fn is_planned(name: &str) -> bool {
    ["quantile_exact", "median_exact", "within_group", "without_nan"]
        .iter()
        .any(|planned| name.starts_with(planned))
}

/// All functions of this crate that need no planner of calls.
#[pyfunction]
pub(crate) fn functions() -> (Vec<AggregateFunction>, Vec<ScalarFunction>) {
    let state = SessionStateBuilder::new().with_quantiles().build();
    // Under each alias there is the function once more.
    let aggregates = state.aggregate_functions().iter();
    let aggregates = aggregates.filter(|(name, function)| *name == function.name() && !is_planned(name));
    let scalars = state.scalar_functions().iter();
    let scalars = scalars.filter(|(name, function)| *name == function.name() && !is_planned(name));
    (
        aggregates
            .map(|(_, function)| AggregateFunction(Arc::clone(function)))
            .collect(),
        scalars
            .map(|(_, function)| ScalarFunction(Arc::clone(function)))
            .collect(),
    )
}
