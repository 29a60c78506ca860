//! The best rows of groups whose rows lie together: the launches of `kernels/warp_select.cu`.
//!
//! If the rows of a table lie in long runs of equal values of the group columns, as after an `ORDER BY` of these or of a day, no sort
//! has to bring groups together. One read of the keys finds the rows of each run whose keys are among its `k` greatest, and all rows
//! that tie with the k-th. The answer is among these few rows. A run that is too long for a block is divided into pieces.
//!
//! A block reads a run in three steps: a floor from a sample of the run, one read that keeps the values that reach the floor in shared
//! memory, and selection among these. Where it was measured to be faster, a warp reads a run instead (WarpSelect, Johnson, Douze and
//! Jegou 2017, section IV).

use datafusion::common::Result;

use super::buffer::DeviceBuffer;
use super::group::Groups;
use super::launch::{ColumnArgument, Kernels, kernel_argument};
use super::report::Report;
use super::run_starts::run_starts;
use super::select::Selection;
use super::source::{KernelFile, Program};
use super::timeline::Timeline;

/// Warps of a block in which each warp reads a run.
const WARPS: u32 = 4;
/// Threads of a block that reads a run.
const RUN_THREADS: u32 = 512;
/// Most rows of a piece.
const LONGEST: u64 = 1 << 17;
/// Pieces for each multiprocessor, which fill the device.
const PIECES: u64 = 32;
/// Least rows of a piece of a longer run.
const LEAST_PIECE: u64 = 1 << 14;
/// At most one row in so many is found; with more, records of all rows are not much slower.
const FEW: u64 = 8;
/// For a `k` up to the first number, the second one is the number of values of a sample.
const SAMPLES: [(u64, usize); 3] = [(256, 2048), (2048, 4096), (u64::MAX, 8192)];
/// Bytes of shared memory that `ws_block_runs` uses beside its candidates, at most.
const STATIC_SHARED: usize = 16 << 10;
/// Rows that there is room for beyond `k` of each piece, because some tie.
const TIES: u64 = 1 << 16;
/// Queues of warps: most rows of the queue, its kernel, and the longest run, in rows with keys of 32 bits, for which warps were faster
/// than blocks (`benches/results/2026-11-22-cuda-runs.md`).
const QUEUES: [(u64, &str, u64); 4] = [
    (32, "ws_runs_32", 64_000),
    (128, "ws_runs_128", 8000),
    (256, "ws_runs_256", 4000),
    (1024, "ws_runs_1024", 0),
];

kernel_argument! {
    /// `struct Runs` of `kernels/warp_select.cu`.
    struct RunsArgument = ws_sizes[0] {
        column: ColumnArgument,
        starts: u64,
        which: u64,
        rows: u64,
        cursors: u64,
        left: u64,
        room: u64,
        count: u64,
        k: u32,
        sample: u32,
        candidates: u32,
        unused: u32,
    }
}

/// What reads a run: a block or a warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunReader {
    /// The one that was measured to be faster.
    Either,
    /// A block.
    Block,
    /// A warp.
    Warp,
}

/// Rows that include the answer.
#[derive(Debug)]
pub(super) struct Candidates {
    /// Row numbers of 8 bytes each, in any order.
    pub(super) rows: DeviceBuffer,
    pub(super) count: u64,
}

/// A request for the rows of each run whose keys are among the `k` best.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunSelection<'a> {
    pub(super) keys: &'a Selection<'a>,
    /// Whether the least keys are the best.
    pub(super) least: bool,
    pub(super) k: u64,
    pub(super) reader: RunReader,
}

/// How a block reads a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockPlan {
    /// Vectors of 16 bytes in the sample.
    sample: usize,
    /// Keys, with their places, that shared memory has room for.
    candidates: usize,
    /// Bytes of shared memory for these.
    shared: usize,
}

