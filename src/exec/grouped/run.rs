//! From the streams of all partitions to the stream of groups.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::common::runtime::JoinSet;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, RecordOutput, Time,
};
use datafusion::physical_plan::stream::{RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter};
use futures::{Stream, StreamExt, TryStreamExt};

use super::GroupPlan;
use super::few::FewGroups;
use super::giant;
use super::many::Parts;
use super::scan::{GroupScan, Shared};
use super::worker::PartWorker;
use crate::config::StrategyName;
use crate::exec::selection::SelectionContext;
use crate::kernel::cpu::groups::runs::with_key;
use crate::kernel::cpu::groups::words::Word;
use crate::key::Width;
use crate::memory::FreePages;
use crate::memory::Spiller;
use crate::threads::blocking;
use crate::threads::in_order;

/// The groups of `streams`.
pub(super) fn stream(
    plan: Arc<GroupPlan>,
    streams: Vec<SendableRecordBatchStream>,
    memory: MemoryReservation,
    metrics: &ExecutionPlanMetricsSet,
    context: &Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let schema = Arc::clone(&plan.schema);
    // What DataFusion numbers has words of 32 bits.
    let width = plan
        .packing
        .as_ref()
        .map_or(Width::W32, |packing| packing.width());
    let baseline = BaselineMetrics::new(metrics, 0);
    let builder = || MetricBuilder::new(metrics);
    let run = GroupRun {
        solver: Arc::new(SelectionContext::new(
            StrategyName::Auto,
            memory.new_empty(),
            context,
        )),
        batch_rows: context.session_config().batch_size(),
        shared: Arc::new(Shared::new(
            plan,
            FreePages::of(context.memory_pool().as_ref()),
            Spiller::new(&context.runtime_env()),
            share(context.memory_pool().as_ref(), streams.len()),
            builder().counter("input_rows", 0),
            [
                builder().subset_time("scan_time", 0),
                baseline.elapsed_compute().clone(),
            ],
        )),
        memory,
        metrics: metrics.clone(),
    };
    let batches =
        futures::stream::once(async move { with_key!(width, W => run.batches::<W>(streams).await) })
            .try_flatten()
            .map(move |batch| batch.record_output(&baseline));
    Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(
        schema, batches,
    ))))
}

/// What each of `scans` scans may hold of a pool: together half of it. The rest is for what is in flight.
pub(in crate::exec) fn share(pool: &dyn MemoryPool, scans: usize) -> usize {
    match pool.memory_limit() {
        MemoryLimit::Finite(limit) => limit / 2 / scans.max(1),
        MemoryLimit::Infinite | MemoryLimit::Unknown => usize::MAX,
    }
}

/// One execution of the operator.
struct GroupRun {
    shared: Arc<Shared>,
    solver: Arc<SelectionContext>,
    /// Rows of an output batch.
    batch_rows: usize,
    memory: MemoryReservation,
    metrics: ExecutionPlanMetricsSet,
}

impl GroupRun {
    /// Reads all partitions, then gives the groups.
    async fn batches<W: Word>(
        self,
        streams: Vec<SendableRecordBatchStream>,
    ) -> Result<SendableRecordBatchStream> {
        let mut scans = self.scan::<W>(streams).await?;
        let few = FewGroups::of(&mut scans, &self.shared.plan)?;
        match few.filter(|few| !few.are_better_partitioned(&scans, &self.shared.plan, &self.memory)) {
            Some(few) => self.few(few, scans).await,
            None => self.many(scans).await,
        }
    }

    /// All partitions at once, in a task each.
    async fn scan<W: Word>(&self, streams: Vec<SendableRecordBatchStream>) -> Result<Vec<GroupScan<W>>> {
        let mut tasks = JoinSet::new();
        for (partition, stream) in streams.into_iter().enumerate() {
            let scan = GroupScan::<W>::try_new(Arc::clone(&self.shared), &self.memory)?;
            tasks.spawn(async move { (partition, scan.read(stream).await) });
        }
        in_order(tasks).await
    }

