//! Plans `ORDER BY ... LIMIT k` as [`SortLimitExec`], in one process.
//!
//! ```text
//! SortPreservingMergeExec: [fare DESC], fetch=100        SortLimitExec: k=100, by=[fare DESC]
//!   SortExec: TopK(fetch=100), expr=[fare DESC]     ->     DataSourceExec: predicate=DynamicFilter [..]
//!     DataSourceExec: predicate=DynamicFilter [..]
//! ```
//! The operator takes over the sort's dynamic filter, so that scans still skip rows that cannot be among the first.
//! For that the rule runs last, when the filter has reached the scans.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr, Literal};
use datafusion::physical_expr::projection::update_expr;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions,
};

use crate::config::QuantilesOptions;
use crate::exec::{SortLimitExec, distance_call};

/// Greatest number of rows for which [`SortLimitExec`] stands in for DataFusion's sort: the operator cannot spill.
const MOST_ROWS: usize = 1 << 20;

/// Greatest number of rows for which the operator holds vectors that the answer does not show.
const MOST_VECTORS: usize = 1 << 13;

/// Replaces sorts with a limit by [`SortLimitExec`], where that gives the same rows (except for which rows among those that tie
/// with the last one) and is faster: up to 2^20 rows, sorted by expressions that fit into 128 bits, over input in no useful order.
/// `SET quantiles.topk = false` leaves plans as they are.
///
/// It belongs at the end of a session's physical optimizer rules, where [`register_all`](crate::register_all) puts it.
#[derive(Debug, Default)]
pub struct SortLimitRule;

impl PhysicalOptimizerRule for SortLimitRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if !QuantilesOptions::of(config).topk {
            return Ok(plan);
        }
        let rewritten = plan.transform_down(|plan| {
            // The parts of a recursive query run once for each step. A filter that learns from one step is wrong in the next.
            if plan.is::<RecursiveQueryExec>() {
                return Ok(Transformed::new(plan, false, TreeNodeRecursion::Jump));
            }
            Ok(match replaced(&plan)? {
                Some(replaced) => Transformed::yes(replaced),
                None => Transformed::no(plan),
            })
        })?;
        Ok(rewritten.data)
    }

    fn name(&self) -> &str {
        "topk_by"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether the operator is faster than DataFusion's sort for the first `k` rows.
pub(super) fn is_faster(k: usize) -> bool {
    (1..=MOST_ROWS).contains(&k)
}

/// The operator, with columns fetched late where that is faster.
#[cfg(feature = "parquet")]
fn with_late_fetch(top: SortLimitExec) -> Result<Arc<dyn ExecutionPlan>> {
    Ok(match crate::exec::LateFetchExec::try_over(&top)? {
        Some(late) => Arc::new(late),
        None => Arc::new(top),
    })
}

#[cfg(not(feature = "parquet"))]
fn with_late_fetch(top: SortLimitExec) -> Result<Arc<dyn ExecutionPlan>> {
    Ok(Arc::new(top))
}

/// The replacement of a sort with a limit, or of a merge of such sorts. Projections may lie between the merge and its sorts.
fn replaced(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() else {
        return match plan.downcast_ref::<SortExec>() {
            // A sort of several output partitions sorts each of them on its own.
            Some(sort) if sort.properties().output_partitioning().partition_count() == 1 => {
                top(sort, sort.fetch().unwrap_or(0))
            }
            _ => Ok(None),
        };
    };
    let (mut below, mut projections) = (merge.input(), Vec::new());
    while let Some(projection) = below.downcast_ref::<ProjectionExec>() {
        projections.push(below);
        below = projection.input();
    }
    let (Some(sort), Some(k)) = (below.downcast_ref::<SortExec>(), merge.fetch()) else {
        return Ok(None);
    };
    let Some(mut replaced) = top(sort, k)? else {
        return Ok(None);
    };
    for projection in projections.into_iter().rev() {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        replaced = Arc::clone(projection).replace_children(vec![replaced], options)?;
    }
    let order = merge.expr().clone();
    let is_same = replaced.equivalence_properties().ordering_satisfy(order)?;
    Ok(is_same.then_some(replaced))
}

/// The operator that gives the first `k` rows of all partitions of a sort; `None` if the sort is to stay.
fn top(sort: &SortExec, k: usize) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    // A sort without a limit of its own gives all its rows to the merge.
    if !is_faster(k) || sort.fetch().is_some_and(|fetch| fetch < k) {
        return Ok(None);
    }
    let filter = sort
        .dynamic_expressions_produced()
        .into_iter()
        .find_map(as_dynamic_filter);
    let below = if k <= MOST_VECTORS {
        below_distances(sort)?
    } else {
        None
    };
    let Some((projection, by)) = below else {
        return top_over(sort.input(), sort.expr().clone(), k, filter);
    };
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let top = top_over(projection.input(), by, k, filter)?;
    top.map(|top| Arc::clone(sort.input()).replace_children(vec![top], options))
        .transpose()
}

