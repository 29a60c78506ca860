//! The rows that are held, by number.

use std::sync::Arc;

use datafusion::arrow::array::{UInt32Array, new_empty_array};
use datafusion::arrow::compute::interleave_record_batch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};

use crate::kernel::cpu::columns::{row_bytes, taken};

/// Rows of a chunk that others are gathered in.
const CHUNK_ROWS: usize = 1 << 13;

/// Chunks of rows. A row's number: that of its chunk, in the upper 32 bits, and its place there.
#[derive(Debug)]
pub(super) struct Store {
    schema: SchemaRef,
    chunks: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl Store {
    pub(super) fn new(schema: SchemaRef) -> Self {
        Self {
            schema,
            chunks: Vec::new(),
            rows: 0,
            bytes: 0,
        }
    }

    /// The number that the first row of the next chunk will have: greater than all before.
    pub(super) fn next(&self) -> u64 {
        (self.chunks.len() as u64) << 32
    }

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

    /// Adds the chunks of another store; what its numbers are to be increased by.
    pub(super) fn append(&mut self, mut other: Store) -> u64 {
        let first = self.next();
        self.chunks.append(&mut other.chunks);
        self.rows += other.rows;
        self.bytes += other.bytes;
        first
    }

    /// Keeps the rows of these ascending numbers only, and gives them new ones, which ascend too.
    ///
    /// # Errors
    /// Those of Arrow's kernels.
    pub(super) fn compact(&mut self, numbers: &mut [u64]) -> Result<()> {
        let mut compacted = Self::new(Arc::clone(&self.schema));
        for numbers in numbers.chunks_mut(CHUNK_ROWS) {
            let chunk = self.gather(numbers)?;
            let all = UInt32Array::from_iter_values(0..chunk.num_rows() as u32);
            let first = compacted.next();
            // Views of the old chunks' buffers would keep those alive.
            compacted.add(with_columns(&chunk, &all)?);
            (first..).zip(numbers).for_each(|(new, number)| *number = new);
        }
        *self = compacted;
        Ok(())
    }

    /// The rows of these numbers, in their order.
    ///
    /// # Errors
    /// Those of Arrow's kernels; an internal error if there is no such row.
    pub(super) fn gather(&self, numbers: &[u64]) -> Result<RecordBatch> {
        if numbers.is_empty() {
            let columns = self.schema.fields().iter();
            let columns = columns.map(|field| new_empty_array(field.data_type())).collect();
            return Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?);
        }
        // Chunks that none of the rows is of cost time in each column.
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
        let place = |number: &u64| {
            let chunk = used.partition_point(|chunk| u64::from(*chunk) < number >> 32);
            (chunk, *number as u32 as usize)
        };
        let places: Vec<_> = numbers.iter().map(place).collect();
        if places
            .iter()
            .any(|(chunk, row)| *row >= chunks[*chunk].num_rows())
        {
            return internal_err!("a row behind the end of its chunk");
        }
        Ok(interleave_record_batch(&chunks, &places)?)
    }
}

/// Some rows of a batch, without what other rows keep alive.
///
/// # Errors
/// Those of Arrow's kernels.
pub(super) fn with_columns(batch: &RecordBatch, rows: &UInt32Array) -> Result<RecordBatch> {
    let columns = taken(batch.columns(), rows)?;
    Ok(RecordBatch::try_new(batch.schema(), columns)?)
}
