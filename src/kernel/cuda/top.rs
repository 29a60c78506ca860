//! The k greatest, or least, keys of a column with their rows: the launches of `kernels/top_k.cu`.
//!
//! A sample gives a threshold that at least k keys reach, with near certainty. One read keeps the keys above it with their rows, and
//! counts the keys equal to it. All blocks list the keys near the k-th, and one block selects among them. If the sample misled, the
//! k-th key itself, found by [`Selection`], is the threshold of another read. The host waits once, and twice more in that case.
//!
//! Cost on one H200: 0.3 ms for 1 GiB, to k = 10 000; 0.33 ms for k = 100 000.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};

use super::device::Device;
use super::launch::{ColumnArgument, Kernels, Launch, kernel_argument, key_of};
use super::likely::top_program;
use super::report::Report;
use super::select::Selection;
use super::source::{KernelFile, Program};
use super::timeline::Timeline;
use super::workspace::{Places, Workspace, WorkspaceLease};
use crate::failpoint::may_fail;
use crate::key::KeyBits;

/// Threads of a block, except of those that read the column.
const THREADS: u32 = 1024;
/// Threads of a block that reads the column.
const READING: u32 = 512;
/// Keys between threshold and ceiling that there is room for in shared memory: `FINE_ROOM` of the kernels.
const FINE_ROOM: usize = 1 << 16;
/// Bytes of shared memory that the selecting kernel uses beside the dynamic shared memory, at most.
const STATIC_SHARED: usize = 14 << 10;

/// Places of fields of `TopControl` of the kernels, in bytes from its front.
#[derive(Debug, Clone, Copy)]
struct ControlOffsets {
    /// Bytes of a key.
    key: usize,
}

impl ControlOffsets {
    const CANDIDATES: usize = 16;
    const MORE_TIES: usize = 40;

    fn threshold(self) -> usize {
        48 + self.key
    }

    /// Bytes from the front that are zeroed before the launches and fetched after them.
    fn zeroed(self) -> usize {
        48 + 4 * self.key + 16
    }
}

kernel_argument! {
    /// `struct TopQuery` of `kernels/top_k.cu`.
    struct TopArgument = tk_sizes[1] {
        column: ColumnArgument,
        k: u64,
        kept: u64,
        control: u64,
        keys: u64,
        rows: u64,
        room: u64,
        ties: u64,
        works: u64,
        out_keys: u64,
        out_rows: u64,
        sample_lines: u64,
        seed: u32,
        sigmas: f32,
        near_room: u32,
    }
}

/// A request for the rows with the greatest keys of one column.
#[derive(Debug, Clone, Copy)]
pub struct TopSelection<'a> {
    /// The column, how its values become keys, and which rows count.
    pub among: Selection<'a>,
    /// Whether the rows with the least keys are asked for instead.
    pub least: bool,
}

/// The k rows with the greatest, or least, keys, in any order. If more rows tie with the k-th than fit, any of them are chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Top {
    /// The key of each row.
    pub keys: Vec<KeyBits>,
    /// The number of each row, from 0.
    pub rows: Vec<u64>,
    /// Whether there may be other rows that tie with the k-th.
    pub more_ties: bool,
}

impl TopSelection<'_> {
    /// Most rows of one request.
    pub const MOST: u64 = 1 << 20;

    /// The `k` best rows; `k` is from 1 to the lesser of [`Selection::population`] and [`Self::MOST`]. The cost is added to `report`.
    ///
    /// # Errors
    /// `ResourcesExhausted` where the device's memory, or the limit on it, is too small; an execution error if the device fails;
    /// an internal error for another `k`.
    pub fn rows(&self, k: u64, report: &mut Report) -> Result<Top> {
        if k == 0 || k > self.among.population().min(Self::MOST) {
            return internal_err!("{k} rows asked of a device that has {}", self.among.population());
        }
        may_fail!("cuda_top");
        let prepared = PreparedTop::try_new(self, k as usize)?;
        let missed = match prepared.read(None, report)? {
            Ok(top) => return Ok(top),
            Err(missed) => missed,
        };
        report.second_reads += 1;
        let n = self.among.population();
        let rank = if self.least { k } else { n - k + 1 };
        let kth = self.among.keys(&[rank], report)?;
        let Some(kth) = kth.first() else {
            return internal_err!("rank {rank} of {n} is not to be found on the device");
        };
        match prepared.read(Some(*kth), report)? {
            Ok(top) => Ok(top),
            Err(again) => internal_err!(
                "{k} rows of {n} are not to be found on the device: {missed:?}, then {again:?} at key {kth}"
            ),
        }
    }
}

