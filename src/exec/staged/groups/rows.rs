//! What stages of groups send each other: rows of a group, with its columns, and headers that say what was read.
//!
//! | column | of a group | of a header |
//! | --- | --- | --- |
//! | `class` | that of its hash | the same |
//! | group columns | its values | NULL |
//! | `body` | intervals, what is known of its ranks, or keys | rows and values read of the class, and how many there must be |
//!
//! Rows are exchanged by class. A machine that selects answers has some classes whole, and for each a header of every
//! machine that read: so it knows that nothing is missing, nothing came twice, and all reads saw the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayBuilder, ArrayRef, AsArray, BinaryBuilder, UInt32Array, UInt32Builder};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, UInt32Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_err, internal_err};

use super::super::READ_DIFFERENTLY;
use super::super::rows::Seen;
use crate::kernel::round_messages::{key_vec, put_key_vec};
use crate::key::KeyVec;
use crate::key::{KeySpec, Width, mixed};
use crate::select::progress::Progress;
use crate::sketch::dyadic::{Interval, intervals, put_intervals};
use crate::wire::{Message, Reader, VERSION, put, versioned};

/// Classes of groups: as many machines can select answers.
const CLASSES: u16 = 64;
/// Keys in one row, so that no row is long.
const KEYS_A_ROW: usize = 8192;
/// Rows and bytes of a batch, about.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of a row besides its body and its group.
const ROW_BYTES: usize = 8;

/// The column of classes; the body comes last.
pub(super) const CLASS: usize = 0;

const HEADER: u8 = 0;
const INTERVALS: u8 = 1;
pub(super) const PROGRESS: u8 = 2;
const KEYS: u8 = 3;

/// The class of a group whose hash has this part.
pub(super) fn class_of(part: u16) -> u32 {
    u32::from(part % CLASSES)
}

/// What was read of a group whose hash has this part, as it is added to what is known of its class: values that change places between
/// groups change the checksum, unless the parts are the same.
pub(super) fn of_part(seen: Seen, part: u16) -> Seen {
    Seen {
        n: seen.n,
        check: seen.check.wrapping_mul(mixed(part.into()) | 1),
    }
}

/// Rows between stages, for groups of these columns.
pub(super) fn schema(groups: &[FieldRef]) -> SchemaRef {
    let mut fields: Vec<FieldRef> = vec![Arc::new(Field::new("class", DataType::UInt32, true))];
    fields.extend(groups.iter().cloned());
    fields.push(Arc::new(Field::new("body", DataType::Binary, true)));
    Arc::new(Schema::new(fields))
}

/// What was read of a class: rows, and values of each key column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Guard {
    pub(super) rows: u64,
    pub(super) seen: Vec<Seen>,
}

impl Guard {
    /// Nothing read yet of so many key columns.
    pub(super) fn of(columns: usize) -> Self {
        Self {
            rows: 0,
            seen: vec![Seen::default(); columns],
        }
    }

    pub(super) fn add(&mut self, other: &Guard) {
        self.rows = self.rows.saturating_add(other.rows);
        self.seen
            .resize(self.seen.len().max(other.seen.len()), Seen::default());
        self.seen
            .iter_mut()
            .zip(&other.seen)
            .for_each(|(own, other)| own.add(*other));
    }

    /// Adds values of a key column; each of the first is a row, as each row is that has none.
    pub(super) fn read(&mut self, column: usize, seen: Seen) {
        self.seen[column].add(seen);
        if column == 0 {
            self.rows = self.rows.saturating_add(seen.n);
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        put(out, self.rows);
        put(out, self.seen.len() as u64);
        for seen in &self.seen {
            put(out, seen.n);
            out.extend(seen.check.to_le_bytes());
        }
    }

    fn from_bytes(input: &mut Reader<'_>) -> Result<Self> {
        let rows = input.number("number of rows")?;
        let seen = input.list("columns", |input| {
            Ok(Seen {
                n: input.number("number of values")?,
                check: input.key::<u64>()?,
            })
        });
        Ok(Self { rows, seen: seen? })
    }
}

/// What was read, by class.
pub(super) type Guards = BTreeMap<u32, Guard>;

/// What a machine says of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Whether groups are too many for brackets, so that all keys are sent.
    pub(super) many: bool,
    /// What it read itself.
    pub(super) own: Guard,
    /// What the first read of all machines saw, once that is known.
    pub(super) expected: Guard,
}

impl Header {
    fn read(input: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            many: input.flag("kind of exchange")?,
            own: Guard::from_bytes(input)?,
            expected: Guard::from_bytes(input)?,
        })
    }
}

/// Keys of a group in a bracket, or all of them.
pub(super) struct List {
    pub(super) column: usize,
    /// The number of the bracket in its column.
    pub(super) bracket: usize,
    pub(super) keys: KeyVec,
}

