//! SampleSelect over an input that can be read again: nothing is kept of a read but what its round collects.
//!
//! | ranks | first read | second read |
//! | --- | --- | --- |
//! | few | counts around narrow brackets and keeps the keys inside | none, unless the sample misled |
//! | many, whose brackets fit in memory | counts cells and keeps the keys of those that touch a bracket | none, unless the sample misled |
//! | many | counts cells | keeps the keys of the cells that hold a rank |
//!
//! The request of the first read is made before the number of values is known, from the quantiles of a sample. Its counts prove which
//! cell holds each rank.

use std::ops::Range;

use datafusion::common::{Result, internal_err};

use super::bms::{BUCKETS, extract_or_narrow};
use super::progress::Progress;
use super::sample_select::{AroundRank, count_and_keep, first_cells, set_hitters_apart, touching};
use super::sampled::{next_key, positions};
use super::{NextStep, Strategy};
use crate::cells::{Bracket, Brackets, Cells, Edges, MAX_CELLS};
use crate::kernel::cpu::sample::mix;
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, KeyVec, Width};
use crate::memory::MemoryBudget;

/// Most ranks that are counted by comparisons with the ends of their brackets.
pub(crate) const FEW_RANKS: usize = 3;

/// The share of the sample, as a divisor, that lies between a bracket and a second edge further out. A rank that its bracket missed by
/// less is found by one more read.
const MISSED_SHARE: usize = 32;

/// The rounds of one column whose input is read again for each of them. The first request stands before the first read.
#[derive(Debug, Clone)]
pub(crate) struct WhileReading {
    sample: KeyVec,
    request: Request,
    budget: MemoryBudget,
    /// Reads that are expected.
    reads: usize,
    /// Number of values, as estimated.
    n: u64,
    /// Where keys lie below which values are counted by the first read; empty if another read counts them.
    places: Vec<Bracket>,
}

/// Keys that follow from the keys of two ranks.
pub(crate) struct Derived<'a> {
    pub(crate) ranks: [u64; 2],
    /// The keys that follow from two keys, as many for any two, ascending; none where there are none.
    pub(crate) cuts: &'a dyn Fn([KeyBits; 2]) -> Result<Vec<KeyBits>>,
}

impl WhileReading {
    /// The rounds for `ranks` (from 1, ascending, distinct) of about `n` values, of which `sample` is a sorted sample. Each round keeps
    /// at most the keys and cells of `budget`.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn try_new(
        width: Width,
        n: u64,
        ranks: Vec<u64>,
        sample: KeyVec,
        budget: MemoryBudget,
    ) -> Result<Self> {
        let mut progress = Progress::try_new(width, n, ranks)?;
        progress.budget = budget;
        let request = if progress.ranks().len() <= FEW_RANKS {
            around_few(&progress, &sample)?
        } else {
            around_many(&progress, &sample)?
        };
        let kept = kept(&request, &sample, n, width);
        let request = match request {
            Request::Count { cells, within, .. } if kept > budget.keys => Request::Count {
                cells,
                within,
                keep: Vec::new(),
            },
            request => request,
        };
        Ok(Self {
            reads: if kept > budget.keys { 2 } else { 1 },
            sample,
            request,
            budget,
            n,
            places: Vec::new(),
        })
    }

    /// Has the first read keep the keys around those that follow from two ranks' keys, too, if there is room for them.
    ///
    /// # Errors
    /// Those of `derived`.
    pub(crate) fn with_places(mut self, width: Width, derived: &Derived<'_>) -> Result<Self> {
        let places = places(&self.sample, self.n, width, derived)?;
        if self.reads > 1 || places.is_empty() {
            return Ok(self);
        }
        let request = keeping(&self.request, &places, width)?;
        if kept(&request, &self.sample, self.n, width) <= self.budget.keys {
            (self.request, self.places) = (request, places);
        }
        Ok(self)
    }

    /// Where keys lie below which values are counted by the first read.
    pub(crate) fn places(&self) -> &[Bracket] {
        &self.places
    }

    /// The rounds for `ranks` of `n` values, where it is proved between which keys each rank lies: in the bracket of the same index.
    /// `inside` values may lie in them.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn proved(
        width: Width,
        n: u64,
        ranks: Vec<u64>,
        brackets: &[Bracket],
        inside: u64,
        budget: MemoryBudget,
    ) -> Result<Self> {
        let progress = Progress::try_new(width, n, ranks)?;
        let first = brackets.iter().map(|bracket| bracket.first);
        let after = brackets
            .iter()
            .filter_map(|bracket| next_key(bracket.last, width));
        let cuts = first.chain(after).collect();
        let kept = if inside <= budget.keys { brackets } else { &[] };
        Ok(Self {
            sample: KeyVec::new(width),
            request: count_and_keep(&progress, cuts, kept, Brackets::all(width))?,
            budget,
            reads: if inside <= budget.keys { 1 } else { 2 },
            n,
            places: Vec::new(),
        })
    }

    /// The request of the first read.
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// What the rounds may collect.
    pub(crate) fn budget(&self) -> MemoryBudget {
        self.budget
    }

    /// Reads of the input that are expected.
    pub(crate) fn reads(&self) -> usize {
        self.reads
    }
}