/// A read that did not find k rows.
#[derive(Debug, Clone, Copy)]
struct MissedRead {
    /// `Outcome` of `kernels/top_k.cu`.
    #[expect(dead_code, reason = "shown")]
    outcome: u32,
    /// Number of keys above the threshold.
    #[expect(dead_code, reason = "shown")]
    above: u64,
}

/// Places in the workspace, in bytes from its front. The answer comes right before `TopControl`, whose front is fetched with it.
#[derive(Debug, Clone, Copy)]
struct Layout {
    out_keys: usize,
    out_rows: usize,
    control: usize,
    keys: usize,
    rows: usize,
    ties: usize,
    works: usize,
    /// Number of candidates that there is room for.
    room: usize,
    bytes: usize,
}

/// A request whose kernels are loaded.
struct PreparedTop<'a> {
    selection: Selection<'a>,
    least: bool,
    device: &'a Arc<Device>,
    k: usize,
    key_bytes: usize,
    offsets: ControlOffsets,
    layout: Layout,
    kernels: Kernels,
}

impl<'a> PreparedTop<'a> {
    fn try_new(top: &TopSelection<'a>, k: usize) -> Result<Self> {
        let selection = top.among;
        let device = selection.column.device();
        device.check()?;
        let program = Program {
            batch: top_program(selection.format).batch,
            descending: top.least,
            ..selection.program(KernelFile::TopK)
        };
        let key_bytes = selection.format.key_bytes();
        let kernels = Kernels::load(device, &program, [0, 0, key_bytes, 0])?;
        let (control, chunk) = (kernels.size(0), kernels.size(3).max(1));
        let offsets = ControlOffsets { key: key_bytes };
        if control < offsets.zeroed() {
            return internal_err!(
                "{control} bytes of control, the host looks at {}",
                offsets.zeroed()
            );
        }
        let chunks = selection.column.rows().div_ceil(chunk as u64) as usize;
        Ok(Self {
            selection,
            least: top.least,
            device,
            k,
            key_bytes,
            offsets,
            layout: layout(k, key_bytes, control, chunks),
            kernels,
        })
    }

    /// Runs one sequence of launches with one read. It misses if its threshold is too high or too low, which the k-th key is not.
    fn read(&self, kth: Option<KeyBits>, report: &mut Report) -> Result<Result<Top, MissedRead>> {
        let launches = self.launches(kth.is_none())?;
        let (layout, limit) = (&self.layout, self.selection.limit);
        let fetched = layout.out_keys..layout.control + self.offsets.zeroed();
        let mut lease = WorkspaceLease::lock(self.device);
        let workspace = lease.reserve(layout.bytes, fetched.len(), limit)?;
        let mut timeline = Timeline::start(self.device, self.selection.timed)?;
        self.enqueue(kth, &launches, workspace, &mut timeline)?;
        timeline.end()?;
        workspace.host.fetch(&workspace.device, fetched.clone())?;
        self.device.synchronize("selecting rows on the device")?;
        timeline.report(report)?;
        report.bytes_read += self.selection.bytes();
        report.bytes_from_device += fetched.len() as u64;
        Ok(self.answer(workspace.host.bytes()?))
    }

    /// Puts all work on the stream. The workspace has the room that `layout` and the query say.
    fn enqueue(
        &self,
        kth: Option<KeyBits>,
        launches: &[Launch],
        workspace: &mut Workspace,
        timeline: &mut Timeline<'_>,
    ) -> Result<()> {
        let layout = &self.layout;
        let device = &mut workspace.device;
        device.zero(layout.control..layout.control + self.offsets.zeroed())?;
        device.zero(layout.ties..layout.works)?;
        if let Some(kth) = kth {
            // For the least keys, kernels rank complements.
            let bits = if self.least { !kth } else { kth };
            let bytes = &bits.to_le_bytes()[..self.key_bytes];
            workspace.host.bytes_mut()?[..self.key_bytes].copy_from_slice(bytes);
            let at = layout.control + self.offsets.threshold();
            workspace.host.send(0..self.key_bytes, &workspace.device, at)?;
        }
        let query = self.query(workspace.device.address());
        for launch in launches {
            timeline.launch(launch, &query)?;
        }
        Ok(())
    }

