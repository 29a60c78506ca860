//! Records in the order of groups, and the keys at ranks of groups: the launches of `kernels/sort_groups.cu`.
//!
//! Where groups are short, records are sorted by the codes of groups alone, and then each group by a warp, in registers. That takes one
//! read and one write of the records in place of a pass of the radix sort for each digit of the keys. If one of the groups turns out to be
//! long, all records are sorted by all their bits: the passes by codes were in vain then, less than half of all.

use datafusion::common::Result;

use super::buffer::DeviceBuffer;
use super::group_ranks::RankTable;
use super::launch::{Kernels, Launch, kernel_argument};
use super::picked_keys::PickedKeys;
use super::report::Report;
use super::sort::{Heads, RecordShape, RecordSort};
use super::source::{ColumnFormat, KernelFile, Program};
use super::timeline::Timeline;

/// Threads of a block of `sg_sort`, which sorts with each warp one group at a time.
const SORT_THREADS: u32 = 256;
/// Threads of a block of `sg_ranks`.
const RANKS_THREADS: u32 = 1024;
/// Blocks for each multiprocessor.
const BLOCKS: u32 = 16;
/// Most records of a group that a warp sorts: `MOST_ROWS` of the kernels.
const MOST_ROWS: usize = 1024;
/// Most records of a group on average, so that hardly any has more than [`MOST_ROWS`].
const MEAN_ROWS: u64 = 700;
/// Passes of the radix sort that the sort of groups takes as long as.
const PASSES: usize = 1;

kernel_argument! {
    /// `struct SortedGroups` of `kernels/sort_groups.cu`.
    struct SortedGroupsArgument = sg_sizes[0] {
        records: u64,
        count: u64,
        starts: u64,
        groups: u64,
        longer: u64,
        lengths: u64,
        ranks: u64,
        distinct: u64,
        keys: u64,
        each: u32,
        bits: u32,
    }
}

impl RecordShape {
    /// Bytes that hold a key: 4, 8 or 16.
    fn key_bytes(self) -> usize {
        match self.key_bits {
            0..=32 => 4,
            33..=64 => 8,
            _ => 16,
        }
    }

    /// The compilation for groups of such records of `record_bytes` bytes.
    fn program(self, record_bytes: usize) -> Program {
        Program {
            batch: self.key_bytes() as u32,
            ..Program::of(KernelFile::SortGroups, ColumnFormat::unsigned(record_bytes))
        }
    }

    /// Whether `count` records are sorted by groups first, as that saves passes and groups are short on average.
    fn has_short_groups(self, count: u64) -> bool {
        self.key_bytes() <= 8
            && self.passes(self.key_bits) + PASSES < self.passes(0)
            && count >> self.code_bits.min(63) <= MEAN_ROWS
    }
}

/// The compilations for groups of records of 8 bytes, whose keys have up to 32 and up to 64 bits.
pub(super) fn programs() -> [Program; 2] {
    [32, 64].map(|key_bits| {
        RecordShape {
            key_bits,
            code_bits: 0,
        }
        .program(8)
    })
}

