//! The choice of rounds by measured costs: a pure function of the sizes.
//!
//! Costs are in nanoseconds for each element and thread, measured on a server processor of 2024. Only their ratios matter.
//!
//! | step | cost |
//! | --- | --- |
//! | sample: a random read and its share of the sort | 28 for each sampled key, on one thread |
//! | brackets of up to four ranks: compare and compact | 0.3 + 0.15 ranks + 0.08 ranks^2 |
//! | brackets of more ranks: search tree | 3 + 0.1 ranks |
//! | cells: count with oracle, then extract by oracle | 1.3, and 0.3 ms to begin and end |
//! | a candidate: copied by a shard, selected by the coordinator | 6, on one thread |

use crate::key::Width;
use crate::memory::{COLLECTED_BYTES, MemoryBudget};

/// Fewest cells that rounds can work with: those of the smallest table.
const LEAST_CELLS: usize = 5 << 10;

/// Most reads in which all keys may be collected.
pub(crate) const MOST_READS: u64 = 128;

/// Share of the data, as a divisor, that a round collects where memory has no limit.
pub(crate) const KEPT_SHARE: u64 = 16;

/// Bytes for a cell on each thread: its counter, its share of the cell function, and its count in a reply.
const CELL_BYTES: usize = 32;

/// Bytes for everything else on each thread.
const THREAD_BYTES: usize = 640 << 10;

/// Bytes for everything else on each thread where all keys are collected at once.
const GATHER_BYTES: usize = 384 << 10;

/// Memory for the rounds of a selection, and what they can do in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) budget: MemoryBudget,
    pub(crate) threads: usize,
    /// Bytes to reserve.
    pub(crate) bytes: usize,
}

impl Plan {
    /// Plans for `n` values on `threads` threads, the best first. The next ones collect fewer keys at once, then have fewer cells and
    /// threads. `all`: all keys are to be collected, not only those around ranks.
    pub(crate) fn wanted(n: u64, width: Width, threads: usize, all: bool) -> impl Iterator<Item = Plan> {
        // Fewer values are not worth a thread.
        let threads = threads.min(n.div_ceil(1 << 16) as usize).max(1);
        // Keys that do not fit at once are collected in several reads, at most this many.
        let (mut keys, least) = if all {
            (n, n / MOST_READS)
        } else {
            ((n / KEPT_SHARE).max(1 << 17).min(n), 0)
        };
        (0..64_u32).map(move |step| {
            let smaller = step.saturating_sub(6) / 3;
            let budget = MemoryBudget {
                cells: (table_cells(n) + TABLE_EXTRA)
                    .unbounded_shr(smaller)
                    .max(LEAST_CELLS),
                sample: CELLS_SAMPLE.unbounded_shr(smaller).max(1 << 10).min(n),
                keys,
            };
            keys = (keys / 4 * 3).max(least);
            let threads = threads.unbounded_shr(step.saturating_sub(8) / 4).max(1);
            let each = if n <= GATHER {
                GATHER_BYTES
            } else {
                budget.cells * CELL_BYTES + THREAD_BYTES
            };
            let collected = (budget.keys + budget.sample) as usize;
            let bytes = threads * each + collected * width.bytes() * COLLECTED_BYTES;
            Plan {
                budget,
                threads,
                bytes,
            }
        })
    }
}

/// The variants of `sample_select`: how it counts and collects keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SampleSelectVariant {
    /// Collects all keys: for small inputs.
    Gather,
    /// Takes narrow brackets from a sample; one read counts and extracts.
    Brackets,
    /// Counts all cells of a sampled cell function and writes down each key's cell, then extracts the cells that hold a target rank.
    #[default]
    Cells,
    /// Counts all cells of a sampled cell function, then parts of the cells that hold a target rank, until few keys are left to
    /// extract. For devices, where a read is cheap, and a key that leaves the device is expensive.
    Counts,
}

/// A variant of `sample_select`, and the size of its sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The variant.
    pub variant: SampleSelectVariant,
    /// Number of keys to sample.
    pub sample: u64,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            variant: SampleSelectVariant::Cells,
            sample: CELLS_SAMPLE,
        }
    }
}

/// Values up to which all keys are collected and selected from at once: a round costs as much as sorting them.
pub const GATHER: u64 = 1 << 14;
/// Keys in the sample for the cell table of a large input.
const CELLS_SAMPLE: u64 = 1 << 16;
/// Keys in the samples that brackets may be made from.
const BRACKET_SAMPLES: [u64; 3] = [1 << 12, 1 << 14, 1 << 16];

/// Most cells of the table, beside one for each of its entries: as many as the oracle can tell apart. Counting into them costs little
/// more than into a tenth as many, and leaves a tenth of the candidates.
const MOST_CELLS: u64 = 60 << 10;

/// Most cells of a table beside those asked for: one for each entry, and more.
pub(crate) const TABLE_EXTRA: usize = 4 << 10;

/// Number of cells of a table over `n` values.
pub fn table_cells(n: u64) -> usize {
    (n / 64).clamp(1024, MOST_CELLS) as usize
}

