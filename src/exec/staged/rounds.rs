//! Which rounds a staged plan has: a strategy of [`crate::select`], unrolled to a number of reads that is fixed beforehand.
//!
//! | strategy | reads | rounds |
//! | --- | --- | --- |
//! | `gk_select` | 2 | sketch; count around the brackets that the summary proves, with what lies inside them |
//! | `distributed_bms` | 3 | sample; count; extract |
//! | `dibms` | 4 | sample; count, count; extract |
//!
//! The last read always brings every candidate that is left, so the answer is exact whatever the data; reads before it only
//! decide how much that is. A read executes the input anew, so `auto` takes the strategy with the fewest. `gk_select` moves
//! about `sqrt(n)` of each partition and rank; `dibms` a number of counts that does not grow with `n`.

use std::fmt::{self, Display};

use datafusion::common::Result;

use crate::kernel::round::{Brackets, Request};
use crate::key::Width;
use crate::select::bms::{Dibms, DistributedBms, SAMPLES, finish};
use crate::select::gk_select::GkSelect;
use crate::select::{Step, Strategy, StrategyName};

/// Counts of [`Rounds::Dibms`]: after two, 99 ranks among 1e8 values leave some thousand candidates.
pub(crate) const COUNTS: u8 = 2;

/// Keys that a partition samples at least.
const LEAST_SAMPLE: u64 = 64;

/// A strategy and its number of reads.
#[derive(Debug, Clone)]
pub(crate) enum Rounds {
    GkSelect(GkSelect),
    DistributedBms { partitions: u64 },
    Dibms { partitions: u64, counts: u8 },
}

impl Rounds {
    /// For so many values and ranks in so many partitions.
    ///
    /// # Errors
    /// None for numbers that can occur.
    pub(crate) fn try_new(name: StrategyName, n: u64, partitions: usize, ranks: usize) -> Result<Self> {
        let partitions_of = partitions as u64;
        Ok(match name {
            StrategyName::DistributedBms => Rounds::DistributedBms {
                partitions: partitions_of,
            },
            StrategyName::Dibms => Rounds::Dibms {
                partitions: partitions_of,
                counts: COUNTS,
            },
            // SampleSelect's brackets may miss, and then it wants rounds more.
            StrategyName::Auto | StrategyName::SampleSelect | StrategyName::GkSelect => {
                Rounds::GkSelect(GkSelect::try_new(n, partitions, ranks, u64::MAX)?)
            }
        })
    }

    /// Reads of the input under a strategy of this name.
    pub(crate) fn reads_of(name: StrategyName) -> usize {
        match name {
            StrategyName::DistributedBms => 3,
            StrategyName::Dibms => 2 + usize::from(COUNTS),
            StrategyName::Auto | StrategyName::SampleSelect | StrategyName::GkSelect => 2,
        }
    }

    /// Reads of the input.
    pub(super) fn reads(&self) -> usize {
        match self {
            Rounds::GkSelect(_) => 2,
            Rounds::DistributedBms { .. } => 3,
            Rounds::Dibms { counts, .. } => 2 + usize::from(*counts),
        }
    }

    /// What the read of this number does, the first being 0.
    pub(super) fn named(&self, read: usize) -> &'static str {
        match self {
            Rounds::GkSelect(_) if read == 0 => "sketch",
            _ if read == 0 => "sample",
            Rounds::GkSelect(_) => "count",
            _ if read + 1 < self.reads() => "count",
            _ => "extract",
        }
    }

    /// What lanes are asked first, those that hold `own` values of this width.
    pub(super) fn first_request(&self, own: u64, width: Width) -> Request {
        match self {
            Rounds::GkSelect(strategy) => Request::Sketch {
                eps: strategy.epsilon(),
            },
            // Nobody knows yet how many values there are: all partitions sample alike.
            Rounds::DistributedBms { partitions } | Rounds::Dibms { partitions, .. } => Request::Sample {
                size: SAMPLES.div_ceil((*partitions).max(1)).max(LEAST_SAMPLE).min(own),
                population: own,
                seed: 0,
                within: Brackets::all(width),
                extremes: true,
            },
        }
    }

    /// The step after the reply to read `read`: at the last but one, to all that is left.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn next(&self, read: usize, step: Step) -> Result<Step> {
        match (self, step) {
            (Rounds::DistributedBms { .. } | Rounds::Dibms { .. }, Step::Ask(progress, _))
                if read + 2 == self.reads() =>
            {
                finish(progress)
            }
            (_, step) => Ok(step),
        }
    }

    pub(super) fn strategy(&self) -> Box<dyn Strategy> {
        match self {
            Rounds::GkSelect(strategy) => Box::new(strategy.clone()),
            Rounds::DistributedBms { .. } => Box::new(DistributedBms::default()),
            Rounds::Dibms { .. } => Box::new(Dibms::default()),
        }
    }
}

impl Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.strategy().label())
    }
}
