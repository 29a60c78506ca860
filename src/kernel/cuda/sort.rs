//! The sort of records of 64 or 128 bits, and the search for the first record of each group: the launches of `kernels/sort.cu`.
//!
//! It is a radix sort by digits of 8 bits, the lowest first (Knuth, volume 3, 5.2.5), over the bits that records use. Its time depends
//! only on their number and width, not on the lengths of groups or on the keys. Cost: a read of all records, and a read and a write for each digit.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::{Result, internal_err};

use super::buffer::DeviceBuffer;
use super::device::Device;
use super::launch::{Kernels, kernel_argument};
use super::picked_keys::PickedKeys;
use super::report::Report;
use super::source::{ColumnFormat, KernelFile, Program};
use super::timeline::Timeline;
use super::workspace::Places;

/// Threads of a block.
const THREADS: u32 = 512;
/// Threads of a block of `so_scan`.
const SCAN_THREADS: u32 = 1024;
/// Values of a digit.
const DIGITS: usize = 256;
/// Most bits of a digit.
const DIGIT_BITS: u32 = 8;
/// Most digits of a record: `MOST_DIGITS` of the kernels.
const MOST_DIGITS: usize = 16;
/// Blocks for each multiprocessor, where blocks have shares.
const BLOCKS: u64 = 6;
/// Blocks of `so_scatter` for each multiprocessor, which take one tile after the other.
const SCATTER_BLOCKS: u64 = 2;
/// Bytes of the records of a tile that one thread of `so_scatter` holds.
const THREAD_BYTES: usize = 80;
/// Numbers that [`Heads`] have behind the starts and the codes of groups.
const TOTALS: usize = 3;
/// Least number of records for each code that groups can have, so that a search for each takes less time than two reads of all records.
const SEARCHED: u64 = 32;

kernel_argument! {
    /// `struct Sort` of `kernels/sort.cu`.
    struct SortArgument = so_sizes[0] {
        from: u64,
        to: u64,
        count: u64,
        tiles: u64,
        states: u64,
        totals: u64,
        starts: u64,
        codes: u64,
        places: u64,
        picked: u64,
        picks: u64,
        most_groups: u64,
        ends: [u32; MOST_DIGITS + 1],
        digits: u32,
        digit: u32,
        blocks: u32,
        bits: u32,
    }
}

/// The groups of sorted records.
#[derive(Debug, Clone, Default)]
pub struct Segments {
    /// Codes of the groups, ascending.
    pub codes: Vec<u64>,
    /// Index of the first record of each group, one for each code.
    pub starts: Vec<u64>,
    /// Number of records of all groups together.
    pub records: u64,
}

impl Segments {
    /// Number of records of the group at this index.
    pub fn length(&self, index: usize) -> u64 {
        let end = self.starts.get(index + 1).copied().unwrap_or(self.records);
        end - self.starts.get(index).copied().unwrap_or(end)
    }

    /// These groups, and behind them others, whose codes are greater.
    pub(super) fn and(mut self, others: Self) -> Self {
        let records = self.records;
        self.codes.extend(others.codes);
        self.starts
            .extend(others.starts.iter().map(|start| records + start));
        self.records += others.records;
        self
    }

    /// Number of records of each group.
    pub(super) fn lengths(&self) -> impl Iterator<Item = u64> {
        let last = self.starts.last().map(|start| self.records - start);
        let others = self.starts.windows(2).map(|ends| ends[1] - ends[0]);
        others.chain(last)
    }
}

/// Where the groups of sorted records begin, on the device.
#[derive(Debug)]
pub(super) struct Heads {
    /// Number of groups.
    pub(super) groups: usize,
    /// The code of the first group, if those of the others follow on it without a gap.
    first_code: Option<u64>,
    /// Whether [`Self::longer_address`] has a number.
    has_longer: bool,
    /// The index of the first record of each group, the code of each group, and [`TOTALS`] numbers more.
    found: DeviceBuffer,
}

impl Heads {
    /// Address of the index of the first record of each group.
    pub(super) fn starts(&self) -> u64 {
        self.found.address()
    }

    /// Address of the codes of the groups.
    pub(super) fn codes(&self) -> u64 {
        self.starts() + self.bytes() as u64
    }

    /// Address of the number of groups that [`RecordSort::sort_groups`] found too long.
    pub(super) fn longer_address(&self) -> u64 {
        self.codes() + self.bytes() as u64
    }

    /// Bytes of a number for each group.
    fn bytes(&self) -> usize {
        self.groups * size_of::<u64>()
    }

