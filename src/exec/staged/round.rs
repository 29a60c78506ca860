//! A round in each partition: reads its input, answers one request for each key column.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, exec_err, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, Partitioning, PlanProperties, ReplaceChildrenOptions,
};
use futures::TryStreamExt;

use super::device::RoundBackend;
use super::rows::{Rows, Seen, schema};
use super::state::{COMPARING_READ, State};
use super::{Fetched, StagedColumns, reached, single_state};
use crate::kernel::round::{Reply, Request};
use crate::kernel::{CpuBackend, Lane};
use crate::memory::Workspace;
use crate::threads::blocking;
use crate::threads::{Stop, StopOnDrop};

/// One round over every partition of `input`, whose columns are the values of the key columns.
///
/// The first round asks what the plan says; a later one what the single row of its second child, the state, says. Output:
/// rows of the messages between stages, for a [`RefineExec`](super::RefineExec).
#[derive(Debug)]
pub struct RoundExec {
    input: Arc<dyn ExecutionPlan>,
    /// The state, in a single row of a single partition; none in the first round.
    pub(super) state: Option<Arc<dyn ExecutionPlan>>,
    pub(super) columns: Arc<StagedColumns>,
    /// Which read of the input this is, the first being 0.
    pub(super) read: usize,
    /// The state's bytes.
    fetched: Arc<Fetched<Vec<u8>>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RoundExec {
    /// The first round (no `state`), or a later one.
    pub(super) fn new(
        input: Arc<dyn ExecutionPlan>,
        state: Option<Arc<dyn ExecutionPlan>>,
        columns: Arc<StagedColumns>,
        read: usize,
    ) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(schema()),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Final,
            input.boundedness(),
        ));
        Self {
            input,
            state,
            columns,
            read,
            fetched: Arc::default(),
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn with_inputs(&self, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut children = children.into_iter();
        match (children.next(), children.next(), children.next()) {
            (Some(input), state, None) if state.is_some() == self.state.is_some() => {
                let columns = Arc::clone(&self.columns);
                Ok(Arc::new(Self::new(input, state, columns, self.read)))
            }
            _ => internal_err!("RoundExec keeps its inputs"),
        }
    }
}

/// What lanes are asked.
enum Asked {
    /// What the plan says.
    First,
    /// What the state says; of columns that are done nothing, or what was read of them.
    Later {
        requests: Vec<Option<Arc<Request>>>,
        /// Whether columns that are done are read again, and compared with what the first read saw of them.
        compares: bool,
    },
}

impl Asked {
    fn is_done(&self) -> bool {
        match self {
            Asked::First => false,
            Asked::Later { requests, compares } => !compares && requests.iter().all(Option::is_none),
        }
    }
}

/// The round of one partition.
struct Round {
    input: Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
    /// What the input is executed with.
    input_context: Arc<TaskContext>,
    columns: Arc<StagedColumns>,
    /// The state's bytes; none in the first round.
    state: Option<Arc<Vec<u8>>>,
    metrics: ExecutionPlanMetricsSet,
}

impl Round {
    /// What `asked` gets for an answer: from a device first, and where that fails, and the CPU may take over, from there.
    async fn run(&self, input: SendableRecordBatchStream, asked: &Arc<Asked>) -> Result<Vec<RecordBatch>> {
        let memory = MemoryConsumer::new("RoundExec").register(self.context.memory_pool());
        let cpu = || {
            let workspace = Workspace::new(memory.new_empty());
            CpuBackend::in_workspace(&self.context.runtime_env(), workspace)
        };
        let backend = Arc::new(RoundBackend::of(&self.context, cpu()));
        match self.with(&backend, &memory, input, asked).await {
            Err(error) if backend.has_failed() => {
                log::warn!("partition {} is read anew, for the CPU: {error}", self.partition);
                let fallbacks = MetricBuilder::new(&self.metrics).counter("cuda_fallback", self.partition);
                fallbacks.add(1);
                let context = Arc::clone(&self.input_context);
                let input = self.input.execute(self.partition, context)?;
                self.with(&Arc::new(RoundBackend::cpu(cpu())), &memory, input, asked)
                    .await
            }
            other => other,
        }
    }

    async fn with(
        &self,
        backend: &Arc<RoundBackend>,
        memory: &MemoryReservation,
        input: SendableRecordBatchStream,
        asked: &Arc<Asked>,
    ) -> Result<Vec<RecordBatch>> {
        let specs = self.columns.specs();
        let lanes = specs.map(|spec| backend.open(spec, memory.new_empty()));
        let mut work = Work {
            lanes: lanes.collect::<Result<_>>()?,
            backend: Arc::clone(backend),
            seen: vec![Seen::default(); self.columns.len()],
            columns: Arc::clone(&self.columns),
            rows: MetricBuilder::new(&self.metrics).counter("input_rows", self.partition),
            candidates: MetricBuilder::new(&self.metrics).counter("candidates_out", self.partition),
        };
        // Nothing is asked any more: nothing need be read.
        if !asked.is_done() {
            work = work.read(input).await?;
        }
        if self.state.is_some() {
            reached!("round_count");
        } else {
            reached!("round_sketch");
        }
        let stop = Stop::default();
        let (held, asked, state) = (StopOnDrop(stop.clone()), Arc::clone(asked), self.state.clone());
        let metrics = self.metrics.clone();
        let (batches, written) = blocking(move || {
            let state = state.as_ref().map(|state| state.as_slice());
            work.answer(&asked, state, &metrics, &stop)?.finish()
        })
        .await?;
        drop(held);
        MetricBuilder::new(&self.metrics)
            .counter("bytes_out", self.partition)
            .add(written);
        Ok(batches)
    }
}

