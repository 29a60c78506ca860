//! The operator behind ungrouped `exact_quantiles`.

use std::fmt::{self, Display};
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
    ReplaceChildrenOptions,
};

use super::aggregate::{Aggregates, ExecAggregate};
#[cfg(feature = "cuda")]
use super::on_device::{UploadChoice, is_for_device};
use super::run::{Run, RunMetrics};
use super::values::ValueSolver;
use crate::config::StrategyName;

/// Exact quantiles over a whole input, with plain aggregates beside them. One partition, one row.
///
/// Reads each input partition once and in parallel, keeps the keys of every distinct (argument, filter), strings and
/// the like as their bytes, and then narrows the ranks down in rounds over them. Cost: the scan, the width of the type
/// for each value, and a few reads of those keys.
///
/// Memory: all that grows is reserved in the task's pool. Up to two thirds of the pool hold keys and values; the others
/// go to files of the task's disk manager, which are gone when the query is, however it ends. The rounds get what is left,
/// up to a third of the pool, for which what is in memory is written out too; with less memory they are more. Where the
/// disk manager is disabled, or a few hundred KiB a partition are more than there is, the query ends with
/// `ResourcesExhausted`. A value of variable width must fit in memory, and the answers do.
///
/// With `quantiles.device = 'cuda'` columns of fixed-width types go to the memory of a device as they are read, and are selected
/// there; `EXPLAIN` names them (`on_device`). They take no host memory but some page-locked MB for each partition, and twice their
/// size on the device; there is no spilling: where that memory ends, the query does.
///
/// Metrics: `input_rows`, `values_kept`, `bytes_held` (in memory after the scan), `spill_count` (files),
/// `spilled_bytes`, `rounds`, `candidates_after_round_<i>`, `scan_time` (processor time), `select_time` (elapsed) and its
/// parts `sample_time`, `count_time` and `extract_time`, and a counter `strategy_<name>` for each column that was
/// selected so. For types of variable width also `levels` of prefixes and `refined_values`, those that had to be looked
/// at again behind a prefix. For a device those of [`PinnedExec`](super::PinnedExec).
#[derive(Debug, Clone)]
pub struct QuantilesExec {
    input: Arc<dyn ExecutionPlan>,
    aggregates: Arc<Aggregates>,
    strategy: StrategyName,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    #[cfg(feature = "cuda")]
    device: Option<UploadChoice>,
}

impl QuantilesExec {
    /// `aggregates` over `input`, one output column for each, under the names and types of `schema`.
    ///
    /// # Errors
    /// An internal error if `schema` has another number of columns.
    pub fn try_new(
        input: Arc<dyn ExecutionPlan>,
        aggregates: Vec<ExecAggregate>,
        strategy: StrategyName,
        schema: SchemaRef,
    ) -> Result<Self> {
        if schema.fields().len() != aggregates.len() {
            return internal_err!(
                "{} aggregates for {} output columns",
                aggregates.len(),
                schema.fields().len()
            );
        }
        Ok(Self::over(
            input,
            Arc::new(Aggregates::new(aggregates)),
            strategy,
            schema,
        ))
    }

    fn over(
        input: Arc<dyn ExecutionPlan>,
        aggregates: Arc<Aggregates>,
        strategy: StrategyName,
        schema: SchemaRef,
    ) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            input.boundedness(),
        ));
        Self {
            input,
            aggregates,
            strategy,
            schema,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
            #[cfg(feature = "cuda")]
            device: None,
        }
    }

    /// Makes the operator send columns to a device as they are read, those that a device can select.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_device(mut self, choice: UploadChoice) -> Self {
        if self.aggregates.columns.iter().any(is_for_device) {
            self.device = Some(choice);
        }
        self
    }

    /// The device, and what is sent there.
    #[cfg(feature = "cuda")]
    fn fmt_device(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let sent = self
            .aggregates
            .columns
            .iter()
            .filter(|column| is_for_device(column));
        match &self.device {
            Some(device) => write!(f, ", device={device}, on_device=[{}]", comma_separated(sent)),
            None => Ok(()),
        }
    }

    #[cfg(not(feature = "cuda"))]
    fn fmt_device(&self, _f: &mut fmt::Formatter) -> fmt::Result {
        Ok(())
    }

    /// How it selects; `auto` decides when the number of values is known.
    pub fn strategy(&self) -> StrategyName {
        self.strategy
    }

    fn with_input(&self, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(input), true) = (children.pop(), children.is_empty()) else {
            return internal_err!("QuantilesExec has one input");
        };
        let (aggregates, schema) = (Arc::clone(&self.aggregates), Arc::clone(&self.schema));
        let exec = Self::over(input, aggregates, self.strategy, schema);
        #[cfg(feature = "cuda")]
        let exec = Self {
            device: self.device.clone(),
            ..exec
        };
        Ok(Arc::new(exec))
    }
}

pub(super) fn comma_separated(items: impl Iterator<Item = impl Display>) -> String {
    let items: Vec<_> = items.map(|item| item.to_string()).collect();
    items.join(", ")
}

impl DisplayAs for QuantilesExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let columns = comma_separated(self.aggregates.columns.iter());
        let calls = comma_separated(self.aggregates.calls.iter().map(|(_, call)| call));
        let plain = comma_separated(self.aggregates.plain.iter());
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "QuantilesExec: strategy={}", self.strategy)?;
                self.fmt_device(f)?;
                write!(f, ", columns=[{columns}], calls=[{calls}]")?;
                if !plain.is_empty() {
                    write!(f, ", plain=[{plain}]")?;
                }
                Ok(())
            }
            DisplayFormatType::TreeRender => {
                writeln!(f, "strategy={}", self.strategy)?;
                writeln!(f, "calls={calls}")?;
                if !plain.is_empty() {
                    writeln!(f, "plain={plain}")?;
                }
                Ok(())
            }
        }
    }
}

impl ExecutionPlan for QuantilesExec {
    fn name(&self) -> &str {
        "QuantilesExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![true]
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
        for expr in self.aggregates.expressions() {
            if f(&expr)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("QuantilesExec has one partition, asked for partition {partition}");
        }
        let partitions = self.input.output_partitioning().partition_count();
        let streams = (0..partitions).map(|i| self.input.execute(i, Arc::clone(&context)));
        let streams = streams.collect::<Result<Vec<_>>>()?;
        let memory = MemoryConsumer::new(self.name()).register(context.memory_pool());
        let run = Run {
            aggregates: Arc::clone(&self.aggregates),
            schema: Arc::clone(&self.schema),
            solver: ValueSolver::new(self.strategy, memory, &context),
            metrics: RunMetrics::new(&self.metrics),
            #[cfg(feature = "cuda")]
            device: self.device.clone(),
        };
        let baseline = run.metrics.baseline.clone();
        let answer = async move { run.batch(streams).await.record_output(&baseline) };
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            futures::stream::once(answer),
        )))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
