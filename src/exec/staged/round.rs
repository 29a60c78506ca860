//! One round in each partition: it reads the input and answers one request for each key column.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet};
use futures::TryStreamExt;

use super::columns::StagedColumns;
use super::device::RoundBackend;
use super::fingerprint::{ColumnFingerprint, READ_DIFFERENTLY};
use super::rows::{Body, Rows, read_rows, schema};
use super::stage::{Needs, StageExec, StageOutput, StageStep, Task, reached};
use super::state::{COMPARING_READ, State};
use crate::kernel::round::{Reply, Request};
use crate::kernel::{CpuBackend, Shard};
use crate::memory::RoundMemory;
use crate::threads::{Stop, StopOnDrop, blocking};

/// One round over every partition of the input, whose columns are the values of the key columns.
///
/// The plan has the requests of the first round. Those of a later round are in the state, which is the single row of the second
/// child. The output is rows of messages for a [`RefineExec`](super::RefineExec).
pub type RoundExec = StageExec<Round>;

/// The step of a [`RoundExec`].
#[derive(Debug, Clone)]
pub struct Round {
    pub(super) columns: Arc<StagedColumns>,
    /// Number of the read of the input, from 0.
    pub(super) read: usize,
}

/// The requests of a later round.
#[derive(Debug)]
pub struct PendingRound {
    /// The state's bytes, which are sent on.
    state: Vec<u8>,
    /// The request for each key column; `None` for a column that is done.
    requests: Vec<Option<Arc<Request>>>,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, columns) = (self.columns.rounds.named(self.read), self.columns.len());
        write!(f, "{kind}, columns={columns}")
    }
}

impl StageStep for Round {
    const NAME: &'static str = "RoundExec";

    type State = PendingRound;

    fn schema(&self) -> SchemaRef {
        schema(&[])
    }

    fn needs(&self) -> Needs {
        Needs::Partition
    }

    fn state(&self, rows: &[RecordBatch], _context: &TaskContext) -> Result<PendingRound> {
        let (mut states, schema) = (Vec::new(), schema(&[]));
        for batch in rows {
            for body in read_rows(batch, &schema, &self.columns.specs)? {
                states.push(body?);
            }
        }
        let [Body::State(bytes)] = states.as_slice() else {
            return exec_err!("{READ_DIFFERENTLY}: a stage gave no single state");
        };
        let state = State::from_bytes(bytes)?;
        if state.0.len() != self.columns.len() {
            return exec_err!("a state of {} columns for {}", state.0.len(), self.columns.len());
        }
        let columns = state.0.into_iter();
        Ok(PendingRound {
            state: bytes.to_vec(),
            requests: columns
                .map(|column| column.sent.map(|sent| sent.request))
                .collect(),
        })
    }

    /// The context of an input that can be read twice, where the CPU may take over from a device.
    fn input_context(context: &Arc<TaskContext>) -> Arc<TaskContext> {
        if RoundBackend::may_read_again(context) {
            without_work_stealing(context)
        } else {
            Arc::clone(context)
        }
    }

    /// Answers on the device. If it fails and the CPU may take over, reads the input again and answers on the CPU.
    async fn run(self, task: Task<PendingRound>, input: SendableRecordBatchStream) -> Result<()> {
        let memory = task.memory(Self::NAME);
        let cpu = || {
            let round_memory = RoundMemory::new(memory.new_empty());
            CpuBackend::in_workspace(&task.context.runtime_env(), round_memory)
        };
        let backend = Arc::new(RoundBackend::of(&task.context, cpu()));
        let shards = |backend| OpenShards::open(&self, backend, &memory, &task);
        let sent = match shards(&backend)?.reply(input).await {
            Err(error) if backend.has_failed() => {
                log::warn!("partition {} is read anew, for the CPU: {error}", task.partition);
                task.counter("cuda_fallback").add(1);
                let input = task
                    .input
                    .execute(task.partition, Arc::clone(&task.input_context))?;
                shards(&Arc::new(RoundBackend::cpu(cpu())))?.reply(input).await
            }
            other => other,
        }?;
        task.send(sent).await;
        Ok(())
    }
}

