//! Which strategy `auto` takes where every round is a stage, and with how many reads: a pure function of sizes.
//!
//! A plan costs, in seconds,
//!
//! ```text
//! reads * (values * 10 ns + the input's own work) / tasks     each read executes the input anew
//! + stages * 0.05 s                                           two a read, one a merge level, and the input's own
//! + bytes / 500 MB/s                                          into the tasks that merge, one after the other
//! + candidates * 20 ns                                        collected and selected from by one task
//! ```
//! The input's work is 5 ns for each row of its leaves, what it takes to parse their text ([`SourceSize`]), and 50 ns for each row
//! into an operator that gathers or joins rows (so joins, groups, sorts, and calls of quantiles inside it, whose reads are leaves
//! and stages of it again); such an operator is also a stage. Rows of files that keep no count of them follow from their bytes; a
//! source that tells neither is taken to have 1e8 rows, and its groups are read once. `tasks` are the partitions, 64 at most: how
//! many run at once only the scheduler knows. Figures measured on two cores, see `benches/results`; only their ratios matter.
//!
//! | strategy | reads | bytes | candidates |
//! | --- | --- | --- | --- |
//! | `gk_select` | 2 | 4.5 / eps a reply | 1.6 eps n a rank |
//! | `distributed_bms` | 3 | 2 a bucket of a reply | 2 n / 8192 a rank |
//! | `dibms`, 2 or 3 counts | 4 or 5 | the same for each count | the same, divided again by each later count |
//!
//! `gk_select` has the fewest reads, and wins wherever they weigh most. Others win where its candidates do: with thousands
//! of partitions and many ranks, where summaries are coarse and a read is soon done; and where candidates are more than one task
//! should hold, 2^26 keys: about 1e12 for values times ranks, as 1000 quantiles of 1e9 values. Then the cheapest of those that
//! hold to that limit is taken, or what comes nearest to it.
//!
//! **Groups** are read twice if that costs less than the exchange of all keys after one read ([`GroupWorkload`]):
//!
//! ```text
//! values * 9 bytes / 500 MB/s  >  (values * 10 ns + the input's own work) / tasks + stages * 0.05 s
//! ```
//! with at most 4 tasks, and two stages and those of the input more. So a scan of 7 million values or more is read again, and
//! a join hardly ever. One read also where groups are known to be more than brackets are for, or may be by the least and the
//! greatest value of their columns, or partitions are more than one task should merge the counts of.

use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result, ScalarValue};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::rounds::{COUNTS, Steps, buckets};
use super::source::SourceSize;
use super::{FAN_IN, MOST_GROUPS, MOST_RANKS, merge_levels};
use crate::key::KeySpec;
use crate::select::bms::BUCKETS;
use crate::select::gk_select::{BETWEEN, SUMMARY_BYTES};

/// Rows that a leaf is taken to have which tells neither their number nor the bytes of its files.
const UNKNOWN: u64 = 100_000_000;
/// Tasks that run at once, at most.
const TASKS: usize = 64;
/// Keys that one task should hold, at most.
const MOST_CANDIDATES: f64 = (1_u64 << 26) as f64;

const VALUE_SECONDS: f64 = 10e-9;
const ROW_SECONDS: f64 = 5e-9;
const GATHERED_SECONDS: f64 = 50e-9;
const STAGE_SECONDS: f64 = 0.05;
const BYTE_SECONDS: f64 = 2e-9;
const CANDIDATE_SECONDS: f64 = 20e-9;
const KEY_BYTES: f64 = 8.0;

/// What the costs depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Workload {
    /// Values that are ranked, as far as is known.
    pub(crate) values: u64,
    /// Partitions of the input.
    pub(crate) partitions: usize,
    /// Ranks that are asked for.
    pub(crate) ranks: usize,
    /// What one execution of the input takes.
    pub(crate) input: InputCost,
}

/// Tasks that groups are read by at once, at most: their stages wait for the slowest.
const GROUP_TASKS: usize = 4;
/// Bytes of a key and its group that are exchanged.
const EXCHANGED_BYTES: f64 = 9.0;

/// What the choice between one read of groups and two depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GroupWorkload {
    values: u64,
    partitions: usize,
    input: InputCost,
    ranks: usize,
    /// Most groups that there can be, where it is known.
    groups: Option<u64>,
}