/// The operator that gives the first `k` rows of all partitions of `input`; `None` if a sort is better, or if the order has no keys.
fn top_over(
    mut input: &Arc<dyn ExecutionPlan>,
    by: LexOrdering,
    k: usize,
    filter: Option<Arc<DynamicFilterPhysicalExpr>>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(gathered) = input.downcast_ref::<CoalescePartitionsExec>()
        && gathered.fetch().is_none()
    {
        input = gathered.input();
    }
    let ordered = input.equivalence_properties().clone();
    let (prefix, is_sorted) = ordered.extract_common_sort_prefix(by.clone())?;
    let is_useful = is_sorted || !prefix.is_empty();
    if is_useful || input.boundedness().is_unbounded() || input.schema().fields().is_empty() {
        return Ok(None);
    }
    let top = SortLimitExec::try_new(Arc::clone(input), by, k, filter)?;
    top.map(with_late_fetch).transpose()
}

/// The projection below a sort, if it gives the distance which rows are first ordered by, and the order over its input: then only the
/// distances of the first rows are projected. `None` if there is no such projection, or if it computes anything that may fail.
///
/// ```text
/// SortExec: TopK(fetch=10), expr=[d@1]             ProjectionExec: expr=[id@0, vector_array_distance(v@1, [1]) as d]
///   ProjectionExec: expr=[id@0,               ->     SortLimitExec: k=10, by=[vector_array_distance(v@1, [1])]
///     vector_array_distance(v@1, [1]) as d]
/// ```
fn below_distances(sort: &SortExec) -> Result<Option<(&ProjectionExec, LexOrdering)>> {
    let Some(projection) = sort.input().downcast_ref::<ProjectionExec>() else {
        return Ok(None);
    };
    let exprs = projection.expr();
    let mut by = Vec::with_capacity(sort.expr().len());
    for order in sort.expr().iter() {
        let Some(expr) = update_expr(&order.expr, exprs, true)? else {
            return Ok(None);
        };
        by.push(PhysicalSortExpr::new(expr, order.options));
    }
    let is_plain = |expr: &Arc<dyn PhysicalExpr>| expr.is::<Column>() || expr.is::<Literal>();
    let is_cheap = exprs
        .iter()
        .all(|projected| is_plain(&projected.expr) || distance_call(&projected.expr).is_some());
    let leads = by.first().is_some_and(|by| distance_call(&by.expr).is_some());
    let by = LexOrdering::new(by).filter(|_| leads && is_cheap);
    Ok(by.map(|by| (projection, by)))
}

/// The expression as a dynamic filter, if it is one.
fn as_dynamic_filter(expr: Arc<dyn PhysicalExpr>) -> Option<Arc<DynamicFilterPhysicalExpr>> {
    let expr: Arc<dyn std::any::Any + Send + Sync> = expr;
    expr.downcast().ok()
}
