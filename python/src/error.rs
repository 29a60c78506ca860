//! Errors as exceptions, with the message alone.

use datafusion::common::DataFusionError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    dfq,
    Error,
    PyException,
    "What went wrong. Base class of all exceptions of dfq."
);
create_exception!(
    dfq,
    QueryError,
    Error,
    "A mistake in a statement or an argument: it names the value and what is allowed."
);
create_exception!(
    dfq,
    DataError,
    Error,
    "Data that cannot be read or computed with."
);
create_exception!(
    dfq,
    ResourcesError,
    Error,
    "The memory limit, or the disk, does not suffice."
);
create_exception!(
    dfq,
    InternalError,
    Error,
    "A fault of dfq itself. Please report it."
);

/// Adds the exceptions to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("QueryError", py.get_type::<QueryError>())?;
    module.add("DataError", py.get_type::<DataError>())?;
    module.add("ResourcesError", py.get_type::<ResourcesError>())?;
    module.add("InternalError", py.get_type::<InternalError>())
}

/// The exception of an error.
pub(crate) fn exception(error: DataFusionError) -> PyErr {
    let text = message(&error);
    match error.find_root() {
        DataFusionError::Plan(_)
        | DataFusionError::SQL(..)
        | DataFusionError::SchemaError(..)
        | DataFusionError::Configuration(_)
        | DataFusionError::NotImplemented(_) => QueryError::new_err(text),
        DataFusionError::ResourcesExhausted(_) => ResourcesError::new_err(text),
        DataFusionError::Internal(_) => InternalError::new_err(text),
        _ => DataError::new_err(text),
    }
}

/// The text of an error, without the names of its kinds.
fn message(error: &DataFusionError) -> String {
    match error {
        DataFusionError::Context(what, inner) => format!("{what}: {}", message(inner)),
        DataFusionError::Diagnostic(_, inner) => message(inner),
        DataFusionError::Shared(inner) => message(inner),
        DataFusionError::Collection(all) => all.iter().map(message).collect::<Vec<_>>().join("; "),
        DataFusionError::External(inner) => match inner.downcast_ref::<DataFusionError>() {
            Some(inner) => message(inner),
            None => inner.to_string(),
        },
        // Its own text shows the parser's types.
        DataFusionError::SQL(parser, _) => parser.to_string(),
        other => other.message().into_owned(),
    }
}

/// An exception for a mistake in an argument.
pub(crate) fn mistake(text: impl Into<String>) -> PyErr {
    QueryError::new_err(text.into())
}
