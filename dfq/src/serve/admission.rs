//! How many statements run at once, and how many wait for their turn.

use std::sync::Arc;

use pgwire::error::PgWireError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::{code, error};

/// Turns of statements.
#[derive(Debug)]
pub(super) struct Admission {
    running: Arc<Semaphore>,
    /// Permits of statements that wait.
    waiting: Semaphore,
    most_running: usize,
    most_waiting: usize,
}

impl Admission {
    pub(super) fn new(most_running: usize, most_waiting: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(most_running)),
            waiting: Semaphore::new(most_waiting),
            most_running,
            most_waiting,
        }
    }

    /// Waits for a turn, which ends when what is returned is dropped. Who waited longest comes first.
    ///
    /// # Errors
    /// If too many wait already.
    pub(super) async fn turn(&self) -> Result<OwnedSemaphorePermit, PgWireError> {
        if let Ok(turn) = Arc::clone(&self.running).try_acquire_owned() {
            return Ok(turn);
        }
        let Ok(_place) = self.waiting.try_acquire() else {
            return Err(error(
                code::BUSY,
                format!(
                    "{} statements run and {} wait for their turn: try again later",
                    self.most_running, self.most_waiting
                ),
            ));
        };
        let turn = Arc::clone(&self.running).acquire_owned().await;
        turn.map_err(|_| error(code::SHUTDOWN, "the server is stopping"))
    }

    /// Statements that wait.
    pub(super) fn waiting(&self) -> usize {
        self.most_waiting - self.waiting.available_permits()
    }

    /// Statements that run.
    pub(super) fn running(&self) -> usize {
        self.most_running - self.running.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn statements_wait_in_a_queue_with_an_end() {
        let admission = Admission::new(1, 1);
        let first = admission.turn().await.unwrap();
        let mut second = Box::pin(admission.turn());
        assert!((&mut second).now_or_never().is_none());
        assert_eq!((admission.running(), admission.waiting()), (1, 1));
        let third = admission.turn().await.unwrap_err().to_string();
        assert!(third.contains("1 statements run and 1 wait"), "{third}");
        drop(first);
        let second = second.await.unwrap();
        assert_eq!((admission.running(), admission.waiting()), (1, 0));
        let mut fourth = Box::pin(admission.turn());
        assert!((&mut fourth).now_or_never().is_none());
        // Who is gone waits no longer.
        drop(fourth);
        drop(second);
        assert_eq!((admission.running(), admission.waiting()), (0, 0));
    }
}
