//! Exact ranks of a column that lies on several devices, each with some of its rows: the launches that
//! `kernels/sample_devices.cuh` describes; the last three kernels are those of `kernels/sample_lists.cuh`.
//!
//! Each device runs the kernels of one device over its own rows. At five points it needs numbers of all devices: a small sample, which
//! gives cells; a large sample, which gives brackets; the counts of the one read, which say where the ranks lie; the counts of the
//! parts of each list, as lists stay where they are; and the keys of one part. It reads them in the memory of the other devices once
//! events say that they are there. The host waits only at the end. All devices decide alike, because they decide from the same numbers.
//!
//! Cost beside the read of the largest share: the kernels whose time does not depend on the share, and 10 microseconds for each of the
//! five points. Two H200s take 0.4 to 0.6 of the time of one for 101 ranks of 2^30 values, and 0.55 to 0.65 for one rank
//! (`benches/results/2026-11-22-cuda-lanes.md`). Rounds over the same devices find the ranks that stay open because a sample
//! misled and no memory was left, and all ranks where devices cannot read each other's memory.

use std::sync::Arc;

use cudarc::driver::CudaEvent;
use datafusion::common::Result;

use super::report::Report;
use super::select::{
    Layout, MOST_DEVICES, OUTSIDE, Outcome, PARTS_BYTES, PreparedSelection, QueryArgument, STRIPES,
    Selection, check_ranks, sample_size,
};
use super::timeline::Timeline;
use super::workspace::{Workspace, WorkspaceLease};
use crate::failpoint::may_fail;
use crate::key::KeyBits;

/// Kernels of each device, by steps. Before each step but the first a device waits until the other devices have done the step before.
const STEPS: [&[&str]; 6] = [
    &["ss_draw"],
    &["ss_plan", "ss_sample"],
    &["ss_brackets", "ss_count"],
    &["ss_resolve", "ss_extract", "ss_refine", "ss_tally"],
    &["ss_narrow"],
    &["ss_finish"],
];

/// A request for ranks of a column whose rows lie on several devices.
#[derive(Debug, Clone)]
pub struct SpreadSelection<'a> {
    /// The share of the rows on each device.
    pub shares: Vec<Selection<'a>>,
}

impl SpreadSelection<'_> {
    /// Number of values that are ranked.
    pub fn population(&self) -> u64 {
        self.shares.iter().map(Selection::population).sum()
    }

    /// The keys of `ranks`, which count from 1 and are ascending, distinct and at most [`Self::population`]. `None` if they cannot be
    /// found in this way: samples misled, the devices are not alike or cannot read each other's memory, or two shares are on one
    /// device. The cost is added to `report`.
    ///
    /// # Errors
    /// `ResourcesExhausted` where a device's memory, or the limit on it, is too small; an execution error if a device fails; an
    /// internal error for other ranks.
    pub fn keys(&self, ranks: &[u64], report: &mut Report) -> Result<Option<Vec<KeyBits>>> {
        let population = self.population();
        check_ranks(ranks, population)?;
        let mut keys = Vec::with_capacity(ranks.len());
        if ranks.is_empty() {
            return Ok(Some(keys));
        }
        may_fail!("cuda_select");
        let prepared = self.shares.iter().map(PreparedSelection::try_new);
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        let Some(devices) = DeviceTeam::of(&prepared, population) else {
            return Ok(None);
        };
        for some in ranks.chunks(prepared[0].shape.ranks) {
            // A single rank that lies outside of its bracket is looked for without one.
            let found = devices.read(some, false, &mut keys, report)?;
            let found = match found.flags & OUTSIDE {
                0 => found,
                _ => devices.read(some, true, &mut keys, report)?,
            };
            if found.flags & OUTSIDE != 0 || found.open > 0 {
                return Ok(None);
            }
        }
        Ok(Some(keys))
    }
}

/// Devices that select together.
struct DeviceTeam<'a> {
    shares: &'a [PreparedSelection<'a>],
    /// Indices of the shares in the order in which their workspaces are locked. All queries lock in the same order.
    order: Vec<usize>,
    population: u64,
}

/// A share of the rows, with the memory that its device works in.
struct ShareMemory<'a, 'b> {
    share: &'a PreparedSelection<'a>,
    layout: Layout,
    workspace: &'b mut Workspace,
}

