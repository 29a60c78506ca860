//! Rows as records of group, key and value, for the best rows of every group: the launches of `gt_records` and `gt_order` of
//! `kernels/group_top.cu`.
//!
//! Records have room for each row that counts. Columns have as many rows as they say.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::device::Device;
use super::group::{Groups, bits_of, range_of_all};
use super::launch::{Kernels, halves, kernel_argument, whole};
use super::report::Report;
use super::runs::Candidates;
use super::select::Selection;
use super::shares::Chunk;
use super::sort::{RecordShape, RecordSort, SortMemory};
use super::source::{ColumnFormat, KernelFile, Program, storage_bytes};
use super::timeline::Timeline;
use crate::key::KeySpec;

/// Threads of a block.
pub(super) const THREADS: u32 = 1024;
/// Most fields of one record: a field for each group column, the key, and the value.
const MOST_FIELDS: usize = 12;
/// Flag of a record field: the greatest key counts as 0. `DOWN` of `kernels/group_top.cu`.
const DOWN: u32 = 1;
/// Flag of a record field: code 0 stands for NULL. `ABOVE_NULL` of `kernels/group_top.cu`.
const ABOVE_NULL: u32 = 2;
/// Flag of a record field without values: it is the number of the row in the table. `ROW` of `kernels/group_top.cu`.
const ROW: u32 = 4;

/// `struct RecordField` of `kernels/group_top.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RecordFieldArgument {
    values: u64,
    validity: u64,
    least: [u64; 2],
    range: [u64; 2],
    span: u64,
    stride: u32,
    encoding: u32,
    pub(super) bits: u32,
    flags: u32,
}

kernel_argument! {
    /// `struct RecordPlan` of `kernels/group_top.cu`.
    pub(super) struct RecordPlanArgument = gt_sizes[0] {
        fields: [RecordFieldArgument; MOST_FIELDS],
        rows: u64,
        validity: u64,
        mask: u64,
        order: u64,
        ordered: u64,
        records: u64,
        cursor: u64,
        groups: u32,
        others: u32,
        bits: u32,
        unused: u32,
    }
}

/// The key and the value in a record, and the widths of all fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    /// The rows that become records. `None`: all rows that count.
    pub(super) among: Option<&'a Candidates>,
    /// Number of these rows.
    pub(super) population: u64,
    key: RecordFieldArgument,
    pub(super) value: RecordFieldArgument,
    /// Set where the place of a row in the order of values stands for the value: bits of a place, and bits of a row number.
    pub(super) ranked: Option<[u32; 2]>,
    pub(super) shape: RecordShape,
}

/// What an answer has for each of the best rows. It breaks ties between keys.
#[derive(Debug, Clone, Copy)]
pub enum TopAnswer<'a> {
    /// The value of this column: of rows that tie, the smallest values come first, NULL last.
    Values(&'a DeviceColumn),
    /// The number of the row in the table, as `UInt64`: of rows that tie, the first come first.
    RowNumbers,
}

impl<'a> TopAnswer<'a> {
    /// Type of the answer.
    pub(super) fn data_type(&self) -> &'a DataType {
        match self {
            Self::Values(column) => column.data_type(),
            Self::RowNumbers => &DataType::UInt64,
        }
    }

    /// Bytes of a value of the answer; `None` for a type that cannot be ranked.
    pub(super) fn width(&self) -> Option<usize> {
        storage_bytes(self.data_type())
    }

    pub(super) fn has_nulls(&self) -> bool {
        self.column().is_some_and(DeviceColumn::has_nulls)
    }

    fn column(&self) -> Option<&'a DeviceColumn> {
        match self {
            Self::Values(column) => Some(column),
            Self::RowNumbers => None,
        }
    }

    /// The field of a record. `others`: the other shares of the table, if it lies on several devices.
    fn field(
        &self,
        rows: u64,
        others: &[OtherShare<'_>],
        limit: Option<u64>,
        report: &mut Report,
    ) -> Result<RecordFieldArgument> {
        let Some(column) = self.column() else {
            let rows = others.iter().map(|other| other.keys.rows()).fold(rows, u64::max);
            let last = u128::from(rows.saturating_sub(1));
            return Ok(RecordFieldArgument {
                range: halves(last),
                stride: size_of::<u64>() as u32,
                bits: bits_of(last),
                flags: ROW,
                ..RecordFieldArgument::default()
            });
        };
        let turned = column.format(&KeySpec::try_new(column.data_type())?).turned();
        let others: Vec<_> = others.iter().filter_map(|other| other.values).collect();
        let mut field = field(column, &others, turned, limit, report)?;
        let has_nulls = column.has_nulls() || others.iter().any(|other| other.has_nulls());
        field.bits = bits_of(whole(field.range).saturating_add(u128::from(has_nulls)));
        Ok(field)
    }
}

