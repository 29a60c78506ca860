//! What stages send each other, as rows: replies, keys in pieces, and the coordinator's state.
//!
//! | column | of a reply | of keys | of the state |
//! | --- | --- | --- | --- |
//! | `part` | key column | key column | none |
//! | `list` | none | number of the list | none |
//! | `n`, `check` | values read, and their checksum | none | none |
//! | `body` | the reply without keys, number of keys in each of its lists | keys | the state |

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Write;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, UInt32Builder, UInt64Builder};
use datafusion::arrow::compute::{filter_record_batch, is_not_null, is_null};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err, exec_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::READ_DIFFERENTLY;
use crate::kernel::round::Reply;
use crate::kernel::round_messages::{key_vec, put_key_vec};
use crate::key::KeyVec;
use crate::key::Width;
use crate::select::countable;
use crate::wire::{Message, Reader, VERSION, put_numbers, versioned};

/// Keys in one row, so that no row is long.
const KEYS_A_ROW: usize = 8192;

/// Bytes of a row besides its body, with the version before that.
const ROW_BYTES: usize = 4 + 4 + 8 + 8 + 4 + 1;

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
        // Numbers that came from elsewhere may be anything; so many are never what another read saw.
        self.n = self.n.saturating_add(other.n);
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
        let lengths: Vec<_> = lists.iter().map(|keys| keys.len() as u64).collect();
        self.header(part, seen, &header, &lengths)?;
        for (list, keys) in (0..).zip(lists) {
            keys.pieces(KEYS_A_ROW).try_for_each(|keys| {
                let mut body = Vec::new();
                put_key_vec(&mut body, &keys);
                self.row(Some(part), Some(list), None, &body)
            })?;
        }
        Ok(())
    }

    /// A reply without keys, and how many keys each of its lists has, which other rows bring.
    pub(super) fn header(&mut self, part: u32, seen: Seen, reply: &Reply, lengths: &[u64]) -> Result<()> {
        let mut body = Vec::new();
        reply.write(&mut body);
        put_numbers(&mut body, lengths);
        self.row(Some(part), None, Some(seen), &body)
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
        append_body(&mut self.body, body)?;
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

/// Adds a body, behind the version.
fn append_body(bodies: &mut BinaryBuilder, body: &[u8]) -> Result<()> {
    bodies.write_all(&[VERSION])?;
    bodies.append_value(body);
    Ok(())
}

/// The state in a row of [`Rows::state`].
///
/// # Errors
/// An execution error for a row of another version; an internal error for other rows than those of stages.
pub(super) fn state_of(batch: &RecordBatch, row: usize) -> Result<&[u8]> {
    is_of_stages(batch)?;
    versioned(
        "state of a stage",
        batch.column(BODY).as_binary::<i32>().value(row),
    )
}

/// That a batch has the columns of rows between stages.
fn is_of_stages(batch: &RecordBatch) -> Result<()> {
    match batch.schema().fields() == schema().fields() {
        true => Ok(()),
        false => internal_err!("rows of stages have the schema {}", batch.schema()),
    }
}

/// Bytes of a batch's values, as [`Rows::finish`] counts them.
pub(super) fn body_bytes(batch: &RecordBatch) -> usize {
    let bodies = batch.column(BODY).as_binary::<i32>().value_offsets();
    let bytes = bodies
        .last()
        .zip(bodies.first())
        .map_or(0, |(end, start)| end - start);
    // The versions lie among the values.
    bytes as usize + batch.num_rows() * (ROW_BYTES - 1)
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
    /// Keys in each list, as the partitions say that they send.
    lengths: Option<Vec<u64>>,
    /// Those that came, by the number of their list.
    keys: BTreeMap<u32, KeyVec>,
    /// Whether some partition had no memory for its lists.
    refused: bool,
}

impl Merged {
    /// # Errors
    /// An execution error for rows that are damaged, or of two plans.
    pub(super) fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        is_of_stages(batch)?;
        let numbers = |column: usize| batch.column(column).as_primitive::<UInt32Type>();
        let counts = |column: usize| batch.column(column).as_primitive::<UInt64Type>();
        let (part, list, n, check) = (numbers(0), numbers(LIST), counts(2), counts(CHECK));
        let body = batch.column(BODY).as_binary::<i32>();
        for row in 0..batch.num_rows() {
            let bytes = versioned("row between stages", body.value(row))?;
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
                false => own.add_keys(list.value(row), bytes)?,
            }
        }
        Ok(())
    }

    /// Takes replies and states, and gives back the rows of keys, which do not add up.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(super) fn add_replies(&mut self, batch: &RecordBatch) -> Result<Option<RecordBatch>> {
        is_of_stages(batch)?;
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
    /// `ResourcesExhausted` that says how much was wanted; an internal error for other rows than those of stages.
    pub(super) fn reserve(&self, batch: &RecordBatch, memory: &MemoryReservation) -> Result<()> {
        is_of_stages(batch)?;
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

    /// What the lanes of a column read that replied, their merged reply, and how many keys each of its lists has: what
    /// [`Rows::header`] sends on. `None`: none replied.
    ///
    /// # Errors
    /// An execution error if keys are among the rows.
    pub(super) fn header(&mut self, part: u32) -> Result<Option<(Seen, Reply, Vec<u64>)>> {
        let Some(own) = self.parts.remove(&part) else {
            return Ok(None);
        };
        match (own.reply, own.keys.is_empty()) {
            (Some(reply), true) => {
                let lengths = own.lengths.filter(|_| !own.refused);
                Ok(Some((own.seen, reply, lengths.unwrap_or_default())))
            }
            _ => exec_err!("{READ_DIFFERENTLY}: keys came without a reply"),
        }
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

fn other_width<T>(came: Width, wanted: Width) -> Result<T> {
    exec_err!(
        "a damaged reply: keys of {} bytes for a column of keys of {} bytes",
        came.bytes(),
        wanted.bytes()
    )
}

impl Part {
    fn bytes(&self) -> usize {
        let lists = self.keys.values();
        let keys: usize = lists
            .map(|keys| size_of::<KeyVec>() + keys.len() * keys.width().bytes())
            .sum();
        let reply = self
            .reply
            .as_ref()
            .map_or(0, |reply| reply.values() as usize * size_of::<u64>());
        keys + reply
            + self
                .lengths
                .as_ref()
                .map_or(0, |lengths| lengths.len() * size_of::<u64>())
    }

    fn add_reply(&mut self, seen: Seen, bytes: &[u8]) -> Result<()> {
        let mut reader = Reader::new("reply", bytes);
        let reply = Reply::read(&mut reader)?;
        let lengths = reader.numbers("lists of keys")?;
        reader.end()?;
        self.seen.add(seen);
        match &mut self.reply {
            None => self.reply = Some(reply),
            Some(own) => own.merge(reply)?,
        }
        match &mut self.lengths {
            // None where there should be some: no memory.
            Some(own) if own.len() != lengths.len() => self.refused = true,
            Some(own) => own
                .iter_mut()
                .zip(lengths)
                .for_each(|(own, more)| *own = own.saturating_add(more)),
            none => *none = Some(lengths),
        }
        Ok(())
    }

    fn add_keys(&mut self, list: u32, bytes: &[u8]) -> Result<()> {
        let mut reader = Reader::new("list of keys", bytes);
        let keys = key_vec(&mut reader)?;
        reader.end()?;
        match self.keys.entry(list) {
            Entry::Occupied(own) => own.into_mut().append(keys),
            Entry::Vacant(none) => {
                none.insert(keys);
                Ok(())
            }
        }
    }

    fn finish(mut self, width: Width) -> Result<(Seen, Reply)> {
        let Some(mut reply) = self.reply.take() else {
            return exec_err!("{READ_DIFFERENTLY}: keys came without a reply");
        };
        let lists = match self.refused {
            true => Vec::new(),
            false => self.lists(width)?,
        };
        match &mut reply {
            Reply::Counts { kept, .. } | Reply::Extracted(kept) => *kept = lists,
            _ if !lists.is_empty() => return exec_err!("{READ_DIFFERENTLY}: keys that were not asked for"),
            Reply::Sample { keys, .. } if keys.width() != width => return other_width(keys.width(), width),
            Reply::Sketch(Some(summary)) if summary.width() != width => {
                return other_width(summary.width(), width);
            }
            _ => {}
        }
        countable(self.seen.n)?;
        Ok((self.seen, reply))
    }

    /// The keys of each list, all of which came.
    fn lists(&mut self, width: Width) -> Result<Vec<KeyVec>> {
        let list = |(list, sent): (u32, &u64)| {
            let keys = self.keys.remove(&list).unwrap_or_else(|| KeyVec::new(width));
            match keys.len() as u64 == *sent && keys.width() == width {
                true => Ok(keys),
                false => exec_err!(
                    "{READ_DIFFERENTLY}: of list {list} came {} keys of {} bytes, sent were {sent} of {} bytes",
                    keys.len(),
                    keys.width().bytes(),
                    width.bytes()
                ),
            }
        };
        let lists = (0..)
            .zip(self.lengths.iter().flatten())
            .map(list)
            .collect::<Result<_>>()?;
        match self.keys.first_key_value() {
            Some((list, _)) => exec_err!("{READ_DIFFERENTLY}: keys of list {list}, which no partition sent"),
            None => Ok(lists),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::put;

    /// What comes of these rows for key column 0, of 64-bit keys.
    fn merged(batches: &[RecordBatch]) -> Result<(Seen, Reply)> {
        let mut merged = Merged::default();
        batches.iter().try_for_each(|batch| merged.add(batch))?;
        merged.take(0, Width::W64)
    }

    fn written(write: impl FnOnce(&mut Rows) -> Result<()>) -> RecordBatch {
        let mut rows = Rows::default();
        write(&mut rows).unwrap();
        rows.finish().unwrap().0.remove(0)
    }

    fn keys(list: u32, keys: KeyVec) -> RecordBatch {
        let mut body = Vec::new();
        put_key_vec(&mut body, &keys);
        written(|rows| rows.row(Some(0), Some(list), None, &body))
    }

    fn reply(lists: Vec<KeyVec>) -> RecordBatch {
        let seen = Seen { n: 2, check: 7 };
        written(|rows| rows.reply(0, seen, Reply::Extracted(lists)))
    }

    fn w64(keys: &[u64]) -> KeyVec {
        KeyVec::W64(keys.to_vec())
    }

    #[test]
    fn lists_come_back_whole_or_not_at_all() {
        let lists = vec![w64(&[4, 5]), w64(&[]), w64(&[9])];
        let whole = reply(lists.clone());
        let (seen, found) = merged(std::slice::from_ref(&whole)).unwrap();
        assert_eq!((seen, found), (Seen { n: 2, check: 7 }, Reply::Extracted(lists)));
        // The rows of the reply and of its two lists with keys.
        assert_eq!(whole.num_rows(), 3);
        for (rows, lost) in [
            (whole.slice(0, 2), "of list 2"),
            (whole.slice(1, 2), "without a reply"),
        ] {
            let error = merged(&[rows]).unwrap_err().strip_backtrace();
            assert!(
                error.contains(READ_DIFFERENTLY) && error.contains(lost),
                "{error}"
            );
        }
        let twice = merged(&[whole.clone(), whole.slice(2, 1)]).unwrap_err();
        assert!(twice.to_string().contains("came 2 keys"), "{twice}");
    }

    #[test]
    fn rows_of_another_version_are_refused() {
        let row = reply(Vec::new());
        let mut columns = row.columns().to_vec();
        let body = columns[BODY].as_binary::<i32>().value(0);
        let other: Vec<u8> = [&[VERSION + 1], &body[1..]].concat();
        columns[BODY] = Arc::new(datafusion::arrow::array::BinaryArray::from_vec(vec![&other]));
        let error = merged(&[RecordBatch::try_new(schema(), columns).unwrap()]).unwrap_err();
        assert!(error.to_string().contains("run the same version"), "{error}");
    }

    #[test]
    fn numbers_of_lists_are_not_taken_on_trust() {
        for (number, why) in [(u32::MAX, "list 4294967295"), (1, "list 1")] {
            let error = merged(&[reply(vec![w64(&[4])]), keys(number, w64(&[1]))]).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let narrow = merged(&[reply(vec![w64(&[4])]).slice(0, 1), keys(0, KeyVec::W32(vec![4]))]);
        assert!(narrow.unwrap_err().to_string().contains("1 keys of 4 bytes"));
        // More lists than there are bytes, and more values than there are numbers.
        let mut body = Vec::new();
        Reply::Extracted(Vec::new()).write(&mut body);
        put(&mut body, u64::MAX);
        let seen = Seen {
            n: u64::MAX,
            check: 0,
        };
        let many = written(|rows| rows.row(Some(0), None, Some(seen), &body));
        assert!(merged(&[many]).is_err());
        let endless = written(|rows| rows.reply(0, seen, Reply::Extracted(Vec::new())));
        let error = merged(&[endless]).unwrap_err();
        assert!(error.to_string().contains("at most 2^63 - 1"), "{error}");
        let half = Seen { n: 1 << 62, check: 0 };
        let half = written(|rows| rows.reply(0, half, Reply::Extracted(Vec::new())));
        let error = merged(&[half.clone(), half]).unwrap_err();
        assert!(error.to_string().contains("at most 2^63 - 1"), "{error}");
    }
}
