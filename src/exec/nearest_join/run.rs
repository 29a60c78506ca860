//! One partition of the join: the table's batches, each with groups of queries.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
#[cfg(feature = "cuda")]
use datafusion::physical_plan::ExecutionPlanProperties;
#[cfg(feature = "cuda")]
use datafusion::physical_plan::metrics::Time;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use tokio::sync::mpsc::Sender;

#[cfg(feature = "cuda")]
use super::device::DevicePairs;
use super::queries::{Queries, QueryRows};
use super::shared::Shared;
use super::spec::{NearestJoinSpec, PairColumn};
use super::table::TableRows;
use crate::exec::operator::Execution;
use crate::functions::VectorDistance;
use crate::kernel::cpu::distance::{Floors, Marks, PAIR_BYTES, Pair, Room, VectorTiles, reaching};
use crate::memory::is_exhausted;

/// Bytes of the pairs of queries that are multiplied with a batch at once, and of the queries' components in `f64`.
const GROUP_BYTES: usize = 8 << 20;

/// Fewest queries of a group, and what their number is a multiple of; so it is a multiple of those of a tile.
const GROUP_STEP: usize = 96;

/// Most queries of a group.
const MOST_QUERIES: usize = 40 * GROUP_STEP;

/// The pairs of one partition.
///
/// # Errors
/// The inputs'.
pub(super) fn stream(
    spec: &Arc<NearestJoinSpec>,
    shared: &Arc<Shared>,
    table: Arc<TableRows>,
    on: Execution<'_>,
) -> Result<SendableRecordBatchStream> {
    let (shared, partition) = (Arc::clone(shared), on.partition);
    let mut builder = RecordBatchReceiverStreamBuilder::new(on.schema(), 2);
    let (input, context) = (Arc::clone(&on.inputs[0]), Arc::clone(&on.context));
    let memory = ["queries of NearestJoinExec", "tiles of NearestJoinExec"].map(|name| on.memory_named(name));
    #[cfg(feature = "cuda")]
    let (of_device, metrics) = (on.memory_named("pairs of NearestJoinExec"), on.metrics.clone());
    #[cfg(feature = "cuda")]
    let partitions = on.inputs[1].output_partitioning().partition_count();
    let baseline = BaselineMetrics::new(on.metrics, on.partition);
    let mut task = Task {
        spec: Arc::clone(spec),
        schema: on.schema(),
        batch_rows: on.context.session_config().batch_size().max(1),
        memory: on.memory(),
        pairs: on.counter("pairs"),
        whole_batches: on.counter("whole_batches"),
        #[cfg(feature = "cuda")]
        fetch_time: on.time("fetch_time"),
        out: builder.tx(),
        baseline,
    };
    builder.spawn(async move {
        let (spec, [of_rows, of_tiles]) = (Arc::clone(&task.spec), memory);
        let collect = async move { QueryRows::collect(input.execute(0, context)?, of_rows).await };
        let rows = shared.rows.get(collect).await?;
        #[cfg(feature = "cuda")]
        if spec.pinned.is_some() {
            let find = DevicePairs::find(
                Arc::clone(&spec),
                Arc::clone(&rows),
                partitions,
                of_device,
                metrics,
            );
            if let Some(found) = shared.on_device.get(find).await?.as_ref() {
                return task.pass_on(found, partition).await;
            }
        }
        let queries = async move { Queries::of(&spec, rows, of_tiles) };
        let queries = shared.queries.get(queries).await?;
        task.run(&queries, (&table, partition)).await
    });
    Ok(builder.build())
}

/// One partition on its way through the table.
struct Task {
    spec: Arc<NearestJoinSpec>,
    schema: SchemaRef,
    /// Most rows of an output batch.
    batch_rows: usize,
    memory: MemoryReservation,
    pairs: Count,
    whole_batches: Count,
    #[cfg(feature = "cuda")]
    fetch_time: Time,
    out: Sender<Result<RecordBatch>>,
    baseline: BaselineMetrics,
}

