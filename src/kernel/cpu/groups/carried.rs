//! Columns that rows carry beside their keys, in order of the rows' hash partitions, in memory or on disk.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::arrow::ipc::reader::StreamDecoder;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::logical_expr::ColumnarValue;

use super::super::columns::{row_bytes, to_write};
use super::super::row_ranges::RowRanges;
use crate::memory::SpillFile;

/// Least bytes of rows that are written together. Small hash partitions that lie side by side share the overhead of one
/// Arrow IPC message.
const CHUNK_BYTES: usize = 4 << 10;

/// Columns of the rows of a run, in order of hash partition.
pub(crate) struct Carried {
    /// For each column: its value, if all rows have the same one.
    constants: Vec<Option<ScalarValue>>,
    rows: Rows,
    /// Bytes of the rows in the other columns.
    total: usize,
}

enum Rows {
    Memory(Vec<ArrayRef>),
    Disk(Chunks),
}

/// Rows in a file.
struct Chunks {
    /// The rows of each chunk: those of some neighbouring hash partitions.
    rows: RowRanges,
    chunks: Vec<Chunk>,
}

/// An Arrow IPC stream in a file.
struct Chunk {
    offset: u64,
    length: usize,
}

impl Chunks {
    /// Bytes of memory held.
    fn bytes(&self) -> usize {
        self.rows.bytes() + self.chunks.capacity() * size_of::<Chunk>()
    }
}

impl Carried {
    pub(crate) fn new(columns: Vec<ColumnarValue>) -> Self {
        let (mut constants, mut rows) = (Vec::with_capacity(columns.len()), Vec::new());
        for column in columns {
            match column {
                ColumnarValue::Scalar(value) => constants.push(Some(value)),
                ColumnarValue::Array(column) => {
                    constants.push(None);
                    rows.push(column);
                }
            }
        }
        Self {
            total: rows.iter().map(row_bytes).sum(),
            constants,
            rows: Rows::Memory(rows),
        }
    }

    /// Whether there is no column.
    pub(crate) fn is_empty(&self) -> bool {
        self.constants.is_empty()
    }

    /// Bytes of memory held: the rows, or the list of their chunks once they are on disk.
    pub(crate) fn bytes(&self) -> usize {
        match &self.rows {
            Rows::Memory(_) => self.total,
            Rows::Disk(chunks) => chunks.bytes(),
        }
    }

    /// Bytes of the rows, in memory or on disk.
    pub(crate) fn row_bytes(&self) -> usize {
        self.total
    }

    /// The columns in a range of rows, which lies in one hash partition. `file` is the file that they were spilled to,
    /// if they were.
    ///
    /// # Errors
    /// Errors of reading the file.
    pub(crate) fn range(&self, range: Range<usize>, file: Option<&SpillFile>) -> Result<Vec<ColumnarValue>> {
        let mut rows = match &self.rows {
            Rows::Memory(columns) => slices(columns, &range),
            Rows::Disk(chunks) => read(chunks, range, file)?,
        }
        .into_iter();
        let column = |constant: &Option<ScalarValue>| match constant {
            Some(value) => Ok(ColumnarValue::Scalar(value.clone())),
            None => match rows.next() {
                Some(column) => Ok(ColumnarValue::Array(column)),
                None => internal_err!("a carried column is not there"),
            },
        };
        self.constants.iter().map(column).collect()
    }

    /// Moves the rows to the end of `file`. `partitions` are the ranges of rows of the hash partitions, in order.
    ///
    /// # Errors
    /// Errors of writing the file.
    pub(super) fn spill(
        &mut self,
        partitions: impl Iterator<Item = Range<usize>>,
        file: &mut SpillFile,
    ) -> Result<()> {
        let Rows::Memory(columns) = &self.rows else {
            return Ok(());
        };
        if columns.is_empty() {
            return Ok(());
        }
        let partitions: Vec<Range<usize>> = partitions.collect();
        let rows = partitions.last().map_or(0, |partition| partition.end);
        let field = |column: &ArrayRef| Field::new("", column.data_type().clone(), true);
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        let each = self.total.div_ceil(rows.max(1)).max(1);
        let joined = joined(&partitions, CHUNK_BYTES.div_ceil(each));
        let mut chunks = Chunks {
            rows: RowRanges::of_about(rows / joined.len().max(1)),
            chunks: Vec::with_capacity(joined.len()),
        };
        for rows in joined {
            let own = slices(columns, &rows);
            let own = own.iter().map(to_write).collect::<Result<_>>()?;
            let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
            writer.write(&RecordBatch::try_new(Arc::clone(&schema), own)?)?;
            let stream = writer.into_inner()?;
            chunks.rows.push(rows.len());
            chunks.chunks.push(Chunk {
                offset: file.append(&stream)?,
                length: stream.len(),
            });
        }
        chunks.rows.shrink_to_fit();
        self.rows = Rows::Disk(chunks);
        Ok(())
    }
}

