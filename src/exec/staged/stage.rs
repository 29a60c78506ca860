//! The operator of all stages: it executes a step's inputs, fetches its state, and sends its rows.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::{Distribution, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::TryStreamExt;
use tokio::sync::mpsc::Sender;

use crate::exec::mode::by_key;
use crate::exec::operator::{Execution, Operator, Work, at_the_end};
use crate::exec::shared_state::SharedState;
use crate::threads::blocking;

/// Logs a point that a stage has reached. Tests can make the stage fail there.
macro_rules! reached {
    ($point:literal) => {
        log::debug!(concat!("reached ", $point));
        crate::failpoint::may_fail!($point);
    };
}
pub(super) use reached;

/// The rows of the input that one partition of a stage needs.
#[derive(Debug, Clone)]
pub enum Needs {
    /// The rows of the input's partition with the same number, whatever they are.
    Partition,
    /// All rows: the stage has one partition.
    All,
    /// All rows or none for each value of an expression.
    ByKey(Arc<dyn PhysicalExpr>),
}

/// The work of one kind of stage on each partition of its input.
pub trait StageStep: fmt::Debug + fmt::Display + Clone + Send + Sync + 'static {
    /// The operator's name in plans. The text of [`Display`](fmt::Display) follows it.
    const NAME: &'static str;

    /// The state, as it is read from the rows of the second input.
    type State: fmt::Debug + Send + Sync + 'static;

    /// The output's schema.
    fn schema(&self) -> SchemaRef;

    /// The rows that a partition needs.
    fn needs(&self) -> Needs;

    /// The state from the rows of the second input, read once for all partitions that a process runs.
    ///
    /// # Errors
    /// An execution error for rows that are no state; `ResourcesExhausted` where it does not fit in memory; an internal error for a
    /// step without a second input.
    fn state(&self, _rows: &[RecordBatch], _context: &TaskContext) -> Result<Self::State> {
        internal_err!("{} has one input", Self::NAME)
    }

    /// The context that the input is executed with.
    fn input_context(context: &Arc<TaskContext>) -> Arc<TaskContext> {
        Arc::clone(context)
    }

    /// Reads the input of one partition and sends the output.
    ///
    /// # Errors
    /// Those of the input and of the step.
    fn run(
        self,
        task: Task<Self::State>,
        input: SendableRecordBatchStream,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// The work of a step that takes the rows of its input batch by batch.
pub(super) trait Consume: Send + 'static {
    /// Takes the rows of a batch. Returns rows to send before the next batch is taken, if there are any.
    ///
    /// # Errors
    /// An execution error for damaged rows, or rows of reads that differ; `ResourcesExhausted` where they do not fit in memory.
    fn push(&mut self, batch: &RecordBatch) -> Result<Option<StageOutput>>;

    /// The output after all rows.
    ///
    /// # Errors
    /// Those of [`Self::push`].
    fn finish(self) -> Result<StageOutput>;
}

/// Batches for the next stage.
#[derive(Debug, Default)]
pub(super) struct StageOutput {
    pub(super) batches: Vec<RecordBatch>,
    /// Number of bytes of the messages in the batches.
    pub(super) bytes: usize,
}

/// One partition of a stage while it runs.
#[derive(Debug)]
pub struct Task<T> {
    pub(super) partition: usize,
    pub(super) context: Arc<TaskContext>,
    pub(super) input: Arc<dyn ExecutionPlan>,
    /// The context that the input is executed with.
    pub(super) input_context: Arc<TaskContext>,
    /// The state, if there is a second input.
    pub(super) state: Option<Arc<T>>,
    pub(super) metrics: ExecutionPlanMetricsSet,
    out: Sender<Result<RecordBatch>>,
}

impl<T> Task<T> {
    /// A memory reservation of the task, for a consumer of this name.
    pub(super) fn memory(&self, name: impl Into<String>) -> MemoryReservation {
        MemoryConsumer::new(name).register(self.context.memory_pool())
    }

    /// The metric of this name.
    pub(super) fn counter(&self, name: &'static str) -> Count {
        MetricBuilder::new(&self.metrics).counter(name, self.partition)
    }

