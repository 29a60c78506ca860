//! Operators that keep an engine of many machines from planning what it would run wrongly. They move no data.

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

/// A branch of a union that is read whole, by the one task that asks for it.
///
/// Ballista cuts the plan of a union for each task, so that branches of other tasks have no partition. Of a branch that is
/// gathered, or reads no table, one partition is always left: every task would run it. This operator has as many partitions as
/// its second input, a table of one row in memory, of which such tasks get none.
pub type BranchExec = Operator<BranchWork>;

/// What a [`BranchExec`] does: it reads its first input for the task that has a partition of the second.
#[derive(Debug)]
pub struct BranchWork;

impl BranchExec {
    /// A branch over all partitions of `input`.
    ///
    /// # Errors
    /// DataFusion's, where the table of one row cannot be made.
    pub fn try_new(input: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let schema = Arc::new(Schema::new(vec![Field::new("slot", DataType::Boolean, false)]));
        let slot: ArrayRef = Arc::new(BooleanArray::from(vec![true]));
        let row = RecordBatch::try_new(Arc::clone(&schema), vec![slot])?;
        let slots = MemorySourceConfig::try_new_exec(&[vec![row]], schema, None)?;
        Self::from_both(input, slots)
    }

    /// From the branch, and the table with one partition for the task that the branch belongs to.
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

    fn details(&self) -> String {
        String::new()
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

/// Properties of rows of `input` that are passed on as they come, in no known order.
fn as_they_come(input: &Arc<dyn ExecutionPlan>, partitioning: Partitioning) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(input.schema()),
        partitioning,
        EmissionType::Incremental,
        input.boundedness(),
    ))
}

/// Rows as they are, in no order that is known, across which no optimizer rule moves a sort, a limit or an exchange.
///
/// With keys, rows of equal keys are to be in one partition, and are known to be. That also holds for no rows at all, whatever
/// their partitions: an engine that plans again after each stage, with an empty relation in place of one without rows, would
/// exchange that over and over for an operator that wants its rows by key.
pub type BoundaryExec = Operator<BoundaryWork>;

/// What a [`BoundaryExec`] promises: that rows of equal keys are in one partition.
#[derive(Debug)]
pub struct BoundaryWork {
    keys: Vec<Arc<dyn PhysicalExpr>>,
}

impl BoundaryExec {
    /// Over `input`; without keys its partitions are left as they are.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, keys: Vec<Arc<dyn PhysicalExpr>>) -> Result<Self> {
        Self::over(BoundaryWork { keys }, vec![input])
    }

    /// By which rows are together; none if it does not matter.
    pub(crate) fn keys(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.work().keys
    }
}

impl Work for BoundaryWork {
    fn name(&self) -> &'static str {
        "BoundaryExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        let partitioning = inputs[0].output_partitioning();
        let partitioning = if self.keys.is_empty() {
            partitioning.clone()
        } else {
            Partitioning::Hash(self.keys.clone(), partitioning.partition_count())
        };
        Ok(as_they_come(&inputs[0], partitioning))
    }

    fn details(&self) -> String {
        if self.keys.is_empty() {
            String::new()
        } else {
            format!("keys=[{}]", comma_separated(self.keys.iter()))
        }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.keys.clone()
    }

    fn distribution(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        vec![if self.keys.is_empty() {
            Distribution::UnspecifiedDistribution
        } else {
            by_key(&inputs[0], self.keys.clone())
        }]
    }

    fn keeps_statistics(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        on.input()
    }
}
