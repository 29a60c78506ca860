//! Queries that run a second time if an executor is lost, as `dfq sql` runs them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNode;
use datafusion::dataframe::DataFrame;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::TryStreamExt;
use futures::future::{Either, select};
use tokio::runtime::Handle;

use super::client::{explained, is_worth_another_try};
use super::job::cancel;
use super::watch::Watch;

/// Time without progress after which a warning is logged.
const STANDSTILL: Duration = Duration::from_secs(60);

/// Collects a query of a session that [`connect`](super::connect) made with this `url`. If a machine of the cluster is lost while the
/// query runs, it runs a second time, unless it [`writes`]. A minute without progress is a warning in the log. Dropping the future
/// cancels the query.
///
/// # Errors
/// Those of the query; of its second run if there was one.
pub async fn collect(url: &str, query: DataFrame) -> Result<Vec<RecordBatch>> {
    let answer = match collect_once(url, query.clone()).await {
        Err(error) if is_worth_another_try(&error) && !writes(query.logical_plan())? => {
            log::warn!("Trying once more: {error}");
            collect_once(url, query).await
        }
        answer => answer,
    };
    answer.map_err(explained)
}

async fn collect_once(url: &str, query: DataFrame) -> Result<Vec<RecordBatch>> {
    let task = Arc::new(query.task_ctx());
    let plan = query.create_physical_plan().await?;
    let Some(watch) = Watch::start(url, task.session_config()).await.map(Arc::new) else {
        return execute_stream(plan, task)?.try_collect().await;
    };
    let rows = watch.checked(execute_stream(Arc::clone(&plan), Arc::clone(&task))?);
    let job = UnfinishedJob(Some((url.to_owned(), Arc::clone(&plan), task)));
    let lost = watch.run(&plan, STANDSTILL, |line| log::warn!("{line}"));
    match select(pin!(rows.try_collect()), pin!(lost)).await {
        Either::Left((rows, _)) => {
            job.has_ended();
            rows
        }
        Either::Right((lost, _)) => Err(lost),
    }
}

/// The job of a plan on the cluster at an address, which is cancelled when this is dropped: nobody waits for it any more.
struct UnfinishedJob(Option<(String, Arc<dyn ExecutionPlan>, Arc<TaskContext>)>);

impl UnfinishedJob {
    /// Leaves the job alone.
    fn has_ended(mut self) {
        self.0 = None;
    }
}

impl Drop for UnfinishedJob {
    fn drop(&mut self) {
        let (Some((url, plan, task)), Ok(runtime)) = (self.0.take(), Handle::try_current()) else {
            return;
        };
        runtime.spawn(async move {
            if let Err(error) = cancel(&url, &plan, task.session_config()).await {
                log::warn!("{error}");
            }
        });
    }
}

/// Whether a statement may change something outside its answer, so that it must not run twice.
///
/// # Errors
/// Those of visiting a plan: none are known.
pub fn writes(statement: &LogicalPlan) -> Result<bool> {
    // EXPLAIN ANALYZE executes its statement.
    statement.exists(|node| {
        Ok(matches!(
            node,
            LogicalPlan::Copy(_) | LogicalPlan::Dml(_) | LogicalPlan::Ddl(_)
        ))
    })
}
