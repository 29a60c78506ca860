//! The rows that stages send to each other.
//!
//! | column | |
//! | --- | --- |
//! | `class` | the number that rows are exchanged by: of a group the class of its hash; of a reply a random number, the same in each read |
//! | group columns, if there are any | the values of the row's group; NULL where the row is about no single group |
//! | `body` | version, kind, and the message of this kind |
//!
//! | body | from | to |
//! | --- | --- | --- |
//! | state | `RefineExec` | `RoundExec`, which sends it on to the next `RefineExec` |
//! | reply of a shard without keys: its fingerprint, its answer, and the number of keys in each of its lists | `RoundExec`, `MergeExec` | `RefineExec` |
//! | header: the fingerprint of a class of groups, and the fingerprint that is expected | all stages of groups | the next stage |
//! | intervals, with the counts of a group's keys | the first read of groups | the brackets |
//! | progress of a group's ranks | the brackets | the second read of groups |
//! | keys of a shard's lists; or keys of a group, with the progress of its ranks | the last read | the answers |

use std::sync::Arc;

use datafusion::arrow::array::{ArrayBuilder, ArrayRef, AsArray, BinaryBuilder, UInt32Array, UInt32Builder};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, UInt32Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};

use super::fingerprint::{ColumnFingerprint, InputFingerprint};
use super::stage::StageOutput;
use crate::kernel::round::Reply;
use crate::kernel::round_messages::{key_vec, put_key_vec};
use crate::key::{KeySpec, KeyVec, Width};
use crate::select::progress::Progress;
use crate::sketch::dyadic::{Interval, intervals, put_intervals};
use crate::wire::{Message, Reader, VERSION, put, put_numbers, versioned};

/// Most keys in one row, so that no row is long.
pub(super) const KEYS_A_ROW: usize = 8192;
/// Most rows of a batch.
const BATCH_ROWS: usize = 8192;
/// Bytes of a batch, about.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of a row beside its body and its group.
const ROW_BYTES: usize = 8;

/// Index of the column of classes. The column of bodies is the last one.
pub(super) const CLASS: usize = 0;

// Kinds of rows, as they are written in a body.
const STATE: u8 = 0;
const REPLY: u8 = 1;
const HEADER: u8 = 2;
const INTERVALS: u8 = 3;
const PROGRESS: u8 = 4;
const KEYS: u8 = 5;

/// Schema of the rows between stages, with these group columns.
pub(super) fn schema(groups: &[FieldRef]) -> SchemaRef {
    let mut fields: Vec<FieldRef> = vec![Arc::new(Field::new("class", DataType::UInt32, true))];
    fields.extend(groups.iter().cloned());
    fields.push(Arc::new(Field::new("body", DataType::Binary, true)));
    Arc::new(Schema::new(fields))
}

/// The reply of a key column's shard, without keys.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ShardReply {
    /// Number of the key column, from 0.
    pub(super) column: usize,
    /// Fingerprint of what the shard read.
    pub(super) fingerprint: ColumnFingerprint,
    pub(super) reply: Reply,
    /// Number of keys in each of its lists. Other rows bring the keys.
    pub(super) lengths: Vec<u64>,
}

/// The report of a partition about a class of groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Whether there are too many groups for brackets, so that all keys are sent.
    pub(super) many: bool,
    /// Fingerprint of what the partition read itself.
    pub(super) own: InputFingerprint,
    /// Fingerprint of what all partitions saw in the first read, once that is known.
    pub(super) expected: InputFingerprint,
}

/// A list of keys: one of a shard's reply; or the keys of a group, in one bracket or all of them.
#[derive(Debug)]
pub(super) struct List {
    /// Number of the key column, from 0.
    pub(super) column: usize,
    /// Number of the list in the reply, or of the bracket in the group's column, from 0.
    pub(super) number: usize,
    pub(super) keys: KeyVec,
}

