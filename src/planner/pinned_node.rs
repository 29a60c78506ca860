//! What runs on a device, as a leaf of the logical plan.
//!
//! ```text
//! Quantiles: aggr=[[exact_quantiles(fare, ..)]]  ->  Pinned: PinnedQuantilesExec: ..  ->  PinnedQuantilesExec: device=cuda:0 ..
//!   TableScan: trips projection=[fare]
//! ```
//! The node has no input: to plan the scan of a table that nobody is going to read can take longer than the query, as that
//! of a table in memory copies its list of batches. With `quantiles.device = 'auto'` the operator keeps the logical plan,
//! which is planned for the CPU when the device has failed.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, displayable};

use super::QuantilesNode;
use super::node::{Node, NodeKind};
use super::pinned::quantiles_on_device;
use super::pinned_topk::{calls_on_device, is_limited, is_topk, rows_on_device};
use super::query_planner::Rest;
use super::topk::rewrite_topk;
use crate::config::{DeviceChoice, QuantilesOptions};
use crate::exec::{PinnedExec, PlanFallback};
use crate::pinned::PinnedTables;

/// An aggregation, or a sort with a limit, that runs on a device.
pub(super) type PinnedNode = Node<PinnedKind>;

/// What a [`PinnedNode`] stands in for, and the operator.
#[derive(Debug, Clone)]
pub(super) struct PinnedKind {
    plan: LogicalPlan,
    exec: Arc<PinnedExec>,
}

impl PinnedNode {
    /// The operator, for one execution.
    pub(super) fn exec(&self) -> Arc<dyn ExecutionPlan> {
        Arc::new(self.kind.exec.fresh())
    }
}

// The operator follows from the plan.
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
        let exec = displayable(self.exec.as_ref()).one_line().to_string();
        exec.trim_end().to_owned()
    }
}

/// Replaces all that a device of the session's pinned tables can do.
///
/// # Errors
/// Those of the catalog; a planning error for a bad argument of a call.
pub(super) async fn mark_pinned(
    plan: LogicalPlan,
    rest: &Arc<Rest>,
    session: &dyn Session,
) -> Result<LogicalPlan> {
    let tables = PinnedTables::of(session);
    if tables.is_none_or(|tables| tables.is_empty()) {
        return Ok(plan);
    }
    let mut candidates = Vec::new();
    plan.apply_with_subqueries(|part| {
        if is_candidate(part) {
            candidates.push(part.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut nodes = Vec::new();
    for plan in candidates {
        if let Some(exec) = on_device(&plan, rest, session).await? {
            let (exec, schema) = (Arc::new(exec), Arc::clone(plan.schema()));
            nodes.push(PinnedNode::new(PinnedKind { plan, exec }, Vec::new(), schema));
        }
    }
    if nodes.is_empty() {
        return Ok(plan);
    }
    let marked = plan.transform_down_with_subqueries(|part| {
        Ok(match nodes.iter().find(|node| node.kind.plan == part) {
            Some(node) => Transformed::new(node.clone().into_plan(), true, TreeNodeRecursion::Jump),
            None => Transformed::no(part),
        })
    })?;
    Ok(marked.data)
}

fn is_candidate(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => is_topk(aggregate),
        LogicalPlan::Sort(sort) => is_limited(sort),
        other => QuantilesNode::of(other).is_some(),
    }
}

/// The operator on the device for `plan`; `None`: it runs as ever.
///
/// # Errors
/// As [`mark_pinned`].
pub(super) async fn on_device(
    plan: &LogicalPlan,
    rest: &Arc<Rest>,
    session: &dyn Session,
) -> Result<Option<PinnedExec>> {
    let exec = match plan {
        LogicalPlan::Aggregate(aggregate) if is_topk(aggregate) => {
            calls_on_device(aggregate, session).await?
        }
        LogicalPlan::Sort(sort) if is_limited(sort) => rows_on_device(sort, session).await?,
        other => match QuantilesNode::of(other) {
            Some(node) => quantiles_on_device(node, session).await?,
            None => None,
        },
    };
    let exec = match exec {
        Some(exec) if !exec.fits(&session.runtime_env().memory_pool).await => {
            log::debug!(
                "{} is planned for the CPU: its groups are too wide for the device",
                exec.name()
            );
            None
        }
        exec => exec,
    };
    if QuantilesOptions::of(session.config_options()).device != DeviceChoice::Auto {
        return Ok(exec);
    }
    // Without a session to plan in later there is no way back to the CPU.
    let state = session.as_any().downcast_ref::<SessionState>();
    Ok(exec.zip(state).map(|(exec, state)| {
        exec.with_fallback(Arc::new(OnCpu {
            plan: plan.clone(),
            state: state.clone(),
            rest: Arc::clone(rest),
        }))
    }))
}

/// The same on the CPU, over the table itself.
struct OnCpu {
    plan: LogicalPlan,
    state: SessionState,
    rest: Arc<Rest>,
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
        self.rest.plan(plan, &state).await
    }
}
