//! Exact ranks of a column on the device: the launches of `kernels/sample_select.cu` and `kernels/sample_finish.cu`, one after the
//! other on one stream.
//!
//! SampleSelect with a cell table (Ribizel and Anzt 2020, section IV; cells as in [`buckets`](crate::cells)): a
//! sample gives cells and brackets, one read counts all and copies what lies in the brackets, and the counts say which
//! ranks were missed; those are found by a second read or by counting narrower intervals, still on the device. The host
//! waits once, at the end.
//!
//! Cost on one H200: 0.5 ms for 101 ranks of 1 GiB, 0.34 ms for one. It loses below a few 100 000 values, where the
//! launches alone cost 0.1 ms.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err, internal_err};

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::device::Device;
use super::launch::{ColumnArgument, Kernels, Launch, kernel_argument, key_of};
use super::report::Report;
use super::shape::{Shape, THREADS};
use super::source::{KernelFile, Program, ColumnFormat};
use super::timeline::Timeline;
use super::workspace::{Places, Workspace, WorkspaceLease};
use crate::failpoint::may_fail;
use crate::key::KeyBits;

/// Bytes of `Control` that say how it went.
const OUTCOME_BYTES: usize = 64;
/// Keys of the small sample: as many as the kernels draw at most.
pub(super) const STRIPES: u64 = 8192;
/// Keys that each block of one of several devices has room for, if its rows are as many.
const MOST_LEAST: usize = 1 << 15;
/// Most ranks that a smaller sample serves.
const FEW_RANKS: usize = 16;
/// Most devices that select together.
pub(super) const MOST_DEVICES: usize = 16;
/// Bytes of counts of the parts of a list, and keys of a rank that are put together, on each of several devices.
pub(super) const PARTS_BYTES: usize = 4 << 11;
const MOST_FEW: usize = 4096;
/// Rows of one of several devices that there is room for in lists, whatever they are.
const LEAST_LISTED: usize = 1 << 20;

/// Bits of `Control::outcome`.
const MISSED: u32 = 1;
const DEEPENED: u32 = 2;
const MISMATCH: u32 = 4;
pub(super) const OUTSIDE: u32 = 8;

/// That which reads the column, and that which answers.
const FILES: [KernelFile; 2] = [KernelFile::SampleSelect, KernelFile::SampleFinish];

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
    /// `struct Query` of `kernels/sample_cells.cuh`.
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
        /// Addresses of `Control` and of the lists of all devices.
        pub(super) controls: [u64; MOST_DEVICES],
        pub(super) lists: [u64; MOST_DEVICES],
        pub(super) stripes: u32,
        pub(super) device: u32,
        pub(super) devices: u32,
        unused: u32,
    }
}

/// A question to one column on its device.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// The column.
    pub column: &'a DeviceColumn,
    /// How its values are ranked: [`DeviceColumn::words`] of its type's keys.
    pub words: ColumnFormat,
    /// Rows that count, a bit each, and how many of them are not NULL; `None`: all that are not NULL.
    pub mask: Option<(&'a DeviceBuffer, u64)>,
    /// Most bytes of device memory that this crate may hold then.
    pub limit: Option<u64>,
    /// Whether the time of each kernel is wanted.
    pub timed: bool,
}

impl Selection<'_> {
    /// Values that are ranked.
    pub fn population(&self) -> u64 {
        self.mask.map_or(self.column.valid(), |(_, kept)| kept)
    }

    /// The column and the rows that count, as kernels take them.
    pub(super) fn argument(&self) -> ColumnArgument {
        ColumnArgument::of(self.column, self.mask.map_or(0, |(mask, _)| mask.address()))
    }

    /// Bytes that a read of them takes.
    pub(super) fn bytes(&self) -> u64 {
        (self.column.bytes() + self.mask.map_or(0, |(mask, _)| mask.len())) as u64
    }

    /// The compilation of a file that reads them.
    pub(super) fn program(&self, file: KernelFile) -> Program {
        Program {
            masked: self.column.has_nulls() || self.mask.is_some(),
            ..Program::of(file, self.words)
        }
    }

    /// The keys of `ranks`: 1-based, ascending, distinct, at most [`Self::population`]. What it cost is added to `report`.
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
        let prepared = Prepared::try_new(self)?;
        for some in ranks.chunks(prepared.shape.ranks) {
            prepared.select(some, &mut keys, report)?;
        }
        Ok(keys)
    }
}

/// Ranks are as a device wants them.
pub(super) fn check_ranks(ranks: &[u64], n: u64) -> Result<()> {
    let ascending = ranks.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || ranks.first() == Some(&0) || ranks.last().is_some_and(|last| *last > n) {
        return internal_err!("ranks for a device are ascending and from 1 to {n}");
    }
    Ok(())
}

/// Keys of the large sample of so many rows.
pub(super) fn sample_size(rows: u64, ranks: usize) -> u64 {
    let most = if ranks > FEW_RANKS { 1 << 24 } else { 1 << 22 };
    (rows / 16).max(1 << 16).min(most)
}

