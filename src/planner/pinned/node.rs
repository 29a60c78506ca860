//! What a device answers, as a leaf of the logical plan: what is asked of a pinned table.
//!
//! The node has no input: to plan the scan of a table that nobody is going to read can take longer than the query, as that
//! of a table in memory copies its list of batches. With `quantiles.device = 'auto'` the operator keeps the logical plan,
//! which is planned for the CPU when the device has failed.

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
use crate::exec::{PinnedExec, PinnedQuestion, PlanFallback};
use crate::planner::grouped_topk::rewrite_topk;
use crate::planner::node::{Node, NodeKind};

/// What plans for the CPU after a device has failed.
pub(in crate::planner) type FallbackPlanner = Arc<dyn QueryPlanner + Send + Sync>;

/// An aggregation, or a sort with a limit, that runs on a device.
pub(in crate::planner) type PinnedNode = Node<PinnedKind>;

/// What a [`PinnedNode`] stands in for, and what it asks.
#[derive(Debug, Clone)]
pub(in crate::planner) struct PinnedKind {
    pub(super) plan: LogicalPlan,
    pub(super) question: Arc<PinnedQuestion>,
    /// Plans `plan` for the CPU when the device has failed; `None`: a failure is the query's error.
    pub(super) fallback: Option<FallbackPlanner>,
}

impl PinnedNode {
    /// The operator.
    ///
    /// # Errors
    /// None but internal ones.
    pub(in crate::planner) fn exec(&self, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        let PinnedKind {
            plan,
            question,
            fallback,
        } = &self.kind;
        // Without a session to plan in later there is no way back to the CPU.
        let state = session.as_any().downcast_ref::<SessionState>();
        let fallback = fallback.as_ref().zip(state).map(|(planner, state)| {
            Arc::new(OnCpu {
                plan: plan.clone(),
                state: state.clone(),
                planner: Arc::clone(planner),
            }) as Arc<dyn PlanFallback>
        });
        Ok(Arc::new(PinnedExec::try_new(Arc::clone(question), fallback)?))
    }
}

// The question follows from the plan.
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
        self.question.to_string()
    }
}

/// The plan that a node stands in for, over the table itself.
struct OnCpu {
    plan: LogicalPlan,
    state: SessionState,
    planner: FallbackPlanner,
}

impl fmt::Debug for OnCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnCpu")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl PlanFallback for OnCpu {
    async fn plan(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let mut state = self.state.clone();
        let options = state.config_mut().options_mut();
        if let Some(options) = options.extensions.get_mut::<QuantilesOptions>() {
            options.device = DeviceChoice::Cpu;
        }
        let plan = match QuantilesOptions::of(state.config_options()).topk {
            true => rewrite_topk(self.plan.clone(), false)?.data,
            false => self.plan.clone(),
        };
        self.planner.create_physical_plan(&plan, &state).await
    }
}
