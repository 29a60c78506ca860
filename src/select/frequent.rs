//! The most frequent values of a column, by few reads of its rows, of which few values are held.
//!
//! ```text
//! sample ─> a candidate for each cell ─> read: rows of the candidate, and of the others in its cell ─┬─ no cell has as many others as
//!                                              ^                                                      │  the k-th candidate has rows: done
//!                                              └──── all values of the cells that have ──────────────┘
//! ```
//! A cell has the values whose hashes begin alike. Whatever the sample says, the counts prove that no other value is among the most frequent.

use std::cmp::Reverse;
use std::sync::Arc;

use datafusion::common::{Result, resources_err};

use crate::kernel::cpu::frequent_cells::{CELLS, CellRows, FrequentCells, Wanted, cell_of};
use crate::kernel::cpu::groups::group_key::GroupKey;

/// Most values that are looked for: each cell has one candidate.
pub(crate) const MOST_VALUES: usize = CELLS / 4;

/// Reads after which too little memory is an error.
const MOST_READS: usize = 32;

/// A selection of the most frequent values, in reads of all rows: the best of those that were counted, and the cells that the next read counts.
#[derive(Debug)]
pub(crate) struct FrequentSelection<K> {
    k: usize,
    wanted: Arc<Wanted<K>>,
    /// Rows of each cell, once they were read.
    rows: Vec<CellRows>,
    /// The most frequent of the values that were counted, best first.
    best: Vec<(K, u64)>,
    /// Cells all of whose values were counted.
    known: Vec<bool>,
    /// Rows of the cells all of whose values the next read counts, the candidates' left out; as estimated before the first one.
    kept_rows: u64,
    reads: usize,
}

impl<K: GroupKey> FrequentSelection<K> {
    /// A selection of the `k` most frequent values, of equal counts the smaller ones, of about `rows` rows, of which `sample` is a sample.
    pub(crate) fn new(k: usize, mut sample: Vec<K>, rows: u64) -> Self {
        sample.sort_unstable();
        let mut candidates = vec![(K::default(), 0); CELLS];
        let mut sampled = vec![0_usize; CELLS];
        for run in sample.chunk_by(|a, b| a == b) {
            let cell = cell_of(run[0]);
            sampled[cell] += run.len();
            if run.len() > candidates[cell].1 {
                candidates[cell] = (run[0], run.len());
            }
        }
        let mut counts: Vec<usize> = candidates.iter().map(|(_, count)| *count).collect();
        counts.sort_unstable_by_key(|count| Reverse(*count));
        // A count of a sample is off by its square root, or twice that.
        let least = counts
            .get(k - 1)
            .map_or(0.0, |count| *count as f64 - 2.0 * (*count as f64).sqrt());
        let may_have = |others: usize| others as f64 + 2.0 * (others as f64).sqrt() + 1.0;
        let scale = rows as f64 / sample.len().max(1) as f64;
        // Without a sample, each cell has any number of values.
        let others: Vec<usize> = candidates
            .iter()
            .zip(&sampled)
            .map(|((_, own), all)| all - own)
            .collect();
        let keep: Vec<bool> = others
            .iter()
            .map(|others| least <= 0.0 || may_have(*others) >= least)
            .collect();
        let kept: usize = others
            .iter()
            .zip(&keep)
            .filter(|(_, keep)| **keep)
            .map(|(others, _)| others)
            .sum();
        Self {
            k,
            kept_rows: (kept as f64 * scale) as u64,
            wanted: Arc::new(Wanted {
                keep,
                candidates: candidates.into_iter().map(|(key, _)| key).collect(),
            }),
            rows: Vec::new(),
            best: Vec::new(),
            known: vec![false; CELLS],
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
    pub(crate) fn narrow(&mut self, counts: &FrequentCells<K>) -> Result<bool> {
        self.reads += 1;
        if self.rows.is_empty() {
            self.rows.clone_from(&counts.rows);
            for cell in 0..CELLS {
                self.add(self.wanted.candidates[cell], self.rows[cell].own);
            }
        }
        counts.kept().for_each(|(key, count)| self.add(key, count));
        self.cut();
        let least = self.best.get(self.k - 1).map_or(0, |(_, count)| *count);
        let mut now_known = 0;
        for (cell, known) in self.known.iter_mut().enumerate() {
            if counts.is_known(cell) && !*known {
                *known = true;
                now_known += 1;
            }
        }
        let may_have_more = |(rows, known): (&CellRows, &bool)| !known && rows.others >= least.max(1);
        let keep: Vec<bool> = self.rows.iter().zip(&self.known).map(may_have_more).collect();
        let open = keep.iter().filter(|keep| **keep).count();
        let kept = self.rows.iter().zip(&keep).filter(|(_, keep)| **keep);
        self.kept_rows = kept.map(|(rows, _)| rows.others).sum();
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
        let mut selection = FrequentSelection::new(k, sample.to_vec(), rows.len() as u64);
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
            if selection.narrow(&all)? {
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
