//! Passes over columns: the launches of `kernels/bucket.cu`, one launch for each column.
//!
//! The input of a pass (splitters, brackets, a map) goes to the workspace of the device in one copy, its counts come back in one copy,
//! and the host waits once. That takes about 20 microseconds beside the read, which runs at 4.2 TB/s on an H200 for a cell table, and at
//! 2 TB/s or more for splitters.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use datafusion::common::{Result, internal_err};

use super::buffer::{DeviceBuffer, numbers};
use super::device::Device;
use super::launch::{ColumnArgument, Kernels, Launch, key_of};
use super::pass_cells::{CellKernels, GUIDE_MOST, GUIDE_MOST_BESIDE, RoundArgument, RoundInput, TABLE_BYTES};
use super::report::Report;
use super::source::{ColumnFormat, KernelFile, Program};
use super::timeline::Timeline;
use super::workspace::WorkspaceLease;
use crate::cells::Cells;
use crate::cells::{Bracket, Brackets};
use crate::failpoint::may_fail;
use crate::key::{KeyBits, Width};
use crate::threads::locked;

/// Threads of a block.
const THREADS: usize = 1024;
/// Bytes of shared memory that kernels use beside the dynamic shared memory, at most, with 1 KiB of the driver.
const STATIC_SHARED: usize = 2048;
/// Rows of a chunk, which one block reads in order: `CHUNK` of `kernels/bucket.cu`.
const CHUNK: u64 = 1 << 16;
/// Numbers of keys that may wait in shared memory, the best first.
const STAGES: [usize; 4] = [8192, 4096, 2048, 1024];
/// Entry of a map from cells to lists for a cell that has no list.
pub(super) const NO_LIST: u16 = u16::MAX;

/// The kernels for values of one format on one device.
#[derive(Debug, Clone)]
pub(super) struct Passes {
    device: Arc<Device>,
    kernels: Kernels,
    width: Width,
    /// Most bytes of device memory that this crate may hold.
    limit: Option<u64>,
    report: Arc<Mutex<Report>>,
}

impl Passes {
    /// Loads the kernels. `masked`: whether rows can be missing.
    ///
    /// # Errors
    /// Errors of the device and of the compiler.
    pub(super) fn try_new(
        device: &Arc<Device>,
        format: ColumnFormat,
        width: Width,
        masked: bool,
        limit: Option<u64>,
        report: &Arc<Mutex<Report>>,
    ) -> Result<Self> {
        device.check()?;
        let piece = (2 * width.bytes() + 16).next_multiple_of(width.bytes().max(8));
        let kernels = Kernels::load(device, &program(format, masked), [0, piece, width.bytes(), 0])?;
        Ok(Self {
            device: Arc::clone(device),
            kernels,
            width,
            limit,
            report: Arc::clone(report),
        })
    }

    /// Bytes of dynamic shared memory that a block may have.
    fn shared(&self) -> usize {
        self.device.shared_memory().saturating_sub(STATIC_SHARED)
    }

    fn launch(&self, name: &'static str, blocks: u32, shared: usize) -> Result<Launch> {
        self.kernels.launch(name, [blocks.max(1), THREADS as u32], shared)
    }

    /// Number of keys in each cell; only keys inside `within` count, if it is given.
    pub(super) fn count(
        &self,
        columns: &[ColumnArgument],
        cells: &Cells,
        within: Option<&Brackets>,
    ) -> Result<Vec<u64>> {
        let (mut input, mut round) = (RoundInput::default(), RoundArgument::default());
        let cell_kernels = CellKernels::of(cells, self.width, GUIDE_MOST, &mut input, &mut round)?;
        if let Some(within) = within {
            round.within = input.put_brackets(within, self.width);
            round.within_count = within.as_slice().len() as u32;
        }
        let (counters, mut shared, [mut counting, any]) =
            (4 * cells.len(), cell_kernels.needed, cell_kernels.counting);
        let copied = match cells {
            // Plain counts use several copies of the entries of a table.
            Cells::Table(_) => self.kernels.size(3) * TABLE_BYTES,
            _ => shared,
        };
        if within.is_none() && copied + counters <= self.shared() {
            shared = copied;
        } else {
            counting = any;
        }
        if shared + counters <= self.shared() {
            round.shared_cells = round.cells;
            shared += counters;
        }
        if cell_kernels.liked > 0 && shared + cell_kernels.liked <= self.shared() {
            round.shared_edges = 1;
            shared += cell_kernels.liked;
        }
        let launch = self.launch(counting, self.device.multiprocessors(), shared)?;
        let bytes = 8 * cells.len();
        let counted = self.run(input, bytes, 0..bytes, |at, zeroed| {
            round.moved(at);
            round.counts = zeroed;
            on_each(columns, &launch, round)
        })?;
        Ok(numbers(&counted))
    }

