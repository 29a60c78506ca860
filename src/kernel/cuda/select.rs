//! Exact ranks of a column on one device: the launches of `kernels/sample_select.cu` and `kernels/sample_finish.cu`, one after the
//! other on one stream.
//!
//! This is SampleSelect with a cell table (Ribizel and Anzt 2020, section IV; cells as in [`crate::cells`]). A sample gives cells and
//! brackets. One read counts all keys and copies those in the brackets. The counts say which ranks were missed; these are found by a
//! second read, or by counting narrower and narrower intervals, still on the device. The host waits once, at the end.
//!
//! Cost on one H200: 0.5 ms for 101 ranks of 1 GiB, 0.34 ms for one rank. The CPU is faster below a few 100 000 values, where the
//! launches alone cost 0.1 ms.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err, internal_err};

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::device::Device;
use super::launch::{ColumnArgument, Kernels, Launch, kernel_argument, key_of};
use super::report::Report;
use super::shape::{Shape, THREADS};
use super::source::{ColumnFormat, KernelFile, Program};
use super::timeline::Timeline;
use super::workspace::{Places, Workspace, WorkspaceLease};
use crate::failpoint::may_fail;
use crate::key::KeyBits;

/// Bytes of `Control` that the host fetches: the outcome.
const OUTCOME_BYTES: usize = 64;
/// Keys of the small sample, at most: `PLAN_SAMPLE` of the kernels.
pub(super) const STRIPES: u64 = 8192;
/// With several devices: keys that the region of each block has room for at least, if the share has as many rows.
const MOST_LEAST: usize = 1 << 15;
/// Most ranks for which the smaller sample is enough.
const FEW_RANKS: usize = 16;
/// Most devices that select together.
pub(super) const MOST_DEVICES: usize = 16;
/// With several devices: bytes of the counts of the parts of one list.
pub(super) const PARTS_BYTES: usize = 4 << 11;
/// With several devices: most keys of one rank that a device puts together, `MOST_FEW` of the kernels.
const MOST_FEW: usize = 4096;
/// With several devices: rows of a share that the lists have room for at least.
const LEAST_LISTED: usize = 1 << 20;

/// Bits of `Control::outcome`.
const MISSED: u32 = 1;
const DEEPENED: u32 = 2;
const MISMATCH: u32 = 4;
pub(super) const OUTSIDE: u32 = 8;

/// The file whose kernels read the column, and the file whose kernels answer.
pub(super) const FILES: [KernelFile; 2] = [KernelFile::SampleSelect, KernelFile::SampleFinish];

/// The kernels of one device, one after the other.
const SEQUENCE: [&str; 10] = [
    "ss_draw",
    "ss_plan",
    "ss_sample",
    "ss_brackets",
    "ss_count",
    "ss_resolve",
    "ss_extract",
    "ss_refine",
    "ss_select",
    "ss_deepen",
];

kernel_argument! {
    /// `struct Query` of `kernels/sample_cells.cuh`, which explains the fields.
    pub(super) struct QueryArgument = ss_sizes[1] {
        column: ColumnArgument,
        ranks: u64,
        pub(super) kept: u64,
        control: u64,
        copied: u64,
        region: u64,
        listed: u64,
        list_room: u64,
        pub(super) answers: u64,
        pub(super) sample_lines: u64,
        rank_count: u32,
        cells: u32,
        depth: u32,
        stage: u32,
        regions: u32,
        seed: u32,
        sigmas: f32,
        counts_all: u32,
        pub(super) room: u64,
        tallies: u64,
        few: u64,
        /// Addresses of `Control` on all devices, and below those of their lists.
        pub(super) controls: [u64; MOST_DEVICES],
        pub(super) lists: [u64; MOST_DEVICES],
        pub(super) stripes: u32,
        pub(super) device: u32,
        pub(super) devices: u32,
        unused: u32,
    }
}

