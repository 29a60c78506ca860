//! The first input of a nested loop join, which DataFusion reads a second time if its rows do not fit in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::{JoinType, Result, resources_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{Distribution, ExecutionPlan};

use super::operator::{Execution, Operator, Work};
use crate::memory::limit;

/// Passes on the rows that a nested loop join of DataFusion 55 holds in memory, and bounds what the join does if memory does not suffice.
///
/// Such a join reads its first input again then, joins a part of it at a time, and reads the second input from disk for each part. Four
/// things go wrong there without an error, of which this operator lets none happen:
///
/// - Sources of several files hand out each file once, so that the second read lacks rows. It reads a fresh copy of the plan.
/// - Joins that give rows of the first input without a match (`LEFT`, `EXISTS`, `NOT EXISTS`) give them once for each partition of the
///   second (datafusion issue 22641). They are refused more than one partition.
/// - Joins that give rows of the second input without a match lose some (datafusion issue 24745). They are refused.
/// - Scans below an `ORDER BY .. LIMIT` leave out rows by what the first read found. `BuildSideRule` has such joins refused.
///
/// A refused join ends with `ResourcesExhausted`. The operator has no metrics and tells no statistics of its input: by the sizes of both
/// inputs Ballista would exchange them after their places have been relied on.
pub type BuildSideExec = Operator<BuildSideWork>;

/// Work of a [`BuildSideExec`].
#[derive(Debug)]
pub struct BuildSideWork {
    /// Whether the rows may be read a second time.
    may_spill: bool,
    was_read: AtomicBool,
}

impl BuildSideExec {
    /// An operator over `input`, whose rows may be read a second time if `may_spill` is true.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, may_spill: bool) -> Result<Self> {
        let was_read = AtomicBool::new(false);
        Self::over(BuildSideWork { may_spill, was_read }, vec![input])
    }

    /// Whether a join of this type knows only at its end which rows of its first input it gives.
    pub(crate) fn decides_at_end(join: JoinType) -> bool {
        use JoinType::{Full, Left, LeftAnti, LeftMark, LeftSemi};
        matches!(join, Left | LeftSemi | LeftAnti | LeftMark | Full)
    }

    /// Whether a join of this type, whose second input has this number of partitions, is right where it reads its first input twice.
    pub(crate) fn may_spill(join: JoinType, partitions: usize) -> bool {
        match join {
            JoinType::Inner => true,
            JoinType::Full => false,
            _ => Self::decides_at_end(join) && partitions == 1,
        }
    }

    /// Whether the rows may be read a second time.
    pub(crate) fn spills(&self) -> bool {
        self.work().may_spill
    }
}

impl Work for BuildSideWork {
    fn name(&self) -> &'static str {
        "BuildSideExec"
    }

    fn details(&self) -> String {
        format!("may_spill={}", self.may_spill)
    }

    /// One partition, as the join requires: exchanges that gather it stay below.
    fn distribution(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        vec![Distribution::SinglePartition; inputs.len()]
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn renewed(self: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            may_spill: self.may_spill,
            was_read: AtomicBool::new(false),
        })
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        if !self.was_read.swap(true, Ordering::Relaxed) {
            return on.input();
        }
        if !self.may_spill {
            let limit = limit(on.context.memory_pool().as_ref())
                .map_or_else(String::new, |bytes| format!(" of {bytes} bytes"));
            return Err(resources_datafusion_err!(
                "the rows of one side of a join without equal columns do not fit in the memory limit{limit}, and DataFusion 55 cannot \
                 spill them for this kind of join; raise the limit, join fewer rows, or add an equality to the condition"
            ));
        }
        reset_plan_states(Arc::clone(&on.inputs[0]))?.execute(on.partition, Arc::clone(&on.context))
    }
}
