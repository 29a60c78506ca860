//! GK Select (Li, Bai, Cook, Mozafari: "GK Select", sections IV and V): a sketch of every shard, then one read that counts
//! around its brackets and takes out what lies inside them. Two rounds for any data and any number of ranks.
//!
//! ```text
//! sketch    merged summary: rank 5 lies between lo and hi, whatever the data
//! count     ... lo ) (lo) ( lo .. hi ) (hi) ( hi ...      all counted; only ( lo .. hi ) is copied
//! ```
//! The summary of a shard comes from counts of dyadic intervals (`crate::sketch::dyadic`), which costs less than half of a
//! sketch that fills, a third of its bytes, and leaves brackets half as wide once shards are merged.
//!
//! The paper counts below one pivot and then fetches the candidates that it is off by, in a third action. Brackets that the
//! summary proves take the place of both, for all ranks at once: between open ends lie less than `4 eps n` values a rank
//! (see [`crate::sketch`]), and values equal to an end are only counted, so all-equal data copies nothing.
//!
//! Loses to a sample in one process, where a second read is cheaper than the sketch; wins where a round, or a value that
//! is moved, is dear. Only where memory refuses sketch or candidates are there more rounds: counts, as in DIBMS.

use datafusion::common::{Result, internal_err};

use super::bms::{BUCKETS, narrower};
use super::progress::Progress;
use super::sample_select::{after, count_and_keep, extract_or_narrow};
use super::{Step, Strategy};
use crate::cells::MAX_CELLS;
use crate::cells::{Bracket, Brackets};
use crate::kernel::round::{Reply, Request};
use crate::sketch::{AnySummary, Epsilon};

/// Bytes of a tuple in a message, about.
const TUPLE_BYTES: f64 = 6.0;
/// Tuples of a shard's summary for each `1 / eps`, about: from 0.5 to 1, by where dyadic intervals end.
const TUPLES: f64 = 0.75;
/// Bytes of a shard's summary, times its error fraction.
pub(crate) const SUMMARY_BYTES: f64 = TUPLES * TUPLE_BYTES;
/// Values between the ends of a bracket, in `eps n`: what summaries of random data leave. The proof is for 4.
pub(crate) const BETWEEN: f64 = 1.6;
/// Below this a sketch takes several times as long: its cells are too many for a table.
const LEAST: f64 = 4e-5;
/// Above this it takes no less time.
const MOST: f64 = 1e-2;

/// The strategy: see the module.
#[derive(Debug, Clone)]
pub struct GkSelect {
    eps: Epsilon,
}

impl GkSelect {
    /// With the error fraction that moves the fewest bytes for `ranks` ranks among `n` values on `shards` shards, within
    /// what costs little time; where `keys` values are all that can be collected at once, no more than that.
    ///
    /// Summaries cost `6 * 0.75 / eps` bytes a shard, candidates `1.6 eps n` keys a rank, of 8 bytes or so:
    /// `eps = sqrt(4.5 shards / (13 ranks n))`. Both parts then grow with `sqrt(n)`, and their share of the data falls.
    ///
    /// # Errors
    /// None for numbers that can occur.
    pub fn try_new(n: u64, shards: usize, ranks: usize, keys: u64) -> Result<Self> {
        let candidates = BETWEEN * ranks.max(1) as f64 * n.max(1) as f64;
        let best = (SUMMARY_BYTES * shards.max(1) as f64 / (8.0 * candidates)).sqrt();
        let fits = keys as f64 / (4.0 / BETWEEN * candidates);
        // Three digits: an error fraction is the decimal that it prints as.
        let eps = best.min(fits).clamp(LEAST, MOST);
        Ok(Self {
            eps: Epsilon::try_new((1.0 / eps).round())?,
        })
    }

    /// The error fraction of its sketches.
    pub fn epsilon(&self) -> Epsilon {
        self.eps
    }

    /// With this error fraction.
    pub fn with(eps: Epsilon) -> Self {
        Self { eps }
    }
}

impl Strategy for GkSelect {
    fn label(&self) -> &'static str {
        "gk_select"
    }

    fn begin(&self, progress: Progress) -> Result<Step> {
        Ok(Step::Round(progress, Request::Sketch { eps: self.eps }))
    }

    fn step(&self, mut progress: Progress, asked: &Request, reply: Reply) -> Result<Step> {
        progress.rounds += 1;
        match (asked, reply) {
            (Request::Sketch { .. }, Reply::Sketch(Some(summary))) => {
                let request = around_ranks(&progress, &summary)?;
                Ok(Step::Round(progress, request))
            }
            // No memory for it.
            (Request::Sketch { .. }, Reply::Sketch(None)) => narrower(progress, BUCKETS),
            (Request::Count { cells, keep, .. }, Reply::Counts { counts, kept }) => {
                progress.narrow(cells, &counts, keep, kept)?;
                extract_or_narrow(progress)
            }
            (Request::Extract { .. }, Reply::Extracted(kept)) => {
                progress.extracted(kept)?;
                extract_or_narrow(progress)
            }
            (asked, _) => internal_err!("a reply that does not answer {}", asked.name()),
        }
    }
}

/// A count around the brackets of all ranks that keeps what lies inside.
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
        for end in [lo, hi] {
            cuts.push(end);
            cuts.extend(after(end, progress.width()));
        }
        // Neighbouring ranks often share theirs.
        if hi - lo > 1 && inside.last().is_none_or(|last| last.last < hi - 1) {
            inside.push(Bracket {
                first: lo + 1,
                last: hi - 1,
            });
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    // More ranks than a count tells apart: neighbours share a cell, and what lies between them is copied with them.
    let step = cuts.len().div_ceil(MAX_CELLS - 1);
    let cuts = cuts.into_iter().step_by(step.max(1)).collect();
    count_and_keep(progress, cuts, &inside, Brackets::all(progress.width()))
}
