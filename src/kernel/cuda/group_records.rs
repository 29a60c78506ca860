//! Rows as records of group, key and value, for the best rows of every group: the launches of `gt_records` and `gt_order` of
//! `kernels/group_top.cu`.
//!
//! Records have room for each row that counts. Columns have as many rows as they say.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::device::Device;
use super::group::{Groups, bits_of, key_range};
use super::launch::{Kernels, halves, kernel_argument, whole};
use super::report::Report;
use super::runs::Candidates;
use super::select::Selection;
use super::shares::Chunk;
use super::sort::{RecordShape, RecordSort, SortRoom};
use super::source::{ColumnFormat, KernelFile, Program};
use super::timeline::Timeline;
use crate::key::KeySpec;

/// Threads of a block.
pub(super) const THREADS: u32 = 1024;
/// Columns of one record.
const MOST_PARTS: usize = 12;
/// `DOWN` and `ABOVE_NULL` of `Part::how`.
const DOWN: u32 = 1;
const ABOVE_NULL: u32 = 2;

/// `struct Part` of `kernels/group_top.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PartArgument {
    values: u64,
    validity: u64,
    least: [u64; 2],
    range: [u64; 2],
    span: u64,
    stride: u32,
    encoding: u32,
    pub(super) bits: u32,
    how: u32,
}

kernel_argument! {
    /// `struct Making` of `kernels/group_top.cu`.
    pub(super) struct MakingArgument = gt_sizes[0] {
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
}

/// What follows the number of a group in a record, and how wide that is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    /// The rows that the best are among; `None`: all that count.
    pub(super) among: Option<&'a Candidates>,
    /// How many those are.
    pub(super) population: u64,
    key: PartArgument,
    pub(super) value: PartArgument,
    /// Bits of a row's place in the order of values, where it stands for the value; and the bits of a row.
    pub(super) ranked: Option<[u32; 2]>,
    pub(super) shape: RecordShape,
}

/// The rows of a table as records.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupRecords<'a> {
    /// What tells groups apart.
    pub(super) groups: &'a Groups<'a>,
    /// Keys, and which rows count.
    pub(super) keys: &'a Selection<'a>,
    /// What is wanted of rows.
    pub(super) values: &'a DeviceColumn,
    /// Whether the least keys are the best.
    pub(super) least: bool,
}

impl GroupRecords<'_> {
    /// What records are made of, or why there is no room in them.
    pub(super) fn fields<'b>(
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
    pub(super) fn making(&self, fields: &Fields<'_>, order: Option<&DeviceBuffer>) -> MakingArgument {
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
    pub(super) fn rows_by_value(
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
        let launch = kernels(device, shape, None)?.launch("gt_order", everywhere(device), 0)?;
        timeline.launch(&launch, &making)?;
        Ok(order)
    }

    /// A record of each row that counts, in the first of the two buffers.
    pub(super) fn make(
        &self,
        (making, population): (&MakingArgument, u64),
        shape: RecordShape,
        work: &mut DeviceBuffer,
        (room, cursor): (SortRoom, usize),
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<()> {
        let device = self.groups.device;
        let kernels = kernels(device, shape, None)?;
        work.zero(cursor..cursor + size_of::<u64>())?;
        let making = MakingArgument {
            records: work.address() + room.records[0] as u64,
            cursor: work.address() + cursor as u64,
            ..*making
        };
        timeline.launch(&kernels.launch("gt_records", everywhere(device), 0)?, &making)?;
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
        match work.number(cursor)? {
            count if count == population => Ok(()),
            other => internal_err!("{population} rows were announced to the device, it found {other}"),
        }
    }
}

/// The kernels for records of one width: those that make records and answers, or the one that selects so many rows.
pub(super) fn kernels(device: &Arc<Device>, shape: RecordShape, queue: Option<u64>) -> Result<Kernels> {
    let Some(record_bytes) = shape.bytes() else {
        return internal_err!("records of {shape:?}");
    };
    let program = Program {
        batch: queue.unwrap_or(1) as u32,
        // An item of WarpSelect is a record, and twice as wide as the kernels' words.
        ..Program::of(KernelFile::GroupTop, ColumnFormat::unsigned(record_bytes / 2))
    };
    Kernels::load(device, &program, [0, 0, record_bytes, Chunk::BYTES])
}

/// Blocks on all of the device.
pub(super) fn everywhere(device: &Device) -> [u32; 2] {
    [2 * device.multiprocessors(), THREADS]
}

/// A column as it is stored.
fn stored(column: &DeviceColumn, words: ColumnFormat) -> PartArgument {
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
    words: ColumnFormat,
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
