//! SampleSelect (Ribizel and Anzt 2020), for many ranks and many shards at once.
//!
//! A sample gives a cell function. One count of all keys finds the cell of every rank. Each shard writes down the cell of each key
//! (the oracle), so that the extraction reads those numbers and computes no cell again. Where ranks are few, narrow brackets around
//! them are counted and extracted in one read instead. The counts prove that each rank was caught; a miss costs one more round.
//!
//! Hitters, which are values with many copies, never enlarge an extraction: a value that repeats in the sample gets a cell of its own
//! (an equality bucket, section IV-C), which is counted and not copied. Where the first cells are too coarse for the data, a second
//! sample is taken inside the brackets, and so on: every level divides the candidates by hundreds. The same happens where the
//! candidates are few, but more than there is memory for.

use std::ops::Range;

use datafusion::common::{Result, internal_err};

use super::bms::{BUCKETS, extract_or_narrow, narrower};
use super::progress::{Active, Progress};
use super::requests::{count, sample_of_all};
use super::sampled::{cells_of_few, copies, edges_around, next_key, positions, splitter_edges, splitters};
use super::{NextStep, Strategy};
use crate::cells::{Bracket, Brackets, CellTable, Cells, Edges, MAX_CELLS};
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, KeyVec, Width};
#[cfg(feature = "cuda")]
use crate::select::choose::GATHER;
use crate::select::choose::{Choice, SIGMAS, SampleSelectVariant, TABLE_EXTRA, table_cells};

/// Different keys in the sample up to which each key gets a cell of its own.
const FEW_DISTINCT: usize = 4;
/// A key is a hitter if it is at least one key in this many of the sample.
const HITTER_SHARE: usize = 256;
/// Shares of the sample that a table may leave out at either end. A rank in what is left out has the keys there copied.
const TAILS: [f64; 3] = [0.0, 0.005, 0.03];
/// Splitters of a search tree.
const SPLITTERS: usize = 2047;
/// Keys that are sampled inside the brackets, where the first cells were too coarse.
const DEEPER_SAMPLE: u64 = 1 << 14;
/// Keys that are sampled for counts on devices: the host sorts them.
#[cfg(feature = "cuda")]
const COUNTS_SAMPLE: u64 = 1 << 13;
/// Candidates up to which devices send keys to the host: mostly what two counts of all values leave.
const COUNTS_COLLECTED: u64 = 1 << 16;
/// Candidates are extracted up to this share of the data (one in so many values); more are divided again.
const EXTRACT_SHARE: u64 = 16;
/// Candidates up to which keys are always extracted.
const EXTRACT_LEAST: u64 = 1 << 17;
/// Rounds after which the remaining candidates are extracted, however many, so that the answer is exact for any data. Where there is
/// no memory for them, counts as in DIBMS follow.
const PATIENCE: usize = 12;

/// The strategy `sample_select`: a sample of the keys, a count of all, and an extraction of those that are left.
#[derive(Debug, Clone)]
pub struct SampleSelect {
    choice: Choice,
}

impl SampleSelect {
    /// The strategy in this variant, with this size of sample.
    pub fn new(choice: Choice) -> Self {
        Self { choice }
    }

    /// The strategy for `n` values on devices.
    #[cfg(feature = "cuda")]
    pub(crate) fn counting(n: u64) -> Self {
        Self::new(match n {
            0..=GATHER => Choice {
                variant: SampleSelectVariant::Gather,
                sample: 0,
            },
            _ => Choice {
                variant: SampleSelectVariant::Counts,
                sample: COUNTS_SAMPLE,
            },
        })
    }

    /// The step after a count, or after an extraction that did not bring all keys.
    fn after(&self, progress: Progress) -> Result<NextStep> {
        match self.choice.variant {
            SampleSelectVariant::Counts => after_count_on_devices(progress),
            SampleSelectVariant::Gather | SampleSelectVariant::Brackets | SampleSelectVariant::Cells => {
                after_count(progress)
            }
        }
    }
}

