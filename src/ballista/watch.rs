//! Whether a statement on a cluster goes on, by what the scheduler tells of its tasks.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::JobId;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::physical_plan::ExecutionPlan;
use reqwest::Client;

use super::client::{address, http_client, innermost, job_of};

/// How often the scheduler is asked.
const PAUSE: Duration = Duration::from_secs(2);

/// How long no task of any statement may run while one is unfinished: the scheduler gives out tasks at once.
const LOST: Duration = Duration::from_secs(12);

/// What an error says of a statement that nobody works on.
pub(super) const LOST_TRACK: &str = "the scheduler has lost track of the statement";

/// What an error says of a statement that ran while an executor was lost.
pub(super) const LOST_EXECUTOR: &str = "an executor was lost while the statement ran";

/// More stages than any statement has: Ballista's adaptive planner replaces one without rows over and over.
const MOST_STAGES: usize = 1000;

/// Sees to a statement on a cluster, by what the scheduler tells of its executors and tasks.
///
/// Ballista 55 may count rows twice or wait for ever once an executor is lost. A statement that sees one go is an error, which
/// [`is_worth_another_try`](super::is_worth_another_try).
pub struct Watch {
    scheduler: Scheduler,
    /// The executors that were there when it began.
    executors: BTreeSet<String>,
}

impl Watch {
    /// Begins to watch, before a plan is executed on the cluster at `url`; `None` where the scheduler tells nothing.
    pub async fn start(url: &str) -> Option<Self> {
        let scheduler = Scheduler {
            client: http_client().ok()?,
            address: address(url),
        };
        let executors = scheduler.executors().await?;
        Some(Self { scheduler, executors })
    }

    /// Whether all executors that were there at the start still are.
    ///
    /// # Errors
    /// Names those that are lost.
    pub async fn check(&self) -> Result<()> {
        let Some(now) = self.scheduler.executors().await else {
            return Ok(());
        };
        let lost: Vec<&str> = self.executors.difference(&now).map(String::as_str).collect();
        match lost.is_empty() {
            true => Ok(()),
            false => exec_err!(
                "{LOST_EXECUTOR}, so that Ballista may count rows twice or wait for ever: {}",
                lost.join(", ")
            ),
        }
    }

    /// Waits until an executed plan is not to be waited for any more, for the reason that is returned; without end for a plan
    /// that is not a cluster's.
    ///
    /// `tell` gets a line each time that no task started or ended for as long as `patience`, with what the statement waits
    /// for.
    pub async fn run(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        patience: Duration,
        mut tell: impl FnMut(String),
    ) -> DataFusionError {
        let scheduler = &self.scheduler;
        let (mut seen, mut changed, mut told) = (String::new(), Instant::now(), Instant::now());
        loop {
            tokio::time::sleep(PAUSE).await;
            let Some(job) = job_of(plan) else {
                continue;
            };
            if let Err(lost) = self.check().await {
                return lost;
            }
            let now = scheduler.stages(&job).await;
            if now.as_ref().is_ok_and(|stages| stages.stages > MOST_STAGES) {
                return exec_datafusion_err!(
                    "Ballista 55 plans stage after stage for this statement and would never end: SET \
                     ballista.planner.adaptive.enabled = false (job {job})"
                );
            }
            let state = now.as_ref().map_or_else(ToString::to_string, Stages::state);
            if state != seen {
                (seen, changed, told) = (state, Instant::now(), Instant::now());
                continue;
            }
            let still = changed.elapsed();
            let none_runs = now.as_ref().is_ok_and(|stages| stages.running == 0);
            if still > LOST && none_runs && scheduler.is_idle(&job).await {
                return exec_datafusion_err!(
                    "{LOST_TRACK}: for {} seconds no executor has run a task of it, though all are free. See 'What Ballista \
                     55 answers wrongly or never' in docs/guide/cluster.md (job {job})",
                    still.as_secs()
                );
            }
            if told.elapsed() >= patience {
                told = Instant::now();
                if let Some(why) = scheduler.why(&now, &job).await {
                    tell(format!(
                        "No progress for {} seconds: {why} (job {job})",
                        still.as_secs()
                    ));
                }
            }
        }
    }
}

/// The REST side of a scheduler.
struct Scheduler {
    client: Client,
    address: String,
}

/// Why a scheduler tells nothing.
#[derive(Debug)]
enum Refusal {
    /// It does not answer, by this error.
    Silent(String),
    /// It answers with this status: it does not know the job, or tells of none.
    Told(u16),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(why) => write!(f, "silent: {why}"),
            Self::Told(status) => write!(f, "status {status}"),
        }
    }
}

/// What the scheduler says of the stages of a job.
struct Stages {
    text: String,
    /// How many there are.
    stages: usize,
    /// Tasks that run.
    running: usize,
    /// Tasks that have ended well.
    done: usize,
}