/// What a row says.
pub(super) enum Body<'a> {
    Header(Header),
    /// Counts of the group's keys, for each column.
    Intervals(Vec<Vec<Interval>>),
    /// What is known of the group's ranks, for each column.
    Progress(Vec<Progress>),
    /// The same as bytes, or none where all keys are sent, and keys.
    Keys(&'a [u8], Vec<List>),
}

/// What is known of the ranks of a group.
///
/// # Errors
/// An execution error for bytes that are no such thing.
pub(super) fn read_progress(bytes: &[u8], specs: &[KeySpec]) -> Result<Vec<Progress>> {
    let mut reader = Reader::new("state of a group", bytes);
    let progress = specs.iter().map(|spec| own_progress(&mut reader, spec.width()));
    let progress = progress.collect::<Result<_>>()?;
    reader.end()?;
    Ok(progress)
}

fn own_progress(input: &mut Reader<'_>, width: Width) -> Result<Progress> {
    let progress = Progress::read(input)?;
    match progress.width() == width {
        true => Ok(progress),
        false => input.damaged(format!("ranks of {:?} keys", progress.width())),
    }
}

/// # Errors
/// An execution error for bytes that are no row of these stages.
pub(super) fn read_body<'a>(bytes: &'a [u8], specs: &[KeySpec]) -> Result<Body<'a>> {
    let mut reader = Reader::new("row of a group", bytes);
    let body = match reader.byte("kind of row")? {
        HEADER => Body::Header(Header::read(&mut reader)?),
        INTERVALS => {
            let read = |spec: &KeySpec| intervals(&mut reader, spec.width().max_key());
            Body::Intervals(specs.iter().map(read).collect::<Result<_>>()?)
        }
        PROGRESS => {
            let rest = reader.take(reader.left(), "state of a group")?;
            Body::Progress(read_progress(rest, specs)?)
        }
        KEYS => {
            let length = reader.number("length of a state")?;
            let progress = reader.take(length, "state of a group")?;
            let mut lists = Vec::new();
            while reader.left() > 0 {
                let (column, bracket) = (reader.number("column")?, reader.number("bracket")?);
                let keys = key_vec(&mut reader)?;
                if column >= specs.len() {
                    return reader.damaged(format!("keys of column {column} of {}", specs.len()));
                }
                lists.push(List {
                    column,
                    bracket,
                    keys,
                });
            }
            Body::Keys(progress, lists)
        }
        kind => return reader.damaged(format!("a row of kind {kind}")),
    };
    reader.end()?;
    Ok(body)
}

/// The body of a batch's row, which keeps bytes of a state where they are.
///
/// # Errors
/// An execution error for a row of another version.
pub(super) fn body_of(batch: &RecordBatch, row: usize) -> Result<&[u8]> {
    let bodies = batch.column(batch.num_columns() - 1).as_binary::<i32>();
    versioned("row of a group", bodies.value(row))
}

/// The state's bytes in a row that [`Rows::progress`] wrote.
pub(super) fn progress_bytes(body: &[u8]) -> &[u8] {
    &body[1.min(body.len())..]
}

/// The group columns of some rows, and of each its class and its body.
type GroupRows<'a> = (Vec<ArrayRef>, Vec<(u32, Body<'a>)>);

