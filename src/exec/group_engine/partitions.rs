//! The end of scans with many groups: rows lie in hash partitions, and each of those has groups of its own.
//!
//! Workers take hash partitions off, one at a time. One with a large share of the rows, be it because one group has them, may
//! be oversized: not for one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::{GroupScan, GroupedWork, PartitionedRows, Shared};
use crate::kernel::cpu::groups::group_key::{GroupKey, HASH_PARTITIONS};
use crate::kernel::cpu::groups::runs::Run;

/// Bytes of what oversized hash partitions are worked on with, if there are any.
const OVERSIZED_BYTES: usize = 4 << 20;

/// A hash partition that needs no more is never oversized for want of memory.
const LEAST_BYTES: usize = 64 << 10;

/// What one scan left behind.
pub(in crate::exec) struct Scanned<T: GroupedWork, W: GroupKey> {
    pub(in crate::exec) rows: PartitionedRows<W>,
    pub(in crate::exec) held: T::Scanned<W>,
}

/// The rows of all scans, in hash partitions.
pub(in crate::exec) struct HashPartitions<T: GroupedWork, W: GroupKey> {
    pub(in crate::exec) shared: Arc<Shared<T>>,
    pub(in crate::exec) scans: Vec<Scanned<T, W>>,
    /// Rows of each.
    pub(in crate::exec) sizes: Vec<usize>,
    /// Bytes that a worker needs for each.
    pub(in crate::exec) needs: Vec<usize>,
    /// Those with more rows, or that need more bytes, are oversized.
    most_rows: usize,
    most_bytes: usize,
    next: AtomicUsize,
    pub(in crate::exec) memory: MemoryReservation,
    /// Workers that there is memory for.
    pub(super) workers: usize,
    /// Of `memory`, what each worker may use.
    pub(in crate::exec) each: usize,
}

impl<T: GroupedWork, W: GroupKey> HashPartitions<T, W> {
    /// Of scans that have partitioned their rows. Reserves what workers need.
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
            // What it was for is reserved anew.
            scan.memory.free();
            let held = shared.work.scanned(scan.held, scan.ids, &memory)?;
            let rows = scan.rows;
            Ok(Scanned { rows, held })
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
            each: 0,
            shared,
        };
        let rows = |part| partitions.runs().map(|run| run.partition_range(part).len()).sum();
        partitions.sizes = (0..HASH_PARTITIONS).map(rows).collect();
        let work = &partitions.shared.work;
        let needs = (0..HASH_PARTITIONS).map(|part| work.partition_bytes(&partitions, part));
        partitions.needs = needs.collect();
        let threads = threads.max(1);
        let most_rows = partitions.oversized_rows(threads);
        partitions.most_rows = most_rows.unwrap_or(usize::MAX);
        partitions.reserve_workers(threads)?;
        Ok(partitions)
    }

    fn oversized_rows(&self, threads: usize) -> Option<usize> {
        self.shared.work.oversized_rows(self.sizes.iter().sum(), threads)
    }

    pub(in crate::exec) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.scans.iter().flat_map(|scan| &scan.rows.runs)
    }

    fn is_oversized(&self, part: usize) -> bool {
        self.sizes[part] > self.most_rows || self.needs[part] > self.most_bytes
    }

    /// Those that are not for one worker.
    pub(in crate::exec) fn oversized(&self) -> Vec<usize> {
        (0..HASH_PARTITIONS)
            .filter(|part| self.is_oversized(*part))
            .collect()
    }

    /// Bytes that a worker needs for the largest that is not oversized.
    fn worker_bytes(&self) -> usize {
        let ordinary = (0..HASH_PARTITIONS).filter(|part| !self.is_oversized(*part));
        ordinary.map(|part| self.needs[part]).max().unwrap_or(0)
    }

    /// For as many workers as there is memory for, if need be on disk's account. Where there is none even for one, large hash
    /// partitions become oversized, if they may.
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
        while self.each > LEAST_BYTES && self.oversized_rows(threads).is_some() {
            self.most_bytes = self.each / 2;
            if self.reserves(1..=threads) {
                return Ok(());
            }
        }
        // So much is needed for oversized ones, too.
        self.workers = 1;
        self.shared.reserve(&self.memory, self.each)
    }

    /// Whether there is memory for so many workers, as many as can be.
    fn reserves(&mut self, workers: std::ops::RangeInclusive<usize>) -> bool {
        self.each = self.worker_bytes();
        let oversized = if self.oversized().is_empty() {
            0
        } else {
            OVERSIZED_BYTES
        };
        for workers in workers.rev() {
            if self.memory.try_grow(workers * self.each + oversized).is_ok() {
                // Those for oversized ones are theirs to reserve again.
                self.memory.shrink(oversized);
                self.workers = workers;
                return true;
            }
        }
        false
    }

    /// The next one for a worker.
    pub(super) fn next(&self) -> Option<usize> {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= HASH_PARTITIONS {
                return None;
            }
            if !self.is_oversized(part) {
                return Some(part);
            }
        }
    }
}
