//! SampleSelect (Ribizel and Anzt 2020), for many ranks and many shards at once.
//!
//! A sample gives a cell function; one count of all keys finds the cell of every rank, and each shard writes down
//! the cell of each key (the oracle), so that the extraction reads numbers instead of computing them again. Where
//! ranks are few, narrow brackets around them are counted and extracted in one read instead; the counts prove that
//! each rank was caught, and a miss costs one more round.
//!
//! Heavy values never swell an extraction: a value that repeats in the sample gets a cell of its own (an equality
//! bucket, section IV-C), which is counted, not copied. Where the first cells are too coarse for the data, a second
//! sample is taken inside the brackets, and so on: every level divides the candidates by hundreds. Likewise where the
//! candidates are few, but more than there is memory for.

use datafusion::common::{Result, internal_err};

use super::bms::{BUCKETS, narrower};
use super::progress::{Active, Progress};
use super::{Step, Strategy};
use crate::cells::{Bracket, Brackets};
use crate::cells::{CellTable, Cells, Edges, MAX_CELLS};
use crate::kernel::round::{Reply, Request};
use crate::key::KeyVec;
use crate::key::{KeyBits, Width};
#[cfg(feature = "cuda")]
use crate::select::choose::GATHER;
use crate::select::choose::{Choice, Form, SIGMAS, table_cells};

/// Up to so many different keys in the sample, each is compared with.
const FEW_DISTINCT: usize = 4;
/// A key that is at least one in so many of the sample is heavy.
const HEAVY_SHARE: usize = 256;
/// What a table may leave out at either end of the sample. What is left out is copied if a rank lies there.
const TAILS: [f64; 3] = [0.0, 0.005, 0.03];
/// Cells that a table has beside those asked for, and more: one for each entry.
const TABLE_EXTRA: usize = 4 << 10;
/// Splitters of a search tree.
const SPLITTERS: usize = 2047;
/// Keys sampled inside the brackets when the first cells were too coarse.
const DEEPER_SAMPLE: u64 = 1 << 14;
/// Keys sampled for counts on devices: the host sorts them.
#[cfg(feature = "cuda")]
const COUNTS_SAMPLE: u64 = 1 << 13;
/// Candidates that are brought from devices: those of two counts of all values, mostly.
const COUNTS_COLLECTED: u64 = 1 << 16;
/// Candidates up to this share of the data, or this number, are extracted; more are divided again.
const EXTRACT_SHARE: u64 = 16;
const EXTRACT_LEAST: u64 = 1 << 17;
/// After so many rounds whatever is left is extracted: the answer is exact for any data. Where there is no memory for
/// that, DIBMS's counts go on.
const PATIENCE: usize = 12;

/// The strategy: see the module.
#[derive(Debug, Clone)]
pub struct SampleSelect {
    choice: Choice,
}

impl SampleSelect {
    /// In this form, with this sample.
    pub fn new(choice: Choice) -> Self {
        Self { choice }
    }

    /// For `n` values on devices.
    #[cfg(feature = "cuda")]
    pub(crate) fn counting(n: u64) -> Self {
        Self::new(match n {
            0..=GATHER => Choice {
                form: Form::Gather,
                sample: 0,
            },
            _ => Choice {
                form: Form::Counts,
                sample: COUNTS_SAMPLE,
            },
        })
    }

    /// What follows a count, or an extraction that did not bring all.
    fn after(&self, progress: Progress) -> Result<Step> {
        match self.choice.form {
            Form::Counts => after_parts(progress),
            Form::Gather | Form::Brackets | Form::Cells => after_count(progress),
        }
    }
}

impl Strategy for SampleSelect {
    fn label(&self) -> &'static str {
        match self.choice.form {
            Form::Gather => "sample_select (gather)",
            Form::Brackets => "sample_select (brackets)",
            Form::Cells => "sample_select (cells)",
            Form::Counts => "sample_select (counts)",
        }
    }

    fn begin(&self, progress: Progress) -> Result<Step> {
        if self.choice.form == Form::Gather || progress.population() <= self.choice.sample {
            return extract_or_narrow(progress);
        }
        sample(progress, self.choice.sample)
    }

    fn step(&self, mut progress: Progress, asked: &Request, reply: Reply) -> Result<Step> {
        progress.rounds += 1;
        match (asked, reply) {
            (Request::Sample { .. }, Reply::Sample { mut keys, .. }) => {
                keys.sort();
                let first = progress.rounds == 1;
                let request = match self.choice.form {
                    _ if keys.is_empty() => return extract_or_narrow(progress),
                    Form::Brackets if first => around_ranks(&progress, &keys)?,
                    _ if first => first_cells(&progress, &keys)?,
                    _ => match deeper_cells(&progress, &keys)? {
                        Some(request) => request,
                        None => return narrower(progress, BUCKETS),
                    },
                };
                progress.sample = Some(keys);
                Ok(Step::Round(progress, request))
            }
            (Request::Count { cells, keep, .. }, Reply::Counts { counts, kept }) => {
                progress.narrow(cells, &counts, keep, kept)?;
                self.after(progress)
            }
            (Request::Extract { .. }, Reply::Extracted(kept)) => {
                progress.extracted(kept)?;
                if progress.is_done() {
                    Ok(Step::Done(progress))
                } else {
                    self.after(progress)
                }
            }
            (asked, _) => internal_err!("a reply that does not answer {}", asked.name()),
        }
    }
}

