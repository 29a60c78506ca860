//! Brackets of the wanted ranks of every group: the launches of `kernels/group_brackets.cu`.
//!
//! A sample of one row from each stripe of rows is sorted by group and key. Its ranks give, for each group and each wanted rank, a
//! *bracket*: a range of keys that holds the rank with near certainty. One read of all rows counts, for each group, what lies between
//! brackets, and keeps the few rows inside, which alone are sorted. The counts prove where each rank is; if one of them is outside of
//! its bracket, all rows are sorted instead (see [`group`](super::group)). For the best rows of groups the one bracket of a group
//! reaches from a floor to the best key, and the counts prove that enough rows reach the floor.
//!
//! It is the selection of `kernels/sample_select.cu` for many groups at once. Cost: one read of the group and key columns, the sort of
//! the sample, and the sort of the rows inside brackets. [`BracketPlan`] weighs these against a sort of all rows.

use datafusion::common::{Result, internal_err};

use super::bracket_plan::{BracketPlan, MOST_BRACKETS};
use super::buffer::DeviceBuffer;
use super::group::{Groups, HOST_BYTES, Share};
use super::group_ranks::{GroupRanks, RankTable};
use super::launch::{ColumnArgument, Kernels, halves, kernel_argument, key_of};
use super::picked_keys::PickedKeys;
use super::report::Report;
use super::runs::Candidates;
use super::sort::{RecordShape, RecordSort, Segments, SortMemory};
use super::source::{ColumnFormat, KernelFile, Program};
use super::timeline::Timeline;
use super::workspace::{Places, WorkspaceLease};
use crate::key::KeyBits;

/// Threads of a block.
const THREADS: u32 = 1024;
/// Most codes of groups, as each has a place in the tables of brackets and counters.
const MOST_NUMBERS: u128 = 1 << 21;
/// Least number of rows; the sort of fewer takes less time than the launches of a sample.
const LEAST_ROWS: u64 = 1 << 20;
/// Bytes of shared memory that kernels use beside brackets and counters, at most.
const STATIC_SHARED: usize = 1024;
/// Rows that there is room for beyond the expected ones, because some tie.
const TIES: f64 = 1e6;

kernel_argument! {
    /// `struct Brackets` of `kernels/group_brackets.cu`.
    struct BracketsArgument = gb_sizes[0] {
        column: ColumnArgument,
        codes: u64,
        table: u64,
        counts: u64,
        out: u64,
        cursor: u64,
        room: u64,
        sample: u64,
        heads: u64,
        head_codes: u64,
        sampled: u64,
        sampled_groups: u64,
        least: [u64; 2],
        numbers: u64,
        step: u64,
        wanted: u64,
        low: [f64; MOST_BRACKETS],
        high: [f64; MOST_BRACKETS],
        sigmas: f64,
        offset: f64,
        brackets: u32,
        bits: u32,
        keeps_equal: u32,
        code_offset: u32,
        codes_kept: [u32; 2],
    }
}

/// Places in the workspace, in bytes.
struct Room {
    /// The code of each row's group, of one share after the other.
    codes: usize,
    sample: SortMemory,
    table: usize,
    counts: usize,
    /// Three numbers: sampled rows, rows inside brackets, and groups with too few of these.
    cursors: usize,
}

/// A read of the rows of groups by brackets.
pub(super) struct BracketRead<'a> {
    /// The rows of each share, which one device reads. Their groups have the same codes.
    shares: &'a [Share<'a>],
    /// The groups of the first share.
    groups: &'a Groups<'a>,
    /// The least key of the column.
    least: KeyBits,
    shape: RecordShape,
    plan: BracketPlan,
}

/// A rank that was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Located {
    /// The place of its record among the sorted records inside brackets.
    Kept(u64),
    /// Its key, counted from the least one.
    Known(KeyBits),
}

/// The groups and the keys at their ranks, or the table of ranks where all rows have to be sorted.
pub(super) type Selected = std::result::Result<(Segments, PickedKeys), RankTable>;

