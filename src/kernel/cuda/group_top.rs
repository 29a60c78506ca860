//! The best rows of every group of a table on a device: the launches of `kernels/group_top.cu` and `kernels/sort.cu`.
//!
//! A row becomes a record of 64 or 128 bits: the number of its group, its key, its value, each counted from the least of its
//! column, so that equal keys stand in the order of their values, and the value is read off the record. Where that is too
//! wide, rows are put in the order of their values first, and their place there stands for the value. Then either
//!
//! * all records are put in order, and each group's first are its best ([`TopMethod::Sort`]), or
//! * records are put in order of their groups only, and warps select among some thousand of one group each, then among what
//!   they found, until a list a group is left ([`TopMethod::Warps`]: WarpSelect, Johnson, Douze and Jegou 2017, section IV,
//!   in as many passes as it takes). What the lists of a group reach so far rules out lesser records in all of its warps.
//!
//! A table of measured times picks. Where the rows of groups lie together in long runs, all this is done with few rows
//! ([`TopMethod::Runs`]), found in one read of the keys. Device memory: two records a row, and 8 bytes more
//! where places stand for values.

use std::sync::Arc;

use cudarc::driver::DeviceRepr;
use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, internal_datafusion_err, internal_err, resources_datafusion_err};

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::device::{Device, Module};
use super::gather::array;
use super::group::{Groups, HOST_BYTES, bits_of, key_range};
use super::runs::{Candidates, RunSelection, Takes};
use super::select::Selection;
use super::sequence::{Launch, Places, Report, Timeline, Workspace};
use super::shares::{Chunk, QUEUES, TopMethod, is_for_warps, method, share, shares};
use super::sort::{RecordShape, RecordSort, Segments, SortRoom, numbers};
use super::source::{KernelFile, Program, Words, storage_bytes};
use crate::failpoint::may_fail;
use crate::key::{KeyBits, KeySpec};

const THREADS: u32 = 1024;
/// Bytes of `Making`, of `Taking`, of a record, of `Chunk`.
const SIZES: &str = "gt_sizes";
/// Columns of one record.
const MOST_PARTS: usize = 12;
/// Warps of a block that selects.
const WARPS: u32 = 4;
/// `DOWN` and `ABOVE_NULL` of `Part::how`.
const DOWN: u32 = 1;
const ABOVE_NULL: u32 = 2;

/// `struct Part` of `kernels/group_top.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct PartArgument {
    values: u64,
    validity: u64,
    least: [u64; 2],
    range: [u64; 2],
    span: u64,
    stride: u32,
    encoding: u32,
    bits: u32,
    how: u32,
}

/// `struct Making` of `kernels/group_top.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct MakingArgument {
    parts: [PartArgument; MOST_PARTS],
    rows: u64,
    validity: u64,
    mask: u64,
    order: u64,
    ordered: u64,
    records: u64,
    cursor: u64,
    groups: u32,
    fields: u32,
    bits: u32,
    unused: u32,
}

/// `struct Taking` of `kernels/group_top.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct TakingArgument {
    value: PartArgument,
    from: u64,
    lists: u64,
    best: u64,
    chunks: u64,
    floors: u64,
    chunk_count: u64,
    starts: u64,
    offsets: u64,
    groups: u64,
    order: u64,
    out: u64,
    out_valid: u64,
    k: u32,
    bits: u32,
    first: u32,
    width: u32,
}

// SAFETY: plain integers in the layout of C, as the kernels' own structures; `gt_sizes` is compared with their sizes.
#[allow(unsafe_code, reason = "structures for kernels")]
unsafe impl DeviceRepr for MakingArgument {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "structures for kernels")]
unsafe impl DeviceRepr for TakingArgument {}

