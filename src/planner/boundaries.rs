//! Plans for Ballista 55, made safe where it would run them wrongly or for ever.
//!
//! ```text
//! union     Ballista cuts the plan of a stage to the partitions of each task. A branch that is gathered (an aggregate, a sort,
//!           a join) keeps a partition, so that every task runs it: its rows come several times. One without a table becomes
//!           another operator, whose task is reported wrongly: its rows are lost, or the statement waits for ever.
//! window    With adaptive planning an exchange without rows becomes an empty relation, which a window wants exchanged
//!           by its keys again, and again.
//! ```
//! The static planner gives branches that are gathered stages of their own (datafusion-ballista issue 2184).

use std::sync::Arc;

use ballista_core::config::BallistaConfig;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};

use crate::exec::{BoundaryExec, BranchExec};

/// The plan with boundaries where Ballista needs them. Options without Ballista's are another engine's: nothing changes.
///
/// # Errors
/// DataFusion's, where a node does not take its new inputs.
pub(super) fn with_boundaries(
    plan: Arc<dyn ExecutionPlan>,
    options: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(ballista) = options.extensions.get::<BallistaConfig>() else {
        return Ok(plan);
    };
    let adaptive = ballista.adaptive_query_planner_enabled();
    let safe = plan.transform_up(|plan| {
        if plan.is::<UnionExec>() {
            return safe_union(plan, adaptive);
        }
        match adaptive {
            true => safe_window(plan),
            false => Ok(Transformed::no(plan)),
        }
    })?;
    Ok(safe.data)
}

/// A union whose branches can be cut to tasks.
fn safe_union(union: Arc<dyn ExecutionPlan>, adaptive: bool) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let needs_branch = |branch: &Arc<dyn ExecutionPlan>| match adaptive {
        true => Ok(!is_divisible(branch)),
        false => branch.exists(|node| Ok(reads_no_table(node))),
    };
    let mut branches = Vec::with_capacity(union.children().len());
    for branch in union.children() {
        branches.push(match needs_branch(branch)? {
            true => whole(Arc::clone(branch))?,
            false => Arc::clone(branch),
        });
    }
    let union = replace_children_if_necessary(union, branches)?;
    // Sorts below the union would gather its branches again.
    Ok(Transformed::yes(match adaptive {
        true => Arc::new(BoundaryExec::new(union, Vec::new())),
        false => union,
    }))
}

/// Whether a task can have some of the partitions of a branch, down to its files.
fn is_divisible(branch: &Arc<dyn ExecutionPlan>) -> bool {
    if branch.is::<DataSourceExec>() || branch.is::<BranchExec>() {
        return true;
    }
    let passes = branch.is::<ProjectionExec>()
        || branch.is::<FilterExec>()
        || branch.is::<UnionExec>()
        || branch.is::<BoundaryExec>();
    passes && branch.children().into_iter().all(is_divisible)
}

fn reads_no_table(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.is::<PlaceholderRowExec>() || node.is::<EmptyExec>()
}

/// A branch that one task reads whole.
fn whole(branch: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let branch = match branch.output_partitioning().partition_count() {
        1 => branch,
        _ => Arc::new(CoalescePartitionsExec::new(branch)),
    };
    Ok(Arc::new(BranchExec::try_new(branch)?))
}

/// A window whose rows are not exchanged again where there are none.
fn safe_window(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let keys = match plan.downcast_ref::<WindowAggExec>() {
        Some(window) => Some(window.partition_keys()),
        None => plan
            .downcast_ref::<BoundedWindowAggExec>()
            .map(BoundedWindowAggExec::partition_keys),
    };
    let input = plan.children().first().map(|input| Arc::clone(input));
    let (Some(keys), Some(input)) = (keys.filter(|keys| !keys.is_empty()), input) else {
        return Ok(Transformed::no(plan));
    };
    let input = Arc::new(BoundaryExec::new(input, keys));
    Ok(Transformed::yes(replace_children_if_necessary(
        plan,
        vec![input],
    )?))
}