/// A request for ranks of one column on its device.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// The column.
    pub column: &'a DeviceColumn,
    /// How its values lie in memory and become keys: [`DeviceColumn::format`].
    pub format: ColumnFormat,
    /// A bitmap of the rows that count, and how many of these are not NULL. `None`: all rows that are not NULL count.
    pub mask: Option<(&'a DeviceBuffer, u64)>,
    /// Most bytes of device memory that this crate may hold.
    pub limit: Option<u64>,
    /// Whether to measure the time of each kernel.
    pub timed: bool,
}

impl Selection<'_> {
    /// Number of values that are ranked.
    pub fn population(&self) -> u64 {
        self.mask.map_or(self.column.valid(), |(_, kept)| kept)
    }

    /// The column and the rows that count, as kernels take them.
    pub(super) fn argument(&self) -> ColumnArgument {
        ColumnArgument::of(self.column, self.mask.map_or(0, |(mask, _)| mask.address()))
    }

    /// Bytes that one read of the column and of the bitmap takes.
    pub(super) fn bytes(&self) -> u64 {
        (self.column.bytes() + self.mask.map_or(0, |(mask, _)| mask.len())) as u64
    }

    /// The compilation of a file of kernels for this column.
    pub(super) fn program(&self, file: KernelFile) -> Program {
        Program {
            masked: self.column.has_nulls() || self.mask.is_some(),
            ..Program::of(file, self.format)
        }
    }

    /// The keys of `ranks`, which count from 1 and are ascending, distinct and at most [`Self::population`]. The cost is added to
    /// `report`.
    ///
    /// # Errors
    /// `ResourcesExhausted` where the device's memory, or the limit on it, is too small; an execution error if the device fails;
    /// an internal error for other ranks.
    pub fn keys(&self, ranks: &[u64], report: &mut Report) -> Result<Vec<KeyBits>> {
        check_ranks(ranks, self.population())?;
        let mut keys = Vec::with_capacity(ranks.len());
        if ranks.is_empty() {
            return Ok(keys);
        }
        may_fail!("cuda_select");
        let prepared = PreparedSelection::try_new(self)?;
        for some in ranks.chunks(prepared.shape.ranks) {
            prepared.select(some, &mut keys, report)?;
        }
        Ok(keys)
    }
}

/// Checks that ranks are ascending, distinct and from 1 to `n`.
///
/// # Errors
/// An internal error if they are not.
pub(super) fn check_ranks(ranks: &[u64], n: u64) -> Result<()> {
    let ascending = ranks.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || ranks.first() == Some(&0) || ranks.last().is_some_and(|last| *last > n) {
        return internal_err!("ranks for a device are ascending and from 1 to {n}");
    }
    Ok(())
}

/// Keys of the large sample of a column of `rows` rows for `ranks` ranks.
pub(super) fn sample_size(rows: u64, ranks: usize) -> u64 {
    let most = if ranks > FEW_RANKS { 1 << 24 } else { 1 << 22 };
    (rows / 16).max(1 << 16).min(most)
}

/// A selection whose kernels are loaded.
pub(super) struct PreparedSelection<'a> {
    pub(super) selection: &'a Selection<'a>,
    pub(super) device: &'a Arc<Device>,
    pub(super) shape: Shape,
    pub(super) key_bytes: usize,
    per_vector: usize,
    /// Rows that a block reads in one step.
    tile: usize,
    control_bytes: usize,
    kernels: [Kernels; 2],
}

impl<'a> PreparedSelection<'a> {
    pub(super) fn try_new(selection: &'a Selection<'a>) -> Result<Self> {
        let device = selection.column.device();
        device.check()?;
        let format = selection.format;
        let shape = Shape::try_new(format, device.shared_memory())?;
        let programs = FILES.map(|file| Program {
            batch: shape.batch,
            ..selection.program(file)
        });
        let kernels = Kernels::load_two(device, &programs, [0, 0, format.key_bytes(), MOST_DEVICES])?;
        Ok(Self {
            selection,
            device,
            shape,
            key_bytes: format.key_bytes(),
            per_vector: format.per_vector(),
            tile: THREADS * shape.batch as usize * format.per_vector(),
            control_bytes: kernels[0].size(0),
            kernels,
        })
    }

