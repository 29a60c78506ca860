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

use std::ops::RangeInclusive;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, make_array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::common::{Result, internal_err, resources_err};

use super::buffer::DeviceBuffer;
use super::column::{DeviceColumn, KeyRange};
use super::device::Device;
use super::group_ranks::RankTable;
use super::launch::{ColumnArgument, Kernels, Launch, halves, kernel_argument, whole};
use super::picked_keys::PickedKeys;
use super::report::Report;
use super::select::Selection;
use super::sort::{RecordShape, RecordSort, Segments, SortMemory};
use super::source::{ColumnFormat, KernelFile, Program};
use super::timeline::Timeline;
use super::workspace::{Places, WorkspaceLease};
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
        codes_kept: [u64; 2],
        span: u64,
        bits: u32,
        wide: u32,
        folds: u32,
        above_null: u32,
        keyless: u32,
        code_offset: u32,
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
#[derive(Debug, Clone)]
pub(super) struct GroupColumn<'a> {
    pub(super) column: &'a DeviceColumn,
    spec: KeySpec,
    pub(super) format: ColumnFormat,
    /// The least key. Its code is 0, or 1 if the column has NULLs, whose code is 0.
    pub(super) least: KeyBits,
    /// Number of codes: most distinct values that there can be, NULL included.
    pub(super) span: u128,
    /// Whether code 0 stands for NULL.
    pub(super) has_null: bool,
}

impl GroupColumn<'_> {
    fn above_null(&self) -> u32 {
        u32::from(self.has_null)
    }

    /// The values that codes stand for.
    fn values(&self, codes: &[u128]) -> Result<ArrayRef> {
        let above_null = u128::from(self.above_null());
        let keys = codes
            .iter()
            .map(|code| self.least + code.saturating_sub(above_null));
        let values = self.spec.to_array(&keys.collect::<Vec<_>>())?;
        if !self.has_null || !codes.contains(&0) {
            return Ok(values);
        }
        let valid = NullBuffer::from_iter(codes.iter().map(|code| *code > 0));
        let data = values.to_data().into_builder().nulls(Some(valid)).build()?;
        Ok(make_array(data))
    }
}

/// The groups of the rows of a table on a device: the columns whose values tell groups apart.
#[derive(Debug, Clone)]
pub struct Groups<'a> {
    /// The device that groups rows. It can read the columns.
    pub(super) device: &'a Arc<Device>,
    pub(super) columns: Vec<GroupColumn<'a>>,
    /// Number of codes that groups can have.
    pub(super) numbers: u128,
    /// The codes of the groups that the device looks at. `None`: all.
    pub(super) kept: Option<RangeInclusive<u64>>,
    pub(super) rows: u64,
    pub(super) limit: Option<u64>,
    pub(super) timed: bool,
}

/// The rows of a table, or of a share of it, that become records.
#[derive(Clone, Copy)]
pub(super) struct RecordRows<'b> {
    /// The column whose keys go into the records, and its least key. `None`: records have no keys.
    keys: Option<(&'b Selection<'b>, KeyBits)>,
    /// A bitmap of the rows that count. `None`: all rows.
    mask: Option<&'b DeviceBuffer>,
    /// Most rows that become records.
    most: u64,
    shape: RecordShape,
}

impl<'a> Groups<'a> {
    /// The groups of each share of a table's rows, by the columns of the share. Their types are those whose keys tell values apart, so not
    /// floating point. A group has the same code in all shares. `None` if the codes of groups need more than 64 bits.
    ///
    /// # Errors
    /// As [`SpreadGroups::try_new`](super::group_spread::SpreadGroups::try_new), but for such codes.
    pub(super) fn of_shares(
        shares: &[Vec<&'a DeviceColumn>],
        limit: Option<u64>,
        timed: bool,
        report: &mut Report,
    ) -> Result<Option<Vec<Self>>> {
        let mut groups = Vec::with_capacity(shares.len());
        for columns in shares {
            let Some(first) = columns.first() else {
                return internal_err!("groups by no columns");
            };
            let rows = first.rows();
            if columns.iter().any(|column| column.rows() != rows) {
                return internal_err!("groups by columns of several tables");
            }
            groups.push(Self {
                device: first.device(),
                columns: Vec::with_capacity(columns.len()),
                numbers: 1,
                kept: None,
                rows,
                limit,
                timed,
            });
        }
        let mut numbers = 1_u128;
        for index in 0..shares.first().map_or(0, Vec::len) {
            let columns: Vec<_> = shares.iter().map(|columns| columns[index]).collect();
            let spec = KeySpec::try_new(columns[0].data_type())?;
            let format = columns[0].format(&spec);
            let range = range_of_all(&columns, format, limit, report)?;
            let has_null = columns.iter().any(|column| column.has_nulls());
            let values = range.map_or(Some(0), |(least, most)| (most - least).checked_add(1));
            let span = values.and_then(|values| values.checked_add(u128::from(has_null)));
            let product = span.and_then(|span| numbers.checked_mul(span.max(1)));
            let (Some(span), Some(product)) = (span, product.filter(|product| *product <= 1 << 64)) else {
                return Ok(None);
            };
            numbers = product;
            for (groups, column) in groups.iter_mut().zip(columns) {
                groups.columns.push(GroupColumn {
                    column,
                    spec: spec.clone(),
                    format,
                    least: range.map_or(0, |(least, _)| least),
                    span,
                    has_null,
                });
            }
        }
        groups.iter_mut().for_each(|groups| groups.numbers = numbers);
        Ok(Some(groups))
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

    /// The rows in the bitmap `mask`, or all rows, as records without keys.
    pub(super) fn rows_without_keys<'b>(&self, mask: Option<&'b DeviceBuffer>) -> RecordRows<'b> {
        RecordRows {
            keys: None,
            mask,
            most: self.rows,
            shape: self.shape(0),
        }
    }