/// A selection with its kernels at hand.
pub(super) struct Prepared<'a> {
    pub(super) selection: &'a Selection<'a>,
    pub(super) device: &'a Arc<Device>,
    pub(super) shape: Shape,
    pub(super) key_bytes: usize,
    per_vector: usize,
    /// Rows that a block reads at once.
    tile: usize,
    control_bytes: usize,
    kernels: [Kernels; 2],
}

impl<'a> Prepared<'a> {
    pub(super) fn try_new(selection: &'a Selection<'a>) -> Result<Self> {
        let device = selection.column.device();
        device.check()?;
        let words = selection.words;
        let shape = Shape::try_new(words, device.shared_memory())?;
        let programs = FILES.map(|file| Program {
            batch: shape.batch,
            ..selection.program(file)
        });
        let kernels = Kernels::load_two(device, &programs, [0, 0, words.key_bytes(), MOST_DEVICES])?;
        Ok(Self {
            selection,
            device,
            shape,
            key_bytes: words.key_bytes(),
            per_vector: words.per_vector(),
            tile: THREADS * shape.batch as usize * words.per_vector(),
            control_bytes: kernels[0].size(0),
            kernels,
        })
    }

    /// Appends the keys of at most as many ranks as the shape allows.
    fn select(&self, ranks: &[u64], keys: &mut Vec<KeyBits>, report: &mut Report) -> Result<()> {
        // A single rank is found by two comparisons with the ends of its bracket, which say nothing where it lies outside.
        if self.read(ranks, false, keys, report)? || self.read(ranks, true, keys, report)? {
            return Ok(());
        }
        internal_err!("a rank outside of all cells on the device")
    }

    /// One sequence of launches; `false`: the single rank lies outside of its bracket. `counts_all`: there is none.
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

    /// How it went, once the device was waited for; `n` values were announced to it.
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

    /// Appends the answers, from the byte `at` of the page-locked memory on.
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

    /// The kernel of this name, for `ranks` ranks.
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

    /// The workspace, grown if need be; with less room for copied keys where there is no more memory, which costs reads.
    /// `several`: for one of several devices.
    pub(super) fn make_room<'b>(
        &self,
        lease: &'b mut WorkspaceLease<'_>,
        ranks: usize,
        several: bool,
    ) -> Result<(Layout, &'b mut Workspace)> {
        let mut shares = SHARES.iter().peekable();
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
        // The most room that the workspace has.
        let fitting = SHARES.iter().map(|share| self.layout(ranks, *share, several));
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
        // Several devices have nothing that finds keys which there is no room for: a block's tile and the last rows, all of them, and
        // all rows in lists, if there are not many.
        let (least, least_listed) = match several {
            true => (
                (2 * self.tile).min(MOST_LEAST).min(rows).next_multiple_of(16),
                rows.min(LEAST_LISTED),
            ),
            false => (0, 0),
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

    /// Puts everything on the stream. The workspace has the room that `layout` gives and the query announces.
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

    /// Puts the question on the stream.
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

    /// Has the answers fetched.
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

    /// Lines of the large sample, of so many keys.
    pub(super) fn sample_lines(&self, keys: u64) -> u64 {
        keys / (8 * self.per_vector as u64)
    }

    /// What kernels are told, of a workspace at `base`.
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

    /// Keys that may be copied.
    pub(super) fn room(&self, layout: &Layout) -> u64 {
        layout.region as u64 * u64::from(self.device.multiprocessors())
    }
}

/// The room for copied keys and lists, as a fraction of what is best: 1, then less.
const SHARES: [usize; 5] = [1, 4, 16, 64, 512];

/// How it went, as the first fields of `Control` say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcome {
    pub(super) flags: u32,
    /// Ranks that were not found.
    pub(super) open: u32,
    pub(super) cells: u32,
}

impl Outcome {
    pub(super) fn record(&self, report: &mut Report) {
        report.second_reads += usize::from(self.flags & (MISSED | OUTSIDE) != 0);
        report.deepened += usize::from(self.flags & DEEPENED != 0);
    }
}

/// Where things lie in the workspace, in bytes from its front; answers come right before what says how it went.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    ranks: usize,
    answers: usize,
    pub(super) control: usize,
    /// Of several devices: counts of the parts of lists, and keys that are left of each rank.
    tallies: usize,
    few: usize,
    pub(super) listed: usize,
    copied: usize,
    /// Keys that each block may copy.
    region: usize,
    /// Keys in all lists.
    list_room: usize,
    /// Bytes of page-locked memory behind what is copied, for the answers of several devices.
    common_answers: usize,
    bytes: usize,
}

impl Layout {
    /// Bytes of page-locked memory for ranks, and for answers.
    fn host_bytes(&self) -> usize {
        self.common_answers_at() + self.common_answers
    }

    /// Where the answers of several devices lie in page-locked memory.
    pub(super) fn common_answers_at(&self) -> usize {
        let answer = self.control + OUTCOME_BYTES - self.answers;
        answer.max(self.answers).next_multiple_of(256)
    }
}
