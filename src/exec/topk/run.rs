//! From the streams of all partitions to the stream of groups.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::runtime::JoinSet;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, RecordOutput,
};
use datafusion::physical_plan::stream::{RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter};
use futures::{StreamExt, TryStreamExt};

use super::super::grouped::{FEW_GROUPS, Grouping};
use super::many::{PartWorker, Parts, batches};
use super::plan::TopKPlan;
use super::scan::{Phase, Shared, TopKScan, repeated, reserve};
use super::select::AnySieve;
use crate::kernel::cpu::groups::runs::with_key;
use crate::kernel::cpu::groups::words::Word;
use crate::key::Width;
use crate::threads::blocking;
use crate::threads::in_order;

/// Of the words that tell groups apart.
pub(super) fn width_of(plan: &TopKPlan) -> Width {
    let packing = plan.packing.as_ref();
    packing.map_or(Width::W32, |packing| packing.width())
}

/// The groups of `streams`, worked off by so many threads.
pub(super) fn stream(
    plan: Arc<TopKPlan>,
    streams: Vec<SendableRecordBatchStream>,
    memory: MemoryReservation,
    (metrics, partition): (&ExecutionPlanMetricsSet, usize),
    context: &Arc<TaskContext>,
    threads: usize,
) -> Result<SendableRecordBatchStream> {
    let schema = Arc::clone(&plan.schema);
    let width = width_of(&plan);
    let baseline = BaselineMetrics::new(metrics, partition);
    let run = TopKRun {
        threads,
        batch_rows: context.session_config().batch_size(),
        shared: Arc::new(Shared::new(
            plan,
            streams.len(),
            (metrics, partition),
            &baseline,
            context,
        )),
        memory,
        metrics: metrics.clone(),
        partition,
    };
    let batches =
        futures::stream::once(async move { with_key!(width, W => run.batches::<W>(streams).await) })
            .try_flatten()
            .map(move |batch| batch.record_output(&baseline));
    let stream = RecordBatchStreamAdapter::new(schema, batches);
    Ok(make_cooperative(Box::pin(stream)))
}

/// One execution of the operator.
struct TopKRun {
    shared: Arc<Shared>,
    threads: usize,
    /// Rows of an output batch.
    batch_rows: usize,
    memory: MemoryReservation,
    metrics: ExecutionPlanMetricsSet,
    /// Of the output.
    partition: usize,
}

/// Groups of all scans, while they are few.
struct Few<W> {
    grouping: Grouping<W>,
    /// For each scan: from its numbers to those of all.
    maps: Vec<Vec<usize>>,
}

impl<W: Word> Few<W> {
    /// `None` if any scan has partitioned its rows, or all together have too many groups.
    fn of(scans: &mut [TopKScan<W>], plan: &TopKPlan) -> Result<Option<Self>> {
        let mut grouping = Grouping::try_new(plan.packing.as_ref(), plan.group_schema())?;
        let mut maps = Vec::with_capacity(scans.len());
        for scan in scans {
            let mut ids = Vec::new();
            if matches!(scan.phase, Phase::Many(_)) {
                return Ok(None);
            }
            if scan.grouping.len() > 0 {
                grouping.number(&scan.grouping.values()?, &mut ids)?;
            }
            if grouping.len() > FEW_GROUPS {
                return Ok(None);
            }
            maps.push(ids);
        }
        Ok(Some(Self { grouping, maps }))
    }

    /// The best rows of all scans.
    fn batches(
        mut self,
        scans: Vec<TopKScan<W>>,
        shared: &Shared,
        memory: &MemoryReservation,
        most: usize,
    ) -> Result<(Vec<RecordBatch>, usize)> {
        let (plan, count) = (&shared.plan, self.grouping.len());
        let mut all = AnySieve::new(plan)?;
        for (scan, map) in scans.into_iter().zip(&self.maps) {
            let Phase::Few(mut sieve) = scan.phase else {
                return internal_err!("rows are partitioned");
            };
            let best = sieve.take(map.len(), plan)?;
            let ids = repeated(&best.lengths)
                .into_iter()
                .map(|id| map[id as usize] as u32);
            all.push(count, &ids.collect::<Vec<_>>(), &best.keys, &best.rows)?;
            shared.rejected.add(sieve.rejected() as usize);
            let held = 2 * all.held_bytes();
            reserve(memory, held.saturating_sub(memory.size()))?;
        }
        if count == 0 {
            return Ok((Vec::new(), 0));
        }
        let best = all.take(count, plan)?;
        Ok((batches(plan, self.grouping.values()?, best, most)?, count))
    }
}

