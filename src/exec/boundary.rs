//! Operators that keep an engine of many machines from planning what it would run wrongly. They move no data.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, Partitioning, PlanProperties, ReplaceChildrenOptions,
};

use super::mode::by_key;

/// A branch of a union that is read whole, by the one task that asks for it.
///
/// Ballista cuts the plan of a union for each task, so that branches of other tasks have no partition. Of a branch that is
/// gathered, or reads no table, one partition is always left: every task would run it. This operator has as many partitions as
/// its second input, a table of one row in memory, of which such tasks get none.
#[derive(Debug)]
pub struct BranchExec {
    input: Arc<dyn ExecutionPlan>,
    /// One partition for the task that the branch belongs to, else none.
    slots: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

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
        Ok(Self::over(input, slots))
    }

    /// From both inputs.
    pub(crate) fn over(input: Arc<dyn ExecutionPlan>, slots: Arc<dyn ExecutionPlan>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(slots.output_partitioning().partition_count()),
            EmissionType::Incremental,
            input.boundedness(),
        );
        Self {
            input,
            slots,
            properties: Arc::new(properties),
        }
    }

    fn with_inputs(children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 2]>::try_from(children) {
            Ok([input, slots]) => Ok(Arc::new(Self::over(input, slots))),
            Err(children) => internal_err!("BranchExec has two inputs, got {}", children.len()),
        }
    }
}

impl DisplayAs for BranchExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("BranchExec")
    }
}

impl ExecutionPlan for BranchExec {
    fn name(&self) -> &str {
        "BranchExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![
            Distribution::SinglePartition,
            Distribution::UnspecifiedDistribution,
        ])
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false, false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input, &self.slots]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Self::with_inputs(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Self::with_inputs(children)
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let inputs = self.input.output_partitioning().partition_count();
        let partitions = self.slots.output_partitioning().partition_count();
        if partition >= partitions.min(1) || inputs != 1 {
            return internal_err!(
                "partition {partition} of {partitions} of a branch over {inputs} partitions: it is read whole, once"
            );
        }
        self.input.execute(0, context)
    }
}

/// Rows as they are, in no order that is known, across which no optimizer rule moves a sort, a limit or an exchange.
///
/// With keys, rows of equal keys are to be in one partition, and are known to be. That also holds for no rows at all, whatever
/// their partitions: an engine that plans again after each stage, with an empty relation in place of one without rows, would
/// exchange that over and over for an operator that wants its rows by key.
#[derive(Debug)]
pub struct BoundaryExec {
    input: Arc<dyn ExecutionPlan>,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
}

impl BoundaryExec {
    /// Over `input`; without keys its partitions are left as they are.
    pub fn new(input: Arc<dyn ExecutionPlan>, keys: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        let partitioning = input.output_partitioning();
        let partitioning = match keys.is_empty() {
            true => partitioning.clone(),
            false => Partitioning::Hash(keys.clone(), partitioning.partition_count()),
        };
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            partitioning,
            EmissionType::Incremental,
            input.boundedness(),
        );
        Self {
            input,
            keys,
            properties: Arc::new(properties),
        }
    }

    /// By which rows are together; none if it does not matter.
    pub(crate) fn keys(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.keys
    }

    fn with_input(&self, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self::new(input, self.keys.clone()))),
            Err(children) => internal_err!("BoundaryExec has one input, got {}", children.len()),
        }
    }
}

impl DisplayAs for BoundaryExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("BoundaryExec")?;
        let mut keys = self.keys.iter();
        if let Some(key) = keys.next() {
            write!(f, ": keys=[{key}")?;
            keys.try_for_each(|key| write!(f, ", {key}"))?;
            f.write_str("]")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for BoundaryExec {
    fn name(&self) -> &str {
        "BoundaryExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let wanted = match self.keys.is_empty() {
            true => Distribution::UnspecifiedDistribution,
            false => by_key(&self.input, self.keys.clone()),
        };
        InputDistributionRequirements::new(vec![wanted])
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_input(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_input(children)
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for key in &self.keys {
            if f(key)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("statistics of {} inputs of a BoundaryExec", inputs.len()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
