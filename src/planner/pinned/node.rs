//! What a device answers, as a leaf of the logical plan: what is asked of a pinned table.
//!
//! The node has no input: to plan the scan of a table that nobody is going to read can take longer than the query, as that
//! of a table in memory copies its list of batches. With `quantiles.device = 'auto'` the operator keeps the logical plan,
//! which is planned for the CPU when the device has failed.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::physical_plan::ExecutionPlan;

use crate::config::{DeviceChoice, QuantilesOptions};
use crate::exec::{PinnedExec, PinnedQuestion, PlanFallback};
use crate::planner::topk::rewrite_topk;

/// What plans for the CPU after a device has failed.
pub(in crate::planner) type FallbackPlanner = Arc<dyn QueryPlanner + Send + Sync>;

/// An aggregation, or a sort with a limit, that runs on a device.
#[derive(Debug, Clone)]
pub(in crate::planner) struct PinnedNode {
    /// What it stands in for.
    plan: LogicalPlan,
    question: Arc<PinnedQuestion>,
    /// Plans `plan` for the CPU when the device has failed; `None`: a failure is the query's error.
    fallback: Option<FallbackPlanner>,
}

impl PinnedNode {
    /// The node for `plan`, which asks `question`.
    pub(super) fn new(
        plan: &LogicalPlan,
        question: Arc<PinnedQuestion>,
        fallback: Option<FallbackPlanner>,
    ) -> Self {
        Self {
            plan: plan.clone(),
            question,
            fallback,
        }
    }

    /// The plan that it stands in for.
    pub(super) fn plan(&self) -> &LogicalPlan {
        &self.plan
    }

    /// The operator.
    ///
    /// # Errors
    /// None but internal ones.
    pub(in crate::planner) fn exec(&self, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        // Without a session to plan in later there is no way back to the CPU.
        let state = session.as_any().downcast_ref::<SessionState>();
        let fallback = self.fallback.as_ref().zip(state).map(|(planner, state)| {
            Arc::new(OnCpu {
                plan: self.plan.clone(),
                state: state.clone(),
                planner: Arc::clone(planner),
            }) as Arc<dyn PlanFallback>
        });
        Ok(Arc::new(PinnedExec::try_new(
            Arc::clone(&self.question),
            fallback,
        )?))
    }
}

// The question follows from the plan.
impl PartialEq for PinnedNode {
    fn eq(&self, other: &Self) -> bool {
        self.plan == other.plan
    }
}

impl Eq for PinnedNode {}

impl std::hash::Hash for PinnedNode {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.plan.hash(state);
    }
}

impl PartialOrd for PinnedNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.plan.partial_cmp(&other.plan)
    }
}

impl UserDefinedLogicalNodeCore for PinnedNode {
    fn name(&self) -> &str {
        "Pinned"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        Vec::new()
    }

    fn schema(&self) -> &DFSchemaRef {
        self.plan.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Pinned: {}", self.question)
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        match exprs.is_empty() && inputs.is_empty() {
            true => Ok(self.clone()),
            false => internal_err!("a Pinned node has no expressions and no inputs"),
        }
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
