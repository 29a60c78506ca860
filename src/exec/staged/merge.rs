//! A level of the tree up which replies of many partitions go.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, Partitioning, PlanProperties, ReplaceChildrenOptions,
};
use futures::TryStreamExt;

use super::rows::{CHECK, Merged, Rows, body_bytes, schema};
use super::{StagedColumns, reached};

/// Merges the replies of a read in groups: to one for each group and key column, as long as any of them.
///
/// A reply's group is its checksum modulo the number of groups, and rows are exchanged by a hash of that: a partition holds a
/// group or several, most hold none. The checksum of a merged reply is the sum, as random as its parts. Keys, which come
/// where candidates are fewer than counts, pass as they are.
#[derive(Debug)]
pub struct MergeExec {
    input: Arc<dyn ExecutionPlan>,
    pub(super) columns: Arc<StagedColumns>,
    /// The read of the input whose replies are merged, the first being 0.
    pub(super) read: usize,
    /// How many merged replies there are, at most.
    pub(super) groups: u64,
    group: Arc<dyn PhysicalExpr>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl MergeExec {
    /// To so many groups of replies to read `read`.
    ///
    /// # Errors
    /// An internal error for replies that do not add up, or no groups.
    pub(super) fn try_new(
        input: Arc<dyn ExecutionPlan>,
        columns: Arc<StagedColumns>,
        read: usize,
        groups: u64,
    ) -> Result<Self> {
        if !columns.rounds.is_summed(read) || groups == 0 {
            return internal_err!("replies of read {read} in {groups} groups");
        }
        let check = Arc::new(Column::new(schema().field(CHECK).name(), CHECK));
        let number = Arc::new(Literal::new(ScalarValue::UInt64(Some(groups))));
        let group = Arc::new(BinaryExpr::new(check, Operator::Modulo, number));
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema()),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Final,
            input.boundedness(),
        );
        Ok(Self {
            input,
            columns,
            read,
            groups,
            group,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    fn with_input(&self, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(input), true) = (children.pop(), children.is_empty()) else {
            return internal_err!("MergeExec has one input");
        };
        let columns = Arc::clone(&self.columns);
        Ok(Arc::new(Self::try_new(input, columns, self.read, self.groups)?))
    }
}

/// The merged replies of a partition as rows again; nothing where nothing came.
fn merged_rows(columns: &StagedColumns, mut merged: Merged) -> Result<Rows> {
    let mut rows = Rows::default();
    for part in 0..columns.len() as u32 {
        if let Some((seen, reply, lengths)) = merged.header(part)? {
            rows.header(part, seen, &reply, &lengths)?;
        }
    }
    if let Some(state) = merged.state() {
        rows.state(state)?;
    }
    Ok(rows)
}

impl DisplayAs for MergeExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let (asked, columns) = (self.columns.rounds.named(self.read), self.columns.len());
        write!(f, "MergeExec: {asked}, groups={}, columns={columns}", self.groups)
    }
}

impl ExecutionPlan for MergeExec {
    fn name(&self) -> &str {
        "MergeExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let by_group = Distribution::KeyPartitioned(vec![Arc::clone(&self.group)]);
        InputDistributionRequirements::new(vec![by_group])
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
        f(&self.group)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let memory = MemoryConsumer::new(self.name()).register(context.memory_pool());
        let passed = memory.new_empty();
        let mut input = self.input.execute(partition, context)?;
        let columns = Arc::clone(&self.columns);
        let rows = MetricBuilder::new(&self.metrics).counter("input_rows", partition);
        let bytes = MetricBuilder::new(&self.metrics).counter("bytes_out", partition);
        let batches = async move {
            let (mut merged, mut keys) = (Merged::default(), Vec::new());
            while let Some(batch) = input.try_next().await? {
                rows.add(batch.num_rows());
                merged.reserve(&batch, &memory)?;
                if let Some(own) = merged.add_replies(&batch)? {
                    passed.try_grow(body_bytes(&own))?;
                    keys.push(own);
                }
            }
            reached!("merge");
            let (mut batches, written) = merged_rows(&columns, merged)?.finish()?;
            bytes.add(written + keys.iter().map(body_bytes).sum::<usize>());
            batches.extend(keys);
            drop((memory, passed));
            Ok::<_, DataFusionError>(futures::stream::iter(batches.into_iter().map(Ok)))
        };
        let stream = futures::stream::once(batches).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema(), stream)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