/// The count around a bracket for each of a few ranks, which keeps the keys inside.
fn around_few(progress: &Progress, sample: &KeyVec) -> Result<Request> {
    let (n, width) = (progress.population(), progress.width());
    let further = sample.len() / MISSED_SHARE;
    let (mut cuts, mut inside) = (Vec::new(), Vec::new());
    for rank in progress.ranks() {
        let around = AroundRank::new(*rank, n, sample, 0);
        inside.push(around.bracket(width));
        cuts.extend(around.cuts(sample, width));
        let outer = AroundRank::new(*rank, n, sample, further).bracket(width);
        cuts.extend(
            [outer.first, outer.last]
                .into_iter()
                .filter(|end| *end > 0 && *end < width.max_key()),
        );
    }
    count_and_keep(progress, cuts, &inside, Brackets::all(width))
}

/// The count of all cells, which keeps the keys of those that touch a rank's bracket.
fn around_many(progress: &Progress, sample: &KeyVec) -> Result<Request> {
    let (n, width) = (progress.population(), progress.width());
    let cells = first_cells(progress, sample)?;
    let inside: Vec<Bracket> = progress
        .ranks()
        .iter()
        .map(|rank| AroundRank::new(*rank, n, sample, 0).bracket(width))
        .collect();
    Ok(Request::Count {
        keep: touching(&cells, &inside, width),
        cells,
        within: Brackets::all(width),
    })
}

/// Brackets in which keys lie that follow from the keys of two ranks, by a sorted sample.
fn places(sample: &KeyVec, n: u64, width: Width, derived: &Derived<'_>) -> Result<Vec<Bracket>> {
    let [low, high] = derived
        .ranks
        .map(|rank| AroundRank::new(rank, n, sample, 0).bracket(width));
    let apart = (derived.cuts)([low.first, high.last])?;
    let near = (derived.cuts)([low.last, high.first.max(low.last)])?;
    let ends = apart.iter().zip(&near);
    let place = |(one, other): (&KeyBits, &KeyBits)| Bracket {
        first: *one.min(other),
        last: *one.max(other),
    };
    Ok(match apart.len() == near.len() {
        true => ends.map(place).collect(),
        false => Vec::new(),
    })
}

/// The count that also keeps the keys of the cells that touch `places`.
fn keeping(request: &Request, places: &[Bracket], width: Width) -> Result<Request> {
    let Request::Count { cells, within, keep } = request else {
        return internal_err!("the first read counts");
    };
    let kept: Vec<Bracket> = keep.iter().filter_map(|cell| cells.range(*cell, width)).collect();
    let cells = match cells {
        Cells::Edges(edges) if edges.as_slice().len() + 2 * places.len() + 1 < MAX_CELLS => {
            let ends = places
                .iter()
                .flat_map(|place| [Some(place.first), next_key(place.last, width)]);
            let cuts = edges.as_slice().iter().copied().chain(ends.flatten());
            Cells::Edges(Edges::try_new(cuts.collect())?)
        }
        cells => cells.clone(),
    };
    let mut keep = touching(&cells, &kept, width);
    for place in places {
        keep.extend(touching(&cells, std::slice::from_ref(place), width));
    }
    keep.sort_unstable();
    keep.dedup();
    Ok(Request::Count {
        cells,
        within: within.clone(),
        keep,
    })
}

