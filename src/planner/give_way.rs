//! Lets joins notice that their query was cancelled.
//!
//! ```text
//! AggregateExec                              AggregateExec
//!   NestedLoopJoinExec: filter=..              GiveWayExec
//!     DataSourceExec: a                ->        NestedLoopJoinExec: filter=..
//!     DataSourceExec: b                            DataSourceExec: a
//!                                                  GiveWayExec
//!                                                    DataSourceExec: b
//! ```
//! A join can make any number of batches, or look at any number of pairs, for each batch that it reads. DataFusion's sources let other
//! tasks run once in 128 batches, and a task is stopped only then.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

use crate::exec::GiveWayExec;

/// Puts a [`GiveWayExec`] above each join of DataFusion's, and below a nested loop join, which may read many batches before it gives one.
///
/// It belongs at the end of a session's physical optimizer rules, where [`register_all`](crate::register_all) puts it.
#[derive(Debug, Default)]
pub struct GiveWayRule;

impl PhysicalOptimizerRule for GiveWayRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(with_pauses).data()
    }

    fn name(&self) -> &str {
        "give_way"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The plan with a [`GiveWayExec`] above each input that needs one. The root needs none: who reads it may stop after any batch.
fn with_pauses(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    if plan.is::<GiveWayExec>() {
        return Ok(Transformed::no(plan));
    }
    let is_nested_loop = plan.is::<NestedLoopJoinExec>();
    let mut is_changed = false;
    let pause = |(index, input): (usize, &Arc<dyn ExecutionPlan>)| {
        let is_streamed = is_nested_loop && index == 1 && !input.is::<GiveWayExec>();
        if !is_join(input.as_ref()) && !is_streamed {
            return Ok(Arc::clone(input));
        }
        is_changed = true;
        Ok(Arc::new(GiveWayExec::try_new(Arc::clone(input))?) as Arc<dyn ExecutionPlan>)
    };
    let inputs: Vec<_> = plan
        .children()
        .into_iter()
        .enumerate()
        .map(pause)
        .collect::<Result<_>>()?;
    if !is_changed {
        return Ok(Transformed::no(plan));
    }
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Ok(Transformed::yes(plan.replace_children(inputs, options)?))
}

/// Whether a plan is a join that can give more batches than it reads.
fn is_join(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
        || plan.is::<HashJoinExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<PiecewiseMergeJoinExec>()
}