impl GroupWorkload {
    /// By the statistics of a planned input, whose first columns are those of groups.
    ///
    /// # Errors
    /// Those of statistics.
    pub(crate) fn of(input: &dyn ExecutionPlan, groups: usize, ranks: usize) -> Result<Self> {
        let workload = Workload::of(input, ranks)?;
        let statistics = StatisticsContext::new().compute(input, &StatisticsArgs::new())?;
        let columns = statistics.column_statistics.iter().take(groups);
        let most = columns
            .map(most_distinct)
            .try_fold(1_u64, |all, own| Some(all.saturating_mul(own?)));
        Ok(Self {
            values: workload.values,
            partitions: workload.partitions,
            input: workload.input,
            ranks,
            groups: most.filter(|_| statistics.column_statistics.len() >= groups),
        })
    }

    /// Whether a second read costs less than the exchange of all keys.
    pub(crate) fn is_better_read_twice(&self) -> bool {
        let groups = self.groups.unwrap_or(1);
        let has_brackets = groups <= MOST_GROUPS as u64
            && groups.saturating_mul(self.ranks.max(1) as u64) <= MOST_RANKS as u64
            && self.partitions <= FAN_IN;
        let (n, tasks) = (self.values as f64, self.partitions.clamp(1, GROUP_TASKS) as f64);
        let read = (n * VALUE_SECONDS + self.input.seconds) / tasks;
        let stages = (2 + self.input.stages) as f64 * STAGE_SECONDS;
        has_brackets && !self.input.is_unknown && n * EXCHANGED_BYTES * BYTE_SECONDS > read + stages
    }
}

/// How many values a column can have, NULL included.
fn most_distinct(column: &ColumnStatistics) -> Option<u64> {
    if let Some(distinct) = column.distinct_count.get_value() {
        return Some(*distinct as u64 + 1);
    }
    let (least, greatest) = (column.min_value.get_value()?, column.max_value.get_value()?);
    let spec = KeySpec::try_new(&least.data_type()).ok()?;
    let key = |value: &ScalarValue| spec.keys(value.to_array().ok()?.as_ref()).ok()?.first().copied();
    // Keys of floats are many where values are few.
    let distance = key(greatest)?.checked_sub(key(least)?)?;
    (!least.data_type().is_floating())
        .then(|| u64::try_from(distance).map_or(u64::MAX, |far| far.saturating_add(2)))
}

/// What an execution of an input takes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct InputCost {
    /// Seconds on one task.
    pub(crate) seconds: f64,
    /// Stages below its last.
    pub(crate) stages: usize,
    /// Whether a leaf tells nothing of its size.
    pub(crate) is_unknown: bool,
}

impl Workload {
    /// By the statistics of a planned input.
    ///
    /// # Errors
    /// Those of statistics.
    pub(crate) fn of(input: &dyn ExecutionPlan, ranks: usize) -> Result<Self> {
        let (values, cost) = walk(input)?;
        Ok(Self {
            values,
            partitions: input.output_partitioning().partition_count(),
            ranks,
            input: cost,
        })
    }
}

/// Rows that a plan gives, and what it takes.
fn walk(plan: &dyn ExecutionPlan) -> Result<(u64, InputCost)> {
    let (mut rows_in, mut most, mut cost) = (0_u64, 0, InputCost::default());
    let children = plan.children();
    for child in &children {
        let (rows, below) = walk(child.as_ref())?;
        rows_in = rows_in.saturating_add(rows);
        most = most.max(rows);
        cost.seconds += below.seconds;
        cost.stages += below.stages;
        cost.is_unknown |= below.is_unknown;
    }
    let is_union = plan.is::<UnionExec>();
    let known = StatisticsContext::new()
        .compute(plan, &StatisticsArgs::new())?
        .num_rows;
    let rows = match known {
        Precision::Exact(rows) | Precision::Inexact(rows) => rows as u64,
        Precision::Absent if children.is_empty() => leaf_rows(plan, &mut cost),
        Precision::Absent if is_union => rows_in,
        Precision::Absent => most,
    };
    let gathers = plan.pipeline_behavior() == EmissionType::Final || children.len() > 1;
    if children.is_empty() {
        cost.seconds += rows as f64 * ROW_SECONDS;
    } else if gathers && !is_union {
        cost.seconds += rows_in as f64 * GATHERED_SECONDS;
        cost.stages += 1;
    }
    Ok((rows, cost))
}

/// Rows of a leaf that keeps no count of them; adds the parsing of its text to `cost`.
fn leaf_rows(leaf: &dyn ExecutionPlan, cost: &mut InputCost) -> u64 {
    if let Some(size) = SourceSize::of(leaf) {
        cost.seconds += size.parsing;
        return size.rows;
    }
    cost.is_unknown = true;
    UNKNOWN
}

