//! The most frequent values of a column, by few reads of its rows, of which few values are held.
//!
//! ```text
//! sample ─> a candidate for each of 16 384 cells ─> read: rows of each candidate, and of the others in each cell ─┬─ no cell has as many others
//!                                                         ^                                                       │  as the k-th candidate
//!                                                         └───────── all values of the cells that have ───────────┘  has rows: done
//! ```
//! A cell has the values whose hashes begin alike. Whatever the sample says, the counts prove that no other value is among the most frequent.
//!
//! Where some values stand out of the sample, the first read counts all values of the cells with much in the sample beside the candidate, and is
//! most often the only one. Where millions of values occur about as often, the others have millions of cells: few of them reach the rows of the k-th
//! candidate, and the second read counts their values.

use std::cmp::Reverse;
use std::sync::Arc;

use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::common::{Result, internal_datafusion_err, resources_err};

use crate::kernel::cpu::cell_bounds::{CellBounds, FEW_BITS, MOST_BITS};
use crate::kernel::cpu::frequent_cells::{CELLS, FrequentCells, Wanted, cell_of};
use crate::kernel::cpu::groups::group_key::GroupKey;

/// Most values that are looked for: each cell has one candidate.
pub(crate) const MOST_VALUES: usize = CELLS / 4;

/// Most values that are looked for among those that all occur about as often: the candidates are to have better ones.
const MOST_ALIKE: usize = CELLS / 64;

/// Rows of a value from which on cells of others tell which ones occur more often than most.
const LEAST_ROWS: f64 = 3.0;

/// Values of a cell of others, on average, if there is room for so many cells; and the logarithm of how many times as many are too many.
const TOGETHER: f64 = 0.4;
const TOO_FEW: u32 = 3;

/// Reads after which too little memory is an error.
const MOST_READS: usize = 32;

/// A selection of the most frequent values, in reads of all rows: the best of those that were counted, and what the next read counts.
#[derive(Debug)]
pub(crate) struct FrequentSelection<K> {
    k: usize,
    wanted: Arc<Wanted<K>>,
    /// How often the others of each cell can occur, once they were read.
    bounds: Option<CellBounds>,
    /// The most frequent of the values that were counted, best first.
    best: Vec<(K, u64)>,
    /// Cells all of whose values were counted.
    known: BooleanBuffer,
    /// Rows of the cells all of whose values the next read counts, the candidates' left out; as estimated before the first one.
    kept_rows: u64,
    reads: usize,
}

/// A sorted sample, by the cells of candidates.
struct SampledCells<K> {
    /// The most frequent value of each cell, and its rows in the sample.
    candidates: Vec<(K, usize)>,
    /// Sampled rows of the other values of each cell.
    others: Vec<usize>,
}

impl<K: GroupKey> SampledCells<K> {
    fn of(sample: &[K]) -> Self {
        let mut candidates = vec![(K::default(), 0); CELLS];
        let mut others = vec![0; CELLS];
        for run in sample.chunk_by(|a, b| a == b) {
            let cell = cell_of(run[0]);
            let (_, most) = candidates[cell];
            // The smaller of both is one of the others from now on.
            others[cell] += run.len().min(most);
            if run.len() > most {
                candidates[cell] = (run[0], run.len());
            }
        }
        Self { candidates, others }
    }

    /// The cells whose others may be among the `k` most frequent values.
    fn keep(&self, k: usize) -> BooleanBuffer {
        let mut counts: Vec<usize> = self.candidates.iter().map(|(_, count)| *count).collect();
        counts.sort_unstable_by_key(|count| Reverse(*count));
        // A count of a sample is off by its square root, or twice that. Without a sample, each cell has any number of values.
        let least = counts
            .get(k - 1)
            .map_or(0.0, |count| *count as f64 - 2.0 * (*count as f64).sqrt());
        let may_have = |others: usize| others as f64 + 2.0 * (others as f64).sqrt() + 1.0;
        BooleanBuffer::collect_bool(CELLS, |cell| least <= 0.0 || may_have(self.others[cell]) >= least)
    }
}

/// The logarithm of the number of cells for the others, so that few values share one, where many values of a sorted sample occur about as often as
/// the `k`-th most frequent one; `None` where nearly all values are distinct, or `1 << most` cells are too few.
fn bits_for_alike<K: GroupKey>(sample: &[K], k: usize, rows: u64, most: u32) -> Option<u32> {
    let mut runs: Vec<usize> = sample.chunk_by(|a, b| a == b).map(<[K]>::len).collect();
    runs.sort_unstable_by_key(|run| Reverse(*run));
    let alike = runs.get(k - 1..)?;
    // Pairs of equal rows tell how many rows a row is equal to, itself counted.
    let pairs: f64 = alike.iter().map(|run| (run * (run - 1)) as f64).sum();
    let sampled = alike.iter().sum::<usize>() as f64;
    let each = 1.0 + pairs / sampled * (rows as f64 / sample.len() as f64);
    let values = rows as f64 * (sampled / sample.len() as f64) / each;
    let wanted = (values / TOGETHER).log2().ceil().max(f64::from(FEW_BITS + 1)) as u32;
    let bits = wanted.min(most).min(MOST_BITS);
    let are_enough = bits > FEW_BITS && bits + TOO_FEW > wanted;
    (k <= MOST_ALIKE && each >= LEAST_ROWS && are_enough).then_some(bits)
}