/// The columns of another share of a table, which lies on another device. Records of all shares have the same fields.
#[derive(Debug, Clone, Copy)]
pub struct OtherShare<'a> {
    /// The column of the keys.
    pub keys: &'a DeviceColumn,
    /// The column of the values, if the answer is made of values.
    pub values: Option<&'a DeviceColumn>,
}

/// Turns the rows of a table into records.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupRecords<'a> {
    /// The groups of the rows.
    pub(super) groups: &'a Groups<'a>,
    /// The column of the keys, and the rows that count.
    pub(super) keys: &'a Selection<'a>,
    /// What the answer is made of.
    pub(super) answer: TopAnswer<'a>,
    /// The other shares of the table.
    pub(super) others: &'a [OtherShare<'a>],
    /// Whether the least keys are the best.
    pub(super) least: bool,
}

impl GroupRecords<'_> {
    /// The fields of records of the rows in `among`, or of all rows. The inner error says why they do not fit in 128 bits.
    pub(super) fn fields<'b>(
        &self,
        among: Option<&'b Candidates>,
        report: &mut Report,
    ) -> Result<Result<Fields<'b>, String>> {
        let (groups, device) = (self.groups, self.groups.device);
        let population = among.map_or(self.keys.population(), |among| among.count);
        let column = self.keys.column;
        if groups.columns.len() + 2 > MOST_FIELDS {
            return Ok(Err(format!(
                "best rows by {} group columns on {device}: {} are allowed",
                groups.columns.len(),
                MOST_FIELDS - 2
            )));
        }
        let others: Vec<_> = self.others.iter().map(|other| other.keys).collect();
        let mut key = field(column, &others, self.keys.format, groups.limit, report)?;
        key.flags = if self.least { 0 } else { DOWN };
        key.bits = bits_of(whole(key.range));
        let value = self
            .answer
            .field(column.rows(), self.others, groups.limit, report)?;
        let code_bits = bits_of(groups.numbers - 1);
        let shape = |below: u32| RecordShape {
            key_bits: key.bits + below,
            code_bits,
        };
        let place_bits = bits_of(u128::from(population.saturating_sub(1)));
        let row_bits = bits_of(u128::from(column.rows().saturating_sub(1)));
        // Places in the order of values mean something on one device only.
        let has_places = self.answer.column().is_some() && self.others.is_empty();
        let (ranked, shape) = match (shape(value.bits), shape(place_bits)) {
            (direct, _) if direct.bytes().is_some() => (None, direct),
            (_, placed) if has_places && placed.bytes().is_some() && value.bits + row_bits <= u128::BITS => {
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

    /// How records are made: of the rows in `order`, whose places then stand for values, or else of the rows in `fields`, or of all
    /// rows that count.
    pub(super) fn plan(&self, fields: &Fields<'_>, order: Option<&DeviceBuffer>) -> RecordPlanArgument {
        let columns = &self.groups.columns;
        let mut plan = RecordPlanArgument {
            groups: columns.len() as u32,
            others: 2,
            rows: self.keys.column.rows(),
            validity: self.keys.column.validity_address(),
            mask: self.keys.mask.map_or(0, |(mask, _)| mask.address()),
            ..RecordPlanArgument::default()
        };
        for (field, group) in plan.fields.iter_mut().zip(columns) {
            *field = RecordFieldArgument {
                least: halves(group.least),
                span: group.span.max(1) as u64,
                flags: if group.has_null { ABOVE_NULL } else { 0 },
                ..stored(group.column, group.format)
            };
        }
        plan.fields[columns.len()] = fields.key;
        plan.fields[columns.len() + 1] = fields.value;
        if let Some(rows) = order.or(fields.among.map(|among| &among.rows)) {
            // All of these rows count.
            plan.rows = fields.population;
            (plan.validity, plan.mask) = (0, 0);
            plan.order = rows.address();
        }
        if let (Some(_), Some([place_bits, _])) = (order, fields.ranked) {
            plan.fields[columns.len() + 1] = RecordFieldArgument {
                bits: place_bits,
                ..RecordFieldArgument::default()
            };
        }
        plan
    }

    /// The numbers of the rows that count, in the order of their values.
    pub(super) fn rows_by_value(
        &self,
        fields: &Fields<'_>,
        shape: RecordShape,
        work: &mut DeviceBuffer,
        places: (SortMemory, usize),
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<DeviceBuffer> {
        let device = self.groups.device;
        let population = fields.population;
        let mut plan = RecordPlanArgument {
            groups: 0,
            ..self.plan(fields, None)
        };
        plan.fields[0] = fields.value;
        plan.fields[1] = RecordFieldArgument {
            bits: shape.key_bits,
            ..RecordFieldArgument::default()
        };
        self.make((&plan, population), shape, work, places, timeline, report)?;
        let order = device.allocate(population as usize * size_of::<u64>(), self.groups.limit)?;
        let mut sort = RecordSort::try_new(work, places.0, shape, population, self.groups.limit)?;
        sort.sort(shape.key_bits, timeline)?;
        let plan = RecordPlanArgument {
            rows: population,
            records: sort.records(),
            ordered: order.address(),
            bits: shape.key_bits,
            ..plan
        };
        let launch = kernels(device, shape, None)?.launch("gt_order", everywhere(device), 0)?;
        timeline.launch(&launch, &plan)?;
        Ok(order)
    }

    /// Writes a record of each row that counts to the first of the two buffers.
    pub(super) fn make(
        &self,
        (plan, population): (&RecordPlanArgument, u64),
        shape: RecordShape,
        work: &mut DeviceBuffer,
        (room, cursor): (SortMemory, usize),
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<()> {
        let device = self.groups.device;
        let kernels = kernels(device, shape, None)?;
        work.zero(cursor..cursor + size_of::<u64>())?;
        let plan = RecordPlanArgument {
            records: work.address() + room.records[0] as u64,
            cursor: work.address() + cursor as u64,
            ..*plan
        };
        timeline.launch(&kernels.launch("gt_records", everywhere(device), 0)?, &plan)?;
        let grouped = self.groups.columns.iter().map(|group| group.column);
        let columns: Vec<_> = grouped
            .chain([self.keys.column])
            .chain(self.answer.column())
            .collect();
        report.bytes_read += match plan.order {
            0 => columns.iter().map(|column| column.bytes() as u64).sum::<u64>(),
            _ => columns
                .iter()
                .map(|column| plan.rows * column.value_bytes() as u64)
                .sum(),
        };
        if plan.mask != 0 {
            report.bytes_read += self.keys.mask.map_or(0, |(mask, _)| mask.len() as u64);
        }
        match work.number(cursor)? {
            count if count == population => Ok(()),
            other => internal_err!("{population} rows were announced to the device, it found {other}"),
        }
    }
}

/// The kernels for records of this shape: those that make records and answers, or the one whose queues hold `queue` rows.
pub(super) fn kernels(device: &Arc<Device>, shape: RecordShape, queue: Option<u64>) -> Result<Kernels> {
    let Some(record_bytes) = shape.bytes() else {
        return internal_err!("records of {shape:?}");
    };
    let program = Program {
        batch: queue.unwrap_or(1) as u32,
        // An item of WarpSelect is a record, which is twice as wide as a value of the compilation.
        ..Program::of(KernelFile::GroupTop, ColumnFormat::unsigned(record_bytes / 2))
    };
    Kernels::load(device, &program, [0, 0, record_bytes, Chunk::BYTES])
}

/// Blocks and threads of a launch on all multiprocessors.
pub(super) fn everywhere(device: &Device) -> [u32; 2] {
    [2 * device.multiprocessors(), THREADS]
}

/// A record field for the values of a column.
fn stored(column: &DeviceColumn, format: ColumnFormat) -> RecordFieldArgument {
    RecordFieldArgument {
        values: column.values_address(),
        validity: column.validity_address(),
        stride: format.value_bytes() as u32,
        encoding: format.encoding(),
        ..RecordFieldArgument::default()
    }
}

/// A record field for the values of a column, with the range of its keys in this share and in the others.
fn field(
    column: &DeviceColumn,
    others: &[&DeviceColumn],
    format: ColumnFormat,
    limit: Option<u64>,
    report: &mut Report,
) -> Result<RecordFieldArgument> {
    let columns = [&[column], others].concat();
    let (least, most) = range_of_all(&columns, format, limit, report)?.unwrap_or((0, 0));
    Ok(RecordFieldArgument {
        least: halves(least),
        range: halves(most - least),
        ..stored(column, format)
    })
}
