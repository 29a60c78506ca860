//! Approximate SampleSelect (Ribizel and Anzt 2020, sections II-C and V-G): a sample, a count, and the splitter nearest to
//! each rank, with the ranks that it has: the count is exact, so only the choice of the key is approximate.
//!
//! ```text
//! splitters        s1        s2        s3          wanted: rank 5
//! counted     3        1  4       2                s2 has ranks 4 + 1 .. 4 + 1: an error of 0
//! ```
//! The error is half a bucket on average of the worst rank: about `n / (2 buckets)` values, and no bound holds for all
//! samples. A key that is many of the sample has a bucket of its own (section IV-C), so that a rank inside it is exact.
//! Up to as many values as are sampled the answer is exact.

use datafusion::common::{Result, internal_err};

use super::progress::Progress;
use super::sample_select::{after, extract_or_narrow};
use super::{Shards, Solution, Step, Strategy, solve_ranks, wanted_ranks};
use crate::cells::Brackets;
use crate::cells::{Cells, Edges, MAX_CELLS};
use crate::kernel::round::{Reply, Request};
use crate::key::KeyVec;
use crate::key::{KeyBits, Width};
use crate::quantile::QuantileSpec;

/// Sampled keys for each bucket: their sizes spread by `1 / sqrt(32)`.
const OVERSAMPLING: u64 = 32;

/// The strategy: see the module.
#[derive(Debug, Clone, Copy)]
pub struct NearestSplitter {
    buckets: u32,
}

impl NearestSplitter {
    /// Most buckets: each may need two edges.
    pub const MOST: u32 = 1 << 14;

    /// With so many buckets.
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

    fn sample(&self, progress: &Progress) -> u64 {
        (u64::from(self.buckets) * OVERSAMPLING).min(progress.budget.sample)
    }
}

impl Strategy for NearestSplitter {
    fn label(&self) -> &'static str {
        "nearest_splitter"
    }

    fn begin(&self, progress: Progress) -> Result<Step> {
        let size = self.sample(&progress);
        if progress.population() <= size && progress.fits() {
            return extract_or_narrow(progress);
        }
        let request = Request::Sample {
            size,
            population: progress.population(),
            seed: 0,
            within: Brackets::all(progress.width()),
            extremes: false,
        };
        Ok(Step::Round(progress, request))
    }

    fn step(&self, mut progress: Progress, asked: &Request, reply: Reply) -> Result<Step> {
        progress.rounds += 1;
        match (asked, reply) {
            (Request::Sample { .. }, Reply::Sample { mut keys, .. }) => {
                keys.sort();
                let most = (self.buckets as usize)
                    .min(progress.budget.cells / 2)
                    .min(MAX_CELLS / 2);
                let splitters = splitters(&keys, most);
                let request = count(&splitters, &keys, progress.width())?;
                progress.sample = Some(KeyVec::W128(splitters));
                Ok(Step::Round(progress, request))
            }
            (Request::Count { cells, .. }, Reply::Counts { counts, .. }) => nearest(progress, cells, &counts),
            (Request::Extract { .. }, Reply::Extracted(kept)) => {
                progress.extracted(kept)?;
                extract_or_narrow(progress)
            }
            (asked, _) => internal_err!("a reply that does not answer {}", asked.name()),
        }
    }
}

/// The nearest splitters, of so many buckets, to the order statistics that all of `quantile_specs` need.
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

/// Order statistics of a sorted sample at equal distances, so many that they make at most `buckets`.
fn splitters(sample: &KeyVec, buckets: usize) -> Vec<KeyBits> {
    let at = |i: usize| sample.get(i * sample.len() / buckets);
    let mut splitters: Vec<KeyBits> = if sample.is_empty() {
        Vec::new()
    } else {
        (1..buckets).map(at).collect()
    };
    splitters.dedup();
    splitters
}

/// A count between the splitters, and of those apart that the sample holds twice or more.
fn count(splitters: &[KeyBits], sample: &KeyVec, width: Width) -> Result<Request> {
    let repeats = |key: &KeyBits| sample.upper_bound(*key) - sample.lower_bound(*key) > 1;
    let ends = splitters
        .iter()
        .filter(|key| repeats(key))
        .filter_map(|key| after(*key, width));
    let edges = splitters.iter().copied().chain(ends).collect();
    Ok(Request::Count {
        cells: Cells::Edges(Edges::try_new(edges)?),
        within: Brackets::all(width),
        keep: Vec::new(),
    })
}

/// A splitter and the ranks that it is known to have: the first of them, and all where it was counted apart.
struct Place {
    key: KeyBits,
    first: u64,
    last: u64,
}

impl Place {
    fn distance(&self, rank: u64) -> u64 {
        self.first
            .saturating_sub(rank)
            .max(rank.saturating_sub(self.last))
    }
}

fn nearest(mut progress: Progress, cells: &Cells, counts: &[u64]) -> Result<Step> {
    let (Some(KeyVec::W128(splitters)), Cells::Edges(edges)) = (&progress.sample, cells) else {
        return internal_err!("a count of no splitters");
    };
    let (mut below, mut places) = (counts.first().copied().unwrap_or(0), Vec::new());
    // Edge i is the least key of cell i + 1; the key 0 has no edge, as nothing lies below it.
    if splitters.first() == Some(&0) {
        let last = if edges.as_slice().first() == Some(&1) {
            below
        } else {
            1
        };
        places.push(Place {
            key: 0,
            first: 1,
            last,
        });
    }
    for (edge, inside) in edges.as_slice().iter().zip(counts.iter().skip(1)) {
        if splitters.binary_search(edge).is_ok() {
            let is_apart = edges.as_slice().binary_search(&edge.wrapping_add(1)).is_ok()
                || *edge == progress.width().max_key();
            places.push(Place {
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
        let next = places.partition_point(|place| place.first <= rank);
        let around = &places[next.saturating_sub(1)..(next + 1).min(places.len())];
        around.iter().min_by_key(|place| place.distance(rank))
    };
    let found: Option<Vec<_>> = progress
        .ranks()
        .iter()
        .map(|rank| nearest(*rank).map(|place| (place.key, (place.first, place.last))))
        .collect();
    match found {
        Some(found) => {
            progress.approximate(found);
            Ok(Step::Done(progress))
        }
        None => internal_err!("a sample without keys"),
    }
}
