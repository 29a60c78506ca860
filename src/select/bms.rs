//! Distributed bucket multiselect and its iterative form (Blanchard, and others: `DistributedBMS` and `DIBMS`,
//! section II).
//!
//! Both sample 1024 keys and the two extremes, cut the range at 15 order statistics of the sample into 16 pivot
//! intervals (a kernel density estimate), give each interval an equal share of the buckets, project linearly inside
//! an interval, and count. `DistributedBMS` then collects the keys of the active buckets. `DIBMS` makes each active
//! bucket a pivot interval, gives it buckets by its count, and counts again, until every rank is alone in its bucket
//! or its bucket is one key wide; only keys that are alone in a bucket are fetched. Here it also ends when all active
//! buckets together hold less than another count would send.
//!
//! Against the paper: bucket ends are integers, so no rounding moves a key across them; and a bucket whose first key
//! equals its last ends the search exactly, where the paper iterates twice more without progress and then believes.

use datafusion::common::{Result, internal_err, resources_err};

use super::progress::Progress;
use super::{Step, Strategy};
use crate::cells::{Bracket, Brackets};
use crate::cells::{Cells, Linear, MAX_CELLS};
use crate::kernel::round::{Reply, Request};
use crate::key::KeyBits;
use crate::key::KeyVec;

/// Buckets in all: the paper's B for a device with 32 KiB of counters.
pub const BUCKETS: u32 = 8192;
/// Buckets of [`Dibms`]: with twice as many it needs a count less, which costs more than the larger ones.
const DIBMS_BUCKETS: u32 = 2 * BUCKETS;
/// Keys sampled.
pub const SAMPLES: u64 = 1024;
/// Pivot intervals of the density estimate.
pub const INTERVALS: usize = 16;

/// Sample, count, collect: three rounds for any data, `m/B` of which is moved if it is spread evenly.
#[derive(Debug, Clone)]
pub struct DistributedBms {
    /// Buckets in all.
    pub buckets: u32,
}

/// Sample, then counts until little is left: what is sent depends on the number of ranks, not on the data's size.
#[derive(Debug, Clone)]
pub struct Dibms {
    /// Buckets in all.
    pub buckets: u32,
    /// As many candidates as this are collected: less than what another count sends. 0: counts until all ranks are
    /// alone in their buckets, as in the paper.
    pub collected: u64,
    /// Pivot intervals of the density estimate.
    pub intervals: usize,
}

impl Default for DistributedBms {
    fn default() -> Self {
        Self { buckets: BUCKETS }
    }
}

impl Default for Dibms {
    fn default() -> Self {
        Self {
            buckets: DIBMS_BUCKETS,
            collected: DIBMS_BUCKETS.into(),
            intervals: INTERVALS,
        }
    }
}

impl Strategy for DistributedBms {
    fn label(&self) -> &'static str {
        "distributed_bms"
    }

    fn begin(&self, progress: Progress) -> Result<Step> {
        Ok(sample(progress))
    }

    fn step(&self, progress: Progress, asked: &Request, reply: Reply) -> Result<Step> {
        let sizes = (self.buckets, INTERVALS);
        step(progress, asked, reply, sizes, |progress, buckets| {
            if progress.fits() {
                finish(progress)
            } else {
                narrower(progress, buckets)
            }
        })
    }
}

impl Strategy for Dibms {
    fn label(&self) -> &'static str {
        "dibms"
    }

    fn begin(&self, progress: Progress) -> Result<Step> {
        Ok(sample(progress))
    }

    fn step(&self, progress: Progress, asked: &Request, reply: Reply) -> Result<Step> {
        let sizes = (self.buckets, self.intervals);
        step(progress, asked, reply, sizes, |progress, buckets| {
            let few = progress.candidates() <= self.collected && progress.fits();
            if few || progress.active().iter().all(|active| active.inside == 1) {
                return finish(progress);
            }
            narrower(progress, buckets)
        })
    }
}