impl<K: GroupKey> FrequentSelection<K> {
    /// A selection of the `k` most frequent values, of equal counts the smaller ones, of about `rows` rows, of which `sample` is a sample. A read
    /// should keep `most_kept` rows at most, and may have up to `1 << most_bits` cells for values that are no candidates.
    pub(crate) fn new(k: usize, mut sample: Vec<K>, rows: u64, most_kept: u64, most_bits: u32) -> Self {
        sample.sort_unstable();
        let cells = SampledCells::of(&sample);
        let (mut bits, mut keep) = (FEW_BITS, cells.keep(k));
        let kept: usize = keep.set_indices().map(|cell| cells.others[cell]).sum();
        let mut kept_rows = (kept as f64 * rows as f64 / sample.len().max(1) as f64) as u64;
        if kept_rows > most_kept
            && let Some(many) = bits_for_alike(&sample, k, rows, most_bits)
        {
            (bits, keep, kept_rows) = (many, BooleanBuffer::new_unset(1 << many), 0);
        }
        Self {
            k,
            kept_rows,
            known: BooleanBuffer::new_unset(keep.len()),
            wanted: Arc::new(Wanted {
                candidates: cells.candidates.into_iter().map(|(key, _)| key).collect(),
                bits,
                bounds: true,
                keep,
            }),
            bounds: None,
            best: Vec::new(),
            reads: 0,
        }
    }

    /// What the next read is to count.
    pub(crate) fn wanted(&self) -> &Arc<Wanted<K>> {
        &self.wanted
    }

    /// Rows whose values the next read has to hold, each once; before the first read an estimate.
    pub(crate) fn kept_rows(&self) -> u64 {
        self.kept_rows
    }

    /// Takes in what a read counted of all rows. `true` once the most frequent values are known.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is too little memory for the values of most cells.
    pub(crate) fn narrow(&mut self, mut counts: FrequentCells<K>) -> Result<bool> {
        self.reads += 1;
        if self.bounds.is_none() {
            self.bounds = counts.bounds.take();
            for (cell, rows) in counts.own.iter().enumerate() {
                self.add(self.wanted.candidates[cell], *rows);
            }
        }
        counts.kept().for_each(|(key, count)| self.add(key, count));
        self.cut();
        let least = self.best.get(self.k - 1).map_or(0, |(_, count)| *count);
        let now_known = counts.known();
        self.known = &self.known | &now_known;
        let Some(bounds) = &self.bounds else {
            return Err(internal_datafusion_err!(
                "the first read counts the cells of others"
            ));
        };
        let (keep, kept_rows) = bounds.reaching(least.max(1), &self.known);
        self.kept_rows = kept_rows;
        let (open, now_known) = (keep.count_set_bits(), now_known.count_set_bits());
        if open > 0 && self.reads > 1 && open > now_known * MOST_READS {
            return resources_err!(
                "the most frequent values: {} values of {now_known} of {} cells had room, all {} bytes wanted",
                counts.held(),
                now_known + open,
                (counts.held() * (now_known + open)).div_ceil(now_known.max(1)) * 4 * size_of::<K>()
            );
        }
        self.wanted = Arc::new(Wanted {
            candidates: self.wanted.candidates.clone(),
            bits: self.wanted.bits,
            bounds: false,
            keep,
        });
        Ok(open == 0)
    }

    /// The most frequent values, each with the number of its rows, best first.
    pub(crate) fn best(&self) -> &[(K, u64)] {
        &self.best
    }

    /// Adds a value that was counted.
    fn add(&mut self, key: K, count: u64) {
        if count == 0 {
            return;
        }
        self.best.push((key, count));
        if self.best.len() > 2 * self.k + CELLS {
            self.cut();
        }
    }

