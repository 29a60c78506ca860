//! Ranks among rows with weights, by few reads of the rows, of which few are held.
//!
//! ```text
//! sample ─> cells around the ranks ─> read: weights of all cells, rows of a few ─┬─ all ranks found: done
//!                                             ^                                  │
//!                                             └──── smaller cells where not ─────┘
//! ```
//! The sample decides what is read once only; the weights of the cells prove what lies in which of them.

use std::collections::BTreeMap;
use std::ops::Range;

use datafusion::common::{Result, internal_datafusion_err, internal_err};

use super::choose::SIGMAS;
use super::sampled::{edges_around, next_key};
use crate::cells::{Bracket, Cells, Edges, MAX_CELLS};
use crate::kernel::cpu::groups::weighted::{select_weighted, total};
use crate::kernel::cpu::weighted_cells::{CellCounts, KeepingCells};
use crate::key::{Key, KeyBits, Width};
use crate::quantile::QuantileSpec;

/// Most ranks that are looked for: a read has some cells for each of them.
const MOST_RANKS: usize = MAX_CELLS / 16;

/// Times the width of a bracket that a second one has, around it. A rank that a bracket missed by less is found by one more read.
const OUTER: f64 = 8.0;

/// The share of the sampled rows, as a divisor, from which on equal ones have a cell of their own, which keeps no rows.
const HITTER_SHARE: usize = 512;

/// Cells that keep rows for all brackets together, if there are fewer brackets than that: a rank is looked for among the rows of one. Up to 15 edges
/// are compared with each key, without a search.
const KEEPING: usize = 8;

/// Cells of a read that divides cells with too many rows.
const DIVIDED: usize = 1 << 10;

/// A selection of rows by their ranks, in reads of all rows: the keys that were found, and the cells between which the next read looks for others.
pub(crate) struct WeightedSelection<K> {
    ranks: Ranks,
    width: Width,
    /// Sampled rows, ascending.
    sample: Vec<(K, u64)>,
    /// Most rows that a read may keep.
    most: u64,
    cells: Cells,
    keep: Vec<bool>,
    /// Brackets around the ranks, by the sample, ascending.
    inside: Vec<Bracket>,
    /// Keys of ranks that were found.
    found: BTreeMap<u64, KeyBits>,
}

/// The ranks that are looked for among so many rows, by their weights: from 1, ascending, distinct; none among 0 rows.
pub(crate) type Ranks = Box<dyn Fn(u64) -> Vec<u64> + Send + Sync>;

/// Where keys stand in a sorted sample, by the weights of its rows.
struct Positions<'a, K> {
    sample: &'a [(K, u64)],
    width: Width,
    /// The sum of the weights up to each row.
    ends: Vec<u64>,
    /// The sum of all weights.
    sum: u64,
    /// Number of rows of equal weights that tell as much as the sample.
    equal: f64,
}

impl<'a, K: Key> Positions<'a, K> {
    fn try_new(sample: &'a [(K, u64)], width: Width) -> Result<Self> {
        let (sum, mut end) = (total(sample)?, 0);
        let ends = sample.iter().map(|(_, weight)| {
            end += weight;
            end
        });
        let square: f64 = sample.iter().map(|(_, weight)| (*weight as f64).powi(2)).sum();
        Ok(Self {
            sample,
            width,
            ends: ends.collect(),
            sum,
            equal: (sum as f64).powi(2) / square,
        })
    }

    /// The keys at [`SIGMAS`] standard deviations, times `factor`, to either side of a rank.
    fn bracket(&self, rank: u64, factor: f64) -> Bracket {
        let q = rank as f64 / self.sum as f64;
        let deviations = SIGMAS * (q * (1.0 - q) / self.equal).sqrt() + SIGMAS / self.equal;
        let spread = factor * self.sum as f64 * deviations;
        let at = |rank: f64| {
            let position = self.ends.partition_point(|end| (*end as f64) < rank);
            self.sample.get(position).map(|(key, _)| key.to_bits())
        };
        let first = rank as f64 - spread;
        Bracket {
            first: if first > 0.0 { at(first).unwrap_or(0) } else { 0 },
            last: at(rank as f64 + spread).unwrap_or(self.width.max_key()),
        }
    }
}

