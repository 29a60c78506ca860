//! Passes over columns without NULLs: the launches of `kernels/bucket.cu`, one request a launch and column.
//!
//! What a pass needs (splitters, brackets, a map) goes to the device's workspace in one copy, what it counts comes back in one,
//! and the host waits for it once: about 20 microseconds beside the reading, which is 4.2 TB/s on an H200 for a cell table and
//! 2 TB/s and more for splitters.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use cudarc::driver::DeviceRepr;
use datafusion::common::{Result, internal_err};

use super::buffer::DeviceBuffer;
use super::device::{Device, Module, locked};
use super::sequence::{ColumnArgument, Launch, Report, Timeline, Workspace};
use super::source::{KernelFile, Program, Words};
use crate::cells::{Bracket, Brackets};
use crate::cells::{CellTable, Cells};
use crate::failpoint::may_fail;
use crate::key::KeyVec;
use crate::key::{KeyBits, Width};

const THREADS: usize = 1024;
/// Bytes of `Round`, of `Piece` and of a key; copies of a table's entries among plain counts.
const SIZES: &str = "bk_sizes";
/// Bytes of a [`CellTable`]'s entries in shared memory.
const TABLE_BYTES: usize = 2048 * 4;
/// Cells of a guide to splitters, beside one for each entry: for each splitter, at least, and at most where keys are counted
/// and where other things share the memory with it.
const GUIDE_SHARE: usize = 4;
const GUIDE_LEAST: usize = 4096;
const GUIDE_MOST: usize = 28_000;
const GUIDE_MOST_BESIDE: usize = 12_000;
/// Bytes of the guide to pieces.
const PLACE_BYTES: usize = (2048 + 8) * 2;
/// Shared memory that kernels use beside what is asked for at the launch, at most; the driver takes 1 KiB.
const STATIC_SHARED: usize = 2048;
/// Rows of a chunk, which one block reads in their order.
const CHUNK: u64 = 1 << 16;
/// Keys that wait in shared memory, best first.
const STAGES: [usize; 4] = [8192, 4096, 2048, 1024];
/// No list, in a map from cells to lists.
pub(super) const NO_LIST: u16 = u16::MAX;

/// `struct Round` of `kernels/bucket.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct RoundArgument {
    column: ColumnArgument,
    within: u64,
    counts: u64,
    entries: u64,
    edges: u64,
    pieces: u64,
    map: u64,
    starts: u64,
    cursors: u64,
    out: u64,
    extremes: u64,
    lock: u64,
    population: u64,
    offset: u64,
    samples: u64,
    seed: u64,
    base: [u64; 2],
    top: [u64; 2],
    heavy: [[u64; 2]; 8],
    within_count: u32,
    cells: u32,
    shared_cells: u32,
    shift: u32,
    entry_count: u32,
    heavy_count: u32,
    edge_count: u32,
    piece_count: u32,
    shared_edges: u32,
    shared_map: u32,
    list_count: u32,
    stage: u32,
    words: u32,
    guide_cells: u32,
}

const _: () = assert!(CellTable::MOST_HEAVY == 8, "places for heavy keys");

// SAFETY: plain integers in the layout of C, as the kernels' own structure; `bk_sizes` is compared with its size.
#[allow(unsafe_code, reason = "a structure for kernels")]
unsafe impl DeviceRepr for RoundArgument {}

/// A key as kernels take it, the low half first.
fn halves(key: KeyBits) -> [u64; 2] {
    [key as u64, (key >> 64) as u64]
}

/// Bytes on their way to the device, each part aligned to 16.
#[derive(Debug, Default)]
struct Sent(Vec<u8>);

impl Sent {
    /// Where the part starts.
    fn put(&mut self, part: &[u8]) -> u64 {
        let start = self.0.len();
        self.0.extend_from_slice(part);
        self.0.resize(self.0.len().next_multiple_of(16), 0);
        start as u64
    }

