//! The first of two steps on many machines: the best rows of one partition, while its groups are few.
//!
//! Rows of other partitions may be better, so this step only drops. Once groups are many it would hold most rows to drop few of
//! them; then it gives out what it holds and passes on the rest as it comes.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{Stream, StreamExt, TryStreamExt};

use super::plan::TopKPlan;
use super::run::width_of;
use super::scan::{Phase, Shared, TopKScan};
use crate::kernel::cpu::groups::runs::with_key;
use crate::kernel::cpu::groups::words::Word;
use crate::key::Width;

/// The rows of one partition, but for those that its best rows leave behind.
pub(super) fn stream(
    plan: Arc<TopKPlan>,
    mut streams: Vec<SendableRecordBatchStream>,
    memory: MemoryReservation,
    (metrics, partition): (&ExecutionPlanMetricsSet, usize),
    context: &Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let (Some(stream), true) = (streams.pop(), streams.is_empty()) else {
        return internal_err!("a partial step reads one partition");
    };
    let (schema, width) = (Arc::clone(&plan.schema), width_of(&plan));
    let baseline = BaselineMetrics::new(metrics, partition);
    let passed = MetricBuilder::new(metrics).counter("passed_rows", partition);
    let shared = Arc::new(Shared::new(plan, 1, (metrics, partition), &baseline, context));
    let batch_rows = context.session_config().batch_size();
    let batches = futures::stream::once(async move {
        let batches = with_key!(width, W => {
            let scan = TopKScan::<W>::try_new(Arc::clone(&shared), &memory)?;
            best_rows(scan, stream, batch_rows, passed).await?
        });
        Ok::<_, DataFusionError>(batches.map(move |batch| batch.record_output(&baseline)))
    });
    let stream = RecordBatchStreamAdapter::new(schema, batches.try_flatten());
    Ok(make_cooperative(Box::pin(stream)))
}

type Batches = std::pin::Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

/// What is left of a partition.
async fn best_rows<W: Word>(
    scan: TopKScan<W>,
    mut stream: SendableRecordBatchStream,
    batch_rows: usize,
    passed: Count,
) -> Result<Batches> {
    let shared = Arc::clone(&scan.shared);
    let scan = scan.read_few(&mut stream).await?;
    let (grouping, Phase::Few(mut sieve)) = (scan.grouping, scan.phase) else {
        return internal_err!("rows of a partial step are partitioned");
    };
    let best = sieve.take(grouping.len(), &shared.plan)?;
    shared.rejected.add(sieve.rejected() as usize);
    drop((grouping, sieve));
    let best = super::many::batches(&shared.plan, Vec::new(), best, batch_rows)?;
    // Reserved until they are given out.
    let memory = scan.memory;
    let best = futures::stream::iter(best).map(move |batch| {
        let _held = &memory;
        Ok(batch)
    });
    // Of these no row has been looked at.
    let rest = stream.inspect_ok(move |batch| {
        shared.rows.add(batch.num_rows());
        passed.add(batch.num_rows());
    });
    Ok(Box::pin(best.chain(rest)))
}
