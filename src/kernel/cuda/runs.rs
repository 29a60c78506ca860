//! The best rows of groups whose rows lie together: the launches of `kernels/warp_select.cu`.
//!
//! Where the rows of a table stand in long runs of equal values of the group columns, as after an `ORDER BY` of these or of a
//! day, no sort has to bring groups together. Of each run, or of each part of one that is too long for a block, the rows are
//! found whose keys are among its `k` greatest, and all that tie with the least of these, in one read of the keys; the answer is
//! among those few. A block takes a run: a floor from a sample of it, the values that reach it into shared memory, selection
//! there. Or a warp does (WarpSelect, Johnson, Douze and Jegou 2017, section IV), where that was faster.
//!
//! Where a column has other values from one row to the next is looked up once in its life.

use datafusion::common::Result;

use super::buffer::{DeviceBuffer, numbers};
use super::group::Groups;
use super::launch::{ColumnArgument, Kernels, kernel_argument};
use super::report::Report;
use super::run_starts::run_starts;
use super::select::Selection;
use super::source::{KernelFile, Program};
use super::timeline::Timeline;

/// Warps of a block that each take a run.
const WARPS: u32 = 4;
/// Threads of a block that takes a run.
const RUN_THREADS: u32 = 512;
/// Rows that a block or a warp takes at once, at most, and how many of them fill the device: for each multiprocessor.
const LONGEST: u64 = 1 << 17;
const PARTS: u64 = 32;
const LEAST_PART: u64 = 1 << 14;
/// One of so many rows is found, at most: else records of all rows are not much more.
const FEW: u64 = 8;
/// Values of a sample, for at most so many rows of a run.
const SAMPLES: [(u64, usize); 3] = [(256, 2048), (2048, 4096), (u64::MAX, 8192)];
/// Bytes of shared memory that `ws_block_runs` takes beside its candidates.
const STATIC_SHARED: usize = 16 << 10;
/// Rows that there is room for beyond those looked for: some tie.
const TIES: u64 = 1 << 16;
/// Queues of warps: the most rows of each, its kernel, and the longest runs that warps are faster for than blocks, of keys of 32
/// bits (`benches/results/2026-11-22-cuda-runs.md`).
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

/// Who takes a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// The faster of both, as measured.
    Either,
    /// A block.
    Block,
    /// A warp.
    Warp,
}

/// Rows that the answer is among.
#[derive(Debug)]
pub(super) struct Candidates {
    /// Their numbers, 8 bytes each, in any order.
    pub(super) rows: DeviceBuffer,
    pub(super) count: u64,
}

/// Rows of runs whose keys are among the best.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunSelection<'a> {
    pub(super) keys: &'a Selection<'a>,
    /// Whether the least keys are the best.
    pub(super) least: bool,
    pub(super) k: u64,
    pub(super) takes: Takes,
}

/// How runs are gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    /// Vectors of a sample.
    sample: usize,
    /// Keys with places in shared memory.
    candidates: usize,
    /// Bytes that those take.
    shared: usize,
}

impl<'a> RunSelection<'a> {
    /// Rows that the best of each group are among; `None`: groups do not lie together so, or too many keys tie. Waits for the
    /// device.
    ///
    /// # Errors
    /// `ResourcesExhausted` where device memory ends; an execution error if the device fails.
    pub(super) fn rows(
        &self,
        groups: &Groups<'a>,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<Option<Candidates>> {
        let (device, words) = (groups.device, self.keys.words);
        let Some(way) = way(self.k, words.value_bytes(), device.shared_memory()) else {
            return Ok(None);
        };
        let Some(starts) = run_starts(groups, report)? else {
            return Ok(None);
        };
        let parts = parts(&starts, self.k, u64::from(device.multiprocessors()));
        let count = parts.len() as u64 - 1;
        let wanted: u64 = parts.windows(2).map(|part| (part[1] - part[0]).min(self.k)).sum();
        if wanted.saturating_mul(FEW) > self.keys.population() || u32::try_from(count).is_err() {
            return Ok(None);
        }
        let room = (wanted + wanted / 8 + TIES).min(self.keys.column.rows());
        let rows = device.allocate(room as usize * size_of::<u64>(), groups.limit)?;
        // Cursors lie behind the parts.
        let cursors = size_of_val(parts.as_slice());
        let end = cursors + 2 * size_of::<u64>();
        let mut lists = device.allocate(end, groups.limit)?;
        lists.fill(bytemuck::cast_slice(&parts))?;
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
            sample: way.sample as u32,
            candidates: way.candidates as u32,
            ..RunsArgument::default()
        };
        report.bytes_read += self.keys.bytes();
        let longest = parts.windows(2).map(|part| part[1] - part[0]).max().unwrap_or(0);
        let queue = queue(self.k, longest, words.value_bytes(), self.takes);
        timeline.restart()?;
        match queue {
            Some((most, name)) => {
                let blocks = (count as u32).div_ceil(WARPS);
                self.launch(most, name, [blocks, 32 * WARPS], 0, &argument, timeline)?;
            }
            None => self.by_blocks(count, way, &argument, timeline)?,
        }
        let mut found = numbers(&lists.to_host(cursors..end)?);
        // Warps know of no ties but those in their queues; blocks find them.
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
            self.by_blocks(ties, way, &argument, timeline)?;
            found = numbers(&lists.to_host(cursors..end)?);
        }
        match found.as_slice() {
            [count, 0] if *count <= room => Ok(Some(Candidates { rows, count: *count })),
            _ => {
                report.second_reads += 1;
                Ok(None)
            }
        }
    }

    fn by_blocks(
        &self,
        count: u64,
        way: Way,
        argument: &RunsArgument,
        timeline: &mut Timeline<'_>,
    ) -> Result<()> {
        let grid = [count as u32, RUN_THREADS];
        self.launch(1, "ws_block_runs", grid, way.shared, argument, timeline)
    }

    /// Parts lie within the column, of which the last vector may be read.
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
        let key = self.keys.words.key_bytes();
        let expected = [0, key, WARPS as usize, RUN_THREADS as usize];
        let kernels = Kernels::load(device, &program, expected)?;
        timeline.launch(&kernels.launch(name, grid, shared)?, argument)
    }
}

