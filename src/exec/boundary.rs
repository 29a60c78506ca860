//! Operators that keep a distributed engine from planning what it would run wrongly. They pass rows on unchanged.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{Result, internal_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::{
    Distribution, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};

use super::mode::by_key;
use super::operator::comma_separated;
use super::operator::{Execution, Operator, Work};

/// A branch of a union that exactly one task reads, and reads whole.
///
/// Ballista cuts the plan of a union for each task: the branches of other tasks are left without partitions. A branch that is
/// gathered into one partition, or that reads no table, cannot be cut so, and every task would run it. This operator has as many
/// partitions as its second input, a table of one row in memory. Tasks to which the branch does not belong get no partition of it.
pub type BranchExec = Operator<BranchWork>;

/// Work of a [`BranchExec`]: reads the first input, for the task that has a partition of the second.
#[derive(Debug)]
pub struct BranchWork;

impl BranchExec {
    /// A branch that reads all partitions of `input`.
    ///
    /// # Errors
    /// DataFusion's, if the table of one row cannot be made.
    pub fn try_new(input: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let schema = Arc::new(Schema::new(vec![Field::new("slot", DataType::Boolean, false)]));
        let slot: ArrayRef = Arc::new(BooleanArray::from(vec![true]));
        let row = RecordBatch::try_new(Arc::clone(&schema), vec![slot])?;
        let slots = MemorySourceConfig::try_new_exec(&[vec![row]], schema, None)?;
        Self::from_both(input, slots)
    }

    /// A branch from its two inputs: the plan of the branch, and the table with one partition for the task that it belongs to.
    ///
    /// # Errors
    /// None but internal ones.
    pub(crate) fn from_both(input: Arc<dyn ExecutionPlan>, slots: Arc<dyn ExecutionPlan>) -> Result<Self> {
        Self::over(BranchWork, vec![input, slots])
    }
}

impl Work for BranchWork {
    fn name(&self) -> &'static str {
        "BranchExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        let (input, slots) = (&inputs[0], &inputs[1]);
        let partitions = slots.output_partitioning().partition_count();
        Ok(as_they_come(input, Partitioning::UnknownPartitioning(partitions)))
    }

    fn distribution(&self, _inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        vec![
            Distribution::SinglePartition,
            Distribution::UnspecifiedDistribution,
        ]
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let partitions = |input: usize| on.inputs[input].output_partitioning().partition_count();
        if on.partition > 0 || partitions(0) != 1 {
            return internal_err!(
                "partition {} of {} of a branch over {} partitions: it is read whole, once",
                on.partition,
                partitions(1),
                partitions(0)
            );
        }
        on.input()
    }
}

/// Properties of an output that passes on the rows of `input` as they come, in no known order.
fn as_they_come(input: &Arc<dyn ExecutionPlan>, partitioning: Partitioning) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(input.schema()),
        partitioning,
        EmissionType::Incremental,
        input.boundedness(),
    ))
}

/// Passes rows on unchanged, in no known order. No optimizer rule moves a sort, a limit or an exchange across it.
///
/// The operator requires of the partitions of its input what [`BoundaryWork`] says, and declares that its output is so.
pub type BoundaryExec = Operator<BoundaryWork>;

/// Work of a [`BoundaryExec`]: what the operator requires of the partitions of its input, whose rows it passes on.
#[derive(Debug)]
pub enum BoundaryWork {
    /// Any number of partitions, with any rows.
    AsTheyCome,
    /// One partition.
    OnePartition,
    /// Rows of equal keys are in one partition. An input of no rows satisfies this whatever its partitions are. Otherwise an engine that
    /// plans again after each stage, and replaces an input without rows by an empty relation, would add an exchange below an operator
    /// that requires rows by key, again and again.
    ByKey(Vec<Arc<dyn PhysicalExpr>>),
}

impl BoundaryExec {
    /// A boundary over `input`, of whose partitions `required` is required.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, required: BoundaryWork) -> Result<Self> {
        Self::over(required, vec![input])
    }

    /// The requirement that the operator has of the partitions of its input.
    pub(crate) fn required(&self) -> &BoundaryWork {
        self.work()
    }
}

impl Work for BoundaryWork {
    fn name(&self) -> &'static str {
        "BoundaryExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        let partitioning = inputs[0].output_partitioning();
        let partitioning = match self {
            Self::AsTheyCome | Self::OnePartition => partitioning.clone(),
            Self::ByKey(keys) => Partitioning::Hash(keys.clone(), partitioning.partition_count()),
        };
        Ok(as_they_come(&inputs[0], partitioning))
    }

    fn details(&self) -> String {
        match self {
            Self::AsTheyCome => String::new(),
            Self::OnePartition => "partitions=1".to_owned(),
            Self::ByKey(keys) => format!("keys=[{}]", comma_separated(keys.iter())),
        }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        match self {
            Self::AsTheyCome | Self::OnePartition => Vec::new(),
            Self::ByKey(keys) => keys.clone(),
        }
    }

    fn distribution(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        vec![match self {
            Self::AsTheyCome => Distribution::UnspecifiedDistribution,
            Self::OnePartition => Distribution::SinglePartition,
            Self::ByKey(keys) => by_key(&inputs[0], keys.clone()),
        }]
    }

    fn keeps_statistics(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        on.input()
    }
}