/// Whether an operator can look for the ranks of quantiles.
pub(crate) fn are_few(quantile_spec: &QuantileSpec) -> bool {
    // An interpolated quantile has two.
    2 * quantile_spec.quantiles.len() <= MOST_RANKS
}

impl<K: Key> WeightedSelection<K> {
    /// A selection among about `rows` rows, of which `sample` is a sample, and each read may keep `most`.
    ///
    /// # Errors
    /// An execution error for weights past 64 bits.
    pub(crate) fn try_new(
        ranks: Ranks,
        width: Width,
        mut sample: Vec<(K, u64)>,
        rows: u64,
        most: u64,
    ) -> Result<Self> {
        sample.sort_unstable();
        let mut selection = Self {
            ranks,
            width,
            sample,
            most,
            cells: Cells::one(),
            keep: vec![true],
            inside: Vec::new(),
            found: BTreeMap::new(),
        };
        if rows > most && !selection.sample.is_empty() {
            selection.begin(rows)?;
        }
        Ok(selection)
    }

    /// The cells of the next read, and which of them keep their rows.
    pub(crate) fn keeping_cells(&self) -> KeepingCells<K> {
        KeepingCells::new(&self.cells, &self.keep)
    }

    /// The first read: it keeps the rows of brackets around the ranks, and has edges further out. Where the brackets have too many rows, it
    /// divides them.
    fn begin(&mut self, rows: u64) -> Result<()> {
        let positions = &Positions::try_new(&self.sample, self.width)?;
        let ranks = (self.ranks)(positions.sum);
        let around = |factor| ranks.iter().map(move |rank| positions.bracket(*rank, factor));
        let (mut inside, outside): (Vec<Bracket>, Vec<Bracket>) =
            (around(1.0).collect(), around(OUTER).collect());
        inside.dedup();
        let ends = inside
            .iter()
            .chain(&outside)
            .flat_map(|bracket| self.ends(bracket));
        let hitters = inside.iter().flat_map(|bracket| self.hitters(bracket));
        let parts = KEEPING / inside.len().max(1);
        let within = inside.iter().flat_map(|bracket| self.parting(bracket, parts));
        let mut edges: Vec<KeyBits> = ends.chain(hitters).chain(within).collect();
        let cells = Cells::Edges(Edges::try_new(edges.clone())?);
        let keep: Vec<bool> = self
            .brackets_of(&cells)
            .map(|range| range.first < range.last && range.touches_any(&inside))
            .collect();
        let kept = self.brackets_of(&cells).zip(&keep).filter(|(_, keep)| **keep);
        let sampled: usize = kept.map(|(range, _)| self.sampled(&range).len()).sum();
        // A quarter more than expected, to be safe.
        let expected = u128::from(rows) * sampled as u128 / self.sample.len() as u128 * 5 / 4;
        (self.cells, self.keep) = (cells, keep);
        if expected > u128::from(self.most) {
            edges.extend(self.dividing(&inside));
            self.cells = Cells::Edges(Edges::try_new(edges)?);
            self.keep = vec![false; self.cells.len()];
        }
        self.inside = inside;
        Ok(())
    }

    /// Brackets around the ranks, by the sample, ascending; none without a sample.
    pub(crate) fn inside(&self) -> &[Bracket] {
        &self.inside
    }

    /// Whether a cell keeps its rows.
    pub(crate) fn keeps(&self, cell: usize) -> bool {
        self.keep[cell]
    }

    /// The keys of all cells, cell by cell.
    pub(crate) fn brackets(&self) -> impl Iterator<Item = Bracket> {
        self.brackets_of(&self.cells)
    }

    /// Looks for these ranks from now on. Those that were found stay known.
    pub(crate) fn look_for(&mut self, ranks: Ranks) {
        self.ranks = ranks;
    }