impl<'a> BracketRead<'a> {
    /// A read by the brackets that `plan` makes for a group of so many rows. `None` if another method is faster.
    pub(super) fn try_new(
        shares: &'a [Share<'a>],
        (least, shape): (KeyBits, RecordShape),
        plan: impl FnOnce(u64) -> Option<BracketPlan>,
    ) -> Option<Self> {
        shape.bytes()?;
        Some(Self {
            shares,
            groups: shares.first()?.0,
            least,
            shape,
            plan: plan(mean_rows(shares)?)?,
        })
    }

    /// Number of values of all shares.
    fn population(&self) -> u64 {
        self.shares.iter().map(|(_, among)| among.population()).sum()
    }

    /// Number of rows of all shares.
    fn rows(&self) -> u64 {
        self.shares.iter().map(|(groups, _)| groups.rows).sum()
    }

    /// The groups of all rows that count, and the keys at the wanted ranks of each. Waits for the device.
    ///
    /// # Errors
    /// As [`SpreadGroups::select`](super::group_spread::SpreadGroups::select).
    pub(super) fn select(&self, report: &mut Report, wanted: &dyn GroupRanks) -> Result<Selected> {
        let (groups, device, rows) = (self.groups, self.groups.device, self.population());
        let each = self.record_bytes()?;
        let mut layout = Places::default();
        // As in a sort of all rows, codes lie in the second buffer of records. All rows can lie inside brackets, where many are equal.
        let wide = each.max(size_of::<u32>() * self.rows().div_ceil(rows) as usize);
        let records = SortMemory::take(&mut layout, rows as usize, wide);
        let room = self.room(&mut layout, Some(records.records[1]));
        let mut lease = WorkspaceLease::lock(device);
        let work = &mut lease.reserve(layout.end(), HOST_BYTES, groups.limit)?.device;
        let mut timeline = Timeline::start(device, groups.timed)?;
        let out = (work.address() + records.records[0] as u64, rows);
        let argument = self.read(work, &room, out, "gb_records", &mut timeline, report)?;
        let kept = work.number(room.cursors + size_of::<u64>())?;
        if kept > rows {
            return internal_err!("{kept} records on the device, {rows} were announced");
        }
        let tables = self.tables(work, &room, &argument, report)?;
        let mut sort = RecordSort::try_new(work, records, self.shape, kept, groups.limit)?;
        sort.start(&mut timeline)?;
        // While the device sorts, the host looks for the ranks of all groups.
        let segments = tables.segments();
        let table = RankTable::try_new(&segments, wanted)?;
        let heads = sort.finish(&mut timeline)?;
        let inside = sort.segments(&heads, report)?;
        let selected = match tables.locate(&segments, &inside, &table) {
            Some(located) => Ok((segments, picked(&located, &sort, &mut timeline, report)?)),
            None => Err(table),
        };
        timeline.end()?;
        device.synchronize("grouping on the device")?;
        timeline.report(report)?;
        report.second_reads += usize::from(selected.is_err());
        Ok(selected)
    }

    /// Rows that include the `k` best of each group. `None` if the sample misled, or if too many keys tie. Waits for the device.
    ///
    /// # Errors
    /// `ResourcesExhausted` if device memory ends; an execution error if the device fails.
    pub(super) fn best(
        &self,
        k: u64,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<Option<Candidates>> {
        let (groups, device, rows) = (self.groups, self.groups.device, self.population());
        let expected = self.plan.inside(rows / groups.numbers as u64) * rows as f64;
        let most = ((2.0 * expected + TIES) as u64).min(rows);
        let out = device.allocate(most as usize * size_of::<u64>(), groups.limit)?;
        let mut layout = Places::default();
        let room = self.room(&mut layout, None);
        let mut lease = WorkspaceLease::lock(device);
        let work = &mut lease.reserve(layout.end(), HOST_BYTES, groups.limit)?.device;
        let argument = self.read(work, &room, (out.address(), most), "gb_rows", timeline, report)?;
        let argument = BracketsArgument {
            wanted: k,
            ..argument
        };
        self.launch("gb_check", 0, &argument, timeline)?;
        let cursors = room.cursors + size_of::<u64>();
        let found: Vec<u64> = work.to_numbers(cursors..cursors + 2 * size_of::<u64>())?;
        match found.as_slice() {
            [count, 0] if *count <= most => Ok(Some(Candidates {
                rows: out,
                count: *count,
            })),
            _ => {
                report.second_reads += 1;
                Ok(None)
            }
        }
    }

    /// How the values of the column become keys.
    fn format(&self) -> ColumnFormat {
        self.shares[0].1.format
    }

    fn record_bytes(&self) -> Result<usize> {
        match self.shape.bytes() {
            Some(bytes) => Ok(bytes),
            None => internal_err!("records of {:?}", self.shape),
        }
    }

    /// Sampled rows at most.
    fn samples(&self) -> u64 {
        let samples = self.shares.iter();
        samples
            .map(|(groups, _)| groups.rows.div_ceil(self.plan.step))
            .sum()
    }

    /// Bytes of the brackets of all groups, and of their counters.
    fn table_bytes(&self) -> [usize; 2] {
        let (numbers, brackets) = (self.groups.numbers as usize, self.plan.shares.len());
        [
            numbers * brackets * 2 * self.format().key_bytes(),
            numbers * (2 * brackets + 1) * size_of::<u32>(),
        ]
    }

    /// Room for all but what is written of rows. `codes`: a place for codes that is there already.
    fn room(&self, layout: &mut Places, codes: Option<usize>) -> Room {
        let [table, counts] = self.table_bytes();
        let record = self.shape.bytes().unwrap_or(0);
        Room {
            codes: match (codes, self.groups.stored_codes()) {
                (Some(codes), _) => codes,
                (None, Some(_)) => 0,
                (None, None) => layout.take(self.rows() as usize * size_of::<u32>()),
            },
            sample: SortMemory::take(layout, self.samples() as usize, record),
            table: layout.take(table),
            counts: layout.take(counts),
            cursors: layout.take(3 * size_of::<u64>()),
        }
    }

    /// Samples, makes brackets, and reads all rows. Records or numbers of the rows inside brackets are written to the address `out`, as
    /// many as fit. Returns the argument of the read.
    fn read(
        &self,
        work: &mut DeviceBuffer,
        room: &Room,
        (out, fits): (u64, u64),
        kernel: &'static str,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<BracketsArgument> {
        let [_, counts] = self.table_bytes();
        work.zero(room.counts..room.counts + counts)?;
        work.zero(room.cursors..room.cursors + 3 * size_of::<u64>())?;
        let base = work.address();
        let at = |place: usize| base + place as u64;
        let draws = self.arguments(at(room.codes), timeline, report)?;
        let draws: Vec<_> = draws
            .into_iter()
            .map(|argument| BracketsArgument {
                out: at(room.sample.records[0]),
                cursor: at(room.cursors),
                room: self.samples(),
                table: at(room.table),
                counts: at(room.counts),
                ..argument
            })
            .collect();
        for draw in &draws {
            self.launch("gb_draw", 0, draw, timeline)?;
        }
        let bytes: u64 = self.shares.iter().map(|(_, among)| among.bytes()).sum();
        report.bytes_read += bytes / self.plan.step;
        let sampled = work.number(room.cursors)?;
        let mut sort = RecordSort::try_new(work, room.sample, self.shape, sampled, self.groups.limit)?;
        let heads = sort.sort_groups(timeline)?;
        let read = BracketsArgument {
            out,
            room: fits,
            cursor: at(room.cursors) + size_of::<u64>() as u64,
            sample: sort.records(),
            heads: heads.starts(),
            head_codes: heads.codes(),
            sampled,
            sampled_groups: heads.groups as u64,
            ..draws[0]
        };
        self.launch("gb_table", 0, &read, timeline)?;
        report.bytes_read += bytes + self.rows() * size_of::<u32>() as u64;
        let shared = self.table_bytes().iter().sum::<usize>();
        let (kernel, shared) = match (
            shared + STATIC_SHARED <= self.groups.device.shared_memory(),
            kernel,
        ) {
            (true, "gb_rows") => ("gb_rows_shared", shared),
            (true, _) => ("gb_records_shared", shared),
            (false, kernel) => (kernel, 0),
        };
        for share in &draws {
            let read = BracketsArgument {
                column: share.column,
                codes: share.codes,
                code_offset: share.code_offset,
                ..read
            };
            self.launch(kernel, shared, &read, timeline)?;
        }
        // Freed on the stream, behind the kernels that read it.
        drop(heads);
        Ok(read)
    }

    /// The argument for each share. Numbers the rows where codes are not read where they lie, and writes the codes from the address
    /// `codes` on.
    fn arguments(
        &self,
        mut codes: u64,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<Vec<BracketsArgument>> {
        let mut arguments = Vec::with_capacity(self.shares.len());
        for (groups, among) in self.shares.iter().filter(|(groups, _)| groups.rows > 0) {
            let (own, code_offset) = groups.codes(codes, timeline, report)?;
            if own == codes {
                codes += groups.rows * size_of::<u32>() as u64;
            }
            arguments.push(BracketsArgument {
                column: among.argument(),
                codes: own,
                code_offset,
                ..self.argument()
            });
        }
        Ok(arguments)
    }

    /// The part of the argument that all kernels have.
    fn argument(&self) -> BracketsArgument {
        let mut argument = BracketsArgument {
            codes_kept: self
                .groups
                .codes_kept()
                .map(|code| code.min(u32::MAX.into()) as u32),
            least: halves(self.least),
            numbers: self.groups.numbers as u64,
            step: self.plan.step,
            sigmas: self.plan.sigmas,
            offset: self.plan.offset,
            brackets: self.plan.shares.len() as u32,
            bits: self.shape.key_bits,
            keeps_equal: u32::from(self.plan.keeps_equal),
            ..BracketsArgument::default()
        };
        for (at, [low, high]) in self.plan.shares.iter().enumerate() {
            (argument.low[at], argument.high[at]) = (*low, *high);
        }
        argument
    }

    /// Launches a kernel on all multiprocessors, with `shared` bytes of shared memory for each block.
    fn launch(
        &self,
        name: &'static str,
        shared: usize,
        argument: &BracketsArgument,
        timeline: &mut Timeline<'_>,
    ) -> Result<()> {
        let device = self.groups.device;
        let (format, masked) = (self.format(), self.groups.kept.is_some());
        let programs = self.shares.iter();
        let mut programs = programs.map(|(_, among)| among.program(KernelFile::GroupBrackets));
        let program = Program {
            batch: self.record_bytes()? as u32,
            masked: masked || programs.any(|program| program.masked),
            ..Program::of(KernelFile::GroupBrackets, format)
        };
        let key = format.key_bytes();
        let kernels = Kernels::load(device, &program, [0, key, 2 * key, MOST_BRACKETS])?;
        let together = if 2 * (shared + STATIC_SHARED) <= device.shared_memory() {
            2
        } else {
            1
        };
        let grid = [together * device.multiprocessors(), THREADS];
        timeline.launch(&kernels.launch(name, grid, shared)?, argument)
    }

    /// The brackets and the counts of all groups. Waits for the device.
    fn tables(
        &self,
        work: &DeviceBuffer,
        room: &Room,
        argument: &BracketsArgument,
        report: &mut Report,
    ) -> Result<Tables> {
        let [table, counts] = self.table_bytes();
        report.bytes_from_device += (table + counts) as u64;
        let key = self.format().key_bytes();
        let table = work.to_host(room.table..room.table + table)?;
        Ok(Tables {
            brackets: argument.brackets as usize,
            keys: table.chunks_exact(key).map(key_of).collect(),
            counts: work.to_numbers(room.counts..room.counts + counts)?,
        })
    }
}

/// The keys of ranks that were looked for, of which `sort` has those inside brackets.
fn picked(
    located: &[Located],
    sort: &RecordSort<'_>,
    timeline: &mut Timeline<'_>,
    report: &mut Report,
) -> Result<PickedKeys> {
    let kept = located.iter().filter_map(|located| match located {
        Located::Kept(place) => Some(*place),
        Located::Known(_) => None,
    });
    let picked = sort.pick(&kept.collect::<Vec<_>>(), timeline, report)?;
    let known = located.iter().map(|located| match located {
        Located::Kept(_) => None,
        Located::Known(key) => Some(*key),
    });
    Ok(picked.with(known))
}

/// Rows of a group on average; `None` if rows are too few, or codes too many, for brackets.
fn mean_rows(shares: &[Share<'_>]) -> Option<u64> {
    let numbers = shares.first()?.0.numbers;
    let rows = shares.iter().map(|(_, among)| among.population()).sum::<u64>();
    let all = shares.iter().map(|(groups, _)| groups.rows).sum::<u64>();
    let fits = rows >= LEAST_ROWS && all < 1 << 32 && numbers <= MOST_NUMBERS;
    fits.then(|| rows / numbers as u64).filter(|rows| *rows > 0)
}

/// The brackets of all groups, and how many rows lie inside and between them.
#[derive(Debug)]
struct Tables {
    /// Brackets of a group.
    brackets: usize,
    /// For each code and bracket the least and the greatest key, counted from the least one.
    keys: Vec<KeyBits>,
    /// For each code: rows below the first bracket, inside it, between it and the second, and so on.
    counts: Vec<u32>,
}

impl Tables {
    /// The groups of all rows, as if their records were sorted.
    fn segments(&self) -> Segments {
        let mut segments = Segments::default();
        for (code, counts) in self.counts.chunks_exact(2 * self.brackets + 1).enumerate() {
            let rows: u64 = counts.iter().map(|count| u64::from(*count)).sum();
            if rows > 0 {
                segments.codes.push(code as u64);
                segments.starts.push(segments.records);
                segments.records += rows;
            }
        }
        segments
    }

    /// Where the records at the ranks of each group are: `all` has the groups of all rows, `inside` those of the rows inside brackets.
    /// `None` if one of them is outside of all brackets.
    fn locate(&self, all: &Segments, inside: &Segments, table: &RankTable) -> Option<Vec<Located>> {
        let mut located = Vec::with_capacity(all.codes.len() * table.each);
        let mut kept = inside.codes.iter().zip(&inside.starts).peekable();
        for (index, code) in all.codes.iter().enumerate() {
            while kept.next_if(|(kept, _)| *kept < code).is_some() {}
            let first = kept
                .peek()
                .filter(|(kept, _)| *kept == code)
                .map(|(_, start)| **start);
            for rank in table.of(all.length(index)) {
                located.push(self.locate_rank(*code as usize, rank - 1, first)?);
            }
        }
        Some(located)
    }

    /// Where the record with this rank, from 0, in the group of a code is, whose first record inside brackets is at `first`.
    fn locate_rank(&self, code: usize, rank: u64, first: Option<u64>) -> Option<Located> {
        let counters = 2 * self.brackets + 1;
        let counts = self.counts.get(code * counters..(code + 1) * counters)?;
        let ends = self
            .keys
            .get(code * 2 * self.brackets..(code + 1) * 2 * self.brackets)?;
        let (mut below, mut kept) = (0, 0);
        for (at, count) in counts.iter().map(|count| u64::from(*count)).enumerate() {
            // Even counters are those between brackets.
            let bracket = (at % 2 == 1).then(|| [ends[at - 1], ends[at]]);
            if rank < below + count {
                return match bracket? {
                    [low, high] if low == high => Some(Located::Known(low)),
                    _ => Some(Located::Kept(first? + kept + rank - below)),
                };
            }
            below += count;
            if bracket.is_some_and(|[low, high]| low != high) {
                kept += count;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_located_inside_brackets_alone() {
        // Code 1: two brackets, [10, 20] with three rows and [30, 30] with two. Code 2 has no rows. Code 3: all inside.
        let tables = Tables {
            brackets: 2,
            keys: vec![1, 0, 1, 0, 10, 20, 30, 30, 1, 0, 1, 0, 0, 99, 1, 0],
            counts: vec![0, 0, 0, 0, 0, 4, 3, 5, 2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0],
        };
        let all = tables.segments();
        assert_eq!(all.codes, [1, 3]);
        assert_eq!((all.starts.as_slice(), all.records), ([0, 15].as_slice(), 17));
        let inside = Segments {
            codes: vec![1, 3],
            starts: vec![0, 3],
            records: 5,
        };
        // The ranks, from 1, of groups of 15 and of 2 rows.
        let table = |long: &[u64]| RankTable {
            each: long.len(),
            lengths: vec![2, 15],
            ranks: [&[1, 2, 2, 2][..long.len()], long].concat(),
        };
        let found = tables.locate(&all, &inside, &table(&[5, 7, 13, 14])).unwrap();
        let kept = [0, 2].map(Located::Kept).into_iter();
        let known = [30, 30].map(Located::Known);
        let last = [3, 4, 4, 4].map(Located::Kept);
        assert_eq!(found, kept.chain(known).chain(last).collect::<Vec<_>>());
        for outside in [1, 4, 8, 12, 15, 16] {
            assert_eq!(
                tables.locate(&all, &inside, &table(&[outside])),
                None,
                "{outside}"
            );
        }
    }
}
