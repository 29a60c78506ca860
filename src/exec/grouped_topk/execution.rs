//! One execution of the operator: its plan, and counts of the rows that were left out.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::physical_plan::metrics::Count;

use super::super::group_engine::Metrics;
use super::any_sieve::BestRows;
use super::plan::TopKPlan;
use crate::failpoint::may_fail;
use crate::kernel::cpu::columns::with_short_dictionary;
use crate::key::{KeySpec, Width};

/// One execution of the best rows of groups, as a work of the engine for groups.
pub(super) struct TopKExecution {
    pub(super) plan: Arc<TopKPlan>,
    /// Type of the only key column.
    pub(super) specs: [KeySpec; 1],
    /// Counts rows that did not reach the floor of their group.
    pub(super) rejected: Count,
    /// Counts rows that were held, and dropped because they were not among the best.
    pub(super) dropped: Count,
}

impl TopKExecution {
    pub(super) fn try_new(plan: Arc<TopKPlan>, metrics: &Metrics) -> Result<Self> {
        // Rows come with keys, so only the width of the type matters.
        let spec = KeySpec::try_new(&match plan.keys.width() {
            Width::W32 => DataType::UInt32,
            Width::W64 => DataType::UInt64,
            Width::W128 => DataType::Decimal128(38, 0),
        })?;
        Ok(Self {
            plan,
            specs: [spec],
            rejected: metrics.count("rejected_rows"),
            dropped: metrics.count("dropped_rows"),
        })
    }

    /// The answer for some groups, from their group columns and their best rows.
    pub(super) fn answer(&self, groups: Vec<ArrayRef>, best: BestRows) -> Result<RecordBatch> {
        may_fail!("topk_answer");
        let plan = &self.plan;
        // Each hash partition has a batch, which goes on, perhaps into a sort, with the whole of its dictionaries.
        let rows = best.rows.iter().map(with_short_dictionary);
        let rows = rows.collect::<Result<Vec<_>>>()?;
        if plan.rows().is_none() {
            return plan.lists(groups, &rows, &best.lengths);
        }
        let ids = UInt32Array::from(repeated(&best.lengths));
        let groups = groups.iter().map(|column| Ok(take(column.as_ref(), &ids, None)?));
        plan.row_batch(&groups.collect::<Result<Vec<_>>>()?, &rows, best.numbers)
    }
}

/// The number of each row's group, for rows in the order of groups; `lengths` has the number of rows of each group.
pub(super) fn repeated(lengths: &[usize]) -> Vec<u32> {
    let mut ids = Vec::with_capacity(lengths.iter().sum());
    for (group, length) in lengths.iter().enumerate() {
        ids.resize(ids.len() + length, group as u32);
    }
    ids
}