fn slices(columns: &[ArrayRef], rows: &Range<usize>) -> Vec<ArrayRef> {
    let slice = |column: &ArrayRef| column.slice(rows.start, rows.len());
    columns.iter().map(slice).collect()
}

/// Joins ranges that follow on each other until each has at least `least` rows, except for the last one.
fn joined(partitions: &[Range<usize>], least: usize) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let (mut start, end) = (0, partitions.last().map_or(0, |partition| partition.end));
    for partition in partitions {
        if partition.end - start >= least || (partition.end == end && partition.end > start) {
            chunks.push(start..partition.end);
            start = partition.end;
        }
    }
    chunks
}

/// Reads a range of rows, all of which lie in one chunk.
fn read(chunks: &Chunks, range: Range<usize>, file: Option<&SpillFile>) -> Result<Vec<ArrayRef>> {
    let Some((at, first)) = chunks.rows.find(range.start) else {
        return internal_err!("rows {range:?} lie in no chunk");
    };
    let chunk = &chunks.chunks[at];
    let file = file.ok_or_else(|| internal_datafusion_err!("spilled rows without their file"))?;
    let mut stream = vec![0; chunk.length];
    file.read_at(chunk.offset, &mut stream)?;
    // The decoder's arrays lie in the bytes that were read, without a copy.
    match StreamDecoder::new().decode(&mut Buffer::from_vec(stream))? {
        Some(batch) if range.end - first <= batch.num_rows() => {
            Ok(slices(batch.columns(), &(range.start - first..range.end - first)))
        }
        _ => internal_err!("spilled rows {range:?} are not there"),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Int64Array, StringViewArray};
    use datafusion::execution::runtime_env::RuntimeEnv;

    use super::*;
    use crate::memory::Spiller;

    #[test]
    fn parts_are_joined_until_they_are_worth_a_message() {
        let partitions = [0..3, 3..3, 3..4, 4..9, 9..9, 9..10, 10..10];
        assert_eq!(joined(&partitions, 4), [0..4, 4..9, 9..10]);
        assert_eq!(joined(&partitions, 1), [0..3, 3..4, 4..9, 9..10]);
        assert_eq!(joined(&partitions, 100), vec![0..10; 1]);
        assert!(joined(&[0..0, 0..0], 4).is_empty());
    }

    #[test]
    fn what_is_read_back_is_what_was_spilled() {
        let rows = 5000;
        let numbers = Int64Array::from_iter((0..rows).map(|i| (i % 7 > 0).then_some(i as i64)));
        let texts = StringViewArray::from_iter(
            (0..rows)
                .map(|i| (i % 5 > 0).then(|| format!("a text that is longer than what a view holds {i}"))),
        );
        let columns = vec![
            ColumnarValue::Array(Arc::new(numbers)),
            ColumnarValue::Scalar(ScalarValue::Int32(Some(3))),
            ColumnarValue::Array(Arc::new(texts)),
        ];
        let (kept, mut spilled) = (Carried::new(columns.clone()), Carried::new(columns));
        // Most parts are small, some empty, one large.
        let ends = (0..1000).chain([1000, 1000, 4000]).chain(4001..=rows);
        let mut start = 0;
        let partitions: Vec<Range<usize>> = ends.map(|end| std::mem::replace(&mut start, end)..end).collect();
        let mut file = Spiller::new(&RuntimeEnv::default()).create("test").unwrap();
        spilled.spill(partitions.iter().cloned(), &mut file).unwrap();
        assert!(spilled.bytes() * 10 < kept.bytes());
        for partition in partitions.into_iter().filter(|partition| !partition.is_empty()) {
            let own = kept.range(partition.clone(), None).unwrap();
            let read = spilled.range(partition.clone(), Some(&file)).unwrap();
            for (own, read) in own.iter().zip(&read) {
                let [own, read] = [own, read].map(|value| value.to_array(partition.len()).unwrap());
                assert_eq!(own.as_ref(), read.as_ref());
            }
        }
    }
}