impl Strategy for SampleSelect {
    fn label(&self) -> &'static str {
        match self.choice.variant {
            SampleSelectVariant::Gather => "sample_select (gather)",
            SampleSelectVariant::Brackets => "sample_select (brackets)",
            SampleSelectVariant::Cells => "sample_select (cells)",
            SampleSelectVariant::Counts => "sample_select (counts)",
        }
    }

    fn begin(&self, progress: Progress) -> Result<NextStep> {
        if self.choice.variant == SampleSelectVariant::Gather || progress.population() <= self.choice.sample {
            return extract_or_narrow(progress, BUCKETS);
        }
        sample(progress, self.choice.sample)
    }

    fn step(&self, mut progress: Progress, asked: &Request, reply: Reply) -> Result<NextStep> {
        progress.rounds += 1;
        match (asked, reply) {
            (Request::Sample { .. }, Reply::Sample { mut keys, .. }) => {
                keys.sort();
                let first = progress.rounds == 1;
                let request = match self.choice.variant {
                    _ if keys.is_empty() => return extract_or_narrow(progress, BUCKETS),
                    SampleSelectVariant::Brackets if first => around_ranks(&progress, &keys)?,
                    _ if first => count(first_cells(&progress, &keys)?, Brackets::all(progress.width())),
                    _ => match deeper_cells(&progress, &keys)? {
                        Some(request) => request,
                        None => return narrower(progress, BUCKETS),
                    },
                };
                progress.sample = Some(keys);
                Ok(NextStep::Round(progress, request))
            }
            (Request::Count { cells, keep, .. }, Reply::Counts { counts, kept }) => {
                progress.narrow(cells, &counts, keep, kept)?;
                self.after(progress)
            }
            (Request::Extract { .. }, Reply::Extracted(kept)) => {
                progress.extracted(kept)?;
                if progress.is_done() {
                    Ok(NextStep::Done(progress))
                } else {
                    self.after(progress)
                }
            }
            (asked, _) => internal_err!("a reply that does not answer {}", asked.name()),
        }
    }
}

/// The step that samples: all keys in the first round, the keys inside the active brackets later.
fn sample(progress: Progress, size: u64) -> Result<NextStep> {
    let request = if progress.rounds == 0 {
        sample_of_all(size, progress.population(), progress.width(), false)
    } else {
        Request::Sample {
            size,
            population: progress.candidates(),
            seed: (progress.rounds as u64) << 32,
            within: progress.brackets()?,
            extremes: false,
        }
    };
    Ok(NextStep::Round(progress, request))
}

/// The step after a count: the end, a count that sets hitters apart, an extraction of few candidates, or another sample.
fn after_count(mut progress: Progress) -> Result<NextStep> {
    if progress.is_done() {
        return Ok(NextStep::Done(progress));
    }
    if let Some(request) = set_hitters_apart(&progress)? {
        progress.sample = None;
        return Ok(NextStep::Round(progress, request));
    }
    if progress.candidates() <= most_extracted(&progress) || progress.rounds >= PATIENCE {
        return extract_or_narrow(progress, BUCKETS);
    }
    let size = DEEPER_SAMPLE.min(progress.budget.sample);
    sample(progress, size)
}

/// The step after a count on devices: an extraction of few candidates, or a count of parts of the brackets. Hitters are not set apart.
fn after_count_on_devices(progress: Progress) -> Result<NextStep> {
    if progress.candidates() <= COUNTS_COLLECTED.min(progress.budget.keys) {
        return extract_or_narrow(progress, BUCKETS);
    }
    narrower(progress, 2 * BUCKETS)
}

/// Candidates, in keys, up to which they are extracted.
fn most_extracted(progress: &Progress) -> u64 {
    EXTRACT_LEAST
        .max(progress.population() / EXTRACT_SHARE)
        .min(progress.budget.keys)
}

/// The count around a bracket for each rank, which also copies the keys inside.
fn around_ranks(progress: &Progress, sample: &KeyVec) -> Result<Request> {
    let mut cuts = Vec::new();
    let mut inside: Vec<Bracket> = Vec::new();
    for rank in progress.ranks() {
        let around = AroundRank::new(*rank, progress.population(), sample, 0);
        cuts.extend(around.cuts(sample, progress.width()));
        inside.push(around.bracket(progress.width()));
    }
    count_and_keep(progress, cuts, &inside, Brackets::all(progress.width()))
}

/// The keys of a sample between which a rank lies with near certainty; `None` where the sample has no key beyond.
pub(super) struct AroundRank {
    low: Option<KeyBits>,
    high: Option<KeyBits>,
}

impl AroundRank {
    /// The keys at [`SIGMAS`] standard deviations to either side of the position of `rank` (of `n`) in a sorted sample, and `further`
    /// positions on.
    pub(super) fn new(rank: u64, n: u64, sample: &KeyVec, further: usize) -> Self {
        let (q, size) = (rank as f64 / n as f64, sample.len() as f64);
        let spread = SIGMAS * (size * q * (1.0 - q)).sqrt() + 1.0 + further as f64;
        let (low, high) = ((q * size - spread).floor(), (q * size + spread).ceil());
        let at = |position: f64| sample.get(position as usize);
        Self {
            low: (low >= 0.0).then(|| at(low)),
            high: (high < size).then(|| at(high)),
        }
    }

