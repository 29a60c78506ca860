//! One execution of an operator over groups: reads the streams of all partitions, and answers with a stream.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, RecordOutput, Time};
use datafusion::physical_plan::stream::{RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::{AnsweredGroups, FewGroups, GroupScan, GroupedWork, HashPartitions, Metrics, Shared};
use crate::exec::long_batches::OutputRows;
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::Width;
use crate::key::with_key;
use crate::memory::is_exhausted;
use crate::threads::{blocking, partitions_in_order};

/// The answers of `work` over the groups of `streams`, by `threads` threads.
///
/// # Errors
/// `ResourcesExhausted` at the start; all other errors come with the stream.
pub(in crate::exec) fn stream<T: GroupedWork>(
    work: T,
    streams: Vec<SendableRecordBatchStream>,
    memory: MemoryReservation,
    metrics: Metrics,
    context: &Arc<TaskContext>,
    threads: usize,
) -> Result<SendableRecordBatchStream> {
    let (schema, width) = (Arc::clone(work.schema()), work.groups().width());
    let baseline = BaselineMetrics::new(&metrics.set, metrics.partition);
    let shared = Shared::new(work, streams.len(), metrics, &baseline, context);
    let run = GroupRun {
        output_rows: OutputRows::of(context),
        memory: shared
            .free
            .as_ref()
            .map_or(memory.new_empty(), |free| free.reservation(&memory)),
        shared: Arc::new(shared),
        threads,
    };
    let batches =
        futures::stream::once(async move { with_key!(width, W => run.batches::<W>(streams).await) })
            .try_flatten()
            .map(move |batch| batch.record_output(&baseline));
    let stream = RecordBatchStreamAdapter::new(schema, batches);
    Ok(make_cooperative(Box::pin(stream)))
}

/// One execution of an operator.
struct GroupRun<T> {
    shared: Arc<Shared<T>>,
    threads: usize,
    output_rows: OutputRows,
    memory: MemoryReservation,
}

impl<T: GroupedWork> GroupRun<T> {
    /// Reads all partitions, then answers.
    async fn batches<W: GroupKey>(
        self,
        streams: Vec<SendableRecordBatchStream>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let scans = streams.into_iter().map(|stream| {
            let mut scan = GroupScan::<T, W>::try_new(Arc::clone(&self.shared), &self.memory)?;
            scan.rows.begin(&self.shared)?;
            Ok(scan.read(stream))
        });
        let scans = partitions_in_order(scans.collect::<Result<_>>()?).await?;
        self.shared.close_pages();
        match FewGroups::of(scans, &self.shared.work, &self.memory)? {
            Ok(few) => self.few(few).await,
            Err(scans) => self.many(scans).await,
        }
    }

    /// The answers of few groups.
    async fn few<W: GroupKey>(self, few: FewGroups<T, W>) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let metrics = &self.shared.metrics;
        metrics.count("few_groups").add(1);
        let time = metrics.time("select_time");
        let memory = Arc::new(self.memory.new_empty());
        let answered = {
            let _timer = time.timer();
            T::few(Arc::clone(&self.shared), few, Arc::clone(&memory)).await?
        };
        metrics.count("groups").add(answered.groups);
        let batches = self.output_rows.slices(answered.batch).map(move |batch| {
            // Memory stays reserved until the last batch is given out.
            let _held = &memory;
            Ok(batch)
        });
        Ok(futures::stream::iter(batches).boxed())
    }

    /// The answers of many groups: those of oversized hash partitions, then those of the others.
    async fn many<W: GroupKey>(
        self,
        scans: Vec<GroupScan<T, W>>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let metrics = &self.shared.metrics;
        metrics.count("many_groups").add(1);
        let scans = scans.into_iter().map(|scan| blocking(move || scan.into_many()));
        let scans = partitions_in_order(scans.collect()).await?;
        let (shared, memory) = (Arc::clone(&self.shared), self.memory.new_empty());
        let partitions = Arc::new(HashPartitions::try_new(shared, scans, memory, self.threads)?);
        let spiller = &self.shared.spiller;
        metrics.count("spill_count").add(spiller.spilled_files() as usize);
        metrics
            .count("spilled_bytes")
            .add(spiller.spilled_bytes() as usize);
        let (groups, time) = (metrics.count("groups"), metrics.time("select_time"));
        let oversized = T::oversized(&partitions, &groups);
        let is_alone = !partitions.oversized().is_empty() && self.shared.work.oversized_alone(&self.shared);
        let rows = self.output_rows;
        let ordinary = move || ordinary(&partitions, &groups, &time, rows);
        Ok(if is_alone {
            let ordinary = futures::stream::once(async move { ordinary() }).try_flatten();
            oversized.chain(ordinary).boxed()
        } else {
            oversized.chain(ordinary()?).boxed()
        })
    }
}

/// The answers of hash partitions that are not oversized. The workers start at once, before the stream is read.
fn ordinary<T: GroupedWork, W: GroupKey>(
    partitions: &Arc<HashPartitions<T, W>>,
    groups: &Count,
    time: &Time,
    rows: OutputRows,
) -> Result<SendableRecordBatchStream> {
    let schema = Arc::clone(partitions.shared.work.schema());
    let mut builder = RecordBatchReceiverStreamBuilder::new(schema, 2 * partitions.workers);
    let workers = (0..partitions.workers).map(|_| T::worker(partitions));
    partitions.begin();
    for mut worker in workers.collect::<Result<Vec<_>>>()? {
        let (partitions, groups, time) = (Arc::clone(partitions), groups.clone(), time.clone());
        let sender = builder.tx();
        builder.spawn_blocking(move || {
            while let Some(part) = partitions.next() {
                let answered = {
                    let _timer = time.timer();
                    may_fail!("group_part");
                    T::partition(&mut worker, &partitions, part)
                };
                let answered = match answered {
                    Err(error) if is_exhausted(&error) => {
                        drop(worker);
                        if partitions.leaves(part) {
                            return Ok(());
                        }
                        return Err(error);
                    }
                    answered => answered?,
                };
                let Some(AnsweredGroups { groups: own, batch }) = answered else {
                    continue;
                };
                groups.add(own);
                for batch in rows.slices(batch) {
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
