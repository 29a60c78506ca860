//! What ends a statement before its end: a cancel, a timeout, the stop of the server, a panic.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use pgwire::error::{PgWireError, PgWireResult};
use tokio::sync::watch;

use super::failure::{code, error, fatal, of_statement};
use super::metrics::{Outcome, Timed};
use crate::console::panicked;

/// How far the stop of the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stop {
    Serving,
    /// Statements that run may end; none starts.
    Draining,
    /// Statements that run are cancelled.
    Now,
}

/// Waits until the stop is as far as `stop`.
pub(super) async fn reached(state: &mut watch::Receiver<Stop>, stop: Stop) {
    // A server that is gone has stopped.
    let _ = state.wait_for(|state| *state >= stop).await;
}

/// What may end a statement.
pub(super) struct Guard {
    pub(super) cancel: oneshot::Receiver<()>,
    pub(super) timeout: Option<Duration>,
    pub(super) stop: watch::Receiver<Stop>,
    /// What counts the statement; `None` for one that is only prepared.
    pub(super) timed: Option<Timed>,
}

impl Guard {
    /// Runs a statement to its end, or until something ends it: then what it holds is dropped.
    ///
    /// # Errors
    /// The statement's, and one that says what ended it.
    pub(super) async fn run<T>(
        mut self,
        text: &str,
        work: impl Future<Output = PgWireResult<T>>,
    ) -> PgWireResult<T> {
        let timed = self.timed.take();
        let (outcome, result) = tokio::select! {
            biased;
            (outcome, failure) = self.ended() => (outcome, Err(failure)),
            result = AssertUnwindSafe(work).catch_unwind() => {
                let result = result.unwrap_or_else(|panic| Err(of_statement(&panicked(panic), text)));
                (outcome_of(&result), result)
            }
        };
        if let Some(timed) = timed {
            timed.end(outcome);
        }
        result
    }

    /// Waits until something ends the statement, and says what.
    async fn ended(&mut self) -> (Outcome, PgWireError) {
        let timeout = self.timeout;
        let deadline = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let cancel = async {
            // A cancel that can no longer come is none.
            if (&mut self.cancel).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = cancel => (
                Outcome::Cancelled,
                error(code::CANCELLED, "canceling statement due to user request"),
            ),
            () = deadline => {
                let took = timeout.unwrap_or_default();
                let message = format!("canceling statement due to statement timeout, after {took:?}");
                (Outcome::Timeout, error(code::CANCELLED, message))
            }
            () = reached(&mut self.stop, Stop::Now) => (
                Outcome::Cancelled,
                fatal(code::SHUTDOWN, "terminating connection: the server is stopping"),
            ),
        }
    }
}

fn outcome_of<T>(result: &PgWireResult<T>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(PgWireError::UserError(info)) if info.code == code::BUSY => Outcome::Refused,
        Err(PgWireError::IoError(_)) => Outcome::Gone,
        Err(_) => Outcome::Error,
    }
}
