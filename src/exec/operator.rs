//! The part that all operators of this crate have in common: [`ExecutionPlan`] is implemented once, over a [`Work`] that says the rest.
//!
//! ```text
//! Operator<W: Work>                  implements            W says
//!   inputs ─────────────────────────  children, rebuild     how their rows are to be distributed
//!   work ───────────────────────────  EXPLAIN, expressions  details, expressions
//!   properties, of inputs and work ─  schema, partitions    properties
//!   metrics ────────────────────────  EXPLAIN ANALYZE
//!                                     execute               execute: one output partition
//! ```

use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, Partitioning, PlanProperties, ReplaceChildrenOptions,
};

use super::long_batches::{executed, reading_context};
use crate::memory::limit;

/// What one kind of operator does: the whole of an operator except its inputs and its metrics. The defaults fit an operator of one
/// input that takes any number of partitions, with rows in any order.
pub trait Work: Debug + Send + Sync + Sized + 'static {
    /// The operator's name in plans.
    fn name(&self) -> &'static str;

    /// Schema, partitions and order of the output over these inputs.
    ///
    /// # Errors
    /// The work's own, for inputs that it cannot run over.
    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        Ok(Arc::clone(inputs[0].properties()))
    }

    /// The text that `EXPLAIN` shows after the name; empty: only the name is shown.
    fn details(&self) -> String {
        String::new()
    }

    /// The text in the operator's box of `EXPLAIN FORMAT TREE`: lines of `name=value`.
    fn tree_details(&self) -> String {
        self.details()
    }

    /// All expressions over the inputs.
    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        Vec::new()
    }

    /// Expressions that the operator updates while it runs, and that scans below read (dynamic filters).
    fn dynamic_expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        Vec::new()
    }

    /// Required distribution of each input's rows over its partitions.
    fn distribution(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        vec![Distribution::UnspecifiedDistribution; inputs.len()]
    }

    /// Required order of the rows in each partition of every input.
    fn wanted_order(&self) -> Option<OrderingRequirements> {
        None
    }

    /// Whether the operator is faster over inputs of more partitions.
    fn wants_partitions(&self) -> bool {
        false
    }

    /// Whether output rows keep the order of the input rows.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Whether the input's statistics hold for the output too, partition by partition.
    fn keeps_statistics(&self) -> bool {
        false
    }

    /// Maximum number of output rows, where known.
    fn fetch(&self) -> Option<usize> {
        None
    }

    /// A plan that took over while the operator ran. `EXPLAIN ANALYZE` shows it as if it were an input; it is never read as one.
    fn took_over(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        None
    }

    /// The work for other inputs, without state of an execution.
    fn renewed(self: &Arc<Self>) -> Arc<Self> {
        Arc::clone(self)
    }

    /// The work for another execution of a plan that has run.
    fn reset(self: &Arc<Self>) -> Arc<Self> {
        self.renewed()
    }

    /// Starts one partition of the output. Its number has been checked.
    ///
    /// # Errors
    /// The inputs', and the work's own.
    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream>;
}

/// One execution of one output partition.
#[derive(Debug)]
pub struct Execution<'a> {
    name: &'static str,
    pub(crate) inputs: &'a [Arc<dyn ExecutionPlan>],
    properties: &'a PlanProperties,
    expressions: Vec<Arc<dyn PhysicalExpr>>,
    pub(crate) partition: usize,
    pub(crate) context: Arc<TaskContext>,
    pub(crate) metrics: &'a ExecutionPlanMetricsSet,
}

impl Execution<'_> {
    /// Schema of the output.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(self.properties.eq_properties.schema())
    }

    /// The rows of the first input's partition with the same number as the output partition.
    ///
    /// # Errors
    /// The input's.
    pub(crate) fn input(&self) -> Result<SendableRecordBatchStream> {
        self.inputs[0].execute(self.partition, Arc::clone(&self.context))
    }

    /// The rows of all partitions of the first input, one stream each, for an operator that does not pass batches on.
    ///
    /// # Errors
    /// The input's.
    pub(crate) fn partitions(&self) -> Result<Vec<SendableRecordBatchStream>> {
        executed(&self.inputs[0], &self.reading_context())
    }

    /// The context in which the first input is read where its batches are not passed on.
    pub(crate) fn reading_context(&self) -> Arc<TaskContext> {
        reading_context(&self.inputs[0], &self.expressions, &self.context)
    }

    /// A reservation in the task's memory pool, in the operator's name. It is not registered as a consumer that can spill: a fair
    /// pool bounds each reservation of such a consumer, not their sum.
    pub(crate) fn memory(&self) -> MemoryReservation {
        self.memory_named(self.name)
    }

    /// A reservation in the task's memory pool, in another name.
    pub(crate) fn memory_named(&self, name: impl Into<String>) -> MemoryReservation {
        MemoryConsumer::new(name).register(self.context.memory_pool())
    }

    /// Bytes of the memory limit that each of the first input's partitions would have of its own; `None` if there is no limit.
    pub(crate) fn memory_share(&self) -> Option<usize> {
        let partitions = self.inputs[0].output_partitioning().partition_count();
        Some(limit(self.context.memory_pool().as_ref())? / partitions.max(1))
    }

    /// Name of the operator.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The metric counter of this name, for this output partition.
    pub(crate) fn counter(&self, name: &'static str) -> Count {
        MetricBuilder::new(self.metrics).counter(name, self.partition)
    }

    /// The metric of this name that adds up times, for this output partition.
    pub(crate) fn time(&self, name: &'static str) -> Time {
        MetricBuilder::new(self.metrics).subset_time(name, self.partition)
    }
}

