//! The planner of a cluster's client: Ballista's, which sends plans to a scheduler.

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

/// A client's planner: Ballista's, whose answers have the types that were planned.
#[derive(Debug)]
pub(super) struct ClientPlanner {
    inner: Arc<dyn QueryPlanner + Send + Sync>,
}

impl ClientPlanner {
    /// Around this planner.
    pub(super) fn new(inner: Arc<dyn QueryPlanner + Send + Sync>) -> Self {
        Self { inner }
    }

    /// Whether a planner that sends plans to a Ballista scheduler is one of these already; `None`: it sends none.
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
        // EXPLAIN ANALYZE has it below an operator whose rows are the client's own.
        match sent.downcast_ref::<DistributedQueryExec<LogicalPlanNode>>() {
            Some(_) => Ok(Arc::new(PlannedTypesExec::try_new(sent)?)),
            None => Ok(sent),
        }
    }
}
