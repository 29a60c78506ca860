//! How far a query is: the rows that its scans have read, of those that statistics count; shown while a call waits for it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use datafusion::common::stats::Precision;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::{MetricValue, MetricsSet};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
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

/// What scans have read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    /// Rows that have been read; `None` if no scan counts them.
    rows: Option<usize>,
    /// Rows that there are, with those that were read; `None` if some scan does not know.
    total: Option<Precision<usize>>,
}

/// What one call shows of the plan that it waits for.
pub(crate) struct Bar {
    watch: Watch,
    since: Instant,
    /// When to look next; `None`: never again.
    next: Option<Duration>,
    /// Where it is shown, once it is: an object of `dfq._progress`.
    view: Option<Py<PyAny>>,
    /// Rows of each scan, by its address: statistics of many files take time to add up.
    totals: HashMap<usize, Precision<usize>>,
}

impl Bar {
    /// A bar that is shown if `shows`, from a second on.
    pub(crate) fn new(watch: Watch, shows: bool) -> Self {
        Self {
            watch,
            since: Instant::now(),
            next: shows.then_some(FIRST),
            view: None,
            totals: HashMap::new(),
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
        let mut read = Read::default();
        if let Some(plan) = self.watch.0.get() {
            read.total = Some(Precision::Exact(0));
            self.look(&Arc::clone(plan), None, &mut read);
        }
        let is_exact = matches!(read.total, Some(Precision::Exact(_)));
        let total = read.total.and_then(|total| total.get_value().copied());
        let Some(view) = &self.view else { return Ok(()) };
        let state = (waited.as_secs_f64(), read.rows, total, is_exact);
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

    /// Adds what the scans below `node` have read. `taken` is how many rows of `node` the node above has taken, if it counts them.
    fn look(&mut self, node: &Arc<dyn ExecutionPlan>, taken: Option<usize>, read: &mut Read) {
        let (metrics, children) = (node.metrics(), node.children());
        if children.is_empty() {
            // Operators of this crate read some rows twice.
            let rows = taken.or_else(|| given(node, metrics.as_ref()));
            let address = Arc::as_ptr(node).cast::<()>() as usize;
            let total = *self.totals.entry(address).or_insert_with(|| total(node));
            read.add(rows, total);
        }
        for (place, child) in children.iter().enumerate() {
            let taken = metrics
                .as_ref()
                .and_then(|metrics| taken_from(node, metrics, place, taken));
            self.look(child, taken, read);
        }
    }
}

impl Read {
    /// Adds a scan that has read `rows` rows, of `total`.
    fn add(&mut self, rows: Option<usize>, total: Precision<usize>) {
        if let Some(rows) = rows {
            self.rows = Some(self.rows.unwrap_or(0) + rows);
        }
        self.total = match (self.total, rows, total) {
            (Some(before), Some(_), Precision::Exact(_) | Precision::Inexact(_)) => Some(before.add(&total)),
            _ => None,
        };
    }
}

/// Rows that a scan says that it has given; `None` if it does not count them.
fn given(scan: &Arc<dyn ExecutionPlan>, metrics: Option<&MetricsSet>) -> Option<usize> {
    let source = scan.downcast_ref::<DataSourceExec>();
    if source.is_some_and(|source| source.data_source().is::<MemorySourceConfig>()) {
        return None;
    }
    // One that has not begun yet has no such metric.
    metrics.map(|metrics| metrics.output_rows().unwrap_or(0))
}

/// Rows that a scan is going to give, by its statistics.
fn total(scan: &Arc<dyn ExecutionPlan>) -> Precision<usize> {
    let statistics = StatisticsContext::new().compute(scan.as_ref(), &StatisticsArgs::new());
    statistics.map_or(Precision::Absent, |statistics| statistics.num_rows)
}

/// Rows that `node` has taken from the child in this place; `None` if it does not count them. `given` is how many rows of its own the node
/// above has taken, if that one counts them.
fn taken_from(
    node: &Arc<dyn ExecutionPlan>,
    metrics: &MetricsSet,
    place: usize,
    given: Option<usize>,
) -> Option<usize> {
    let count = |name| metrics.sum_by_name(name).map(|value| value.as_usize());
    match (place, node.children().len()) {
        // What operators of this crate left out, because statistics answered for it, need not be read.
        (0, 1) if count("input_rows").is_some() => {
            Some(count("input_rows")? + count("rows_left_out").unwrap_or(0))
        }
        (0, 1) => {
            let passes = node.pipeline_behavior() == EmissionType::Incremental
                && matches!(node.cardinality_effect(), CardinalityEffect::Equal);
            // Filters and partial aggregations count rows in as the whole of a ratio.
            whole(metrics).or_else(|| given.or(metrics.output_rows()).filter(|_| passes))
        }
        // Joins read the first input first.
        (0, 2) => count("build_input_rows"),
        (1, 2) => count("build_input_rows").and(count("input_rows")),
        _ => None,
    }
}

/// The whole of the ratio that tells how many of its rows an operator keeps.
fn whole(metrics: &MetricsSet) -> Option<usize> {
    let wholes = metrics.iter().filter_map(|metric| match metric.value() {
        MetricValue::Ratio { name, ratio_metrics } if name == "selectivity" || name == "reduction_factor" => {
            Some(ratio_metrics.total())
        }
        _ => None,
    });
    wholes.reduce(|all, whole| all + whole)
}