    /// Gives `work` all rows of the input, and sends its output.
    ///
    /// # Errors
    /// Those of the input and of `work`.
    pub(super) async fn drive(
        &self,
        mut work: impl Consume,
        mut input: SendableRecordBatchStream,
    ) -> Result<()> {
        let rows = self.counter("input_rows");
        while let Some(batch) = input.try_next().await? {
            rows.add(batch.num_rows());
            if let Some(sent) = work.push(&batch)?
                && !self.send(sent).await
            {
                return Ok(());
            }
            tokio::task::consume_budget().await;
        }
        let rest = blocking(move || work.finish()).await?;
        self.send(rest).await;
        Ok(())
    }

    /// Sends batches. False if the receiver is gone.
    pub(super) async fn send(&self, sent: StageOutput) -> bool {
        self.counter("bytes_out").add(sent.bytes);
        let rows = self.counter("rows_out");
        for batch in sent.batches {
            rows.add(batch.num_rows());
            if self.out.send(Ok(batch)).await.is_err() {
                return false;
            }
        }
        true
    }
}

/// The operator of a stage.
pub(super) type StageExec<S> = Operator<StageWork<S>>;

/// The work of a stage: see [`crate::exec::staged`].
///
/// Metrics: `input_rows`, `rows_out`, and `bytes_out`, the bytes of messages to the next stage.
#[derive(Debug)]
pub struct StageWork<S: StageStep> {
    pub(super) step: S,
    /// The state from the second input.
    fetched: SharedState<S::State>,
}

/// The operator of a step over its input, and over the plan of its state if it has one.
///
/// # Errors
/// Internal errors only.
pub(super) fn stage<S: StageStep>(
    step: S,
    input: Arc<dyn ExecutionPlan>,
    state: Option<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let inputs = std::iter::once(input).chain(state).collect();
    let fetched = SharedState::default();
    Ok(Arc::new(Operator::over(StageWork { step, fetched }, inputs)?))
}

impl<S: StageStep> Work for StageWork<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        let partitions = match self.step.needs() {
            Needs::All => 1,
            Needs::Partition | Needs::ByKey(_) => inputs[0].output_partitioning().partition_count(),
        };
        Ok(at_the_end(self.step.schema(), partitions, &inputs[0]))
    }

    fn details(&self) -> String {
        self.step.to_string()
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        match self.step.needs() {
            Needs::ByKey(key) => vec![key],
            Needs::Partition | Needs::All => Vec::new(),
        }
    }

    fn distribution(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        let of_input = match self.step.needs() {
            Needs::Partition => Distribution::UnspecifiedDistribution,
            Needs::All => Distribution::SinglePartition,
            Needs::ByKey(key) => by_key(&inputs[0], vec![key]),
        };
        let of_state = inputs.iter().skip(1).map(|_| Distribution::SinglePartition);
        std::iter::once(of_input).chain(of_state).collect()
    }

    fn renewed(self: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            step: self.step.clone(),
            fetched: SharedState::default(),
        })
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let mut builder = RecordBatchReceiverStreamBuilder::new(on.schema(), 2);
        let input_context = S::input_context(&on.context);
        let rows = on.inputs[0].execute(on.partition, Arc::clone(&input_context))?;
        let mut task = Task {
            partition: on.partition,
            input: Arc::clone(&on.inputs[0]),
            input_context,
            state: None,
            metrics: on.metrics.clone(),
            out: builder.tx(),
            context: on.context,
        };
        let (work, state) = (Arc::clone(self), on.inputs.get(1).cloned());
        builder.spawn(async move {
            if let Some(plan) = state {
                let (context, step) = (Arc::clone(&task.context), work.step.clone());
                let state = work.fetched.get(async move {
                    let rows = plan.execute(0, Arc::clone(&context))?;
                    let rows: Vec<_> = rows.try_collect().await?;
                    step.state(&rows, &context)
                });
                task.state = Some(state.await?);
            }
            work.step.clone().run(task, rows).await
        });
        Ok(builder.build())
    }
}