    /// Zeroes the last numbers, and returns the range of their bytes.
    fn zero_totals(&mut self) -> Result<Range<usize>> {
        let end = self.found.len();
        let totals = end - TOTALS * size_of::<u64>()..end;
        self.found.zero(totals.clone())?;
        Ok(totals)
    }

    pub(super) fn zero_longer(&mut self) -> Result<()> {
        let at = 2 * self.bytes();
        self.has_longer = true;
        self.found.zero(at..at + size_of::<u64>())
    }

    /// The number at [`Self::longer_address`], or 0 if there is none. Waits for the device.
    pub(super) fn longer(&self) -> Result<u64> {
        match self.has_longer {
            true => self.found.number(2 * self.bytes()),
            false => Ok(0),
        }
    }
}

/// The widths of the two fields of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordShape {
    /// Bits of the key, which lies below the code of the group.
    pub(super) key_bits: u32,
    /// Bits of the code of the group.
    pub(super) code_bits: u32,
}

impl RecordShape {
    /// Bytes of a record, 8 or 16. `None` if the fields need more than 128 bits.
    pub(super) fn bytes(self) -> Option<usize> {
        match self.key_bits + self.code_bits {
            0..=64 => Some(8),
            65..=128 => Some(16),
            _ => None,
        }
    }

    /// Passes of a sort by all bits from bit `first` on.
    pub(super) fn passes(self, first: u32) -> usize {
        (self.key_bits + self.code_bits - first).div_ceil(DIGIT_BITS) as usize
    }

    /// The first bit of each digit of a sort by all bits from bit `first` on, and behind them the end of the last digit. Widths differ by at most
    /// one bit.
    fn ends(self, first: u32) -> [u32; MOST_DIGITS + 1] {
        let (bits, digits) = (self.key_bits + self.code_bits - first, self.passes(first) as u32);
        let mut ends = [0; MOST_DIGITS + 1];
        for (end, digit) in ends.iter_mut().zip(0..=digits) {
            *end = first + digit * bits / digits.max(1);
        }
        ends
    }
}

/// Places of a sort in the workspace, in bytes: two buffers of records, and what is known of tiles and of digits.
#[derive(Debug, Clone, Copy)]
pub(super) struct SortMemory {
    pub(super) records: [usize; 2],
    states: usize,
    totals: usize,
}

impl SortMemory {
    /// Room for `count` records of up to `bytes` bytes.
    pub(super) fn take(places: &mut Places, count: usize, bytes: usize) -> Self {
        // `bytes` can be more than a record has, where the buffers hold something else first.
        let tiles = count.div_ceil(tile(bytes.min(size_of::<u128>()))).max(1);
        Self {
            records: [places.take(count * bytes), places.take(count * bytes)],
            states: places.take(tiles * DIGITS * size_of::<u64>()),
            totals: places.take(MOST_DIGITS * (DIGITS + 1) * size_of::<u64>()),
        }
    }
}

/// Records of a tile of records of `bytes` bytes: `SORT_TILE` of the kernels.
fn tile(bytes: usize) -> usize {
    THREADS as usize * (THREAD_BYTES / bytes)
}

/// A sort of records. Records and counters lie in the workspace, at the places that [`SortMemory`] took.
pub(super) struct RecordSort<'a> {
    device: &'a Arc<Device>,
    kernels: Kernels,
    work: &'a DeviceBuffer,
    room: SortMemory,
    shape: RecordShape,
    record_bytes: usize,
    shared: usize,
    argument: SortArgument,
    limit: Option<u64>,
}

impl<'a> RecordSort<'a> {
    /// A sort of `count` records in the first buffer of `room`, which lies in the workspace `work`.
    pub(super) fn try_new(
        work: &'a DeviceBuffer,
        room: SortMemory,
        shape: RecordShape,
        count: u64,
        limit: Option<u64>,
    ) -> Result<Self> {
        let (device, Some(record_bytes)) = (work.device(), shape.bytes()) else {
            return internal_err!("records of {shape:?}");
        };
        let program = Program::of(KernelFile::Sort, ColumnFormat::unsigned(record_bytes));
        let tile = tile(record_bytes);
        let kernels = Kernels::load(device, &program, [0, record_bytes, tile, 0])?;
        // The bytes of shared memory for a tile.
        let shared = kernels.size(3);
        let tiles = count.div_ceil(tile as u64);
        let blocks = tiles.clamp(1, BLOCKS * u64::from(device.multiprocessors()));
        let at = |place: usize| work.address() + place as u64;
        Ok(Self {
            device,
            kernels,
            work,
            room,
            shape,
            record_bytes,
            shared,
            argument: SortArgument {
                from: at(room.records[0]),
                to: at(room.records[1]),
                count,
                tiles: tiles.div_ceil(blocks),
                states: at(room.states),
                totals: at(room.totals),
                blocks: blocks as u32,
                bits: shape.key_bits,
                ..SortArgument::default()
            },
            limit,
        })
    }

