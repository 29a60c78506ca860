//! The watch over a statement on a cluster: whether it makes progress, by the scheduler's report of its tasks.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ballista_core::JobId;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::prelude::SessionConfig;
use futures::{StreamExt, TryStreamExt};

use super::identity::Identity;
use super::job::{is_of_a_cluster, job_of};
use super::scheduler::{Refusal, Scheduler, Stages};
use crate::threads::locked;

/// Time between two questions to the scheduler.
const PAUSE: Duration = Duration::from_secs(2);

/// Time between two questions to the scheduler while an executor may be lost.
const SOON: Duration = Duration::from_millis(200);

/// Time without a running task of any statement after which an unfinished statement is lost: the scheduler gives out tasks at once.
const LOST: Duration = Duration::from_secs(12);

/// First words of the error for a statement that no executor works on.
pub(super) const LOST_TRACK: &str = "the scheduler has lost track of the statement";

/// First words of the error for a statement that ran while an executor was lost.
pub(super) const LOST_EXECUTOR: &str = "an executor was lost while the statement ran";

/// Most stages of a statement: Ballista's adaptive planner can replace a stage without rows over and over.
const MOST_STAGES: usize = 1000;

/// Time that a scheduler takes by default to give up a lost executor: 20 seconds, checked every 3 seconds.
const NOTICED: Duration = Duration::from_secs(25);

/// Words of errors that a broken connection caused, such as those of tasks that read from a lost executor.
const BROKEN: [&str; 7] = [
    "h2 protocol error",
    "error reading a body from connection",
    "transport error",
    "tcp connect error",
    "broken pipe",
    "Connection reset",
    "Connection refused",
];

/// How many tasks of a statement there are, in all of its stages that have begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// Tasks that have succeeded.
    pub done: usize,
    /// Tasks that run.
    pub running: usize,
}

/// The watch over a statement on a cluster, by the scheduler's report of its executors and tasks.
///
/// Ballista 55 may count rows twice or wait for ever once an executor is lost. So the loss of an executor is an error of the statement,
/// which [`is_worth_another_try`](super::is_worth_another_try).
pub struct Watch {
    scheduler: Scheduler,
    /// The ids of the executors at the start.
    executors: BTreeSet<String>,
    /// Number of batches of the answer that have arrived.
    arrived: AtomicU64,
    /// The tasks as the scheduler last reported them.
    tasks: Mutex<Option<TaskCounts>>,
}

impl Watch {
    /// Begins to watch, before a plan of a session with this configuration is executed on the cluster at `url`. `None` if the scheduler
    /// does not report its executors.
    pub async fn start(url: &str, config: &SessionConfig) -> Option<Self> {
        let scheduler = Scheduler::at(url, Identity::of(config).as_deref())?;
        let executors = scheduler.executors().await.ok()?;
        Some(Self {
            scheduler,
            executors,
            arrived: AtomicU64::new(0),
            tasks: Mutex::new(None),
        })
    }

    /// The tasks of the statement that [`Self::run`] watches, as the scheduler reported them at most a few seconds ago; `None` before its
    /// first report.
    pub fn tasks(&self) -> Option<TaskCounts> {
        *locked(&self.tasks)
    }

    /// Checks that all executors of the start are still there. A scheduler that does not answer is asked again for 25 seconds.
    ///
    /// # Errors
    /// An execution error that names the lost executors, or that says that the scheduler does not answer.
    pub async fn check(&self) -> Result<()> {
        let started = Instant::now();
        loop {
            match self.scheduler.executors().await {
                Err(Refusal::Silent(_)) if started.elapsed() < NOTICED => tokio::time::sleep(SOON).await,
                Err(Refusal::Silent(why)) => {
                    return exec_err!("{LOST_EXECUTOR}, perhaps: the scheduler does not answer ({why})");
                }
                now => return self.compare(&now),
            }
        }
    }

    /// Checks the executors of the start against those of now; no error if the scheduler does not report them.
    fn compare(&self, now: &Result<BTreeSet<String>, Refusal>) -> Result<()> {
        let Ok(now) = now else {
            return Ok(());
        };
        let lost: Vec<&str> = self.executors.difference(now).map(String::as_str).collect();
        if lost.is_empty() {
            Ok(())
        } else {
            exec_err!(
                "{LOST_EXECUTOR}, so that Ballista may count rows twice or wait for ever: {}",
                lost.join(", ")
            )
        }
    }