    /// Copies the keys of some cells to lists, which lie one after the other in the buffer. `map` gives the list of each cell, and `sizes`
    /// the number of keys of each list. If `word_bytes` is given, the buffer gets values of so many bytes, as they lie in the column, in
    /// place of keys.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no device memory for the lists; an internal error if the device finds other numbers of keys.
    pub(super) fn collect(
        &self,
        columns: &[ColumnArgument],
        cells: &Cells,
        (map, sizes): (&[u16], &[u64]),
        within: Option<&Brackets>,
        word_bytes: Option<usize>,
    ) -> Result<DeviceBuffer> {
        let (mut input, mut round) = (RoundInput::default(), RoundArgument::default());
        let cell_kernels = CellKernels::of(cells, self.width, GUIDE_MOST_BESIDE, &mut input, &mut round)?;
        if let Some(within) = within {
            round.within = input.put_brackets(within, self.width);
            round.within_count = within.as_slice().len() as u32;
        }
        let starts: Vec<u64> = running(sizes).collect();
        let total: u64 = sizes.iter().sum();
        (round.starts, round.list_count) = (input.put(bytemuck::cast_slice(&starts)), sizes.len() as u32);
        round.map = input.put(bytemuck::cast_slice(map));
        round.words = u32::from(word_bytes.is_some());
        let mut shared = cell_kernels.needed.next_multiple_of(16);
        let staged = |stage: &usize| stage * (self.width.bytes() + 2) + 12 * sizes.len();
        if let Some(stage) = STAGES
            .into_iter()
            .find(|stage| shared + staged(stage) <= self.shared())
        {
            round.stage = stage as u32;
            shared += staged(&stage);
        }
        if shared + 2 * map.len() <= self.shared() {
            round.shared_map = 1;
            shared += 2 * map.len();
        }
        if cell_kernels.liked > 0 && shared + cell_kernels.liked.next_multiple_of(16) <= self.shared() {
            round.shared_edges = 1;
            shared += cell_kernels.liked.next_multiple_of(16);
        }
        let out = self.device.allocate(
            total as usize * word_bytes.unwrap_or(self.width.bytes()),
            self.limit,
        )?;
        let launch = self.launch(cell_kernels.collecting, self.device.multiprocessors(), shared)?;
        let bytes = 8 * sizes.len();
        let found = self.run(input, bytes, 0..bytes, |at, zeroed| {
            round.moved(at);
            (round.cursors, round.out) = (zeroed, out.address());
            on_each(columns, &launch, round)
        })?;
        let found: Vec<u64> = numbers(&found);
        if found != sizes {
            let (expected, found) = (total, found.iter().sum::<u64>());
            return internal_err!(
                "{} lists of {expected} keys have {found} on the device",
                sizes.len()
            );
        }
        Ok(out)
    }