    /// Leaves the best `k` values, in order.
    fn cut(&mut self) {
        self.best
            .sort_unstable_by_key(|(key, count)| (Reverse(*count), *key));
        self.best.truncate(self.k);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use datafusion::common::DataFusionError;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn expected(rows: &[u64], k: usize) -> Vec<(u64, u64)> {
        let mut counts = BTreeMap::<u64, u64>::new();
        rows.iter().for_each(|key| *counts.entry(*key).or_default() += 1);
        let mut all: Vec<(u64, u64)> = counts.into_iter().collect();
        all.sort_by_key(|(key, count)| (Reverse(*count), *key));
        all.truncate(k);
        all
    }

    /// Reads until the values are known; the number of reads, and the most values that one held.
    fn reads(rows: &[u64], sample: &[u64], k: usize, limit: usize) -> Result<(usize, usize)> {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
        let n = rows.len() as u64;
        let mut selection = FrequentSelection::new(k, sample.to_vec(), n, n / 8, 17);
        let mut held = 0;
        for read in 1.. {
            let mut parts = rows.chunks(rows.len().div_ceil(3).max(1)).map(|part| {
                let memory = MemoryConsumer::new("counts").register(&pool);
                let mut counts = FrequentCells::try_new(Arc::clone(selection.wanted()), memory, limit / 6)?;
                counts.push(part);
                Ok::<_, DataFusionError>(counts)
            });
            let mut all = parts.next().unwrap()?;
            for part in parts {
                all.merge(&part?, limit / 2);
            }
            held = held.max(all.held());
            if selection.narrow(all)? {
                assert_eq!(selection.best(), expected(rows, k));
                return Ok((read, held));
            }
        }
        unreachable!()
    }

    fn rows(n: usize, key: impl Fn(&mut SmallRng) -> u64) -> Vec<u64> {
        let mut rng = SmallRng::seed_from_u64(n as u64);
        (0..n).map(|_| key(&mut rng)).collect()
    }

    fn every(rows: &[u64], step: usize) -> Vec<u64> {
        rows.iter().copied().step_by(step).collect()
    }

    #[test]
    fn frequent_values_are_proved_in_one_read_that_holds_none() {
        // 1, 2, .. with falling probability; many others once or twice.
        let table = rows(300_000, |rng| match rng.random_range(0..3) {
            0 => rng.random_range(0..1_u64 << 40),
            _ => 1 + (rng.random::<f64>().powi(4) * 50_000.0) as u64,
        });
        for k in [1, 10] {
            assert_eq!(
                reads(&table, &every(&table, 5), k, 1 << 26).unwrap(),
                (1, 0),
                "{k}"
            );
        }
    }

    #[test]
    fn values_that_all_occur_alike_are_held() {
        for table in [
            rows(60_000, |rng| rng.random_range(0..30_000)),
            (0..50_000).collect(),
        ] {
            let (read, held) = reads(&table, &every(&table, 50), 3, 1 << 26).unwrap();
            assert!(read == 1 && held > 10_000, "{read} {held}");
            let (read, _) = reads(&table, &every(&table, 50), 3, 3_000_000).unwrap();
            assert!(read > 1, "{read}");
        }
    }

    #[test]
    fn of_values_that_occur_about_as_often_few_are_held() {
        let table = rows(300_000, |rng| rng.random_range(0..30_000));
        let sample = every(&table, 15);
        for k in [1, 10] {
            let (read, held) = reads(&table, &sample, k, 1 << 26).unwrap();
            assert!(read == 2 && held < 3000, "{read} {held}");
        }
        // Every value has ten rows: no cell can be left out.
        let table: Vec<u64> = (0..300_000).map(|row| row % 30_000).collect();
        let (read, held) = reads(&table, &sample, 3, 1 << 26).unwrap();
        assert!(read == 2 && held > 10_000, "{read} {held}");
        // The sample is of another table.
        let (read, _) = reads(&rows(100_000, |rng| rng.random_range(0..50)), &sample, 3, 1 << 26).unwrap();
        assert!(read <= 2, "{read}");
    }

    #[test]
    fn a_sample_that_misleads_costs_a_read() {
        // The most frequent value is not in the sample.
        let table = rows(100_000, |rng| match rng.random_range(0..32) {
            0..4 => 1000,
            few @ 4..7 => few,
            _ => rng.random_range(0..1_u64 << 40),
        });
        let sample: Vec<u64> = (0..1000).map(|row| 4 + row % 3).collect();
        let (read, held) = reads(&table, &sample, 3, 1 << 26).unwrap();
        assert!(read == 2 && (1..1000).contains(&held), "{read} {held}");
        assert_eq!(reads(&table, &[], 4, 1 << 26).unwrap().0, 1);
        assert_eq!(reads(&[7], &[], 1, 1 << 26).unwrap(), (1, 1));
    }

    #[test]
    fn of_equal_counts_the_smaller_value_is_better() {
        let table: Vec<u64> = (0..40_000).map(|row| row % 20_000).collect();
        for sample in [every(&table, 7), vec![9; 100]] {
            reads(&table, &sample, 5, 1 << 26).unwrap();
        }
    }

    #[test]
    fn too_little_memory_is_an_error() {
        let table: Vec<u64> = (0..400_000).collect();
        let error = reads(&table, &every(&table, 50), 3, 1_600_000)
            .unwrap_err()
            .to_string();
        assert!(error.contains("bytes wanted"), "{error}");
    }
}