    /// The rows of `stream`. The first row is given only after a check that no executor was lost.
    ///
    /// An error of a connection is given only after the scheduler had the time to notice a lost executor; then it is the error of
    /// [`Self::check`].
    pub fn checked(self: &Arc<Self>, mut stream: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let (watch, schema) = (Arc::clone(self), stream.schema());
        let checked = async move {
            let first = stream.next().await;
            if let Some(Err(error)) = first {
                return Err(watch.explained(error).await);
            }
            watch.check().await?;
            let rows = futures::stream::iter(first).chain(stream);
            Ok(rows.inspect(move |_| {
                watch.arrived.fetch_add(1, Ordering::Relaxed);
            }))
        };
        let checked = futures::stream::once(checked).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(schema, checked))
    }

    /// The error of a statement, or the error that an executor was lost, if that may be the cause.
    async fn explained(&self, error: DataFusionError) -> DataFusionError {
        let started = Instant::now();
        loop {
            let now = self.scheduler.executors().await;
            if let Err(lost) = self.compare(&now) {
                return lost;
            }
            if !is_of_a_connection(&error) || now.is_err() || started.elapsed() > NOTICED {
                return error;
            }
            tokio::time::sleep(SOON).await;
        }
    }

    /// Watches an executed plan, and returns the reason why it will not end. Never returns for a plan that no cluster executes.
    ///
    /// `tell` gets a line whenever no task started or ended, and no rows arrived, for as long as `patience`. The line says what the
    /// statement waits for. Once rows of [`Self::checked`] have arrived, a lost executor is no reason any more: the answer is complete,
    /// and rows that cannot be fetched are an error of the stream.
    pub async fn run(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        patience: Duration,
        mut tell: impl FnMut(String),
    ) -> DataFusionError {
        if !is_of_a_cluster(plan) {
            return std::future::pending().await;
        }
        let mut seen = (String::new(), 0);
        let (mut changed, mut told) = (Instant::now(), Instant::now());
        loop {
            tokio::time::sleep(PAUSE).await;
            let arrived = self.arrived.load(Ordering::Relaxed);
            let job = job_of(plan);
            let now = match &job {
                Some(job) => match self.look(job, arrived > 0).await {
                    Ok(stages) => stages,
                    Err(lost) => return lost,
                },
                None => Err(Refusal::Unknown),
            };
            // Without an answer of the scheduler there is no sign of progress.
            let state = now.as_ref().map_or(seen.0.clone(), |stages| stages.state.clone());
            if (&state, arrived) != (&seen.0, seen.1) {
                (seen, changed, told) = ((state, arrived), Instant::now(), Instant::now());
                continue;
            }
            let still = changed.elapsed();
            if let (Some(job), Ok(stages)) = (&job, &now)
                && still > LOST
                && stages.running == 0
                && self.scheduler.is_idle(job).await
            {
                return exec_datafusion_err!(
                    "{LOST_TRACK}: for {} seconds no executor has run a task of it, though all are free. See 'What Ballista \
                     55 answers wrongly or never' in docs/guide/cluster.md (job {job})",
                    still.as_secs()
                );
            }
            if told.elapsed() >= patience {
                told = Instant::now();
                let why = match &job {
                    Some(job) => format!("{} (job {job})", self.scheduler.why(&now, job).await),
                    None => "the scheduler has not accepted the statement".to_owned(),
                };
                tell(format!("No progress for {} seconds: {why}", still.as_secs()));
            }
        }
    }

    /// The current state of a job's stages.
    ///
    /// # Errors
    /// An execution error if an executor was lost before the answer was complete, and if the job has too many stages.
    async fn look(&self, job: &JobId, is_answered: bool) -> Result<Result<Stages, Refusal>> {
        let executors = self.scheduler.executors().await;
        if !is_answered {
            self.compare(&executors)?;
        }
        if let Err(silent @ Refusal::Silent(_)) = executors {
            return Ok(Err(silent));
        }
        let now = self.scheduler.stages(job).await;
        if let Ok(stages) = &now {
            let (done, running) = (stages.done, stages.running);
            *locked(&self.tasks) = Some(TaskCounts { done, running });
        }
        if now.as_ref().is_ok_and(|stages| stages.stages > MOST_STAGES) {
            return exec_err!(
                "Ballista 55 plans stage after stage for this statement and would never end: SET \
                 ballista.planner.adaptive.enabled = false (job {job})"
            );
        }
        Ok(now)
    }
}

/// Whether the cause of an error may be a broken connection to a lost process.
fn is_of_a_connection(error: &DataFusionError) -> bool {
    let text = error.to_string();
    BROKEN.iter().any(|cause| text.contains(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_connections_are_told_from_those_of_statements() {
        let broken = "Job 038 failed: Job failed due to stage 3 failed: Task failed due to runtime execution error: \
             DataFusionError(Shared(External(ArrowError(IpcError(\"Arrow error: Ipc error: code: 'Unknown error', message: \
             \\\"h2 protocol error: error reading a body from connection\\\", source: hyper::Error(Body, Error { kind: \
             Io(Custom { kind: BrokenPipe, error: \\\"stream closed because of a broken pipe\\\" }) })\"))))";
        assert!(is_of_a_connection(&exec_datafusion_err!("{broken}")));
        for other in [
            "Divide by zero error",
            "No field named x",
            "ResourcesExhausted: 3 MB",
        ] {
            assert!(!is_of_a_connection(&exec_datafusion_err!("{other}")), "{other}");
        }
    }
}
