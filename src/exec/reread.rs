//! Inputs that can be read again with the same rows: plain scans of Parquet files and of tables in memory, with filters and projections
//! over them.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::datasource::memory::MemorySourceConfig;
#[cfg(feature = "parquet")]
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, EmptyRecordBatchStream, ExecutionPlan, ExecutionPlanProperties,
    ReplaceChildrenOptions,
};

use super::extents::{Extents, are_trusted};
use super::long_batches::executed;
#[cfg(feature = "parquet")]
use super::row_source::RowSource;
#[cfg(feature = "parquet")]
use super::statistics;
use crate::config::ReadAgain;
use crate::key::{KeyBits, KeySpec};
use crate::select::while_reading::LEAST_ROWS;

/// An input that can be read again.
#[derive(Debug, Clone)]
pub(super) struct RereadableInput {
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    /// Number of rows of the scan, before any filter.
    rows: u64,
    /// Where the rows are.
    place: Place,
    /// Whether to read again at any size.
    always: bool,
}

/// Bytes of a value of a type without a fixed width, as assumed.
const LONG: usize = 32;

/// Where rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Memory,
    LocalFiles,
    RemoteStore,
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

    fn place(&self) -> Place {
        match self {
            Leaf::Memory(_) => Place::Memory,
            #[cfg(feature = "parquet")]
            Leaf::Parquet(rows) if rows.config().object_store_url == ObjectStoreUrl::local_filesystem() => {
                Place::LocalFiles
            }
            #[cfg(feature = "parquet")]
            Leaf::Parquet(_) => Place::RemoteStore,
        }
    }

    /// A scan of the rows in these ascending ranges of positions only, in up to `threads` partitions.
    fn of_positions(&self, ranges: &[Range<u64>], threads: usize) -> Result<Arc<dyn ExecutionPlan>> {
        match self {
            Leaf::Memory(memory) => {
                let each = ranges.len().div_ceil(threads.max(1)).max(1);
                let partitions: Vec<_> = ranges.chunks(each).map(|ranges| slices(memory, ranges)).collect();
                let projection = memory.projection().clone();
                let schema = memory.original_schema();
                Ok(MemorySourceConfig::try_new_exec(&partitions, schema, projection)?)
            }
            #[cfg(feature = "parquet")]
            Leaf::Parquet(rows) => rows.of_positions(ranges, threads),
        }
    }
}

