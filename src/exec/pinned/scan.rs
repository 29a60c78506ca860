//! The scan of a pinned table on its way through the planner.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;

use super::table::PinnedTable;
use crate::exec::operator::{Execution, Operator, Work};
use crate::kernel::cuda::{NearPairs, Predicate};

/// The pinned table whose rows a plan reads.
#[derive(Debug, Clone)]
pub(crate) struct PinnedScan {
    pub(crate) table: Arc<PinnedTable>,
    /// Index of the pinned column that each column of the plan is; `None`: it is another one.
    pub(crate) columns: Vec<Option<usize>>,
    /// The condition for a row to come. `None`: all rows do.
    pub(crate) filter: Option<Predicate>,
    /// Most bytes of device memory that this crate may hold.
    pub(crate) limit: Option<u64>,
    /// Whether to measure the time of each kernel.
    pub(crate) timed: bool,
    /// Whether the CPU answers when the device fails.
    pub(crate) falls_back: bool,
}

impl PinnedScan {
    /// Whether columns of the plan are pinned.
    pub(crate) fn has(&self, mut columns: impl Iterator<Item = usize>) -> bool {
        columns.all(|column| self.columns[column].is_some())
    }

    /// Whether the device can find the `k` nearest of the vectors in a column of the plan.
    pub(crate) fn can_rank(&self, vectors: usize, k: usize) -> bool {
        self.columns[vectors].is_some_and(|column| NearPairs::can_rank(self.table.column(column), k))
    }
}

/// Passes the rows of its input on, and says which pinned table they are the rows of. It stands in a plan until the physical optimizer rule
/// of joins has looked at it, which takes it out.
pub(crate) type PinnedScanExec = Operator<PinnedScanWork>;

/// Work of a [`PinnedScanExec`].
#[derive(Debug)]
pub(crate) struct PinnedScanWork(PinnedScan);

impl PinnedScanExec {
    /// The rows of `input`, which are those of a pinned table.
    ///
    /// # Errors
    /// None but internal ones.
    pub(crate) fn try_new(scan: PinnedScan, input: Arc<dyn ExecutionPlan>) -> Result<Self> {
        Self::over(PinnedScanWork(scan), vec![input])
    }

    /// The pinned table.
    pub(crate) fn scan(&self) -> &PinnedScan {
        &self.work().0
    }
}

impl Work for PinnedScanWork {
    fn name(&self) -> &'static str {
        "PinnedScanExec"
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn keeps_statistics(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        on.input()
    }
}
