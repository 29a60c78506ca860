//! The steps in which an operator of best rows can run.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::{Distribution, ExecutionPlan, ExecutionPlanProperties};

use super::numbered::each_once;
use super::operator::Execution;

/// The step that an operator of best rows is, named as in DataFusion's aggregation. It says which rows an output partition is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The only step: the operator reads all partitions of its input.
    Single,
    /// The first of two steps: reads one partition of the input, and passes on the rows that may be among the best of all.
    Partial,
    /// The second of two steps: reads one partition of the input, in which all rows that belong together are.
    Final,
}

impl Mode {
    /// Number of output partitions over this input.
    pub(super) fn partitions(self, input: &Arc<dyn ExecutionPlan>) -> usize {
        match self {
            Mode::Single => 1,
            Mode::Partial | Mode::Final => input.output_partitioning().partition_count(),
        }
    }

    /// The streams that one output partition of an operator reads. A final step reads the rows of partial steps, without their
    /// numbers, and fails on a row that comes twice.
    ///
    /// # Errors
    /// The input's.
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

/// The start of the operator's details in plans; nothing for [`Mode::Single`].
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Single => Ok(()),
            Mode::Partial => f.write_str("mode=Partial, "),
            Mode::Final => f.write_str("mode=Final, "),
        }
    }
}

/// The requirement that all rows of equal keys are in one partition. An empty relation satisfies it as it is: an engine that plans again
/// after each stage, and replaces an input without rows by an empty relation, would otherwise add an exchange again and again.
pub(crate) fn by_key(input: &Arc<dyn ExecutionPlan>, keys: Vec<Arc<dyn PhysicalExpr>>) -> Distribution {
    if input.is::<EmptyExec>() {
        Distribution::UnspecifiedDistribution
    } else {
        Distribution::KeyPartitioned(keys)
    }
}