/// A question for the best rows of every group.
#[derive(Debug, Clone, Copy)]
pub struct GroupTopSelection<'a> {
    /// What tells groups apart.
    pub groups: &'a Groups<'a>,
    /// Keys, and which rows count.
    pub keys: Selection<'a>,
    /// What is wanted of rows; breaks ties: smaller values first, NULL last.
    pub values: &'a DeviceColumn,
    /// Whether the least keys are the best.
    pub least: bool,
    /// Rows of a group, at most; from 1 on.
    pub k: u64,
    /// How, whatever `method` says.
    pub forced: Option<TopMethod>,
}

/// The best rows of groups.
#[derive(Debug)]
pub struct GroupTop {
    /// Numbers of the groups that have rows, ascending.
    pub codes: Vec<u64>,
    /// Rows of each.
    pub lengths: Vec<usize>,
    /// Values of these rows, best first, one group after the other.
    pub values: ArrayRef,
}

/// What follows the number of a group in a record, and how wide that is.
#[derive(Debug, Clone, Copy)]
struct Fields<'a> {
    /// The rows that the best are among; `None`: all that count.
    among: Option<&'a Candidates>,
    /// How many those are.
    population: u64,
    key: PartArgument,
    value: PartArgument,
    /// Bits of a row's place in the order of values, where it stands for the value; and the bits of a row.
    ranked: Option<[u32; 2]>,
    shape: RecordShape,
}

impl<'a> GroupTopSelection<'a> {
    /// The best rows. `room` is asked for memory for so many groups and rows before they come. Waits for the device.
    ///
    /// # Errors
    /// `ResourcesExhausted` where numbers, keys and values, or values and rows, take more than 128 bits together, or the device's
    /// memory, or the limit on it, is too small; an execution error if the device fails; those of `room`.
    pub fn rows(
        &self,
        report: &mut Report,
        room: impl FnOnce(usize, usize) -> Result<()>,
    ) -> Result<GroupTop> {
        may_fail!("cuda_group_top");
        let population = self.keys.population();
        let (groups, device) = (self.groups, self.groups.device);
        if population == 0 || self.k == 0 {
            return self.none();
        }
        let mut timeline = Timeline::start(device, groups.timed)?;
        let among = self.candidates(&mut timeline, report)?;
        let fields = self.fields(among.as_ref(), report)?;
        let fields = fields.map_err(|why| resources_datafusion_err!("{why}"))?;
        let population = fields.population;
        let by_value = fields.ranked.map(|[_, row_bits]| RecordShape {
            key_bits: row_bits,
            code_bits: fields.value.bits,
        });
        let widest = [Some(fields.shape), by_value].into_iter().flatten();
        let widest = widest.filter_map(RecordShape::bytes).max();
        let Some(bytes) = widest else {
            return internal_err!("records of {fields:?}");
        };
        let mut layout = Places::default();
        let sort = SortRoom::take(&mut layout, device, population as usize, bytes);
        let cursor = layout.take(size_of::<u64>());
        let mut held = device.workspace();
        Workspace::reserve(&mut held, device, layout.end(), HOST_BYTES, groups.limit)?;
        let work = &mut Workspace::of(&mut held)?.device;
        let order = match by_value {
            Some(shape) => {
                Some(self.rows_by_value(&fields, shape, work, (sort, cursor), &mut timeline, report)?)
            }
            None => None,
        };
        let making = self.making(&fields, order.as_ref());
        self.make(
            (&making, population),
            fields.shape,
            work,
            (sort, cursor),
            &mut timeline,
            report,
        )?;
        let sort = RecordSort::try_new(work, sort, fields.shape, population, groups.limit)?;
        let top = self.best(&fields, order.as_ref(), sort, room, &mut timeline, report)?;
        timeline.end()?;
        device.synchronize("selecting rows of groups on the device")?;
        timeline.report(report)?;
        Ok(top)
    }

    fn none(&self) -> Result<GroupTop> {
        Ok(GroupTop {
            codes: Vec::new(),
            lengths: Vec::new(),
            values: array(self.values.data_type(), 0, &[], &[])?,
        })
    }

