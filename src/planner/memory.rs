//! Optimizer rules for memory pools with a limit. They replace operators of DataFusion that hold memory without a
//! reservation by operators of this crate.
//!
//! ```text
//! WindowAggExec                                           ->   ReservingWindowExec
//!
//! BoundedWindowAggExec without PARTITION BY               ->   BoundedWindowAggExec
//!   rows with columns of views                            ->     KeptViewsExec
//!                                                         ->       rows with columns of views
//!
//! AggregateExec: mode=Final, aggr=[array_agg(x), ..]      ->   GroupedQuantilesExec: plain=[array_agg(x), ..]
//!   AggregateExec: mode=Partial, aggr=[array_agg(x), ..]
//! ```
//! The partial states of `array_agg` are all its values. The partial step passes them on, and nobody reserves memory
//! for them until the final step has taken them in. Sorts are changed by the rule of [`sorts`](super::sorts).

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::functions_aggregate::array_agg::ArrayAgg;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, InputOrderMode, ReplaceChildrenOptions,
};

use super::call_spec::aggregate_call;
use super::sorts::{SpillingSortsRule, is_large};
use crate::exec::{ExecAggregate, GroupedQuantilesExec, KeptViewsExec, PlainAggregate, ReservingWindowExec};
use crate::memory::limit;

/// The session with the rules of this module; `None` if memory has no limit, or the plan needs none of the rules.
///
/// The rules are added for each query: a rule of the session itself does not see the memory pool, and a plan that is
/// changed after all rules is not the plan that `EXPLAIN` shows.
///
/// # Errors
/// DataFusion's, for a plan that cannot be walked through.
pub(super) fn with_memory_rules(plan: &LogicalPlan, session: &dyn Session) -> Result<Option<SessionState>> {
    let (Some(limit), Some(state)) = (
        limit(session.runtime_env().memory_pool.as_ref()),
        session.as_any().downcast_ref::<SessionState>(),
    ) else {
        return Ok(None);
    };
    let partitions = state.config().target_partitions();
    if !any_node(plan, |node| keeps_rows(node) || is_large(node, partitions, limit))? {
        return Ok(None);
    }
    let id = state.session_id().to_owned();
    let runtime = Arc::clone(state.runtime_env());
    let mut builder = SessionStateBuilder::new_from_existing(state.clone()).with_session_id(id);
    // First, before the rule that puts in exchanges: the operator needs none.
    let built_in = &mut builder.physical_optimizers().get_or_insert_default().rules;
    built_in.insert(0, Arc::new(HostedAggregatesRule));
    let builder = builder
        .with_physical_optimizer_rule(Arc::new(SpillingSortsRule { limit, runtime }))
        .with_physical_optimizer_rule(Arc::new(ReservingWindowsRule));
    Ok(Some(builder.build()))
}

/// Whether a node of a plan, or of its subqueries, is as `wanted` says.
fn any_node(plan: &LogicalPlan, wanted: impl Fn(&LogicalPlan) -> bool) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found = wanted(node);
        Ok(if found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(found)
}

/// Whether a node is one of windows, or of aggregates that keep all rows of their groups.
fn keeps_rows(node: &LogicalPlan) -> bool {
    match node {
        LogicalPlan::Window(_) => true,
        LogicalPlan::Aggregate(aggregate) => {
            let mut calls = aggregate.aggr_expr.iter().filter_map(aggregate_call);
            calls.any(|call| call.func.inner().is::<ArrayAgg>())
        }
        _ => false,
    }
}

/// Replaces `WindowAggExec` by [`ReservingWindowExec`]. `BoundedWindowAggExec` stays, as it holds few rows, but for the bytes behind views
/// where it has no `PARTITION BY`, which a [`KeptViewsExec`] below it reserves.
#[derive(Debug)]
struct ReservingWindowsRule;

impl PhysicalOptimizerRule for ReservingWindowsRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| {
            if plan.boundedness().is_unbounded() {
                return Ok(Transformed::no(plan));
            }
            if let Some(window) = plan.downcast_ref::<WindowAggExec>() {
                let window = ReservingWindowExec::try_new(window.clone())?;
                return Ok(Transformed::yes(Arc::new(window)));
            }
            let bounded = plan.downcast_ref::<BoundedWindowAggExec>();
            let bounded = bounded.filter(|window| window.partition_keys().is_empty());
            let kept = bounded.map(|window| KeptViewsExec::try_new(Arc::clone(window.input())));
            Ok(match kept.transpose()?.flatten() {
                Some(kept) => {
                    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
                    Transformed::yes(plan.replace_children(vec![Arc::new(kept)], options)?)
                }
                None => Transformed::no(plan),
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

/// Replaces hash aggregations with `array_agg` by [`GroupedQuantilesExec`], which reserves the memory that
/// accumulators keep, and spills the rows of many groups to disk before it aggregates them.
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

/// The operator for the two steps of a hash aggregation that keeps rows; `None` for any other plan.
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
