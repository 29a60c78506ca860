//! Columns that rows carry beside their keys, in order of the rows' hash partitions, in memory or on disk.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::ipc::reader::{FileDecoder, StreamDecoder};
use datafusion::arrow::ipc::writer::{IpcWriteOptions, StreamEncoder};
use datafusion::arrow::ipc::{Block, MetadataVersion};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::logical_expr::ColumnarValue;

use super::super::columns::{row_bytes, to_write};
use super::super::row_ranges::RowRanges;
use super::partitioned::WRITE_BYTES;
use crate::memory::SpillFile;

/// Least bytes of rows that are written together. Small hash partitions that lie side by side share the overhead of one
/// Arrow IPC message.
const CHUNK_BYTES: usize = 4 << 10;

/// Alignment of the buffers in a message, in bytes: that of the widest values.
const ALIGNMENT: usize = 16;

/// Version of the messages' metadata.
const VERSION: MetadataVersion = MetadataVersion::V5;

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
    schema: SchemaRef,
    has_dictionaries: bool,
    /// The rows of each chunk: those of some neighbouring hash partitions.
    rows: RowRanges,
    chunks: Vec<Chunk>,
}

/// Rows in a file: an Arrow IPC message, or an Arrow IPC stream where rows have dictionaries, which are messages of their own.
struct Chunk {
    offset: u64,
    length: usize,
}

impl Chunks {
    /// No chunks yet; about `count` will share `rows` rows.
    fn of(columns: &[ArrayRef], rows: usize, count: usize) -> Self {
        let field = |column: &ArrayRef| Field::new("", column.data_type().clone(), true);
        let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
        Self {
            has_dictionaries: has_dictionaries(&schema),
            schema: Arc::new(schema),
            rows: RowRanges::of_about(rows / count.max(1)),
            chunks: Vec::with_capacity(count),
        }
    }