/// The cheapest variant that `budget` permits, for ranks (ascending) among `n` values on `threads` threads.
pub fn choose(n: u64, ranks: &[u64], threads: usize, budget: &MemoryBudget) -> Choice {
    if n <= GATHER.min(budget.keys) {
        return Choice {
            variant: SampleSelectVariant::Gather,
            sample: 0,
        };
    }
    let each = n as f64 / threads.max(1) as f64;
    let count = ranks.len() as f64;
    let cost = |sample: u64, fixed: f64, pass: f64, share: f64| {
        fixed + 28.0 * sample as f64 + pass * each + 6.0 * share * n as f64
    };
    let sample = CELLS_SAMPLE.min(n / 8).min(budget.sample);
    let share = (1.3 * count / table_cells(n) as f64).min(1.0);
    let mut best = (
        cost(sample, 3e5, 1.3, share),
        Choice {
            variant: SampleSelectVariant::Cells,
            sample,
        },
    );
    // A quarter more than the expected share, to be safe.
    let fits = |sample: u64| brackets_share(n, ranks, sample) * n as f64 * 1.25 <= budget.keys as f64;
    let samples = BRACKET_SAMPLES.into_iter().filter(|sample| *sample < n / 4);
    for sample in samples.filter(|sample| *sample <= budget.sample && fits(*sample)) {
        let pass = if ranks.len() <= 4 {
            0.3 + 0.15 * count + 0.08 * count * count
        } else {
            3.0 + 0.1 * count
        };
        let cost = cost(sample, 0.0, pass, brackets_share(n, ranks, sample));
        if cost < best.0 {
            let variant = SampleSelectVariant::Brackets;
            best = (cost, Choice { variant, sample });
        }
    }
    best.1
}

/// The share of the data, from 0 to 1, that lies inside brackets of [`SIGMAS`] to either side, cut from a sample of this many keys. Two ranks
/// that follow each other, as those around an interpolated answer, have one bracket.
pub(crate) fn brackets_share(n: u64, ranks: &[u64], sample: u64) -> f64 {
    let follows = |at: usize| at > 0 && ranks[at] - ranks[at - 1] <= 1;
    let width = |rank: &u64| {
        let q = *rank as f64 / n as f64;
        (2.0 * SIGMAS * (q * (1.0 - q) / sample as f64).sqrt()).max(2.0 / sample as f64)
    };
    let counted = ranks.iter().enumerate().filter(|(at, _)| !follows(*at));
    counted.map(|(_, rank)| width(rank)).sum::<f64>().min(1.0)
}

/// Half the width of a bracket, in standard deviations of a sample's order statistic: one bracket in 16 000 misses its rank.
pub const SIGMAS: f64 = 4.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn percentiles(n: u64, count: u64) -> Vec<u64> {
        (1..=count).map(|i| i * n / (count + 1)).collect()
    }

    #[test]
    fn few_ranks_take_brackets_and_many_take_cells() {
        let n = 30_000_000;
        assert_eq!(
            choose(n, &[n / 2], 2, &MemoryBudget::UNLIMITED).variant,
            SampleSelectVariant::Brackets
        );
        assert_eq!(
            choose(n, &percentiles(n, 99), 2, &MemoryBudget::UNLIMITED).variant,
            SampleSelectVariant::Cells
        );
        assert_eq!(
            choose(n, &percentiles(n, 999), 2, &MemoryBudget::UNLIMITED).variant,
            SampleSelectVariant::Cells
        );
        assert_eq!(
            choose(GATHER, &[1], 2, &MemoryBudget::UNLIMITED).variant,
            SampleSelectVariant::Gather
        );
    }

    #[test]
    fn a_sample_is_a_small_part_of_the_data() {
        for n in [20_000, 100_000, 1_000_000, 1 << 40] {
            for count in [1, 2, 5, 99, 999] {
                let choice = choose(n, &percentiles(n, count), 4, &MemoryBudget::UNLIMITED);
                assert!(
                    choice.variant != SampleSelectVariant::Brackets || choice.sample < n / 4,
                    "{n} {count} {choice:?}"
                );
            }
        }
    }

    #[test]
    fn brackets_that_do_not_fit_are_not_asked_for() {
        let n = 100_000_000;
        let budget = |keys| MemoryBudget {
            keys,
            ..MemoryBudget::UNLIMITED
        };
        assert_eq!(
            choose(n, &[n / 2], 2, &budget(n / 16)).variant,
            SampleSelectVariant::Brackets
        );
        assert_eq!(
            choose(n, &[n / 2], 2, &budget(n / 200)).variant,
            SampleSelectVariant::Cells
        );
        assert_eq!(
            choose(GATHER, &[1], 2, &budget(GATHER - 1)).variant,
            SampleSelectVariant::Cells
        );
        let small = MemoryBudget {
            sample: 5000,
            ..MemoryBudget::UNLIMITED
        };
        assert_eq!(choose(n, &percentiles(n, 99), 2, &small).sample, 5000);
    }

    #[test]
    fn less_and_less_is_wanted() {
        for n in [0, 1, 1000, 1 << 20, 1 << 40] {
            let plans: Vec<Plan> = Plan::wanted(n, Width::W64, 8, false).collect();
            assert!(
                plans.windows(2).all(|pair| pair[0].bytes >= pair[1].bytes),
                "{plans:?}"
            );
            let last = plans[plans.len() - 1];
            assert!(last.bytes < 1 << 20 && last.threads == 1, "{n}: {last:?}");
        }
    }
}
