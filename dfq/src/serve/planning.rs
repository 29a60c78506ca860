//! Plans on a thread of its own. Planning does not wait for anything, so it cannot be interrupted: who waits for a plan can stop waiting.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::FutureExt;
use pgwire::error::PgWireResult;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};

use super::failure::{code, fatal};
use super::metrics::Connected;

/// A place for each core to plan. With a thread for each of many connections, reads of files would come to many threads too, and the
/// allocator, which keeps memory for each thread, would give it back and ask for it again: half of the statements a second.
static CORES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    Arc::new(Semaphore::new(
        std::thread::available_parallelism().map_or(1, usize::from),
    ))
});

/// How long a statement waits for a place: those before it may have statements that are planned without end.
const PATIENCE: Duration = Duration::from_millis(100);

/// Lets a connection plan one statement at a time.
#[derive(Clone)]
pub(super) struct Planning {
    place: Arc<Mutex<()>>,
    connected: Arc<Connected>,
}

/// What planning holds until it ends: the connection's only place to plan, a core's if it got one in time, and the connection's place among
/// all.
struct Held {
    _place: OwnedMutexGuard<()>,
    _core: Option<OwnedSemaphorePermit>,
    _connected: Arc<Connected>,
}

impl Planning {
    pub(super) fn new(connected: Connected) -> Self {
        Self {
            place: Arc::default(),
            connected: Arc::new(connected),
        }
    }

    /// Runs `work` on another thread. If what is returned is dropped, the work is dropped where it next waits; a statement that comes
    /// after it waits for that.
    ///
    /// # Errors
    /// Those of the work, and that the server stops.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = PgWireResult<T>> + Send + 'static,
    ) -> PgWireResult<T> {
        let place = Arc::clone(&self.place).lock_owned().await;
        let core = tokio::time::timeout(PATIENCE, Arc::clone(&CORES).acquire_owned()).await;
        let held = Held {
            _place: place,
            _core: core.ok().and_then(Result::ok),
            _connected: Arc::clone(&self.connected),
        };
        let (mut sender, receiver) = oneshot::channel();
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || {
            let _held = held;
            runtime.block_on(async move {
                let result = tokio::select! {
                    biased;
                    () = sender.closed() => return,
                    result = AssertUnwindSafe(work).catch_unwind() => result,
                };
                let _ = sender.send(result);
            });
        });
        match receiver.await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(fatal(code::SHUTDOWN, "the server is stopping")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::metrics::Metrics;
    use super::*;

    #[tokio::test]
    async fn who_stops_waiting_is_free_and_what_is_planned_keeps_its_place() {
        let metrics: Arc<Metrics> = Arc::default();
        let planning = Planning::new(Connected::count(&metrics, 1).unwrap());
        let (release, wait) = mpsc::channel::<()>();
        let busy = planning.run(async move {
            wait.recv().unwrap();
            Ok(1)
        });
        assert!(
            tokio::time::timeout(Duration::from_millis(50), busy)
                .await
                .is_err()
        );
        // The next waits for it, though it is not waited for.
        let next = planning.run(async { Ok(2) });
        assert!(
            tokio::time::timeout(Duration::from_millis(50), next)
                .await
                .is_err()
        );
        let last = planning.clone();
        drop(planning);
        assert!(Connected::count(&metrics, 1).is_none());
        release.send(()).unwrap();
        assert_eq!(last.run(async { Ok(3) }).await.unwrap(), 3);
        drop(last);
        while Connected::count(&metrics, 1).is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    #[should_panic(expected = "no plan")]
    async fn a_panic_comes_back() {
        let planning = Planning::new(Connected::count(&Arc::default(), 1).unwrap());
        let _: PgWireResult<()> = planning.run(async { panic!("no plan") }).await;
    }
}
