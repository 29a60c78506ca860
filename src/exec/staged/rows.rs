//! What stages send each other, as rows: replies, keys in pieces, and the coordinator's state.
//!
//! | column | of a reply | of keys | of the state |
//! | --- | --- | --- | --- |
//! | `part` | key column | key column | none |
//! | `list` | none | number of the list | none |
//! | `n`, `check` | values read, and their checksum | none | none |
//! | `body` | the reply without keys, number of its lists | keys | the state |

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, UInt32Builder, UInt64Builder};
use datafusion::arrow::compute::{filter_record_batch, is_not_null, is_null};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err, exec_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::READ_DIFFERENTLY;
use crate::kernel::round::{KeyVec, Reply};
use crate::kernel::wire::{key_vec, put_key_vec};
use crate::key::Width;
use crate::wire::{Message, Reader, put};

/// Keys in one row, so that no row is long.
const KEYS_A_ROW: usize = 8192;

/// Bytes of a row besides its body.
const ROW_BYTES: usize = 4 + 4 + 8 + 8 + 4;

/// Bytes of a batch, about.
const BATCH_BYTES: usize = 1 << 20;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let field = |name, data_type| Field::new(name, data_type, true);
    Arc::new(Schema::new(vec![
        field("part", DataType::UInt32),
        field("list", DataType::UInt32),
        field("n", DataType::UInt64),
        field("check", DataType::UInt64),
        field("body", DataType::Binary),
    ]))
});

/// The columns `list`, `check` and `body`.
const LIST: usize = 1;
pub(super) const CHECK: usize = 3;
pub(super) const BODY: usize = 4;

/// Schema of the rows between stages.
pub(crate) fn schema() -> SchemaRef {
    Arc::clone(&SCHEMA)
}

/// What a lane read: so many values, with this sum of their mixed keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) n: u64,
    pub(super) check: u64,
}

impl Seen {
    pub(super) fn add(&mut self, other: Seen) {
        self.n += other.n;
        self.check = self.check.wrapping_add(other.check);
    }
}

/// Rows on their way out, in batches.
pub(super) struct Rows {
    part: UInt32Builder,
    list: UInt32Builder,
    n: UInt64Builder,
    check: UInt64Builder,
    body: BinaryBuilder,
    /// Of the next batch.
    bytes: usize,
    /// Of all batches.
    all_bytes: usize,
    batches: Vec<RecordBatch>,
}

impl Default for Rows {
    /// With little room: most have one row.
    fn default() -> Self {
        Self {
            part: UInt32Builder::with_capacity(1),
            list: UInt32Builder::with_capacity(1),
            n: UInt64Builder::with_capacity(1),
            check: UInt64Builder::with_capacity(1),
            body: BinaryBuilder::with_capacity(1, 0),
            bytes: 0,
            all_bytes: 0,
            batches: Vec::new(),
        }
    }
}

impl Rows {
    /// The reply of a column's lane.
    pub(super) fn reply(&mut self, part: u32, seen: Seen, reply: Reply) -> Result<()> {
        let (header, lists) = match reply {
            Reply::Counts { counts, kept } => (
                Reply::Counts {
                    counts,
                    kept: Vec::new(),
                },
                kept,
            ),
            Reply::Extracted(lists) => (Reply::Extracted(Vec::new()), lists),
            other => (other, Vec::new()),
        };
        let mut body = Vec::new();
        header.write(&mut body);
        put(&mut body, lists.len() as u64);
        self.row(Some(part), None, Some(seen), &body)?;
        for (list, keys) in (0..).zip(lists) {
            keys.pieces(KEYS_A_ROW).try_for_each(|keys| {
                let mut body = Vec::new();
                put_key_vec(&mut body, &keys);
                self.row(Some(part), Some(list), None, &body)
            })?;
        }
        Ok(())
    }

    /// The coordinator's state.
    pub(super) fn state(&mut self, state: &[u8]) -> Result<()> {
        self.row(None, None, None, state)
    }

    fn row(&mut self, part: Option<u32>, list: Option<u32>, seen: Option<Seen>, body: &[u8]) -> Result<()> {
        self.part.append_option(part);
        self.list.append_option(list);
        self.n.append_option(seen.map(|seen| seen.n));
        self.check.append_option(seen.map(|seen| seen.check));
        self.body.append_value(body);
        self.bytes += body.len() + ROW_BYTES;
        match self.bytes >= BATCH_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.part.finish()),
            Arc::new(self.list.finish()),
            Arc::new(self.n.finish()),
            Arc::new(self.check.finish()),
            Arc::new(self.body.finish()),
        ];
        self.all_bytes += std::mem::take(&mut self.bytes);
        self.batches.push(RecordBatch::try_new(schema(), columns)?);
        Ok(())
    }

    /// The batches, and the bytes of their values.
    pub(super) fn finish(mut self) -> Result<(Vec<RecordBatch>, usize)> {
        if self.bytes > 0 || self.batches.is_empty() {
            self.flush()?;
        }
        Ok((self.batches, self.all_bytes))
    }
}

/// Bytes of a batch's values, as [`Rows::finish`] counts them.
pub(super) fn body_bytes(batch: &RecordBatch) -> usize {
    let bodies = batch.column(BODY).as_binary::<i32>().value_offsets();
    let bytes = bodies
        .last()
        .zip(bodies.first())
        .map_or(0, |(end, start)| end - start);
    bytes as usize + batch.num_rows() * ROW_BYTES
}

/// The replies of all partitions, merged as they come.
#[derive(Default)]
pub(super) struct Merged {
    parts: BTreeMap<u32, Part>,
    state: Option<Vec<u8>>,
}

