//! The queries of a join, collected once for all partitions.

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;

use super::marks::QueryMarks;
use super::spec::NearestJoinSpec;
use crate::functions::{VectorDistance, dimension_of};
use crate::kernel::cpu::distance::{QueryTiles, SharedBounds};

/// All queries, and what the threads of a join share about them.
#[derive(Debug)]
pub(super) struct Queries {
    pub(super) rows: RecordBatch,
    /// The vectors; `None` if they do not all have one length: then all pairs are given.
    pub(super) tiles: Option<QueryTiles>,
    /// Number of components of a vector.
    pub(super) dimension: usize,
    pub(super) bounds: SharedBounds,
    /// What tells pairs that are left out.
    pub(super) marks: Option<QueryMarks>,
    /// Memory of all of it.
    _memory: MemoryReservation,
}

impl Queries {
    /// Collects the rows of a stream.
    ///
    /// # Errors
    /// The stream's. `ResourcesExhausted` if the memory pool is too small. An execution error for more than 2^32 queries.
    pub(super) async fn collect(
        spec: &NearestJoinSpec,
        mut stream: SendableRecordBatchStream,
        memory: MemoryReservation,
    ) -> Result<Self> {
        let (schema, mut batches) = (stream.schema(), Vec::new());
        while let Some(batch) = stream.try_next().await? {
            // Once as it comes, and once where all are joined.
            memory.try_grow(2 * batch.get_array_memory_size())?;
            batches.push(batch);
        }
        let rows = concat_batches(&schema, &batches)?;
        drop(batches);
        memory.try_resize(rows.get_array_memory_size())?;
        if u32::try_from(rows.num_rows()).is_err() {
            return exec_err!(
                "the nearest rows of {} queries: at most {} at once",
                rows.num_rows(),
                u32::MAX
            );
        }
        let column = rows.column(spec.query);
        let dimension = dimension_of(column).unwrap_or_default();
        memory.try_grow(rows.num_rows() * (dimension + 16) * size_of::<f32>())?;
        let tiles = VectorDistance::of(&spec.function)
            .and_then(|function| function.query_tiles(function.ranking(spec.ascending), column, dimension));
        let bounds = SharedBounds::new(rows.num_rows());
        let marks = spec.without.as_ref();
        let marks = marks.map(|equal| QueryMarks::try_new(equal, &rows)).transpose()?;
        let bytes = [
            tiles.as_ref().map_or(0, QueryTiles::bytes),
            marks.as_ref().map_or(0, QueryMarks::bytes),
            bounds.bytes(),
        ];
        memory.try_resize(rows.get_array_memory_size() + bytes.iter().sum::<usize>())?;
        Ok(Self {
            rows,
            tiles,
            dimension,
            bounds,
            marks,
            _memory: memory,
        })
    }

    /// The column of vectors.
    pub(super) fn vectors(&self, spec: &NearestJoinSpec) -> &ArrayRef {
        self.rows.column(spec.query)
    }
}