    /// Few rows that the best of all groups are among, where the rows of groups lie together.
    fn candidates(&self, timeline: &mut Timeline<'_>, report: &mut Report) -> Result<Option<Candidates>> {
        let takes = match self.forced {
            None | Some(TopMethod::Runs) => Takes::Either,
            Some(TopMethod::RunsByBlocks) => Takes::Block,
            Some(TopMethod::RunsByWarps) => Takes::Warp,
            Some(TopMethod::Sort | TopMethod::Warps) => return Ok(None),
        };
        let runs = RunSelection {
            keys: &self.keys,
            least: self.least,
            k: self.k,
            takes,
        };
        runs.rows(self.groups, timeline, report)
    }

    /// How rows are found among so many whose records have this shape.
    fn method(&self, records: u64, shape: RecordShape) -> TopMethod {
        let groups = u64::try_from(self.groups.numbers).unwrap_or(u64::MAX);
        self.forced
            .filter(|forced| {
                matches!(forced, TopMethod::Sort | TopMethod::Warps) && is_for_warps(shape, self.k)
            })
            .unwrap_or_else(|| method(records, groups, self.k, shape))
    }

    /// Whether [`Self::rows`] has room for a record of each row. Reads keys and values once in their lives.
    ///
    /// # Errors
    /// An execution error if the device fails; `ResourcesExhausted` where it has no memory to find the ranges of the columns.
    pub(crate) fn fits(&self, report: &mut Report) -> Result<bool> {
        Ok(self.fields(None, report)?.is_ok())
    }

