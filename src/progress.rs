//! How far a plan that runs is: what its scans have read, of what there is to read.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::FileGroup;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::{MetricValue, MetricsSet};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::prelude::SessionConfig;
use url::Url;

use crate::exec::{file_scan, stored_bytes};

/// Bytes of a text file whose lines tell how many rows there are in all.
const TEXT_BYTES: u64 = 1 << 18;

/// What the scans of a plan have read, together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanProgress {
    /// Rows that have been read; `None` if no scan counts them.
    pub rows: Option<usize>,
    /// Rows that there are, with those that were read; `None` if some scan does not know.
    pub total: Option<Precision<usize>>,
    /// Bytes that have been read from files, those that were read again included; `None` if no scan counts them.
    pub bytes: Option<usize>,
}

impl ScanProgress {
    /// Rows that there are, with those that were read; `None` if some scan does not know.
    pub fn total_rows(&self) -> Option<usize> {
        self.total.and_then(|total| total.get_value().copied())
    }

    /// Whether the number of all rows is no estimate.
    pub fn is_exact(&self) -> bool {
        matches!(self.total, Some(Precision::Exact(_)))
    }

    /// The part of all rows that has been read, from 0 to 1; `None` if it is not known, or if what statistics said was wrong.
    pub fn fraction(&self) -> Option<f64> {
        let (rows, total) = (self.rows?, self.total_rows()?);
        (total > 0 && rows <= total).then(|| rows as f64 / total as f64)
    }

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

    fn add_bytes(&mut self, scan: Option<&MetricsSet>) {
        let bytes = scan.and_then(|metrics| metrics.sum_by_name("bytes_scanned"));
        if let Some(bytes) = bytes {
            self.bytes = Some(self.bytes.unwrap_or(0) + bytes.as_usize());
        }
    }
}

/// Is told of each plan that [`QuantilesPlanner`](crate::QuantilesPlanner) makes in a session, before the plan runs: also of those that are
/// run inside of a statement, such as `SUMMARIZE` and `CREATE TABLE AS`.
///
/// It is an extension of the session's configuration: `config.with_extension(Arc::new(observer))`.
pub struct PlanObserver(Box<EachPlan>);

/// The function that a [`PlanObserver`] calls with each physical plan of its session.
type EachPlan = dyn Fn(&Arc<dyn ExecutionPlan>) + Send + Sync;

impl PlanObserver {
    /// One that calls a function with each plan.
    pub fn new(each: impl Fn(&Arc<dyn ExecutionPlan>) + Send + Sync + 'static) -> Self {
        Self(Box::new(each))
    }

    /// Tells the observer of a session, if it has one, of a plan.
    pub(crate) fn tell(config: &SessionConfig, plan: &Arc<dyn ExecutionPlan>) {
        if let Some(observer) = config.get_extension::<Self>() {
            (observer.0)(plan);
        }
    }
}

impl fmt::Debug for PlanObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PlanObserver")
    }
}

/// Reads the progress of plans from the metrics of their operators.
#[derive(Debug, Default)]
pub struct ProgressReader {
    /// Rows of each scan, by its address: statistics of many files take time to add up.
    totals: HashMap<usize, Precision<usize>>,
}

impl ProgressReader {
    /// What the scans of this plan have read until this moment. The plan is the same at each call.
    pub fn read(&mut self, plan: &Arc<dyn ExecutionPlan>) -> ScanProgress {
        let mut progress = ScanProgress {
            total: Some(Precision::Exact(0)),
            ..ScanProgress::default()
        };
        self.look(plan, None, &mut progress);
        progress
    }

