//! The one place where measured costs decide which rounds are asked: a pure function of the sizes.
//!
//! Costs in nanoseconds an element and thread, measured on a server processor of 2024; only their ratios matter.
//!
//! | step | cost |
//! | --- | --- |
//! | sample: a random read and its share of the sort | 28 a sampled key, on one thread |
//! | brackets of up to four ranks: compare and compact | 0.3 + 0.15 ranks + 0.08 ranks^2 |
//! | brackets of more ranks: search tree | 3 + 0.1 ranks |
//! | cells: count with oracle, then extract by oracle | 1.3, and 0.3 ms to begin and end |
//! | a candidate: copied by a shard, selected by the coordinator | 6, on one thread |

use crate::key::Width;
use crate::memory::{COLLECTED_BYTES, MemoryBudget};

/// Cells that rounds can do with: those of the smallest table.
const LEAST_CELLS: usize = 5 << 10;

/// Most reads in which all keys are collected.
pub(crate) const MOST_READS: u64 = 128;

/// Memory for a cell on each thread: what counts it, tells it apart from others and carries its count.
const CELL_BYTES: usize = 32;

/// Memory for everything else on each thread.
const THREAD_BYTES: usize = 640 << 10;

/// Memory for everything else where all is collected at once.
const GATHER_BYTES: usize = 384 << 10;

/// Memory for rounds, and what can be done with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) budget: MemoryBudget,
    pub(crate) threads: usize,
    /// To be reserved.
    pub(crate) bytes: usize,
}

impl Plan {
    /// What is wanted for `n` values on `threads` threads, best first: first fewer keys at once, then fewer cells and
    /// threads. `all`: the keys are wanted all at once, not only those around ranks.
    pub(crate) fn wanted(n: u64, width: Width, threads: usize, all: bool) -> impl Iterator<Item = Plan> {
        // A thread for fewer values is not worth it.
        let threads = threads.min(n.div_ceil(1 << 16) as usize).max(1);
        // All keys are collected in as many reads as they do not fit: so many reads are the limit.
        let (mut keys, least) = match all {
            true => (n, n / MOST_READS),
            false => ((n / 16).max(1 << 17).min(n), 0),
        };
        (0..64_u32).map(move |step| {
            let smaller = step.saturating_sub(6) / 3;
            let budget = MemoryBudget {
                cells: (table_cells(n) + (4 << 10))
                    .unbounded_shr(smaller)
                    .max(LEAST_CELLS),
                sample: CELLS_SAMPLE.unbounded_shr(smaller).max(1 << 10).min(n),
                keys,
            };
            keys = (keys / 4 * 3).max(least);
            let threads = threads.unbounded_shr(step.saturating_sub(8) / 4).max(1);
            let each = match n <= GATHER {
                true => GATHER_BYTES,
                false => budget.cells * CELL_BYTES + THREAD_BYTES,
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

/// How `sample_select` goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Collect everything: small inputs.
    Gather,
    /// Narrow brackets from a sample; one read counts and extracts.
    Brackets,
    /// Count all cells of a sampled cell function and write down each key's cell, then extract the wanted ones.
    #[default]
    Cells,
    /// Count all cells of a sampled cell function, then parts of those that hold a rank, until little is left to extract: for
    /// devices, to which a read is cheap, and a key that leaves them dear.
    Counts,
}

/// A form and the size of its sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The form.
    pub form: Form,
    /// Keys to sample.
    pub sample: u64,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            form: Form::Cells,
            sample: CELLS_SAMPLE,
        }
    }
}

/// Inputs up to this size are collected and selected at once: a round costs as much as sorting them.
pub const GATHER: u64 = 1 << 14;
/// Sample for the cell table of a large input.
const CELLS_SAMPLE: u64 = 1 << 16;
/// Samples that brackets may be made of.
const BRACKET_SAMPLES: [u64; 3] = [1 << 12, 1 << 14, 1 << 16];

/// Most cells of the table, beside one for each of its entries: as many as the oracle can tell apart. Counting into
/// them costs little more than into a tenth of them, and they leave a tenth of the candidates.
const MOST_CELLS: u64 = 60 << 10;

/// Cells for a table over `n` values.
pub fn table_cells(n: u64) -> usize {
    (n / 64).clamp(1024, MOST_CELLS) as usize
}

/// The cheapest form for ranks (ascending) among `n` values on `threads` threads that `budget` permits.
pub fn choose(n: u64, ranks: &[u64], threads: usize, budget: &MemoryBudget) -> Choice {
    if n <= GATHER.min(budget.keys) {
        return Choice {
            form: Form::Gather,
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
            form: Form::Cells,
            sample,
        },
    );
    // With a quarter to spare: a share that is only expected.
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
            let form = Form::Brackets;
            best = (cost, Choice { form, sample });
        }
    }
    best.1
}

/// Share of the data inside brackets of [`SIGMAS`] on either side, cut from a sample.
fn brackets_share(n: u64, ranks: &[u64], sample: u64) -> f64 {
    let width = |rank: &u64| {
        let q = *rank as f64 / n as f64;
        (2.0 * SIGMAS * (q * (1.0 - q) / sample as f64).sqrt()).max(2.0 / sample as f64)
    };
    ranks.iter().map(width).sum::<f64>().min(1.0)
}

/// Half-width of a bracket in standard deviations of a sample's order statistic: one miss in 16 000.
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
            choose(n, &[n / 2], 2, &MemoryBudget::UNLIMITED).form,
            Form::Brackets
        );
        assert_eq!(
            choose(n, &percentiles(n, 99), 2, &MemoryBudget::UNLIMITED).form,
            Form::Cells
        );
        assert_eq!(
            choose(n, &percentiles(n, 999), 2, &MemoryBudget::UNLIMITED).form,
            Form::Cells
        );
        assert_eq!(
            choose(GATHER, &[1], 2, &MemoryBudget::UNLIMITED).form,
            Form::Gather
        );
    }

    #[test]
    fn a_sample_is_a_small_part_of_the_data() {
        for n in [20_000, 100_000, 1_000_000, 1 << 40] {
            for count in [1, 2, 5, 99, 999] {
                let choice = choose(n, &percentiles(n, count), 4, &MemoryBudget::UNLIMITED);
                assert!(
                    choice.form != Form::Brackets || choice.sample < n / 4,
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
        assert_eq!(choose(n, &[n / 2], 2, &budget(n / 16)).form, Form::Brackets);
        assert_eq!(choose(n, &[n / 2], 2, &budget(n / 200)).form, Form::Cells);
        assert_eq!(choose(GATHER, &[1], 2, &budget(GATHER - 1)).form, Form::Cells);
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
