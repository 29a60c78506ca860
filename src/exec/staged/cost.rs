//! The strategy and the number of reads that `auto` takes where every round is a stage: a pure function of sizes.
//!
//! A plan costs, in seconds:
//!
//! ```text
//! reads * (values * 10 ns + the input's own work) / tasks     each read executes the input anew
//! + stages * 0.05 s                                           two a read, one a merge level, and the input's own
//! + bytes / 500 MB/s                                          into the tasks that merge, one after the other
//! + candidates * 20 ns                                        collected and selected from by one task
//! ```
//! The input's work is 5 ns for each row of its leaves, the time to parse their text (`SourceSize`), and 50 ns for each row that
//! enters an operator which gathers or joins rows. Such operators are joins, groups, sorts, and staged quantiles inside the input,
//! whose reads count as leaves and stages of it. Each such operator is also a stage. Rows of files that keep no count of rows follow
//! from their bytes. A source that tells neither is assumed to have 1e8 rows, and its groups are read once. `tasks` is the number of
//! partitions, 64 at most: only the scheduler knows how many run at once. The figures were measured on two cores (see
//! `benches/results`); only their ratios matter.
//!
//! | strategy | reads | bytes | candidates |
//! | --- | --- | --- | --- |
//! | `gk_select` | 2 | 4.5 / eps a reply | 1.6 eps n a rank |
//! | `distributed_bms` | 3 | 2 a bucket of a reply | 2 n / 8192 a rank |
//! | `dibms`, 2 or 3 counts | 4 or 5 | the same for each count | the same, divided again by each later count |
//!
//! `gk_select` has the fewest reads, and wins wherever reads cost most. Other strategies win where its candidates cost most. That is
//! so with thousands of partitions and many ranks, where summaries are coarse and a read is short; and where the candidates are more
//! than one task should hold, 2^26 keys, which takes about 1e12 values times ranks, as for 1000 quantiles of 1e9 values. Then the
//! cheapest strategy within that limit is taken, or the one that comes nearest to it.
//!
//! **Groups** are read twice if that costs less than the exchange of all keys after one read ([`GroupWorkload::is_better_read_twice`]):
//!
//! ```text
//! values * 9 bytes / 500 MB/s  >  (values * 10 ns + the input's own work) / tasks + stages * 0.05 s
//! ```
//! with at most 4 tasks; `stages` is two, and those of the input. So a scan of 7 million values or more is read again, and a join
//! hardly ever. Groups are also read once where there may be more than brackets are meant for, by the least and the greatest value of
//! their columns, and where there are more partitions than one task should merge the counts of.

use datafusion::common::Result;

use super::groups::{MOST_GROUPS, MOST_RANKS};
use super::merge::{FAN_IN, merge_levels};
use super::rounds::{COUNTS, Rounds, UnrolledStrategy, buckets};
use super::workload::{GroupWorkload, Workload};
use crate::config::StrategyName;
use crate::select::bms::BUCKETS;
use crate::select::gk_select::{BETWEEN, GkSelect, SUMMARY_BYTES};

/// Most tasks that are assumed to run at once.
const TASKS: usize = 64;
/// Most keys that one task should hold.
const MOST_CANDIDATES: f64 = (1_u64 << 26) as f64;

/// Seconds to read a value and answer a request about it.
const VALUE_SECONDS: f64 = 10e-9;
/// Seconds to start a stage.
const STAGE_SECONDS: f64 = 0.05;
/// Seconds to send a byte.
const BYTE_SECONDS: f64 = 2e-9;
/// Seconds to collect a candidate and select from it.
const CANDIDATE_SECONDS: f64 = 20e-9;
/// Bytes of a candidate's key in a message.
const KEY_BYTES: f64 = 8.0;

/// Most tasks that are assumed to read groups at once: the stages of groups wait for the slowest task.
const GROUP_TASKS: usize = 4;
/// Bytes of a key with its group in an exchange.
const EXCHANGED_BYTES: f64 = 9.0;

impl GroupWorkload {
    /// Whether a second read costs less than the exchange of all keys.
    pub(crate) fn is_better_read_twice(&self) -> bool {
        let (groups, workload) = (self.groups.unwrap_or(1), &self.workload);
        let has_brackets = groups <= MOST_GROUPS as u64
            && groups.saturating_mul(workload.ranks.max(1) as u64) <= MOST_RANKS as u64
            && workload.partitions <= FAN_IN;
        let (n, tasks) = (
            workload.values as f64,
            workload.partitions.clamp(1, GROUP_TASKS) as f64,
        );
        let read = (n * VALUE_SECONDS + workload.input.seconds) / tasks;
        let stages = (2 + workload.input.stages) as f64 * STAGE_SECONDS;
        has_brackets && !workload.input.is_unknown && n * EXCHANGED_BYTES * BYTE_SECONDS > read + stages
    }
}

/// The expected cost of a strategy.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    /// Keys that one task collects.
    candidates: f64,
    seconds: f64,
}