/// Of one key column.
#[derive(Default)]
struct Part {
    seen: Seen,
    reply: Option<Reply>,
    /// Lists that each partition said it sends.
    lists: Option<usize>,
    keys: Vec<Option<KeyVec>>,
    /// Whether some partition had no memory for its lists.
    refused: bool,
}

impl Merged {
    /// # Errors
    /// An execution error for rows that are damaged, or of two plans.
    pub(super) fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.schema().fields() != schema().fields() {
            return internal_err!("rows of stages have the schema {}", batch.schema());
        }
        let numbers = |column: usize| batch.column(column).as_primitive::<UInt32Type>();
        let counts = |column: usize| batch.column(column).as_primitive::<UInt64Type>();
        let (part, list, n, check) = (numbers(0), numbers(LIST), counts(2), counts(CHECK));
        let body = batch.column(BODY).as_binary::<i32>();
        for row in 0..batch.num_rows() {
            let bytes = body.value(row);
            if part.is_null(row) {
                self.add_state(bytes)?;
                continue;
            }
            let own = self.parts.entry(part.value(row)).or_default();
            match list.is_null(row) {
                true => {
                    let seen = Seen {
                        n: n.value(row),
                        check: check.value(row),
                    };
                    own.add_reply(seen, bytes)?;
                }
                false => own.add_keys(list.value(row) as usize, bytes)?,
            }
        }
        Ok(())
    }

    /// Takes replies and states, and gives back the rows of keys, which do not add up.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(super) fn add_replies(&mut self, batch: &RecordBatch) -> Result<Option<RecordBatch>> {
        let lists = batch.column(LIST);
        if lists.null_count() == lists.len() {
            return self.add(batch).map(|()| None);
        }
        self.add(&filter_record_batch(batch, &is_null(lists)?)?)?;
        Ok(Some(filter_record_batch(batch, &is_not_null(lists)?)?))
    }

    /// Makes sure that what is held, and a batch more, is reserved.
    ///
    /// # Errors
    /// `ResourcesExhausted` that says how much was wanted.
    pub(super) fn reserve(&self, batch: &RecordBatch, memory: &MemoryReservation) -> Result<()> {
        let held = self.bytes();
        // Keys are written in fewer bytes than they take, but for random ones.
        let wanted = held + 2 * body_bytes(batch);
        memory.try_resize(wanted.max(memory.size())).map_err(|error| {
            error.context(format!(
                "the memory limit is too small for the replies of all partitions: {wanted} bytes wanted, {held} held"
            ))
        })
    }

    /// Bytes held, about.
    fn bytes(&self) -> usize {
        let parts = self.parts.values().map(Part::bytes).sum::<usize>();
        parts + self.state.as_ref().map_or(0, Vec::capacity)
    }

    fn add_state(&mut self, bytes: &[u8]) -> Result<()> {
        match &self.state {
            Some(state) if state != bytes => {
                exec_err!("{READ_DIFFERENTLY}: replies to two different states reached a stage")
            }
            Some(_) => Ok(()),
            None => {
                self.state = Some(bytes.to_vec());
                Ok(())
            }
        }
    }

    /// The state that the replies were asked by, if they were.
    pub(super) fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }

    /// Whether any lane of a column replied.
    pub(super) fn has(&self, part: u32) -> bool {
        self.parts.contains_key(&part)
    }

    /// What all lanes of a column read, and their merged reply.
    ///
    /// # Errors
    /// An internal error if there is none.
    pub(super) fn take(&mut self, part: u32, width: Width) -> Result<(Seen, Reply)> {
        let own = self.parts.remove(&part);
        let own = own.ok_or_else(|| {
            exec_datafusion_err!("{READ_DIFFERENTLY}: no partition answered for column {part}")
        })?;
        own.finish(width)
    }
}

impl Part {
    fn bytes(&self) -> usize {
        let lists = self.keys.iter().flatten();
        let keys: usize = lists.map(|keys| keys.len() * keys.width().bytes()).sum();
        let reply = self
            .reply
            .as_ref()
            .map_or(0, |reply| reply.values() as usize * size_of::<u64>());
        keys + reply + self.keys.capacity() * size_of::<Option<KeyVec>>()
    }

    fn add_reply(&mut self, seen: Seen, bytes: &[u8]) -> Result<()> {
        let mut reader = Reader::new("reply", bytes);
        let reply = Reply::read(&mut reader)?;
        let lists: usize = reader.number("number of lists")?;
        reader.end()?;
        self.seen.add(seen);
        match &mut self.reply {
            None => self.reply = Some(reply),
            Some(own) => own.merge(reply)?,
        }
        // None where there should be some: no memory.
        match self.lists {
            Some(other) if other != lists => self.refused = true,
            _ => self.lists = Some(lists),
        }
        Ok(())
    }

    fn add_keys(&mut self, list: usize, bytes: &[u8]) -> Result<()> {
        let mut reader = Reader::new("list of keys", bytes);
        let keys = key_vec(&mut reader)?;
        reader.end()?;
        if self.keys.len() <= list {
            self.keys.resize(list + 1, None);
        }
        match &mut self.keys[list] {
            Some(own) => own.append(keys),
            none => {
                *none = Some(keys);
                Ok(())
            }
        }
    }

    fn finish(self, width: Width) -> Result<(Seen, Reply)> {
        let Some(mut reply) = self.reply else {
            return exec_err!("{READ_DIFFERENTLY}: keys came without a reply");
        };
        let count = if self.refused { 0 } else { self.lists.unwrap_or(0) };
        if let Reply::Counts { kept, .. } | Reply::Extracted(kept) = &mut reply {
            let mut keys = self.keys;
            keys.resize(count, None);
            let keys = keys
                .into_iter()
                .map(|keys| keys.unwrap_or_else(|| KeyVec::new(width)));
            *kept = keys.collect();
        }
        Ok((self.seen, reply))
    }
}