    /// Copies the values of the rows whose keys lie in some cells of splitters, in the order of rows, and returns their number, too. The
    /// cells are those with an entry in `map`; with one cell and no splitters, all rows that are not missing are copied. `None` if
    /// there are more than `most` values.
    ///
    /// # Errors
    /// As [`Self::collect`].
    pub(super) fn compact(
        &self,
        columns: &[ColumnArgument],
        cells: &Cells,
        map: &[u16],
        word_bytes: usize,
        most: u64,
    ) -> Result<Option<(DeviceBuffer, u64)>> {
        let chunks: Vec<u64> = columns
            .iter()
            .map(|column| column.row_count().div_ceil(CHUNK))
            .collect();
        let total_chunks: u64 = chunks.iter().sum();
        let firsts: Vec<u64> = running(&chunks).collect();
        let blocks = 2 * self.device.multiprocessors();
        let run = |name, starts: &[u64], zeroed: usize, out: u64| {
            let (mut input, mut round) = (RoundInput::default(), RoundArgument::default());
            let cell_kernels = CellKernels::of(cells, self.width, GUIDE_MOST_BESIDE, &mut input, &mut round)?;
            round.map = input.put(bytemuck::cast_slice(map));
            round.starts = input.put(bytemuck::cast_slice(starts));
            let mut shared = cell_kernels.needed;
            if shared + cell_kernels.liked <= self.shared() / 2 {
                round.shared_edges = 1;
                shared += cell_kernels.liked;
            }
            let launch = self.launch(name, blocks, shared)?;
            self.run(input, zeroed, 0..zeroed, |at, counts| {
                round.moved(at);
                let rounds = columns.iter().zip(&firsts).map(|(column, first)| RoundArgument {
                    column: *column,
                    counts: counts + 8 * first,
                    starts: round.starts + 8 * first,
                    out,
                    ..round
                });
                rounds.map(|round| (&launch, round)).collect()
            })
        };
        let tallies = run("bk_tally", &[], 8 * total_chunks as usize, 0)?;
        let tallies: Vec<u64> = numbers(&tallies);
        let total: u64 = tallies.iter().sum();
        if total > most {
            return Ok(None);
        }
        let out = self.device.allocate(total as usize * word_bytes, self.limit)?;
        let starts: Vec<u64> = running(&tallies).collect();
        run("bk_compact", &starts, 0, out.address())?;
        Ok(Some((out, total)))
    }

    /// A sample of the `population` keys of all columns: one key in each of `samples` stripes.
    pub(super) fn sample(
        &self,
        columns: &[ColumnArgument],
        population: u64,
        samples: u64,
        seed: u64,
    ) -> Result<Vec<u8>> {
        let bytes = samples as usize * self.width.bytes();
        let out = self.device.allocate(bytes, self.limit)?;
        let launch = self.launch("bk_sample", samples.div_ceil(THREADS as u64) as u32, 0)?;
        let mut offset = 0;
        let rounds = columns.iter().map(|column| {
            let round = RoundArgument {
                column: *column,
                out: out.address(),
                population,
                offset,
                samples,
                seed,
                ..RoundArgument::default()
            };
            offset += column.row_count();
            (&launch, round)
        });
        let rounds: Vec<_> = rounds.collect();
        self.run(RoundInput::default(), 0, 0..0, |_, _| rounds)?;
        self.fetched(&out, bytes)
    }

    /// The least and the greatest key of all columns.
    pub(super) fn extremes(&self, columns: &[ColumnArgument]) -> Result<(KeyBits, KeyBits)> {
        let (mut input, mut round) = (RoundInput::default(), RoundArgument::default());
        let width = self.width.bytes();
        round.extremes = input.put_keys([self.width.max_key(), 0].into_iter(), self.width);
        let launch = self.launch("bk_extremes", self.device.multiprocessors(), 0)?;
        let start = input.0.len();
        let ends = self.run_fetching(input, 16, 0..start, |at, zeroed| {
            round.moved(at);
            round.lock = zeroed;
            on_each(columns, &launch, round)
        })?;
        Ok((key_of(&ends[..width]), key_of(&ends[width..2 * width])))
    }

    /// The keys of `count` rows of a column, from row `from` on.
    pub(super) fn keys(&self, column: ColumnArgument, from: u64, count: u64) -> Result<Vec<u8>> {
        let bytes = count as usize * self.width.bytes();
        let out = self.device.allocate(bytes, self.limit)?;
        let blocks = count
            .div_ceil(THREADS as u64)
            .min(2 * u64::from(self.device.multiprocessors()));
        let launch = self.launch("bk_keys", blocks as u32, 0)?;
        let round = RoundArgument {
            column,
            out: out.address(),
            offset: from,
            samples: count,
            ..RoundArgument::default()
        };
        self.run(RoundInput::default(), 0, 0..0, |_, _| vec![(&launch, round)])?;
        self.fetched(&out, bytes)
    }

    /// The first `bytes` bytes of a buffer, copied to host memory.
    pub(super) fn fetched(&self, buffer: &DeviceBuffer, bytes: usize) -> Result<Vec<u8>> {
        locked(&self.report).bytes_from_device += bytes as u64;
        match bytes {
            0 => Ok(Vec::new()),
            _ => buffer.to_host(0..bytes),
        }
    }