/// A sample of all keys at first, of those inside the active brackets later.
fn sample(progress: Progress, size: u64) -> Result<Step> {
    let first = progress.rounds == 0;
    let within = if first {
        Brackets::all(progress.width())
    } else {
        progress.brackets()?
    };
    let population = if first {
        progress.population()
    } else {
        progress.candidates()
    };
    let seed = (progress.rounds as u64) << 32;
    Ok(Step::Round(
        progress,
        Request::Sample {
            size,
            population,
            seed,
            within,
            extremes: false,
        },
    ))
}

/// The last round, where there is memory for it; else counts that narrow any brackets.
pub(super) fn extract_or_narrow(progress: Progress) -> Result<Step> {
    if progress.is_done() {
        return Ok(Step::Done(progress));
    }
    if !progress.fits() {
        return narrower(progress, BUCKETS);
    }
    let brackets = progress.brackets()?;
    Ok(Step::Round(progress, Request::Extract { brackets }))
}

/// What remains after a count: nothing, little enough to extract, heavy values to set apart, or another level.
fn after_count(mut progress: Progress) -> Result<Step> {
    if progress.is_done() {
        return Ok(Step::Done(progress));
    }
    if let Some(request) = set_heavy_apart(&progress)? {
        progress.sample = None;
        return Ok(Step::Round(progress, request));
    }
    if progress.candidates() <= enough(&progress) || progress.rounds >= PATIENCE {
        return extract_or_narrow(progress);
    }
    let size = DEEPER_SAMPLE.min(progress.budget.sample);
    sample(progress, size)
}

/// The same with counts of parts of the brackets, whatever the sample said of heavy values.
fn after_parts(progress: Progress) -> Result<Step> {
    if progress.candidates() <= COUNTS_COLLECTED.min(progress.budget.keys) {
        return extract_or_narrow(progress);
    }
    narrower(progress, 2 * BUCKETS)
}

/// Candidates that are few enough to be collected.
fn enough(progress: &Progress) -> u64 {
    EXTRACT_LEAST
        .max(progress.population() / EXTRACT_SHARE)
        .min(progress.budget.keys)
}

/// Brackets of [`SIGMAS`] around each rank's place in the sample, counted and extracted in one read.
fn around_ranks(progress: &Progress, sample: &KeyVec) -> Result<Request> {
    let (n, size) = (progress.population() as f64, sample.len() as f64);
    let mut edges = Vec::new();
    for rank in progress.ranks() {
        let q = *rank as f64 / n;
        let spread = SIGMAS * (size * q * (1.0 - q)).sqrt() + 1.0;
        let (low, high) = ((q * size - spread).floor(), (q * size + spread).ceil());
        let at = |place: f64| sample.get(place as usize);
        edges.push((
            if low < 0.0 { None } else { Some(at(low)) },
            if high >= size { None } else { Some(at(high)) },
        ));
    }
    let mut cuts = Vec::new();
    let mut inside: Vec<Bracket> = Vec::new();
    let top = progress.width().max_key();
    for (low, high) in edges {
        for end in [low, high].into_iter().flatten() {
            cuts.push(end);
            // A value that repeats in the sample is heavy: counted by itself, not copied with its neighbours.
            if repeats(sample, end) {
                cuts.extend(after(end, progress.width()));
            }
        }
        inside.push(Bracket {
            first: low.unwrap_or(0),
            last: high.map_or(top, |high| high.max(1) - 1),
        });
    }
    count_and_keep(progress, cuts, &inside, Brackets::all(progress.width()))
}

fn repeats(sample: &KeyVec, key: KeyBits) -> bool {
    sample.upper_bound(key) - sample.lower_bound(key) > 1
}