/// The message of a row.
#[derive(Debug)]
pub(super) enum Body<'a> {
    /// The coordinator's state, as bytes.
    State(&'a [u8]),
    /// A shard's reply without its keys. It is boxed, as headers are, so that the rows of groups, which are many, take less memory.
    Reply(Box<ShardReply>),
    /// A report about a class of groups.
    Header(Box<Header>),
    /// Counts of a group's keys, for each key column.
    Intervals(Vec<Vec<Interval>>),
    /// The progress of a group's ranks for each key column: as bytes, and as it was read from them.
    Progress(&'a [u8], Vec<Progress>),
    /// Lists of keys, and the progress of their group's ranks as bytes. There are no such bytes without groups, and where all keys are
    /// sent.
    Keys(&'a [u8], Vec<List>),
}

impl<'a> Body<'a> {
    /// The message in the bytes behind the version.
    ///
    /// # Errors
    /// An execution error for bytes that are no row between stages over these key columns.
    fn read(bytes: &'a [u8], specs: &[KeySpec]) -> Result<Self> {
        let mut reader = Reader::new("row between stages", bytes);
        let body = match reader.byte("kind of row")? {
            STATE => Body::State(reader.take(reader.left(), "state")?),
            REPLY => Body::Reply(Box::new(ShardReply {
                column: column(&mut reader, specs)?,
                fingerprint: ColumnFingerprint::read(&mut reader)?,
                reply: Reply::read(&mut reader)?,
                lengths: reader.numbers("lists of keys")?,
            })),
            HEADER => Body::Header(Box::new(Header {
                many: reader.flag("kind of exchange")?,
                own: InputFingerprint::read(&mut reader)?,
                expected: InputFingerprint::read(&mut reader)?,
            })),
            INTERVALS => {
                let read = |spec: &KeySpec| intervals(&mut reader, spec.width().max_key());
                Body::Intervals(specs.iter().map(read).collect::<Result<_>>()?)
            }
            PROGRESS => {
                let rest = reader.take(reader.left(), "state of a group")?;
                Body::Progress(rest, read_progress(rest, specs)?)
            }
            KEYS => {
                let length = reader.number("length of a state")?;
                let progress = reader.take(length, "state of a group")?;
                let mut lists = Vec::new();
                while reader.left() > 0 {
                    lists.push(List {
                        column: column(&mut reader, specs)?,
                        number: reader.number("list of keys")?,
                        keys: key_vec(&mut reader)?,
                    });
                }
                Body::Keys(progress, lists)
            }
            kind => return reader.damaged(format!("a row of kind {kind}")),
        };
        reader.end()?;
        Ok(body)
    }
}

/// The number of a key column.
fn column(input: &mut Reader<'_>, specs: &[KeySpec]) -> Result<usize> {
    let column = input.number("column")?;
    if column < specs.len() {
        Ok(column)
    } else {
        input.damaged(format!("key column {column} of {}", specs.len()))
    }
}

/// The progress of a group's ranks for each key column.
///
/// # Errors
/// An execution error for bytes that are no such progress.
pub(super) fn read_progress(bytes: &[u8], specs: &[KeySpec]) -> Result<Vec<Progress>> {
    let mut reader = Reader::new("state of a group", bytes);
    let progress = specs
        .iter()
        .map(|spec| column_progress(&mut reader, spec.width()));
    let progress = progress.collect::<Result<_>>()?;
    reader.end()?;
    Ok(progress)
}

/// The progress of a group's ranks for one key column, with keys of this width.
fn column_progress(input: &mut Reader<'_>, width: Width) -> Result<Progress> {
    let progress = Progress::read(input)?;
    if progress.width() == width {
        Ok(progress)
    } else {
        input.damaged(format!("ranks of {:?} keys", progress.width()))
    }
}

/// Checks that a batch has the columns of the rows between the stages of a plan.
///
/// # Errors
/// An internal error if it has others.
pub(super) fn check_schema(batch: &RecordBatch, schema: &SchemaRef) -> Result<()> {
    let types = |schema: &Schema| {
        let fields = schema.fields().iter();
        fields.map(|field| field.data_type().clone()).collect::<Vec<_>>()
    };
    if types(&batch.schema()) == types(schema) {
        Ok(())
    } else {
        internal_err!("rows between stages have the schema {}", batch.schema())
    }
}

/// The bodies of a batch, without their versions.
///
/// # Errors
/// An internal error for rows of another plan. Each row of another version is an execution error.
pub(super) fn bodies<'a>(
    batch: &'a RecordBatch,
    schema: &SchemaRef,
) -> Result<impl Iterator<Item = Result<&'a [u8]>>> {
    check_schema(batch, schema)?;
    let bodies = batch.column(batch.num_columns() - 1).as_binary::<i32>();
    let rows = 0..batch.num_rows();
    Ok(rows.map(|row| versioned("row between stages", bodies.value(row))))
}