    /// Edges of cells at the two keys. A key that repeats in the sample has many copies: it gets a cell of its own, so that it is
    /// counted and not copied with its neighbours.
    pub(super) fn cuts(&self, sample: &KeyVec, width: Width) -> impl Iterator<Item = KeyBits> {
        let ends = [self.low, self.high].into_iter().flatten();
        ends.flat_map(move |end| {
            let after = next_key(end, width).filter(|_| copies(sample, end) > 1);
            [Some(end), after].into_iter().flatten()
        })
    }

    /// The bracket from the lower key to the one below the upper key.
    pub(super) fn bracket(&self, width: Width) -> Bracket {
        Bracket {
            first: self.low.unwrap_or(0),
            last: self.high.map_or(width.max_key(), |high| high.max(1) - 1),
        }
    }
}

/// The count of the cells between `cuts` that also copies the keys of each cell that touches a bracket of `inside`. Cells of one key
/// are only counted. The brackets ascend.
pub(super) fn count_and_keep(
    progress: &Progress,
    cuts: Vec<KeyBits>,
    inside: &[Bracket],
    within: Brackets,
) -> Result<Request> {
    let cells = Cells::Edges(Edges::try_new(cuts)?);
    let keep = touching(&cells, inside, progress.width());
    Ok(Request::Count { cells, within, keep })
}

/// The cells of more than one key that touch a bracket of `inside`, which ascend.
pub(super) fn touching(cells: &Cells, inside: &[Bracket], width: Width) -> Vec<u32> {
    let wanted = |cell: &u32| {
        let range = cells.range(*cell, width);
        range.is_some_and(|range| range.first < range.last && range.touches_any(inside))
    };
    (0..cells.len() as u32).filter(wanted).collect()
}

/// The cells of the first count: one for each key if the sample has few different ones, else those of a table, or of a search tree where
/// the table is too coarse for the data.
pub(super) fn first_cells(progress: &Progress, sample: &KeyVec) -> Result<Cells> {
    let width = progress.width();
    Ok(if let Some(few) = cells_of_few(sample, FEW_DISTINCT, width)? {
        few
    } else if let Some(table) = fine_table(progress, sample)? {
        table
    } else {
        let splitters = splitters(sample, most_splitters(progress) + 1);
        Cells::Edges(Edges::try_new(splitter_edges(sample, &splitters, width))?)
    })
}

/// Number of splitters of the first count: more where memory holds so few keys that those of the ranks' cells would not fit, which costs
/// a second sample and a second count.
fn most_splitters(progress: &Progress) -> usize {
    let ranks = progress.ranks().len();
    // Twice the mean, as cells differ in size.
    let candidates = progress.population().saturating_mul(2 * ranks as u64);
    let for_memory = candidates / progress.budget.keys.max(1);
    SPLITTERS
        .max(8 * ranks)
        .max(usize::try_from(for_memory).unwrap_or(usize::MAX))
        .min(MAX_CELLS.min(progress.budget.cells) / 4)
}

