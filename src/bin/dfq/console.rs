//! How a run ends and what it says on standard error.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use datafusion::error::DataFusionError;

/// Why a run is over.
#[derive(Debug)]
pub(crate) enum End {
    /// All was done, or the reader of standard output went away (`dfq ... | head`).
    Success,
    /// Something failed; the message is for standard error.
    Failed(String),
    /// Interrupted by Ctrl-C.
    Interrupted,
}

impl End {
    /// A failure with this message.
    pub(crate) fn error(message: String) -> Self {
        Self::Failed(message)
    }

    /// Prints the message, if there is one, and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Success => ExitCode::SUCCESS,
            Self::Failed(message) => {
                say(format_args!("Error: {message}"));
                ExitCode::FAILURE
            }
            Self::Interrupted => ExitCode::from(130),
        }
    }
}

impl From<DataFusionError> for End {
    fn from(error: DataFusionError) -> Self {
        Self::Failed(message(&error))
    }
}

/// The text of an error, without a backtrace.
pub(crate) fn message(error: &DataFusionError) -> String {
    match error.find_root() {
        // Its own text shows the parser's types.
        DataFusionError::SQL(parser, _) => parser.to_string(),
        _ => error.strip_backtrace(),
    }
}

/// Prints a line on standard error. A closed standard error is no reason to stop.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
