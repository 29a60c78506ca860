//! How far a query is, shown while a call waits for it.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use datafusion::physical_plan::ExecutionPlan;
use datafusion_quantiles::progress::ProgressReader;
use pyo3::intern;
use pyo3::prelude::*;

/// Time that a call waits before anything is shown.
const FIRST: Duration = Duration::from_secs(1);

/// Time between two looks.
const NEXT: Duration = Duration::from_millis(100);

/// The plan that a call runs, once it is made.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<OnceLock<Arc<dyn ExecutionPlan>>>);

impl Watch {
    /// Lets the waiting call see the plan that runs from now on.
    pub(crate) fn plan(&self, plan: &Arc<dyn ExecutionPlan>) {
        let _ = self.0.set(Arc::clone(plan));
    }
}

/// What one call shows of the plan that it waits for.
pub(crate) struct Bar {
    watch: Watch,
    since: Instant,
    /// When to look next; `None`: never again.
    next: Option<Duration>,
    /// Where it is shown, once it is: an object of `dfq._progress`.
    view: Option<Py<PyAny>>,
    reader: ProgressReader,
}

impl Bar {
    /// A bar that is shown if `shows`, from a second on.
    pub(crate) fn new(watch: Watch, shows: bool) -> Self {
        Self {
            watch,
            since: Instant::now(),
            next: shows.then_some(FIRST),
            view: None,
            reader: ProgressReader::default(),
        }
    }

    /// Shows how far the plan is, if it is time to.
    ///
    /// # Errors
    /// An exception of a signal that comes meanwhile.
    pub(crate) fn draw(&mut self, py: Python<'_>) -> PyResult<()> {
        let waited = self.since.elapsed();
        match self.next {
            Some(next) if waited >= next => self.next = Some(waited + NEXT),
            _ => return Ok(()),
        }
        if self.view.is_none() {
            let view = py.import(intern!(py, "dfq._progress"))?.call_method0("start")?;
            if view.is_none() {
                self.next = None;
                return Ok(());
            }
            self.view = Some(view.unbind());
        }
        let read = self
            .watch
            .0
            .get()
            .map(|plan| self.reader.read(plan))
            .unwrap_or_default();
        let Some(view) = &self.view else { return Ok(()) };
        let state = (
            waited.as_secs_f64(),
            read.rows,
            read.total_rows(),
            read.is_exact(),
        );
        view.call_method1(py, intern!(py, "show"), state).map(drop)
    }

    /// Takes away what is shown.
    ///
    /// # Errors
    /// An exception of a signal that comes meanwhile.
    pub(crate) fn close(self) -> PyResult<()> {
        match self.view {
            Some(view) => Python::attach(|py| view.call_method0(py, intern!(py, "close"))).map(drop),
            None => Ok(()),
        }
    }
}
