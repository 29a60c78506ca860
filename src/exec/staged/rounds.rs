//! Which rounds a staged plan has: a strategy of [`crate::select`], unrolled to a number of reads that is fixed beforehand.
//!
//! | strategy | reads | rounds |
//! | --- | --- | --- |
//! | `gk_select` | 2 | sketch; count around the brackets that the summary proves, with what lies inside them |
//! | `distributed_bms` | 3 | sample; count; extract |
//! | `dibms` | 2 + r | sample; r counts; extract. By its name r is 3 |
//!
//! The last read always brings every candidate that is left, so the answer is exact whatever the data; reads before it only
//! decide how much that is. A read executes the input anew. `cost.rs` chooses for `auto`.
//!
//! **Buckets of `dibms`.** Its paper counts in as many buckets as the hardware has counters. Here a count is a message of
//! every partition, so there are few ([`buckets`]), and what is sent does not grow with the table: in the first count a
//! bucket holds hundreds of a partition's values, two bytes as LEB128 for 2e6 values in all as for 2e8; in later ones some,
//! one byte. Three counts leave so few candidates that their keys hardly weigh: from 2.5e6 values to ten times as many the
//! messages of 99 ranks grow by less than an eighth (a test of this module measures it), those of one rank not at all; two
//! counts, however cut, send more or grow more.

use std::fmt::{self, Display};

use datafusion::common::Result;

use crate::cells::Brackets;
use crate::kernel::round::Request;
use crate::key::Width;
use crate::select::bms::{Dibms, DistributedBms, SAMPLES, extract};
use crate::select::gk_select::GkSelect;
use crate::select::{Step, Strategy};

/// Counts of `dibms` by its name.
pub(super) const COUNTS: u8 = 3;

/// Pivot intervals of the density estimate: twice the paper's, as buckets are fewer.
const INTERVALS: usize = 32;

/// Keys that a partition samples at least.
const LEAST_SAMPLE: u64 = 64;

/// A strategy with its number of reads.
#[derive(Debug, Clone)]
pub(crate) struct Rounds {
    pub(super) steps: Steps,
    /// Whether the cost model took it, not the user.
    pub(super) auto: bool,
}

/// The strategies of stages.
#[derive(Debug, Clone)]
pub(super) enum Steps {
    GkSelect(GkSelect),
    DistributedBms { partitions: u64 },
    Dibms { partitions: u64, counts: u8 },
}

/// Buckets of `dibms` in count `count`, the first being 0, of `counts`, for so many ranks.
///
/// A rank keeps a bucket of a later count, so those grow with the ranks: each such count leaves one of 40 candidates or fewer.
pub(super) fn buckets(count: u8, counts: u8, ranks: usize) -> u32 {
    if count == 0 {
        return if ranks <= 16 { 1024 } else { 2048 };
    }
    // With a count less, each has to tell more apart.
    let each = if counts < COUNTS { 320 } else { 40 };
    (each * ranks.min(1 << 12) as u32)
        .next_power_of_two()
        .clamp(512, 32_768)
}

impl Rounds {
    /// Reads of the input.
    pub(crate) fn reads(&self) -> usize {
        self.steps.reads()
    }

    /// What the read of this number does, the first being 0.
    pub(super) fn named(&self, read: usize) -> &'static str {
        match self.steps {
            Steps::GkSelect(_) if read == 0 => "sketch",
            _ if read == 0 => "sample",
            Steps::GkSelect(_) => "count",
            _ if read + 1 < self.reads() => "count",
            _ => "extract",
        }
    }

    /// Whether the replies of a read add up to one of the same size, so that partitions of partitions can be merged first.
    pub(super) fn is_summed(&self, read: usize) -> bool {
        match self.steps {
            Steps::GkSelect(_) => read == 0,
            Steps::DistributedBms { .. } | Steps::Dibms { .. } => read > 0 && read + 1 < self.reads(),
        }
    }

    /// What shards are asked first, those that hold `own` values of this width.
    pub(super) fn first_request(&self, own: u64, width: Width) -> Request {
        match &self.steps {
            Steps::GkSelect(strategy) => Request::Sketch {
                eps: strategy.epsilon(),
            },
            // Nobody knows yet how many values there are: all partitions sample alike.
            Steps::DistributedBms { partitions } | Steps::Dibms { partitions, .. } => Request::Sample {
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
        match (&self.steps, step) {
            (Steps::DistributedBms { .. } | Steps::Dibms { .. }, Step::Round(progress, _))
                if read + 2 == self.reads() =>
            {
                extract(progress)
            }
            (_, step) => Ok(step),
        }
    }

    /// What steps after read `read`, for so many ranks of a column.
    pub(super) fn strategy(&self, read: usize, ranks: usize) -> Box<dyn Strategy> {
        match &self.steps {
            Steps::GkSelect(strategy) => Box::new(strategy.clone()),
            Steps::DistributedBms { .. } => Box::new(DistributedBms::default()),
            Steps::Dibms { counts, .. } => {
                let buckets = buckets(read.min(usize::from(*counts) - 1) as u8, *counts, ranks);
                Box::new(Dibms {
                    buckets,
                    // Fewer bytes than another count.
                    collected: buckets.into(),
                    intervals: INTERVALS,
                })
            }
        }
    }
}

impl Steps {
    pub(super) fn distributed_bms(partitions: usize) -> Self {
        let partitions = partitions as u64;
        Steps::DistributedBms { partitions }
    }

    pub(super) fn dibms(partitions: usize, counts: u8) -> Self {
        let partitions = partitions as u64;
        Steps::Dibms { partitions, counts }
    }

    pub(super) fn reads(&self) -> usize {
        match self {
            Steps::GkSelect(_) => 2,
            Steps::DistributedBms { .. } => 3,
            Steps::Dibms { counts, .. } => 2 + usize::from(*counts),
        }
    }
}

/// The name that `SET quantiles.strategy` takes; for `auto` what was taken, and with how many reads.
impl Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.steps {
            Steps::GkSelect(_) => "gk_select",
            Steps::DistributedBms { .. } => "distributed_bms",
            Steps::Dibms { .. } => "dibms",
        })?;
        if self.auto {
            write!(f, " (auto), reads={}", self.reads())
        } else {
            write!(f, ", reads={}", self.reads())
        }
    }
}
