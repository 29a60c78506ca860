//! The query planner of a cluster's client. It wraps Ballista's planner, which sends plans to a scheduler.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::execution_plans::DistributedQueryExec;
use ballista_core::planner::BallistaQueryPlanner;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::protobuf::LogicalPlanNode;

use crate::exec::PlannedTypesExec;

/// A client's query planner: Ballista's, with answers cast to the types that were planned.
#[derive(Debug)]
pub(super) struct ClientPlanner {
    inner: Arc<dyn QueryPlanner + Send + Sync>,
}

impl ClientPlanner {
    /// The planner around `inner`, a planner of Ballista's.
    pub(super) fn new(inner: Arc<dyn QueryPlanner + Send + Sync>) -> Self {
        Self { inner }
    }

    /// Whether `planner`, which sends plans to a Ballista scheduler, is a [`ClientPlanner`]; `None` if it sends no plans.
    pub(super) fn sends(planner: &dyn Any) -> Option<bool> {
        let wrapped = planner.is::<Self>();
        (wrapped || planner.is::<BallistaQueryPlanner<LogicalPlanNode>>()).then_some(wrapped)
    }
}

#[async_trait]
impl QueryPlanner for ClientPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let sent = self.inner.create_physical_plan(plan, session).await?;
        // Under EXPLAIN ANALYZE the query is below an operator whose rows are the client's own: their types need no cast.
        match sent.downcast_ref::<DistributedQueryExec<LogicalPlanNode>>() {
            Some(_) => Ok(Arc::new(PlannedTypesExec::try_new(sent)?)),
            None => Ok(sent),
        }
    }
}
