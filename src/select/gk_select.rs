//! GK Select (Li, Bai, Cook, Mozafari: "GK Select", sections IV and V): a sketch of every shard, then one read that counts
//! around the brackets of the sketch and copies the keys inside them. Two rounds for any data and any number of ranks.
//!
//! ```text
//! sketch    merged summary: rank 5 lies between lo and hi, whatever the data
//! count     ... lo ) (lo) ( lo .. hi ) (hi) ( hi ...      all counted; only ( lo .. hi ) is copied
//! ```
//! The summary of a shard comes from counts of dyadic intervals (`crate::sketch::dyadic`). That costs less than half of the time of
//! a sketch that is filled key by key, and a third of its bytes. It leaves brackets half as wide once shards are merged.
//!
//! The paper counts below one pivot. In a third action it fetches the candidates between the pivot and the rank. Here brackets that
//! the summary proves replace both, for all ranks at once. Between their open ends lie fewer than `4 eps n` values for each rank
//! (see [`crate::sketch`]). Values equal to an end are counted and not copied, so that data of one value copies nothing.
//!
//! In one process it loses to a sample, because a second read is cheaper there than the sketch. It wins where a round, or a moved
//! value, is expensive. It needs more rounds only where there is no memory for the sketch or for the candidates: counts, as in DIBMS.

use datafusion::common::{Result, internal_err};

use super::bms::{BUCKETS, extract_or_narrow, narrower};
use super::progress::Progress;
use super::sample_select::count_and_keep;
use super::sampled::edges_around;
use super::{NextStep, Strategy};
use crate::cells::{Bracket, Brackets, MAX_CELLS};
use crate::kernel::round::{Reply, Request};
use crate::sketch::{AnySummary, Epsilon};

/// Bytes of a tuple in a message, about.
const TUPLE_BYTES: f64 = 6.0;
/// Tuples in a shard's summary, as a multiple of `1 / eps`: between 0.5 and 1, depending on where dyadic intervals end.
const TUPLES: f64 = 0.75;
/// Bytes of a shard's summary, multiplied by its error fraction.
pub(crate) const SUMMARY_BYTES: f64 = TUPLES * TUPLE_BYTES;
/// Values between the ends of a bracket, as a multiple of `eps n`, as measured on random data. The proved bound is 4.
pub(crate) const BETWEEN: f64 = 1.6;
/// Least error fraction: below it a sketch takes several times as long, as it has too many cells for a table.
const LEAST: f64 = 4e-5;
/// Greatest error fraction: above it a sketch takes no less time.
const MOST: f64 = 1e-2;

/// The strategy `gk_select`: see the module.
#[derive(Debug, Clone)]
pub struct GkSelect {
    eps: Epsilon,
}

impl GkSelect {
    /// A strategy with the error fraction that moves the fewest bytes for `ranks` ranks among `n` values on `shards` shards. The
    /// fraction stays in the range where a sketch is fast, and small enough that at most `keys` candidates are collected at once.
    ///
    /// A summary takes `6 * 0.75 / eps` bytes on each shard. The candidates are `1.6 eps n` keys for each rank, of about 8 bytes.
    /// So the best fraction is `eps = sqrt(4.5 shards / (13 ranks n))`. Both parts then grow with `sqrt(n)`, and their share of the
    /// data falls.
    ///
    /// # Errors
    /// None for numbers that can occur.
    pub fn try_new(n: u64, shards: usize, ranks: usize, keys: u64) -> Result<Self> {
        let candidates = BETWEEN * ranks.max(1) as f64 * n.max(1) as f64;
        let best = (SUMMARY_BYTES * shards.max(1) as f64 / (8.0 * candidates)).sqrt();
        let fits = keys as f64 / (4.0 / BETWEEN * candidates);
        // One divided by a whole number: a fraction that is kept exactly.
        let eps = best.min(fits).clamp(LEAST, MOST);
        Ok(Self {
            eps: Epsilon::try_new((1.0 / eps).round())?,
        })
    }

    /// The error fraction of the sketches.
    pub fn epsilon(&self) -> Epsilon {
        self.eps
    }

    /// A strategy with this error fraction.
    pub fn with(eps: Epsilon) -> Self {
        Self { eps }
    }
}

impl Strategy for GkSelect {
    fn label(&self) -> &'static str {
        "gk_select"
    }

    fn begin(&self, progress: Progress) -> Result<NextStep> {
        Ok(NextStep::Round(progress, Request::Sketch { eps: self.eps }))
    }

    fn step(&self, mut progress: Progress, asked: &Request, reply: Reply) -> Result<NextStep> {
        progress.rounds += 1;
        match (asked, reply) {
            (Request::Sketch { .. }, Reply::Sketch(Some(summary))) => {
                let request = around_ranks(&progress, &summary)?;
                Ok(NextStep::Round(progress, request))
            }
            // A shard had no memory for its sketch.
            (Request::Sketch { .. }, Reply::Sketch(None)) => narrower(progress, BUCKETS),
            (Request::Count { cells, keep, .. }, Reply::Counts { counts, kept }) => {
                progress.narrow(cells, &counts, keep, kept)?;
                extract_or_narrow(progress, BUCKETS)
            }
            (Request::Extract { .. }, Reply::Extracted(kept)) => {
                progress.extracted(kept)?;
                extract_or_narrow(progress, BUCKETS)
            }
            (asked, _) => internal_err!("a reply that does not answer {}", asked.name()),
        }
    }
}

/// The count around the brackets of all ranks, which also copies the keys inside them.
fn around_ranks(progress: &Progress, summary: &AnySummary) -> Result<Request> {
    if summary.n() != progress.population() {
        return internal_err!(
            "a sketch of {} values where there are {}",
            summary.n(),
            progress.population()
        );
    }
    let (mut cuts, mut inside) = (Vec::new(), Vec::<Bracket>::new());
    for (lo, hi) in summary.brackets(progress.ranks())? {
        // Each end is a cell of one key.
        cuts.extend(
            [lo, hi]
                .into_iter()
                .flat_map(|end| edges_around(end, progress.width())),
        );
        // Neighbouring ranks often share a bracket.
        if hi - lo > 1 && inside.last().is_none_or(|last| last.last < hi - 1) {
            inside.push(Bracket {
                first: lo + 1,
                last: hi - 1,
            });
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    // With more ranks than a count tells apart, neighbours share a cell, and the keys between them are copied too.
    let step = cuts.len().div_ceil(MAX_CELLS - 1);
    let cuts = cuts.into_iter().step_by(step.max(1)).collect();
    count_and_keep(progress, cuts, &inside, Brackets::all(progress.width()))
}