/// The rounds of a strategy. SampleSelect's brackets may miss a rank, which takes another round: `gk_select` replaces it.
///
/// # Errors
/// None for numbers that can occur.
pub(crate) fn rounds(name: StrategyName, workload: &Workload) -> Result<Rounds> {
    let strategy = match name {
        StrategyName::Auto => cheapest(workload)?,
        StrategyName::DistributedBms => UnrolledStrategy::distributed_bms(workload.partitions),
        StrategyName::Dibms => UnrolledStrategy::dibms(workload.partitions, COUNTS),
        StrategyName::SampleSelect | StrategyName::GkSelect => gk_select(workload)?,
    };
    let auto = name == StrategyName::Auto;
    Ok(Rounds { strategy, auto })
}

fn gk_select(workload: &Workload) -> Result<UnrolledStrategy> {
    let (n, partitions, ranks) = (workload.values, workload.partitions, workload.ranks);
    Ok(UnrolledStrategy::GkSelect(GkSelect::try_new(
        n,
        partitions,
        ranks,
        u64::MAX,
    )?))
}

/// The strategy that `auto` takes for a workload.
///
/// # Errors
/// None for numbers that can occur.
fn cheapest(workload: &Workload) -> Result<UnrolledStrategy> {
    let others = [
        UnrolledStrategy::distributed_bms(workload.partitions),
        UnrolledStrategy::dibms(workload.partitions, COUNTS - 1),
        UnrolledStrategy::dibms(workload.partitions, COUNTS),
    ];
    let mut best = gk_select(workload)?;
    let mut least = estimate(&best, workload);
    for steps in others {
        let own = estimate(&steps, workload);
        let (fits, fitted) = (
            own.candidates <= MOST_CANDIDATES,
            least.candidates <= MOST_CANDIDATES,
        );
        let is_better = match (fits, fitted) {
            (true, true) => own.seconds < least.seconds,
            (false, false) => own.candidates < least.candidates,
            (fits, _) => fits,
        };
        if is_better {
            (best, least) = (steps, own);
        }
    }
    Ok(best)
}

fn estimate(steps: &UnrolledStrategy, workload: &Workload) -> Estimate {
    let (n, ranks) = (workload.values as f64, workload.ranks.max(1));
    // Bytes of a partition's replies that add up, the number of reads with such replies, and the keys to collect.
    let (reply, summed, candidates) = match steps {
        UnrolledStrategy::GkSelect(strategy) => {
            let (numerator, denominator) = strategy.epsilon().fraction();
            let eps = numerator as f64 / denominator as f64;
            (SUMMARY_BYTES / eps, 1, (BETWEEN * eps * n * ranks as f64).min(n))
        }
        UnrolledStrategy::DistributedBms { .. } => counted([BUCKETS].into_iter(), n, ranks as f64),
        UnrolledStrategy::Dibms { counts, .. } => {
            let sizes = (0..*counts).map(|count| buckets(count, *counts, ranks));
            counted(sizes, n, ranks as f64)
        }
    };
    let reads = steps.reads();
    let tasks = workload.partitions.clamp(1, TASKS) as f64;
    let read = (n * VALUE_SECONDS + workload.input.seconds) / tasks;
    let levels = merge_levels(workload.partitions).count();
    let stages = reads * (2 + workload.input.stages) + summed * levels;
    // Replies that one task receives, at each level of the tree.
    let replies = workload.partitions.clamp(1, FAN_IN) * (1 + levels);
    let bytes = replies as f64 * reply + candidates * KEY_BYTES;
    Estimate {
        candidates,
        seconds: reads as f64 * read
            + stages as f64 * STAGE_SECONDS
            + bytes * BYTE_SECONDS
            + candidates * CANDIDATE_SECONDS,
    }
}

/// For counts with these numbers of buckets: the bytes of a partition's replies, the number of counts, and the candidates that they
/// leave. Each rank leaves twice the mean of a bucket, as buckets are never filled evenly.
fn counted(sizes: impl Iterator<Item = u32>, n: f64, ranks: f64) -> (f64, usize, f64) {
    sizes.fold((0.0, 0, n), |(bytes, counts, left), buckets| {
        let buckets = f64::from(buckets);
        let inside = (2.0 * ranks * left / buckets).min(left);
        (bytes + 2.0 * buckets, counts + 1, inside)
    })
}

#[cfg(test)]
mod tests {
    use super::super::workload::{GATHERED_SECONDS, InputCost, ROW_SECONDS};
    use super::*;

    fn workload(values: u64, partitions: usize, ranks: usize) -> Workload {
        let input = InputCost {
            seconds: values as f64 * ROW_SECONDS,
            ..InputCost::default()
        };
        Workload {
            values,
            partitions,
            ranks,
            input,
        }
    }

    fn taken(workload: &Workload) -> String {
        match cheapest(workload).unwrap() {
            UnrolledStrategy::GkSelect(_) => "gk_select".to_string(),
            UnrolledStrategy::DistributedBms { .. } => "distributed_bms".to_string(),
            UnrolledStrategy::Dibms { counts, .. } => format!("dibms {counts}"),
        }
    }