impl Stages {
    fn new(text: String) -> Self {
        let count = |what: &str| text.matches(&format!("\"status\":\"{what}\"")).count();
        Self {
            stages: text.matches("\"stage_id\":").count(),
            running: count("Running"),
            done: count("Successful"),
            text,
        }
    }

    /// The text without the times that pass while nothing happens.
    fn state(&self) -> String {
        let mut parts = self.text.split("\"elapsed_compute\":");
        let mut state = parts.next().unwrap_or_default().to_string();
        for part in parts {
            state += part.split_once(',').map_or("", |(_, rest)| rest);
        }
        state
    }
}

impl Scheduler {
    /// The text at a path below `/api`.
    ///
    /// # Errors
    /// Why there is none.
    async fn get(&self, path: &str) -> Result<String, Refusal> {
        let asked = self.client.get(format!("{}/api/{path}", self.address)).send();
        let silent = |error: reqwest::Error| Refusal::Silent(innermost(&error));
        let answer = asked.await.map_err(silent)?;
        match answer.status() {
            status if status.is_success() => answer.text().await.map_err(silent),
            status => Err(Refusal::Told(status.as_u16())),
        }
    }

    async fn stages(&self, job: &JobId) -> Result<Stages, Refusal> {
        Ok(Stages::new(self.get(&format!("job/{job}/stages")).await?))
    }

    /// The jobs that run, or `None` if that is not known.
    async fn running_jobs(&self) -> Option<Vec<String>> {
        let jobs = self.get("jobs").await.ok()?;
        let running = jobs.split("\"job_id\":\"").skip(1);
        let running = running.filter(|job| job.contains("\"status\":\"Running\""));
        Some(
            running
                .filter_map(|job| Some(job.split_once('"')?.0.to_string()))
                .collect(),
        )
    }

    /// The executors by their ids, or `None` if that is not known.
    async fn executors(&self) -> Option<BTreeSet<String>> {
        let executors = self.get("executors").await.ok()?;
        let ids = executors.split("{\"id\":\"").skip(1);
        Some(
            ids.filter_map(|rest| Some(rest.split_once('"')?.0.to_string()))
                .collect(),
        )
    }

    async fn count_executors(&self) -> usize {
        self.executors().await.map_or(0, |executors| executors.len())
    }

    /// Whether this job is to run, there are executors, and none of them runs a task of any job.
    async fn is_idle(&self, job: &JobId) -> bool {
        let Some(jobs) = self.running_jobs().await else {
            return false;
        };
        if !jobs.contains(&job.to_string()) || self.count_executors().await == 0 {
            return false;
        }
        for other in jobs {
            let stages = self.get(&format!("job/{other}/stages")).await;
            if !stages.is_ok_and(|text| Stages::new(text).running == 0) {
                return false;
            }
        }
        true
    }

    /// What a job that stands still waits for; `None` for one that is not known to run.
    async fn why(&self, stages: &Result<Stages, Refusal>, job: &JobId) -> Option<String> {
        let stages = match stages {
            Ok(stages) => stages,
            Err(Refusal::Told(_)) => return None,
            Err(Refusal::Silent(why)) => return Some(format!("the scheduler does not answer ({why})")),
        };
        let (jobs, executors) = (self.running_jobs().await?, self.count_executors().await);
        if !jobs.contains(&job.to_string()) {
            return None;
        }
        Some(match (executors, stages.running, jobs.len() - 1) {
            (0, _, _) => "there is no executor; start one with 'dfq executor'".to_string(),
            (_, 0, 0) => format!("none of its tasks runs, on {executors} executors"),
            (_, 0, others) => {
                format!("none of its tasks runs; {executors} executors work for {others} other statements")
            }
            (_, running, _) => format!(
                "{running} tasks run and none of them ends, after {} that have; executors: {executors}",
                stages.done
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(elapsed: &str, status: &str) -> Stages {
        Stages::new(format!(
            "{{\"stages\":[{{\"stage_id\":\"1\",\"stage_status\":\"Running\",\"elapsed_compute\":{elapsed},\"tasks\":[\
             {{\"id\":0,\"status\":\"Successful\"}},{{\"id\":1,\"status\":{status}}}]}},\
             {{\"stage_id\":\"2\",\"elapsed_compute\":null,\"tasks\":[]}}]}}"
        ))
    }

    #[test]
    fn the_state_of_stages_changes_with_their_tasks_and_not_with_time() {
        let running = stages("\"3.03s\"", "\"Running\"");
        assert_eq!((running.running, running.done), (1, 1));
        assert_eq!(running.state(), stages("\"4.99s\"", "\"Running\"").state());
        assert_eq!(running.state(), stages("null", "\"Running\"").state());
        let ended = stages("\"3.03s\"", "\"Successful\"");
        assert_eq!((ended.running, ended.done), (0, 2));
        assert_ne!(running.state(), ended.state());
        let failed = stages("\"3.03s\"", "{\"Failed\":{\"reason\":\"r\",\"error\":\"e\"}}");
        assert_eq!((failed.running, failed.done), (0, 1));
        assert_ne!(failed.state(), ended.state());
    }
}
