//! The workload of a staged plan: its values, partitions and ranks, and the cost of one execution of the input.

use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result, ScalarValue};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::source::SourceSize;
use crate::key::KeySpec;

/// Rows that a leaf is assumed to have if it tells neither their number nor the bytes of its files.
const UNKNOWN: u64 = 100_000_000;

/// Seconds for a row of a leaf.
pub(super) const ROW_SECONDS: f64 = 5e-9;
/// Seconds for a row that enters an operator which gathers or joins rows.
pub(super) const GATHERED_SECONDS: f64 = 50e-9;

/// The sizes that the cost of a plan without groups depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Workload {
    /// Number of values that are ranked, as estimated.
    pub(crate) values: u64,
    /// Number of partitions of the input.
    pub(crate) partitions: usize,
    /// Number of ranks that are asked for.
    pub(crate) ranks: usize,
    /// The cost of one execution of the input.
    pub(crate) input: InputCost,
}

/// The sizes that the choice between one read of groups and two reads depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GroupWorkload {
    pub(super) workload: Workload,
    /// Greatest possible number of groups; `None` if it is not known.
    pub(super) groups: Option<u64>,
}

impl GroupWorkload {
    /// The workload by the statistics of a planned input, whose first columns are the group columns.
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

/// Greatest possible number of different values of a column, with NULL; `None` if it is not known.
fn most_distinct(column: &ColumnStatistics) -> Option<u64> {
    if let Some(distinct) = column.distinct_count.get_value() {
        return Some(*distinct as u64 + 1);
    }
    let (least, greatest) = (column.min_value.get_value()?, column.max_value.get_value()?);
    let spec = KeySpec::try_new(&least.data_type()).ok()?;
    let key = |value: &ScalarValue| spec.keys(value.to_array().ok()?.as_ref()).ok()?.first().copied();
    // The range of float keys says nothing of the number of values.
    let distance = key(greatest)?.checked_sub(key(least)?)?;
    (!least.data_type().is_floating())
        .then(|| u64::try_from(distance).map_or(u64::MAX, |far| far.saturating_add(2)))
}

/// The cost of one execution of an input.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct InputCost {
    /// Seconds on one task.
    pub(crate) seconds: f64,
    /// Number of stages below the last one.
    pub(crate) stages: usize,
    /// Whether the size of a leaf is not known.
    pub(crate) is_unknown: bool,
}

impl Workload {
    /// The workload by the statistics of a planned input.
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

/// The number of rows that a plan gives, as estimated, and the cost of its execution.
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

/// The estimated rows of a leaf that keeps no count of them. Adds the time to parse its text to `cost`.
fn leaf_rows(leaf: &dyn ExecutionPlan, cost: &mut InputCost) -> u64 {
    if let Some(size) = SourceSize::of(leaf) {
        cost.seconds += size.parsing;
        return size.rows;
    }
    cost.is_unknown = true;
    UNKNOWN
}
