//! Approximate SampleSelect (Ribizel and Anzt 2020, sections II-C and V-G): a sample, a count, and the splitter nearest to each rank.
//! The count is exact, so that the ranks of each splitter are known. Only the choice of the key is approximate.
//!
//! ```text
//! splitters        s1        s2        s3          target: rank 5
//! counted     3        1  4       2                s2 has ranks 4 + 1 .. 4 + 1: an error of 0
//! ```
//! The error of the worst rank is half a bucket on average, about `n / (2 buckets)` values. No bound holds for all samples. A key
//! that repeats in the sample has a bucket of its own (section IV-C), so that a rank inside it is exact. The answer is also exact if
//! there are no more values than are sampled.

use datafusion::common::{Result, internal_err};

use super::bms::{BUCKETS, extract_or_narrow};
use super::progress::Progress;
use super::requests::{count, sample_of_all};
use super::sampled::{splitter_edges, splitters};
use super::{NextStep, Shards, Solution, Strategy, solve_ranks, wanted_ranks};
use crate::cells::{Brackets, Cells, Edges, MAX_CELLS};
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, KeyVec};
use crate::quantile::QuantileSpec;

/// Sampled keys for each bucket: the sizes of buckets then spread by a share of `1 / sqrt(32)`.
const OVERSAMPLING: u64 = 32;

/// The strategy of approximate SampleSelect: see the module.
#[derive(Debug, Clone, Copy)]
pub struct NearestSplitter {
    buckets: u32,
}

impl NearestSplitter {
    /// Most buckets. A bucket may need two edges.
    pub const MOST: u32 = 1 << 14;

    /// A strategy with this number of buckets.
    ///
    /// # Errors
    /// An internal error unless there are 2 to [`Self::MOST`].
    pub fn try_new(buckets: u32) -> Result<Self> {
        if (2..=Self::MOST).contains(&buckets) {
            Ok(Self { buckets })
        } else {
            internal_err!("{buckets} buckets: allowed are 2 to {}", Self::MOST)
        }
    }

    /// Keys to sample.
    fn sample_size(&self, progress: &Progress) -> u64 {
        (u64::from(self.buckets) * OVERSAMPLING).min(progress.budget.sample)
    }
}

impl Strategy for NearestSplitter {
    fn label(&self) -> &'static str {
        "nearest_splitter"
    }

    fn begin(&self, progress: Progress) -> Result<NextStep> {
        let size = self.sample_size(&progress);
        if progress.population() <= size && progress.fits() {
            return extract_or_narrow(progress, BUCKETS);
        }
        let request = sample_of_all(size, progress.population(), progress.width(), false);
        Ok(NextStep::Round(progress, request))
    }

    fn step(&self, mut progress: Progress, asked: &Request, reply: Reply) -> Result<NextStep> {
        progress.rounds += 1;
        match (asked, reply) {
            (Request::Sample { .. }, Reply::Sample { mut keys, .. }) => {
                keys.sort();
                let most = (self.buckets as usize)
                    .min(progress.budget.cells / 2)
                    .min(MAX_CELLS / 2);
                let (width, splitters) = (progress.width(), splitters(&keys, most));
                let edges = Edges::try_new(splitter_edges(&keys, &splitters, width))?;
                progress.sample = Some(KeyVec::W128(splitters));
                let request = count(Cells::Edges(edges), Brackets::all(width));
                Ok(NextStep::Round(progress, request))
            }
            (Request::Count { cells, .. }, Reply::Counts { counts, .. }) => nearest(progress, cells, &counts),
            (Request::Extract { .. }, Reply::Extracted(kept)) => {
                progress.extracted(kept)?;
                extract_or_narrow(progress, BUCKETS)
            }
            (asked, _) => internal_err!("a reply that does not answer {}", asked.name()),
        }
    }
}

/// For each order statistic that the quantile specifications need, the nearest splitter between this number of buckets.
///
/// # Errors
/// Those of the shards; an internal error for a number of buckets that is not allowed.
pub(crate) async fn nearest_splitters(
    shards: &mut dyn Shards,
    buckets: u32,
    quantile_specs: &[&QuantileSpec],
) -> Result<Solution> {
    let ranks = wanted_ranks(quantile_specs, shards.population());
    solve_ranks(shards, &NearestSplitter::try_new(buckets)?, ranks).await
}

/// A splitter and ranks that it has for certain, from 1: all its ranks if it has a cell of its own, else only the first.
struct RankedSplitter {
    key: KeyBits,
    first: u64,
    last: u64,
}

impl RankedSplitter {
    /// Ranks between this splitter's and `rank`; 0 if the splitter has that rank.
    fn distance(&self, rank: u64) -> u64 {
        self.first
            .saturating_sub(rank)
            .max(rank.saturating_sub(self.last))
    }
}

/// The end: each target rank gets the key of the splitter with the nearest rank.
fn nearest(mut progress: Progress, cells: &Cells, counts: &[u64]) -> Result<NextStep> {
    let (Some(KeyVec::W128(splitters)), Cells::Edges(edges)) = (&progress.sample, cells) else {
        return internal_err!("a count of no splitters");
    };
    let (mut below, mut ranked) = (counts.first().copied().unwrap_or(0), Vec::new());
    // Edge i is the least key of cell i + 1; the key 0 has no edge, as nothing lies below it.
    if splitters.first() == Some(&0) {
        let last = if edges.as_slice().first() == Some(&1) {
            below
        } else {
            1
        };
        ranked.push(RankedSplitter {
            key: 0,
            first: 1,
            last,
        });
    }
    for (edge, inside) in edges.as_slice().iter().zip(counts.iter().skip(1)) {
        if splitters.binary_search(edge).is_ok() {
            let is_apart = edges.as_slice().binary_search(&edge.wrapping_add(1)).is_ok()
                || *edge == progress.width().max_key();
            ranked.push(RankedSplitter {
                key: *edge,
                first: below + 1,
                last: if is_apart { below + inside } else { below + 1 },
            });
        }
        below += inside;
    }
    if below != progress.population() {
        return internal_err!("{below} values counted where there are {}", progress.population());
    }
    let nearest = |rank: u64| {
        let next = ranked.partition_point(|splitter| splitter.first <= rank);
        let around = &ranked[next.saturating_sub(1)..(next + 1).min(ranked.len())];
        around.iter().min_by_key(|splitter| splitter.distance(rank))
    };
    let found: Option<Vec<_>> = progress
        .ranks()
        .iter()
        .map(|rank| nearest(*rank).map(|splitter| (splitter.key, (splitter.first, splitter.last))))
        .collect();
    match found {
        Some(found) => {
            progress.approximate(found);
            Ok(NextStep::Done(progress))
        }
        None => internal_err!("a sample without keys"),
    }
}