impl Task {
    /// Joins the rows of the table that come to this partition.
    async fn run(&mut self, queries: &Queries, (table, partition): (&TableRows, usize)) -> Result<()> {
        let count = queries.rows.batch.num_rows();
        self.memory.try_resize(Floors::least_bytes(count))?;
        let mut floors = Floors::new(self.spec.k, count);
        while let Some(batch) = table.next(partition).await? {
            if count == 0 {
                break;
            }
            self.pairs.add(count.saturating_mul(batch.num_rows()));
            let marks = queries.marks.as_ref().map(|marks| marks.of(&batch)).transpose()?;
            let marks = queries.marks.as_ref().zip(marks.as_ref());
            let marks = marks.map(|(queries, rows)| Marks {
                queries: &queries.marks,
                rows,
            });
            let goes_on = match self.tiles(queries, &batch, &floors)? {
                Some(tiles) => self.best(queries, &batch, &tiles, marks, &mut floors).await?,
                None => self.all(queries, &batch, marks).await?,
            };
            if !goes_on {
                break;
            }
        }
        self.baseline.done();
        Ok(())
    }

    fn function(&self) -> Result<&VectorDistance> {
        VectorDistance::of(&self.spec.function)
            .ok_or_else(|| internal_datafusion_err!("{} is no distance", self.spec.function.name()))
    }

    /// The vectors of a batch, if a product can judge them.
    fn tiles(&self, queries: &Queries, batch: &RecordBatch, floors: &Floors) -> Result<Option<VectorTiles>> {
        if queries.tiles.is_none() {
            return Ok(None);
        }
        let timer = self.baseline.elapsed_compute().timer();
        let bytes = batch.num_rows() * (queries.dimension + 16) * size_of::<f32>();
        self.memory.try_resize(floors.bytes() + bytes)?;
        let function = self.function()?;
        let column = batch.column(self.spec.vector);
        let tiles = function.vector_tiles(function.ranking(self.spec.ascending), column, queries.dimension);
        timer.done();
        Ok(tiles)
    }

    /// Passes on the pairs of a batch that may be among the best. Returns whether anybody still reads them.
    async fn best(
        &mut self,
        queries: &Queries,
        batch: &RecordBatch,
        vectors: &VectorTiles,
        marks: Option<Marks<'_>>,
        floors: &mut Floors,
    ) -> Result<bool> {
        let Some(tiles) = &queries.tiles else {
            return Ok(true);
        };
        // At first, a query has some times k pairs, and those that nothing is known about.
        let expected = self.spec.k.saturating_mul(8).saturating_add(vectors.unknown());
        let expected = expected.min(vectors.len());
        let of_query = queries.dimension * size_of::<f64>() + expected * PAIR_BYTES;
        let most = GROUP_BYTES / of_query.max(1) / GROUP_STEP * GROUP_STEP;
        let most = most.clamp(GROUP_STEP, MOST_QUERIES);
        // Few queries at first: where vectors are equal, each may have all of them.
        let (mut first, mut group) = (0, GROUP_STEP);
        while first < tiles.len() {
            let timer = self.baseline.elapsed_compute().timer();
            let of = first..tiles.len().min(first + group);
            let (count, held) = (of.len(), floors.bytes() + vectors.bytes());
            let working = held + count * queries.dimension * size_of::<f64>();
            let reserve = |pairs: usize| self.memory.try_resize(working + pairs * PAIR_BYTES);
            match reserve(count * expected) {
                // Fewer queries together need less.
                Err(error) if group > GROUP_STEP && is_exhausted(&error) => {
                    group = GROUP_STEP;
                    continue;
                }
                reserved => reserved?,
            }
            let room = Room {
                pairs: count * expected,
                grow: &reserve,
            };
            first = of.end;
            let pairs = reaching(tiles, of, vectors, marks, floors, &queries.bounds, room)?;
            group = if pairs.len() > count * expected {
                GROUP_STEP
            } else {
                most.min(2 * group)
            };
            timer.done();
            let left = floors.bytes() + vectors.bytes() + pairs.len() * PAIR_BYTES;
            self.memory.try_resize(left.max(working))?;
            for pairs in pairs.chunks(self.batch_rows) {
                if !self.send(queries, batch, pairs).await? {
                    return Ok(false);
                }
            }
            tokio::task::yield_now().await;
        }
        Ok(true)
    }

