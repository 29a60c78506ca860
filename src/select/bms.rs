//! Distributed bucket multiselect and its iterative form (Blanchard and others: `DistributedBMS` and `DIBMS`, section II).
//!
//! Both sample 1024 keys and find the least and the greatest key. 15 order statistics of the sample cut the range into 16 pivot
//! intervals, which is a kernel density estimate. Each interval gets an equal share of the buckets, and a linear function maps its
//! keys to them. Then all keys are counted by bucket. A bucket that holds a target rank is *active*.
//!
//! `DistributedBMS` now collects the keys of the active buckets. `DIBMS` makes each active bucket a pivot interval, gives it buckets
//! in proportion to its count, and counts again, until every rank is alone in its bucket or the bucket is one key wide. Only keys
//! that are alone in a bucket are fetched. Here it also ends when all active buckets together hold less than another count would
//! send.
//!
//! Two things differ from the paper. Bucket ends are integers, so that no rounding moves a key across them. A bucket whose first key
//! equals its last ends the search with proof, where the paper iterates twice without progress and then assumes it.

use datafusion::common::{Result, internal_err, resources_err};

use super::progress::Progress;
use super::requests;
use super::{NextStep, Strategy};
use crate::cells::{Bracket, Brackets, Cells, Linear, MAX_CELLS};
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, KeyVec};

/// Buckets of one count, over all pivot intervals: the paper's B for a device with 32 KiB of counters.
pub const BUCKETS: u32 = 8192;
/// Buckets of one count of [`Dibms`]: with twice as many it needs one count fewer, and a count costs more than larger messages.
const DIBMS_BUCKETS: u32 = 2 * BUCKETS;
/// Keys in the sample.
pub const SAMPLES: u64 = 1024;
/// Pivot intervals of the density estimate.
pub const INTERVALS: usize = 16;

/// `DistributedBMS`: a sample, a count, an extraction. Three rounds for any data; of evenly spread data the share `m / B` is moved,
/// for `m` ranks and `B` buckets.
#[derive(Debug, Clone)]
pub struct DistributedBms {
    /// Buckets of a count, over all pivot intervals.
    pub buckets: u32,
}

/// `DIBMS`: a sample, then counts until few candidates are left. The bytes that are sent depend on the number of ranks, not on the
/// size of the data.
#[derive(Debug, Clone)]
pub struct Dibms {
    /// Buckets of a count, over all pivot intervals.
    pub buckets: u32,
    /// Candidates, in keys, up to which they are collected, because that sends less than another count. With 0 it counts until
    /// every rank is alone in its bucket, as in the paper.
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

    fn begin(&self, progress: Progress) -> Result<NextStep> {
        Ok(sample(progress))
    }

    fn step(&self, progress: Progress, asked: &Request, reply: Reply) -> Result<NextStep> {
        let sizes = (self.buckets, INTERVALS);
        step(progress, asked, reply, sizes, extract_or_narrow)
    }
}

impl Strategy for Dibms {
    fn label(&self) -> &'static str {
        "dibms"
    }

    fn begin(&self, progress: Progress) -> Result<NextStep> {
        Ok(sample(progress))
    }

    fn step(&self, progress: Progress, asked: &Request, reply: Reply) -> Result<NextStep> {
        let sizes = (self.buckets, self.intervals);
        step(progress, asked, reply, sizes, |progress, buckets| {
            let few = progress.candidates() <= self.collected && progress.fits();
            if few || progress.active().iter().all(|active| active.inside == 1) {
                return extract(progress);
            }
            narrower(progress, buckets)
        })
    }
}

/// The step that both strategies share, with these numbers of buckets and of pivot intervals. They differ in what follows a count.
fn step(
    mut progress: Progress,
    asked: &Request,
    reply: Reply,
    (buckets, intervals): (u32, usize),
    after_count: impl Fn(Progress, u32) -> Result<NextStep>,
) -> Result<NextStep> {
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

fn sample(progress: Progress) -> NextStep {
    let request = requests::sample_of_all(SAMPLES, progress.population(), progress.width(), true);
    NextStep::Round(progress, request)
}

/// Phase 1 of the paper: pivots at the extremes and at equally spaced order statistics of the sample. All pivot intervals get the
/// same number of buckets.
fn first_count(
    progress: Progress,
    mut keys: KeyVec,
    extremes: Option<(KeyBits, KeyBits)>,
    (buckets, intervals): (u32, usize),
) -> Result<NextStep> {
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

/// Phase 2 of the paper: every active bucket becomes a pivot interval, with buckets in proportion to its count, at least two.
///
/// Two buckets suffice for a bucket that holds one value: only its key is still unknown. Each such count divides every bracket, so
/// that enough of them find any rank, whatever the data.
pub(super) fn narrower(progress: Progress, buckets: u32) -> Result<NextStep> {
    if progress.is_done() {
        return Ok(NextStep::Done(progress));
    }
    let buckets = buckets.min(progress.budget.cells as u32);
    let active = progress.active();
    if 2 * active.len() > MAX_CELLS {
        // No count can divide so many.
        if progress.overflowed {
            return resources_err!(
                "the memory limit is too small for exact quantiles: {} candidates of {} quantiles do not fit at once",
                progress.candidates(),
                progress.ranks().len()
            );
        }
        return extract(progress);
    }
    let total = progress.candidates();
    // Two buckets each also where the ranks are more than half the buckets, or they would never be found.
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

fn count(progress: Progress, intervals: &[(Bracket, u32)]) -> Result<NextStep> {
    let cells = Cells::Linear(Linear::try_new(intervals, progress.width())?);
    let request = requests::count(cells, Brackets::all(progress.width()));
    Ok(NextStep::Round(progress, request))
}

/// An extraction of all candidates where there is memory for them; else a count with this number of buckets.
pub(super) fn extract_or_narrow(progress: Progress, buckets: u32) -> Result<NextStep> {
    if progress.fits() {
        extract(progress)
    } else {
        narrower(progress, buckets)
    }
}

/// An extraction of the keys of all active brackets; the end where there are none.
pub(crate) fn extract(progress: Progress) -> Result<NextStep> {
    if progress.is_done() {
        return Ok(NextStep::Done(progress));
    }
    let brackets = progress.brackets()?;
    Ok(NextStep::Round(progress, Request::Extract { brackets }))
}
