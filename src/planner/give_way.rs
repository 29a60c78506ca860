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

/// Puts a [`GiveWayExec`] above each join of DataFusion's, and below one with a condition, which may read many batches before it gives one.
///
/// Between two pauses such a join looks at the pairs of one batch: of 8192 rows and a million held in memory that can take a minute.
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

/// The plan with a [`GiveWayExec`] above it if it is a join, and above its second input if it may find no rows in many batches.
fn with_pauses(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    if plan.is::<GiveWayExec>() {
        // The rule ran before: one of two is enough.
        let input = Arc::clone(plan.children()[0]);
        return Ok(match input.is::<GiveWayExec>() {
            true => Transformed::yes(input),
            false => Transformed::no(plan),
        });
    }
    if !is_join(plan.as_ref()) {
        return Ok(Transformed::no(plan));
    }
    let filters = plan.is::<NestedLoopJoinExec>() || has_filter(plan.as_ref());
    let mut inputs: Vec<_> = plan.children().into_iter().map(Arc::clone).collect();
    let second = inputs.get_mut(1);
    let join = match second.filter(|input| filters && !input.is::<GiveWayExec>()) {
        Some(input) => {
            *input = Arc::new(GiveWayExec::try_new(Arc::clone(input))?);
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            plan.replace_children(inputs, options)?
        }
        None => plan,
    };
    Ok(Transformed::yes(Arc::new(GiveWayExec::try_new(join)?)))
}

/// Whether a join by keys has a further condition, by which it may drop all pairs that it finds.
fn has_filter(join: &dyn ExecutionPlan) -> bool {
    let by_hash = join.downcast_ref::<HashJoinExec>().and_then(HashJoinExec::filter);
    let by_order = join
        .downcast_ref::<SortMergeJoinExec>()
        .map(SortMergeJoinExec::filter);
    by_hash.is_some() || by_order.is_some_and(Option::is_some)
}

/// Whether a plan is a join that can give more batches than it reads.
fn is_join(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
        || plan.is::<HashJoinExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<PiecewiseMergeJoinExec>()
}