    /// Appends the keys of ranks, of which there are at most [`Shape::ranks`].
    fn select(&self, ranks: &[u64], keys: &mut Vec<KeyBits>, report: &mut Report) -> Result<()> {
        // A single rank is found by comparisons with the two ends of its bracket. They do not help if the rank lies outside.
        if self.read(ranks, false, keys, report)? || self.read(ranks, true, keys, report)? {
            return Ok(());
        }
        internal_err!("a rank outside of all cells on the device")
    }

    /// Runs one sequence of launches. Returns false if there is one rank and it lies outside of its bracket, which cannot be with
    /// `counts_all`: then all cells are counted.
    fn read(
        &self,
        ranks: &[u64],
        counts_all: bool,
        keys: &mut Vec<KeyBits>,
        report: &mut Report,
    ) -> Result<bool> {
        let launches = SEQUENCE.map(|name| self.launch(name, ranks.len()));
        let launches = Launch::in_a_row(self.device, launches.into_iter().collect::<Result<_>>()?);
        let mut lease = WorkspaceLease::lock(self.device);
        let (layout, workspace) = self.make_room(&mut lease, ranks.len(), false)?;
        let timeline = self.enqueue(ranks, counts_all, &launches, &layout, workspace)?;
        self.device.synchronize("selecting on the device")?;
        let outcome = self.outcome(&layout, workspace, self.selection.population())?;
        timeline.report(report)?;
        self.record_read(ranks.len(), report);
        outcome.record(report);
        if outcome.flags & OUTSIDE != 0 {
            return Ok(false);
        }
        self.take_keys(workspace, 0, ranks.len(), keys)?;
        Ok(true)
    }

    /// The outcome, after a wait for the device, which was told to find `n` values.
    ///
    /// # Errors
    /// An internal error if the device counted another number of values.
    pub(super) fn outcome(&self, layout: &Layout, workspace: &Workspace, n: u64) -> Result<Outcome> {
        let control = &workspace.host.bytes()?[layout.control - layout.answers..];
        let number = |at: usize| {
            control[4 * at..]
                .first_chunk()
                .map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let outcome = Outcome {
            flags: number(0),
            open: number(1),
            cells: number(2),
        };
        match outcome.flags & MISMATCH {
            0 => Ok(outcome),
            _ => internal_err!("{n} values were announced to the device, it counted others"),
        }
    }

    /// Appends the keys that lie in page-locked memory from the byte `at` on, one for each rank.
    pub(super) fn take_keys(
        &self,
        workspace: &Workspace,
        at: usize,
        ranks: usize,
        keys: &mut Vec<KeyBits>,
    ) -> Result<()> {
        let width = self.key_bytes;
        let answers = workspace.host.bytes()?[at..].chunks_exact(width).take(ranks);
        keys.extend(answers.map(key_of));
        Ok(())
    }

    pub(super) fn record_read(&self, ranks: usize, report: &mut Report) {
        report.bytes_read += self.selection.bytes();
        report.bytes_to_device += 8 * ranks as u64;
        report.bytes_from_device += (ranks * self.key_bytes + OUTCOME_BYTES) as u64;
    }

    /// The kernel of this name with its grid for `ranks` ranks.
    pub(super) fn launch(&self, name: &'static str, ranks: usize) -> Result<Launch> {
        let all = self.device.multiprocessors();
        let [reads, answers] = &self.kernels;
        let (kernels, blocks) = match name {
            "ss_draw" => (reads, 8),
            "ss_plan" | "ss_brackets" => (reads, 1),
            "ss_sample" => (reads, 2 * all),
            "ss_count" | "ss_extract" => (reads, all),
            "ss_resolve" => (answers, 1),
            "ss_refine" | "ss_deepen" => (answers, all),
            // A block for each rank.
            _ => (answers, ranks as u32),
        };
        let shared = self.shape.shared(name, self.key_bytes, ranks);
        let launch = kernels.launch(name, [blocks, THREADS as u32], shared)?;
        Ok(match name {
            "ss_deepen" => launch.cooperative(),
            _ => launch,
        })
    }

    /// The workspace, which grows if it is too small, and its layout. If memory is short, there is less room for copied keys, so that
    /// more reads are needed. `several`: for one of several devices.
    pub(super) fn make_room<'b>(
        &self,
        lease: &'b mut WorkspaceLease<'_>,
        ranks: usize,
        several: bool,
    ) -> Result<(Layout, &'b mut Workspace)> {
        let mut shares = MEMORY_FRACTIONS.iter().peekable();
        while let Some(share) = shares.next() {
            let layout = self.layout(ranks, *share, several);
            let limit = self.selection.limit;
            match lease.reserve(layout.bytes, layout.host_bytes(), limit) {
                Ok(_) => break,
                Err(error) if shares.peek().is_none() => return Err(error),
                Err(_) => {}
            }
        }
        let workspace = lease.get()?;
        // The layout with the most room that fits into the workspace.
        let fitting = MEMORY_FRACTIONS
            .iter()
            .map(|share| self.layout(ranks, *share, several));
        let layout = fitting
            .into_iter()
            .find(|layout| layout.bytes <= workspace.device.len());
        let layout =
            layout.ok_or_else(|| internal_datafusion_err!("the workspace on the device is too small"))?;
        workspace.host.grow(layout.host_bytes())?;
        Ok((layout, workspace))
    }