    /// Bytes of memory held.
    fn bytes(&self) -> usize {
        self.rows.bytes() + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Reads a range of rows, all of which lie in one chunk.
    fn read(&self, range: Range<usize>, file: Option<&SpillFile>) -> Result<Vec<ArrayRef>> {
        let Some((at, first)) = self.rows.find(range.start) else {
            return internal_err!("rows {range:?} lie in no chunk");
        };
        let chunk = &self.chunks[at];
        let file = file.ok_or_else(|| internal_datafusion_err!("spilled rows without their file"))?;
        let mut bytes = vec![0; chunk.length];
        file.read_at(chunk.offset, &mut bytes)?;
        // The arrays lie in the bytes that were read, without a copy.
        let batch = match self.has_dictionaries {
            true => StreamDecoder::new().decode(&mut Buffer::from_vec(bytes))?,
            false => self.decode(bytes)?,
        };
        match batch {
            Some(batch) if range.end - first <= batch.num_rows() => {
                Ok(slices(batch.columns(), &(range.start - first..range.end - first)))
            }
            _ => internal_err!("spilled rows {range:?} are not there"),
        }
    }

    /// The rows of a message; `None` if it has none.
    fn decode(&self, message: Vec<u8>) -> Result<Option<RecordBatch>> {
        // A message is a marker of four bytes, the length of the metadata, the metadata, and the body.
        let metadata = message.get(4..8).and_then(|length| length.try_into().ok());
        let metadata = metadata.and_then(|length| usize::try_from(i32::from_le_bytes(length)).ok());
        let head = metadata.map(|metadata| metadata + 8);
        let Some(head) = head.filter(|head| *head <= message.len()) else {
            return internal_err!("a message of spilled rows is cut off");
        };
        let block = Block::new(0, head as i32, (message.len() - head) as i64);
        let decoder = FileDecoder::new(Arc::clone(&self.schema), VERSION);
        Ok(decoder.read_record_batch(&block, &Buffer::from_vec(message))?)
    }
}

/// Whether rows have dictionaries.
fn has_dictionaries(schema: &Schema) -> bool {
    let is_one = |field: &&Field| matches!(field.data_type(), DataType::Dictionary(..));
    schema.flattened_fields().iter().any(is_one)
}

/// Chunks that are written to a file together.
struct Messages {
    schema: SchemaRef,
    has_dictionaries: bool,
    encoder: StreamEncoder,
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl Messages {
    /// No chunks yet, of the kind of `chunks`.
    fn try_new(chunks: &Chunks) -> Result<Self> {
        let (schema, has_dictionaries) = (&chunks.schema, chunks.has_dictionaries);
        let mut encoder = encoder(schema)?;
        if !has_dictionaries {
            // The first call also encodes the schema, which readers do not need.
            encoder.encode(&RecordBatch::new_empty(Arc::clone(schema)))?;
        }
        Ok(Self {
            schema: Arc::clone(schema),
            has_dictionaries,
            encoder,
            bytes: Vec::with_capacity(2 * WRITE_BYTES),
            lengths: Vec::new(),
        })
    }

    /// Adds rows.
    fn add(&mut self, columns: &[ArrayRef]) -> Result<()> {
        let columns = columns.iter().map(to_write).collect::<Result<_>>()?;
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        let before = self.bytes.len();
        for buffer in self.encoder.encode(&batch)? {
            self.bytes.extend_from_slice(&buffer);
        }
        self.lengths.push(self.bytes.len() - before);
        if self.has_dictionaries {
            // An encoder writes schema and dictionaries once, and each chunk needs them.
            self.encoder = encoder(&self.schema)?;
        }
        Ok(())
    }

    /// Moves all chunks to the end of `file`, and their places to the end of `chunks`.
    fn write(&mut self, file: &mut SpillFile, chunks: &mut Vec<Chunk>) -> Result<()> {
        let mut offset = file.append_pieces(&self.bytes, self.lengths.iter().copied())?;
        for length in self.lengths.drain(..) {
            chunks.push(Chunk { offset, length });
            offset += length as u64;
        }
        self.bytes.clear();
        Ok(())
    }
}

fn encoder(schema: &Schema) -> Result<StreamEncoder> {
    let options = IpcWriteOptions::try_new(ALIGNMENT, false, VERSION)?;
    Ok(StreamEncoder::try_new_with_options(schema, options)?)
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
            Rows::Disk(chunks) => chunks.read(range, file)?,
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
        let each = self.total.div_ceil(rows.max(1)).max(1);
        let joined = joined(&partitions, CHUNK_BYTES.div_ceil(each));
        let mut chunks = Chunks::of(columns, rows, joined.len());
        let mut messages = Messages::try_new(&chunks)?;
        for rows in joined {
            chunks.rows.push(rows.len());
            messages.add(&slices(columns, &rows))?;
            if messages.bytes.len() >= WRITE_BYTES {
                messages.write(file, &mut chunks.chunks)?;
            }
        }
        messages.write(file, &mut chunks.chunks)?;
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

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{BooleanArray, DictionaryArray, Int64Array, StringViewArray};
    use datafusion::arrow::datatypes::Int8Type;
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
        for with_dictionaries in [false, true] {
            check_spilled(with_dictionaries);
        }
    }

    fn check_spilled(with_dictionaries: bool) {
        let rows = 5000;
        let numbers = Int64Array::from_iter((0..rows).map(|i| (i % 7 > 0).then_some(i as i64)));
        let texts = StringViewArray::from_iter(
            (0..rows)
                .map(|i| (i % 5 > 0).then(|| format!("a text that is longer than what a view holds {i}"))),
        );
        let words: DictionaryArray<Int8Type> = (0..rows)
            .map(|i| (i % 3 > 0).then_some(["a", "b"][i % 2]))
            .collect();
        let words: ArrayRef = match with_dictionaries {
            true => Arc::new(words),
            false => Arc::new(BooleanArray::from_iter(
                (0..rows).map(|i| (i % 3 > 0).then_some(i % 2 > 0)),
            )),
        };
        let columns = vec![
            ColumnarValue::Array(words),
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