/// What a strategy is expected to take.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    candidates: f64,
    seconds: f64,
}

/// The strategy for a workload.
///
/// # Errors
/// None for numbers that can occur.
pub(super) fn cheapest(workload: &Workload) -> Result<Steps> {
    let others = [
        Steps::distributed_bms(workload),
        Steps::dibms(workload, COUNTS - 1),
        Steps::dibms(workload, COUNTS),
    ];
    let mut best = Steps::gk_select(workload)?;
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

fn estimate(steps: &Steps, workload: &Workload) -> Estimate {
    let (n, ranks) = (workload.values as f64, workload.ranks.max(1));
    // Bytes of a reply to each read whose replies add up, and what is left to collect.
    let (reply, summed, candidates) = match steps {
        Steps::GkSelect(strategy) => {
            let (numerator, denominator) = strategy.epsilon().fraction();
            let eps = numerator as f64 / denominator as f64;
            (SUMMARY_BYTES / eps, 1, (BETWEEN * eps * n * ranks as f64).min(n))
        }
        Steps::DistributedBms { .. } => counted([BUCKETS].into_iter(), n, ranks as f64),
        Steps::Dibms { counts, .. } => {
            let sizes = (0..*counts).map(|count| buckets(count, *counts, ranks));
            counted(sizes, n, ranks as f64)
        }
    };
    let reads = steps.reads();
    let tasks = workload.partitions.clamp(1, TASKS) as f64;
    let read = (n * VALUE_SECONDS + workload.input.seconds) / tasks;
    let levels = merge_levels(workload.partitions).count();
    let stages = reads * (2 + workload.input.stages) + summed * levels;
    // A task of each level of the tree gets so many replies.
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

/// Bytes of counts of these sizes and their number, and the candidates that they leave: each rank the values of a bucket, twice
/// the mean, as buckets are never filled alike.
fn counted(sizes: impl Iterator<Item = u32>, n: f64, ranks: f64) -> (f64, usize, f64) {
    sizes.fold((0.0, 0, n), |(bytes, counts, left), buckets| {
        let buckets = f64::from(buckets);
        let inside = (2.0 * ranks * left / buckets).min(left);
        (bytes + 2.0 * buckets, counts + 1, inside)
    })
}

#[cfg(test)]
mod tests {
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
            Steps::GkSelect(_) => "gk_select".to_string(),
            Steps::DistributedBms { .. } => "distributed_bms".to_string(),
            Steps::Dibms { counts, .. } => format!("dibms {counts}"),
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
            let gk = estimate(&Steps::gk_select(&many).unwrap(), &many);
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
        let seconds = |steps: &Steps, workload: &Workload| estimate(steps, workload).seconds;
        let (two, five) = (Steps::gk_select(&dear).unwrap(), Steps::dibms(&dear, 3));
        let more = |steps: &Steps| seconds(steps, &dear) - seconds(steps, &cheap);
        // Of the input's 100 s on 16 tasks and its three stages of 50 ms, for each read.
        let read = 100.0 / 16.0 + 3.0 * STAGE_SECONDS - 1e6 * ROW_SECONDS / 16.0;
        assert!((more(&two) - 2.0 * read).abs() < 1e-9);
        assert!((more(&five) - 5.0 * read).abs() < 1e-9);
        assert_eq!(taken(&dear), "gk_select");
    }

    #[test]
    fn groups_are_read_twice_where_an_exchange_costs_more() {
        let groups = |values: u64, groups: Option<u64>, input: InputCost| GroupWorkload {
            values,
            partitions: 16,
            input,
            ranks: 3,
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
        many.partitions = FAN_IN + 1;
        assert!(!many.is_better_read_twice());
        many = groups(30_000_000, Some(1000), scan(30_000_000));
        many.ranks = 500;
        assert!(!many.is_better_read_twice());
    }

    #[test]
    fn counts_leave_few_candidates_for_any_number_of_values() {
        for (ranks, share) in [(1, 4e-8), (9, 3e-5), (99, 3e-4), (999, 4e-3)] {
            for values in [10_000_000, 1_000_000_000] {
                let workload = workload(values, 16, ranks);
                let left = estimate(&Steps::dibms(&workload, COUNTS), &workload);
                assert!(left.candidates < share * values as f64, "{ranks}: {left:?}");
            }
        }
    }
}