/// The classes and the group columns of the rows of groups in a batch; headers go to `header`, bodies to `body`.
///
/// # Errors
/// An internal error for rows of another plan, and those of `header`.
pub(super) fn group_rows<'a>(
    batch: &'a RecordBatch,
    schema: &SchemaRef,
    specs: &[KeySpec],
    mut header: impl FnMut(u32, Header) -> Result<()>,
) -> Result<GroupRows<'a>> {
    let types = |schema: &Schema| {
        let fields = schema.fields().iter();
        fields.map(|field| field.data_type().clone()).collect::<Vec<_>>()
    };
    if types(&batch.schema()) != types(schema) {
        return internal_err!("rows of groups have the schema {}", batch.schema());
    }
    let classes = batch.column(CLASS).as_primitive::<UInt32Type>();
    let (mut rows, mut bodies) = (Vec::new(), Vec::new());
    for row in 0..batch.num_rows() {
        let class = classes.value(row);
        match read_body(body_of(batch, row)?, specs)? {
            Body::Header(own) => header(class, own)?,
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

/// The columns of a batch that is still without its groups.
type Unfinished = (ArrayRef, UInt32Array, ArrayRef);

/// Rows on their way out, in batches.
pub(super) struct Rows {
    class: UInt32Builder,
    group: UInt32Builder,
    body: BinaryBuilder,
    /// Of the next batch.
    bytes: usize,
    written: usize,
    batches: Vec<Unfinished>,
    scratch: Vec<u8>,
}

impl Default for Rows {
    /// With little room: many have few rows.
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
    pub(super) fn header(&mut self, class: u32, header: &Header) {
        let mut body = vec![VERSION, HEADER, u8::from(header.many)];
        header.own.put(&mut body);
        header.expected.put(&mut body);
        self.row(class, None, &body);
    }

    /// The counts of a group, for each column.
    pub(super) fn intervals<'a>(
        &mut self,
        class: u32,
        group: usize,
        columns: impl Iterator<Item = &'a [Interval]>,
    ) {
        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        body.extend([VERSION, INTERVALS]);
        columns.for_each(|intervals| put_intervals(&mut body, intervals));
        self.row(class, Some(group), &body);
        self.scratch = body;
    }

    /// What is known of a group's ranks, for each column.
    pub(super) fn progress<'a>(
        &mut self,
        class: u32,
        group: usize,
        columns: impl Iterator<Item = &'a Progress>,
    ) {
        let mut body = vec![VERSION, PROGRESS];
        columns.for_each(|progress| progress.write(&mut body));
        self.row(class, Some(group), &body);
    }

    /// Keys of a group, in as many rows as they need, and one at least.
    pub(super) fn keys(
        &mut self,
        class: u32,
        group: usize,
        progress: &[u8],
        lists: impl Iterator<Item = List>,
    ) {
        let mut body = std::mem::take(&mut self.scratch);
        let start = |body: &mut Vec<u8>| {
            body.clear();
            body.extend([VERSION, KEYS]);
            put(body, progress.len() as u64);
            body.extend(progress);
        };
        start(&mut body);
        let mut held = 0;
        for list in lists {
            let mut add = |keys: &KeyVec| {
                if held > 0 && held + keys.len() > KEYS_A_ROW {
                    self.row(class, Some(group), &body);
                    start(&mut body);
                    held = 0;
                }
                put(&mut body, list.column as u64);
                put(&mut body, list.bracket as u64);
                put_key_vec(&mut body, keys);
                held += keys.len();
            };
            match list.keys.len() {
                0 => {}
                1..=KEYS_A_ROW => add(&list.keys),
                _ => list.keys.pieces(KEYS_A_ROW).for_each(|keys| add(&keys)),
            }
        }
        self.row(class, Some(group), &body);
        self.scratch = body;
    }

    fn row(&mut self, class: u32, group: Option<usize>, body: &[u8]) {
        self.class.append_value(class);
        self.group.append_option(group.map(|group| group as u32));
        self.body.append_value(body);
        self.bytes += body.len() + ROW_BYTES;
        if self.bytes >= BATCH_BYTES || self.class.len() >= BATCH_ROWS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.written += std::mem::take(&mut self.bytes);
        let batch: Unfinished = (
            Arc::new(self.class.finish()),
            self.group.finish(),
            Arc::new(self.body.finish()),
        );
        self.batches.push(batch);
    }

    /// Bytes of all bodies so far.
    pub(super) fn bytes(&self) -> usize {
        self.written + self.bytes
    }

    /// The batches, with the columns of the groups by their numbers.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn finish(mut self, schema: &SchemaRef, groups: &[ArrayRef]) -> Result<Vec<RecordBatch>> {
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
        self.batches.into_iter().map(batch).collect()
    }
}

/// What all reads must agree in, class by class, as headers come in.
#[derive(Debug, Default)]
pub(super) struct Checked {
    classes: BTreeMap<u32, Header>,
}

impl Checked {
    /// Adds what another machine says.
    ///
    /// # Errors
    /// An execution error if it expects something else than the others.
    pub(super) fn add(&mut self, class: u32, header: Header) -> Result<()> {
        match self.classes.get_mut(&class) {
            None => {
                self.classes.insert(class, header);
                Ok(())
            }
            Some(known) if known.expected == header.expected && known.many == header.many => {
                known.own.add(&header.own);
                Ok(())
            }
            Some(_) => {
                exec_err!("{READ_DIFFERENTLY}: two different states of the same groups reached a stage")
            }
        }
    }

    /// Whether all keys of a class are sent; `None`: nobody said anything of it.
    pub(super) fn is_many(&self, class: u32) -> Option<bool> {
        self.classes.get(&class).map(|header| header.many)
    }

    /// # Errors
    /// An execution error if any class was not read as it was the first time.
    pub(super) fn finish(&self) -> Result<()> {
        for header in self.classes.values() {
            if header.own == header.expected {
                continue;
            }
            let (own, expected) = (&header.own, &header.expected);
            let values = |guard: &Guard| {
                let sum = guard.seen.iter().fold(Seen::default(), |mut sum, seen| {
                    sum.add(*seen);
                    sum
                });
                format!(
                    "{} rows with {} values, checksum {:016x}",
                    guard.rows, sum.n, sum.check
                )
            };
            return exec_err!(
                "{READ_DIFFERENTLY}: {} were read first, {} later",
                values(expected),
                values(own)
            );
        }
        Ok(())
    }
}
