//! Keeps nested loop joins exact where memory does not suffice.
//!
//! ```text
//! NestedLoopJoinExec: join_type=Left          NestedLoopJoinExec: join_type=Left
//!   DataSourceExec: a                   ->      BuildSideExec: may_spill=true
//!   DataSourceExec: b                             DataSourceExec: a
//!                                               DataSourceExec: b
//! ```
//! [`BuildSideExec`] says what goes wrong without it.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions,
};

use crate::exec::BuildSideExec;

/// Puts a [`BuildSideExec`] above the first input of each nested loop join of DataFusion's.
///
/// It belongs at the end of a session's physical optimizer rules, since it looks at the number of partitions.
#[derive(Debug, Default)]
pub(crate) struct BuildSideRule;

impl PhysicalOptimizerRule for BuildSideRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(with_build_side).data()
    }

    fn name(&self) -> &str {
        "build_side"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether an operator's scans leave out rows by what it found in them, such as the best ones so far of an `ORDER BY .. LIMIT`: in a second
/// read they would leave out some that are wanted. What a hash join tells its scans of its other side holds for each read.
fn has_learned(node: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    Ok(!node.is::<HashJoinExec>() && !node.dynamic_expressions_produced().is_empty())
}

/// The plan with a [`BuildSideExec`] above its first input if it is a nested loop join, in place of one that is there.
fn with_build_side(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() else {
        return Ok(Transformed::no(plan));
    };
    let partitions = join.right().output_partitioning().partition_count();
    let guarded = join.left().downcast_ref::<BuildSideExec>();
    let rows = guarded.map_or(join.left(), BuildSideExec::input);
    let may_spill = BuildSideExec::may_spill(*join.join_type(), partitions) && !rows.exists(has_learned)?;
    let side = BuildSideExec::try_new(Arc::clone(rows), may_spill)?;
    let inputs = vec![Arc::new(side) as _, Arc::clone(join.right())];
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Ok(Transformed::yes(plan.replace_children(inputs, options)?))
}
