//! Columns in the memory of one device, or of several: by the devices' own kernels, or in rounds, the strategies of
//! [`crate::select`], each device a lane.
//!
//! Between devices and host travel cells, counts, and the few keys that are left: what grows with the number of ranks, not of
//! values. Rounds run where a strategy was asked for by name, and where several devices leave a rank open.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;
use futures::FutureExt;

use crate::config::StrategyName;
use crate::kernel::Lane;
use crate::kernel::cuda::{CudaBackend, DeviceColumn, Report, RowMask, Selection, SpreadSelection};
use crate::key::KeySpec;
use crate::memory::Workspace;
use crate::quantile::Ask;
use crate::select::sample_select::SampleSelect;
use crate::select::{LocalShards, Shards, Solution, Strategy, solve_ranks, wanted_ranks};
use crate::threads::Stop;

/// How ranks were found by several devices together.
pub(super) const TOGETHER: &str = "sample_select on the devices";

/// A column's values on one device.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) column: Arc<DeviceColumn>,
    /// The rows that count; `None`: all.
    pub(super) mask: Option<Arc<RowMask>>,
}

/// Whether a device selects by kernels of its own, without rounds.
pub(super) fn is_devices_own(strategy: StrategyName) -> bool {
    [StrategyName::Auto, StrategyName::SampleSelect].contains(&strategy)
}

/// What `asks` want of the values of all shares, by one sequence of kernels where that is enough. What devices did is added to
/// `report`. Waits for the devices.
///
/// # Errors
/// `ResourcesExhausted` where memory of a device or of the pool ends; an execution error if a device fails.
pub(super) fn solve_on_devices(
    shares: &[Share],
    spec: &KeySpec,
    strategy: StrategyName,
    asks: &[&Ask],
    on: Limits<'_>,
    report: &mut Report,
) -> Result<Solution> {
    if is_devices_own(strategy) && shares.len() > 1 {
        let selections = shares.iter().map(|share| {
            let mask = share.mask.as_ref();
            let kept = mask.map(|mask| mask.count(&share.column, on.device, report));
            Ok(Selection {
                column: &share.column,
                words: share.column.words(spec),
                mask: mask.map(|mask| mask.bits()).zip(kept.transpose()?),
                limit: on.device,
                timed: on.timed,
            })
        });
        let shares = selections.collect::<Result<Vec<_>>>()?;
        let selection = SpreadSelection { shares };
        let n = selection.population();
        let ranks = wanted_ranks(asks, n);
        if let Some(keys) = selection.keys(&ranks, report)? {
            return Ok(Solution::found(n, TOGETHER, ranks, keys));
        }
    }
    let (solution, rounds) = solve_in_rounds(shares, spec, strategy, asks, on.device, on.memory)?;
    report.add(&rounds);
    Ok(solution)
}

/// Memory that devices and host may use, and whether the time of each kernel is wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) device: Option<u64>,
    pub(super) memory: &'a MemoryReservation,
    pub(super) timed: bool,
}

/// What `asks` want of the values of all shares. Waits for the devices.
///
/// # Errors
/// `ResourcesExhausted` where memory of a device or of the pool ends; an execution error if a device fails.
fn solve_in_rounds(
    shares: &[Share],
    spec: &KeySpec,
    strategy: StrategyName,
    asks: &[&Ask],
    limit: Option<u64>,
    memory: &MemoryReservation,
) -> Result<(Solution, Report)> {
    let (mut backends, mut lanes) = (Vec::new(), Vec::<Box<dyn Lane>>::new());
    for share in shares {
        let backend = CudaBackend::new(Arc::clone(share.column.device()), limit);
        let mask = share.mask.as_ref().map(|mask| mask.bits());
        let lane = backend.over(Arc::clone(&share.column), spec, mask, memory.new_empty())?;
        lanes.push(Box::new(lane));
        backends.push(backend);
    }
    let rooms = backends.iter().map(CudaBackend::room);
    let room = rooms.min_by_key(|room| room.cells);
    let room = room.ok_or_else(|| internal_datafusion_err!("a column of no shares"))?;
    let threads = lanes.len();
    let mut shards = LocalShards::blocking(spec.width(), lanes, threads, Stop::default())
        .within(room, Workspace::new(memory.new_empty()));
    let n = shards.population();
    let ranks = wanted_ranks(asks, n);
    let strategy: Box<dyn Strategy> = match is_devices_own(strategy) {
        true => Box::new(SampleSelect::counting(n)),
        false => strategy.strategy(n, &ranks, threads, &room)?,
    };
    let solved = solve_ranks(&mut shards, strategy.as_ref(), ranks).now_or_never();
    let solution =
        solved.ok_or_else(|| internal_datafusion_err!("rounds that block their caller have ended"))??;
    let mut report = Report::default();
    backends.iter().for_each(|backend| report.add(&backend.report()));
    Ok((solution, report))
}
