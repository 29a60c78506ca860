//! How a run ends and what it says on standard error.

use std::any::Any;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use datafusion::error::DataFusionError;
use indicatif::ProgressBar;

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

/// The line below all others on the terminal that standard error is, while there is one.
static LAST_LINE: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Prints a line on standard error, above the last line of the terminal. A closed standard error is no reason to stop.
pub(crate) fn say(line: impl Display) {
    let shown = LAST_LINE.lock().unwrap_or_else(PoisonError::into_inner);
    let print = || {
        let _ = writeln!(std::io::stderr(), "{line}");
    };
    match shown.as_ref() {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Whether the last line of the terminal can be written anew: standard error is a terminal that can go back in a line.
pub(crate) fn has_last_line() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Makes `bar` the last line of the terminal.
pub(crate) fn begin_last_line(bar: ProgressBar) {
    *LAST_LINE.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
}

/// Writes the last line of the terminal anew. Returns whether there is one.
pub(crate) fn write_last_line(text: String) -> bool {
    let shown = LAST_LINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bar) = shown.as_ref() {
        bar.set_message(text);
    }
    shown.is_some()
}

/// Takes the last line away, and leaves nothing of it.
pub(crate) fn end_last_line() {
    if let Some(bar) = LAST_LINE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        bar.finish_and_clear();
    }
}

/// Takes the last line away if what is written to standard output would stand on it.
pub(crate) fn make_room() {
    if std::io::stdout().is_terminal() {
        end_last_line();
    }
}
