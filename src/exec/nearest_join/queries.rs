//! The queries of a join, collected once for all partitions.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;

use super::marks::QueryMarks;
use super::spec::NearestJoinSpec;
use crate::functions::{VectorDistance, dimension_of};
use crate::kernel::cpu::distance::{QueryTiles, SharedBounds};

/// The rows of all queries.
#[derive(Debug)]
pub(super) struct QueryRows {
    pub(super) batch: RecordBatch,
    /// Memory of the batch.
    _memory: MemoryReservation,
}

/// All queries, and what the threads of a join share about them.
#[derive(Debug)]
pub(super) struct Queries {
    pub(super) rows: Arc<QueryRows>,
    /// The vectors; `None` if they do not all have one length: then all pairs are given.
    pub(super) tiles: Option<QueryTiles>,
    /// Number of components of a vector.
    pub(super) dimension: usize,
    pub(super) bounds: SharedBounds,
    /// What tells pairs that are left out.
    pub(super) marks: Option<QueryMarks>,
    /// Memory of what is not in the rows.
    _memory: MemoryReservation,
}

impl QueryRows {
    /// Collects the rows of a stream.
    ///
    /// # Errors
    /// The stream's. `ResourcesExhausted` if the memory pool is too small. An execution error for more queries, or longer lists in a column, than
    /// one array holds.
    pub(super) async fn collect(
        mut stream: SendableRecordBatchStream,
        memory: MemoryReservation,
    ) -> Result<Self> {
        let (schema, mut batches) = (stream.schema(), Vec::new());
        let (mut rows, mut items) = (0, vec![0; schema.fields().len()]);
        while let Some(batch) = stream.try_next().await? {
            rows += batch.num_rows();
            check_count(rows, format_args!("queries"), u32::MAX as usize)?;
            for ((items, column), field) in items.iter_mut().zip(batch.columns()).zip(schema.fields()) {
                let (own, most) = list_items(column);
                *items += own;
                check_count(*items, format_args!("items in lists of {}", field.name()), most)?;
            }
            // Once as it comes, and once where all are joined.
            memory.try_grow(2 * batch.get_array_memory_size())?;
            batches.push(batch);
        }
        let batch = concat_batches(&schema, &batches)?;
        drop(batches);
        memory.try_resize(batch.get_array_memory_size())?;
        Ok(Self {
            batch,
            _memory: memory,
        })
    }
}

/// Refuses queries beyond what one array holds.
fn check_count(count: usize, what: fmt::Arguments<'_>, most: usize) -> Result<()> {
    if count > most {
        return exec_err!("the nearest rows of {count} {what}: at most {most} at once");
    }
    Ok(())
}

/// Number of items in the lists of a column, and the most that an array of its type can have and Arrow can take rows from.
fn list_items(column: &ArrayRef) -> (usize, usize) {
    match column.data_type() {
        DataType::List(_) => {
            let offsets = column.as_list::<i32>().offsets();
            let items = offsets[offsets.len() - 1] - offsets[0];
            (items as usize, i32::MAX as usize)
        }
        DataType::FixedSizeList(_, items) => (column.len() * *items as usize, u32::MAX as usize),
        _ => (0, usize::MAX),
    }
}

impl Queries {
    /// The queries of some rows.
    ///
    /// # Errors
    /// `ResourcesExhausted` if the memory pool is too small; Arrow's, for columns that cannot be compared.
    pub(super) fn of(
        spec: &NearestJoinSpec,
        rows: Arc<QueryRows>,
        memory: MemoryReservation,
    ) -> Result<Self> {
        let (count, column) = (rows.batch.num_rows(), rows.batch.column(spec.query));
        let dimension = dimension_of(column).unwrap_or_default();
        memory.try_grow(count * (dimension + 16) * size_of::<f32>())?;
        let tiles = VectorDistance::of(&spec.function)
            .and_then(|function| function.query_tiles(function.ranking(spec.ascending), column, dimension));
        let bounds = SharedBounds::new(count);
        let marks = spec.without.as_ref();
        let marks = marks
            .map(|equal| QueryMarks::try_new(equal, &rows.batch, memory.new_empty()))
            .transpose()?;
        let bytes = [tiles.as_ref().map_or(0, QueryTiles::bytes), bounds.bytes()];
        memory.try_resize(bytes.iter().sum())?;
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
        self.rows.batch.column(spec.query)
    }
}