    #[test]
    fn the_fewest_reads_win_while_candidates_are_few() {
        for values in [0, 1, 1000, 1_000_000, 100_000_000, 10_000_000_000] {
            for partitions in [1, 16, 300] {
                for ranks in [0, 1, 99] {
                    let workload = workload(values, partitions, ranks);
                    assert_eq!(taken(&workload), "gk_select", "{workload:?}");
                }
            }
        }
    }

    #[test]
    fn coarse_summaries_of_many_partitions_cost_more_than_a_read() {
        assert_eq!(taken(&workload(100_000_000, 10_000, 99)), "distributed_bms");
        assert_eq!(taken(&workload(100_000_000, 10_000, 1)), "gk_select");
    }

    #[test]
    fn candidates_that_one_task_should_not_hold_take_more_reads() {
        // 8000 ranks of 1e9 values: 5e8 candidates of gk_select, all values of one count.
        for partitions in [16, 300, 4000] {
            let many = workload(1_000_000_000, partitions, 8000);
            assert!(taken(&many).starts_with("dibms"), "{}", taken(&many));
            let gk = estimate(&gk_select(&many).unwrap(), &many);
            assert!(gk.candidates > MOST_CANDIDATES);
        }
        // Two counts suffice for 100 ranks, and are a read less than three.
        let many = workload(15_000_000_000, 64, 100);
        assert_eq!(taken(&many), "dibms 2");
        // Where nothing fits, what comes nearest.
        let most = workload(u64::from(u32::MAX) * 1_000_000, 64, 8000);
        assert_eq!(taken(&most), "dibms 3");
    }

    #[test]
    fn a_dear_input_makes_reads_dearer_and_counts_none_of_them_cheaper() {
        let cheap = workload(1_000_000, 16, 99);
        let dear = Workload {
            input: InputCost {
                seconds: 100.0,
                stages: 3,
                is_unknown: false,
            },
            ..cheap
        };
        let seconds = |steps: &UnrolledStrategy, workload: &Workload| estimate(steps, workload).seconds;
        let (two, five) = (
            gk_select(&dear).unwrap(),
            UnrolledStrategy::dibms(dear.partitions, 3),
        );
        let more = |steps: &UnrolledStrategy| seconds(steps, &dear) - seconds(steps, &cheap);
        // Of the input's 100 s on 16 tasks and its three stages of 50 ms, for each read.
        let read = 100.0 / 16.0 + 3.0 * STAGE_SECONDS - 1e6 * ROW_SECONDS / 16.0;
        assert!((more(&two) - 2.0 * read).abs() < 1e-9);
        assert!((more(&five) - 5.0 * read).abs() < 1e-9);
        assert_eq!(taken(&dear), "gk_select");
    }

    #[test]
    fn groups_are_read_twice_where_an_exchange_costs_more() {
        let groups = |values: u64, groups: Option<u64>, input: InputCost| GroupWorkload {
            workload: Workload {
                values,
                partitions: 16,
                input,
                ranks: 3,
            },
            groups,
        };
        let scan = |values: u64| InputCost {
            seconds: values as f64 * ROW_SECONDS,
            ..InputCost::default()
        };
        let is_staged = |values, most| groups(values, most, scan(values)).is_better_read_twice();
        assert!(is_staged(30_000_000, Some(1000)) && is_staged(30_000_000, None));
        assert!(!is_staged(1_000_000, Some(1000)));
        assert!(!is_staged(30_000_000, Some(70_000)));
        let join = InputCost {
            seconds: 6e7 * (ROW_SECONDS + GATHERED_SECONDS),
            stages: 1,
            is_unknown: false,
        };
        assert!(!groups(30_000_000, Some(1000), join).is_better_read_twice());
        let unknown = InputCost {
            is_unknown: true,
            ..scan(30_000_000)
        };
        assert!(!groups(30_000_000, Some(1000), unknown).is_better_read_twice());
        // 50 bytes of CSV a row.
        let text = InputCost {
            seconds: 3e7 * (ROW_SECONDS + 50.0 * 4e-9),
            ..InputCost::default()
        };
        assert!(!groups(30_000_000, None, text).is_better_read_twice());
        let mut many = groups(30_000_000, Some(1000), scan(30_000_000));
        many.workload.partitions = FAN_IN + 1;
        assert!(!many.is_better_read_twice());
        many = groups(30_000_000, Some(1000), scan(30_000_000));
        many.workload.ranks = 500;
        assert!(!many.is_better_read_twice());
    }

    #[test]
    fn counts_leave_few_candidates_for_any_number_of_values() {
        for (ranks, share) in [(1, 4e-8), (9, 3e-5), (99, 3e-4), (999, 4e-3)] {
            for values in [10_000_000, 1_000_000_000] {
                let workload = workload(values, 16, ranks);
                let left = estimate(&UnrolledStrategy::dibms(workload.partitions, COUNTS), &workload);
                assert!(left.candidates < share * values as f64, "{ranks}: {left:?}");
            }
        }
    }
}