    /// The least key of a column, of which each of `among` has the rows of one share, and the shape of records with its keys.
    pub(super) fn key_shape(
        &self,
        among: &[&Selection<'_>],
        report: &mut Report,
    ) -> Result<(KeyBits, RecordShape)> {
        let Some(first) = among.first() else {
            return internal_err!("keys of no column");
        };
        let columns: Vec<_> = among.iter().map(|among| among.column).collect();
        let range = range_of_all(&columns, first.format, self.limit, report)?;
        let (least, most) = range.unwrap_or((0, 0));
        Ok((least, self.shape(bits_of(most - least))))
    }

    fn shape(&self, key_bits: u32) -> RecordShape {
        RecordShape {
            key_bits,
            code_bits: bits_of(self.numbers - 1),
        }
    }

    /// The first and the last code of the groups that the device looks at.
    pub(super) fn codes_kept(&self) -> [u64; 2] {
        let kept = self.kept.as_ref();
        kept.map_or([0, u64::MAX], |kept| [*kept.start(), *kept.end()])
    }

    /// Whether a code takes 8 bytes.
    fn is_wide(&self) -> bool {
        self.numbers > 1 << 32
    }

    /// Bytes of a code: 4 or 8.
    fn code_bytes(&self) -> usize {
        if self.is_wide() { 8 } else { 4 }
    }

    fn argument(&self, column: ColumnArgument) -> GroupArgument {
        GroupArgument {
            wide: u32::from(self.is_wide()),
            ..GroupArgument::of(column)
        }
    }

    /// The address of a number for each row, and what makes the code of its group of it by addition. Where the numbers are not the values of
    /// the group column, they are written to device memory from the address `room` on.
    pub(super) fn codes(
        &self,
        room: u64,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<(u64, u32)> {
        if let Some(stored) = self.stored_codes() {
            return Ok(stored);
        }
        self.number_rows(room, timeline, report)?;
        Ok((room, 0))
    }

    /// As [`Self::codes`], where there is one group column of integers of 32 bits without NULLs.
    pub(super) fn stored_codes(&self) -> Option<(u64, u32)> {
        let [only] = self.columns.as_slice() else {
            return None;
        };
        // The key of a signed integer has the sign turned, which is the same as adding it.
        let turned = match (only.format.value_bytes(), only.format.encoding()) {
            (4, 0) => 0,
            (4, 1) => 1 << 31,
            _ => return None,
        };
        let offset = u32::wrapping_sub(turned, only.least as u32);
        (!only.has_null).then(|| (only.column.values_address(), offset))
    }

    /// Writes the code of each row's group to device memory, from the address `codes` on.
    fn number_rows(&self, codes: u64, timeline: &mut Timeline<'_>, report: &mut Report) -> Result<()> {
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

    /// Writes a record of each row that counts, behind those that are there already if [`Self::kept`] is set.
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
        report.bytes_read += self.rows * self.code_bytes() as u64;
        let argument = GroupArgument {
            bits: rows.shape.key_bits,
            codes_kept: self.codes_kept(),
            ..argument
        };
        let (program, argument) = match rows.keys {
            Some((among, least)) => {
                report.bytes_read += among.column.bytes() as u64;
                let masked = among.column.has_nulls() || rows.mask.is_some() || self.kept.is_some();
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
                let masked = rows.mask.is_some() || self.kept.is_some();
                (program(ColumnFormat::ALL[0], masked), argument)
            }
        };
        let name = match record_bytes {
            8 => "gr_records_64",
            _ => "gr_records_128",
        };
        timeline.launch(&launch(self.device, &program, name)?, &argument)
    }
}

/// A share of a table's rows: how they are grouped, and which of them count.
pub(super) type Share<'b> = (&'b Groups<'b>, &'b Selection<'b>);

/// The groups of the rows of these shares and their keys at the ranks that `table` gives, by a sort of all rows. Keys count from the least key of the
/// column.
pub(super) fn sorted(
    shares: &[Share<'_>],
    (least, shape): (KeyBits, RecordShape),
    report: &mut Report,
    table: impl FnOnce(&Segments) -> Result<RankTable>,
) -> Result<(Segments, PickedKeys)> {
    let rows = shares.iter().map(|(groups, among)| {
        let rows = RecordRows {
            keys: Some((among, least)),
            mask: among.mask.map(|(mask, _)| mask),
            most: among.population(),
            shape,
        };
        (*groups, rows)
    });
    let rows: Vec<_> = rows.collect();
    ordered(&rows, report, |segments| table(segments).map(Some))
}

/// Makes records of the rows of shares, sorts them, and returns the groups and the keys at the ranks of `table`, if there is one.
pub(super) fn ordered(
    shares: &[(&Groups<'_>, RecordRows<'_>)],
    report: &mut Report,
    table: impl FnOnce(&Segments) -> Result<Option<RankTable>>,
) -> Result<(Segments, PickedKeys)> {
    let Some((groups, RecordRows { shape, .. })) = shares.first() else {
        return internal_err!("groups of no rows");
    };
    let device = groups.device;
    let Some(record_bytes) = shape.bytes() else {
        return resources_err!(
            "groups and values on {device} span {} bits together: 128 are allowed",
            shape.key_bits + shape.code_bits
        );
    };
    let most = shares.iter().map(|(_, rows)| rows.most).sum::<u64>();
    if most == 0 {
        return Ok((Segments::default(), PickedKeys::default()));
    }
    let longest = shares.iter().map(|(groups, _)| groups.rows).max().unwrap_or(0);
    let mut layout = Places::default();
    // The codes of a share lie in the memory of the second buffer of records, which is used later.
    let each = record_bytes.max(groups.code_bytes() * longest.div_ceil(most) as usize);
    let room = SortMemory::take(&mut layout, most as usize, each);
    let cursor = layout.take(size_of::<u64>());
    let mut lease = WorkspaceLease::lock(device);
    let work = &mut lease.reserve(layout.end(), HOST_BYTES, groups.limit)?.device;
    work.zero(cursor..cursor + size_of::<u64>())?;
    let mut timeline = Timeline::start(device, groups.timed)?;
    let at = |place: usize| work.address() + place as u64;
    for (groups, rows) in shares.iter().filter(|(groups, _)| groups.rows > 0) {
        let (codes, code_offset) = groups.codes(at(room.records[1]), &mut timeline, report)?;
        let argument = GroupArgument {
            codes,
            code_offset,
            records: at(room.records[0]),
            cursor: at(cursor),
            room: most,
            ..groups.argument(ColumnArgument::rows(groups.rows, 0))
        };
        groups.make_records(*rows, argument, record_bytes, &mut timeline, report)?;
    }
    let count = work.number(cursor)?;
    if count > most {
        return internal_err!("{count} records on the device, {most} were announced");
    }
    let mut sort = RecordSort::try_new(work, room, *shape, count, groups.limit)?;
    sort.start(&mut timeline)?;
    let mut heads = sort.heads(&mut timeline)?;
    let starts = sort.starts(&heads, report)?;
    // The device sorts short groups while the host looks for their ranks.
    sort.start_in_groups(&mut heads, &mut timeline)?;
    let segments = sort.segments_from(starts, &heads, report)?;
    let table = table(&segments)?;
    sort.end_in_groups(&heads, &mut timeline)?;
    let keys = match table {
        Some(table) => sort.ranks(&heads, &table, &mut timeline, report)?,
        None => PickedKeys::default(),
    };
    timeline.end()?;
    device.synchronize("grouping on the device")?;
    timeline.report(report)?;
    Ok((segments, keys))
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

/// The least and the greatest key of a column, of which each of `columns` has the values of one share. Waits for the devices.
pub(super) fn range_of_all(
    columns: &[&DeviceColumn],
    format: ColumnFormat,
    limit: Option<u64>,
    report: &mut Report,
) -> Result<KeyRange> {
    let mut all = None;
    for column in columns {
        let range = key_range(column, format, limit, report)?;
        all = all
            .into_iter()
            .chain(range)
            .reduce(|a: (KeyBits, KeyBits), b| (a.0.min(b.0), a.1.max(b.1)));
    }
    Ok(all)
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
