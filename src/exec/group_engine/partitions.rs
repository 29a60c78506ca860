//! Scans that have ended with many groups: their rows are in hash partitions, each of which has groups of its own.
//!
//! Workers answer hash partitions, one at a time. A hash partition with a large part of the rows, for example because a single group
//! has them, may be oversized: too large for one worker.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::{GroupScan, GroupedWork, PartitionedRows, Shared};
use crate::kernel::cpu::groups::group_key::{GroupKey, HASH_PARTITIONS};
use crate::kernel::cpu::groups::runs::Run;
use crate::threads::locked;

/// Bytes that must be free for the work on oversized hash partitions, if there are any.
const OVERSIZED_BYTES: usize = 4 << 20;

/// A hash partition that needs no more bytes than this is never oversized for lack of memory.
const LEAST_BYTES: usize = 64 << 10;

/// The result of one scan: its rows in hash partitions, and the state of the work that remains.
pub(in crate::exec) struct Scanned<T: GroupedWork, W: GroupKey> {
    pub(in crate::exec) rows: PartitionedRows<W>,
    pub(in crate::exec) held: T::Scanned<W>,
    /// Memory of `held`.
    _memory: MemoryReservation,
}

/// What workers tell each other.
#[derive(Debug, Default)]
struct Working {
    /// Number of workers that have not ended.
    workers: usize,
    /// Hash partitions that are left by workers for which there was not memory enough.
    left: Vec<usize>,
}

/// The rows of all scans, in hash partitions.
pub(in crate::exec) struct HashPartitions<T: GroupedWork, W: GroupKey> {
    pub(in crate::exec) shared: Arc<Shared<T>>,
    pub(in crate::exec) scans: Vec<Scanned<T, W>>,
    /// Number of rows of each hash partition.
    pub(in crate::exec) sizes: Vec<usize>,
    /// Bytes that a worker needs for each hash partition.
    pub(in crate::exec) needs: Vec<usize>,
    /// Hash partitions with more rows are oversized.
    most_rows: usize,
    /// Hash partitions for which a worker needs more bytes are oversized.
    most_bytes: usize,
    /// The next hash partition for a worker.
    next: AtomicUsize,
    pub(in crate::exec) memory: MemoryReservation,
    /// Number of workers that there is memory for.
    pub(super) workers: usize,
    working: Mutex<Working>,
    /// Bytes of `memory` that each worker may use.
    pub(in crate::exec) bytes_per_worker: usize,
}

impl<T: GroupedWork, W: GroupKey> HashPartitions<T, W> {
    /// The hash partitions of scans that have partitioned their rows. Reserves the memory of workers.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is not enough for one worker.
    pub(super) fn try_new(
        shared: Arc<Shared<T>>,
        scans: Vec<GroupScan<T, W>>,
        memory: MemoryReservation,
        threads: usize,
    ) -> Result<Self> {
        let scanned = |scan: GroupScan<T, W>| {
            let GroupScan {
                rows,
                memory,
                held,
                ids,
                ..
            } = scan;
            let held = shared.work.scanned(held, ids, &memory)?;
            Ok(Scanned {
                rows,
                held,
                _memory: memory,
            })
        };
        let mut partitions = Self {
            scans: scans.into_iter().map(scanned).collect::<Result<_>>()?,
            sizes: Vec::new(),
            needs: Vec::new(),
            most_rows: usize::MAX,
            most_bytes: usize::MAX,
            next: AtomicUsize::new(0),
            memory,
            workers: 0,
            working: Mutex::default(),
            bytes_per_worker: 0,
            shared,
        };
        let mut sizes = vec![0; HASH_PARTITIONS];
        for run in partitions.runs() {
            run.add_partition_rows(&mut sizes);
        }
        partitions.sizes = sizes;
        partitions.needs = partitions.shared.work.partition_bytes(&partitions);
        let threads = threads.max(1);
        let most_rows = partitions.oversized_rows(threads);
        partitions.most_rows = most_rows.unwrap_or(usize::MAX);
        partitions.reserve_workers(threads)?;
        Ok(partitions)
    }

