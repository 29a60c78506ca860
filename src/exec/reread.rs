//! Inputs that can be read again with the same rows: plain scans of Parquet files and of tables in memory, with filters and projections
//! over them.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions,
};

#[cfg(feature = "parquet")]
use super::row_source::RowSource;
use crate::config::ReadAgain;
use crate::kernel::cpu::sample::mix;

/// An input that can be read again.
#[derive(Debug, Clone)]
pub(super) struct RereadableInput {
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    /// Number of rows of the scan, before any filter.
    rows: u64,
    /// Whether to read again at any size.
    always: bool,
}

/// The rows of a scan that can be read again.
enum Leaf<'a> {
    Memory(&'a MemorySourceConfig),
    #[cfg(feature = "parquet")]
    Parquet(Box<RowSource>),
}

impl Leaf<'_> {
    /// The leaf that a node is; `None` for another node, or rows that nobody can count.
    fn of(node: &dyn ExecutionPlan) -> Option<Leaf<'_>> {
        let source = node.downcast_ref::<DataSourceExec>()?.data_source();
        if let Some(memory) = source.downcast_ref::<MemorySourceConfig>() {
            return (source.fetch().is_none()).then_some(Leaf::Memory(memory));
        }
        #[cfg(feature = "parquet")]
        return RowSource::of(node).map(|rows| Leaf::Parquet(Box::new(rows)));
        #[cfg(not(feature = "parquet"))]
        None
    }

    fn rows(&self) -> u64 {
        match self {
            Leaf::Memory(memory) => {
                let batches = memory.partitions().iter().flatten();
                batches.map(|batch| batch.num_rows() as u64).sum()
            }
            #[cfg(feature = "parquet")]
            Leaf::Parquet(rows) => rows.rows() as u64,
        }
    }

    /// A scan of the rows of these ascending positions only, in up to `threads` partitions.
    fn sampled(&self, positions: &[u64], threads: usize) -> Result<Arc<dyn ExecutionPlan>> {
        match self {
            Leaf::Memory(memory) => {
                let each = positions.len().div_ceil(threads.max(1)).max(1);
                let groups = positions.chunks(each);
                let partitions: Vec<_> = groups.map(|positions| slices(memory, positions)).collect();
                let projection = memory.projection().clone();
                let schema = memory.original_schema();
                Ok(MemorySourceConfig::try_new_exec(&partitions, schema, projection)?)
            }
            #[cfg(feature = "parquet")]
            Leaf::Parquet(rows) => rows.sampled(positions, threads),
        }
    }
}

/// The rows of these ascending positions, as slices of the batches that hold them.
fn slices(memory: &MemorySourceConfig, positions: &[u64]) -> Vec<RecordBatch> {
    let runs = positions.chunk_by(|at, next| at + 1 == *next);
    let mut runs = runs.filter_map(|run| Some((*run.first()?, run.len() as u64)));
    let (mut slices, mut first) = (Vec::new(), 0);
    let mut run = runs.next();
    for batch in memory.partitions().iter().flatten() {
        let next = first + batch.num_rows() as u64;
        while let Some((at, len)) = run.filter(|(at, _)| *at < next) {
            let own = len.min(next - at);
            slices.push(batch.slice((at - first) as usize, own as usize));
            run = if own < len {
                Some((next, len - own))
            } else {
                runs.next()
            };
        }
        first = next;
    }
    slices
}

/// The only input of a node that gives the same rows in every execution, if its input does; `None` for any other node.
fn repeats(node: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    let repeats = if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        !projection.expr().iter().any(|column| is_volatile(&column.expr))
    } else if let Some(filter) = node.downcast_ref::<FilterExec>() {
        !is_volatile(filter.predicate())
    } else {
        node.is::<RepartitionExec>() || node.is::<CoalescePartitionsExec>() || node.is::<CooperativeExec>()
    };
    let input = *node.children().first()?;
    (repeats && node.fetch().is_none()).then_some(input)
}

impl RereadableInput {
    /// The input that `plan` gives; `None` if it cannot be read again.
    pub(super) fn of(
        plan: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
        allowed: ReadAgain,
    ) -> Option<Self> {
        let mut leaf = plan;
        while let Some(input) = repeats(leaf) {
            leaf = input;
        }
        Some(Self {
            rows: Leaf::of(leaf.as_ref())?.rows(),
            plan: Arc::clone(plan),
            context: Arc::clone(context),
            always: allowed == ReadAgain::Always,
        })
    }

    /// An input of `rows` rows, of a plan of which nothing else is known.
    #[cfg(test)]
    pub(super) fn assumed(plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>, rows: u64) -> Self {
        Self {
            plan: Arc::clone(plan),
            context: Arc::clone(context),
            rows,
            always: true,
        }
    }

    /// Number of rows of the scan, before any filter.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether to read again at any size.
    pub(super) fn always(&self) -> bool {
        self.always
    }

    /// Number of partitions.
    pub(super) fn partitions(&self) -> usize {
        self.plan.output_partitioning().partition_count()
    }

    /// Reads the input once more: the rows of all partitions.
    ///
    /// # Errors
    /// DataFusion's.
    pub(super) fn read(&self) -> Result<Vec<SendableRecordBatchStream>> {
        self.executed(&reset_plan_states(Arc::clone(&self.plan))?)
    }

    /// Reads the rows of these ascending positions of the scan.
    ///
    /// # Errors
    /// DataFusion's.
    pub(super) fn sample(&self, positions: &[u64]) -> Result<Vec<SendableRecordBatchStream>> {
        let threads = self.context.session_config().target_partitions();
        self.executed(&sampled(&self.plan, positions, threads)?)
    }

    fn executed(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<SendableRecordBatchStream>> {
        let partitions = 0..plan.output_partitioning().partition_count();
        partitions
            .map(|partition| plan.execute(partition, Arc::clone(&self.context)))
            .collect()
    }
}

/// The plan over the rows of these positions only.
fn sampled(
    plan: &Arc<dyn ExecutionPlan>,
    positions: &[u64],
    threads: usize,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(leaf) = Leaf::of(plan.as_ref()) {
        return leaf.sampled(positions, threads);
    }
    let children = plan.children().into_iter();
    let children = children.map(|child| sampled(child, positions, threads));
    let children = children.collect::<Result<_>>()?;
    Arc::clone(plan).replace_children(
        children,
        ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
    )
}

/// Runs of a sample. Neighbours in a table resemble each other, so that many short runs are better than few long ones; but each run
/// costs the decoding of a page, and of the dictionary of its row group.
const RUNS: u64 = 32;

/// Ascending positions among `rows` rows: in each of [`RUNS`] equal stripes a run at a random place, together about `size` positions.
pub(super) fn runs(rows: u64, size: u64) -> Vec<u64> {
    let stripes = RUNS.min(rows);
    let start = |stripe: u64| (u128::from(rows) * u128::from(stripe) / u128::from(stripes.max(1))) as u64;
    let length = size.div_ceil(stripes.max(1));
    let run = |stripe: u64| {
        let (from, to) = (start(stripe), start(stripe + 1));
        let length = length.min(to - from);
        let at = from + mix(stripe) % (to - from - length + 1);
        at..at + length
    };
    (0..stripes).flat_map(run).collect()
}
