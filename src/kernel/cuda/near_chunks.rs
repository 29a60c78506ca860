//! The rows that may be among the nearest, by one read of the vectors: the launches of `vd_least`, `vd_kth` and `vd_near` of
//! `kernels/distances.cu`.
//!
//! ```text
//! the least distance of each chunk of rows ── the k-th least of these, and the error of f32 ── chunks that reach it are read again
//!   one read, a number for 256 rows or more     at least k rows do not exceed it                  their rows are listed
//! ```
//! To write all distances takes a tenth of the time of reading vectors of 128 components, although they are a hundredth of the bytes; the
//! least ones of chunks cost nothing. Where near rows lie in few chunks, more rows are listed than are among the nearest.
//!
//! Cost on one H200, 10 million vectors of 128 `Float32`: 1.2 ms, of which the read alone is 1.15.

use datafusion::common::Result;

use super::column::DeviceColumn;
use super::distance_bound::RoundedQuery;
use super::distances::{DistanceKernels, DistancesArgument, Point, Step};
use super::launch::kernel_argument;
use super::report::Report;
use super::timeline::Timeline;
use super::workspace::{Places, Workspace, WorkspaceLease};
use crate::failpoint::may_fail;
use crate::key::KeySpec;

/// Threads of the block that finds the k-th key.
const THREADS: u32 = 1024;
/// Rows of a chunk, at least, unless there would be too few chunks for `k`.
const LEAST_CHUNK: u64 = 256;
/// Most chunks: a block finds the k-th of their keys.
const MOST_CHUNKS: u64 = 1 << 16;
/// Bytes of an item of the list: key and row.
const ITEM: usize = size_of::<u64>();
/// Places in the counters, in bytes: behind two of the distances are the k-th key, the number of chunks that are not known, and the number of
/// rows that were found.
const KTH: usize = 8;
const OPEN: usize = 12;
const COUNT: usize = 16;
const FRONT: usize = 24;

kernel_argument! {
    /// `struct Near` of `kernels/distances.cu`.
    struct NearArgument = vd_sizes[1] {
        distances: DistancesArgument,
        least: u64,
        open: u64,
        kth: u64,
        found: u64,
        count: u64,
        chunk: u32,
        chunks: u32,
        k: u32,
        room: u32,
        bound: f32,
        unused: u32,
    }
}

/// A request for the rows of a column of vectors that may be among the first `k`.
pub(super) struct ChunkSearch<'a> {
    pub(super) vectors: &'a DeviceColumn,
    pub(super) query: &'a RoundedQuery,
    pub(super) point: Point<'a>,
    pub(super) k: u64,
    /// The keys of distances.
    pub(super) spec: &'a KeySpec,
    pub(super) limit: Option<u64>,
    pub(super) timed: bool,
}

/// Places in the workspace, in bytes from its front. Counters, the k-th key and the first items are fetched together.
#[derive(Debug, Clone, Copy)]
struct Layout {
    front: usize,
    found: usize,
    point: usize,
    least: usize,
    bytes: usize,
    /// Number of items that there is room for, and of those that are fetched at once.
    room: usize,
    first: usize,
    chunk: u64,
    chunks: u64,
}

/// Number of items that there is room for.
fn room(k: usize) -> usize {
    8 * k + (1 << 16)
}

