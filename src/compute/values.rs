//! Values that can be read again, piece by piece, by several threads.

use std::ops::Range;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err, internal_err};

use crate::threads::Stop;

/// Rows that are read at a time: 64-bit values of them stay in the second-level cache.
const BLOCK: u64 = 1 << 15;

/// Values of one type in rows that can be read again: what one thread reads stays the same for all.
pub trait Values: Sync {
    /// Type of the values.
    fn data_type(&self) -> &DataType;

    /// Number of rows, NULLs included.
    fn rows(&self) -> u64;

    /// The values of a range of rows, in any number of pieces.
    ///
    /// # Errors
    /// What keeps them from being read.
    fn read(&self, rows: Range<u64>) -> Result<Vec<ArrayRef>>;
}

/// Arrow arrays of one type as [`Values`], which shares them.
#[derive(Debug, Clone)]
pub struct Chunks {
    data_type: DataType,
    chunks: Vec<ArrayRef>,
    /// For each chunk, the number of rows up to its end.
    ends: Vec<u64>,
}

impl Chunks {
    /// The arrays, one after the other.
    ///
    /// # Errors
    /// An execution error if an array is of another type.
    pub fn try_new(data_type: DataType, chunks: Vec<ArrayRef>) -> Result<Self> {
        let other = chunks.iter().find(|chunk| *chunk.data_type() != data_type);
        if let Some(other) = other {
            return exec_err!(
                "a chunk of type {} among chunks of {data_type}",
                other.data_type()
            );
        }
        let ends = chunks.iter().scan(0, |end, chunk| {
            *end += chunk.len() as u64;
            Some(*end)
        });
        Ok(Self {
            ends: ends.collect(),
            data_type,
            chunks,
        })
    }
}

impl Values for Chunks {
    fn data_type(&self) -> &DataType {
        &self.data_type
    }

    fn rows(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn read(&self, rows: Range<u64>) -> Result<Vec<ArrayRef>> {
        if rows.end > self.rows() {
            return internal_err!("rows {rows:?} of {}", self.rows());
        }
        let first = self.ends.partition_point(|end| *end <= rows.start);
        let chunks = self.chunks[first..].iter().zip(&self.ends[first..]);
        let pieces = chunks.map_while(|(chunk, end)| {
            let start = end - chunk.len() as u64;
            let (from, to) = (rows.start.max(start), rows.end.min(*end));
            (start < rows.end).then(|| chunk.slice((from - start) as usize, to.saturating_sub(from) as usize))
        });
        Ok(pieces.collect())
    }
}

/// Values in the type in which they are ordered.
pub(super) struct Ordered<'a> {
    values: &'a dyn Values,
    /// The type, if it is not that of the values.
    cast_to: Option<&'a DataType>,
    stop: &'a Stop,
}

impl<'a> Ordered<'a> {
    /// The values as `data_type`. `stop` ends their reads.
    pub(super) fn new(values: &'a dyn Values, data_type: &'a DataType, stop: &'a Stop) -> Self {
        Self {
            cast_to: (values.data_type() != data_type).then_some(data_type),
            values,
            stop,
        }
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> u64 {
        self.values.rows()
    }

    /// The flag that ends reads.
    pub(super) fn stop(&self) -> &Stop {
        self.stop
    }

    /// Calls `take` with each piece of a range of rows.
    ///
    /// # Errors
    /// Errors of reading and of `take`; an execution error once the flag is set.
    pub(super) fn each_of(
        &self,
        rows: Range<u64>,
        mut take: impl FnMut(&ArrayRef) -> Result<()>,
    ) -> Result<()> {
        self.stop.check()?;
        for piece in self.values.read(rows)? {
            match self.cast_to {
                Some(data_type) => take(&cast(&piece, data_type)?)?,
                None => take(&piece)?,
            }
        }
        Ok(())
    }

    /// Calls `take` with each piece of all rows.
    ///
    /// # Errors
    /// Those of [`Self::each_of`].
    pub(super) fn each(&self, mut take: impl FnMut(&ArrayRef) -> Result<()>) -> Result<()> {
        (0..self.blocks()).try_for_each(|block| self.each_of(self.block(block), &mut take))
    }

    /// Number of blocks, in which threads read all rows.
    pub(super) fn blocks(&self) -> u64 {
        self.rows().div_ceil(BLOCK)
    }

    /// The rows of a block.
    pub(super) fn block(&self, block: u64) -> Range<u64> {
        block * BLOCK..((block + 1) * BLOCK).min(self.rows())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{AsArray, Int32Array};
    use datafusion::arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn every_range_of_rows_is_read_from_its_chunks() {
        let lengths = [0, 3, 0, 0, 1, 5, 0];
        let mut next = 0..;
        let chunks =
            lengths.map(|length| Arc::new(next.by_ref().take(length).collect::<Int32Array>()) as ArrayRef);
        let chunks = Chunks::try_new(DataType::Int32, chunks.to_vec()).unwrap();
        assert_eq!(chunks.rows(), 9);
        for start in 0..=9 {
            for end in start..=9 {
                let pieces = chunks.read(start..end).unwrap();
                let pieces = pieces
                    .iter()
                    .flat_map(|piece| piece.as_primitive::<Int32Type>().values().to_vec());
                assert_eq!(
                    pieces.collect::<Vec<_>>(),
                    (start as i32..end as i32).collect::<Vec<_>>()
                );
            }
        }
        assert!(chunks.read(0..10).is_err());
        let error = Chunks::try_new(DataType::Int64, vec![Arc::new(Int32Array::from(vec![1]))]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("a chunk of type Int32 among chunks of Int64"),
            "{error}"
        );
    }
}