/// A count of the cells between `cuts` that keeps every cell of more than one key which touches one of `inside`, whose ends
/// ascend.
pub(super) fn count_and_keep(
    progress: &Progress,
    cuts: Vec<KeyBits>,
    inside: &[Bracket],
    within: Brackets,
) -> Result<Request> {
    let cells = Cells::Edges(Edges::try_new(cuts)?);
    let wanted = |cell: &u32| {
        cells.range(*cell, progress.width()).is_some_and(|range| {
            let next = inside.partition_point(|bracket| bracket.last < range.first);
            range.first < range.last
                && inside
                    .get(next)
                    .is_some_and(|bracket| bracket.first <= range.last)
        })
    };
    let keep = (0..cells.len() as u32).filter(wanted).collect();
    Ok(Request::Count { cells, within, keep })
}

/// The cell function of the first count: the table, or the search tree where the table is too coarse for the data.
fn first_cells(progress: &Progress, sample: &KeyVec) -> Result<Request> {
    let within = Brackets::all(progress.width());
    if let Some(distinct) = few_distinct(sample) {
        let cuts = distinct
            .iter()
            .flat_map(|key| [Some(*key), after(*key, progress.width())])
            .flatten()
            .collect();
        let cells = Cells::Edges(Edges::try_new(cuts)?);
        return Ok(Request::Count {
            cells,
            within,
            keep: Vec::new(),
        });
    }
    let cells = match fine_table(progress, sample)? {
        Some(table) => table,
        None => {
            let count = SPLITTERS
                .max(8 * progress.ranks().len())
                .min(MAX_CELLS.min(progress.budget.cells) / 4);
            Cells::Edges(Edges::try_new(splitters(sample, count, progress.width()))?)
        }
    };
    Ok(Request::Count {
        cells,
        within,
        keep: Vec::new(),
    })
}