    async fn few<W: Word>(
        self,
        few: FewGroups<W>,
        scans: Vec<GroupScan<W>>,
    ) -> Result<SendableRecordBatchStream> {
        self.count("few_groups", 1);
        let plan = Arc::clone(&self.shared.plan);
        let time = MetricBuilder::new(&self.metrics).subset_time("select_time", 0);
        let timer = time.timer();
        let batch = few.batch(scans, &plan, self.solver.threads, &self.memory).await?;
        drop(timer);
        self.count("groups", batch.num_rows());
        let rows = self.batch_rows;
        let slices = (0..batch.num_rows())
            .step_by(rows)
            .map(move |from| Ok(batch.slice(from, rows.min(batch.num_rows() - from))));
        let slices = futures::stream::iter(slices.collect::<Vec<Result<RecordBatch>>>());
        let schema = Arc::clone(&plan.schema);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, slices)))
    }

    async fn many<W: Word>(self, scans: Vec<GroupScan<W>>) -> Result<SendableRecordBatchStream> {
        self.count("many_groups", 1);
        let mut tasks = JoinSet::new();
        for (partition, scan) in scans.into_iter().enumerate() {
            tasks.spawn(async move { (partition, blocking(move || scan.into_many()).await) });
        }
        let partitioned = in_order(tasks).await?;
        let plan = Arc::clone(&self.shared.plan);
        let memory = self.memory.new_empty();
        let (parts, workers) = Parts::try_new(&self.shared, partitioned, memory, self.solver.threads)?;
        let parts = Arc::new(parts);
        self.count("spill_count", self.shared.spiller.spilled_files() as usize);
        self.count("spilled_bytes", self.shared.spiller.spilled_bytes() as usize);
        let groups = MetricBuilder::new(&self.metrics).counter("groups", 0);
        let time = MetricBuilder::new(&self.metrics).subset_time("select_time", 0);
        let ordinary = {
            let (parts, groups, schema) = (Arc::clone(&parts), groups.clone(), Arc::clone(&plan.schema));
            move || ordinary(&parts, workers, schema, &groups, &time)
        };
        let giants = self.giants(&parts, &groups);
        let schema = Arc::clone(&plan.schema);
        // Where memory is bounded, giants have it alone: what they work in was seen to be there, and byte strings may take all.
        let batches = match self.shared.is_bounded() || plan.has_byte_strings() {
            true => {
                let ordinary = futures::stream::once(async move { ordinary() }).flatten();
                giants.chain(ordinary).boxed()
            }
            false => giants.chain(ordinary()).boxed(),
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }

    /// The groups of parts that are not for one worker, one part after the other.
    fn giants<W: Word>(
        &self,
        parts: &Arc<Parts<W>>,
        groups: &Count,
    ) -> impl Stream<Item = Result<RecordBatch>> + use<W> {
        let list = futures::stream::iter(parts.giants());
        let counter = |name| MetricBuilder::new(&self.metrics).counter(name, 0);
        let spilled = ["spill_count", "spilled_bytes"].map(counter);
        let (parts, groups, solver) = (Arc::clone(parts), groups.clone(), Arc::clone(&self.solver));
        let giant = move |part| {
            let (parts, groups) = (Arc::clone(&parts), groups.clone());
            let (solver, spilled) = (Arc::clone(&solver), spilled.clone());
            async move {
                let batch = giant::batch(&parts, part, &solver).await?;
                groups.add(batch.as_ref().map_or(0, RecordBatch::num_rows));
                let (files, bytes) = solver.backend.spilled();
                for (count, total) in spilled.iter().zip([files, bytes]) {
                    count.add(total as usize - count.value());
                }
                Ok(batch)
            }
        };
        list.then(giant)
            .try_filter_map(|batch: Option<RecordBatch>| futures::future::ready(Ok(batch)))
    }

    fn count(&self, name: &'static str, n: usize) {
        MetricBuilder::new(&self.metrics).counter(name, 0).add(n);
    }
}

/// The groups of ordinary parts, by workers that run as soon as this is called.
fn ordinary<W: Word>(
    parts: &Arc<Parts<W>>,
    workers: usize,
    schema: SchemaRef,
    groups: &Count,
    time: &Time,
) -> SendableRecordBatchStream {
    let mut builder = RecordBatchReceiverStreamBuilder::new(schema, 2 * workers);
    for _ in 0..workers {
        let mut worker = PartWorker::new(Arc::clone(parts), groups.clone(), time.clone());
        let sender = builder.tx();
        builder.spawn_blocking(move || {
            while let Some(batch) = worker.next()? {
                if sender.blocking_send(Ok(batch)).is_err() {
                    // Nobody wants the rest.
                    return Ok(());
                }
            }
            Ok(())
        });
    }
    builder.build()
}
