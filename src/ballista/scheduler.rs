//! A client for a scheduler's REST API: its executors, jobs and tasks, in JSON.

use std::collections::BTreeSet;

use ballista_core::JobId;
use reqwest::Client;
use serde_json::Value;

use super::endpoint::{address, http_client, innermost};
use super::identity::Identity;

/// A client for the REST API of a scheduler.
pub(super) struct Scheduler {
    client: Client,
    address: String,
}

/// The reason why a scheduler does not give some information.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It does not answer, by this error.
    Silent(String),
    /// It does not know the job, or its answer is not of the expected form.
    Unknown,
}

/// The state of a job's stages.
#[derive(Debug)]
pub(super) struct Stages {
    /// The scheduler's whole answer, without the times that change while nothing happens.
    pub(super) state: String,
    /// Number of stages.
    pub(super) stages: usize,
    /// Number of tasks that run.
    pub(super) running: usize,
    /// Number of tasks that have succeeded.
    pub(super) done: usize,
}

impl Stages {
    /// The stages in an answer of the scheduler; `None` for an answer without stages.
    fn new(mut told: Value) -> Option<Self> {
        let stages = told.get_mut("stages")?.as_array_mut()?;
        for stage in stages.iter_mut() {
            stage.as_object_mut()?.remove("elapsed_compute");
        }
        let tasks = stages.iter().filter_map(|stage| stage["tasks"].as_array());
        let states: Vec<&Value> = tasks.flatten().map(|task| &task["status"]).collect();
        let count = |what: &str| states.iter().filter(|state| **state == what).count();
        Some(Self {
            stages: stages.len(),
            running: count("Running"),
            done: count("Successful"),
            state: told.to_string(),
        })
    }
}

/// A job and its status: `Queued`, `Running`, `Completed` or `Failed`.
#[derive(Debug, PartialEq)]
pub(super) struct Job {
    pub(super) id: String,
    pub(super) status: String,
}

/// The jobs in an answer of the scheduler; `None` for an answer of another form.
fn jobs(told: &Value) -> Option<Vec<Job>> {
    let job = |job: &Value| {
        Some(Job {
            id: job["job_id"].as_str()?.to_owned(),
            status: job["status"].as_str()?.to_owned(),
        })
    };
    told.as_array()?.iter().map(job).collect()
}

/// The ids of the executors in an answer of the scheduler; `None` for an answer of another form.
fn executors(told: &Value) -> Option<BTreeSet<String>> {
    let id = |executor: &Value| Some(executor["id"].as_str()?.to_owned());
    told.as_array()?.iter().map(id).collect()
}

impl Scheduler {
    /// A client for the scheduler at `url`; `None` if no HTTP client can be made.
    pub(super) fn at(url: &str, identity: Option<&Identity>) -> Option<Self> {
        Some(Self {
            client: http_client(identity).ok()?,
            address: address(url, identity),
        })
    }

    /// The JSON at a path below `/api`.
    async fn get(&self, path: &str) -> Result<Value, Refusal> {
        let asked = self.client.get(format!("{}/api/{path}", self.address)).send();
        let silent = |error: reqwest::Error| Refusal::Silent(innermost(&error));
        let answer = asked.await.map_err(silent)?;
        if answer.status().is_success() {
            let text = answer.text().await.map_err(silent)?;
            serde_json::from_str(&text).map_err(|_| Refusal::Unknown)
        } else {
            Err(Refusal::Unknown)
        }
    }

    /// The stages of a job.
    pub(super) async fn stages(&self, job: &JobId) -> Result<Stages, Refusal> {
        let told = self.get(&format!("job/{job}/stages")).await?;
        Stages::new(told).ok_or(Refusal::Unknown)
    }

    /// All jobs that the scheduler knows, also those that have ended.
    pub(super) async fn jobs(&self) -> Result<Vec<Job>, Refusal> {
        jobs(&self.get("jobs").await?).ok_or(Refusal::Unknown)
    }

    /// The ids of all executors.
    pub(super) async fn executors(&self) -> Result<BTreeSet<String>, Refusal> {
        executors(&self.get("executors").await?).ok_or(Refusal::Unknown)
    }

    /// Whether this job has the status `Running` and there are executors, but none of them runs a task of any job.
    pub(super) async fn is_idle(&self, job: &JobId) -> bool {
        let Ok(jobs) = self.jobs().await else {
            return false;
        };
        let running: Vec<&Job> = jobs.iter().filter(|job| job.status == "Running").collect();
        if !running.iter().any(|running| running.id == job.to_string())
            || self.executors().await.map_or(0, |executors| executors.len()) == 0
        {
            return false;
        }
        for other in running {
            let stages = self.stages(&other.id.clone().into()).await;
            if !stages.is_ok_and(|stages| stages.running == 0) {
                return false;
            }
        }
        true
    }

    /// The reason, as text, why a job makes no progress.
    pub(super) async fn why(&self, stages: &Result<Stages, Refusal>, job: &JobId) -> String {
        if let Err(Refusal::Silent(why)) = stages {
            return format!("the scheduler does not answer ({why})");
        }
        match (self.jobs().await, self.executors().await) {
            (Ok(jobs), Ok(executors)) => {
                let stages = stages.as_ref().ok();
                waits_for(job.as_ref(), &jobs, executors.len(), stages)
            }
            _ => "the scheduler tells nothing of its jobs".to_owned(),
        }
    }
}

