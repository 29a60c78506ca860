//! What a client is told of a failure: a SQLSTATE and a message.

use datafusion::arrow::error::ArrowError;
use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use pgwire::error::{ErrorInfo, PgWireError};

use crate::console::message_of;

/// SQLSTATE codes of failures that are found here.
pub(super) mod code {
    pub(crate) const PROTOCOL: &str = "08P01";
    pub(crate) const NOT_SUPPORTED: &str = "0A000";
    pub(crate) const INVALID_PARAMETER: &str = "22023";
    pub(crate) const READ_ONLY: &str = "25006";
    pub(crate) const TRANSACTION_ABORTED: &str = "25P02";
    pub(crate) const NO_SUCH_STATEMENT: &str = "26000";
    pub(crate) const NOT_AUTHORIZED: &str = "28000";
    pub(crate) const NO_SUCH_PORTAL: &str = "34000";
    pub(crate) const NOT_PERMITTED: &str = "42501";
    pub(crate) const NO_SUCH_VARIABLE: &str = "42704";
    pub(crate) const BUSY: &str = "53000";
    pub(crate) const TOO_MANY_CONNECTIONS: &str = "53300";
    pub(crate) const TOO_MANY_OBJECTS: &str = "53400";
    pub(crate) const TOO_COMPLEX: &str = "54001";
    pub(crate) const TOO_LARGE: &str = "54000";
    pub(crate) const CANCELLED: &str = "57014";
    pub(crate) const SHUTDOWN: &str = "57P01";
    pub(crate) const INTERNAL: &str = "XX000";
}

/// A failure of a statement, after which the connection goes on.
pub(super) fn error(code: &str, message: impl Into<String>) -> PgWireError {
    of("ERROR", code, message.into())
}

/// A failure that ends the connection.
pub(super) fn fatal(code: &str, message: impl Into<String>) -> PgWireError {
    of("FATAL", code, message.into())
}

fn of(severity: &str, code: &str, message: String) -> PgWireError {
    let mut info = ErrorInfo::new(severity.to_string(), code.to_string(), message);
    info.severity_nonlocalized = Some(severity.to_string());
    PgWireError::UserError(Box::new(info))
}

/// The failure of a statement with this text.
pub(super) fn of_statement(failure: &DataFusionError, text: &str) -> PgWireError {
    error(sqlstate(failure), message_of(failure, text))
}

fn sqlstate(failure: &DataFusionError) -> &'static str {
    match failure.find_root() {
        DataFusionError::SQL(..) => "42601",
        DataFusionError::SchemaError(error, _) => match error.as_ref() {
            SchemaError::FieldNotFound { .. } => "42703",
            SchemaError::AmbiguousReference { .. } => "42702",
            SchemaError::DuplicateQualifiedField { .. } | SchemaError::DuplicateUnqualifiedField { .. } => {
                "42701"
            }
        },
        DataFusionError::Plan(message) => of_plan(message),
        DataFusionError::NotImplemented(_) => code::NOT_SUPPORTED,
        DataFusionError::Configuration(_) => code::INVALID_PARAMETER,
        DataFusionError::ResourcesExhausted(_) => "53200",
        DataFusionError::ArrowError(error, _) => of_arrow(error),
        DataFusionError::Execution(message) if message.contains("already exists") => "42P07",
        DataFusionError::Execution(message) if message.contains("doesn't exist") => "42P01",
        DataFusionError::Execution(_) => "22000",
        DataFusionError::ObjectStore(_) | DataFusionError::IoError(_) | DataFusionError::ParquetError(_) => {
            "58030"
        }
        _ => code::INTERNAL,
    }
}

/// DataFusion has one kind of error for all that is wrong with a statement beyond its syntax.
fn of_plan(message: &str) -> &'static str {
    let has = |part: &str| message.contains(part);
    if has("table '") && has("not found") || has("No table named") {
        "42P01"
    } else if has("Invalid function") || has("No function matches") || has("Function '") {
        "42883"
    } else if has("already exists") {
        "42P07"
    } else if has("coerce") || has("Cannot infer common") {
        "42804"
    } else {
        "42000"
    }
}

fn of_arrow(error: &ArrowError) -> &'static str {
    match error {
        ArrowError::DivideByZero => "22012",
        ArrowError::ArithmeticOverflow(_) => "22003",
        ArrowError::CastError(_) | ArrowError::ParseError(_) => "22P02",
        ArrowError::InvalidArgumentError(_) | ArrowError::ComputeError(_) => "22000",
        ArrowError::MemoryError(_) => "53200",
        ArrowError::IoError(..) => "58030",
        ArrowError::NotYetImplemented(_) => code::NOT_SUPPORTED,
        _ => code::INTERNAL,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn failures_have_the_codes_that_clients_know() {
        let ctx = SessionContext::new();
        for (text, expected) in [
            ("SELEC 1", "42601"),
            ("SELECT x FROM nowhere", "42P01"),
            ("SELECT x FROM (VALUES (1)) t(y)", "42703"),
            ("SELECT nothing(1)", "42883"),
            ("SELECT 1 / 0", "22012"),
            ("SELECT CAST('a' AS INT)", "22P02"),
        ] {
            let failure = match ctx.sql(text).await {
                Ok(answer) => answer.collect().await.unwrap_err(),
                Err(failure) => failure,
            };
            assert_eq!(sqlstate(&failure), expected, "{text}: {failure:?}");
        }
    }
}
