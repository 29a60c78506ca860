//! Exact ranks of a column in every group of rows: the launches of `kernels/group.cu` and `kernels/sort.cu`.
//!
//! The group columns of a row become one number, the *code* of its group. The code stands above the row's key in a record of 64 or 128
//! bits. Records are sorted, so that each group lies together and a rank is a place. Codes and keys count from the least value of
//! their column, so that records are as short as the data allow.
//!
//! Few ranks of large groups are found by [`group_brackets`](super::group_brackets), which sorts some of the rows only.
//!
//! Cost of a sort of all rows on one H200: 21 ms for 2^28 rows of Float32 in 1000 groups, where records have 5 digits (see
//! [`sort`](super::sort)); less in many short groups (see [`sort_groups`](super::sort_groups)). The time does not depend on the number of
//! ranks. Device memory: two records for each row.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, make_array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::common::{Result, internal_err, resources_datafusion_err, resources_err};

use super::buffer::DeviceBuffer;
use super::column::{DeviceColumn, KeyRange};
use super::device::Device;
use super::group_ranks::RankTable;
use super::launch::{ColumnArgument, Kernels, Launch, halves, kernel_argument, whole};
use super::report::Report;
use super::select::Selection;
use super::sort::{PickedKeys, RecordShape, RecordSort, Segments, SortMemory};
use super::source::{ColumnFormat, KernelFile, Program};
use super::timeline::Timeline;
use super::workspace::{Places, WorkspaceLease};
use crate::failpoint::may_fail;
use crate::key::{KeyBits, KeySpec};

/// Threads of a block.
const THREADS: u32 = 1024;
/// Blocks for each multiprocessor.
const BLOCKS: u32 = 2;
/// Bytes of page-locked memory of the workspace, which groups do not use.
pub(super) const HOST_BYTES: usize = 4096;

kernel_argument! {
    /// `struct Group` of `kernels/group.cu`.
    pub(super) struct GroupArgument = gr_sizes[0] {
        column: ColumnArgument,
        ends: u64,
        pub(super) codes: u64,
        records: u64,
        pub(super) cursor: u64,
        pub(super) room: u64,
        least: [u64; 2],
        span: u64,
        bits: u32,
        wide: u32,
        folds: u32,
        above_null: u32,
        keyless: u32,
    }
}

impl GroupArgument {
    /// An argument that names the column alone.
    pub(super) fn of(column: ColumnArgument) -> Self {
        Self {
            column,
            ..Self::default()
        }
    }
}

/// A column that rows are grouped by.
#[derive(Debug)]
pub(super) struct GroupColumn<'a> {
    pub(super) column: &'a DeviceColumn,
    spec: KeySpec,
    pub(super) format: ColumnFormat,
    /// The least key. Its code is 0, or 1 if the column has NULLs, whose code is 0.
    pub(super) least: KeyBits,
    /// Number of codes: most distinct values that there can be, NULL included.
    pub(super) span: u128,
}

impl GroupColumn<'_> {
    fn above_null(&self) -> u32 {
        u32::from(self.column.has_nulls())
    }

    /// The values that codes stand for.
    fn values(&self, codes: &[u128]) -> Result<ArrayRef> {
        let above_null = u128::from(self.above_null());
        let keys = codes
            .iter()
            .map(|code| self.least + code.saturating_sub(above_null));
        let values = self.spec.to_array(&keys.collect::<Vec<_>>())?;
        if !self.column.has_nulls() || !codes.contains(&0) {
            return Ok(values);
        }
        let valid = NullBuffer::from_iter(codes.iter().map(|code| *code > 0));
        let data = values.to_data().into_builder().nulls(Some(valid)).build()?;
        Ok(make_array(data))
    }
}

/// The groups of the rows of a table on a device: the columns whose values tell groups apart.
#[derive(Debug)]
pub struct Groups<'a> {
    pub(super) device: &'a Arc<Device>,
    pub(super) columns: Vec<GroupColumn<'a>>,
    /// Number of codes that groups can have.
    pub(super) numbers: u128,
    pub(super) rows: u64,
    pub(super) limit: Option<u64>,
    pub(super) timed: bool,
}