/// The message of each row of a batch.
///
/// # Errors
/// Those of [`bodies`], and an execution error for damaged rows.
pub(super) fn read_rows<'a>(
    batch: &'a RecordBatch,
    schema: &SchemaRef,
    specs: &[KeySpec],
) -> Result<impl Iterator<Item = Result<Body<'a>>>> {
    Ok(bodies(batch, schema)?.map(|body| Body::read(body?, specs)))
}

/// Whether a body without its version has keys.
pub(super) fn is_keys(body: &[u8]) -> bool {
    body.first() == Some(&KEYS)
}

/// The group columns of rows, and the class and the message of each row.
type GroupRows<'a> = (Vec<ArrayRef>, Vec<(u32, Body<'a>)>);

/// The rows of a batch that are about one group. Headers, with their classes, go to `header` instead.
///
/// # Errors
/// Those of [`read_rows`] and of `header`.
pub(super) fn group_rows<'a>(
    batch: &'a RecordBatch,
    schema: &SchemaRef,
    specs: &[KeySpec],
    mut header: impl FnMut(u32, Header) -> Result<()>,
) -> Result<GroupRows<'a>> {
    let read = read_rows(batch, schema, specs)?.enumerate();
    let classes = batch.column(CLASS).as_primitive::<UInt32Type>();
    let (mut rows, mut bodies) = (Vec::new(), Vec::new());
    for (row, body) in read {
        let class = classes.value(row);
        match body? {
            Body::Header(own) => header(class, *own)?,
            body => {
                rows.push(row as u32);
                bodies.push((class, body));
            }
        }
    }
    let rows = UInt32Array::from(rows);
    let groups = &batch.columns()[CLASS + 1..batch.num_columns() - 1];
    let groups = groups.iter().map(|column| take(column.as_ref(), &rows, None));
    Ok((groups.collect::<std::result::Result<_, _>>()?, bodies))
}

/// Number of bytes of a batch's messages, as [`Rows::finish`] counts them.
pub(super) fn body_bytes(batch: &RecordBatch) -> usize {
    let bodies = batch
        .column(batch.num_columns() - 1)
        .as_binary::<i32>()
        .value_offsets();
    let bytes = bodies
        .last()
        .zip(bodies.first())
        .map_or(0, |(end, start)| end - start);
    bytes as usize + batch.num_rows() * ROW_BYTES
}

/// A batch without its group columns: classes, numbers of groups, bodies.
type Unfinished = (ArrayRef, UInt32Array, ArrayRef);

/// Rows for the next stage, in batches.
pub(super) struct Rows {
    class: UInt32Builder,
    group: UInt32Builder,
    body: BinaryBuilder,
    /// Bytes in the batch that is being filled.
    bytes: usize,
    /// Bytes in the batches that are full.
    written: usize,
    batches: Vec<Unfinished>,
    /// Memory of the last body, for the next one.
    scratch: Vec<u8>,
}

impl Default for Rows {
    /// No rows, in little memory: most stages send few rows.
    fn default() -> Self {
        Self {
            class: UInt32Builder::with_capacity(1),
            group: UInt32Builder::with_capacity(1),
            body: BinaryBuilder::with_capacity(1, 0),
            bytes: 0,
            written: 0,
            batches: Vec::new(),
            scratch: Vec::new(),
        }
    }
}

impl Rows {
    /// Adds the coordinator's state.
    pub(super) fn state(&mut self, state: &[u8]) {
        let mut body = self.body(STATE);
        body.extend(state);
        self.row(None, None, body);
    }

    /// Adds the reply of a key column's shard, and its keys in further rows.
    pub(super) fn reply(&mut self, column: usize, fingerprint: ColumnFingerprint, mut reply: Reply) {
        let lists = match &mut reply {
            Reply::Counts { kept, .. } | Reply::Extracted(kept) => std::mem::take(kept),
            Reply::Sample { .. } | Reply::Sketch(_) => Vec::new(),
        };
        self.shard_reply(&ShardReply {
            column,
            fingerprint,
            reply,
            lengths: lists.iter().map(|keys| keys.len() as u64).collect(),
        });
        if lists.iter().any(|keys| !keys.is_empty()) {
            let list = |(number, keys)| List { column, number, keys };
            self.keys(None, None, &[], lists.into_iter().enumerate().map(list));
        }
    }