/// A device at work.
struct Worker<'a, 'b> {
    memory: ShareMemory<'a, 'b>,
    query: QueryArgument,
    timeline: Timeline<'a>,
}

impl<'a> DeviceTeam<'a> {
    /// The devices of the shares, which have `population` values together. `None` if they cannot select together.
    fn of(shares: &'a [PreparedSelection<'a>], population: u64) -> Option<Self> {
        let first = shares.first()?;
        let is_like = |other: &PreparedSelection<'_>| {
            other.shape == first.shape
                && other.selection.format == first.selection.format
                && other.device.architecture() == first.device.architecture()
        };
        let address = |index: &usize| Arc::as_ptr(shares[*index].device);
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by_key(address);
        let are_apart = order
            .windows(2)
            .all(|pair| address(&pair[0]) != address(&pair[1]));
        let are_some = (2..=MOST_DEVICES).contains(&shares.len());
        let reads_all =
            |reader: &PreparedSelection<'_>| shares.iter().all(|other| reader.device.reads(other.device));
        let can = are_some && are_apart && shares.iter().all(is_like) && shares.iter().all(reads_all);
        can.then_some(Self {
            shares,
            order,
            population,
        })
    }

    /// Runs one sequence of launches, and appends the keys if all were found.
    fn read(
        &self,
        ranks: &[u64],
        counts_all: bool,
        keys: &mut Vec<KeyBits>,
        report: &mut Report,
    ) -> Result<Outcome> {
        let mut leases = Vec::new();
        leases.resize_with(self.shares.len(), || None);
        for index in &self.order {
            leases[*index] = Some(WorkspaceLease::lock(self.shares[*index].device));
        }
        let mut memories = Vec::new();
        for (share, lease) in self.shares.iter().zip(leases.iter_mut().flatten()) {
            let (layout, workspace) = share.make_room(lease, ranks.len(), true)?;
            memories.push(ShareMemory {
                share,
                layout,
                workspace,
            });
        }
        let queries = self.queries(ranks.len(), counts_all, &memories)?;
        let mut workers = Vec::new();
        let asked = enqueue(ranks, memories, queries, &mut workers);
        // Also after an error: devices that still work use memory that is freed when this function returns.
        let waited = self.shares.iter();
        let waited = waited.map(|share| share.device.synchronize("selecting on several devices"));
        let waited: Vec<_> = waited.collect();
        asked.and(waited.into_iter().collect::<Result<()>>())?;
        let outcome = self.outcome(&workers)?;
        self.record(&workers, ranks.len(), &outcome, report)?;
        if let Some(Worker { memory, .. }) = workers.first()
            && outcome.flags & OUTSIDE == 0
            && outcome.open == 0
        {
            let at = memory.layout.common_answers_at();
            memory.share.take_keys(memory.workspace, at, ranks.len(), keys)?;
        }
        Ok(outcome)
    }

    /// The outcome on all devices. Each counts the open ranks that it was to find, and those that all devices know to be open.
    fn outcome(&self, workers: &[Worker<'_, '_>]) -> Result<Outcome> {
        let mut all = Outcome::default();
        for Worker { memory, .. } in workers {
            let own = memory
                .share
                .outcome(&memory.layout, memory.workspace, self.population)?;
            all = Outcome {
                flags: all.flags | own.flags,
                open: all.open + own.open,
                cells: own.cells,
            };
        }
        Ok(all)
    }

    /// The query for each device: about its own share, and about all.
    fn queries(
        &self,
        ranks: usize,
        counts_all: bool,
        memories: &[ShareMemory<'_, '_>],
    ) -> Result<Vec<QueryArgument>> {
        let rows = |memory: &ShareMemory<'_, '_>| memory.share.selection.column.rows();
        let all: u64 = memories.iter().map(rows).sum();
        let largest = memories.iter().map(rows).max().unwrap_or(0).max(1);
        // Each row is drawn with the same probability, and the largest share gives as many keys as if it were alone.
        let sample = u128::from(sample_size(largest, ranks));
        let share_of =
            |whole: u128, rows: u64, all: u64| (whole * u128::from(rows) / u128::from(all.max(1))) as u64;
        // Keys that may be copied on all devices together, so that each has memory for its own.
        let rooms_of_all = memories.iter().map(|memory| {
            let own = u128::from(memory.share.room(&memory.layout));
            share_of(own, all, rows(memory))
        });
        let copied = rooms_of_all.min().unwrap_or(0);
        let (mut controls, mut lists) = ([0; MOST_DEVICES], [0; MOST_DEVICES]);
        for (memory, (control, list)) in memories.iter().zip(controls.iter_mut().zip(&mut lists)) {
            let base = memory.workspace.device.address();
            (*control, *list) = (
                base + memory.layout.control as u64,
                base + memory.layout.listed as u64,
            );
        }
        let answers = match memories.first() {
            Some(first) => first.workspace.host.address()? + first.layout.common_answers_at() as u64,
            None => 0,
        };
        let queries = memories.iter().enumerate().map(|(device, memory)| {
            let (share, base) = (memory.share, memory.workspace.device.address());
            let mut own = share.query(ranks, counts_all, &memory.layout, base);
            (own.kept, own.answers) = (self.population, answers);
            own.sample_lines = share.sample_lines(share_of(sample, rows(memory), largest));
            own.room = copied;
            (own.controls, own.lists) = (controls, lists);
            own.stripes = share_of(u128::from(STRIPES), rows(memory), all) as u32;
            (own.device, own.devices) = (device as u32, memories.len() as u32);
            own
        });
        Ok(queries.collect())
    }

    /// Adds to the report what was read in columns, and what devices read in the memory of others, except the keys at the end, which
    /// are some dozens for each rank.
    fn record(
        &self,
        workers: &[Worker<'_, '_>],
        ranks: usize,
        outcome: &Outcome,
        report: &mut Report,
    ) -> Result<()> {
        self.shares
            .iter()
            .for_each(|share| share.record_read(ranks, report));
        outcome.record(report);
        let mut slowest = Report::default();
        for worker in workers {
            let mut own = Report::default();
            worker.timeline.report(&mut own)?;
            report.kernels += own.kernels;
            if own.device_time > slowest.device_time {
                slowest = own;
            }
        }
        report.device_time += slowest.device_time;
        report.kernel_times.append(&mut slowest.kernel_times);
        // Of each other device: its keys of the small sample, its counts of both samples and of all values, and its counts of the
        // parts of lists.
        let others = self.shares.len() - 1;
        let cells = outcome.cells as usize * 12 + ranks * PARTS_BYTES;
        let sample = STRIPES as usize * self.shares[0].key_bytes;
        let sent = others * (sample + self.shares.len() * cells);
        report.bytes_from_device += sent as u64;
        report.bytes_to_device += sent as u64;
        Ok(())
    }
}