    /// Gives each of these keys a cell of its own in the next read, which keeps no rows.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn apart(&mut self, keys: &[KeyBits]) -> Result<()> {
        let edges = keys.iter().flat_map(|key| edges_around(*key, self.width));
        self.cells = Cells::Edges(Edges::try_new(edges.collect())?);
        self.keep = vec![false; self.cells.len()];
        Ok(())
    }

    /// The edges that give a bracket cells of its own.
    fn ends(&self, bracket: &Bracket) -> impl Iterator<Item = KeyBits> + use<K> {
        [Some(bracket.first), next_key(bracket.last, self.width)]
            .into_iter()
            .flatten()
    }

    /// The keys of all of these cells, cell by cell.
    fn brackets_of(&self, cells: &Cells) -> impl Iterator<Item = Bracket> {
        (0..cells.len() as u32).filter_map(|cell| cells.range(cell, self.width))
    }

    /// Positions of the sampled rows in a bracket.
    fn sampled(&self, bracket: &Bracket) -> Range<usize> {
        let start = self
            .sample
            .partition_point(|(key, _)| key.to_bits() < bracket.first);
        start
            ..self
                .sample
                .partition_point(|(key, _)| key.to_bits() <= bracket.last)
    }

    /// Edges that divide the sampled rows of a bracket into so many parts.
    fn parting(&self, bracket: &Bracket, parts: usize) -> impl Iterator<Item = KeyBits> + use<'_, K> {
        let sampled = &self.sample[self.sampled(bracket)];
        let stride = sampled.len().div_ceil(parts.max(1)).max(1);
        sampled.iter().step_by(stride).map(|(key, _)| key.to_bits())
    }

    /// Edges around the keys that repeat in the sample within a bracket.
    fn hitters(&self, bracket: &Bracket) -> Vec<KeyBits> {
        let runs = self.sample[self.sampled(bracket)].chunk_by(|a, b| a.0 == b.0);
        let many = runs.filter(|run| run.len() > (self.sample.len() / HITTER_SHARE).max(1));
        many.flat_map(|run| edges_around(run[0].0.to_bits(), self.width))
            .collect()
    }

    /// Takes in what a read of all rows found: the counts of its cells, and the rows that it kept, in parts; `None` if there was no room for
    /// them. `true` once all ranks are found.
    ///
    /// # Errors
    /// An execution error for weights past 64 bits.
    pub(crate) fn narrow(&mut self, counts: &CellCounts, kept: Option<&[Vec<(K, u64)>]>) -> Result<bool> {
        let mut through = Vec::with_capacity(counts.weights.len());
        let (sum, mut end) = (counts.total()?, 0);
        for weight in &counts.weights {
            end += weight;
            through.push(end);
        }
        let mut wanted = BTreeMap::<usize, Vec<u64>>::new();
        for rank in (self.ranks)(sum) {
            if !self.found.contains_key(&rank) {
                let cell = through.partition_point(|end| *end < rank);
                wanted.entry(cell).or_default().push(rank);
            }
        }
        let mut open = Vec::new();
        for (cell, ranks) in wanted {
            let Some(range) = self.cells.range(cell as u32, self.width) else {
                return internal_err!("{ranks:?} of {sum} ranks are in no cell");
            };
            if range.first == range.last {
                self.found
                    .extend(ranks.into_iter().map(|rank| (rank, range.first)));
            } else if let Some(kept) = kept.filter(|_| self.keep[cell]) {
                let before = through[cell] - counts.weights[cell];
                self.select(&range, before, &ranks, kept)?;
            } else {
                open.push((range, counts.rows[cell]));
            }
        }
        if !open.is_empty() {
            let refused = kept.is_none() && self.keep.contains(&true);
            self.divide(&open, refused)?;
        }
        Ok(open.is_empty())
    }

    /// Finds ranks among the rows of one cell, which begins after the rank `before`.
    fn select(&mut self, cell: &Bracket, before: u64, ranks: &[u64], kept: &[Vec<(K, u64)>]) -> Result<()> {
        let rows = kept
            .iter()
            .flatten()
            .filter(|(key, _)| cell.contains(key.to_bits()));
        let mut rows: Vec<(K, u64)> = rows.copied().collect();
        let inside: Vec<u64> = ranks.iter().map(|rank| rank - before).collect();
        let keys = select_weighted(&mut rows, &inside, &K::cmp);
        if keys.len() != ranks.len() {
            return internal_err!(
                "{} of {} ranks in a cell of {} rows",
                keys.len(),
                ranks.len(),
                rows.len()
            );
        }
        let keys = keys.into_iter().map(K::to_bits);
        self.found.extend(ranks.iter().copied().zip(keys));
        Ok(())
    }

    /// Edges that divide brackets.
    fn dividing(&self, brackets: &[Bracket]) -> Vec<KeyBits> {
        let (each, mut edges) = ((DIVIDED / brackets.len().max(1)).max(2), Vec::new());
        for bracket in brackets {
            edges.extend(self.hitters(bracket));
            let sampled = &self.sample[self.sampled(bracket)];
            let stride = sampled.len().div_ceil(each).max(1);
            let keys = sampled.iter().step_by(stride).map(|(key, _)| key.to_bits());
            edges.extend(keys.flat_map(|key| edges_around(key, self.width)));
            // Equal parts of the keys come to an end where no sample tells anything.
            let part = (bracket.last - bracket.first) / each as KeyBits + 1;
            let parts = (1..each as KeyBits).map(|at| bracket.first.saturating_add(at.saturating_mul(part)));
            edges.extend(parts.filter(|edge| bracket.contains(*edge)));
        }
        edges
    }

    /// The next read, where these brackets of so many rows hold ranks that were not found: it keeps their rows, or divides the brackets if the
    /// rows are too many, or the last read was refused the memory for what it was to keep.
    fn divide(&mut self, open: &[(Bracket, u64)], refused: bool) -> Result<()> {
        let rows = open.iter().map(|(_, rows)| rows).sum::<u64>();
        let mut edges: Vec<KeyBits> = open.iter().flat_map(|(bracket, _)| self.ends(bracket)).collect();
        let inside: Vec<Bracket> = open.iter().map(|(bracket, _)| *bracket).collect();
        let fit = rows <= self.most && !refused;
        if !fit {
            edges.extend(self.dividing(&inside));
        }
        let cells = Cells::Edges(Edges::try_new(edges)?);
        self.keep = self
            .brackets_of(&cells)
            .map(|range| fit && range.touches_any(&inside))
            .collect();
        self.cells = cells;
        Ok(())
    }

    /// The key of a rank that the question has.
    ///
    /// # Errors
    /// An internal error for any other rank.
    pub(crate) fn key_at(&self, rank: u64) -> Result<KeyBits> {
        let key = self.found.get(&rank).copied();
        key.ok_or_else(|| internal_datafusion_err!("rank {rank} was not selected"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::kernel::cpu::weighted_cells::WeightedCells;
    use crate::quantile::{Method, Quantile};

    fn spec(quantiles: &[f64], method: Method) -> QuantileSpec {
        let quantiles = quantiles.iter().map(|q| Quantile::try_from_f64(*q).unwrap());
        QuantileSpec {
            quantiles: quantiles.collect(),
            method,
            descending: false,
        }
    }

    /// The keys of all ranks, each row repeated as often as its weight says.
    fn expected(rows: &[(u64, u64)], spec: &QuantileSpec) -> Vec<(u64, u64)> {
        let mut all: Vec<u64> = rows
            .iter()
            .flat_map(|(key, weight)| std::iter::repeat_n(*key, *weight as usize))
            .collect();
        all.sort_unstable();
        let ranks = spec.ranks(all.len() as u64).into_iter();
        ranks.map(|rank| (rank, all[rank as usize - 1])).collect()
    }

    /// Selects by reads that keep at most `most` rows each, and gives their number.
    fn reads(rows: &[(u64, u64)], sample: &[(u64, u64)], most: u64, spec: &QuantileSpec) -> usize {
        reads_in_room(rows, sample, [most, most], spec)
    }

    /// Selects by reads that may keep so many rows each, and have room for so many, and gives their number.
    fn reads_in_room(
        rows: &[(u64, u64)],
        sample: &[(u64, u64)],
        [most, room]: [u64; 2],
        spec: &QuantileSpec,
    ) -> usize {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let n = rows.len() as u64;
        let ranks = {
            let spec = spec.clone();
            Box::new(move |n| spec.ranks(n))
        };
        let mut selection = WeightedSelection::try_new(ranks, Width::W64, sample.to_vec(), n, most).unwrap();
        for read in 1.. {
            let cells = Arc::new(selection.keeping_cells());
            let (mut counts, mut kept) = (CellCounts::new(cells.len()), Vec::new());
            for part in rows.chunks(rows.len().div_ceil(3).max(1)) {
                let memory = MemoryConsumer::new("rows").register(&pool);
                let mut count = WeightedCells::try_new(Arc::clone(&cells), memory).unwrap();
                let (keys, weights): (Vec<u64>, Vec<u64>) = part.iter().copied().unzip();
                count.push(&keys, &weights);
                let (own, rows, _) = count.finish();
                counts.add(&own);
                kept.push(rows.unwrap());
            }
            // A sample that misleads may keep more than expected, as a real one may not.
            let fits = kept.iter().map(Vec::len).sum::<usize>() as u64 <= room;
            if selection.narrow(&counts, fits.then_some(&kept)).unwrap() {
                for (rank, key) in expected(rows, spec) {
                    assert_eq!(selection.key_at(rank).unwrap(), KeyBits::from(key), "rank {rank}");
                }
                return read;
            }
            assert!(read < 20, "no end");
        }
        unreachable!()
    }

    fn rows(n: usize, key: impl Fn(&mut SmallRng) -> u64) -> Vec<(u64, u64)> {
        let mut rng = SmallRng::seed_from_u64(n as u64);
        (0..n).map(|_| (key(&mut rng), rng.random_range(1..9))).collect()
    }

    fn every(rows: &[(u64, u64)], step: usize) -> Vec<(u64, u64)> {
        rows.iter().copied().step_by(step).collect()
    }

    #[test]
    fn a_sample_that_is_one_needs_one_read() {
        for method in [Method::Disc, Method::Linear] {
            let spec = spec(&[0.0, 0.25, 0.5, 0.9, 1.0], method);
            for table in [
                rows(40_000, |rng| rng.random()),
                rows(40_000, |rng| rng.random_range(0..50)),
            ] {
                assert_eq!(reads(&table, &every(&table, 7), 20_000, &spec), 1, "{method}");
            }
        }
    }

    #[test]
    fn all_rows_are_kept_where_there_is_room() {
        let table = rows(1000, |rng| rng.random_range(0..200));
        assert_eq!(reads(&table, &[], 1000, &spec(&[0.1, 0.5], Method::Disc)), 1);
        assert_eq!(reads(&[], &[], 1000, &spec(&[0.5], Method::Disc)), 1);
        assert_eq!(reads(&[(5, 7)], &[(5, 7)], 0, &spec(&[0.5], Method::Linear)), 1);
    }

    /// Once a read was refused the memory for the rows that it was to keep, the next one divides their cells.
    #[test]
    fn reads_without_room_come_to_an_end() {
        let table = rows(1000, |rng| rng.random_range(1 << 40..1 << 41));
        for room in [0, 3] {
            let reads = reads_in_room(&table, &[], [1000, room], &spec(&[0.1, 0.5], Method::Linear));
            assert!(reads > 2, "{reads}");
        }
    }

    #[test]
    fn a_sample_that_misleads_costs_reads_only() {
        let table = rows(40_000, |rng| rng.random_range(1 << 40..1 << 41));
        let spec = spec(&[0.01, 0.5, 0.99], Method::Linear);
        for (sample, most) in [
            (vec![(3, 1), (4, 1), (5, 1)], 1000),
            (vec![(u64::MAX, u64::MAX)], 1000),
            (Vec::new(), 100),
            (every(&table, 400), 40),
            // Few rows have most of the weight.
            (
                [(1, 1 << 40)].into_iter().chain(every(&table, 40)).collect(),
                1000,
            ),
        ] {
            assert!(reads(&table, &sample, most, &spec) > 1, "{} {most}", sample.len());
        }
    }
}