/// The context with which a partition of a scan can be executed twice: its files are its own, where DataFusion has the partitions of
/// a plan take files from one queue, each once.
pub(super) fn without_work_stealing(context: &TaskContext) -> Arc<TaskContext> {
    let mut config = context.session_config().clone();
    config.options_mut().execution.enable_file_stream_work_stealing = false;
    Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        config,
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        context.runtime_env(),
    ))
}

/// One partition's lanes.
struct Work {
    lanes: Vec<Box<dyn Lane>>,
    backend: Arc<RoundBackend>,
    seen: Vec<Seen>,
    columns: Arc<StagedColumns>,
    rows: datafusion::physical_plan::metrics::Count,
    candidates: datafusion::physical_plan::metrics::Count,
}

impl Work {
    async fn read(mut self, mut stream: SendableRecordBatchStream) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if self.backend.has_device() {
            let read = crate::exec::fed(vec![stream], move |batches| {
                for batch in batches {
                    self.push(&batch)?;
                }
                Ok(self)
            });
            return read.await;
        }
        while let Some(batch) = stream.try_next().await? {
            self.push(&batch)?;
            tokio::task::consume_budget().await;
        }
        Ok(self)
    }

    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows.add(batch.num_rows());
        if batch.num_columns() != self.lanes.len() {
            return internal_err!(
                "{} columns of values for {} lanes",
                batch.num_columns(),
                self.lanes.len()
            );
        }
        for (index, spec) in self.columns.specs().enumerate() {
            let values: &ArrayRef = batch.column(index);
            let (n, check) = spec.checksum(values.as_ref())?;
            self.seen[index].add(Seen { n, check });
            self.lanes[index].append(values, None)?;
        }
        Ok(())
    }

    /// Answers, by what `requests` ask of each lane; those without have nothing to say.
    fn answer(
        mut self,
        asked: &Asked,
        state: Option<&[u8]>,
        metrics: &ExecutionPlanMetricsSet,
        stop: &Stop,
    ) -> Result<Rows> {
        let mut rows = Rows::default();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let request = match asked {
                Asked::First => {
                    let width = self.columns.specs[index].width();
                    Some(Arc::new(
                        self.columns.rounds.first_request(self.seen[index].n, width),
                    ))
                }
                Asked::Later { requests, .. } => requests[index].clone(),
            };
            let reply = match (request, asked) {
                (Some(request), _) => lane.answer(&request, stop)?,
                (None, Asked::Later { compares: true, .. }) => Reply::Extracted(Vec::new()),
                (None, _) => continue,
            };
            self.candidates.add(reply.values() as usize);
            rows.reply(index as u32, self.seen[index], reply)?;
        }
        self.backend.record(metrics);
        if let Some(state) = state {
            rows.state(state)?;
        }
        Ok(rows)
    }
}

impl DisplayAs for RoundExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let (asked, columns) = (self.columns.rounds.named(self.read), self.columns.len());
        write!(f, "RoundExec: {asked}, columns={columns}")
    }
}

impl ExecutionPlan for RoundExec {
    fn name(&self) -> &str {
        "RoundExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let mut wanted = vec![Distribution::UnspecifiedDistribution];
        wanted.extend(self.state.iter().map(|_| Distribution::SinglePartition));
        InputDistributionRequirements::new(wanted)
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        std::iter::once(&self.input).chain(&self.state).collect()
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

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input_context = match RoundBackend::may_read_again(&context) {
            true => without_work_stealing(&context),
            false => Arc::clone(&context),
        };
        let input = self.input.execute(partition, Arc::clone(&input_context))?;
        let (state, fetched) = (self.state.clone(), Arc::clone(&self.fetched));
        let compares = self.read == COMPARING_READ;
        let mut round = Round {
            input: Arc::clone(&self.input),
            partition,
            context: Arc::clone(&context),
            input_context,
            columns: Arc::clone(&self.columns),
            state: None,
            metrics: self.metrics.clone(),
        };
        let batches = async move {
            if let Some(plan) = state {
                round.state = Some(fetched.get(single_state(&plan, &context)).await?);
            }
            let asked = match &round.state {
                None => Asked::First,
                Some(bytes) => {
                    let state = State::from_bytes(bytes)?;
                    if state.0.len() != round.columns.len() {
                        return exec_err!("a state of {} columns for {}", state.0.len(), round.columns.len());
                    }
                    let request = |column: super::state::ColumnState| column.order.map(|order| order.request);
                    let requests = state.0.into_iter().map(request).collect();
                    Asked::Later { requests, compares }
                }
            };
            let batches = round.run(input, &Arc::new(asked)).await?;
            Ok::<_, DataFusionError>(futures::stream::iter(batches.into_iter().map(Ok)))
        };
        let stream = futures::stream::once(batches).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema(), stream)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