/// A context with which a partition of a scan can be executed twice. DataFusion's default lets the partitions of a plan take files from
/// one queue, each file once; here each partition has files of its own.
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

/// The shards of one partition: one for each key column.
struct OpenShards {
    shards: Vec<Box<dyn Shard>>,
    backend: Arc<RoundBackend>,
    /// Fingerprint of what was read of each key column.
    fingerprints: Vec<ColumnFingerprint>,
    round: Round,
    /// The requests of a later round; `None` in the first round, whose requests the plan has.
    pending: Option<Arc<PendingRound>>,
    metrics: ExecutionPlanMetricsSet,
    rows: Count,
    candidates: Count,
}

impl OpenShards {
    fn open(
        round: &Round,
        backend: &Arc<RoundBackend>,
        memory: &MemoryReservation,
        task: &Task<PendingRound>,
    ) -> Result<Self> {
        let specs = round.columns.specs();
        let shards = specs.map(|spec| backend.open(spec, memory.new_empty()));
        Ok(Self {
            shards: shards.collect::<Result<_>>()?,
            backend: Arc::clone(backend),
            fingerprints: vec![ColumnFingerprint::default(); round.columns.len()],
            round: round.clone(),
            pending: task.state.clone(),
            metrics: task.metrics.clone(),
            rows: task.counter("input_rows"),
            candidates: task.counter("candidates_out"),
        })
    }

    /// Whether columns that are done are read again, to be compared with what the first read saw of them.
    fn compares(&self) -> bool {
        self.round.read == COMPARING_READ
    }

    /// Reads the input and answers the requests.
    async fn reply(mut self, input: SendableRecordBatchStream) -> Result<StageOutput> {
        let is_done = |pending: &Arc<PendingRound>| pending.requests.iter().all(Option::is_none);
        // Without a request nothing needs to be read.
        if self.compares() || !self.pending.as_ref().is_some_and(is_done) {
            self = self.read(input).await?;
        }
        if self.pending.is_some() {
            reached!("round_count");
        } else {
            reached!("round_sketch");
        }
        let stop = Stop::default();
        let held = StopOnDrop(stop.clone());
        let sent = blocking(move || self.answer(&stop)).await?;
        drop(held);
        Ok(sent)
    }

    /// Fills the shards from the input.
    async fn read(mut self, mut stream: SendableRecordBatchStream) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if self.backend.has_device() {
            let read = crate::threads::fed(vec![stream], move |batches| {
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
        if batch.num_columns() != self.shards.len() {
            return internal_err!(
                "{} columns of values for {} shards",
                batch.num_columns(),
                self.shards.len()
            );
        }
        for (index, spec) in self.round.columns.specs().enumerate() {
            let values: &ArrayRef = batch.column(index);
            let (n, check) = spec.checksum(values.as_ref())?;
            self.fingerprints[index].add(ColumnFingerprint { n, check });
            self.shards[index].append(values, None)?;
        }
        Ok(())
    }

    /// The replies of all shards that have a request, as rows.
    fn answer(mut self, stop: &Stop) -> Result<StageOutput> {
        let (mut rows, columns) = (Rows::default(), Arc::clone(&self.round.columns));
        let compares = self.compares();
        for (index, shard) in self.shards.iter_mut().enumerate() {
            let read = self.fingerprints[index];
            let request = match &self.pending {
                None => {
                    let width = columns.specs[index].width();
                    Some(Arc::new(columns.rounds.first_request(read.n, width)))
                }
                Some(pending) => pending.requests[index].clone(),
            };
            let reply = match request {
                Some(request) => shard.answer(&request, stop)?,
                None if compares => Reply::Extracted(Vec::new()),
                None => continue,
            };
            self.candidates.add(reply.values() as usize);
            rows.reply(index, read, reply);
        }
        self.backend.record(&self.metrics);
        if let Some(pending) = &self.pending {
            rows.state(&pending.state);
        }
        rows.finish(&schema(&[]), &[])
    }
}