    /// Copies `input` to the workspace, zeroes `zeroed` bytes behind it, puts launches on the stream, and returns the range `back` of the
    /// zeroed bytes. `launches` gets the addresses of the input and of the zeroed bytes.
    fn run<'a>(
        &self,
        input: RoundInput,
        zeroed: usize,
        back: Range<usize>,
        launches: impl FnOnce(u64, u64) -> Vec<(&'a Launch, RoundArgument)>,
    ) -> Result<Vec<u8>> {
        let start = input.0.len().next_multiple_of(256);
        self.run_fetching(input, zeroed, start + back.start..start + back.end, launches)
    }

    /// As [`Self::run`], where the range `back` counts from the front of the input.
    ///
    /// All addresses in rounds lie in columns, in buffers with the room that the pass has counted, or in the workspace.
    fn run_fetching<'a>(
        &self,
        input: RoundInput,
        zeroed: usize,
        back: Range<usize>,
        launches: impl FnOnce(u64, u64) -> Vec<(&'a Launch, RoundArgument)>,
    ) -> Result<Vec<u8>> {
        may_fail!("cuda_round");
        let (device, RoundInput(input)) = (&self.device, input);
        device.check()?;
        let start = input.len().next_multiple_of(256);
        let host_bytes = input.len().max(back.len()).max(1);
        let mut lease = WorkspaceLease::lock(device);
        let workspace = lease.reserve(start + zeroed, host_bytes, self.limit)?;
        if !input.is_empty() {
            workspace.host.bytes_mut()?[..input.len()].copy_from_slice(&input);
            workspace.host.send(0..input.len(), &workspace.device, 0)?;
        }
        if zeroed > 0 {
            workspace.device.zero(start..start + zeroed)?;
        }
        let base = workspace.device.address();
        let mut timeline = Timeline::start(device, false)?;
        let mut read = 0;
        for (launch, round) in launches(base, base + start as u64) {
            read += round.column.row_count();
            timeline.launch(launch, &round)?;
        }
        timeline.end()?;
        if !back.is_empty() {
            workspace.host.fetch(&workspace.device, back.clone())?;
        }
        device.synchronize("a round on the device")?;
        let mut report = locked(&self.report);
        timeline.report(&mut report)?;
        report.bytes_read += read * self.width.bytes() as u64;
        report.bytes_to_device += input.len() as u64;
        report.bytes_from_device += back.len() as u64;
        Ok(workspace.host.bytes()?[..back.len()].to_vec())
    }
}

/// One launch for each of some columns.
fn on_each<'a>(
    columns: &[ColumnArgument],
    launch: &'a Launch,
    round: RoundArgument,
) -> Vec<(&'a Launch, RoundArgument)> {
    let rounds = columns.iter().map(|column| {
        (
            launch,
            RoundArgument {
                column: *column,
                ..round
            },
        )
    });
    rounds.collect()
}

/// The compilation of `kernels/bucket.cu` for values of one format; `masked`: rows can be missing.
pub(super) fn program(format: ColumnFormat, masked: bool) -> Program {
    Program {
        masked,
        // As many vectors in a thread as registers hold.
        batch: match format.per_vector() {
            16 => 1,
            8 => 2,
            _ => 4,
        },
        ..Program::of(KernelFile::Bucket, format)
    }
}

/// For each number, the sum of the numbers before it.
fn running(numbers: &[u64]) -> impl Iterator<Item = u64> {
    numbers.iter().scan(0, |sum, number| {
        let before = *sum;
        *sum += number;
        Some(before)
    })
}

/// Cells between the ends of brackets, and a map that gives the bracket of each cell, or [`NO_LIST`].
///
/// # Errors
/// An internal error for more brackets than there can be cells.
pub(super) fn cells_of(brackets: &[Bracket], width: Width) -> Result<(Cells, Vec<u16>)> {
    let ends = brackets.iter().flat_map(|bracket| {
        let after = (bracket.last < width.max_key()).then(|| bracket.last + 1);
        [Some(bracket.first), after].into_iter().flatten()
    });
    let cells = Cells::Edges(crate::cells::Edges::try_new(ends.collect())?);
    let mut map = vec![NO_LIST; cells.len()];
    for (list, bracket) in brackets.iter().enumerate() {
        let (first, last) = cells.span(bracket)?;
        map[first as usize..=last as usize].fill(list as u16);
    }
    Ok((cells, map))
}