impl<'a> RunSelection<'a> {
    /// Rows that include the best of each group. `None` if groups do not lie together in long runs, or if too many keys tie. Waits for
    /// the device.
    ///
    /// # Errors
    /// `ResourcesExhausted` if device memory ends; an execution error if the device fails.
    pub(super) fn rows(
        &self,
        groups: &Groups<'a>,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<Option<Candidates>> {
        let (device, format) = (groups.device, self.keys.format);
        let Some(plan) = block_plan(self.k, format.value_bytes(), device.shared_memory()) else {
            return Ok(None);
        };
        let Some(starts) = run_starts(groups, report)? else {
            return Ok(None);
        };
        let pieces = pieces(&starts, self.k, u64::from(device.multiprocessors()));
        let count = pieces.len() as u64 - 1;
        let lengths = pieces.windows(2).map(|piece| piece[1] - piece[0]);
        let longest = lengths.clone().max().unwrap_or(0);
        let expected_rows: u64 = lengths.map(|length| length.min(self.k)).sum();
        if expected_rows.saturating_mul(FEW) > self.keys.population() || u32::try_from(count).is_err() {
            return Ok(None);
        }
        let room = (expected_rows + expected_rows / 8 + TIES).min(self.keys.column.rows());
        let rows = device.allocate(room as usize * size_of::<u64>(), groups.limit)?;
        // Cursors lie behind the pieces.
        let cursors = size_of_val(pieces.as_slice());
        let end = cursors + 2 * size_of::<u64>();
        let mut lists = device.allocate(end, groups.limit)?;
        lists.fill(bytemuck::cast_slice(&pieces))?;
        lists.zero(cursors..end)?;
        report.bytes_to_device += cursors as u64;
        let left = device.allocate(count as usize * size_of::<u32>(), groups.limit)?;
        let argument = RunsArgument {
            column: self.keys.argument(),
            starts: lists.address(),
            rows: rows.address(),
            cursors: lists.address() + cursors as u64,
            left: left.address(),
            room,
            count,
            k: self.k as u32,
            sample: plan.sample as u32,
            candidates: plan.candidates as u32,
            ..RunsArgument::default()
        };
        report.bytes_read += self.keys.bytes();
        let queue = queue(self.k, longest, format.value_bytes(), self.reader);
        timeline.restart()?;
        match queue {
            Some((most, name)) => {
                let blocks = (count as u32).div_ceil(WARPS);
                self.launch(most, name, [blocks, 32 * WARPS], 0, &argument, timeline)?;
            }
            None => self.by_blocks(count, plan, &argument, timeline)?,
        }
        let mut found = lists.to_numbers(cursors..end)?;
        // Warps find only ties that are in their queues. Blocks read the runs with other ties again.
        let ties = found.last().copied().unwrap_or(0);
        if queue.is_some() && ties > 0 {
            let again = device.allocate(ties as usize * size_of::<u32>(), groups.limit)?;
            lists.zero(cursors + size_of::<u64>()..end)?;
            let argument = RunsArgument {
                which: left.address(),
                left: again.address(),
                count: ties,
                ..argument
            };
            self.by_blocks(ties, plan, &argument, timeline)?;
            found = lists.to_numbers(cursors..end)?;
        }
        match found.as_slice() {
            [count, 0] if *count <= room => Ok(Some(Candidates { rows, count: *count })),
            _ => {
                report.second_reads += 1;
                Ok(None)
            }
        }
    }

    /// Launches one block for each of `count` pieces.
    fn by_blocks(
        &self,
        count: u64,
        plan: BlockPlan,
        argument: &RunsArgument,
        timeline: &mut Timeline<'_>,
    ) -> Result<()> {
        let grid = [count as u32, RUN_THREADS];
        self.launch(1, "ws_block_runs", grid, plan.shared, argument, timeline)
    }

    /// Launches a kernel. All pieces lie within the column, whose last vector may be read beyond its rows.
    fn launch(
        &self,
        queue: u64,
        name: &'static str,
        grid: [u32; 2],
        shared: usize,
        argument: &RunsArgument,
        timeline: &mut Timeline<'_>,
    ) -> Result<()> {
        let device = self.keys.column.device();
        let program = Program {
            batch: queue as u32,
            descending: self.least,
            ..self.keys.program(KernelFile::WarpSelect)
        };
        let key = self.keys.format.key_bytes();
        let expected = [0, key, WARPS as usize, RUN_THREADS as usize];
        let kernels = Kernels::load(device, &program, expected)?;
        timeline.launch(&kernels.launch(name, grid, shared)?, argument)
    }
}

