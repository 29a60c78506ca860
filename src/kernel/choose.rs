//! The one place where measured costs decide which rounds are asked: a pure function of the sizes.
//!
//! Costs in nanoseconds an element, measured on one core of a server processor of 2024; only their ratios matter.
//!
//! | step | cost |
//! | --- | --- |
//! | sample: a random read and its share of the sort | 80 a sampled key |
//! | brackets: compare and compact | 0.3, and 0.25 an edge |
//! | cells: count with oracle, then extract by oracle | 2.6 |
//! | a candidate: copied by a lane, selected by the coordinator | 12, of which 10 on one thread |

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
/// Sample for the cell table: enough for 8192 cells of even mass.
const CELLS_SAMPLE: u64 = 1 << 16;
/// Samples that brackets may be made of.
const BRACKET_SAMPLES: [u64; 3] = [1 << 14, 1 << 16, 1 << 18];

/// The cheapest form for ranks (ascending) among `n` values on `threads` threads.
pub fn choose(n: u64, ranks: &[u64], threads: usize) -> Choice {
    if n <= GATHER {
        return Choice {
            form: Form::Gather,
            sample: 0,
        };
    }
    let threads = threads.max(1) as f64;
    let cells = 80.0 * CELLS_SAMPLE as f64 + 2.6 * n as f64 / threads + 12.0 * cells_share(ranks) * n as f64;
    let mut best = (cells, Choice::default());
    for sample in BRACKET_SAMPLES.into_iter().filter(|sample| *sample < n / 4) {
        let pass = 0.3 + 0.25 * 2.0 * ranks.len() as f64;
        let share = brackets_share(n, ranks, sample);
        let cost = 80.0 * sample as f64 + n as f64 * (pass / threads + share * (10.0 + 2.0 / threads));
        if cost < best.0 {
            best = (
                cost,
                Choice {
                    form: Form::Brackets,
                    sample,
                },
            );
        }
    }
    best.1
}

/// Share of the data in the cells of the ranks: one of about 8192 each.
fn cells_share(ranks: &[u64]) -> f64 {
    (1.2 * ranks.len() as f64 / 8192.0).min(1.0)
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
        assert_eq!(choose(n, &[n / 2], 2).form, Form::Brackets);
        assert_eq!(choose(n, &percentiles(n, 99), 2).form, Form::Cells);
        assert_eq!(choose(n, &percentiles(n, 999), 2).form, Form::Cells);
        assert_eq!(choose(GATHER, &[1], 2).form, Form::Gather);
    }

    #[test]
    fn a_sample_is_a_small_part_of_the_data() {
        for n in [20_000, 100_000, 1_000_000, 1 << 40] {
            for count in [1, 2, 5, 99, 999] {
                let choice = choose(n, &percentiles(n, count), 4);
                assert!(
                    choice.form != Form::Brackets || choice.sample < n / 4,
                    "{n} {count} {choice:?}"
                );
            }
        }
    }
}