    fn oversized_rows(&self, threads: usize) -> Option<usize> {
        self.shared.work.oversized_rows(self.sizes.iter().sum(), threads)
    }

    /// The runs of all scans, each as the index of its scan and its index there.
    pub(in crate::exec) fn run_indices(&self) -> Vec<(usize, usize)> {
        let scans = self.scans.iter().enumerate();
        let runs = scans.flat_map(|(scan, scanned)| (0..scanned.rows.runs.len()).map(move |run| (scan, run)));
        runs.collect()
    }

    /// The runs of all scans.
    pub(in crate::exec) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.scans.iter().flat_map(|scan| &scan.rows.runs)
    }

    fn is_oversized(&self, part: usize) -> bool {
        self.sizes[part] > self.most_rows || self.needs[part] > self.most_bytes
    }

    /// The oversized hash partitions, which are too large for one worker.
    pub(in crate::exec) fn oversized(&self) -> Vec<usize> {
        (0..HASH_PARTITIONS)
            .filter(|part| self.is_oversized(*part))
            .collect()
    }

    /// Bytes that a worker needs for the largest hash partition that is not oversized.
    fn worker_bytes(&self) -> usize {
        let ordinary = (0..HASH_PARTITIONS).filter(|part| !self.is_oversized(*part));
        ordinary.map(|part| self.needs[part]).max().unwrap_or(0)
    }

    /// Reserves memory for as many workers as it suffices for, after rows have gone to disk if need be. If there is none even for one
    /// worker, large hash partitions become oversized, if the work allows that.
    fn reserve_workers(&mut self, threads: usize) -> Result<()> {
        if self.reserves(threads..=threads) {
            return Ok(());
        }
        for make_room in [PartitionedRows::make_room::<T>, PartitionedRows::spill::<T>] {
            for scan in &mut self.scans {
                make_room(&mut scan.rows, &self.shared)?;
            }
            if self.reserves(1..=threads) {
                return Ok(());
            }
        }
        while self.bytes_per_worker > LEAST_BYTES && self.oversized_rows(threads).is_some() {
            self.most_bytes = self.bytes_per_worker / 2;
            if self.reserves(1..=threads) {
                return Ok(());
            }
        }
        // One worker's memory is needed even if all large hash partitions are oversized.
        self.workers = 1;
        self.shared.reserve(&self.memory, self.bytes_per_worker)
    }

    /// Reserves memory for the greatest number of workers in this range that it suffices for. Returns whether there was any.
    fn reserves(&mut self, workers: std::ops::RangeInclusive<usize>) -> bool {
        self.bytes_per_worker = self.worker_bytes();
        let oversized = if self.oversized().is_empty() {
            0
        } else {
            OVERSIZED_BYTES
        };
        for workers in workers.rev() {
            if self
                .memory
                .try_grow(workers * self.bytes_per_worker + oversized)
                .is_ok()
            {
                // The work on oversized hash partitions reserves these bytes again.
                self.memory.shrink(oversized);
                self.workers = workers;
                return true;
            }
        }
        false
    }

    /// The next hash partition for a worker. `None` at the end, and then the worker has ended.
    pub(super) fn next(&self) -> Option<usize> {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= HASH_PARTITIONS {
                break;
            }
            if !self.is_oversized(part) {
                return Some(part);
            }
        }
        let mut working = locked(&self.working);
        let left = working.left.pop();
        if left.is_none() {
            working.workers -= 1;
            self.memory.shrink(self.bytes_per_worker);
        }
        left
    }

    /// All workers begin.
    pub(super) fn begin(&self) {
        locked(&self.working).workers = self.workers;
    }

    /// Ends a worker that was refused memory for a hash partition, which another one answers once it has time, with the memory of both.
    /// Returns whether there is another one; if not, the worker goes on.
    pub(super) fn leaves(&self, part: usize) -> bool {
        let mut working = locked(&self.working);
        if working.workers <= 1 {
            return false;
        }
        working.workers -= 1;
        working.left.push(part);
        self.memory.shrink(self.bytes_per_worker);
        true
    }
}