impl ChunkSearch<'_> {
    /// Bytes of host memory for `k` rows: page-locked, as bytes, and as numbers.
    pub(super) fn host_bytes(k: usize) -> usize {
        3 * ITEM * room(k)
    }

    /// The rows, in any order, with all that have no distance if those come first, and all whose distance `f32` cannot tell. `None` if this way
    /// cannot tell: there are too few chunks for `k`, too few rows that have a distance, or too many that are as near.
    ///
    /// # Errors
    /// As [`NearRows::rows`](super::NearRows).
    pub(super) fn rows(&self, report: &mut Report) -> Result<Option<Vec<u64>>> {
        let Some(layout) = self.layout() else {
            return Ok(None);
        };
        may_fail!("cuda_near");
        let device = self.vectors.device();
        let kernels = DistanceKernels::load(self.vectors, self.point)?;
        let launches = [
            kernels.launch(Step::Least, layout.chunks)?,
            kernels.kernels.launch("vd_kth", [1, THREADS], 0)?,
            kernels.launch(Step::Near, self.vectors.rows().div_ceil(32))?,
        ];
        let mut lease = WorkspaceLease::lock(device);
        let fetched = ITEM * layout.room + FRONT;
        let workspace = lease.reserve(
            layout.bytes,
            fetched.max(size_of_val(self.point.components)),
            self.limit,
        )?;
        let mut argument = self.argument(&layout, workspace.device.address());
        self.send(&layout, workspace)?;
        let mut timeline = Timeline::start(device, self.timed)?;
        timeline.launch(&launches[0], &argument)?;
        timeline.launch(&launches[1], &argument)?;
        timeline.end()?;
        let front = fetch(workspace, layout.front..layout.front + FRONT)?;
        timeline.report(report)?;
        report.bytes_read += self.vectors.bytes() as u64;
        let greatest = f32::from_bits(word(&front, 4));
        let kth = self.spec.float_of(word(&front, KTH).into());
        if !kth.is_finite() {
            return Ok(None);
        }
        argument.bound = self.query.bound(kth, self.point.negative, greatest);
        let mut timeline = Timeline::start(device, self.timed)?;
        timeline.launch(&launches[2], &argument)?;
        timeline.end()?;
        let found = fetch(workspace, layout.front..layout.found + ITEM * layout.first)?;
        timeline.report(report)?;
        report.bytes_to_device += size_of_val(self.point.components) as u64;
        report.bytes_from_device += (FRONT + found.len()) as u64;
        let count = word(&found, COUNT) as usize | (word(&found, COUNT + 4) as usize) << 32;
        if count > layout.room {
            return Ok(None);
        }
        let mut items = found[layout.found - layout.front..].to_vec();
        if count > layout.first {
            items = fetch(workspace, layout.found..layout.found + ITEM * count)?;
            report.bytes_from_device += items.len() as u64;
        }
        Ok(Some(self.nearest(&items[..ITEM * count], greatest)))
    }

    /// The rows of items that are within the bound of the k-th of them, which is tighter than that of the k-th chunk, or that are not known.
    fn nearest(&self, items: &[u8], greatest: f32) -> Vec<u64> {
        let (items, _) = items.as_chunks::<ITEM>();
        let mut items: Vec<u64> = items.iter().map(|item| u64::from_le_bytes(*item)).collect();
        items.sort_unstable();
        let value = |item: &u64| self.spec.float_of((item >> 32).into());
        let kth = items.get(self.k as usize - 1).map(value);
        if let Some(kth) = kth.filter(|kth| kth.is_finite()) {
            let bound = self.query.bound(kth, self.point.negative, greatest);
            items.retain(|item| value(item) <= bound || value(item) == f32::INFINITY);
        }
        items.into_iter().map(|item| item & u64::from(u32::MAX)).collect()
    }

    /// `None` if there are too few rows for `k`, or more than an item can number.
    fn layout(&self) -> Option<Layout> {
        let (rows, k) = (self.vectors.rows(), self.k);
        let mut chunk = rows.div_ceil(MOST_CHUNKS).next_multiple_of(32).max(LEAST_CHUNK);
        if rows / chunk < 4 * k {
            chunk = rows.div_ceil(MOST_CHUNKS).next_multiple_of(32);
        }
        let chunks = rows.div_ceil(chunk);
        if chunks < 4 * k || rows > u64::from(u32::MAX) {
            return None;
        }
        let (first, room) = (2 * k as usize + 64, room(k as usize));
        let mut places = Places::default();
        let front = places.take(FRONT);
        let found = places.take(ITEM * room);
        let point = places.take(size_of_val(self.point.components));
        let least = places.take(size_of::<u32>() * chunks as usize);
        Some(Layout {
            front,
            found,
            point,
            least,
            bytes: places.end(),
            room,
            first,
            chunk,
            chunks,
        })
    }

    fn argument(&self, layout: &Layout, base: u64) -> NearArgument {
        let at = |place: usize| base + place as u64;
        NearArgument {
            distances: self
                .point
                .argument(self.vectors, at(layout.point), at(layout.front)),
            least: at(layout.least),
            open: at(layout.front + OPEN),
            kth: at(layout.front + KTH),
            found: at(layout.found),
            count: at(layout.front + COUNT),
            chunk: layout.chunk as u32,
            chunks: layout.chunks as u32,
            k: self.k as u32,
            room: layout.room as u32,
            bound: 0.0,
            unused: 0,
        }
    }

    /// Puts on the stream that the counters are zeroed and that the point is copied to the device.
    fn send(&self, layout: &Layout, workspace: &mut Workspace) -> Result<()> {
        workspace.device.zero(layout.front..layout.front + FRONT)?;
        let point: &[u8] = bytemuck::cast_slice(self.point.components);
        workspace.host.bytes_mut()?[..point.len()].copy_from_slice(point);
        workspace
            .host
            .send(0..point.len(), &workspace.device, layout.point)
    }
}

/// Waits for the stream, and returns a range of bytes of the workspace.
fn fetch(workspace: &mut Workspace, range: std::ops::Range<usize>) -> Result<Vec<u8>> {
    let length = range.len();
    workspace.host.fetch(&workspace.device, range)?;
    workspace
        .device
        .device()
        .synchronize("finding near rows on the device")?;
    Ok(workspace.host.bytes()?[..length].to_vec())
}

/// The number of 32 bits at a byte.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word))
}
