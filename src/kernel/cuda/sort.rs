//! The sort of records of 64 or 128 bits, and the search for the first record of each group: the launches of `kernels/sort.cu`.
//!
//! It is a radix sort by digits of 8 bits, the lowest first (Knuth, volume 3, 5.2.5), over the bits that records use. Its time depends
//! only on their number and width, not on the lengths of groups or on the keys. Cost: two reads and one write for each digit.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};

use super::buffer::DeviceBuffer;
use super::device::Device;
use super::launch::{Kernels, kernel_argument, key_of};
use super::report::Report;
use super::source::{ColumnFormat, KernelFile, Program};
use super::timeline::Timeline;
use super::workspace::Places;
use crate::key::KeyBits;

/// Threads of a block.
const THREADS: u32 = 512;
/// Threads of a block of `so_scan`.
const SCAN_THREADS: u32 = 1024;
/// Values of a digit.
const DIGITS: usize = 256;
/// Most bits of a digit.
const DIGIT_BITS: u32 = 8;
/// Blocks for each multiprocessor.
const BLOCKS: u64 = 6;
/// Number of groups from which on a copy of their codes is worth avoiding.
const MANY_GROUPS: usize = 1 << 14;

kernel_argument! {
    /// `struct Sort` of `kernels/sort.cu`.
    struct SortArgument = so_sizes[0] {
        from: u64,
        to: u64,
        count: u64,
        tiles: u64,
        counters: u64,
        totals: u64,
        starts: u64,
        codes: u64,
        places: u64,
        picked: u64,
        picks: u64,
        shift: u32,
        digit_bits: u32,
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

/// Keys of some records, as they were copied from the device.
#[derive(Debug, Default)]
pub struct PickedKeys {
    records: Vec<u8>,
    /// Bytes of a record.
    width: usize,
    /// The bits of a record that are the key.
    mask: KeyBits,
    /// The key that the keys in records count from.
    pub(super) least: KeyBits,
}

impl PickedKeys {
    /// The keys in these bytes, `width` for each key or record of this shape.
    pub(super) fn new(records: Vec<u8>, width: usize, shape: RecordShape) -> Self {
        let mask = match shape.key_bits {
            0 => 0,
            bits => KeyBits::MAX >> (KeyBits::BITS - bits),
        };
        Self {
            records,
            width,
            mask,
            least: 0,
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.records.len().checked_div(self.width).unwrap_or(0)
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// These keys with others between them: for each of `known` that key, which counts from [`Self::least`], or the next of these.
    pub(super) fn with(self, known: impl Iterator<Item = Option<KeyBits>>) -> Self {
        let mut own = self.records.chunks_exact(self.width.max(1));
        let mut records = Vec::with_capacity(self.records.len());
        for key in known {
            match key {
                Some(key) => records.extend_from_slice(&key.to_le_bytes()[..self.width]),
                None => records.extend_from_slice(own.next().unwrap_or_default()),
            }
        }
        Self { records, ..self }
    }

    /// These keys, and behind them others of the same column.
    pub(super) fn and(mut self, mut others: Self) -> Self {
        if self.is_empty() {
            return others;
        }
        if self.width != others.width && !others.is_empty() {
            (self, others) = (self.widened(), others.widened());
        }
        self.records.append(&mut others.records);
        self
    }

    /// These keys, each with as many bytes as [`KeyBits`] has.
    fn widened(self) -> Self {
        let keys = self.records.chunks_exact(self.width.max(1)).map(key_of);
        Self {
            records: keys.flat_map(KeyBits::to_le_bytes).collect(),
            width: size_of::<KeyBits>(),
            ..self
        }
    }

    /// The key at `index`, or `None` beyond the last.
    pub fn get(&self, index: usize) -> Option<KeyBits> {
        let from = index.checked_mul(self.width)?;
        let record = self.records.get(from..from + self.width)?;
        Some((key_of(record) & self.mask) + self.least)
    }
}

/// Where the groups of sorted records begin, on the device.
#[derive(Debug)]
pub(super) struct Heads {
    /// Number of groups.
    pub(super) groups: usize,
    /// The index of the first record of each group, the code of each group, and one number more.
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

    /// Whether there are many groups, and their codes are 0, 1, 2 and so on. Waits for the device.
    fn has_all_codes(&self) -> Result<bool> {
        // A copy of few codes takes no longer than one of the last code.
        if self.groups < MANY_GROUPS {
            return Ok(false);
        }
        let last = self.found.number(2 * self.bytes() - size_of::<u64>())?;
        Ok(last == self.groups as u64 - 1)
    }

    pub(super) fn zero_longer(&mut self) -> Result<()> {
        let at = 2 * self.bytes();
        self.found.zero(at..at + size_of::<u64>())
    }

    /// The number at [`Self::longer_address`]. Waits for the device.
    pub(super) fn longer(&self) -> Result<u64> {
        self.found.number(2 * self.bytes())
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
        self.digits(first).len()
    }

    /// Shift and width of each digit of a sort by all bits from bit `first` on. Widths differ by at most one bit.
    fn digits(self, first: u32) -> Vec<(u32, u32)> {
        let bits = self.key_bits + self.code_bits - first;
        let digits = bits.div_ceil(DIGIT_BITS);
        let end = |digit| first + digit * bits / digits;
        (0..digits)
            .map(|digit| (end(digit), end(digit + 1) - end(digit)))
            .collect()
    }
}

/// Places of a sort in the workspace, in bytes: two buffers of records, and counters.
#[derive(Debug, Clone, Copy)]
pub(super) struct SortMemory {
    pub(super) records: [usize; 2],
    counters: usize,
    totals: usize,
}

impl SortMemory {
    /// Room for `count` records of `bytes` bytes on `device`.
    pub(super) fn take(places: &mut Places, device: &Device, count: usize, bytes: usize) -> Self {
        let blocks = BLOCKS as usize * device.multiprocessors() as usize;
        Self {
            records: [places.take(count * bytes), places.take(count * bytes)],
            counters: places.take(DIGITS * blocks * size_of::<u64>()),
            totals: places.take(DIGITS * size_of::<u64>()),
        }
    }
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
        let kernels = Kernels::load(device, &program, [0, record_bytes, 0, 0])?;
        // The records of a tile, and the bytes of shared memory for it.
        let (tile, shared) = (kernels.size(2), kernels.size(3));
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
                counters: at(room.counters),
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
        for (shift, digit_bits) in self.shape.digits(first) {
            (self.argument.shift, self.argument.digit_bits) = (shift, digit_bits);
            let grid = [self.argument.blocks, THREADS];
            self.launch("so_count", grid, 0, timeline)?;
            self.launch("so_scan", [DIGITS as u32, SCAN_THREADS], 0, timeline)?;
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
        let grid = [self.argument.blocks, THREADS];
        let mut groups = 0;
        if self.argument.count > 0 {
            self.launch("so_tally", grid, 0, timeline)?;
            self.launch("so_scan", [1, SCAN_THREADS], 0, timeline)?;
            groups = self.work.number(self.room.totals)? as usize;
        }
        let found = self
            .device
            .allocate((2 * groups + 1) * size_of::<u64>(), self.limit)?;
        let heads = Heads { groups, found };
        if groups > 0 {
            self.argument.starts = heads.starts();
            self.argument.codes = heads.codes();
            self.launch("so_heads", grid, 0, timeline)?;
        }
        Ok(heads)
    }

    /// The groups of sorted records, on the host. Waits for the device.
    pub(super) fn segments(&self, heads: &Heads, report: &mut Report) -> Result<Segments> {
        let bytes = heads.bytes();
        let codes = match heads.has_all_codes()? {
            true => (0..heads.groups as u64).collect(),
            false => {
                report.bytes_from_device += bytes as u64;
                heads.found.to_numbers(bytes..2 * bytes)?
            }
        };
        report.bytes_from_device += bytes as u64;
        Ok(Segments {
            codes,
            starts: heads.found.to_numbers(0..bytes)?,
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
        let keys = |records| PickedKeys::new(records, self.record_bytes, self.shape);
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
                    let mut next = first;
                    for (shift, bits) in shape.digits(first) {
                        assert_eq!(shift, next);
                        assert!((1..=DIGIT_BITS).contains(&bits), "{shape:?}: {bits}");
                        next += bits;
                    }
                    assert_eq!(next, key_bits + code_bits);
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
    fn keys_of_records() {
        let keys = PickedKeys {
            records: [0x0102_u64, 0xff03]
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect(),
            width: 8,
            mask: 0xff,
            least: 1000,
        };
        assert_eq!((keys.len(), keys.is_empty()), (2, false));
        assert_eq!(
            [0, 1, 2].map(|index| keys.get(index)),
            [Some(1002), Some(1003), None]
        );
        let joined = keys.with([None, Some(0x77), None].into_iter());
        assert_eq!(
            [0, 1, 2, 3].map(|index| joined.get(index)),
            [Some(1002), Some(1000 + 0x77), Some(1003), None]
        );
        let narrow = || PickedKeys {
            records: vec![7, 9],
            width: 1,
            mask: 0xff,
            least: 1000,
        };
        let all = narrow().and(narrow()).and(joined).and(PickedKeys::default());
        let found: Vec<_> = (0..8).map(|index| all.get(index)).collect();
        let expected = [1007, 1009, 1007, 1009, 1002, 1000 + 0x77, 1003].map(Some);
        assert_eq!(found, [expected.as_slice(), &[None]].concat());
        let none = PickedKeys::default();
        assert_eq!((none.len(), none.is_empty()), (0, true));
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
