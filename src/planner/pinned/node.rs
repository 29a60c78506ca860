//! A leaf of the logical plan for a query that a device answers.
//!
//! The node has no input. The scan of the table is not needed, and to plan it can take longer than the query: the scan of a table in
//! memory copies the table's list of batches. With `quantiles.device = 'auto'` the operator keeps the logical plan, which is planned
//! for the CPU when the device has failed.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;

use crate::config::{DeviceChoice, QuantilesOptions};
use crate::exec::{PinnedExec, PinnedQuery, PlanFallback};
use crate::planner::grouped_topk::rewrite_topk;
use crate::planner::node::{Node, NodeKind};

/// The planner that makes a plan for the CPU after a device has failed.
pub(in crate::planner) type FallbackPlanner = Arc<dyn QueryPlanner + Send + Sync>;

/// An aggregation, or a sort with a limit, that runs on a device.
pub(in crate::planner) type PinnedNode = Node<PinnedKind>;

/// The logical plan that a [`PinnedNode`] stands for, and the query that it became.
#[derive(Debug, Clone)]
pub(in crate::planner) struct PinnedKind {
    pub(super) plan: LogicalPlan,
    pub(super) query: Arc<PinnedQuery>,
    /// Plans `plan` for the CPU when the device has failed. `None`: a failure is the error of the query.
    pub(super) fallback: Option<FallbackPlanner>,
}

impl PinnedNode {
    /// The operator of the node.
    ///
    /// # Errors
    /// Internal errors only.
    pub(in crate::planner) fn exec(&self, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        let PinnedKind {
            plan,
            query,
            fallback,
        } = &self.kind;
        // Without a `SessionState` the fallback could not be planned later.
        let state = session.as_any().downcast_ref::<SessionState>();
        let fallback = fallback.as_ref().zip(state).map(|(planner, state)| {
            Arc::new(CpuFallback {
                plan: plan.clone(),
                state: state.clone(),
                planner: Arc::clone(planner),
            }) as Arc<dyn PlanFallback>
        });
        Ok(Arc::new(PinnedExec::try_new(Arc::clone(query), fallback)?))
    }
}

// The query follows from the plan.
impl PartialEq for PinnedKind {
    fn eq(&self, other: &Self) -> bool {
        self.plan == other.plan
    }
}

impl Eq for PinnedKind {}

impl Hash for PinnedKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.plan.hash(state);
    }
}

impl NodeKind for PinnedKind {
    fn name(&self) -> &'static str {
        "Pinned"
    }

    fn details(&self) -> String {
        self.query.to_string()
    }
}

/// The fallback of a node: its logical plan, and what is needed to plan it for the CPU, over the table itself.
struct CpuFallback {
    plan: LogicalPlan,
    state: SessionState,
    planner: FallbackPlanner,
}

impl fmt::Debug for CpuFallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuFallback")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl PlanFallback for CpuFallback {
    async fn plan(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let mut state = self.state.clone();
        let options = state.config_mut().options_mut();
        if let Some(options) = options.extensions.get_mut::<QuantilesOptions>() {
            options.device = DeviceChoice::Cpu;
        }
        let plan = if QuantilesOptions::of(state.config_options()).topk {
            rewrite_topk(self.plan.clone(), false)?.data
        } else {
            self.plan.clone()
        };
        self.planner.create_physical_plan(&plan, &state).await
    }
}
