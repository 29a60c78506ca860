//! What runs on a device, as a leaf of the logical plan.
//!
//! ```text
//! Quantiles: aggr=[[exact_quantiles(fare, ..)]]  ->  Pinned: PinnedQuantilesExec: ..  ->  PinnedQuantilesExec: device=cuda:0 ..
//!   TableScan: trips projection=[fare]
//! ```
//! The node has no input: to plan the scan of a table that nobody is going to read can take longer than the query, as that
//! of a table in memory copies its list of batches. With `quantiles.device = 'auto'` the operator keeps the logical plan,
//! which is planned for the CPU when the device has failed.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::physical_plan::{ExecutionPlan, displayable};

use super::QuantilesNode;
use super::pinned::quantiles_on_device;
use super::pinned_topk::{calls_on_device, is_limited, is_topk, rows_on_device};
use super::query_planner::Rest;
use super::topk::rewrite_topk;
use crate::config::{DeviceChoice, QuantilesOptions};
use crate::exec::{PinnedExec, PlanFallback};
use crate::pinned::PinnedTables;

/// An aggregation, or a sort with a limit, that runs on a device.
#[derive(Debug, Clone)]
pub(super) struct PinnedNode {
    plan: LogicalPlan,
    exec: Arc<PinnedExec>,
}

impl PinnedNode {
    /// The operator, for one execution.
    pub(super) fn exec(&self) -> Arc<dyn ExecutionPlan> {
        Arc::new(self.exec.fresh())
    }
}

// The operator follows from the plan.
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
        let exec = displayable(self.exec.as_ref()).one_line().to_string();
        write!(f, "Pinned: {}", exec.trim_end())
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        match exprs.is_empty() && inputs.is_empty() {
            true => Ok(self.clone()),
            false => internal_err!("a Pinned node has no expressions and no inputs"),
        }
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
            let exec = Arc::new(exec);
            nodes.push(PinnedNode { plan, exec });
        }
    }
    if nodes.is_empty() {
        return Ok(plan);
    }
    let marked = plan.transform_down_with_subqueries(|part| {
        Ok(match nodes.iter().find(|node| node.plan == part) {
            Some(node) => {
                let node = Arc::new(node.clone());
                let node = LogicalPlan::Extension(Extension { node });
                Transformed::new(node, true, TreeNodeRecursion::Jump)
            }
            None => Transformed::no(part),
        })
    })?;
    Ok(marked.data)
}

fn is_candidate(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => is_topk(aggregate),
        LogicalPlan::Sort(sort) => is_limited(sort),
        other => quantiles_node(other).is_some(),
    }
}

fn quantiles_node(plan: &LogicalPlan) -> Option<&QuantilesNode> {
    match plan {
        LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
        _ => None,
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
        other => match quantiles_node(other) {
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
