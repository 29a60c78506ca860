//! Batches of more rows where the rows are short, and of fewer where sorts hold long ones, under a memory limit.
//!
//! A session with a memory limit takes batches of few rows, since rows may be long and nobody reserves memory for the batches that
//! operators pass on: see [`SessionLimits`](crate::session::SessionLimits). Few rows cost time, a sixth of quantiles of a million groups
//! over 16 threads within 200 MB. Parquet files say how long their values are.

#[cfg(feature = "parquet")]
mod row_bytes;
mod share_pool;
mod sorted;

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

#[cfg(feature = "parquet")]
use self::row_bytes::row_bytes;
pub use self::sorted::ShortBatchesExec;
pub(crate) use self::sorted::short_batch;
use crate::memory::limit;
use crate::session::{WIDE_ROW_BYTES, batch_rows};

/// The context in which an operator reads its input. If `input` is a scan of short rows, or filters and projections of one, batches have as
/// many rows as take the memory that the session's batches take of long rows, up to DataFusion's default. `exprs` are the operator's
/// own expressions over the input.
pub(super) fn reading_context(
    input: &Arc<dyn ExecutionPlan>,
    exprs: &[Arc<dyn PhysicalExpr>],
    context: &Arc<TaskContext>,
) -> Arc<TaskContext> {
    let config = context.session_config();
    let Some(rows) = long_batch(input, exprs, context).filter(|rows| *rows > config.batch_size()) else {
        return Arc::clone(context);
    };
    with_batches(context, rows, context.runtime_env())
}

/// The task with batches of this number of rows, in this environment.
fn with_batches(context: &TaskContext, rows: usize, runtime: Arc<RuntimeEnv>) -> Arc<TaskContext> {
    Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        context.session_config().clone().with_batch_size(rows),
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        runtime,
    ))
}

/// Rows of the batches that an operator cuts its answer into.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutputRows {
    /// Rows of the session's batches.
    rows: usize,
    /// The memory limit and the number of partitions that these follow from; `None`: somebody chose them.
    limited: Option<(usize, usize)>,
}

impl OutputRows {
    /// Those of a task.
    pub(super) fn of(context: &TaskContext) -> Self {
        Self {
            rows: context.session_config().batch_size().max(1),
            limited: limited(context.memory_pool(), context.session_config().options()),
        }
    }

    /// The answer in batches: of as many rows as the session's, or of more if a memory limit made these few and rows are short.
    pub(super) fn slices(self, answer: RecordBatch) -> impl Iterator<Item = RecordBatch> {
        let all = answer.num_rows();
        let each = answer.get_array_memory_size().div_ceil(all.max(1));
        let longer = self
            .limited
            .map(|(limit, partitions)| batch_rows(limit, partitions, each));
        let rows = longer.map_or(self.rows, |longer| longer.max(self.rows));
        (0..all)
            .step_by(rows)
            .map(move |from| answer.slice(from, rows.min(all - from)))
    }
}

/// The memory limit and the number of partitions of a session whose batches follow from them.
fn limited(pool: &Arc<dyn MemoryPool>, options: &ConfigOptions) -> Option<(usize, usize)> {
    let limit = limit(pool.as_ref())?;
    let execution = &options.execution;
    let partitions = execution.target_partitions;
    // Another number was chosen by somebody.
    (execution.batch_size.get() == batch_rows(limit, partitions, WIDE_ROW_BYTES))
        .then_some((limit, partitions))
}

/// The rows of all partitions of an input, one stream each.
///
/// # Errors
/// The input's.
pub(super) fn executed(
    input: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
) -> Result<Vec<SendableRecordBatchStream>> {
    let partitions = 0..input.output_partitioning().partition_count();
    partitions
        .map(|partition| input.execute(partition, Arc::clone(context)))
        .collect()
}

/// Rows of a batch of short rows; `None` if the session's batches are not those of a memory limit, or the rows are not known to be short.
#[cfg(feature = "parquet")]
fn long_batch(
    input: &Arc<dyn ExecutionPlan>,
    exprs: &[Arc<dyn PhysicalExpr>],
    context: &TaskContext,
) -> Option<usize> {
    let (limit, partitions) = limited(context.memory_pool(), context.session_config().options())?;
    let metadata = context.runtime_env().cache_manager.get_file_metadata_cache();
    Some(batch_rows(
        limit,
        partitions,
        row_bytes(input, exprs, metadata.as_ref())?,
    ))
}

#[cfg(not(feature = "parquet"))]
fn long_batch(_: &Arc<dyn ExecutionPlan>, _: &[Arc<dyn PhysicalExpr>], _: &TaskContext) -> Option<usize> {
    None
}