/// The rows of a table that become records.
#[derive(Clone, Copy)]
struct RecordRows<'b> {
    /// The column whose keys go into the records, and its least key. `None`: records have no keys.
    keys: Option<(&'b Selection<'b>, KeyBits)>,
    /// A bitmap of the rows that count. `None`: all rows.
    mask: Option<&'b DeviceBuffer>,
    /// Most rows that become records.
    most: u64,
    shape: RecordShape,
}

impl<'a> Groups<'a> {
    /// Groups by columns of one table. Their types are those whose keys tell values apart, so not floating point. Fails if this crate
    /// would hold more than `limit` bytes of device memory. Reads each column once in its life.
    ///
    /// # Errors
    /// `ResourcesExhausted` if the codes of groups need more than 64 bits; an execution error if the device fails;
    /// an internal error for no columns, or columns of several tables.
    pub fn try_new(
        columns: &[&'a DeviceColumn],
        limit: Option<u64>,
        timed: bool,
        report: &mut Report,
    ) -> Result<Self> {
        may_fail!("cuda_group");
        let groups = Self::fitting(columns, limit, timed, report)?;
        groups.ok_or_else(|| {
            resources_datafusion_err!(
                "the values of {} group columns span more than 64 bits on the device",
                columns.len()
            )
        })
    }

    /// Groups as of [`Self::try_new`]; `None` if the codes of groups need more than 64 bits.
    ///
    /// # Errors
    /// The other errors of [`Self::try_new`].
    pub(crate) fn fitting(
        columns: &[&'a DeviceColumn],
        limit: Option<u64>,
        timed: bool,
        report: &mut Report,
    ) -> Result<Option<Self>> {
        let Some(first) = columns.first() else {
            return internal_err!("groups by no columns");
        };
        let (device, rows) = (first.device(), first.rows());
        if columns.iter().any(|column| column.rows() != rows) {
            return internal_err!("groups by columns of several tables");
        }
        let mut numbers = 1_u128;
        let mut coded = Vec::with_capacity(columns.len());
        for &column in columns {
            let spec = KeySpec::try_new(column.data_type())?;
            let format = column.format(&spec);
            let range = key_range(column, format, limit, report)?;
            let values = range.map_or(Some(0), |(least, most)| (most - least).checked_add(1));
            let span = values.and_then(|values| values.checked_add(u128::from(column.has_nulls())));
            let product = span.and_then(|span| numbers.checked_mul(span.max(1)));
            let (Some(span), Some(product)) = (span, product.filter(|product| *product <= 1 << 64)) else {
                return Ok(None);
            };
            numbers = product;
            coded.push(GroupColumn {
                column,
                spec,
                format,
                least: range.map_or(0, |(least, _)| least),
                span,
            });
        }
        Ok(Some(Self {
            device,
            columns: coded,
            numbers,
            rows,
            limit,
            timed,
        }))
    }

    /// Whether the code of a group and a key of the column fit in a record of 128 bits, as [`Self::select`] needs it. Reads the column
    /// once in its life.
    ///
    /// # Errors
    /// An execution error if the device fails; `ResourcesExhausted` if it has no memory to find the range of the keys.
    pub(crate) fn fits(&self, among: &Selection<'_>, report: &mut Report) -> Result<bool> {
        let (_, shape) = self.key_shape(among, report)?;
        Ok(shape.bytes().is_some())
    }

    /// The values of the group columns for groups with these codes, one array for each column.
    ///
    /// # Errors
    /// Internal errors only.
    pub fn values(&self, codes: &[u64]) -> Result<Vec<ArrayRef>> {
        let mut rest: Vec<u128> = codes.iter().map(|code| u128::from(*code)).collect();
        let mut columns = Vec::with_capacity(self.columns.len());
        // The last column is the lowest digit of a code.
        for (index, column) in self.columns.iter().enumerate().rev() {
            if index == 0 {
                columns.push(column.values(&rest)?);
                break;
            }
            let span = column.span.max(1);
            let own: Vec<_> = rest.iter().map(|number| number % span).collect();
            rest.iter_mut().for_each(|number| *number /= span);
            columns.push(column.values(&own)?);
        }
        columns.reverse();
        Ok(columns)
    }

    /// The groups of the rows in the bitmap `mask`, or of all rows, and the number of rows of each. Waits for the device.
    ///
    /// # Errors
    /// `ResourcesExhausted` if the device's memory, or the limit on it, is too small; an execution error if the device fails.
    pub fn present(&self, mask: Option<&DeviceBuffer>, report: &mut Report) -> Result<Segments> {
        let rows = RecordRows {
            keys: None,
            mask,
            most: self.rows,
            shape: self.shape(0),
        };
        let (segments, _) = self.ordered(rows, report, |_| Ok(None))?;
        Ok(segments)
    }

    /// As [`Self::select`], by a sort of all rows, for the ranks that `table` gives. Keys count from the least key of the column.
    pub(super) fn sorted(
        &self,
        among: &Selection<'_>,
        (least, shape): (KeyBits, RecordShape),
        report: &mut Report,
        table: impl FnOnce(&Segments) -> Result<RankTable>,
    ) -> Result<(Segments, PickedKeys)> {
        let rows = RecordRows {
            keys: Some((among, least)),
            mask: among.mask.map(|(mask, _)| mask),
            most: among.population(),
            shape,
        };
        let (segments, keys) = self.ordered(rows, report, |segments| table(segments).map(Some))?;
        if segments.records != among.population() {
            return internal_err!(
                "{} values were announced to the device, it found {}",
                among.population(),
                segments.records
            );
        }
        Ok((segments, keys))
    }

    /// The least key of a column, and the shape of records with its keys.
    pub(super) fn key_shape(
        &self,
        among: &Selection<'_>,
        report: &mut Report,
    ) -> Result<(KeyBits, RecordShape)> {
        let range = key_range(among.column, among.format, self.limit, report)?;
        let (least, most) = range.unwrap_or((0, 0));
        Ok((least, self.shape(bits_of(most - least))))
    }

    fn shape(&self, key_bits: u32) -> RecordShape {
        RecordShape {
            key_bits,
            code_bits: bits_of(self.numbers - 1),
        }
    }

    /// Whether a code takes 8 bytes.
    fn is_wide(&self) -> bool {
        self.numbers > 1 << 32
    }

    /// Makes records of rows, sorts them, and returns the groups and the keys at the ranks of `table`, if there is one.
    fn ordered(
        &self,
        rows: RecordRows<'_>,
        report: &mut Report,
        table: impl FnOnce(&Segments) -> Result<Option<RankTable>>,
    ) -> Result<(Segments, PickedKeys)> {
        let Some(record_bytes) = rows.shape.bytes() else {
            return resources_err!(
                "groups and values on {} span {} bits together: 128 are allowed",
                self.device,
                rows.shape.key_bits + rows.shape.code_bits
            );
        };
        if rows.most == 0 {
            return Ok((Segments::default(), PickedKeys::default()));
        }
        let code_bytes = if self.is_wide() { 8 } else { 4 };
        let mut layout = Places::default();
        // Codes lie in the memory of the second buffer of records, which is used later.
        let each = record_bytes.max(code_bytes * self.rows.div_ceil(rows.most) as usize);
        let room = SortMemory::take(&mut layout, self.device, rows.most as usize, each);
        let cursor = layout.take(size_of::<u64>());
        let mut lease = WorkspaceLease::lock(self.device);
        let work = &mut lease.reserve(layout.end(), HOST_BYTES, self.limit)?.device;
        work.zero(cursor..cursor + size_of::<u64>())?;
        let mut timeline = Timeline::start(self.device, self.timed)?;
        let at = |place: usize| work.address() + place as u64;
        self.number_rows(at(room.records[1]), &mut timeline, report)?;
        let argument = GroupArgument {
            codes: at(room.records[1]),
            records: at(room.records[0]),
            cursor: at(cursor),
            ..self.argument(ColumnArgument::rows(self.rows, 0))
        };
        self.make_records(rows, argument, record_bytes, &mut timeline, report)?;
        let count = work.number(cursor)?;
        if count > rows.most {
            return internal_err!("{count} records on the device, {} were announced", rows.most);
        }
        let mut sort = RecordSort::try_new(work, room, rows.shape, count, self.limit)?;
        let heads = sort.sort_groups(&mut timeline)?;
        let segments = sort.segments(&heads, report)?;
        let keys = match table(&segments)? {
            Some(table) => sort.ranks(&heads, &table, &mut timeline, report)?,
            None => PickedKeys::default(),
        };
        timeline.end()?;
        self.device.synchronize("grouping on the device")?;
        timeline.report(report)?;
        Ok((segments, keys))
    }

    fn argument(&self, column: ColumnArgument) -> GroupArgument {
        GroupArgument {
            wide: u32::from(self.is_wide()),
            ..GroupArgument::of(column)
        }
    }

    /// Writes the code of each row's group to device memory, from the address `codes` on.
    pub(super) fn number_rows(
        &self,
        codes: u64,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<()> {
        for (index, column) in self.columns.iter().enumerate() {
            let argument = GroupArgument {
                codes,
                least: halves(column.least),
                span: column.span.max(1) as u64,
                folds: u32::from(index > 0),
                above_null: column.above_null(),
                ..self.argument(ColumnArgument::of(column.column, 0))
            };
            report.bytes_read += column.column.bytes() as u64;
            let program = program(column.format, column.column.has_nulls());
            timeline.launch(&launch(self.device, &program, "gr_codes")?, &argument)?;
        }
        Ok(())
    }

    /// Writes a record of each row that counts.
    fn make_records(
        &self,
        rows: RecordRows<'_>,
        argument: GroupArgument,
        record_bytes: usize,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<()> {
        let mask = rows.mask.map_or(0, DeviceBuffer::address);
        report.bytes_read += rows.mask.map_or(0, DeviceBuffer::len) as u64;
        let argument = GroupArgument {
            bits: rows.shape.key_bits,
            ..argument
        };
        let (program, argument) = match rows.keys {
            Some((among, least)) => {
                report.bytes_read += among.column.bytes() as u64;
                let masked = among.column.has_nulls() || rows.mask.is_some();
                let argument = GroupArgument {
                    column: ColumnArgument::of(among.column, mask),
                    least: halves(least),
                    ..argument
                };
                (program(among.format, masked), argument)
            }
            None => {
                let argument = GroupArgument {
                    column: ColumnArgument::rows(self.rows, mask),
                    keyless: 1,
                    ..argument
                };
                (program(ColumnFormat::ALL[0], rows.mask.is_some()), argument)
            }
        };
        let name = match record_bytes {
            8 => "gr_records_64",
            _ => "gr_records_128",
        };
        timeline.launch(&launch(self.device, &program, name)?, &argument)
    }
}

/// Number of bits from the highest set bit of a number down.
pub(super) fn bits_of(number: u128) -> u32 {
    u128::BITS - number.leading_zeros()
}

/// The compilation of `kernels/group.cu` for a column; `masked`: rows can be missing.
pub(super) fn program(format: ColumnFormat, masked: bool) -> Program {
    Program {
        masked,
        ..Program::of(KernelFile::Group, format)
    }
}

/// The kernel of this name in blocks on all multiprocessors. The caller has room for the number, or the record, of each row that counts.
pub(super) fn launch(device: &Arc<Device>, program: &Program, name: &'static str) -> Result<Launch> {
    let kernels = Kernels::load(device, program, [0, program.format.key_bytes(), 0, 0])?;
    kernels.launch(name, [BLOCKS * device.multiprocessors(), THREADS], 0)
}

/// The least and the greatest key of a column, which the column remembers. Waits for the device.
pub(super) fn key_range(
    column: &DeviceColumn,
    format: ColumnFormat,
    limit: Option<u64>,
    report: &mut Report,
) -> Result<KeyRange> {
    if let Some(range) = column.known_range(format) {
        return Ok(range);
    }
    let device = column.device();
    device.check()?;
    let pairs = (BLOCKS * device.multiprocessors()) as usize;
    let ends = device.allocate(pairs * 2 * size_of::<KeyBits>(), limit)?;
    let argument = GroupArgument {
        ends: ends.address(),
        ..GroupArgument::of(ColumnArgument::of(column, 0))
    };
    launch(device, &program(format, column.has_nulls()), "gr_range")?.run(device, &argument)?;
    report.kernels += 1;
    report.bytes_read += column.bytes() as u64;
    let ends: Vec<[u64; 4]> = ends.to_numbers(0..ends.len())?;
    let ranges = ends.iter().map(|[a, b, c, d]| (whole([*a, *b]), whole([*c, *d])));
    let range = ranges
        .filter(|(least, most)| least <= most)
        .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    column.remember_range(format, range);
    Ok(range)
}