    fn launches(&self, samples: bool) -> Result<Vec<Launch>> {
        let one_each = self.device.multiprocessors();
        let all = 2 * one_each;
        // A thread for each candidate: there are some more than k.
        let listing = (self.k as u32 / THREADS + 1).min(one_each);
        let shared = self.key_bytes * self.near_room();
        let sequence = [
            ("tk_draw", [8, THREADS], 0),
            ("tk_coarse", [1, THREADS], 0),
            ("tk_sample", [all, THREADS], 0),
            ("tk_threshold", [2, THREADS], 0),
            ("tk_filter", [all, READING], 0),
            ("tk_select", [listing, THREADS], shared),
            ("tk_emit", [all, READING], 0),
        ];
        let first = if samples { 0 } else { 4 };
        let launches = sequence[first..]
            .iter()
            .map(|(name, grid, shared)| self.kernels.launch(name, *grid, *shared));
        Ok(Launch::in_a_row(self.device, launches.collect::<Result<_>>()?))
    }

    /// Number of keys that fit in the selecting kernel's shared memory.
    fn near_room(&self) -> usize {
        let bytes = self.device.shared_memory().saturating_sub(STATIC_SHARED);
        (bytes / self.key_bytes).min(FINE_ROOM)
    }

    fn query(&self, base: u64) -> TopArgument {
        let (selection, layout) = (&self.selection, &self.layout);
        let (rows, k) = (selection.column.rows(), self.k as u64);
        let least = 1 << 14;
        let sample = (rows / 16)
            .max(least)
            .min((rows.saturating_mul(1 << 13) / k).max(least))
            .min(1 << 22);
        let at = |offset: usize| base + offset as u64;
        TopArgument {
            column: selection.argument(),
            k,
            kept: selection.population(),
            control: at(layout.control),
            keys: at(layout.keys),
            rows: at(layout.rows),
            room: layout.room as u64,
            ties: at(layout.ties),
            works: at(layout.works),
            out_keys: at(layout.out_keys),
            out_rows: at(layout.out_rows),
            sample_lines: sample / (8 * selection.format.per_vector() as u64),
            seed: 1,
            sigmas: 4.0,
            near_room: self.near_room() as u32,
        }
    }

    /// Reads the answer in the bytes that were fetched.
    fn answer(&self, fetched: &[u8]) -> Result<Top, MissedRead> {
        let (layout, width) = (&self.layout, self.key_bytes);
        let control = &fetched[layout.control - layout.out_keys..];
        let word = |at: usize| u64::from_le_bytes(control[at..].as_chunks().0[0]);
        let outcome = word(0) as u32;
        if outcome != 0 {
            let above = word(ControlOffsets::CANDIDATES);
            return Err(MissedRead { outcome, above });
        }
        let rows = &fetched[layout.out_rows - layout.out_keys..];
        Ok(Top {
            keys: fetched.chunks_exact(width).take(self.k).map(key_of).collect(),
            rows: rows.as_chunks::<8>().0[..self.k]
                .iter()
                .map(|row| u64::from_le_bytes(*row))
                .collect(),
            more_ties: control[ControlOffsets::MORE_TIES] != 0,
        })
    }
}

fn layout(k: usize, key_bytes: usize, control_bytes: usize, chunks: usize) -> Layout {
    let room = (4 * k + 1024).max(1 << 16);
    let mut places = Places::default();
    let mut take = |bytes| places.take(bytes);
    Layout {
        out_keys: take(k * key_bytes),
        out_rows: take(8 * k),
        control: take(control_bytes),
        keys: take(room * key_bytes),
        rows: take(8 * room),
        ties: take(2 * chunks),
        works: take(16 * k.min(chunks)),
        room,
        bytes: places.end(),
    }
}
