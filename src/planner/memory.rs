//! Plans where the memory pool has a limit: what DataFusion's operators would hold without a reservation is held by operators of ours.
//!
//! ```text
//! WindowAggExec                                           ->   ReservingWindowExec
//!
//! AggregateExec: mode=Final, aggr=[array_agg(x), ..]      ->   GroupedQuantilesExec: plain=[array_agg(x), ..]
//!   AggregateExec: mode=Partial, aggr=[array_agg(x), ..]
//! ```
//! The states of `array_agg` are all the values; the partial step passes them on, and nobody has reserved them until the final step has
//! taken them in.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::functions_aggregate::array_agg::ArrayAgg;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, InputOrderMode};

use super::call_spec::aggregate_call;
use crate::exec::{ExecAggregate, GroupedQuantilesExec, PlainAggregate, ReservingWindowExec};

/// The session with the rules of this module, for a plan that they are for, where memory has a limit; `None`: the session as it is. A
/// rule that a session has always cannot know of its memory pool, and a plan that is changed after all rules is not the one that `EXPLAIN`
/// shows.
///
/// # Errors
/// Those of walking through the plan.
pub(super) fn with_memory_rules(plan: &LogicalPlan, session: &dyn Session) -> Result<Option<SessionState>> {
    let limit = session.runtime_env().memory_pool.memory_limit();
    let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
        return Ok(None);
    };
    if !matches!(limit, MemoryLimit::Finite(_)) || !keeps_rows(plan)? {
        return Ok(None);
    }
    let id = state.session_id().to_owned();
    let mut builder = SessionStateBuilder::new_from_existing(state.clone()).with_session_id(id);
    // Before exchanges are put in, of which the operator needs none.
    let built_in = &mut builder.physical_optimizers().get_or_insert_default().rules;
    built_in.insert(0, Arc::new(HostedAggregatesRule));
    let builder = builder.with_physical_optimizer_rule(Arc::new(ReservingWindowsRule));
    Ok(Some(builder.build()))
}

/// Whether there are windows, or groups of which all rows are kept.
fn keeps_rows(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found = match node {
            LogicalPlan::Window(_) => true,
            LogicalPlan::Aggregate(aggregate) => {
                let mut calls = aggregate.aggr_expr.iter().filter_map(aggregate_call);
                calls.any(|call| call.func.inner().is::<ArrayAgg>())
            }
            _ => false,
        };
        Ok(match found {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(found)
}

/// Puts [`ReservingWindowExec`] in the place of `WindowAggExec`. `BoundedWindowAggExec` holds few rows.
#[derive(Debug)]
struct ReservingWindowsRule;

impl PhysicalOptimizerRule for ReservingWindowsRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| {
            Ok(match plan.downcast_ref::<WindowAggExec>() {
                Some(window) if !plan.boundedness().is_unbounded() => {
                    Transformed::yes(Arc::new(ReservingWindowExec::try_new(window.clone())?))
                }
                _ => Transformed::no(plan),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "reserving_windows"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Puts [`GroupedQuantilesExec`] in the place of hash aggregations with `array_agg`: it reserves what accumulators keep, and takes rows of
/// many groups to disk before they are aggregated.
#[derive(Debug)]
struct HostedAggregatesRule;

impl PhysicalOptimizerRule for HostedAggregatesRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| {
            Ok(match hosted(plan.as_ref())? {
                Some(hosted) => Transformed::yes(Arc::new(hosted)),
                None => Transformed::no(plan),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "hosted_aggregates"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The operator for both steps of an aggregation that keeps rows; `None` for anything else.
fn hosted(plan: &dyn ExecutionPlan) -> Result<Option<GroupedQuantilesExec>> {
    let Some(last) = plan.downcast_ref::<AggregateExec>() else {
        return Ok(None);
    };
    let Some(first) = last.input().downcast_ref::<AggregateExec>() else {
        return Ok(None);
    };
    let is_pair = matches!(
        last.mode(),
        AggregateMode::Final | AggregateMode::FinalPartitioned
    ) && *first.mode() == AggregateMode::Partial;
    let group = first.group_expr();
    let is_plain = group.is_single()
        && !group.expr().is_empty()
        && *first.input_order_mode() == InputOrderMode::Linear
        && last.limit_options().is_none()
        && !first.input().boundedness().is_unbounded();
    if !is_pair || !is_plain {
        return Ok(None);
    }
    let calls = first.aggr_expr().iter().zip(first.filter_expr());
    let calls = calls.map(|(expr, filter)| PlainAggregate::new(Arc::clone(expr), filter.clone()));
    let calls: Vec<PlainAggregate> = calls.collect();
    if calls.iter().any(PlainAggregate::needs_order) || !calls.iter().any(PlainAggregate::keeps_input) {
        return Ok(None);
    }
    let group = group.expr().iter().map(|(expr, _)| Arc::clone(expr));
    let calls = calls.into_iter().map(ExecAggregate::Plain);
    let input = Arc::clone(first.input());
    GroupedQuantilesExec::try_new(input, group.collect(), calls.collect(), last.schema()).map(Some)
}