impl TopKRun {
    /// Reads all partitions, then gives the groups.
    async fn batches<W: Word>(
        self,
        streams: Vec<SendableRecordBatchStream>,
    ) -> Result<SendableRecordBatchStream> {
        let mut tasks = JoinSet::new();
        for (partition, stream) in streams.into_iter().enumerate() {
            let scan = TopKScan::<W>::try_new(Arc::clone(&self.shared), &self.memory)?;
            tasks.spawn(async move { (partition, scan.read(stream).await) });
        }
        let mut scans = in_order(tasks).await?;
        match Few::of(&mut scans, &self.shared.plan)? {
            Some(few) => self.few(few, scans).await,
            None => self.many(scans).await,
        }
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.shared.plan.schema)
    }

    async fn few<W: Word>(self, few: Few<W>, scans: Vec<TopKScan<W>>) -> Result<SendableRecordBatchStream> {
        self.count("few_groups", 1);
        let schema = self.schema();
        let time = MetricBuilder::new(&self.metrics).subset_time("select_time", self.partition);
        let (shared, memory, most) = (Arc::clone(&self.shared), self.memory.new_empty(), self.batch_rows);
        let (batches, groups) = blocking(move || {
            let _timer = time.timer();
            let done = few.batches(scans, &shared, &memory, most)?;
            Ok((done, memory))
        })
        .await
        .map(|((batches, groups), memory)| {
            // What is left to give out stays reserved until it is.
            let batches = batches.into_iter().map(move |batch| {
                let _held = &memory;
                Ok(batch)
            });
            (batches, groups)
        })?;
        self.count("groups", groups);
        let batches = futures::stream::iter(batches);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }

    async fn many<W: Word>(self, scans: Vec<TopKScan<W>>) -> Result<SendableRecordBatchStream> {
        self.count("many_groups", 1);
        let mut tasks = JoinSet::new();
        for (partition, scan) in scans.into_iter().enumerate() {
            tasks.spawn(async move { (partition, blocking(move || scan.into_many()).await) });
        }
        let partitioned = in_order(tasks).await?;
        let memory = self.memory.new_empty();
        let (parts, workers) = Parts::try_new(Arc::clone(&self.shared), partitioned, memory, self.threads)?;
        let parts = Arc::new(parts);
        self.count("spill_count", self.shared.spiller.spilled_files() as usize);
        self.count("spilled_bytes", self.shared.spiller.spilled_bytes() as usize);
        let groups = MetricBuilder::new(&self.metrics).counter("groups", self.partition);
        let time = MetricBuilder::new(&self.metrics).subset_time("select_time", self.partition);
        let mut builder = RecordBatchReceiverStreamBuilder::new(self.schema(), 2 * workers);
        for _ in 0..workers {
            let worker =
                PartWorker::try_new(Arc::clone(&parts), self.batch_rows, groups.clone(), time.clone());
            let mut worker = worker?;
            let sender = builder.tx();
            builder.spawn_blocking(move || {
                while let Some(batches) = worker.next()? {
                    for batch in batches {
                        if sender.blocking_send(Ok(batch)).is_err() {
                            // Nobody wants the rest.
                            return Ok(());
                        }
                    }
                }
                Ok(())
            });
        }
        Ok(builder.build())
    }

    fn count(&self, name: &'static str, n: usize) {
        MetricBuilder::new(&self.metrics)
            .counter(name, self.partition)
            .add(n);
    }
}
