//! Exact ranks of a column that lies on several devices, each with some of its rows: the launches that
//! `kernels/sample_devices.cuh` describes; the last three kernels are those of `kernels/sample_lists.cuh`.
//!
//! Each device runs the kernels of one device over its own rows. Five times it needs what all devices know: a small sample, which gives
//! cells, a large one, which gives brackets, the counts of the one read, which say where the ranks lie, and then, as lists stay
//! where they are, the counts of a list's parts and the keys of one part. It reads that in the memory of the others, once events
//! say that it is there; the host waits at the end alone. All devices decide the same, as they do it from the same numbers.
//!
//! What it costs beside the read of the largest share: the kernels that do not shrink with it, and 10 microseconds for each of the
//! five. Two H200s take 0.4 to 0.6 of the time of one for 101 ranks of 2^30 values, and 0.55 to 0.65 for one rank
//! (`benches/results/2026-11-22-cuda-shards.md`). Ranks that it leaves open, where a sample misled and no room was left, are for
//! rounds over the same devices, as are devices that cannot read each other's memory.

use std::sync::Arc;

use cudarc::driver::CudaEvent;
use datafusion::common::Result;

use super::report::Report;
use super::select::{
    Layout, MOST_DEVICES, OUTSIDE, Outcome, PARTS_BYTES, Prepared, QueryArgument, STRIPES, Selection,
    check_ranks, sample_size,
};
use super::timeline::Timeline;
use super::workspace::{Workspace, WorkspaceLease};
use crate::failpoint::may_fail;
use crate::key::KeyBits;

/// Kernels of each device; before each step but the first it waits for the others to have done the step before.
const STEPS: [&[&str]; 6] = [
    &["ss_draw"],
    &["ss_plan", "ss_sample"],
    &["ss_brackets", "ss_count"],
    &["ss_resolve", "ss_extract", "ss_refine", "ss_tally"],
    &["ss_narrow"],
    &["ss_finish"],
];

/// A question to a column whose rows lie on several devices.
#[derive(Debug, Clone)]
pub struct SpreadSelection<'a> {
    /// A share on each device.
    pub shares: Vec<Selection<'a>>,
}

impl SpreadSelection<'_> {
    /// Values that are ranked.
    pub fn population(&self) -> u64 {
        self.shares.iter().map(Selection::population).sum()
    }

    /// The keys of `ranks`: 1-based, ascending, distinct, at most [`Self::population`]; `None`: they are not found so, because
    /// samples misled, because the devices are not alike or cannot read each other's memory, or because two shares are on one. What
    /// it cost is added to `report`.
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
        let prepared = self.shares.iter().map(Prepared::try_new);
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        let Some(devices) = Together::of(&prepared, population) else {
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
struct Together<'a> {
    shares: &'a [Prepared<'a>],
    /// Indices of shares in the order in which their workspaces are taken, the same for all queries.
    order: Vec<usize>,
    population: u64,
}

/// A device with the memory that it works in.
struct Room<'a, 'b> {
    share: &'a Prepared<'a>,
    layout: Layout,
    workspace: &'b mut Workspace,
}

/// One device at work.
struct Worker<'a, 'b> {
    room: Room<'a, 'b>,
    query: QueryArgument,
    timeline: Timeline<'a>,
}