    /// What records are made of, or why there is no room in them.
    fn fields<'b>(
        &self,
        among: Option<&'b Candidates>,
        report: &mut Report,
    ) -> Result<Result<Fields<'b>, String>> {
        let (groups, device) = (self.groups, self.groups.device);
        let population = among.map_or(self.keys.population(), |among| among.count);
        let column = self.keys.column;
        if groups.columns.len() + 2 > MOST_PARTS {
            return Ok(Err(format!(
                "best rows by {} group columns on {device}: {} are allowed",
                groups.columns.len(),
                MOST_PARTS - 2
            )));
        }
        let turned = self
            .values
            .words(&KeySpec::try_new(self.values.data_type())?)
            .turned();
        let mut key = part(column, self.keys.words, groups.limit, report)?;
        key.how = if self.least { 0 } else { DOWN };
        key.bits = bits_of(whole(key.range));
        let mut value = part(self.values, turned, groups.limit, report)?;
        value.bits = bits_of(whole(value.range).saturating_add(u128::from(self.values.has_nulls())));
        let code_bits = bits_of(groups.numbers - 1);
        let shape = |below: u32| RecordShape {
            key_bits: key.bits + below,
            code_bits,
        };
        let place_bits = bits_of(u128::from(population.saturating_sub(1)));
        let row_bits = bits_of(u128::from(column.rows() - 1));
        let (ranked, shape) = match (shape(value.bits), shape(place_bits)) {
            (direct, _) if direct.bytes().is_some() => (None, direct),
            (_, placed) if placed.bytes().is_some() && value.bits + row_bits <= u128::BITS => {
                (Some([place_bits, row_bits]), placed)
            }
            (direct, placed) => {
                return Ok(Err(format!(
                    "groups, keys and values on {device} span {} bits together, groups, keys and rows {}, values and rows {}: 128 \
                     are allowed",
                    direct.key_bits + direct.code_bits,
                    placed.key_bits + placed.code_bits,
                    value.bits + row_bits
                )));
            }
        };
        Ok(Ok(Fields {
            among,
            population,
            key,
            value,
            ranked,
            shape,
        }))
    }

    /// Records of groups, of some rows or of all that count; of the rows in `order`, where there is one, whose places then stand
    /// for values.
    fn making(&self, fields: &Fields<'_>, order: Option<&DeviceBuffer>) -> MakingArgument {
        let columns = &self.groups.columns;
        let mut making = MakingArgument {
            groups: columns.len() as u32,
            fields: 2,
            rows: self.keys.column.rows(),
            validity: self.keys.column.validity_address(),
            mask: self.keys.mask.map_or(0, |(mask, _)| mask.address()),
            ..MakingArgument::default()
        };
        for (part, group) in making.parts.iter_mut().zip(columns) {
            *part = PartArgument {
                least: halves(group.least),
                span: group.span.max(1) as u64,
                how: if group.column.has_nulls() { ABOVE_NULL } else { 0 },
                ..stored(group.column, group.words)
            };
        }
        making.parts[columns.len()] = fields.key;
        making.parts[columns.len() + 1] = fields.value;
        if let Some(rows) = order.or(fields.among.map(|among| &among.rows)) {
            // All of these rows count.
            making.rows = fields.population;
            (making.validity, making.mask) = (0, 0);
            making.order = rows.address();
        }
        if let (Some(_), Some([place_bits, _])) = (order, fields.ranked) {
            making.parts[columns.len() + 1] = PartArgument {
                bits: place_bits,
                ..PartArgument::default()
            };
        }
        making
    }

    /// The rows that count in the order of their values.
    fn rows_by_value(
        &self,
        fields: &Fields<'_>,
        shape: RecordShape,
        work: &mut DeviceBuffer,
        places: (SortRoom, usize),
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<DeviceBuffer> {
        let device = self.groups.device;
        let population = fields.population;
        let mut making = MakingArgument {
            groups: 0,
            ..self.making(fields, None)
        };
        making.parts[0] = fields.value;
        making.parts[1] = PartArgument {
            bits: shape.key_bits,
            ..PartArgument::default()
        };
        self.make((&making, population), shape, work, places, timeline, report)?;
        let order = device.allocate(population as usize * size_of::<u64>(), self.groups.limit)?;
        let mut sort = RecordSort::try_new(work, places.0, shape, population, self.groups.limit)?;
        sort.sort(shape.key_bits, timeline)?;
        let making = MakingArgument {
            rows: population,
            records: sort.records(),
            ordered: order.address(),
            bits: shape.key_bits,
            ..making
        };
        let kernels = Kernels::load(device, shape, None)?;
        kernels.launch("gt_order", kernels.everywhere(), &making, timeline)?;
        Ok(order)
    }

    /// A record of each row that counts, in the first of the two buffers.
    fn make(
        &self,
        (making, population): (&MakingArgument, u64),
        shape: RecordShape,
        work: &mut DeviceBuffer,
        (room, cursor): (SortRoom, usize),
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<()> {
        let kernels = Kernels::load(self.groups.device, shape, None)?;
        work.zero(cursor..cursor + size_of::<u64>())?;
        let making = MakingArgument {
            records: work.address() + room.records[0] as u64,
            cursor: work.address() + cursor as u64,
            ..*making
        };
        kernels.launch("gt_records", kernels.everywhere(), &making, timeline)?;
        let grouped = self.groups.columns.iter().map(|group| group.column);
        let columns: Vec<_> = grouped.chain([self.keys.column, self.values]).collect();
        report.bytes_read += match making.order {
            0 => columns.iter().map(|column| column.bytes() as u64).sum::<u64>(),
            _ => columns
                .iter()
                .map(|column| making.rows * column.value_bytes() as u64)
                .sum(),
        };
        if making.mask != 0 {
            report.bytes_read += self.keys.mask.map_or(0, |(mask, _)| mask.len() as u64);
        }
        let count = numbers(&work.to_host(cursor..cursor + size_of::<u64>())?);
        match count.first() {
            Some(count) if *count == population => Ok(()),
            other => internal_err!("{population} rows were announced to the device, it found {other:?}"),
        }
    }

    /// The answer from records that are not in order yet.
    fn best(
        &self,
        fields: &Fields<'_>,
        order: Option<&DeviceBuffer>,
        mut sort: RecordSort<'_>,
        room: impl FnOnce(usize, usize) -> Result<()>,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<GroupTop> {
        let (device, limit, shape) = (self.groups.device, self.groups.limit, fields.shape);
        let kernels = Kernels::load(device, shape, None)?;
        let by_warps = self.method(fields.population, shape) == TopMethod::Warps;
        let first = match (by_warps, fields.ranked) {
            (true, _) => shape.key_bits,
            // Records were made in the order of their places.
            (false, Some([place_bits, _])) => place_bits,
            (false, None) => 0,
        };
        sort.sort(first, timeline)?;
        let (segments, starts) = sort.segments(timeline, report)?;
        let lengths = (0..segments.starts.len()).map(|group| segments.length(group).min(self.k));
        let lengths: Vec<u64> = lengths.collect();
        let mut offsets = Vec::with_capacity(lengths.len() + 1);
        offsets.push(0);
        let mut total = 0;
        for length in &lengths {
            total += length;
            offsets.push(total);
        }
        room(lengths.len(), total as usize)?;
        let sent = sent(device, bytemuck::cast_slice(&offsets), limit, report)?;
        let nullable = self.values.has_nulls();
        let Some(width) = storage_bytes(self.values.data_type()) else {
            return internal_err!("values of type {} on a device", self.values.data_type());
        };
        let total = total as usize;
        let out = device.allocate(total * (width + usize::from(nullable)), limit)?;
        let mut taking = TakingArgument {
            value: fields.value,
            from: sort.records(),
            offsets: sent.address(),
            groups: lengths.len() as u64,
            out: out.address(),
            out_valid: if nullable {
                out.address() + (total * width) as u64
            } else {
                0
            },
            k: self.k.min(u64::from(u32::MAX)) as u32,
            bits: shape.key_bits,
            width: width as u32,
            ..TakingArgument::default()
        };
        if let (Some(order), Some([place_bits, _])) = (order, fields.ranked) {
            taking.order = order.address();
            taking.value.bits = place_bits;
        }
        // Held until all is done.
        let best = match by_warps {
            false => {
                taking.starts = starts.address();
                starts
            }
            true => {
                let best = device.allocate(total * kernels.record_bytes, limit)?;
                taking.best = best.address();
                let lists = (&segments, offsets.as_slice());
                self.select(shape, lists, (taking, sort.room()), timeline, report)?;
                best
            }
        };
        let blocks = (total as u64).div_ceil(u64::from(THREADS)) as u32;
        let grid = [blocks.clamp(1, kernels.everywhere()[0]), THREADS];
        kernels.launch("gt_answer", grid, &taking, timeline)?;
        let host = out.to_host(0..out.len())?;
        drop((best, sent));
        report.bytes_from_device += host.len() as u64;
        let (values, valid) = host.split_at(total * width);
        Ok(GroupTop {
            codes: segments.codes,
            lengths: lengths.into_iter().map(|length| length as usize).collect(),
            values: array(self.values.data_type(), total, values, valid)?,
        })
    }

    /// WarpSelect over records in the order of groups, until each group has one list.
    fn select(
        &self,
        shape: RecordShape,
        (segments, offsets): (&Segments, &[u64]),
        (taking, spare): (TakingArgument, u64),
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<()> {
        let (device, limit) = (self.groups.device, self.groups.limit);
        let queue = QUEUES.iter().find(|(most, ..)| self.k <= *most);
        let queue = queue.ok_or_else(|| internal_datafusion_err!("{} rows of a warp", self.k))?;
        let kernels = Kernels::load(device, shape, Some(queue.0))?;
        let groups = segments.starts.len();
        let mut floors = device.allocate(groups * size_of::<u64>(), limit)?;
        floors.zero(0..floors.len())?;
        let share = share(segments.records, self.k, u64::from(device.multiprocessors()));
        let mut lists: Vec<(u64, u64)> = (0..groups)
            .map(|group| (segments.starts[group], segments.length(group)))
            .collect();
        let mut rooms = [taking.from, spare];
        let mut first = 1;
        loop {
            let chunks = shares(&mut lists, offsets, share, self.k);
            if chunks.is_empty() {
                return Ok(());
            }
            let words: Vec<_> = chunks.iter().map(|chunk| chunk.words()).collect();
            let sent = sent(device, bytemuck::cast_slice(&words), limit, report)?;
            let taking = TakingArgument {
                from: rooms[0],
                lists: rooms[1],
                chunks: sent.address(),
                chunk_count: chunks.len() as u64,
                floors: floors.address(),
                first,
                ..taking
            };
            let blocks = chunks.len().div_ceil(WARPS as usize) as u32;
            kernels.launch(queue.1, [blocks, 32 * WARPS], &taking, timeline)?;
            rooms.swap(0, 1);
            first = 0;
        }
    }
}

/// The kernels for records of one width.
struct Kernels<'a> {
    device: &'a Device,
    module: Arc<Module>,
    record_bytes: usize,
}

impl<'a> Kernels<'a> {
    /// Those that make records and answers, or the one that selects so many rows.
    fn load(device: &'a Device, shape: RecordShape, queue: Option<u64>) -> Result<Self> {
        let Some(record_bytes) = shape.bytes() else {
            return internal_err!("records of {shape:?}");
        };
        let module = device.module(&program(record_bytes, queue))?;
        let sizes = module.sizes(device, SIZES)?.map(|size| size as usize);
        let expected = [
            size_of::<MakingArgument>(),
            size_of::<TakingArgument>(),
            record_bytes,
            Chunk::BYTES,
        ];
        if sizes != expected {
            return internal_err!("kernels expect structures of {sizes:?} bytes, the host has {expected:?}");
        }
        Ok(Self {
            device,
            module,
            record_bytes,
        })
    }

    /// Blocks on all of the device.
    fn everywhere(&self) -> [u32; 2] {
        [2 * self.device.multiprocessors(), THREADS]
    }

    #[allow(unsafe_code, reason = "kernels are launched")]
    fn launch<A: DeviceRepr>(
        &self,
        name: &'static str,
        grid: [u32; 2],
        argument: &A,
        timeline: &mut Timeline<'_>,
    ) -> Result<()> {
        let launch = Launch::try_new(self.device, &self.module, name, grid, 0)?;
        // SAFETY: the kernel's one parameter is this structure, whose size was compared. Columns have as many rows as they
        // say, records and lists lie in the workspace with the room that `SortRoom` took, other buffers have a place for each
        // group, or for each row of the answer; all are freed on the stream, after this.
        unsafe { launch.run(self.device, argument) }?;
        timeline.passed(name)
    }
}

/// An item of WarpSelect is a record, and twice as wide as the kernels' words.
fn program(record_bytes: usize, queue: Option<u64>) -> Program {
    Program {
        file: KernelFile::GroupTop,
        words: Words::unsigned(record_bytes / 2),
        masked: false,
        batch: queue.unwrap_or(1) as u32,
        descending: false,
    }
}

/// Bytes on the device.
fn sent(device: &Arc<Device>, bytes: &[u8], limit: Option<u64>, report: &mut Report) -> Result<DeviceBuffer> {
    let mut buffer = device.allocate(bytes.len(), limit)?;
    buffer.fill(bytes)?;
    report.bytes_to_device += bytes.len() as u64;
    Ok(buffer)
}

/// A column as it is stored.
fn stored(column: &DeviceColumn, words: Words) -> PartArgument {
    PartArgument {
        values: column.values_address(),
        validity: column.validity_address(),
        stride: words.value_bytes() as u32,
        encoding: words.encoding(),
        ..PartArgument::default()
    }
}

/// The same, with the range of its keys.
fn part(
    column: &DeviceColumn,
    words: Words,
    limit: Option<u64>,
    report: &mut Report,
) -> Result<PartArgument> {
    let (least, most) = key_range(column, words, limit, report)?.unwrap_or((0, 0));
    Ok(PartArgument {
        least: halves(least),
        range: halves(most - least),
        ..stored(column, words)
    })
}

/// A key as kernels take it, the low half first.
fn halves(key: KeyBits) -> [u64; 2] {
    [key as u64, (key >> 64) as u64]
}

fn whole([low, high]: [u64; 2]) -> KeyBits {
    KeyBits::from(low) | KeyBits::from(high) << 64
}