    fn put_keys(&mut self, keys: impl Iterator<Item = KeyBits>, width: Width) -> u64 {
        let bytes: Vec<u8> = keys
            .flat_map(|key| key.to_le_bytes().into_iter().take(width.bytes()))
            .collect();
        self.put(&bytes)
    }

    fn put_brackets(&mut self, brackets: &Brackets, width: Width) -> u64 {
        let ends = brackets.as_slice().iter();
        self.put_keys(ends.flat_map(|bracket| [bracket.first, bracket.last]), width)
    }
}

/// A cell function as kernels take it: its kernels, and the shared memory that it cannot do without and that it likes to have.
struct Classes {
    /// Counting plainly and otherwise.
    counting: [&'static str; 2],
    collecting: &'static str,
    needed: usize,
    liked: usize,
}

impl Classes {
    /// Puts the function into `sent` and `round`; addresses count from the front of what is sent. A guide has at most so many
    /// cells beside its entries.
    ///
    /// # Errors
    /// An internal error if splitters are not ascending.
    fn of(
        cells: &Cells,
        width: Width,
        guide_most: usize,
        sent: &mut Sent,
        round: &mut RoundArgument,
    ) -> Result<Self> {
        round.cells = cells.len() as u32;
        Ok(match cells {
            Cells::Table(table) => {
                round.put_table(table, sent);
                round.heavy_count = table.heavy.len() as u32;
                for (place, heavy) in round.heavy.iter_mut().zip(&table.heavy) {
                    *place = halves(*heavy);
                }
                let plain = match round.heavy_count {
                    0 => "bk_count_table",
                    _ => "bk_count_table_heavy",
                };
                Self {
                    counting: [plain, "bk_count_table_any"],
                    collecting: "bk_collect_table",
                    needed: TABLE_BYTES,
                    liked: 0,
                }
            }
            Cells::Edges(edges) => {
                let edges = edges.as_slice();
                round.edges = sent.put_keys(edges.iter().copied(), width);
                round.edge_count = edges.len() as u32;
                let mut needed = 0;
                if !edges.is_empty() {
                    let most = (GUIDE_SHARE * edges.len()).clamp(GUIDE_LEAST, guide_most);
                    let guide =
                        CellTable::from_sample(&KeyVec::from_bits(edges.iter().copied(), width), most)?;
                    round.put_table(&guide, sent);
                    round.guide_cells = guide.len() as u32;
                    // A word more, in whole vectors.
                    needed = TABLE_BYTES + (guide.len() + 1).next_multiple_of(4) * 4;
                }
                Self {
                    counting: ["bk_count_edges", "bk_count_edges_any"],
                    collecting: "bk_collect_edges",
                    needed,
                    liked: edges.len() * width.bytes(),
                }
            }
            Cells::Linear(linear) => {
                let mut bytes = Vec::new();
                for piece in &linear.pieces {
                    for end in [piece.first, piece.last] {
                        bytes.extend_from_slice(&end.to_le_bytes()[..width.bytes()]);
                    }
                    bytes.extend_from_slice(&piece.slope.to_le_bytes());
                    bytes.extend_from_slice(&piece.base.to_le_bytes());
                    bytes.extend_from_slice(&piece.shift.to_le_bytes());
                }
                round.piece_count = linear.pieces.len() as u32;
                round.pieces = sent.put(&bytes);
                Self {
                    counting: ["bk_count_linear", "bk_count_linear_any"],
                    collecting: "bk_collect_linear",
                    needed: 0,
                    liked: PLACE_BYTES + bytes.len(),
                }
            }
        })
    }
}

/// Kernels over values of one kind, on one device.
#[derive(Debug, Clone)]
pub(super) struct Passes {
    device: Arc<Device>,
    module: Arc<Module>,
    width: Width,
    /// Copies of a table's entries among plain counts.
    copies: usize,
    /// Most device memory that this crate may hold.
    limit: Option<u64>,
    report: Arc<Mutex<Report>>,
}

impl Passes {
    /// `masked`: rows can be missing.
    ///
    /// # Errors
    /// Those of the device and of the compiler.
    pub(super) fn try_new(
        device: &Arc<Device>,
        words: Words,
        width: Width,
        masked: bool,
        limit: Option<u64>,
        report: &Arc<Mutex<Report>>,
    ) -> Result<Self> {
        device.check()?;
        let module = device.module(&program(words, masked))?;
        let sizes = module.sizes(device, SIZES)?;
        let piece = (2 * width.bytes() + 16).next_multiple_of(width.bytes().max(8));
        let expected = [size_of::<RoundArgument>(), piece, words.key_bytes()];
        if sizes[..3] != expected.map(|bytes| bytes as u32) || width.bytes() != words.key_bytes() {
            return internal_err!("kernels expect structures of {sizes:?} bytes, the host has {expected:?}");
        }
        Ok(Self {
            device: Arc::clone(device),
            module,
            width,
            copies: sizes[3] as usize,
            limit,
            report: Arc::clone(report),
        })
    }