impl RecordSort<'_> {
    /// Sorts all records by all their bits, and finds their groups. Waits for the device.
    pub(super) fn sort_groups(&mut self, timeline: &mut Timeline<'_>) -> Result<Heads> {
        self.start(timeline)?;
        self.finish(timeline)
    }

    /// Starts what [`Self::sort_groups`] does, which [`Self::finish`] ends.
    pub(super) fn start(&mut self, timeline: &mut Timeline<'_>) -> Result<()> {
        let first = match self.shape().has_short_groups(self.count()) {
            true => self.shape().key_bits,
            false => 0,
        };
        self.sort(first, timeline)
    }

    /// Ends what [`Self::start`] started. Waits for the device.
    pub(super) fn finish(&mut self, timeline: &mut Timeline<'_>) -> Result<Heads> {
        let mut heads = self.heads(timeline)?;
        self.start_in_groups(&mut heads, timeline)?;
        self.end_in_groups(&heads, timeline)?;
        Ok(heads)
    }

    /// Starts the sort of records inside their groups, if [`Self::start`] sorted by groups alone.
    pub(super) fn start_in_groups(&mut self, heads: &mut Heads, timeline: &mut Timeline<'_>) -> Result<()> {
        if !self.shape().has_short_groups(self.count()) {
            return Ok(());
        }
        if self.count() / heads.groups.max(1) as u64 > MEAN_ROWS {
            // Few of the numbers that groups can have occur.
            return self.sort(0, timeline);
        }
        heads.zero_longer()?;
        let blocks = heads.groups.div_ceil(SORT_THREADS as usize / 32).max(1) as u32;
        let launch = self.launch_of_groups("sg_sort", [blocks, SORT_THREADS])?;
        timeline.launch(&launch, &self.groups_argument(heads))
    }

    /// Ends what [`Self::start_in_groups`] started. Waits for the device if groups were sorted by warps.
    pub(super) fn end_in_groups(&mut self, heads: &Heads, timeline: &mut Timeline<'_>) -> Result<()> {
        if heads.longer()? > 0 {
            self.sort(0, timeline)?;
        }
        Ok(())
    }

    /// The keys at the ranks of each group of sorted records, [`RankTable::each`] for each group. Waits for the device.
    pub(super) fn ranks(
        &self,
        heads: &Heads,
        table: &RankTable,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<PickedKeys> {
        let (device, limit, width) = (self.device(), self.limit(), self.shape().key_bytes());
        let count = heads.groups * table.each;
        if count == 0 {
            return Ok(PickedKeys::default());
        }
        let lengths = DeviceBuffer::from_numbers(device, &table.lengths, limit, report)?;
        let ranks = DeviceBuffer::from_numbers(device, &table.ranks, limit, report)?;
        let keys = device.allocate(count * width, limit)?;
        let argument = SortedGroupsArgument {
            lengths: lengths.address(),
            ranks: ranks.address(),
            distinct: table.lengths.len() as u64,
            keys: keys.address(),
            each: table.each as u32,
            ..self.groups_argument(heads)
        };
        let blocks = count.div_ceil(RANKS_THREADS as usize) as u32;
        timeline.launch(
            &self.launch_of_groups("sg_ranks", [blocks, RANKS_THREADS])?,
            &argument,
        )?;
        report.bytes_from_device += keys.len() as u64;
        Ok(PickedKeys::new(
            keys.to_host(0..keys.len())?,
            width,
            self.shape().key_bits,
        ))
    }

    fn groups_argument(&self, heads: &Heads) -> SortedGroupsArgument {
        SortedGroupsArgument {
            records: self.records(),
            count: self.count(),
            starts: heads.starts(),
            groups: heads.groups as u64,
            longer: heads.longer_address(),
            bits: self.shape().key_bits,
            ..SortedGroupsArgument::default()
        }
    }

    /// The kernel of this name, in at most `blocks` blocks.
    fn launch_of_groups(&self, name: &'static str, [blocks, threads]: [u32; 2]) -> Result<Launch> {
        let (device, bytes) = (self.device(), self.record_bytes());
        let expected = [0, bytes, self.shape().key_bytes(), MOST_ROWS];
        let kernels = Kernels::load(device, &self.shape().program(bytes), expected)?;
        kernels.launch(name, [blocks.min(BLOCKS * device.multiprocessors()), threads], 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_groups_are_sorted_by_warps_where_that_saves_passes() {
        let shape = |key_bits, code_bits| RecordShape { key_bits, code_bits };
        // A million groups of Float32, and of Float64.
        assert!(shape(32, 20).has_short_groups(1 << 28));
        assert!(shape(64, 20).has_short_groups(1 << 28));
        // Long groups; keys of one digit; keys that no register holds.
        assert!(!shape(32, 10).has_short_groups(1 << 28));
        assert!(!shape(8, 20).has_short_groups(1 << 28));
        assert!(!shape(100, 20).has_short_groups(1 << 28));
        assert_eq!(
            [0, 32, 33, 64, 65].map(|bits| shape(bits, 1).key_bytes()),
            [4, 4, 8, 8, 16]
        );
    }
}