/// Values that a count keeps, by a sorted sample: a quarter more than expected, to be safe.
fn kept(request: &Request, sample: &KeyVec, n: u64, width: Width) -> u64 {
    let Request::Count { cells, keep, .. } = request else {
        return 0;
    };
    let ranges = keep.iter().filter_map(|cell| cells.range(*cell, width));
    let sampled: usize = ranges.map(|range| positions(sample, &range).len()).sum();
    let kept = u128::from(n) * sampled as u128 / sample.len().max(1) as u128;
    (kept + kept / 4) as u64
}

/// The step after a read: the end, or another read that extracts the candidates, or counts them in smaller cells if they are too many.
fn after_read(mut progress: Progress) -> Result<NextStep> {
    if progress.is_done() {
        return Ok(NextStep::Done(progress));
    }
    if !progress.fits()
        && let Some(request) = set_hitters_apart(&progress)?
    {
        progress.sample = None;
        return Ok(NextStep::Round(progress, request));
    }
    extract_or_narrow(progress, BUCKETS)
}

impl Strategy for WhileReading {
    fn label(&self) -> &'static str {
        "sample_select (while reading)"
    }

    fn begin(&self, mut progress: Progress) -> Result<NextStep> {
        progress.sample = (!self.sample.is_empty()).then(|| self.sample.clone());
        Ok(NextStep::Round(progress, self.request.clone()))
    }

    fn step(&self, mut progress: Progress, asked: &Request, reply: Reply) -> Result<NextStep> {
        progress.rounds += 1;
        match (asked, reply) {
            (Request::Count { cells, keep, .. }, Reply::Counts { counts, kept }) => {
                progress.narrow(cells, &counts, keep, kept)?;
            }
            (Request::Extract { .. }, Reply::Extracted(kept)) => progress.extracted(kept)?,
            (asked, _) => return internal_err!("a reply that does not answer {}", asked.name()),
        }
        after_read(progress)
    }
}

/// Rows below which values are read once and kept: a sample would cost as much.
pub(crate) const LEAST_ROWS: u64 = 1 << 20;

/// Values that are sampled before the first read.
pub(crate) const SAMPLE: u64 = 1 << 16;

/// Sampled values below which brackets would be too wide.
pub(crate) const LEAST_SAMPLE: usize = 1 << 12;

/// Runs of a sample. Neighbours in a table resemble each other, so that many short runs are better than few long ones; but each run
/// costs the decoding of a page, and of the dictionary of its row group.
const RUNS: u64 = 32;

/// Ascending ranges of positions among `rows` rows: in each of [`RUNS`] equal stripes a run at a random place, together about `size`
/// positions.
pub(crate) fn runs(rows: u64, size: u64) -> Vec<Range<u64>> {
    let stripes = RUNS.min(rows);
    let start = |stripe: u64| (u128::from(rows) * u128::from(stripe) / u128::from(stripes.max(1))) as u64;
    let length = size.div_ceil(stripes.max(1));
    let run = |stripe: u64| {
        let (from, to) = (start(stripe), start(stripe + 1));
        let length = length.min(to - from);
        let at = from + mix(stripe) % (to - from - length + 1);
        at..at + length
    };
    (0..stripes).map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_ascend_and_lie_among_the_rows() {
        for (rows, size) in [
            (0, 0),
            (1, 1),
            (5, 3),
            (31, 31),
            (1000, 100),
            (1000, 1000),
            (1 << 40, 1 << 16),
        ] {
            let runs = runs(rows, size);
            assert!(
                runs.windows(2).all(|pair| pair[0].end <= pair[1].start),
                "{runs:?}"
            );
            assert!(runs.iter().all(|run| run.end <= rows), "{runs:?}");
            let sampled: u64 = runs.iter().map(|run| run.end - run.start).sum();
            assert!(
                sampled >= size.min(rows) / 2 && sampled <= size + RUNS,
                "{sampled} of {size}"
            );
        }
    }
}