/// How runs of values of so many bytes are gone through for `k` rows each where a block has `shared` bytes of shared memory;
/// `None`: not so.
fn way(k: u64, value_bytes: usize, shared: usize) -> Option<Way> {
    // Shorter values tie.
    let per_vector = match value_bytes {
        4 | 8 | 16 => 16 / value_bytes,
        _ => return None,
    };
    let (_, values) = SAMPLES.iter().find(|(most, _)| k <= *most)?;
    let candidates = values
        .max(&(2 * usize::try_from(k).ok()? + 2048))
        .next_multiple_of(4);
    let bytes = candidates * (value_bytes + size_of::<u32>());
    (bytes + STATIC_SHARED <= shared).then_some(Way {
        sample: (values / per_vector).max(RUN_THREADS as usize),
        candidates,
        shared: bytes,
    })
}

/// The kernel of warps that select `k` rows of runs that have at most `longest`; `None`: blocks do it.
fn queue(k: u64, longest: u64, value_bytes: usize, takes: Takes) -> Option<(u64, &'static str)> {
    let (most, name, fastest) = QUEUES.iter().find(|(most, ..)| k <= *most)?;
    let is_wanted = match takes {
        Takes::Block => false,
        Takes::Warp => value_bytes <= 8,
        // Items of 128 bits were not faster.
        Takes::Either => value_bytes == 4 && longest <= *fastest,
    };
    is_wanted.then_some((*most, name))
}

/// Where parts of runs begin, and where the last ends: runs, or what is short enough for a block and fills the device.
fn parts(starts: &[u64], k: u64, multiprocessors: u64) -> Vec<u64> {
    let rows = starts.last().copied().unwrap_or(0);
    let even = rows / (PARTS * multiprocessors.max(1));
    let most = even.max(LEAST_PART).max(2 * FEW * k).min(LONGEST);
    let mut parts = vec![0];
    for run in starts.windows(2) {
        let (start, length) = (run[0], run[1] - run[0]);
        let pieces = length.div_ceil(most);
        parts.extend(
            (1..=pieces)
                .map(|piece| start + (u128::from(length) * u128::from(piece) / u128::from(pieces)) as u64),
        );
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_runs_and_none_is_in_two() {
        let starts = [0, 10, 500_000, 500_001, 3_000_000];
        for (k, multiprocessors) in [(1, 132), (1000, 132), (10, 1), (5000, 8)] {
            let parts = parts(&starts, k, multiprocessors);
            assert!(
                parts
                    .windows(2)
                    .all(|part| part[0] < part[1] && part[1] - part[0] <= LONGEST)
            );
            assert!(starts.iter().all(|start| parts.contains(start)));
            assert_eq!(parts.last(), starts.last());
        }
        // Runs of the length that blocks take are not cut.
        let even: Vec<u64> = (0..=10_000).map(|run| run * 128_000).collect();
        assert_eq!(parts(&even, 100, 132), even);
        assert_eq!(parts(&[0, 0], 1, 132), [0]);
    }

    #[test]
    fn shared_memory_holds_a_sample_and_what_reaches_its_floor() {
        for bytes in [4, 8, 16] {
            for k in [1, 10, 256, 257, 1000, 3000] {
                let way = way(k, bytes, 227 << 10).unwrap();
                assert!(way.candidates as u64 >= 2 * k && way.candidates >= way.sample * 16 / bytes);
                assert_eq!(way.sample % RUN_THREADS as usize, 0);
                assert!(way.shared + STATIC_SHARED <= 227 << 10);
            }
            assert_eq!(way(100_000, bytes, 227 << 10), None);
        }
        assert_eq!(way(10, 2, 227 << 10), None);
        assert!(way(10, 4, 64 << 10).is_some());
    }

    #[test]
    fn warps_take_short_runs_of_narrow_keys() {
        assert_eq!(queue(10, 16_000, 4, Takes::Either), Some((32, "ws_runs_32")));
        assert_eq!(queue(10, 128_000, 4, Takes::Either), None);
        assert_eq!(queue(100, 4000, 4, Takes::Either), Some((128, "ws_runs_128")));
        assert_eq!(queue(10, 16_000, 8, Takes::Either), None);
        assert_eq!(queue(1000, 128_000, 8, Takes::Warp), Some((1024, "ws_runs_1024")));
        assert_eq!(queue(1025, 128_000, 4, Takes::Warp), None);
        assert_eq!(queue(10, 1000, 16, Takes::Warp), None);
    }
}