/// The rows in these ascending ranges of positions, as slices of the batches that hold them.
fn slices(memory: &MemorySourceConfig, ranges: &[Range<u64>]) -> Vec<RecordBatch> {
    let (mut slices, mut first) = (Vec::new(), 0);
    let mut ranges = ranges.iter().peekable();
    for batch in memory.partitions().iter().flatten() {
        let next = first + batch.num_rows() as u64;
        while let Some(range) = ranges.peek().filter(|range| range.start < next) {
            let (start, end) = (range.start.max(first), range.end.min(next));
            slices.push(batch.slice((start - first) as usize, (end - start) as usize));
            if range.end > next {
                break;
            }
            ranges.next();
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

/// Whether the rows of a plan can be read again, and to read them twice is likely to be better than to keep their values.
pub(crate) fn is_worth_two_reads(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    allowed: ReadAgain,
) -> bool {
    let input = RereadableInput::of(plan, context, allowed).filter(|_| allowed != ReadAgain::Never);
    input.is_some_and(|input| input.always || input.is_local() && input.rows >= LEAST_ROWS)
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
        let leaf = Leaf::of(leaf.as_ref())?;
        Some(Self {
            rows: leaf.rows(),
            place: leaf.place(),
            plan: Arc::clone(plan),
            context: Arc::clone(context),
            always: allowed == ReadAgain::Always,
        })
    }

    /// An input of `rows` rows, of a plan of which nothing else is known but that it gives the same rows in every execution.
    pub(super) fn assumed(plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>, rows: u64) -> Self {
        Self {
            plan: Arc::clone(plan),
            context: Arc::clone(context),
            rows,
            place: Place::LocalFiles,
            always: true,
        }
    }

    /// Number of rows of the scan, before any filter.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether the rows are on this machine, not in a remote store.
    pub(super) fn is_local(&self) -> bool {
        self.place != Place::RemoteStore
    }

    /// Whether the rows are in memory.
    pub(super) fn is_in_memory(&self) -> bool {
        self.place == Place::Memory
    }

    /// Bytes of a row in all columns that are read from files, where strings and lists count as [`LONG`]; 0 for rows in memory.
    pub(super) fn file_row_bytes(&self) -> usize {
        if self.is_in_memory() {
            return 0;
        }
        let schema = self.plan.schema();
        let columns = schema.fields().iter();
        columns
            .map(|field| field.data_type().primitive_width().unwrap_or(LONG))
            .sum()
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
        executed(&reset_plan_states(Arc::clone(&self.plan))?, &self.context)
    }

    /// Reads the rows in these ascending ranges of positions of the scan.
    ///
    /// # Errors
    /// DataFusion's.
    pub(super) fn read_rows(&self, ranges: &[Range<u64>]) -> Result<Vec<SendableRecordBatchStream>> {
        if ranges.is_empty() {
            return Ok(vec![Box::pin(EmptyRecordBatchStream::new(self.plan.schema()))]);
        }
        let threads = self.context.session_config().target_partitions();
        executed(&of_positions(&self.plan, ranges, threads)?, &self.context)
    }

    /// What statistics say of the values of `argument`, a column of the input. `None` if it is computed or filtered, or its source keeps no
    /// statistics that bound all values.
    ///
    /// # Errors
    /// Those of reading the metadata of files.
    pub(super) async fn extents(
        &self,
        argument: &Arc<dyn PhysicalExpr>,
        spec: &KeySpec,
    ) -> Result<Option<Extents>> {
        if !are_trusted(spec.data_type()) {
            return Ok(None);
        }
        self.told_extents(argument, spec).await
    }

    /// The least and the greatest key of `argument`, a column of the input, as statistics tell: they need not be right. `None` if they tell none.
    ///
    /// # Errors
    /// Those of reading the metadata of files.
    pub(super) async fn told_ends(
        &self,
        argument: &Arc<dyn PhysicalExpr>,
        spec: &KeySpec,
    ) -> Result<Option<[KeyBits; 2]>> {
        let extents = self.told_extents(argument, spec).await?;
        Ok(extents.and_then(|extents| extents.ends()))
    }

    /// What statistics say of the values of `argument`, whether they bound all values or not.
    #[cfg_attr(not(feature = "parquet"), expect(unused_variables))]
    async fn told_extents(
        &self,
        argument: &Arc<dyn PhysicalExpr>,
        spec: &KeySpec,
    ) -> Result<Option<Extents>> {
        let (mut node, mut argument) = (&self.plan, Arc::clone(argument));
        while let Some(input) = repeats(node) {
            if node.is::<FilterExec>() {
                return Ok(None);
            }
            if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
                let Some(column) = argument.downcast_ref::<Column>() else {
                    return Ok(None);
                };
                argument = Arc::clone(&projection.expr()[column.index()].expr);
            }
            node = input;
        }
        match Leaf::of(node.as_ref()) {
            #[cfg(feature = "parquet")]
            Some(Leaf::Parquet(rows)) => match rows.plain_column(&argument) {
                Some(name) => statistics::extents(&rows, &name, spec, &self.context).await,
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }
}

/// The plan over the rows in these ranges of positions only.
fn of_positions(
    plan: &Arc<dyn ExecutionPlan>,
    ranges: &[Range<u64>],
    threads: usize,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(leaf) = Leaf::of(plan.as_ref()) {
        return leaf.of_positions(ranges, threads);
    }
    let children = plan.children().into_iter();
    let children = children.map(|child| of_positions(child, ranges, threads));
    let children = children.collect::<Result<_>>()?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(plan).replace_children(children, options)
}
