//! One execution of the operator: reads the streams of all partitions, and answers with the first rows.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{Stream, StreamExt, TryStreamExt};

use super::floor::{FloatBounds, SharedFloor};
use super::plan::SortLimitPlan;
use super::scan::{Shared, SortLimitScan, reserve};
use super::store::RowStore;
use crate::failpoint::may_fail;
use crate::kernel::cpu::top::{Best, Places};
use crate::key::with_key;
use crate::key::{Key, Width};
use crate::threads::blocking;
use crate::threads::partitions_in_order;

/// The first rows of all `streams` together, in order.
pub(super) fn stream(
    plan: Arc<SortLimitPlan>,
    filter: Option<Arc<DynamicFilterPhysicalExpr>>,
    streams: Vec<SendableRecordBatchStream>,
    memory: MemoryReservation,
    (metrics, partition): (&ExecutionPlanMetricsSet, usize),
    context: &Arc<TaskContext>,
) -> SendableRecordBatchStream {
    let baseline = BaselineMetrics::new(metrics, partition);
    let builder = || MetricBuilder::new(metrics);
    let times = [
        builder().subset_time("scan_time", partition),
        baseline.elapsed_compute().clone(),
    ];
    let (schema, width) = (Arc::clone(&plan.schema), plan.keys.width());
    let config = context.session_config();
    let batch_rows = config.batch_size().max(1);
    let floats = FloatBounds::of(config.options());
    let shared = Arc::new(Shared {
        floor: SharedFloor::new(Arc::clone(&plan), filter, floats),
        plan,
        rows: builder().counter("input_rows", partition),
        rejected: builder().counter("rejected_rows", partition),
        times,
    });
    let first = async move {
        let first = with_key!(width, K => first_rows::<K>(&shared, streams, memory).await)?;
        Ok::<_, DataFusionError>(first.batches(batch_rows, baseline))
    };
    let batches = futures::stream::once(first).try_flatten();
    make_cooperative(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
}

/// The rows of the answer.
struct FirstRows {
    store: RowStore,
    /// Numbers of the rows of the answer, in order.
    numbers: Vec<u64>,
    /// The reservations of the rows, each of one scan, and of the numbers.
    memory: Vec<MemoryReservation>,
}

impl FirstRows {
    /// The rows, in batches of `batch_rows` rows.
    fn batches(
        self,
        batch_rows: usize,
        baseline: BaselineMetrics,
    ) -> impl Stream<Item = Result<RecordBatch>> {
        let starts = (0..self.numbers.len()).step_by(batch_rows);
        futures::stream::iter(starts).map(move |from| {
            may_fail!("top_answer");
            // Memory stays reserved until the last batch is given out.
            let _held = &self.memory;
            let _timer = baseline.elapsed_compute().timer();
            let to = self.numbers.len().min(from + batch_rows);
            self.store
                .gather(&self.numbers[from..to])
                .record_output(&baseline)
        })
    }
}

/// Reads all partitions, and finds the first of the rows that they hold.
async fn first_rows<K: Key>(
    shared: &Arc<Shared>,
    streams: Vec<SendableRecordBatchStream>,
    memory: MemoryReservation,
) -> Result<FirstRows> {
    let scans = streams.into_iter().map(|stream| {
        let scan = SortLimitScan::<K>::try_new(Arc::clone(shared), &memory)?;
        Ok(scan.read(stream))
    });
    let scans = partitions_in_order(scans.collect::<Result<_>>()?).await?;
    shared.floor.finish();
    let shared = Arc::clone(shared);
    blocking(move || {
        let time = shared.times[1].clone();
        let _timer = time.timer();
        merged(&shared.plan, scans, memory)
    })
    .await
}

/// The first rows of all scans.
fn merged<K: Key>(
    plan: &SortLimitPlan,
    scans: Vec<SortLimitScan<K>>,
    memory: MemoryReservation,
) -> Result<FirstRows> {
    may_fail!("top_merge");
    let mut best = Best::<K>::try_new(plan.k)?;
    let mut store = RowStore::new(Arc::clone(&plan.schema));
    let mut held = Vec::with_capacity(scans.len() + 1);
    for scan in scans {
        let (keys, own, rows_bytes) = (scan.best.keys(), scan.best.rows(), scan.store.bytes());
        // A copy of the numbers, and the memory of the sort at the end.
        let numbers = size_of_val(own);
        let sorting = plan.k.min(best.rows().len() + own.len()) * size_of::<(K, u64)>();
        reserve(
            &memory,
            best.held_bytes() + best.more_bytes(own.len()) + numbers + sorting,
            plan.k,
        )?;
        let first = store.append(scan.store);
        let own: Vec<u64> = own.iter().map(|row| row + first).collect();
        best.push(keys, Places::Each(&own))?;
        scan.memory.shrink(scan.memory.size().saturating_sub(rows_bytes));
        held.push(scan.memory);
    }
    held.push(memory);
    let (_, numbers) = best.into_sorted()?;
    Ok(FirstRows {
        store,
        numbers,
        memory: held,
    })
}