    /// Dynamic shared memory that a block may have.
    fn shared(&self) -> usize {
        self.device.shared_memory().saturating_sub(STATIC_SHARED)
    }

    fn launch(&self, name: &'static str, blocks: u32, shared: usize) -> Result<Launch> {
        Launch::try_new(
            &self.device,
            &self.module,
            name,
            [blocks.max(1), THREADS as u32],
            shared,
        )
    }

    /// Keys in each cell; of those inside `within`, if given.
    pub(super) fn count(
        &self,
        columns: &[ColumnArgument],
        cells: &Cells,
        within: Option<&Brackets>,
    ) -> Result<Vec<u64>> {
        let (mut sent, mut round) = (Sent::default(), RoundArgument::default());
        let classes = Classes::of(cells, self.width, GUIDE_MOST, &mut sent, &mut round)?;
        if let Some(within) = within {
            round.within = sent.put_brackets(within, self.width);
            round.within_count = within.as_slice().len() as u32;
        }
        let (counters, mut shared, [mut counting, any]) = (4 * cells.len(), classes.needed, classes.counting);
        let copied = match cells {
            Cells::Table(_) => self.copies * TABLE_BYTES,
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
        if classes.liked > 0 && shared + classes.liked <= self.shared() {
            round.shared_edges = 1;
            shared += classes.liked;
        }
        let launch = self.launch(counting, self.device.multiprocessors(), shared)?;
        let bytes = 8 * cells.len();
        let counted = self.run(sent, bytes, 0..bytes, |at, zeroed| {
            round.moved(at);
            round.counts = zeroed;
            on_each(columns, &launch, round)
        })?;
        Ok(words_of(&counted))
    }

    /// The keys of cells, a list for each: `map` says which list a cell goes to, `sizes` how many keys that are. `words`: as
    /// they lie in the column, instead of keys. The lists come one after the other.
    ///
    /// # Errors
    /// `ResourcesExhausted` where there is no device memory for them; an internal error if the device counts others.
    pub(super) fn collect(
        &self,
        columns: &[ColumnArgument],
        cells: &Cells,
        (map, sizes): (&[u16], &[u64]),
        within: Option<&Brackets>,
        words: Option<usize>,
    ) -> Result<DeviceBuffer> {
        let (mut sent, mut round) = (Sent::default(), RoundArgument::default());
        let classes = Classes::of(cells, self.width, GUIDE_MOST_BESIDE, &mut sent, &mut round)?;
        if let Some(within) = within {
            round.within = sent.put_brackets(within, self.width);
            round.within_count = within.as_slice().len() as u32;
        }
        let starts: Vec<u64> = running(sizes).collect();
        let total: u64 = sizes.iter().sum();
        (round.starts, round.list_count) = (sent.put(bytemuck::cast_slice(&starts)), sizes.len() as u32);
        round.map = sent.put(bytemuck::cast_slice(map));
        round.words = u32::from(words.is_some());
        let mut shared = classes.needed.next_multiple_of(16);
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
        if classes.liked > 0 && shared + classes.liked.next_multiple_of(16) <= self.shared() {
            round.shared_edges = 1;
            shared += classes.liked.next_multiple_of(16);
        }
        let out = self
            .device
            .allocate(total as usize * words.unwrap_or(self.width.bytes()), self.limit)?;
        let launch = self.launch(classes.collecting, self.device.multiprocessors(), shared)?;
        let bytes = 8 * sizes.len();
        let found = self.run(sent, bytes, 0..bytes, |at, zeroed| {
            round.moved(at);
            (round.cursors, round.out) = (zeroed, out.address());
            on_each(columns, &launch, round)
        })?;
        let found: Vec<u64> = words_of(&found);
        if found != sizes {
            let (expected, found) = (total, found.iter().sum::<u64>());
            return internal_err!(
                "{} lists of {expected} keys have {found} on the device",
                sizes.len()
            );
        }
        Ok(out)
    }

    /// The words of the rows whose keys lie in some cells of splitters, in their order, and how many they are; `None`: more than
    /// `most`. A `map` of one entry and no splitters: all rows that are not missing.
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
            let (mut sent, mut round) = (Sent::default(), RoundArgument::default());
            let classes = Classes::of(cells, self.width, GUIDE_MOST_BESIDE, &mut sent, &mut round)?;
            round.map = sent.put(bytemuck::cast_slice(map));
            round.starts = sent.put(bytemuck::cast_slice(starts));
            let mut shared = classes.needed;
            if shared + classes.liked <= self.shared() / 2 {
                round.shared_edges = 1;
                shared += classes.liked;
            }
            let launch = self.launch(name, blocks, shared)?;
            self.run(sent, zeroed, 0..zeroed, |at, counts| {
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
        let tallies: Vec<u64> = words_of(&tallies);
        let total: u64 = tallies.iter().sum();
        if total > most {
            return Ok(None);
        }
        let out = self.device.allocate(total as usize * word_bytes, self.limit)?;
        let starts: Vec<u64> = running(&tallies).collect();
        run("bk_compact", &starts, 0, out.address())?;
        Ok(Some((out, total)))
    }

    /// `samples` of the `population` keys of all columns, one in each of as many stripes.
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
        self.run(Sent::default(), 0, 0..0, |_, _| rounds)?;
        self.fetched(&out, bytes)
    }

    /// The least and the greatest key.
    pub(super) fn extremes(&self, columns: &[ColumnArgument]) -> Result<(KeyBits, KeyBits)> {
        let (mut sent, mut round) = (Sent::default(), RoundArgument::default());
        let width = self.width.bytes();
        round.extremes = sent.put_keys([self.width.max_key(), 0].into_iter(), self.width);
        let launch = self.launch("bk_extremes", self.device.multiprocessors(), 0)?;
        let start = sent.0.len();
        let ends = self.run_fetching(sent, 16, 0..start, |at, zeroed| {
            round.moved(at);
            round.lock = zeroed;
            on_each(columns, &launch, round)
        })?;
        let key = |from: usize| {
            let mut bits = [0; 16];
            bits[..width].copy_from_slice(&ends[from..from + width]);
            KeyBits::from_le_bytes(bits)
        };
        Ok((key(0), key(width)))
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
        self.run(Sent::default(), 0, 0..0, |_, _| vec![(&launch, round)])?;
        self.fetched(&out, bytes)
    }

    /// The front of a buffer, in host memory.
    pub(super) fn fetched(&self, buffer: &DeviceBuffer, bytes: usize) -> Result<Vec<u8>> {
        locked(&self.report).bytes_from_device += bytes as u64;
        match bytes {
            0 => Ok(Vec::new()),
            _ => buffer.to_host(0..bytes),
        }
    }

    /// Sends, zeroes so many bytes, launches, and brings back a range of what was zeroed. `launches` gets the addresses of both.
    fn run<'a>(
        &self,
        sent: Sent,
        zeroed: usize,
        back: Range<usize>,
        launches: impl FnOnce(u64, u64) -> Vec<(&'a Launch, RoundArgument)>,
    ) -> Result<Vec<u8>> {
        let start = sent.0.len().next_multiple_of(256);
        self.run_fetching(sent, zeroed, start + back.start..start + back.end, launches)
    }

    /// The same, with a range of all: what is sent comes first.
    #[allow(unsafe_code, reason = "kernels are launched")]
    fn run_fetching<'a>(
        &self,
        sent: Sent,
        zeroed: usize,
        back: Range<usize>,
        launches: impl FnOnce(u64, u64) -> Vec<(&'a Launch, RoundArgument)>,
    ) -> Result<Vec<u8>> {
        may_fail!("cuda_round");
        let (device, Sent(sent)) = (&self.device, sent);
        device.check()?;
        let start = sent.len().next_multiple_of(256);
        let mut held = device.workspace();
        let host_bytes = sent.len().max(back.len()).max(1);
        Workspace::reserve(&mut held, device, start + zeroed, host_bytes, self.limit)?;
        let workspace = Workspace::of(&mut held)?;
        if !sent.is_empty() {
            workspace.host.bytes_mut()?[..sent.len()].copy_from_slice(&sent);
            workspace.host.send(0..sent.len(), &workspace.device, 0)?;
        }
        if zeroed > 0 {
            workspace.device.zero(start..start + zeroed)?;
        }
        let base = workspace.device.address();
        let mut timeline = Timeline::start(device, false)?;
        let mut read = 0;
        for (launch, round) in launches(base, base + start as u64) {
            read += round.column.row_count();
            // SAFETY: the kernel's one parameter is this structure, whose size was compared at load. Its addresses lie in
            // columns, in buffers with the room that the pass has counted, and in the workspace, which is locked; all live
            // until the stream was waited for below, or are freed on it.
            unsafe { launch.run(device, &round) }?;
            timeline.passed(launch.name)?;
        }
        timeline.end()?;
        if !back.is_empty() {
            workspace.host.fetch(&workspace.device, back.clone())?;
        }
        device.synchronize("a round on the device")?;
        let mut report = locked(&self.report);
        timeline.report(&mut report)?;
        report.bytes_read += read * self.width.bytes() as u64;
        report.bytes_to_device += sent.len() as u64;
        report.bytes_from_device += back.len() as u64;
        Ok(workspace.host.bytes()?[..back.len()].to_vec())
    }
}

impl RoundArgument {
    /// The entries and ends of a table.
    fn put_table(&mut self, table: &CellTable, sent: &mut Sent) {
        let entries = table.entries.iter().flat_map(|entry| [entry.add, entry.shift]);
        self.entries = sent.put(bytemuck::cast_slice(&entries.collect::<Vec<u32>>()));
        self.entry_count = table.entries.len() as u32;
        (self.base, self.top) = (halves(table.base), halves(table.top));
        self.shift = table.shift;
    }

    /// What was sent lies at `base`.
    fn moved(&mut self, base: u64) {
        for address in [
            &mut self.within,
            &mut self.entries,
            &mut self.edges,
            &mut self.pieces,
            &mut self.map,
            &mut self.starts,
            &mut self.extremes,
        ] {
            *address += base;
        }
    }
}

/// The same launch over each of some columns.
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

/// The compilation for values of one kind.
pub(super) fn program(words: Words, masked: bool) -> Program {
    Program {
        file: KernelFile::Bucket,
        words,
        masked,
        // As many keys in a thread as registers hold.
        batch: match words.per_vector() {
            16 => 1,
            8 => 2,
            _ => 4,
        },
        descending: false,
    }
}

/// Bytes of the device as the words that they are.
pub(super) fn words_of<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    let mut words = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut words).copy_from_slice(bytes);
    words
}

/// The sum of the numbers before each.
fn running(numbers: &[u64]) -> impl Iterator<Item = u64> {
    numbers.iter().scan(0, |sum, number| {
        let before = *sum;
        *sum += number;
        Some(before)
    })
}

/// Splitters between the ends of brackets, and the bracket of each of their cells.
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