/// A table that is fine enough for the ranks, if there is one: over the whole sample, or without its tails, which may reach so far
/// that all other keys fall into one entry.
fn fine_table(progress: &Progress, sample: &KeyVec) -> Result<Option<Cells>> {
    let most = progress.budget.cells.saturating_sub(TABLE_EXTRA).max(1);
    let cells = table_cells(progress.population()).min(most);
    for share in TAILS {
        let tail = (sample.len() as f64 * share) as usize;
        let part = tail..sample.len() - tail;
        let table = CellTable::from_part(sample, part, cells)?;
        let hitters = hitters_in_company(sample, &Cells::Table(table.clone()), progress.width());
        let table = Cells::Table(table.with_heavy(hitters)?);
        if !table_is_coarse(progress, sample, &table) {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// The hitters that share a cell with other keys, ascending: those with the most copies, as many as a table can set apart.
fn hitters_in_company(sample: &KeyVec, table: &Cells, width: Width) -> Vec<KeyBits> {
    let least = (sample.len() / HITTER_SHARE).max(4);
    // A run of `least` equal keys covers one of these positions.
    let positions = (0..sample.len()).step_by(least);
    let mut keys: Vec<KeyBits> = positions.map(|at| sample.get(at)).collect();
    keys.dedup();
    let in_company = |key: &KeyBits| {
        let range = table.cell(*key).and_then(|cell| table.range(cell, width));
        copies(sample, *key) >= least && range.is_some_and(|range| range.first < range.last)
    };
    keys.retain(in_company);
    keys.sort_by_key(|key| std::cmp::Reverse(copies(sample, *key)));
    keys.truncate(CellTable::MOST_HEAVY);
    keys.sort_unstable();
    keys
}

/// Whether the cells of the ranks hold too much of the sample: the data has more scales than the table can tell apart, or a hitter
/// shares its cell. A cell of one key is never too coarse.
fn table_is_coarse(progress: &Progress, sample: &KeyVec, table: &Cells) -> bool {
    let n = u128::from(progress.population());
    let mut last = None;
    let mut held = 0;
    for rank in progress.ranks() {
        let position = (u128::from(rank - 1) * sample.len() as u128 / n) as usize;
        let cell = table.cell(sample.get(position));
        if cell == last {
            continue;
        }
        last = cell;
        if let Some(range) = cell.and_then(|cell| table.range(cell, progress.width()))
            && range.first < range.last
        {
            held += positions(sample, &range).len();
        }
    }
    held > sample.len() / 16 + 4 * progress.ranks().len() * sample.len() / table.len()
}

/// The count by splitters inside every active bracket, taken from a sample of the keys there; `None` if the ends of the brackets leave
/// no cells for splitters.
fn deeper_cells(progress: &Progress, sample: &KeyVec) -> Result<Option<Request>> {
    let width = progress.width();
    let mut edges = Vec::new();
    for active in progress.active() {
        edges.push(active.bracket.first);
        edges.extend(next_key(active.bracket.last, width));
    }
    edges.dedup();
    // A splitter may need two edges.
    let most = (MAX_CELLS - 1).saturating_sub(edges.len()) / 2;
    if most < progress.active().len() {
        return Ok(None);
    }
    let most = SPLITTERS.max(4 * progress.active().len()).min(most);
    edges.extend(splitter_edges(sample, &splitters(sample, most + 1), width));
    let cells = Cells::Edges(Edges::try_new(edges)?);
    Ok(Some(count(cells, progress.brackets()?)))
}

/// The count that gives each hitter inside an active bracket a cell of its own, by the first sample, and copies the other keys of the
/// brackets in the same read. `None` if there are no hitters, or too many.
pub(super) fn set_hitters_apart(progress: &Progress) -> Result<Option<Request>> {
    let Some(sample) = &progress.sample else {
        return Ok(None);
    };
    let hitters_of = |active: &Active| hitters(sample, positions(sample, &active.bracket));
    let found: Vec<Vec<KeyBits>> = progress.active().iter().map(hitters_of).collect();
    if found.iter().all(Vec::is_empty) {
        return Ok(None);
    }
    let width = progress.width();
    let mut cuts = Vec::new();
    let mut inside = Vec::new();
    for (active, hitters) in progress.active().iter().zip(found) {
        cuts.push(active.bracket.first);
        cuts.extend(next_key(active.bracket.last, width));
        cuts.extend(hitters.into_iter().flat_map(|key| edges_around(key, width)));
        inside.push(active.bracket);
    }
    cuts.sort_unstable();
    cuts.dedup();
    if cuts.len() >= MAX_CELLS {
        return Ok(None);
    }
    // Only small brackets are copied: a bracket with hitters may be large without them too.
    let all_are_small = progress.candidates() <= most_extracted(progress);
    let copied = if all_are_small || progress.rounds >= PATIENCE {
        inside
    } else {
        small_brackets(progress, sample)
    };
    Ok(Some(count_and_keep(
        progress,
        cuts,
        &copied,
        progress.brackets()?,
    )?))
}

/// The active brackets that hold few keys beside their hitters, by the sample.
fn small_brackets(progress: &Progress, sample: &KeyVec) -> Vec<Bracket> {
    let is_small = |bracket: &Bracket| {
        let own = positions(sample, bracket);
        let hitters = hitters(sample, own.clone()).into_iter();
        let equal: usize = hitters.map(|key| copies(sample, key)).sum();
        (own.len() - equal) as u64 * EXTRACT_SHARE <= sample.len() as u64
    };
    let brackets = progress.active().iter().map(|active| active.bracket);
    brackets.filter(is_small).collect()
}

/// Keys that make up at least an eighth of these positions of the sample, and have at least 4 copies, so that it is no accident.
fn hitters(sample: &KeyVec, within: Range<usize>) -> Vec<KeyBits> {
    let least = (within.len() / 8).max(4);
    let mut hitters = Vec::new();
    let mut at = within.start;
    while at + least <= within.end {
        let key = sample.get(at);
        let next = sample.upper_bound(key).min(within.end);
        if next - at >= least {
            hitters.push(key);
        }
        at = next;
    }
    hitters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Width;
    use crate::memory::MemoryBudget;

    #[test]
    fn less_memory_for_keys_takes_more_splitters() {
        let n = 30_000_000;
        let splitters = |keys| {
            let ranks = (1..100).map(|percent| percent * n / 100).collect();
            let mut progress = Progress::try_new(Width::W64, n, ranks).unwrap();
            progress.budget.keys = keys;
            most_splitters(&progress)
        };
        assert_eq!(splitters(MemoryBudget::UNLIMITED.keys), SPLITTERS);
        assert_eq!(splitters(n / 16), 2 * 99 * 16);
        assert_eq!(splitters(0), MAX_CELLS / 4);
    }
}