/// Puts all work on the streams, step by step for all devices in turn, so that no device waits long for work that the host has not
/// enqueued yet.
///
/// A query has addresses in the workspaces of all devices, which each device may read and which are locked, and in page-locked memory
/// of the first device with room for a key of each rank. The caller waits for all devices, whatever this function returns.
fn enqueue<'a, 'b>(
    ranks: &[u64],
    memories: Vec<ShareMemory<'a, 'b>>,
    queries: Vec<QueryArgument>,
    workers: &mut Vec<Worker<'a, 'b>>,
) -> Result<()> {
    for (memory, query) in memories.into_iter().zip(queries) {
        let timeline = memory.share.begin(ranks, &memory.layout, memory.workspace)?;
        workers.push(Worker {
            memory,
            query,
            timeline,
        });
    }
    let mut signals = Vec::<CudaEvent>::new();
    for step in STEPS {
        for (device, worker) in workers.iter().enumerate() {
            let others = signals.iter().enumerate().filter(|(other, _)| *other != device);
            for (_, signal) in others {
                worker.memory.share.device.wait_for(signal)?;
            }
        }
        for kernel in step {
            for worker in workers.iter_mut() {
                let launch = worker.memory.share.launch(kernel, ranks.len())?;
                worker.timeline.launch(&launch, &worker.query)?;
            }
        }
        let done = workers.iter().map(|worker| worker.memory.share.device.signal());
        signals = done.collect::<Result<_>>()?;
    }
    for Worker { memory, timeline, .. } in workers {
        memory.share.end(&memory.layout, memory.workspace, timeline)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_is_there_once() {
        let mut kernels = STEPS.concat();
        let count = kernels.len();
        kernels.sort_unstable();
        kernels.dedup();
        assert_eq!((kernels.len(), count), (11, 11));
    }
}
