//! Storage of rows, by number.

use std::sync::Arc;

use datafusion::arrow::array::{UInt32Array, new_empty_array};
use datafusion::arrow::compute::interleave_record_batch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};

use crate::kernel::cpu::columns::{row_bytes, taken};

/// Rows of a chunk that compaction makes.
const CHUNK_ROWS: usize = 1 << 13;

/// Chunks of rows. A row's number has the number of its chunk in the upper 32 bits, and its index there in the lower ones.
#[derive(Debug)]
pub(super) struct RowStore {
    schema: SchemaRef,
    chunks: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl RowStore {
    pub(super) fn new(schema: SchemaRef) -> Self {
        Self {
            schema,
            chunks: Vec::new(),
            rows: 0,
            bytes: 0,
        }
    }

    /// The number that the first row of the next chunk will have. It is greater than all numbers so far.
    pub(super) fn next(&self) -> u64 {
        (self.chunks.len() as u64) << 32
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a chunk.
    pub(super) fn add(&mut self, chunk: RecordBatch) {
        self.rows += chunk.num_rows();
        self.bytes += chunk.columns().iter().map(row_bytes).sum::<usize>();
        self.chunks.push(chunk);
    }

    /// Adds the chunks of another store. Returns the amount by which that store's row numbers increase.
    pub(super) fn append(&mut self, mut other: RowStore) -> u64 {
        let first = self.next();
        self.chunks.append(&mut other.chunks);
        self.rows += other.rows;
        self.bytes += other.bytes;
        first
    }

    /// Drops all rows but those of these ascending numbers. Replaces the numbers by new ones, which ascend too.
    ///
    /// # Errors
    /// Arrow's.
    pub(super) fn compact(&mut self, numbers: &mut [u64]) -> Result<()> {
        let mut compacted = Self::new(Arc::clone(&self.schema));
        for numbers in numbers.chunks_mut(CHUNK_ROWS) {
            let chunk = self.gather(numbers)?;
            let all = UInt32Array::from_iter_values(0..chunk.num_rows() as u32);
            let first = compacted.next();
            // Views would keep the buffers of the old chunks alive.
            compacted.add(copied_rows(&chunk, &all)?);
            (first..).zip(numbers).for_each(|(new, number)| *number = new);
        }
        *self = compacted;
        Ok(())
    }

    /// The rows of these numbers, in their order.
    ///
    /// # Errors
    /// Arrow's; an internal error if there is no such row.
    pub(super) fn gather(&self, numbers: &[u64]) -> Result<RecordBatch> {
        if numbers.is_empty() {
            let columns = self.schema.fields().iter();
            let columns = columns.map(|field| new_empty_array(field.data_type())).collect();
            return Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?);
        }
        // Leaves out chunks without any of the rows: they would cost time in each column.
        let mut used: Vec<u32> = numbers.iter().map(|number| (number >> 32) as u32).collect();
        used.sort_unstable();
        used.dedup();
        let chunks: Option<Vec<_>> = used
            .iter()
            .map(|chunk| self.chunks.get(*chunk as usize))
            .collect();
        let Some(chunks) = chunks else {
            return internal_err!("rows of {} chunks, of which some are gone", self.chunks.len());
        };
        let index = |number: &u64| {
            let chunk = used.partition_point(|chunk| u64::from(*chunk) < number >> 32);
            (chunk, *number as u32 as usize)
        };
        let indices: Vec<_> = numbers.iter().map(index).collect();
        if indices
            .iter()
            .any(|(chunk, row)| *row >= chunks[*chunk].num_rows())
        {
            return internal_err!("a row behind the end of its chunk");
        }
        Ok(interleave_record_batch(&chunks, &indices)?)
    }
}

/// A copy of some rows of a batch, which keeps no memory of other rows alive.
///
/// # Errors
/// Arrow's.
pub(super) fn copied_rows(batch: &RecordBatch, rows: &UInt32Array) -> Result<RecordBatch> {
    let columns = taken(batch.columns(), rows)?;
    Ok(RecordBatch::try_new(batch.schema(), columns)?)
}