/// Properties of an output in no known order that begins when `input` has ended.
pub(crate) fn at_the_end(
    schema: SchemaRef,
    partitions: usize,
    input: &Arc<dyn ExecutionPlan>,
) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Final,
        input.boundedness(),
    ))
}

/// The displayed items, separated by commas, as operators list them in `EXPLAIN`.
pub(crate) fn comma_separated(items: impl Iterator<Item = impl Display>) -> String {
    let items: Vec<_> = items.map(|item| item.to_string()).collect();
    items.join(", ")
}

/// An operator: its work, its inputs, and its metrics. Every operator of this crate is this type with a work of its own.
///
/// [`QuantilesExec`](super::QuantilesExec) is one; `plan.downcast_ref::<QuantilesExec>()` recognizes it in a plan.
#[derive(Debug)]
pub struct Operator<W> {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    work: Arc<W>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl<W> Clone for Operator<W> {
    /// The same operator, sharing the metrics.
    fn clone(&self) -> Self {
        Self {
            inputs: self.inputs.clone(),
            work: Arc::clone(&self.work),
            properties: Arc::clone(&self.properties),
            metrics: self.metrics.clone(),
        }
    }
}

impl<W: Work> Operator<W> {
    /// An operator that does `work` over `inputs`.
    ///
    /// # Errors
    /// The work's, for inputs that it cannot run over.
    pub(crate) fn over(work: W, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Self> {
        Self::with(Arc::new(work), inputs)
    }

    fn with(work: Arc<W>, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Self> {
        Ok(Self {
            properties: work.properties(&inputs)?,
            inputs,
            work,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// The operator's work.
    pub(crate) fn work(&self) -> &W {
        &self.work
    }

    /// The first input.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.inputs[0]
    }

    fn with_inputs(&self, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != self.children().len() {
            return internal_err!(
                "{} has {} inputs, got {}",
                self.name(),
                self.children().len(),
                children.len()
            );
        }
        children.truncate(self.inputs.len());
        Ok(Arc::new(Self::with(self.work.renewed(), children)?))
    }
}

impl<W: Work> DisplayAs for Operator<W> {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        if let DisplayFormatType::TreeRender = format {
            return writeln!(f, "{}", self.work.tree_details());
        }
        f.write_str(self.work.name())?;
        match self.work.details() {
            details if details.is_empty() => Ok(()),
            details => write!(f, ": {details}"),
        }
    }
}

impl<W: Work> ExecutionPlan for Operator<W> {
    fn name(&self) -> &str {
        self.work.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.work.dynamic_expressions()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let mut wanted = self.work.distribution(&self.inputs);
        wanted.resize(self.children().len(), Distribution::UnspecifiedDistribution);
        InputDistributionRequirements::new(wanted)
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![self.work.wanted_order(); self.children().len()]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![self.work.keeps_order(); self.children().len()]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![self.work.wants_partitions(); self.children().len()]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().chain(self.work.took_over()).collect()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_inputs(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_inputs(children)
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::with(self.work.reset(), self.inputs.clone())?))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for expr in [self.work.expressions(), self.work.dynamic_expressions()].concat() {
            if f(&expr)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let partitions = self.properties.partitioning.partition_count();
        if partition >= partitions {
            return internal_err!(
                "{} has {partitions} partitions, asked for partition {partition}",
                self.name()
            );
        }
        self.work.execute(Execution {
            name: self.work.name(),
            inputs: &self.inputs,
            properties: &self.properties,
            expressions: self.work.expressions(),
            partition,
            context,
            metrics: &self.metrics,
        })
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match inputs {
            [input] if self.work.keeps_statistics() => Ok(Arc::clone(input)),
            _ => Ok(Arc::new(Statistics::new_unknown(&self.schema()))),
        }
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        let wanted = if self.work.keeps_statistics() {
            ChildStats::At(partition)
        } else {
            ChildStats::Skip
        };
        vec![wanted; self.children().len()]
    }

    fn fetch(&self) -> Option<usize> {
        self.work.fetch()
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        match self.work.fetch() {
            Some(_) => CardinalityEffect::LowerEqual,
            None => CardinalityEffect::Unknown,
        }
    }
}
