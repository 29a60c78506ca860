//! One partition of the join: the table's batches, each with groups of queries.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use tokio::sync::mpsc::Sender;

use super::queries::Queries;
use super::spec::{NearestJoinSpec, PairColumn};
use super::table::TableRows;
use crate::exec::operator::Execution;
use crate::exec::shared_state::SharedState;
use crate::functions::VectorDistance;
use crate::kernel::cpu::distance::{Floors, Marks, PAIR_BYTES, Pair, VectorTiles, reaching};

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
    queries: &Arc<SharedState<Queries>>,
    table: Arc<TableRows>,
    on: Execution<'_>,
) -> Result<SendableRecordBatchStream> {
    let (queries, partition) = (Arc::clone(queries), on.partition);
    let mut builder = RecordBatchReceiverStreamBuilder::new(on.schema(), 2);
    let (input, context) = (Arc::clone(&on.inputs[0]), Arc::clone(&on.context));
    let shared = on.memory_named("queries of NearestJoinExec");
    let baseline = BaselineMetrics::new(on.metrics, on.partition);
    let mut task = Task {
        spec: Arc::clone(spec),
        schema: on.schema(),
        batch_rows: on.context.session_config().batch_size().max(1),
        memory: on.memory(),
        pairs: on.counter("pairs"),
        whole_batches: on.counter("whole_batches"),
        out: builder.tx(),
        baseline,
    };
    builder.spawn(async move {
        let spec = Arc::clone(&task.spec);
        let collect = async move { Queries::collect(&spec, input.execute(0, context)?, shared).await };
        let queries = queries.get(collect).await?;
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
    out: Sender<Result<RecordBatch>>,
    baseline: BaselineMetrics,
}

impl Task {
    /// Joins the rows of the table that come to this partition.
    async fn run(&mut self, queries: &Queries, (table, partition): (&TableRows, usize)) -> Result<()> {
        let count = queries.rows.num_rows();
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
        let pairs = self.spec.k.saturating_mul(8).saturating_add(vectors.unknown());
        let of_query = queries.dimension * size_of::<f64>() + pairs.min(vectors.len()) * PAIR_BYTES;
        let group = GROUP_BYTES / of_query.max(1) / GROUP_STEP * GROUP_STEP;
        let group = group.clamp(GROUP_STEP, MOST_QUERIES);
        for first in (0..tiles.len()).step_by(group) {
            let timer = self.baseline.elapsed_compute().timer();
            let of = first..tiles.len().min(first + group);
            let held = floors.bytes() + vectors.bytes() + of.len() * queries.dimension * size_of::<f64>();
            self.memory.try_resize(held + of.len() * of_query)?;
            let pairs = reaching(tiles, of, vectors, marks, floors, &queries.bounds);
            timer.done();
            self.memory
                .try_resize(held.max(floors.bytes() + vectors.bytes()) + pairs.len() * PAIR_BYTES)?;
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
        for query in 0..queries.rows.num_rows() as u32 {
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
        let joined = self.joined(queries, batch, pairs)?;
        timer.done();
        let joined = joined.record_output(&self.baseline);
        Ok(self.out.send(Ok(joined)).await.is_ok())
    }

    /// The output rows of some pairs.
    fn joined(&self, queries: &Queries, batch: &RecordBatch, pairs: &[Pair]) -> Result<RecordBatch> {
        let of_queries = UInt32Array::from_iter_values(pairs.iter().map(|pair| pair.query));
        let of_rows = UInt32Array::from_iter_values(pairs.iter().map(|pair| pair.row));
        let column = |column: &PairColumn| -> Result<ArrayRef> {
            Ok(match column {
                PairColumn::Query(index) => take(queries.rows.column(*index).as_ref(), &of_queries, None)?,
                PairColumn::Row(index) => take(batch.column(*index).as_ref(), &of_rows, None)?,
                PairColumn::Distance => {
                    let vectors = batch.column(self.spec.vector);
                    let queries = queries.vectors(&self.spec);
                    Arc::new(
                        self.function()?
                            .between(queries, vectors, pairs, self.spec.query_first)?,
                    )
                }
            })
        };
        let columns = self.spec.output.iter().map(column).collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(pairs.len()));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            columns,
            &options,
        )?)
    }
}