    fn launch(
        &self,
        name: &'static str,
        grid: [u32; 2],
        shared: usize,
        timeline: &mut Timeline<'_>,
    ) -> Result<()> {
        timeline.launch(&self.kernels.launch(name, grid, shared)?, &self.argument)
    }

    /// Sorts all records by their bits from bit `first` on. The sort is stable.
    pub(super) fn sort(&mut self, first: u32, timeline: &mut Timeline<'_>) -> Result<()> {
        if self.argument.count == 0 {
            return Ok(());
        }
        let digits = self.shape.passes(first) as u32;
        (self.argument.ends, self.argument.digits) = (self.shape.ends(first), digits);
        let grid = [self.argument.blocks, THREADS];
        self.launch("so_clear", grid, 0, timeline)?;
        self.launch("so_count", grid, 0, timeline)?;
        let most = (SCATTER_BLOCKS * u64::from(self.device.multiprocessors())) as u32;
        for digit in 0..digits {
            self.argument.digit = digit;
            let grid = [self.argument.blocks.min(most), THREADS];
            self.launch("so_scatter", grid, self.shared, timeline)?;
            std::mem::swap(&mut self.argument.from, &mut self.argument.to);
        }
        Ok(())
    }

    /// Address of the records on the device.
    pub(super) fn records(&self) -> u64 {
        self.argument.from
    }

    /// Address of the other buffer, which is free and has room for as many records.
    pub(super) fn room(&self) -> u64 {
        self.argument.to
    }

    /// The shape of the records.
    pub(super) fn shape(&self) -> RecordShape {
        self.shape
    }

    /// Bytes of a record.
    pub(super) fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Number of records.
    pub(super) fn count(&self) -> u64 {
        self.argument.count
    }

