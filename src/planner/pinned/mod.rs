//! Queries over pinned tables, on their devices.
//!
//! ```text
//! Quantiles: aggr=[[exact_quantiles(fare, ..)]]  ->  Pinned: device=cuda:0 ..  ->  PinnedExec: device=cuda:0 ..
//!   TableScan: trips projection=[fare]
//! ```
//! The rule replaces each plan that a device can compute by a [`PinnedNode`]. It asks the catalog whether a scan reads a pinned table,
//! and the device whether groups are too wide for it. The node carries the query, and the physical planner makes the operator of it.

mod nearest;
mod node;
mod predicate;
mod quantiles;
mod scan;
mod table;
mod topk;

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;

use super::QuantilesNode;
use super::grouped_topk::TopKNode;
use crate::config::{DeviceChoice, QuantilesOptions};
use crate::exec::PinnedTables;
use nearest::nearest_query;
use node::PinnedKind;
pub(super) use node::{FallbackPlanner, PinnedNode};
use quantiles::quantiles_query;
pub(super) use scan::PinnedScanNode;
use scan::{joined, pinned_scan};
use topk::{TopKCalls, group_rows_query, is_limited, sort_limit_query, topk_query};

/// Replaces all parts of the plan that the devices of the session's pinned tables can compute. `fallback` plans for the CPU when a device
/// has failed. `timed`: whether to measure the time of each kernel.
///
/// # Errors
/// Errors of the catalog; a planning error for a bad argument of a call.
pub(super) async fn mark_pinned(
    plan: LogicalPlan,
    fallback: &FallbackPlanner,
    timed: bool,
    session: &dyn Session,
) -> Result<LogicalPlan> {
    let tables = PinnedTables::of(session);
    if tables.is_none_or(|tables| tables.is_empty()) {
        return Ok(plan);
    }
    let (mut candidates, mut sides) = (Vec::new(), Vec::new());
    let topk = QuantilesOptions::of(session.config_options()).topk;
    plan.apply_with_subqueries(|part| {
        if topk {
            sides.extend(joined(part).into_iter().cloned());
        }
        if is_candidate(part) {
            candidates.push(part.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut nodes = Vec::new();
    for plan in &candidates {
        nodes.extend(pinned_node(plan, fallback, timed, session).await?);
    }
    let mut scans = Vec::new();
    for side in &sides {
        scans.extend(pinned_scan(side, timed, session).await?);
    }
    if nodes.is_empty() && scans.is_empty() {
        return Ok(plan);
    }
    let marked = plan.transform_down_with_subqueries(|part| {
        Ok(match nodes.iter().find(|node| node.kind.plan == part) {
            Some(node) => Transformed::new(node.clone().into_plan(), true, TreeNodeRecursion::Jump),
            None => with_scans(part, &scans),
        })
    })?;
    Ok(marked.data)
}

/// A join of all pairs over the nodes of those inputs that have one; other plans as they are.
fn with_scans(mut plan: LogicalPlan, scans: &[PinnedScanNode]) -> Transformed<LogicalPlan> {
    if joined(&plan).is_empty() {
        return Transformed::no(plan);
    }
    let LogicalPlan::Join(join) = &mut plan else {
        return Transformed::no(plan);
    };
    let mut marked = false;
    for side in [&mut join.left, &mut join.right] {
        if let Some(scan) = scans.iter().find(|scan| scan.input() == side.as_ref()) {
            *side = Arc::new(scan.clone().into_plan());
            marked = true;
        }
    }
    Transformed::new(plan, marked, TreeNodeRecursion::Continue)
}

fn is_candidate(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(sort) => is_limited(sort),
        other => {
            let is_node = QuantilesNode::of(other).is_some() || TopKNode::of(other).is_some();
            is_node || TopKCalls::of(other).is_some()
        }
    }
}

/// The node for `plan`. `None` if a device cannot compute it, so that it is planned as any other.
///
/// # Errors
/// As [`mark_pinned`].
pub(super) async fn pinned_node(
    plan: &LogicalPlan,
    fallback: &FallbackPlanner,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedNode>> {
    let query = match plan {
        LogicalPlan::Sort(sort) if is_limited(sort) => match sort_limit_query(sort, timed, session).await? {
            Some(query) => Some(query),
            None => nearest_query(sort, timed, session).await?,
        },
        other => match (
            QuantilesNode::of(other),
            TopKCalls::of(other),
            TopKNode::of(other),
        ) {
            (Some(node), ..) => quantiles_query(node, timed, session).await?,
            (_, Some(calls), _) => topk_query(calls, timed, session).await?,
            (.., Some(node)) => group_rows_query(node, timed, session).await?,
            _ => None,
        },
    };
    let Some(query) = query.map(Arc::new) else {
        return Ok(None);
    };
    if !query.fits(&session.runtime_env().memory_pool).await {
        let table = query.table.source.name();
        log::debug!("a query over {table} is planned for the CPU: its groups are too wide for the device");
        return Ok(None);
    }
    let falls_back = QuantilesOptions::of(session.config_options()).device == DeviceChoice::Auto;
    // Without a `SessionState` the fallback could not be planned later.
    if falls_back && !session.as_any().is::<SessionState>() {
        return Ok(None);
    }
    let fallback = falls_back.then(|| Arc::clone(fallback));
    let (plan, schema) = (plan.clone(), Arc::clone(plan.schema()));
    let kind = PinnedKind {
        plan,
        query,
        fallback,
    };
    Ok(Some(PinnedNode::new(kind, Vec::new(), schema)))
}
