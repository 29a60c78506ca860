//! The rounds of a staged plan: a strategy of [`crate::select`], unrolled to a number of reads that is fixed before it runs.
//!
//! | strategy | reads | rounds |
//! | --- | --- | --- |
//! | `gk_select` | 2 | sketch; count around the brackets that the summary proves, with the keys inside them |
//! | `distributed_bms` | 3 | sample; count; extract |
//! | `dibms` | 2 + r | sample; r counts; extract. With `quantiles.strategy = 'dibms'` r is 3 |
//!
//! The last read always brings every candidate that is left, so that the answer is exact for any data. The reads before it only decide
//! how many candidates those are. Each read executes the input again. `cost.rs` chooses for `auto`.
//!
//! **Buckets of `dibms`.** Its paper counts in as many buckets as the hardware has counters. Here every partition sends its counts in a
//! message. So there are few buckets ([`buckets`]), and messages do not grow with the table. In the first count a bucket holds hundreds
//! of a partition's values: a count takes two bytes as LEB128, for 2e6 values in all as for 2e8. In later counts it holds a few values:
//! one byte. Three counts leave so few candidates that their keys hardly matter. From 2.5e6 values to ten times as many, the messages of
//! 99 ranks grow by less than an eighth (a test of this module measures it), those of one rank not at all. Two counts, however cut, send
//! more or grow more.

use std::fmt::{self, Display};

use datafusion::common::Result;

use crate::kernel::round::Request;
use crate::key::Width;
use crate::select::bms::{Dibms, DistributedBms, SAMPLES, extract};
use crate::select::gk_select::GkSelect;
use crate::select::requests::sample_of_all;
use crate::select::{NextStep, Strategy};

/// Counts of `dibms` where the user names it.
pub(super) const COUNTS: u8 = 3;

/// Pivot intervals of the density estimate: twice as many as in the paper, as there are fewer buckets.
const INTERVALS: usize = 32;

/// Fewest keys that a partition samples.
const LEAST_SAMPLE: u64 = 64;

/// The rounds of a staged plan.
#[derive(Debug, Clone)]
pub(crate) struct Rounds {
    pub(super) strategy: UnrolledStrategy,
    /// Whether the cost model chose the strategy, not the user.
    pub(super) auto: bool,
}

/// A strategy with a fixed number of rounds.
#[derive(Debug, Clone)]
pub(super) enum UnrolledStrategy {
    GkSelect(GkSelect),
    DistributedBms { partitions: u64 },
    Dibms { partitions: u64, counts: u8 },
}

/// Buckets of `dibms` in count `count` (from 0) of `counts`, for this number of ranks.
///
/// In a later count each rank needs buckets of its own, so that the buckets grow with the ranks. Each such count leaves at most one in
/// 40 candidates.
pub(super) fn buckets(count: u8, counts: u8, ranks: usize) -> u32 {
    if count == 0 {
        return if ranks <= 16 { 1024 } else { 2048 };
    }
    // With one count fewer, each count has to tell more values apart.
    let each = if counts < COUNTS { 320 } else { 40 };
    (each * ranks.min(1 << 12) as u32)
        .next_power_of_two()
        .clamp(512, 32_768)
}

impl Rounds {
    /// Number of reads of the input.
    pub(crate) fn reads(&self) -> usize {
        self.strategy.reads()
    }

    /// Name of the request of a read, for `EXPLAIN`. Reads count from 0.
    pub(super) fn named(&self, read: usize) -> &'static str {
        match self.strategy {
            UnrolledStrategy::GkSelect(_) if read == 0 => "sketch",
            _ if read == 0 => "sample",
            UnrolledStrategy::GkSelect(_) => "count",
            _ if read + 1 < self.reads() => "count",
            _ => "extract",
        }
    }

    /// Whether the replies of a read add up to one reply of the same size, so that a tree can merge them.
    pub(super) fn is_summed(&self, read: usize) -> bool {
        match self.strategy {
            UnrolledStrategy::GkSelect(_) => read == 0,
            UnrolledStrategy::DistributedBms { .. } | UnrolledStrategy::Dibms { .. } => {
                read > 0 && read + 1 < self.reads()
            }
        }
    }

    /// The first request to a shard that holds `own` values with keys of this width.
    pub(super) fn first_request(&self, own: u64, width: Width) -> Request {
        match &self.strategy {
            UnrolledStrategy::GkSelect(strategy) => Request::Sketch {
                eps: strategy.epsilon(),
            },
            // The number of all values is not known yet: all partitions sample the same number of keys.
            UnrolledStrategy::DistributedBms { partitions } | UnrolledStrategy::Dibms { partitions, .. } => {
                let size = SAMPLES.div_ceil((*partitions).max(1)).max(LEAST_SAMPLE).min(own);
                sample_of_all(size, own, width, true)
            }
        }
    }

    /// The step that follows read `read`, where the strategy steps to `step`. After the last read but one it is always the extraction
    /// of all candidates.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn next(&self, read: usize, step: NextStep) -> Result<NextStep> {
        match (&self.strategy, step) {
            (
                UnrolledStrategy::DistributedBms { .. } | UnrolledStrategy::Dibms { .. },
                NextStep::Round(progress, _),
            ) if read + 2 == self.reads() => extract(progress),
            (_, step) => Ok(step),
        }
    }

    /// The strategy that steps after read `read`, for this number of ranks of a column.
    pub(super) fn strategy(&self, read: usize, ranks: usize) -> Box<dyn Strategy> {
        match &self.strategy {
            UnrolledStrategy::GkSelect(strategy) => Box::new(strategy.clone()),
            UnrolledStrategy::DistributedBms { .. } => Box::new(DistributedBms::default()),
            UnrolledStrategy::Dibms { counts, .. } => {
                let buckets = buckets(read.min(usize::from(*counts) - 1) as u8, *counts, ranks);
                Box::new(Dibms {
                    buckets,
                    // Fewer candidates than this send fewer bytes than another count.
                    collected: buckets.into(),
                    intervals: INTERVALS,
                })
            }
        }
    }
}

impl UnrolledStrategy {
    pub(super) fn distributed_bms(partitions: usize) -> Self {
        let partitions = partitions as u64;
        UnrolledStrategy::DistributedBms { partitions }
    }

    pub(super) fn dibms(partitions: usize, counts: u8) -> Self {
        let partitions = partitions as u64;
        UnrolledStrategy::Dibms { partitions, counts }
    }

    pub(super) fn reads(&self) -> usize {
        match self {
            UnrolledStrategy::GkSelect(_) => 2,
            UnrolledStrategy::DistributedBms { .. } => 3,
            UnrolledStrategy::Dibms { counts, .. } => 2 + usize::from(*counts),
        }
    }
}

/// The name of the strategy as `SET quantiles.strategy` takes it, whether `auto` chose it, and the number of reads.
impl Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.strategy {
            UnrolledStrategy::GkSelect(_) => "gk_select",
            UnrolledStrategy::DistributedBms { .. } => "distributed_bms",
            UnrolledStrategy::Dibms { .. } => "dibms",
        })?;
        let auto = if self.auto { " (auto)" } else { "" };
        write!(f, "{auto}, reads={}", self.reads())
    }
}
