//! What stages would read: how many values in how many partitions, and what one execution of the input takes.

use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result, ScalarValue};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::source::SourceSize;
use crate::key::KeySpec;

/// Rows that a leaf is taken to have which tells neither their number nor the bytes of its files.
const UNKNOWN: u64 = 100_000_000;

/// Seconds for a row of a leaf, and for a row into an operator that gathers or joins rows.
pub(super) const ROW_SECONDS: f64 = 5e-9;
pub(super) const GATHERED_SECONDS: f64 = 50e-9;

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

/// What the choice between one read of groups and two depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GroupWorkload {
    pub(super) workload: Workload,
    /// Most groups that there can be, where it is known.
    pub(super) groups: Option<u64>,
}

impl GroupWorkload {
    /// By the statistics of a planned input, whose first columns are those of groups.
    ///
    /// # Errors
    /// Those of statistics.
    pub(crate) fn of(input: &dyn ExecutionPlan, groups: usize, ranks: usize) -> Result<Self> {
        let statistics = StatisticsContext::new().compute(input, &StatisticsArgs::new())?;
        let columns = statistics.column_statistics.iter().take(groups);
        let most = columns
            .map(most_distinct)
            .try_fold(1_u64, |all, own| Some(all.saturating_mul(own?)));
        Ok(Self {
            workload: Workload::of(input, ranks)?,
            groups: most.filter(|_| statistics.column_statistics.len() >= groups),
        })
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
