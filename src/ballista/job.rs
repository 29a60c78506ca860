//! The job of a statement on a cluster.

use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::execution_plans::DistributedQueryExec;
use ballista_core::serde::protobuf::CancelJobParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use datafusion::common::{Result, exec_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::LogicalPlanNode;

use super::endpoint::{PATIENCE, endpoint, innermost};
use super::identity::Identity;

/// Cancels the job of a plan that a session of this configuration executes on the cluster at `url`. Does nothing for a plan that no
/// cluster executes.
///
/// # Errors
/// An execution error if the scheduler does not answer, or refuses.
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

/// The node of a plan that a cluster executes, if there is one.
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

/// The job of an executed plan; `None` if no cluster executes it, or before the scheduler has accepted it.
pub(super) fn job_of(plan: &Arc<dyn ExecutionPlan>) -> Option<JobId> {
    query_of(plan)?.job_id()
}
