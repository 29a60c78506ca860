//! How a run ends and what it says on standard error.

use std::any::Any;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

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
        DataFusionError::Internal(_) => fault(error),
        _ => error.strip_backtrace(),
    }
}

/// The text of an error that a statement ended with. One that is no fault of the statement comes with it, to be reported.
pub(crate) fn message_of(error: &DataFusionError, statement: &str) -> String {
    match error.find_root() {
        DataFusionError::Internal(_) => format!("{}\n{statement}", fault(error)),
        _ => message(error),
    }
}

/// The text of an internal error. DataFusion adds where its own are reported; what `dfq` meets comes to its project first.
fn fault(error: &DataFusionError) -> String {
    let text = error.strip_backtrace();
    let text = text
        .split(".\nThis issue was likely caused by")
        .next()
        .unwrap_or_default();
    format!(
        "{text}\nThis is a fault of dfq or of a library below it, not of the statement. Please report it to the project \
         datafusion-quantiles, with the text above, the statement and the version: dfq {}",
        env!("CARGO_PKG_VERSION")
    )
}

/// Where the last panic of this process was: a file and line of the sources.
static LAST_PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Keeps panics off standard error, unless `RUST_BACKTRACE` asks for them: whoever runs what panicked tells of it.
pub(crate) fn quiet_panics() {
    let wants_backtrace = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(ToString::to_string);
        *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = place;
        if wants_backtrace {
            loud(info);
        }
    }));
}

/// The error that a panic is to whoever ran what panicked.
pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> DataFusionError {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_string(),
        (None, Some(text)) => text.clone(),
        (None, None) => "a panic without a message".to_string(),
    };
    let place = LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner).take();
    let place = place.map_or_else(String::new, |place| format!(" (at {place})"));
    DataFusionError::Internal(format!("panicked: {text}{place}"))
}

/// Prints a line on standard error. A closed standard error is no reason to stop.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