/// The reason, as text, why one of these jobs makes no progress on this number of executors.
fn waits_for(job: &str, jobs: &[Job], executors: usize, stages: Option<&Stages>) -> String {
    let status = jobs.iter().find(|known| known.id == job);
    match status.map(|job| job.status.as_str()) {
        None => {
            return "the scheduler does not know it, or no more: it may have been started again".to_owned();
        }
        Some("Queued") => return "the scheduler has not planned it yet".to_owned(),
        Some("Completed") => {
            return "its tasks have ended, and its rows have not arrived from the executors".to_owned();
        }
        Some("Failed") => return "it has failed, and its error has not arrived".to_owned(),
        Some(_) => {}
    }
    let others = jobs.iter().filter(|other| other.status == "Running").count() - 1;
    let (running, done) = stages.map_or((0, 0), |stages| (stages.running, stages.done));
    match (executors, running, others) {
        (0, _, _) => "there is no executor; start one with 'dfq executor'".to_owned(),
        (_, 0, 0) => format!("none of its tasks runs, on {executors} executors"),
        (_, 0, others) => {
            format!("none of its tasks runs; {executors} executors work for {others} other statements")
        }
        (_, running, _) => format!(
            "{running} tasks run and none of them ends, after {done} that have; executors: {executors}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stages(elapsed: Value, status: Value) -> Stages {
        let told = json!({"stages": [
            {"stage_id": "1", "stage_status": "Running", "elapsed_compute": elapsed,
             "stage_plan": "FilterExec: a = '\"status\":\"Running\"'",
             "tasks": [{"id": 0, "status": "Successful"}, {"id": 1, "status": status}, null]},
            {"stage_id": "2", "elapsed_compute": null, "tasks": []}]});
        Stages::new(told).unwrap()
    }

    #[test]
    fn the_state_of_stages_changes_with_their_tasks_and_not_with_time() {
        let running = stages(json!("3.03s"), json!("Running"));
        // A text in a plan is no task.
        assert_eq!((running.stages, running.running, running.done), (2, 1, 1));
        assert_eq!(running.state, stages(json!("4.99s"), json!("Running")).state);
        assert_eq!(running.state, stages(json!(null), json!("Running")).state);
        let ended = stages(json!("3.03s"), json!("Successful"));
        assert_eq!((ended.running, ended.done), (0, 2));
        assert_ne!(running.state, ended.state);
        let failed = stages(json!("3.03s"), json!({"Failed": {"reason": "r", "error": "e"}}));
        assert_eq!((failed.running, failed.done), (0, 1));
        assert_ne!(failed.state, ended.state);
        for other in [
            json!([]),
            json!({"stages": 3}),
            json!({"stages": [1]}),
            json!("stages"),
        ] {
            assert!(Stages::new(other.clone()).is_none(), "{other}");
        }
    }

    #[test]
    fn jobs_and_executors_are_read_whatever_their_names_hold() {
        let told = json!([
            {"job_name": "\"status\":\"Running\"", "job_id": "a", "status": "Completed"},
            {"job_id": "b", "job_name": "{\"id\":\"x\"", "status": "Running"}]);
        let job = |id: &str, status: &str| Job {
            id: id.to_owned(),
            status: status.to_owned(),
        };
        assert_eq!(
            jobs(&told),
            Some(vec![job("a", "Completed"), job("b", "Running")])
        );
        assert_eq!(jobs(&json!([{"job_id": 3}])), None);
        let told = json!([{"host": "h", "id": "e2"}, {"id": "e1", "os_info": {"id": "linux"}}]);
        assert_eq!(executors(&told), Some(["e1", "e2"].map(str::to_owned).into()));
        assert_eq!(executors(&json!({"error": "none"})), None);
    }

    #[test]
    fn a_job_that_stands_still_is_never_without_a_reason() {
        let job = |id: &str, status: &str| Job {
            id: id.to_owned(),
            status: status.to_owned(),
        };
        let running = stages(json!(null), json!("Running"));
        let none = stages(json!(null), json!("Successful"));
        let of = |status, executors, stages| {
            let jobs = [job("other", "Running"), job("mine", status)];
            waits_for("mine", &jobs, executors, stages)
        };
        assert!(of("Queued", 1, None).contains("not planned"));
        assert!(of("Completed", 1, Some(&none)).contains("rows have not arrived"));
        assert!(of("Failed", 1, None).contains("error has not arrived"));
        assert!(of("Running", 0, Some(&running)).contains("no executor"));
        assert!(of("Running", 2, Some(&none)).contains("2 executors work for 1 other statements"));
        assert!(of("Running", 2, Some(&running)).contains("1 tasks run and none of them ends, after 1"));
        assert!(of("Running", 2, None).contains("none of its tasks runs"));
        assert!(waits_for("mine", &[], 1, None).contains("does not know it"));
    }
}