    /// Adds a reply without its keys.
    pub(super) fn shard_reply(&mut self, reply: &ShardReply) {
        let mut body = self.body(REPLY);
        put(&mut body, reply.column as u64);
        reply.fingerprint.write(&mut body);
        reply.reply.write(&mut body);
        put_numbers(&mut body, &reply.lengths);
        let check = reply.fingerprint.check;
        self.row(Some((check ^ check >> 32) as u32), None, body);
    }

    /// Adds the report about a class of groups.
    pub(super) fn header(&mut self, class: u32, header: &Header) {
        let mut body = self.body(HEADER);
        body.push(u8::from(header.many));
        header.own.write(&mut body);
        header.expected.write(&mut body);
        self.row(Some(class), None, body);
    }

    /// Adds the counts of a group, for each key column.
    pub(super) fn intervals<'a>(
        &mut self,
        class: u32,
        group: usize,
        columns: impl Iterator<Item = &'a [Interval]>,
    ) {
        let mut body = self.body(INTERVALS);
        columns.for_each(|intervals| put_intervals(&mut body, intervals));
        self.row(Some(class), Some(group), body);
    }

    /// Adds the progress of a group's ranks, for each key column.
    pub(super) fn progress<'a>(
        &mut self,
        class: u32,
        group: usize,
        columns: impl Iterator<Item = &'a Progress>,
    ) {
        let mut body = self.body(PROGRESS);
        columns.for_each(|progress| progress.write(&mut body));
        self.row(Some(class), Some(group), body);
    }

    /// Adds lists of keys, in as many rows as they need, at least one.
    pub(super) fn keys(
        &mut self,
        class: Option<u32>,
        group: Option<usize>,
        progress: &[u8],
        lists: impl Iterator<Item = List>,
    ) {
        let start = |rows: &mut Self| {
            let mut body = rows.body(KEYS);
            put(&mut body, progress.len() as u64);
            body.extend(progress);
            body
        };
        let mut body = start(self);
        let mut held = 0;
        for list in lists {
            let mut add = |keys: &KeyVec| {
                if held > 0 && held + keys.len() > KEYS_A_ROW {
                    self.row(class, group, std::mem::take(&mut body));
                    body = start(self);
                    held = 0;
                }
                put(&mut body, list.column as u64);
                put(&mut body, list.number as u64);
                put_key_vec(&mut body, keys);
                held += keys.len();
            };
            match list.keys.len() {
                0 => {}
                1..=KEYS_A_ROW => add(&list.keys),
                _ => list.keys.pieces(KEYS_A_ROW).for_each(|keys| add(&keys)),
            }
        }
        self.row(class, group, body);
    }

    /// The first bytes of a body of this kind.
    fn body(&mut self, kind: u8) -> Vec<u8> {
        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        body.extend([VERSION, kind]);
        body
    }

    /// Adds a row.
    fn row(&mut self, class: Option<u32>, group: Option<usize>, body: Vec<u8>) {
        self.class.append_option(class);
        self.group.append_option(group.map(|group| group as u32));
        self.body.append_value(&body);
        self.bytes += body.len() + ROW_BYTES;
        self.scratch = body;
        if self.bytes >= BATCH_BYTES || self.class.len() >= BATCH_ROWS {
            self.flush();
        }
    }

    /// Ends the batch that is being filled.
    fn flush(&mut self) {
        self.written += std::mem::take(&mut self.bytes);
        let batch: Unfinished = (
            Arc::new(self.class.finish()),
            self.group.finish(),
            Arc::new(self.body.finish()),
        );
        self.batches.push(batch);
    }

    /// The batches. `groups` are the group columns, with a row for each number of a group.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn finish(mut self, schema: &SchemaRef, groups: &[ArrayRef]) -> Result<StageOutput> {
        if self.class.len() > 0 {
            self.flush();
        }
        let batch = |(class, group, body): Unfinished| {
            let mut columns = vec![class];
            for values in groups {
                columns.push(take(values.as_ref(), &group, None)?);
            }
            columns.push(body);
            Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
        };
        let batches = self.batches.into_iter().map(batch).collect::<Result<_>>()?;
        let bytes = self.written;
        Ok(StageOutput { batches, bytes })
    }
}
