//! A column in the memory of one or several devices, as shards of [`crate::select`]: each device has some of the rows.
//!
//! One device, or several together, find ranks by a sequence of kernels, without the host in between. Rounds run in two cases: if
//! another strategy was asked for by name, and if several devices together leave a rank open. Then each device is a shard. Devices
//! and host exchange cells, counts and the few keys that are left: their number grows with the ranks, not with the values.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;
use futures::FutureExt;

use crate::config::StrategyName;
use crate::kernel::Shard;
use crate::kernel::cuda::{CudaBackend, DeviceColumn, Report, RowMask, Selection, SpreadSelection};
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, KeySpec, Width};
use crate::memory::{MemoryBudget, RoundMemory};
use crate::quantile::QuantileSpec;
use crate::select::sample_select::SampleSelect;
use crate::select::{Found, LocalShards, Shards, Solution, Strategy, solve};
use crate::threads::Stop;

/// Name in metrics of a selection by one device without rounds.
pub(super) const ALONE: &str = "sample_select on the device";
/// Name in metrics of a selection by several devices together without rounds.
const TOGETHER: &str = "sample_select on the devices";

/// A column's values on one device.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) column: Arc<DeviceColumn>,
    /// The rows that count, and how many of them are not NULL; `None`: all rows count.
    pub(super) mask: Option<(Arc<RowMask>, u64)>,
}

/// Limits of a selection on devices, and whether each kernel is timed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits<'a> {
    /// Bytes of each device's memory that this crate may hold; `None`: no limit.
    pub(super) device: Option<u64>,
    /// Host memory is reserved for the consumer of this reservation.
    pub(super) memory: &'a MemoryReservation,
    /// Whether the time of each kernel is measured.
    pub(super) timed: bool,
}

/// Finds the order statistics that `quantile_specs` want of a column on devices. Adds what the devices did to `report`. Blocks until
/// the devices are done.
///
/// # Errors
/// `ResourcesExhausted` where memory of a device or of the pool ends; an execution error if a device fails.
pub(super) fn solve_on_devices(
    shares: &[Share],
    spec: &KeySpec,
    strategy: StrategyName,
    quantile_specs: &[&QuantileSpec],
    limits: Limits<'_>,
    report: &mut Report,
) -> Result<Solution> {
    let mut shards = DeviceShards::try_new(shares, spec, limits)?;
    let solved = solve(&mut shards, strategy, quantile_specs).now_or_never();
    let solution =
        solved.ok_or_else(|| internal_datafusion_err!("rounds that block their caller have ended"))??;
    report.add(&shards.together);
    shards
        .backends
        .iter()
        .for_each(|backend| report.add(&backend.report()));
    Ok(solution)
}

/// The shards of a column, one a device. Every request blocks its caller.
struct DeviceShards<'a> {
    shares: &'a [Share],
    spec: &'a KeySpec,
    limits: Limits<'a>,
    /// Backend of each device.
    backends: Vec<CudaBackend>,
    shards: LocalShards,
    /// What the devices did together, apart from what each did alone.
    together: Report,
}

impl<'a> DeviceShards<'a> {
    fn try_new(shares: &'a [Share], spec: &'a KeySpec, limits: Limits<'a>) -> Result<Self> {
        let backend = |share: &Share| {
            let device = Arc::clone(share.column.device());
            CudaBackend::new(device, limits.device).timed(limits.timed)
        };
        let backends: Vec<_> = shares.iter().map(backend).collect();
        let budgets = backends.iter().map(CudaBackend::budget);
        let budget = budgets.min_by_key(|budget| budget.cells);
        let budget = budget.ok_or_else(|| internal_datafusion_err!("a column of no shares"))?;
        let shards = shares.iter().zip(&backends).map(|(share, backend)| {
            let (column, mask) = (Arc::clone(&share.column), share.mask.clone());
            let shard = backend.over(column, spec, mask, limits.memory.new_empty())?;
            Ok(Box::new(shard) as Box<dyn Shard>)
        });
        let shards = shards.collect::<Result<Vec<_>>>()?;
        let shards = LocalShards::blocking(spec.width(), shards, shares.len(), Stop::default());
        Ok(Self {
            shares,
            spec,
            limits,
            backends,
            shards: shards.within(budget, RoundMemory::new(limits.memory.new_empty())),
            together: Report::default(),
        })
    }

    /// The keys of `ranks`, found by all devices together; `None` if they leave a rank open.
    fn select_together(&mut self, ranks: &[u64]) -> Result<Option<Vec<KeyBits>>> {
        let selections = self.shares.iter().map(|share| Selection {
            column: &share.column,
            format: share.column.format(self.spec),
            mask: share.mask.as_ref().map(|(mask, kept)| (mask.bits(), *kept)),
            limit: self.limits.device,
            timed: self.limits.timed,
        });
        let shares = selections.collect();
        SpreadSelection { shares }.keys(ranks, &mut self.together)
    }
}

#[async_trait]
impl Shards for DeviceShards<'_> {
    fn width(&self) -> Width {
        self.shards.width()
    }

    fn population(&self) -> u64 {
        self.shards.population()
    }

    fn parallelism(&self) -> usize {
        self.shares.len()
    }

    fn budget(&self) -> MemoryBudget {
        self.shards.budget()
    }

    fn strategy(&self, name: StrategyName, ranks: &[u64]) -> Result<Box<dyn Strategy>> {
        if name.is_sample_select() {
            Ok(Box::new(SampleSelect::counting(self.population())))
        } else {
            name.strategy(self.population(), ranks, self.parallelism(), &self.budget())
        }
    }

    async fn select(&mut self, ranks: &[u64]) -> Result<Option<Found>> {
        let (label, keys) = match self.shares {
            [_] if ranks.is_empty() => (ALONE, Some(Vec::new())),
            [_] => (ALONE, self.shards.select_alone(ranks)?),
            _ => (TOGETHER, self.select_together(ranks)?),
        };
        Ok(keys.map(|keys| Found { label, keys }))
    }

    async fn round(&mut self, request: Arc<Request>) -> Result<Reply> {
        self.shards.round(request).await
    }
}