    /// Adds what the scans below `node` have read. `taken` is how many rows of `node` the node above has taken, if it counts them.
    fn look(&mut self, node: &Arc<dyn ExecutionPlan>, taken: Option<usize>, progress: &mut ScanProgress) {
        let (metrics, children) = (node.metrics(), node.children());
        if children.is_empty() {
            // Operators of this crate read some rows twice.
            let rows = taken.or_else(|| given(node, metrics.as_ref()));
            let address = Arc::as_ptr(node).cast::<()>() as usize;
            let total = *self.totals.entry(address).or_insert_with(|| total(node));
            progress.add(rows, total);
            progress.add_bytes(metrics.as_ref());
        }
        for (place, child) in children.iter().enumerate() {
            let taken = metrics
                .as_ref()
                .and_then(|metrics| taken_from(node, metrics, place, taken));
            self.look(child, taken, progress);
        }
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

/// Rows that a scan is going to give, by its statistics or, if it has none, by its text.
fn total(scan: &Arc<dyn ExecutionPlan>) -> Precision<usize> {
    let statistics = StatisticsContext::new().compute(scan.as_ref(), &StatisticsArgs::new());
    match statistics.map_or(Precision::Absent, |statistics| statistics.num_rows) {
        Precision::Absent => rows_of_text(scan).map_or(Precision::Absent, Precision::Inexact),
        known => known,
    }
}

/// Rows of CSV or JSON files of this machine, by the lines at the start of the first file; `None` for other scans, compressed files, and
/// files that cannot be read.
fn rows_of_text(scan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let config = file_scan(scan.as_ref())?;
    let is_text = matches!(config.file_source().file_type(), "csv" | "json");
    if !is_text || config.file_compression_type.is_compressed() {
        return None;
    }
    let mut files = config.file_groups.iter().flat_map(FileGroup::iter);
    let first = files.find(|file| file.object_meta.size > 0)?;
    let store: &Url = config.object_store_url.as_ref();
    let url = store.join(first.object_meta.location.as_ref());
    let mut start = Vec::new();
    let file = File::open(url.ok()?.to_file_path().ok()?).ok()?;
    file.take(TEXT_BYTES).read_to_end(&mut start).ok()?;
    let lines = start.iter().filter(|byte| **byte == b'\n').count();
    let rows = u128::from(stored_bytes(config)) * lines as u128 / start.len().max(1) as u128;
    usize::try_from(rows).ok().filter(|rows| *rows > 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rows_of_text_are_estimated_by_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let written = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            format!("'{}'", path.display())
        };
        let csv = |rows: usize| {
            (0..rows).fold("x,y\n".to_string(), |text, row| {
                format!("{text}{},{}\n", row % 10, row % 7)
            })
        };
        let large = written("a name.csv", csv(200_000));
        let json = written("small.json", "{\"x\": 1}\n{\"x\": 2}\n{\"x\": 3}\n".to_string());
        let empty = written("empty.csv", String::new());
        let ctx = datafusion::prelude::SessionContext::new().enable_url_table();
        let total = async |table: &str| {
            let frame = ctx.sql(&format!("SELECT * FROM {table}")).await.unwrap();
            let plan = frame.create_physical_plan().await.unwrap();
            ProgressReader::default().read(&plan).total
        };
        // The line of names counts.
        assert_eq!(total(&large).await, Some(Precision::Inexact(200_001)));
        assert_eq!(total(&json).await, Some(Precision::Inexact(3)));
        assert_eq!(total(&empty).await, None);
    }

    #[test]
    fn a_part_is_known_only_if_all_of_it_is() {
        let of = |rows, total| ScanProgress {
            rows,
            total,
            bytes: None,
        };
        assert_eq!(of(Some(1), Some(Precision::Exact(4))).fraction(), Some(0.25));
        assert_eq!(of(Some(4), Some(Precision::Inexact(4))).fraction(), Some(1.0));
        for (rows, total) in [
            (None, Some(Precision::Exact(4))),
            (Some(1), None),
            // What was known was wrong.
            (Some(5), Some(Precision::Inexact(4))),
            (Some(0), Some(Precision::Exact(0))),
        ] {
            assert_eq!(of(rows, total).fraction(), None, "{rows:?} of {total:?}");
        }
        let mut sum = of(None, Some(Precision::Exact(0)));
        sum.add(Some(3), Precision::Exact(10));
        sum.add(Some(0), Precision::Inexact(20));
        assert_eq!(
            (sum.rows, sum.total_rows(), sum.is_exact()),
            (Some(3), Some(30), false)
        );
        sum.add(Some(7), Precision::Absent);
        assert_eq!((sum.rows, sum.total_rows()), (Some(10), None));
    }
}