impl<'a> Together<'a> {
    /// Of so many values in all; `None`: they cannot.
    fn of(shares: &'a [Prepared<'a>], population: u64) -> Option<Self> {
        let first = shares.first()?;
        let is_like = |other: &Prepared<'_>| {
            other.shape == first.shape
                && other.selection.words == first.selection.words
                && other.device.architecture() == first.device.architecture()
        };
        let address = |index: &usize| Arc::as_ptr(shares[*index].device);
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by_key(address);
        let are_apart = order
            .windows(2)
            .all(|pair| address(&pair[0]) != address(&pair[1]));
        let are_some = (2..=MOST_DEVICES).contains(&shares.len());
        let reads_all = |reader: &Prepared<'_>| shares.iter().all(|other| reader.device.reads(other.device));
        let can = are_some && are_apart && shares.iter().all(is_like) && shares.iter().all(reads_all);
        can.then_some(Self {
            shares,
            order,
            population,
        })
    }

    /// One sequence of launches; appends the keys where all were found.
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
        let mut rooms = Vec::new();
        for (share, lease) in self.shares.iter().zip(leases.iter_mut().flatten()) {
            let (layout, workspace) = share.make_room(lease, ranks.len(), true)?;
            rooms.push(Room {
                share,
                layout,
                workspace,
            });
        }
        let queries = self.queries(ranks.len(), counts_all, &rooms)?;
        let mut workers = Vec::new();
        let asked = enqueue(ranks, rooms, queries, &mut workers);
        // Whatever happened: devices that work use memory that is free afterwards.
        let waited = self.shares.iter();
        let waited = waited.map(|share| share.device.synchronize("selecting on several devices"));
        let waited: Vec<_> = waited.collect();
        asked.and(waited.into_iter().collect::<Result<()>>())?;
        let outcome = self.outcome(&workers)?;
        self.record(&workers, ranks.len(), &outcome, report)?;
        if let Some(Worker { room, .. }) = workers.first()
            && outcome.flags & OUTSIDE == 0
            && outcome.open == 0
        {
            let at = room.layout.common_answers_at();
            room.share.take_keys(room.workspace, at, ranks.len(), keys)?;
        }
        Ok(outcome)
    }

    /// How it went on all devices: each counts those open ranks that it was to find, and those that all know of.
    fn outcome(&self, workers: &[Worker<'_, '_>]) -> Result<Outcome> {
        let mut all = Outcome::default();
        for Worker { room, .. } in workers {
            let own = room
                .share
                .outcome(&room.layout, room.workspace, self.population)?;
            all = Outcome {
                flags: all.flags | own.flags,
                open: all.open + own.open,
                cells: own.cells,
            };
        }
        Ok(all)
    }

    /// What each device is told: of its share, and of all.
    fn queries(&self, ranks: usize, counts_all: bool, rooms: &[Room<'_, '_>]) -> Result<Vec<QueryArgument>> {
        let rows = |room: &Room<'_, '_>| room.share.selection.column.rows();
        let all: u64 = rooms.iter().map(rows).sum();
        let largest = rooms.iter().map(rows).max().unwrap_or(0).max(1);
        // Each row is as likely to be drawn, and the largest share gives as many as if it were alone.
        let sample = u128::from(sample_size(largest, ranks));
        let share_of =
            |whole: u128, rows: u64, all: u64| (whole * u128::from(rows) / u128::from(all.max(1))) as u64;
        // What may be copied of all keys, so that each device has room for its part.
        let rooms_of_all = rooms.iter().map(|room| {
            let own = u128::from(room.share.room(&room.layout));
            share_of(own, all, rows(room))
        });
        let copied = rooms_of_all.min().unwrap_or(0);
        let (mut controls, mut lists) = ([0; MOST_DEVICES], [0; MOST_DEVICES]);
        for (room, (control, list)) in rooms.iter().zip(controls.iter_mut().zip(&mut lists)) {
            let base = room.workspace.device.address();
            (*control, *list) = (
                base + room.layout.control as u64,
                base + room.layout.listed as u64,
            );
        }
        let answers = match rooms.first() {
            Some(first) => first.workspace.host.address()? + first.layout.common_answers_at() as u64,
            None => 0,
        };
        let queries = rooms.iter().enumerate().map(|(device, room)| {
            let (share, base) = (room.share, room.workspace.device.address());
            let mut own = share.query(ranks, counts_all, &room.layout, base);
            (own.kept, own.answers) = (self.population, answers);
            own.sample_lines = share.sample_lines(share_of(sample, rows(room), largest));
            own.room = copied;
            (own.controls, own.lists) = (controls, lists);
            own.stripes = share_of(u128::from(STRIPES), rows(room), all) as u32;
            (own.device, own.devices) = (device as u32, rooms.len() as u32);
            own
        });
        Ok(queries.collect())
    }

    /// What was read, and what devices read of each other but for the keys at the end, which are some dozens for each rank.
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
        // Of each other device: its part of the sample, counts of both samples and of all values, and of parts of lists.
        let others = self.shares.len() - 1;
        let cells = outcome.cells as usize * 12 + ranks * PARTS_BYTES;
        let sample = STRIPES as usize * self.shares[0].key_bytes;
        let sent = others * (sample + self.shares.len() * cells);
        report.bytes_from_device += sent as u64;
        report.bytes_to_device += sent as u64;
        Ok(())
    }
}

/// Puts everything on the streams, for all devices in turn, so that none waits long for what the host has not asked yet.
///
/// A query names the workspaces of all devices, which each of them may read and which are locked, and page-locked memory of the
/// first with room for a key of each rank; the caller waits for all devices, whatever this returns.
fn enqueue<'a, 'b>(
    ranks: &[u64],
    rooms: Vec<Room<'a, 'b>>,
    queries: Vec<QueryArgument>,
    workers: &mut Vec<Worker<'a, 'b>>,
) -> Result<()> {
    for (room, query) in rooms.into_iter().zip(queries) {
        let timeline = room.share.begin(ranks, &room.layout, room.workspace)?;
        workers.push(Worker {
            room,
            query,
            timeline,
        });
    }
    let mut signals = Vec::<CudaEvent>::new();
    for step in STEPS {
        for (device, worker) in workers.iter().enumerate() {
            let others = signals.iter().enumerate().filter(|(other, _)| *other != device);
            for (_, signal) in others {
                worker.room.share.device.wait_for(signal)?;
            }
        }
        for kernel in step {
            for worker in workers.iter_mut() {
                let launch = worker.room.share.launch(kernel, ranks.len())?;
                worker.timeline.launch(&launch, &worker.query)?;
            }
        }
        let done = workers.iter().map(|worker| worker.room.share.device.signal());
        signals = done.collect::<Result<_>>()?;
    }
    for Worker { room, timeline, .. } in workers {
        room.share.end(&room.layout, room.workspace, timeline)?;
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