/// What both do, with so many buckets and intervals; they differ in what follows a count.
fn step(
    mut progress: Progress,
    asked: &Request,
    reply: Reply,
    (buckets, intervals): (u32, usize),
    after_count: impl Fn(Progress, u32) -> Result<Step>,
) -> Result<Step> {
    match (asked, reply) {
        (Request::Sample { .. }, Reply::Sample { keys, extremes }) => {
            first_count(progress, keys, extremes, (buckets, intervals))
        }
        (Request::Count { cells, .. }, Reply::Counts { counts, .. }) => {
            progress.narrow(cells, &counts, &[], Vec::new())?;
            after_count(progress, buckets)
        }
        (Request::Extract { .. }, Reply::Extracted(kept)) => {
            progress.extracted(kept)?;
            narrower(progress, buckets)
        }
        (asked, _) => internal_err!("a reply that does not answer {}", asked.name()),
    }
}

fn sample(progress: Progress) -> Step {
    let request = Request::Sample {
        size: SAMPLES,
        population: progress.population(),
        seed: 0,
        within: Brackets::all(progress.width()),
        extremes: true,
    };
    Step::Round(progress, request)
}

/// Phase 1: pivots at the extremes and at equally spaced order statistics of the sample, equal shares of buckets.
fn first_count(
    progress: Progress,
    mut keys: KeyVec,
    extremes: Option<(KeyBits, KeyBits)>,
    (buckets, intervals): (u32, usize),
) -> Result<Step> {
    let Some((least, greatest)) = extremes else {
        return internal_err!("a sample without extremes");
    };
    keys.sort();
    let inside = keys.lower_bound(least) == 0 && keys.upper_bound(greatest) == keys.len();
    if keys.is_empty() || !inside {
        return internal_err!("a sample of {} keys that lies beyond its extremes", keys.len());
    }
    let inner = (1..intervals).map(|i| keys.get(i * keys.len() / intervals));
    // A pivot that repeats would make an empty interval.
    let mut lefts: Vec<KeyBits> = [least].into_iter().chain(inner).collect();
    lefts.dedup();
    let rights = lefts[1..].iter().map(|left| left - 1).chain([greatest]);
    let share = buckets.min(progress.budget.cells as u32) / lefts.len() as u32;
    let intervals: Vec<(Bracket, u32)> = lefts
        .iter()
        .zip(rights)
        .map(|(first, last)| (Bracket { first: *first, last }, share))
        .collect();
    let progress = progress.clipped(Bracket {
        first: least,
        last: greatest,
    })?;
    count(progress, &intervals)
}

/// Phase 2: every active bucket is a pivot interval, with buckets in proportion to its count, at least two.
///
/// A bucket that holds one value is resolved but for its key, so it asks for no further buckets; two suffice for it.
///
/// Each such count divides every bracket, so that enough of them find any rank, whatever the data.
pub(super) fn narrower(progress: Progress, buckets: u32) -> Result<Step> {
    if progress.is_done() {
        return Ok(Step::Done(progress));
    }
    let buckets = buckets.min(progress.budget.cells as u32);
    let active = progress.active();
    if 2 * active.len() > MAX_CELLS {
        // No count can divide so many.
        return if progress.overflowed {
            resources_err!(
                "the memory limit is too small for exact quantiles: {} candidates of {} quantiles do not fit at once",
                progress.candidates(),
                progress.ranks().len()
            )
        } else {
            finish(progress)
        };
    }
    let total = progress.candidates();
    // More ranks than half the buckets: two each all the same, or they would never be resolved.
    let spare = buckets.saturating_sub(2 * active.len() as u32);
    let intervals: Vec<(Bracket, u32)> = active
        .iter()
        .map(|active| {
            let share = u128::from(active.inside) * u128::from(spare) / u128::from(total.max(1));
            (active.bracket, 2 + share as u32)
        })
        .collect();
    count(progress, &intervals)
}

fn count(progress: Progress, intervals: &[(Bracket, u32)]) -> Result<Step> {
    let cells = Cells::Linear(Linear::try_new(intervals, progress.width())?);
    let within = Brackets::all(progress.width());
    Ok(Step::Round(
        progress,
        Request::Count {
            cells,
            within,
            keep: Vec::new(),
        },
    ))
}

/// Collects the keys of all active buckets, if there are any.
pub(crate) fn finish(progress: Progress) -> Result<Step> {
    if progress.is_done() {
        return Ok(Step::Done(progress));
    }
    let brackets = progress.brackets()?;
    Ok(Step::Round(progress, Request::Extract { brackets }))
}
