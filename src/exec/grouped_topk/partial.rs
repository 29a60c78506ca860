//! The first of two steps on many machines: passes on the best rows of one partition, while its groups are few.
//!
//! Rows of other partitions may be better, so this step can only drop rows. With many groups, it would have to hold most rows to drop
//! few of them. So once groups are many, it gives out the rows that it holds, and passes on all further rows as they come.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::super::group_engine::{GroupScan, GroupedWork, Metrics, Shared};
use super::super::long_batches::OutputRows;
use super::execution::TopKExecution;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::Width;
use crate::key::with_key;

/// The rows of one partition, without those that cannot be among the best of their group.
pub(super) fn stream(
    work: TopKExecution,
    mut streams: Vec<SendableRecordBatchStream>,
    memory: MemoryReservation,
    metrics: Metrics,
    context: &Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let (Some(stream), true) = (streams.pop(), streams.is_empty()) else {
        return internal_err!("a partial step reads one partition");
    };
    let (schema, width) = (Arc::clone(work.schema()), work.groups().width());
    let baseline = BaselineMetrics::new(&metrics.set, metrics.partition);
    let passed = metrics.count("passed_rows");
    let shared = Arc::new(Shared::new(work, 1, metrics, &baseline, context));
    let output_rows = OutputRows::of(context);
    let batches = futures::stream::once(async move {
        let batches = with_key!(width, W => {
            let scan = GroupScan::<TopKExecution, W>::try_new(shared, &memory)?;
            best_rows(scan, stream, output_rows, passed).await?
        });
        Ok::<_, DataFusionError>(batches.map(move |batch| batch.record_output(&baseline)))
    });
    let stream = RecordBatchStreamAdapter::new(schema, batches.try_flatten());
    Ok(make_cooperative(Box::pin(stream)))
}

/// The best rows of a partition that has few groups; for many groups, also all rows that come after these.
async fn best_rows<W: GroupKey>(
    mut scan: GroupScan<TopKExecution, W>,
    mut stream: SendableRecordBatchStream,
    output_rows: OutputRows,
    passed: Count,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let shared = Arc::clone(&scan.shared);
    scan.read_few(&mut stream).await?;
    let (work, groups) = (&shared.work, scan.ids.len());
    // The batch with which groups became many is given out with the rows that are held.
    if let Some(rest) = scan.rest.take() {
        TopKExecution::push_few(&mut scan, rest)?;
    }
    let Some(mut sieve) = scan.held else {
        return internal_err!("rows of a partial step are partitioned");
    };
    let best = sieve.take(groups, &work.plan)?;
    work.rejected.add(sieve.rejected() as usize);
    drop((scan.ids, sieve));
    let best = output_rows.slices(work.answer(Vec::new(), best)?);
    // Memory stays reserved until the last batch is given out.
    let memory = scan.memory;
    let best = best.map(move |batch| {
        let _held = &memory;
        Ok(batch)
    });
    // No row of these batches has been looked at.
    let rest = stream.inspect_ok(move |batch| {
        shared.rows.add(batch.num_rows());
        passed.add(batch.num_rows());
    });
    Ok(futures::stream::iter(best).chain(rest).boxed())
}