    fn layout(&self, ranks: usize, share: usize, several: bool) -> Layout {
        let rows = self.selection.column.rows() as usize;
        let regions = self.device.multiprocessors() as usize;
        // Several devices do not run `ss_deepen`, so keys without room cannot be found. There is room for a tile of each block and the
        // last rows in any case, and for all rows in lists if they are not many.
        let (least, least_listed) = if several {
            (
                (2 * self.tile).min(MOST_LEAST).min(rows).next_multiple_of(16),
                rows.min(LEAST_LISTED),
            )
        } else {
            (0, 0)
        };
        let region = (rows / (4 * share) / regions)
            .next_multiple_of(16)
            .max(4096 / share)
            .max(256)
            .max((least / share).next_multiple_of(16));
        let listed = match (several, ranks <= 256) {
            (false, true) => 10,
            (false, false) => 6,
            (true, true) => 5,
            (true, false) => 3,
        };
        let list_room = (rows / (listed * share)).max(1 << 16).max(least_listed / share);
        let mut places = Places::default();
        let mut take = |bytes| places.take(bytes);
        let apart = if several { ranks } else { 0 };
        Layout {
            ranks: take(8 * ranks),
            answers: take(self.key_bytes * ranks),
            control: take(self.control_bytes),
            tallies: take(PARTS_BYTES * apart),
            few: take(self.key_bytes * MOST_FEW * apart),
            listed: take(self.key_bytes * list_room),
            copied: take(self.key_bytes * region * regions),
            region,
            list_room,
            common_answers: self.key_bytes * apart,
            bytes: places.end(),
        }
    }

