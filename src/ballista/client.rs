//! A session whose queries run on a cluster.

use std::sync::Arc;
use std::time::Duration;

use ballista::extension::SessionContextExt;
use ballista_core::JobId;
use ballista_core::execution_plans::DistributedQueryExec;
use ballista_core::serde::protobuf::CancelJobParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
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
use super::{Identity, StoreLimits, runtime, session_config};
use crate::exec::staged::READ_DIFFERENTLY;
use crate::functions::DELIVERED_TWICE;
use crate::planner::register_all;

/// A scheduler's port, unless its address names one.
const PORT: u16 = 50050;

/// What errors say of callers that show no certificate of the cluster, or another one.
const STRANGERS: &str = "not authorised";

/// What an error says of a scheduler that takes no certificates.
const OPEN: &str = "asks nobody for a certificate or token";

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
    check(url, Identity::of(&config).as_deref()).await?;
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
async fn check(url: &str, identity: Option<&Identity>) -> Result<()> {
    let parsed = Url::parse(url).ok().filter(|parsed| parsed.scheme() == "df");
    if parsed.is_none_or(|parsed| parsed.host_str().is_none()) {
        return config_err!("'{url}' is no address of a cluster: allowed is df://host or df://host:port");
    };
    match ask(url, "readyz", identity).await? {
        response if response.status().is_success() => Ok(()),
        // It is not ready as long as one is missing of those that it was started for.
        response if response.status().as_u16() == 503 && has_executors(url, identity).await => Ok(()),
        response if response.status().as_u16() == 503 => {
            exec_err!("the scheduler at {url} has no executor yet: start one with 'dfq executor'")
        }
        response => exec_err!(
            "what answers at {url} is no Ballista scheduler: {} gives {}",
            response.url(),
            response.status()
        ),
    }
}

/// What the scheduler at `url` answers to a caller with this identity.
///
/// # Errors
/// Where nobody answers, and where the caller is a stranger: see [`is_of_a_stranger`].
async fn ask(url: &str, path: &str, identity: Option<&Identity>) -> Result<reqwest::Response> {
    let asked = format!("{}/{path}", address(url, identity));
    match http_client(identity)?.get(asked).send().await {
        Ok(response) if response.status().as_u16() == 401 => {
            let told = response.text().await.unwrap_or_default();
            exec_err!("the scheduler at {url}: {told}")
        }
        Ok(response) => Ok(response),
        Err(error) => exec_err!("{}", unanswered(url, identity, &innermost(&error))),
    }
}

/// Checks, before an executor starts, that the scheduler at `url` serves it: Ballista's executor would ask again and again.
/// Where no scheduler answers yet, nothing is known.
///
/// # Errors
/// An execution error where the scheduler and this process do not know each other's certificates or token.
pub async fn check_membership(url: &str, identity: Option<&Identity>) -> Result<()> {
    match ask(url, "healthz", identity).await {
        Err(error) if is_of_a_stranger(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether a process of a cluster did not serve a caller for want of a certificate or token that both know.
fn is_of_a_stranger(error: &DataFusionError) -> bool {
    [STRANGERS, OPEN]
        .iter()
        .any(|text| error.to_string().contains(text))
}

/// Why a scheduler did not answer.
fn unanswered(url: &str, identity: Option<&Identity>, error: &str) -> String {
    // A scheduler of another authority ends the connection when it sees the certificate, some after the caller has.
    let is_stranger = error.contains("certificate") || error.contains("fatal alert");
    match (identity.is_some(), is_stranger) {
        (true, true) => format!(
            "{STRANGERS}: the scheduler at {url} and this program do not know the same token, or do not trust each \
             other's certificates ({error})"
        ),
        (true, false) if error.contains("corrupt message") => format!(
            "the scheduler at {url} {OPEN}, and what is sent to it can be read: start it \
             with the same ones ({error})"
        ),
        _ => format!(
            "no scheduler answers at {url}: start one with 'dfq scheduler', or correct the address ({error})"
        ),
    }
}

async fn has_executors(url: &str, identity: Option<&Identity>) -> bool {
    match Scheduler::at(url, identity) {
        Some(scheduler) => scheduler.executors().await.is_ok_and(|ids| !ids.is_empty()),
        None => false,
    }
}

/// Where a scheduler's services are, from its address, for callers with this identity.
pub(super) fn address(url: &str, identity: Option<&Identity>) -> String {
    let scheme = identity.map_or("http://", |_| "https://");
    let host = url.replacen("df://", scheme, 1);
    let host = host.trim_end_matches('/');
    match Url::parse(url).is_ok_and(|url| url.port().is_none()) {
        true => format!("{host}:{PORT}"),
        false => host.to_string(),
    }
}

/// A client of a cluster's HTTP services, which gives up after 10 seconds.
///
/// # Errors
/// A configuration error, if there can be none.
pub fn http_client(identity: Option<&Identity>) -> Result<reqwest::Client> {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy();
    let client = match identity {
        Some(identity) => client.use_preconfigured_tls(identity.client()),
        None => client,
    };
    let client = client.build();
    client.map_err(|error| config_datafusion_err!("no client for HTTP: {}", innermost(&error)))
}

/// The endpoint of the gRPC services at an address, `df://host:port`, not yet connected.
///
/// # Errors
/// A configuration error for an address that is none.
pub fn endpoint(url: &str, identity: Option<&Identity>) -> Result<tonic::transport::Endpoint> {
    let config = GrpcClientConfig::default();
    let wrong = |error: tonic::transport::Error| config_datafusion_err!("'{url}': {}", innermost(&error));
    let plain = create_grpc_client_endpoint(address(url, None), Some(&config)).map_err(wrong)?;
    match identity {
        Some(identity) => identity.secured(&plain, &config).map_err(wrong),
        None => Ok(plain),
    }
}

/// The cause that says most: those around it name the request.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}

/// Cancels what the cluster at `url` still does for a plan that a session of this configuration executed, if that is a
/// cluster's.
///
/// # Errors
/// Where the scheduler cannot be told.
pub async fn cancel(url: &str, plan: &Arc<dyn ExecutionPlan>, config: &SessionConfig) -> Result<()> {
    let Some(job) = job_of(plan) else {
        return Ok(());
    };
    let endpoint = endpoint(url, Identity::of(config).as_deref())?;
    let cancelled = async {
        let scheduler = endpoint.connect().await.map_err(|error| innermost(&error))?;
        let mut scheduler = SchedulerGrpcClient::new(scheduler);
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
    fn what_strangers_are_told_is_known() {
        assert!(super::super::listener::NOT_AUTHORISED.starts_with(STRANGERS));
    }

    #[test]
    fn services_are_at_the_port_of_the_address_or_at_that_of_schedulers() {
        for (url, expected) in [
            ("df://localhost", "http://localhost:50050"),
            ("df://localhost/", "http://localhost:50050"),
            ("df://10.0.0.7:80", "http://10.0.0.7:80"),
            ("df://[::1]", "http://[::1]:50050"),
            ("df://[::1]:7", "http://[::1]:7"),
        ] {
            assert_eq!(address(url, None), expected);
        }
    }
}