/// How a block with `shared` bytes of shared memory reads runs of values of `value_bytes` bytes for `k` rows each. `None` if it cannot.
fn block_plan(k: u64, value_bytes: usize, shared: usize) -> Option<BlockPlan> {
    // Shorter values have too many ties.
    let per_vector = match value_bytes {
        4 | 8 | 16 => 16 / value_bytes,
        _ => return None,
    };
    let (_, values) = SAMPLES.iter().find(|(most, _)| k <= *most)?;
    let candidates = values
        .max(&(2 * usize::try_from(k).ok()? + 2048))
        .next_multiple_of(4);
    let bytes = candidates * (value_bytes + size_of::<u32>());
    (bytes + STATIC_SHARED <= shared).then_some(BlockPlan {
        sample: (values / per_vector).max(RUN_THREADS as usize),
        candidates,
        shared: bytes,
    })
}

/// The queue and the kernel of warps that select `k` rows in runs of at most `longest` rows. `None` if blocks are to read them.
fn queue(k: u64, longest: u64, value_bytes: usize, reader: RunReader) -> Option<(u64, &'static str)> {
    let (most, name, fastest) = QUEUES.iter().find(|(most, ..)| k <= *most)?;
    let is_wanted = match reader {
        RunReader::Block => false,
        RunReader::Warp => value_bytes <= 8,
        // With items of 128 bits warps were not faster.
        RunReader::Either => value_bytes == 4 && longest <= *fastest,
    };
    is_wanted.then_some((*most, name))
}

/// First rows of the pieces of all runs, and the number of rows at the end. A run is one piece if it is short enough.
fn pieces(starts: &[u64], k: u64, multiprocessors: u64) -> Vec<u64> {
    let rows = starts.last().copied().unwrap_or(0);
    let even = rows / (PIECES * multiprocessors.max(1));
    let most = even.max(LEAST_PIECE).max(2 * FEW * k).min(LONGEST);
    let mut firsts = vec![0];
    for run in starts.windows(2) {
        let (start, length) = (run[0], run[1] - run[0]);
        let count = length.div_ceil(most);
        firsts.extend(
            (1..=count)
                .map(|piece| start + (u128::from(length) * u128::from(piece) / u128::from(count)) as u64),
        );
    }
    firsts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_runs_and_none_is_in_two() {
        let starts = [0, 10, 500_000, 500_001, 3_000_000];
        for (k, multiprocessors) in [(1, 132), (1000, 132), (10, 1), (5000, 8)] {
            let pieces = pieces(&starts, k, multiprocessors);
            assert!(
                pieces
                    .windows(2)
                    .all(|piece| piece[0] < piece[1] && piece[1] - piece[0] <= LONGEST)
            );
            assert!(starts.iter().all(|start| pieces.contains(start)));
            assert_eq!(pieces.last(), starts.last());
        }
        // Runs of the length that blocks take are not cut.
        let even: Vec<u64> = (0..=10_000).map(|run| run * 128_000).collect();
        assert_eq!(pieces(&even, 100, 132), even);
        assert_eq!(pieces(&[0, 0], 1, 132), [0]);
    }

    #[test]
    fn shared_memory_holds_a_sample_and_what_reaches_its_floor() {
        for bytes in [4, 8, 16] {
            for k in [1, 10, 256, 257, 1000, 3000] {
                let plan = block_plan(k, bytes, 227 << 10).unwrap();
                assert!(plan.candidates as u64 >= 2 * k && plan.candidates >= plan.sample * 16 / bytes);
                assert_eq!(plan.sample % RUN_THREADS as usize, 0);
                assert!(plan.shared + STATIC_SHARED <= 227 << 10);
            }
            assert_eq!(block_plan(100_000, bytes, 227 << 10), None);
        }
        assert_eq!(block_plan(10, 2, 227 << 10), None);
        assert!(block_plan(10, 4, 64 << 10).is_some());
    }

    #[test]
    fn warps_take_short_runs_of_narrow_keys() {
        assert_eq!(queue(10, 16_000, 4, RunReader::Either), Some((32, "ws_runs_32")));
        assert_eq!(queue(10, 128_000, 4, RunReader::Either), None);
        assert_eq!(queue(100, 4000, 4, RunReader::Either), Some((128, "ws_runs_128")));
        assert_eq!(queue(10, 16_000, 8, RunReader::Either), None);
        assert_eq!(
            queue(1000, 128_000, 8, RunReader::Warp),
            Some((1024, "ws_runs_1024"))
        );
        assert_eq!(queue(1025, 128_000, 4, RunReader::Warp), None);
        assert_eq!(queue(10, 1000, 16, RunReader::Warp), None);
    }
}