    /// Puts all work on the stream. The workspace has the room that `layout` and the query say.
    fn enqueue(
        &self,
        ranks: &[u64],
        counts_all: bool,
        launches: &[Launch],
        layout: &Layout,
        workspace: &mut Workspace,
    ) -> Result<Timeline<'a>> {
        let mut timeline = self.begin(ranks, layout, workspace)?;
        let query = self.query(ranks.len(), counts_all, layout, workspace.device.address());
        for launch in launches {
            timeline.launch(launch, &query)?;
        }
        self.end(layout, workspace, &mut timeline)?;
        Ok(timeline)
    }

    /// Puts the copy of the ranks on the stream, and the zeroing of `Control`.
    pub(super) fn begin(
        &self,
        ranks: &[u64],
        layout: &Layout,
        workspace: &mut Workspace,
    ) -> Result<Timeline<'a>> {
        let zero_based: Vec<u64> = ranks.iter().map(|rank| rank - 1).collect();
        let host = workspace.host.bytes_mut()?;
        host[..8 * ranks.len()].copy_from_slice(bytemuck::cast_slice(&zero_based));
        workspace
            .host
            .send(0..8 * ranks.len(), &workspace.device, layout.ranks)?;
        let timeline = Timeline::start(self.device, self.selection.timed)?;
        workspace
            .device
            .zero(layout.control..layout.control + self.control_bytes)?;
        Ok(timeline)
    }

    /// Puts the copy of the answers to the host on the stream.
    pub(super) fn end(
        &self,
        layout: &Layout,
        workspace: &mut Workspace,
        timeline: &mut Timeline<'_>,
    ) -> Result<()> {
        timeline.end()?;
        let from = layout.answers..layout.control + OUTCOME_BYTES;
        workspace.host.fetch(&workspace.device, from)
    }

    /// Number of lines of 128 bytes in a sample of `keys` keys.
    pub(super) fn sample_lines(&self, keys: u64) -> u64 {
        keys / (8 * self.per_vector as u64)
    }

    /// The query for the kernels, with a workspace at the address `base`.
    pub(super) fn query(&self, ranks: usize, counts_all: bool, layout: &Layout, base: u64) -> QueryArgument {
        let column = self.selection.column;
        let at = |offset: usize| base + offset as u64;
        QueryArgument {
            column: self.selection.argument(),
            ranks: at(layout.ranks),
            kept: self.selection.population(),
            control: at(layout.control),
            copied: at(layout.copied),
            region: layout.region as u64,
            listed: at(layout.listed),
            list_room: layout.list_room as u64,
            answers: at(layout.answers),
            sample_lines: self.sample_lines(sample_size(column.rows(), ranks)),
            rank_count: ranks as u32,
            cells: self.shape.cells as u32,
            depth: self.shape.depth as u32,
            stage: self.shape.stage as u32,
            regions: self.device.multiprocessors(),
            seed: 1,
            sigmas: 4.0,
            counts_all: u32::from(counts_all),
            room: self.room(layout),
            tallies: (layout.tallies - layout.control) as u64,
            few: (layout.few - layout.control) as u64,
            stripes: STRIPES as u32,
            devices: 1,
            ..QueryArgument::default()
        }
    }

    /// Number of keys that may be copied.
    pub(super) fn room(&self, layout: &Layout) -> u64 {
        layout.region as u64 * u64::from(self.device.multiprocessors())
    }
}

/// Divisors of the room for copied keys and lists: first the full room, then less.
const MEMORY_FRACTIONS: [usize; 5] = [1, 4, 16, 64, 512];

/// The outcome of a sequence of launches: the first fields of `Control`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcome {
    pub(super) flags: u32,
    /// Number of ranks that were not found.
    pub(super) open: u32,
    pub(super) cells: u32,
}

impl Outcome {
    pub(super) fn record(&self, report: &mut Report) {
        report.second_reads += usize::from(self.flags & (MISSED | OUTSIDE) != 0);
        report.deepened += usize::from(self.flags & DEEPENED != 0);
    }
}

/// Places in the workspace, in bytes from its front. The answers come right before `Control`, whose front is fetched with them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    ranks: usize,
    answers: usize,
    pub(super) control: usize,
    /// With several devices: counts of the parts of lists, and the keys that are left for each rank.
    tallies: usize,
    few: usize,
    pub(super) listed: usize,
    copied: usize,
    /// Keys that each block may copy.
    region: usize,
    /// Keys that all lists have room for.
    list_room: usize,
    /// With several devices: bytes of page-locked memory for the answers of all, behind the ranks and the answers of this one.
    common_answers: usize,
    bytes: usize,
}

impl Layout {
    /// Bytes of page-locked memory for ranks and answers.
    fn host_bytes(&self) -> usize {
        self.common_answers_at() + self.common_answers
    }

    /// Byte of page-locked memory from which on the answers of several devices lie.
    pub(super) fn common_answers_at(&self) -> usize {
        let answer = self.control + OUTCOME_BYTES - self.answers;
        answer.max(self.answers).next_multiple_of(256)
    }
}
