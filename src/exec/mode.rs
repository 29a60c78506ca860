//! Which step of a plan an operator of best rows is.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::{Distribution, ExecutionPlan, ExecutionPlanProperties};

use super::numbered::each_once;
use super::operator::Execution;

/// Which rows one output partition is made of, in the words of DataFusion's aggregation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All partitions of the input, which the operator reads itself.
    Single,
    /// One partition of the input: what may be among the best of all.
    Partial,
    /// One partition of the input, to which all that belongs together was brought.
    Final,
}

impl Mode {
    /// Partitions of the output over this input.
    pub(super) fn partitions(self, input: &Arc<dyn ExecutionPlan>) -> usize {
        match self {
            Mode::Single => 1,
            Mode::Partial | Mode::Final => input.output_partitioning().partition_count(),
        }
    }

    /// What one output partition of an operator reads; as a final step, the rows of partial steps without their numbers, each once.
    ///
    /// # Errors
    /// Those of the input.
    pub(super) fn streams(self, on: &Execution<'_>) -> Result<Vec<SendableRecordBatchStream>> {
        match self {
            Mode::Single => on.partitions(),
            Mode::Partial => Ok(vec![on.input()?]),
            Mode::Final => {
                let memory = on.memory_named(format!("numbers of the rows of {}", on.name()));
                Ok(vec![each_once(on.input()?, memory)?])
            }
        }
    }
}

/// As it stands in plans, before all else; nothing in one process.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Single => Ok(()),
            Mode::Partial => f.write_str("mode=Partial, "),
            Mode::Final => f.write_str("mode=Final, "),
        }
    }
}

/// All rows of equal keys in one partition. No rows at all are so wherever they are: an engine that plans again after each stage, and puts
/// an empty relation in the place of one without rows, would exchange that over and over.
pub(crate) fn by_key(input: &Arc<dyn ExecutionPlan>, keys: Vec<Arc<dyn PhysicalExpr>>) -> Distribution {
    if input.is::<EmptyExec>() {
        Distribution::UnspecifiedDistribution
    } else {
        Distribution::KeyPartitioned(keys)
    }
}
