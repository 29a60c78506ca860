//! Work without the interpreter's lock, which Ctrl-C ends: of arrays on threads of their own, of queries on a runtime.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use datafusion::common::Result;
use datafusion_quantiles::compute::Stop;
use futures::FutureExt;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{InternalError, exception, mistake};
use crate::progress::{Bar, Watch};

/// Time between two looks for a signal.
const LOOK: Duration = Duration::from_millis(25);

/// How long a cancelled query has to drop what it holds before the caller goes on.
const CANCELLED: Duration = Duration::from_millis(150);

/// Rows of an array from which on its work may be ended: what fewer take is over before a signal is seen.
const LONG: u64 = 1 << 18;

/// Stack of each thread of the runtime: plans of many joins, and chains of thousands of operators, are planned recursively.
const STACK: usize = 64 << 20;

/// Does work over an array of `rows` rows without the interpreter's lock. A signal whose handler raises sets the flag.
pub(crate) fn stoppable<T: Send>(
    py: Python<'_>,
    rows: u64,
    work: impl FnOnce(&Stop) -> Result<T> + Send,
) -> PyResult<T> {
    let stop = Stop::default();
    if rows < LONG {
        return py.detach(|| work(&stop)).map_err(exception);
    }
    py.detach(|| {
        std::thread::scope(|scope| {
            let (done, ends) = channel::<()>();
            let working = scope.spawn(|| {
                // Dropped at the end, also by a panic.
                let _done = done;
                work(&stop)
            });
            let raised = loop {
                match ends.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => break None,
                }
                if let Err(raised) = Python::attach(|py| py.check_signals()) {
                    stop.stop();
                    break Some(raised);
                }
            };
            let result = working
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            raised.map_or_else(|| result.map_err(exception), Err)
        })
    })
}

/// The runtime of this process, by its number: a forked process has none of its threads.
static RUNTIME: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);

/// The runtime that queries of this process run on.
fn handle() -> Result<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    match runtime.as_ref() {
        Some((process, runtime)) if *process == std::process::id() => return Ok(runtime.handle().clone()),
        _ => {}
    }
    let started = Builder::new_multi_thread()
        .enable_all()
        .thread_name("dfq")
        .thread_stack_size(STACK)
        .build()?;
    let handle = started.handle().clone();
    if let Some((_, other)) = runtime.replace((std::process::id(), started)) {
        // That of the process which this one was forked from: there is no thread to wait for.
        std::mem::forget(other);
    }
    Ok(handle)
}

/// How calls of a session and of its queries run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calls {
    /// Number of the process that made the session.
    process: u32,
    /// Whether it is shown how far they are.
    shows_progress: bool,
}

impl Calls {
    /// Those of a session that this process makes.
    pub(crate) fn new(shows_progress: bool) -> Self {
        let process = std::process::id();
        Self {
            process,
            shows_progress,
        }
    }

    /// Runs work on the runtime, without the interpreter's lock. A signal whose handler raises cancels it.
    ///
    /// # Errors
    /// The exception of the work's error, or of a signal; one that says that the session is of another process.
    pub(crate) fn run<T: Send + 'static, W>(
        self,
        py: Python<'_>,
        work: impl FnOnce(Watch) -> W,
    ) -> PyResult<T>
    where
        W: Future<Output = Result<T>> + Send + 'static,
    {
        self.check_process()?;
        let handle = handle().map_err(exception)?;
        let watch = Watch::default();
        let work = work(watch.clone());
        py.detach(|| {
            let (done, ends) = channel();
            let task = handle.spawn(async move {
                // Sessions keep no lock that a panic could leave poisoned.
                let result = AssertUnwindSafe(work).catch_unwind().await;
                let _ = done.send(result);
            });
            let mut bar = Bar::new(watch, self.shows_progress);
            let result = loop {
                match ends.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    ended => break outcome(ended),
                }
                let looked = Python::attach(|py| py.check_signals().and_then(|()| bar.draw(py)));
                if let Err(raised) = looked {
                    task.abort();
                    // Ends when the query is dropped, with its files.
                    let _ = ends.recv_timeout(CANCELLED);
                    break Err(raised);
                }
            };
            let closed = bar.close();
            result.and_then(|result| closed.map(|()| result))
        })
    }

    /// An exception that says that the session does not belong to this process.
    pub(crate) fn check_process(self) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(mistake(
            "this session was made before the process was forked, and its threads are not here: call dfq.connect() in this process, \
             or start processes by multiprocessing's 'spawn'",
        ))
    }
}

/// The result of work that has ended, somehow.
fn outcome<T>(ended: Result<std::thread::Result<Result<T>>, RecvTimeoutError>) -> PyResult<T> {
    match ended {
        Ok(Ok(result)) => result.map_err(exception),
        Ok(Err(panic)) => Err(InternalError::new_err(panicked(panic.as_ref()))),
        Err(_) => Err(InternalError::new_err("the query was lost")),
    }
}

/// The text of a panic.
fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text.as_str(),
        (None, None) => "without a message",
    };
    format!("the query panicked: {text}")
}