/// A table that is not too coarse: over all of the sample, or without its tails, which may reach so far that
/// everything else falls into one entry.
fn fine_table(progress: &Progress, sample: &KeyVec) -> Result<Option<Cells>> {
    let most = progress.budget.cells.saturating_sub(TABLE_EXTRA).max(1);
    let cells = table_cells(progress.population()).min(most);
    for share in TAILS {
        let tail = (sample.len() as f64 * share) as usize;
        let part = tail..sample.len() - tail;
        let table = CellTable::from_part(sample, part, cells)?;
        let heavy = heavy_in_company(sample, &Cells::Table(table.clone()), progress.width());
        let table = Cells::Table(table.with_heavy(heavy)?);
        if !table_is_coarse(progress, sample, &table) {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// The sample's keys, if they are so few that an equality bucket for each costs less than a table.
fn few_distinct(sample: &KeyVec) -> Option<Vec<KeyBits>> {
    let (mut distinct, mut at) = (Vec::new(), 0);
    while at < sample.len() {
        if distinct.len() == FEW_DISTINCT {
            return None;
        }
        distinct.push(sample.get(at));
        at = sample.upper_bound(sample.get(at));
    }
    Some(distinct)
}

/// The heaviest keys that share a cell with others: as many as a table sets apart, ascending.
fn heavy_in_company(sample: &KeyVec, table: &Cells, width: Width) -> Vec<KeyBits> {
    let least = (sample.len() / HEAVY_SHARE).max(4);
    // So many equal neighbours hold one of these places.
    let places = (0..sample.len()).step_by(least);
    let mut keys: Vec<KeyBits> = places.map(|at| sample.get(at)).collect();
    keys.dedup();
    let weight = |key: &KeyBits| sample.upper_bound(*key) - sample.lower_bound(*key);
    let in_company = |key: &KeyBits| {
        let range = table.cell(*key).and_then(|cell| table.range(cell, width));
        weight(key) >= least && range.is_some_and(|range| range.first < range.last)
    };
    keys.retain(in_company);
    keys.sort_by_key(|key| std::cmp::Reverse(weight(key)));
    keys.truncate(CellTable::MOST_HEAVY);
    keys.sort_unstable();
    keys
}

/// Whether the cells of the ranks hold too much of the sample: the data has more scales than the table, or a heavy
/// value shares its cell. A cell of one key is fine, whatever it holds.
fn table_is_coarse(progress: &Progress, sample: &KeyVec, table: &Cells) -> bool {
    let n = u128::from(progress.population());
    let mut last = None;
    let mut held = 0;
    for rank in progress.ranks() {
        let place = (u128::from(rank - 1) * sample.len() as u128 / n) as usize;
        let cell = table.cell(sample.get(place));
        if cell == last {
            continue;
        }
        last = cell;
        if let Some(range) = cell.and_then(|cell| table.range(cell, progress.width()))
            && range.first < range.last
        {
            held += sample.upper_bound(range.last) - sample.lower_bound(range.first);
        }
    }
    held > sample.len() / 16 + 4 * progress.ranks().len() * sample.len() / table.len()
}

/// Search-tree splitters inside every active bracket, by a sample of what is in them; `None` if the brackets' ends leave
/// no room for them.
fn deeper_cells(progress: &Progress, sample: &KeyVec) -> Result<Option<Request>> {
    let brackets = progress.active().iter().map(|active| active.bracket);
    let ends = brackets.flat_map(|bracket| [Some(bracket.first), after(bracket.last, progress.width())]);
    let mut edges: Vec<KeyBits> = ends.flatten().collect();
    edges.dedup();
    // Each may need two edges.
    let budget = (MAX_CELLS - 1).saturating_sub(edges.len()) / 2;
    if budget < progress.active().len() {
        return Ok(None);
    }
    let count = SPLITTERS.max(4 * progress.active().len()).min(budget);
    edges.extend(splitters(sample, count, progress.width()));
    Ok(Some(Request::Count {
        cells: Cells::Edges(Edges::try_new(edges)?),
        within: progress.brackets()?,
        keep: Vec::new(),
    }))
}

/// Equally spaced order statistics of the sample; one that repeats gets an equality bucket.
fn splitters(sample: &KeyVec, count: usize, width: Width) -> Vec<KeyBits> {
    let mut edges = Vec::with_capacity(2 * count);
    for i in 1..=count {
        let key = sample.get(i * sample.len() / (count + 1));
        edges.push(key);
        if repeats(sample, key) {
            edges.extend(after(key, width));
        }
    }
    edges
}

/// The next key, if there is one.
pub(super) fn after(key: KeyBits, width: Width) -> Option<KeyBits> {
    (key < width.max_key()).then(|| key + 1)
}

/// Heavy values of the first sample inside active brackets, set apart by edges; the rest is kept in the same read.
fn set_heavy_apart(progress: &Progress) -> Result<Option<Request>> {
    let Some(sample) = &progress.sample else {
        return Ok(None);
    };
    let heavy = |active: &Active| {
        let (first, end) = (
            sample.lower_bound(active.bracket.first),
            sample.upper_bound(active.bracket.last),
        );
        heavy_keys(sample, first, end)
    };
    let found: Vec<Vec<KeyBits>> = progress.active().iter().map(heavy).collect();
    if found.iter().all(Vec::is_empty) {
        return Ok(None);
    }
    let mut cuts = Vec::new();
    let mut inside = Vec::new();
    for (active, heavy) in progress.active().iter().zip(found) {
        let after = |key| after(key, progress.width());
        cuts.push(active.bracket.first);
        cuts.extend(after(active.bracket.last));
        cuts.extend(heavy.iter().flat_map(|key| [Some(*key), after(*key)]).flatten());
        inside.push(active.bracket);
    }
    cuts.sort_unstable();
    cuts.dedup();
    if cuts.len() >= MAX_CELLS {
        return Ok(None);
    }
    // Keep only what is little: a bracket with heavy values may be large without them too.
    let light = progress.candidates() <= enough(progress);
    let rest = if light || progress.rounds >= PATIENCE {
        inside
    } else {
        light_brackets(progress, sample)
    };
    Ok(Some(count_and_keep(progress, cuts, &rest, progress.brackets()?)?))
}

/// The active brackets that are small once their heavy values are set apart, by the sample.
fn light_brackets(progress: &Progress, sample: &KeyVec) -> Vec<Bracket> {
    let light = |active: &&Active| {
        let (first, end) = (
            sample.lower_bound(active.bracket.first),
            sample.upper_bound(active.bracket.last),
        );
        let heavy = heavy_keys(sample, first, end);
        let equal: usize = heavy
            .iter()
            .map(|key| sample.upper_bound(*key) - sample.lower_bound(*key))
            .sum();
        (end - first - equal) as u64 * EXTRACT_SHARE <= sample.len() as u64
    };
    progress
        .active()
        .iter()
        .filter(light)
        .map(|active| active.bracket)
        .collect()
}

/// Keys among the sample's `first..end` that are at least an eighth of it, and no accident.
fn heavy_keys(sample: &KeyVec, first: usize, end: usize) -> Vec<KeyBits> {
    let least = ((end - first) / 8).max(4);
    let mut heavy = Vec::new();
    let mut at = first;
    while at + least <= end {
        let key = sample.get(at);
        let next = sample.upper_bound(key).min(end);
        if next - at >= least {
            heavy.push(key);
        }
        at = next;
    }
    heavy
}