    /// The device that the records are on.
    pub(super) fn device(&self) -> &'a Arc<Device> {
        self.device
    }

    /// Most bytes of device memory that this crate may hold.
    pub(super) fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// The groups of sorted records. Waits for the device.
    pub(super) fn heads(&mut self, timeline: &mut Timeline<'_>) -> Result<Heads> {
        match self.searched_heads(timeline)? {
            Some(heads) => Ok(heads),
            None => self.read_heads(timeline),
        }
    }

    /// The groups of sorted records by a search for each code. `None` where there are many codes, or one of those between the first and the
    /// last record's does not occur.
    fn searched_heads(&mut self, timeline: &mut Timeline<'_>) -> Result<Option<Heads>> {
        let room = 1_u64.checked_shl(self.shape.code_bits).unwrap_or(u64::MAX);
        if self.argument.count / SEARCHED < room {
            return Ok(None);
        }
        let mut heads = self.new_heads(room as usize)?;
        let totals = heads.zero_totals()?;
        let argument = SortArgument {
            starts: heads.starts(),
            totals: heads.starts() + totals.start as u64,
            most_groups: room,
            ..self.argument
        };
        let blocks = room.div_ceil(THREADS.into()).min(self.argument.blocks.into());
        let launch = self.kernels.launch("so_search", [blocks as u32, THREADS], 0)?;
        timeline.launch(&launch, &argument)?;
        let found: Vec<u64> = heads.found.to_numbers(totals)?;
        let [groups, codes, first] = found[..] else {
            return internal_err!("{} numbers of a search for groups", found.len());
        };
        (heads.groups, heads.first_code) = (groups as usize, Some(first));
        Ok((groups == codes).then_some(heads))
    }

    /// Room for groups.
    fn new_heads(&self, groups: usize) -> Result<Heads> {
        let bytes = (2 * groups + TOTALS) * size_of::<u64>();
        Ok(Heads {
            groups,
            first_code: None,
            has_longer: false,
            found: self.device.allocate(bytes, self.limit)?,
        })
    }

    /// The groups of sorted records by two reads of all records. Waits for the device.
    fn read_heads(&mut self, timeline: &mut Timeline<'_>) -> Result<Heads> {
        let grid = [self.argument.blocks, THREADS];
        let mut groups = 0;
        if self.argument.count > 0 {
            self.launch("so_tally", grid, 0, timeline)?;
            self.launch("so_scan", [1, SCAN_THREADS], 0, timeline)?;
            groups = self.work.number(self.room.totals)? as usize;
        }
        let heads = self.new_heads(groups)?;
        if groups > 0 {
            self.argument.starts = heads.starts();
            self.argument.codes = heads.codes();
            self.launch("so_heads", grid, 0, timeline)?;
        }
        Ok(heads)
    }

    /// The groups of sorted records, on the host. Waits for the device.
    pub(super) fn segments(&self, heads: &Heads, report: &mut Report) -> Result<Segments> {
        let starts = self.starts(heads, report)?;
        self.segments_from(starts, heads, report)
    }

    /// The index of the first record of each group, on the host. Waits for the device.
    pub(super) fn starts(&self, heads: &Heads, report: &mut Report) -> Result<Vec<u64>> {
        report.bytes_from_device += heads.bytes() as u64;
        heads.found.to_numbers(0..heads.bytes())
    }

    /// The groups of sorted records, of which the host has [`Self::starts`] already. Waits for the device if it does not know their codes.
    pub(super) fn segments_from(
        &self,
        starts: Vec<u64>,
        heads: &Heads,
        report: &mut Report,
    ) -> Result<Segments> {
        let bytes = heads.bytes();
        let codes = match heads.first_code {
            Some(first) => (first..).take(heads.groups).collect(),
            None => {
                report.bytes_from_device += bytes as u64;
                heads.found.to_numbers(bytes..2 * bytes)?
            }
        };
        Ok(Segments {
            codes,
            starts,
            records: self.argument.count,
        })
    }

    /// The keys of the records at these places, which count from 0. Waits for the device.
    pub(super) fn pick(
        &self,
        places: &[u64],
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<PickedKeys> {
        let keys = |records| PickedKeys::new(records, self.record_bytes, self.shape.key_bits);
        if places.is_empty() {
            return Ok(keys(Vec::new()));
        }
        if places.iter().any(|place| *place >= self.argument.count) {
            return internal_err!("a record beyond {} on the device", self.argument.count);
        }
        let sent = DeviceBuffer::from_numbers(self.device, places, self.limit, report)?;
        let picked = self
            .device
            .allocate(places.len() * self.record_bytes, self.limit)?;
        let argument = SortArgument {
            places: sent.address(),
            picked: picked.address(),
            picks: places.len() as u64,
            ..self.argument
        };
        let blocks = places.len().div_ceil(THREADS as usize) as u32;
        let most = 4 * self.device.multiprocessors();
        let launch = self.kernels.launch("so_pick", [blocks.min(most), THREADS], 0)?;
        timeline.launch(&launch, &argument)?;
        report.bytes_from_device += picked.len() as u64;
        Ok(keys(picked.to_host(0..picked.len())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_cover_every_bit_once() {
        for key_bits in 0..=128 {
            for code_bits in 0..=128 - key_bits {
                let shape = RecordShape { key_bits, code_bits };
                for first in [0, key_bits] {
                    let (ends, digits) = (shape.ends(first), shape.passes(first));
                    assert_eq!((ends[0], ends[digits]), (first, key_bits + code_bits));
                    for pair in ends[..=digits].windows(2) {
                        let bits = pair[1] - pair[0];
                        assert!((1..=DIGIT_BITS).contains(&bits), "{shape:?}: {bits}");
                    }
                }
                let bits = key_bits + code_bits;
                assert_eq!(shape.bytes(), Some(if bits <= 64 { 8 } else { 16 }));
            }
        }
        let beyond = RecordShape {
            key_bits: 100,
            code_bits: 29,
        };
        assert_eq!(beyond.bytes(), None);
    }

    #[test]
    fn lengths_of_segments() {
        let segments = Segments {
            codes: vec![3, 7, 9],
            starts: vec![0, 5, 6],
            records: 10,
        };
        let lengths: Vec<_> = (0..3).map(|index| segments.length(index)).collect();
        assert_eq!(lengths, [5, 1, 4]);
        assert_eq!(segments.lengths().collect::<Vec<_>>(), lengths);
        let twice = segments.clone().and(Segments {
            codes: vec![20, 21],
            starts: vec![0, 2],
            records: 3,
        });
        assert_eq!(twice.lengths().collect::<Vec<_>>(), [5, 1, 4, 2, 1]);
        assert_eq!((twice.codes, twice.records), (vec![3, 7, 9, 20, 21], 13));
        assert_eq!(Segments::default().lengths().count(), 0);
    }
}
