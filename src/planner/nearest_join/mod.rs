//! Plans the nearest rows of many query vectors over [`NearestJoinExec`](crate::exec::NearestJoinExec), in one process.
//!
//! ```sql
//! SELECT q.id, topk_by(b.id, -array_distance(b.v, q.v), 10) FROM q CROSS JOIN b GROUP BY q.id
//! ```
//! ```text
//! GroupedTopKExec: k=10, groupBy=[id]          GroupedTopKExec: k=10, groupBy=[id], by=[distance]
//!   ProjectionExec                               NearestJoinExec: k=10, by=[vector_array_distance(..)]
//!     CrossJoinExec                       ->       DataSourceExec: q
//!       DataSourceExec: q                          DataSourceExec: b
//!       DataSourceExec: b
//! ```
//! `ROW_NUMBER() OVER (PARTITION BY q.id ORDER BY array_distance(b.v, q.v)) <= 10`, `QUALIFY` and `DISTINCT ON` are planned as the same operator.

mod join;
mod pairs;
mod projection;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

use self::join::{Join, redistributed};
use self::pairs::Pairs;
use self::projection::Projection;
use crate::config::QuantilesOptions;
use crate::exec::GroupedTopKExec;
#[cfg(feature = "cuda")]
use crate::exec::PinnedScanExec;

/// Puts [`NearestJoinExec`](crate::exec::NearestJoinExec) in the place of a cross join below the best rows of each query by their distance from it.
/// `SET quantiles.topk = false` leaves plans as they are.
///
/// It belongs behind DataFusion's physical optimizer rules, where [`register_all`](crate::register_all) puts it.
#[derive(Debug, Default)]
pub struct NearestJoinRule;

impl PhysicalOptimizerRule for NearestJoinRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if !QuantilesOptions::of(config).topk {
            return Ok(plan);
        }
        let rewritten = plan.transform_down(|plan| {
            let replaced = if let Some(top) = plan.downcast_ref::<GroupedTopKExec>() {
                replaced(top, None, config)?
            } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
                projected(projection, config)?
            } else {
                None
            };
            Ok(match replaced {
                Some(replaced) => Transformed::yes(replaced),
                None => Transformed::no(plan),
            })
        })?;
        #[cfg(feature = "cuda")]
        let rewritten = rewritten.data.transform_down(|plan| {
            Ok(match plan.downcast_ref::<PinnedScanExec>() {
                Some(scan) => Transformed::yes(Arc::clone(scan.input())),
                None => Transformed::no(plan),
            })
        })?;
        Ok(rewritten.data)
    }

    fn name(&self) -> &str {
        "nearest_join"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The best rows of a cross join, over few of its pairs; `None` if they are not those of each query by their distance from it. `projection`
/// stands above them: of their columns, only those that it needs are given.
fn replaced(
    top: &GroupedTopKExec,
    projection: Option<&mut Projection>,
    config: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some((spec, schema)) = top.single_step() else {
        return Ok(None);
    };
    let (join, projections) = below_projections(top.input());
    let Some(join) = Join::of(join)? else {
        return Ok(None);
    };
    // An expression that is evaluated once for each pair must not be evaluated twice, or for few of them.
    let projected = projections.iter().flat_map(|projection| projection.expr());
    let mut all = spec
        .expressions()
        .into_iter()
        .chain(projected.map(|projected| &projected.expr));
    if all.any(is_volatile) {
        return Ok(None);
    }
    let mut lowered = spec.with_expressions(|expr| join.under(&below(expr, &projections)?))?;
    let Some(pairs) = Pairs::of(&lowered, &join) else {
        return Ok(None);
    };
    let mut schema = Arc::clone(schema);
    if let Some(projection) = projection {
        let Some(narrow) = projection.narrow(&mut lowered, &schema, &pairs)? else {
            return Ok(None);
        };
        schema = narrow;
    }
    let columns = pairs.columns(&lowered);
    let over_pairs = lowered.with_expressions(|expr| pairs.over(expr, &columns))?;
    let joined = pairs.join(&columns, config)?;
    let top = GroupedTopKExec::try_new(joined, over_pairs, schema)?;
    Ok(Some(Arc::new(top)))
}

/// A projection of best rows that computes their distances again, over best rows that give them: their vectors need not come along.
/// `None` for other projections.
///
/// ```text
/// ProjectionExec: [id@1, vector_array_distance(v@2, v@3)]      ProjectionExec: [id@1, distance@2]
///   GroupedTopKExec: row_number() <= 10                    ->    GroupedTopKExec: row_number() <= 10
/// ```
fn projected(plan: &ProjectionExec, config: &ConfigOptions) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let (mut below, mut between) = (plan.input(), Vec::new());
    while let Some(inner) = redistributed(below) {
        between.push(below);
        below = inner;
    }
    let Some(top) = below.downcast_ref::<GroupedTopKExec>() else {
        return Ok(None);
    };
    let mut projection = Projection(plan.expr().to_vec());
    let Some(mut replaced) = replaced(top, Some(&mut projection), config)? else {
        return Ok(None);
    };
    for plan in between.into_iter().rev() {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        replaced = Arc::clone(plan).replace_children(vec![replaced], options)?;
    }
    let schema = plan.schema();
    let projected = ProjectionExec::try_new_with_schema_metadata(projection.0, replaced, &schema)?;
    Ok(Some(Arc::new(projected)))
}

/// The first plan that is no projection, and the projections above it, the uppermost first.
fn below_projections(mut plan: &Arc<dyn ExecutionPlan>) -> (&Arc<dyn ExecutionPlan>, Vec<&ProjectionExec>) {
    let mut projections = Vec::new();
    loop {
        if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            projections.push(projection);
            plan = projection.input();
        } else if let Some(inner) = redistributed(plan) {
            plan = inner;
        } else {
            return (plan, projections);
        }
    }
}

/// An expression over the output of projections, as one over the input of the last.
fn below(expr: &Arc<dyn PhysicalExpr>, projections: &[&ProjectionExec]) -> Result<Arc<dyn PhysicalExpr>> {
    let mut expr = Arc::clone(expr);
    for projection in projections {
        let projected = expr.transform_up(|part| {
            Ok(match part.downcast_ref::<Column>() {
                Some(column) => Transformed::yes(Arc::clone(&projection.expr()[column.index()].expr)),
                None => Transformed::no(part),
            })
        })?;
        expr = projected.data;
    }
    Ok(expr)
}