    /// Passes on all wanted pairs of a batch whose vectors no product can judge. Returns whether anybody still reads them.
    async fn all(
        &mut self,
        queries: &Queries,
        batch: &RecordBatch,
        marks: Option<Marks<'_>>,
    ) -> Result<bool> {
        self.whole_batches.add(1);
        for query in 0..queries.rows.batch.num_rows() as u32 {
            for first in (0..batch.num_rows()).step_by(self.batch_rows) {
                let rows = first..batch.num_rows().min(first + self.batch_rows);
                let pairs = rows.map(|row| Pair {
                    query,
                    row: row as u32,
                });
                let is_wanted = |pair: &Pair| marks.is_none_or(|marks| marks.wants(*pair));
                let pairs: Vec<_> = pairs.filter(is_wanted).collect();
                if !pairs.is_empty() && !self.send(queries, batch, &pairs).await? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Passes on some pairs with a batch. Returns whether anybody still reads them.
    async fn send(&self, queries: &Queries, batch: &RecordBatch, pairs: &[Pair]) -> Result<bool> {
        let timer = self.baseline.elapsed_compute().timer();
        let of_rows = UInt32Array::from_iter_values(pairs.iter().map(|pair| pair.row));
        let of_row = |index: usize| Ok(take(batch.column(index).as_ref(), &of_rows, None)?);
        let distance = || -> Result<ArrayRef> {
            let (of_queries, vectors) = (queries.vectors(&self.spec), batch.column(self.spec.vector));
            let function = self.function()?;
            Ok(Arc::new(function.between(
                of_queries,
                vectors,
                pairs,
                self.spec.query_first,
            )?))
        };
        let joined = self.joined(&queries.rows, pairs, of_row, distance)?;
        timer.done();
        self.give(joined).await
    }

    /// Passes on some output rows. Returns whether anybody still reads them.
    async fn give(&self, joined: RecordBatch) -> Result<bool> {
        let joined = joined.record_output(&self.baseline);
        Ok(self.out.send(Ok(joined)).await.is_ok())
    }

    /// The output rows of some pairs. `of_row` gives a column of the table, and `distance` the distances.
    fn joined(
        &self,
        queries: &QueryRows,
        pairs: &[Pair],
        of_row: impl Fn(usize) -> Result<ArrayRef>,
        distance: impl Fn() -> Result<ArrayRef>,
    ) -> Result<RecordBatch> {
        let of_queries = UInt32Array::from_iter_values(pairs.iter().map(|pair| pair.query));
        let column = |column: &PairColumn| -> Result<ArrayRef> {
            match column {
                PairColumn::Query(index) => {
                    let values = queries.batch.column(*index);
                    Ok(take(values.as_ref(), &of_queries, None)?)
                }
                PairColumn::Row(index) => of_row(*index),
                PairColumn::Distance => distance(),
            }
        };
        let columns = self.spec.output.iter().map(column).collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(pairs.len()));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            columns,
            &options,
        )?)
    }

    /// Passes on the share of a partition in the pairs that a device has found.
    #[cfg(feature = "cuda")]
    async fn pass_on(&mut self, found: &DevicePairs, partition: usize) -> Result<()> {
        for part in found.parts(&self.spec, partition) {
            self.memory.try_resize(part.bytes(&self.spec))?;
            let timer = self.fetch_time.timer();
            let part = part.fetched().await?;
            timer.done();
            for first in (0..part.pairs.len()).step_by(self.batch_rows) {
                let timer = self.baseline.elapsed_compute().timer();
                let count = self.batch_rows.min(part.pairs.len() - first);
                let pairs = &part.pairs[first..first + count];
                let joined = self.joined(
                    found.queries(),
                    pairs,
                    |index| part.column(index, first, count),
                    || Ok(Arc::new(part.distances.slice(first, count))),
                )?;
                timer.done();
                if !self.give(joined).await? {
                    return Ok(());
                }
            }
        }
        self.baseline.done();
        Ok(())
    }
}
