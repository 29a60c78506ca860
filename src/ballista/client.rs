//! A session whose queries run on a cluster.

use std::sync::Arc;
use std::time::Duration;

use ballista::extension::SessionContextExt;
use ballista_core::JobId;
use ballista_core::execution_plans::DistributedQueryExec;
use ballista_core::serde::protobuf::CancelJobParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use datafusion::common::{
    DataFusionError, Result, config_datafusion_err, config_err, exec_datafusion_err, exec_err,
};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_proto::protobuf::LogicalPlanNode;
use url::Url;

use super::scheduler::Scheduler;
use super::watch::{LOST_EXECUTOR, LOST_TRACK};
use super::{StoreLimits, runtime, session_config};
use crate::exec::staged::READ_DIFFERENTLY;
use crate::functions::DELIVERED_TWICE;
use crate::planner::register_all;

/// A scheduler's port, unless its address names one.
const PORT: u16 = 50050;

/// How long a scheduler may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A session on the cluster of this scheduler, `df://host:port`, with this crate's functions and options.
///
/// # Errors
/// For an address that is none, where no scheduler answers, and while it has no executor: a query would wait for one.
pub async fn connect(url: &str) -> Result<SessionContext> {
    connect_with_config(url, session_config()).await
}

/// As [`connect`], with a configuration: one that [`session_config`] gave, changed.
///
/// # Errors
/// As [`connect`].
pub async fn connect_with_config(url: &str, config: SessionConfig) -> Result<SessionContext> {
    check(url).await?;
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_runtime_env(runtime(None, StoreLimits::default())?)
        .build();
    let ctx = SessionContext::remote_with_state(url, state).await?;
    register_all(&ctx)?;
    Ok(ctx)
}

/// Asks the scheduler whether it is ready for queries.
async fn check(url: &str) -> Result<()> {
    let parsed = Url::parse(url).ok().filter(|parsed| parsed.scheme() == "df");
    if parsed.is_none_or(|parsed| parsed.host_str().is_none()) {
        return config_err!("'{url}' is no address of a cluster: allowed is df://host or df://host:port");
    };
    let ready = format!("{}/readyz", address(url));
    let client = http_client().map_err(|error| config_datafusion_err!("no client for {url}: {error}"))?;
    match client.get(&ready).send().await {
        Ok(response) if response.status().is_success() => Ok(()),
        // It is not ready as long as one is missing of those that it was started for.
        Ok(response) if response.status().as_u16() == 503 && has_executors(url).await => Ok(()),
        Ok(response) if response.status().as_u16() == 503 => {
            exec_err!("the scheduler at {url} has no executor yet: start one with 'dfq executor'")
        }
        Ok(response) => exec_err!(
            "what answers at {url} is no Ballista scheduler: {ready} gives {}",
            response.status()
        ),
        Err(error) => exec_err!(
            "no scheduler answers at {url}: start one with 'dfq scheduler', or correct the address ({})",
            innermost(&error)
        ),
    }
}

async fn has_executors(url: &str) -> bool {
    match Scheduler::at(url) {
        Some(scheduler) => scheduler.executors().await.is_ok_and(|ids| !ids.is_empty()),
        None => false,
    }
}

/// Where a scheduler's services are, from its address.
pub(super) fn address(url: &str) -> String {
    let host = url.replacen("df://", "http://", 1);
    let host = host.trim_end_matches('/');
    match Url::parse(url).is_ok_and(|url| url.port().is_none()) {
        true => format!("{host}:{PORT}"),
        false => host.to_string(),
    }
}

/// A client that asks a scheduler what no query is.
pub(super) fn http_client() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder().timeout(PATIENCE).no_proxy().build()
}

/// The cause that says most: those around it name the request.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}

/// Cancels what the cluster at `url` still does for an executed plan, if that is a cluster's.
///
/// # Errors
/// Where the scheduler cannot be told.
pub async fn cancel(url: &str, plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    let Some(job) = job_of(plan) else {
        return Ok(());
    };
    let cancelled = async {
        let mut scheduler = SchedulerGrpcClient::connect(address(url))
            .await
            .map_err(|error| innermost(&error))?;
        let params = CancelJobParams {
            job_id: job.to_string(),
        };
        let cancelled = scheduler.cancel_job(params).await;
        cancelled.map_err(|error| error.message().to_owned())
    };
    match tokio::time::timeout(PATIENCE, cancelled).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => exec_err!("the scheduler at {url} did not cancel job {job}: {error}"),
        Err(_) => exec_err!("the scheduler at {url} did not cancel job {job} in {PATIENCE:?}"),
    }
}

/// The node of a plan that a cluster executes.
fn query_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&DistributedQueryExec<LogicalPlanNode>> {
    match plan.downcast_ref() {
        Some(query) => Some(query),
        None => plan.children().into_iter().find_map(query_of),
    }
}

/// Whether a cluster executes the plan.
pub(super) fn is_of_a_cluster(plan: &Arc<dyn ExecutionPlan>) -> bool {
    query_of(plan).is_some()
}

/// The job that an executed plan is, if it is a cluster's, and its scheduler has accepted it.
pub(super) fn job_of(plan: &Arc<dyn ExecutionPlan>) -> Option<JobId> {
    query_of(plan)?.job_id()
}

/// Whether a query failed because a machine was lost or its input changed while it ran, so that it may succeed if it is
/// run again.
pub fn is_worth_another_try(error: &DataFusionError) -> bool {
    let text = error.to_string();
    [READ_DIFFERENTLY, DELIVERED_TWICE, LOST_TRACK, LOST_EXECUTOR]
        .iter()
        .any(|failure| text.contains(failure))
}

/// The same error, with what to do about it if the cluster is not set up for this crate.
pub fn explained(error: DataFusionError) -> DataFusionError {
    let text = error.to_string();
    let hint = if text.contains("rejected by executor") {
        "an executor may not know this crate's operators: start executors with 'dfq executor' of the same version"
    } else if text.contains("Error during planning: Invalid function")
        || text.contains("There is no UDF named")
        || text.contains("There is no UDAF named")
    {
        "the scheduler may not know this crate's functions: start it with 'dfq scheduler' of the same version"
    } else {
        return error;
    };
    exec_datafusion_err!("{} ({hint})", error.strip_backtrace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_at_the_port_of_the_address_or_at_that_of_schedulers() {
        for (url, expected) in [
            ("df://localhost", "http://localhost:50050"),
            ("df://localhost/", "http://localhost:50050"),
            ("df://10.0.0.7:80", "http://10.0.0.7:80"),
            ("df://[::1]", "http://[::1]:50050"),
            ("df://[::1]:7", "http://[::1]:7"),
        ] {
            assert_eq!(address(url), expected);
        }
    }
}
