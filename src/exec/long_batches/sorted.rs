//! Batches of few rows for sorts of long rows, which else merge few of their files at a time and write their rows again and again.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::ExecutionPlan;
#[cfg(feature = "parquet")]
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;

#[cfg(feature = "parquet")]
use super::limited;
use super::share_pool::SortsShare;
use super::with_batches;
use crate::exec::operator::{Execution, Operator, Work};
use crate::memory::WrappedPool;

/// Part of a sort's share of the memory limit, as a divisor, that a batch of its rows may take. A merge reserves two to four batches for each
/// file that it reads, so it reads four at a time if all rows are as long as the longest are thought to be, and more if they are as long as the
/// average.
#[cfg(feature = "parquet")]
const BATCH_PART: usize = 8;

/// Bytes of a batch that is not made shorter, if all of its rows are as long as the longest are thought to be.
#[cfg(feature = "parquet")]
const LEAST_BATCH: usize = 256 << 10;

/// Part of the memory limit that the sorts of all partitions may take, as a numerator and a denominator.
const SORTS_PART: (usize, usize) = (3, 4);

/// Runs a sort, and what it reads, in batches of fewer rows than the session's, and in no more than its share of three quarters of the memory
/// limit. The rest is left to what takes its rows.
///
/// It is planned above a sort of long rows of Parquet files if the memory pool has a limit and nobody chose the number of rows of a batch.
/// It has no metrics.
pub type ShortBatchesExec = Operator<ShortBatchesWork>;

/// Work of a [`ShortBatchesExec`].
#[derive(Debug)]
pub struct ShortBatchesWork {
    /// Rows of a batch.
    rows: usize,
}

impl ShortBatchesExec {
    /// An operator over `sort` in batches of `rows` rows.
    ///
    /// # Errors
    /// None but internal ones.
    pub(crate) fn try_new(sort: Arc<dyn ExecutionPlan>, rows: usize) -> Result<Self> {
        Self::over(ShortBatchesWork { rows }, vec![sort])
    }
}

/// Rows of the batches that a sort's rows should come in; `None` if the session's fit it, or nothing is known of its rows' bytes. `options`
/// and `runtime` are the session's.
#[cfg(feature = "parquet")]
pub(crate) fn short_batch(sort: &SortExec, options: &ConfigOptions, runtime: &RuntimeEnv) -> Option<usize> {
    let (limit, partitions) = limited(&runtime.memory_pool, options)?;
    let mut input = sort.input();
    while let Some(exchange) = input.downcast_ref::<RepartitionExec>() {
        input = exchange.input();
    }
    let metadata = runtime.cache_manager.get_file_metadata_cache();
    let row = super::row_bytes(input, &[], metadata.as_ref())?;
    let bytes = (limit / partitions.max(1) / BATCH_PART).max(LEAST_BATCH);
    let rows = bytes / row.max(1);
    (rows < options.execution.batch_size.get()).then_some(rows.max(1))
}

#[cfg(not(feature = "parquet"))]
pub(crate) fn short_batch(_: &SortExec, _: &ConfigOptions, _: &RuntimeEnv) -> Option<usize> {
    None
}

impl Work for ShortBatchesWork {
    fn name(&self) -> &'static str {
        "ShortBatchesExec"
    }

    fn details(&self) -> String {
        format!("rows={}", self.rows)
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn keeps_statistics(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let mut runtime = RuntimeEnv::clone(&on.context.runtime_env());
        if let Some(share) = on.memory_share() {
            let (part, of) = SORTS_PART;
            let sorts = SortsShare::new(share / of * part);
            runtime.memory_pool = Arc::new(WrappedPool::new(runtime.memory_pool, sorts));
        }
        let context = with_batches(&on.context, self.rows, Arc::new(runtime));
        on.inputs[0].execute(on.partition, context)
    }
}
