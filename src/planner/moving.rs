//! Plans quantiles over moving window frames as [`MovingQuantilesExec`], in one process.
//!
//! ```text
//! BoundedWindowAggExec: median(x), avg(x)          ProjectionExec: the columns in their order
//!   DataSourceExec                           ->      MovingQuantilesExec: median(x)
//!                                                      BoundedWindowAggExec: avg(x)
//!                                                        DataSourceExec
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, InputOrderMode};

use crate::exec::MovingQuantilesExec;
use crate::functions::MovingCall;

/// Replaces DataFusion's window operators by [`MovingQuantilesExec`] for calls of exact quantiles over moving frames of values of fixed
/// width, where the input is finite and sorted.
///
/// It belongs at the end of a session's physical optimizer rules, where [`register_all`](crate::register_all) puts it.
#[derive(Debug, Default)]
pub struct MovingQuantilesRule;

impl PhysicalOptimizerRule for MovingQuantilesRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| {
            Ok(match replaced(&plan)? {
                Some(replaced) => Transformed::yes(replaced),
                None => Transformed::no(plan),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "moving_quantiles"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A window operator of DataFusion: its calls, its input, and whether its partitions are those of `PARTITION BY`.
struct Window<'a> {
    exprs: &'a [Arc<dyn WindowExpr>],
    input: &'a Arc<dyn ExecutionPlan>,
    can_repartition: bool,
    is_bounded: bool,
}

impl<'a> Window<'a> {
    /// The operator, if it is one over a finite input that is sorted as its calls want.
    fn of(plan: &'a Arc<dyn ExecutionPlan>) -> Option<Self> {
        let window = if let Some(window) = plan.downcast_ref::<BoundedWindowAggExec>() {
            if window.input_order_mode != InputOrderMode::Sorted || window.state_observer().is_some() {
                return None;
            }
            Window {
                exprs: window.window_expr(),
                input: window.input(),
                can_repartition: !window.partition_keys().is_empty(),
                is_bounded: true,
            }
        } else {
            let window = plan.downcast_ref::<WindowAggExec>()?;
            Window {
                exprs: window.window_expr(),
                input: window.input(),
                can_repartition: !window.partition_keys().is_empty(),
                is_bounded: false,
            }
        };
        (!plan.boundedness().is_unbounded()).then_some(window)
    }

    /// An operator of the same kind for some of its calls, over another input.
    fn with(
        &self,
        exprs: Vec<Arc<dyn WindowExpr>>,
        input: Arc<dyn ExecutionPlan>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let can_repartition = self.can_repartition;
        Ok(if self.is_bounded {
            let sorted = InputOrderMode::Sorted;
            Arc::new(BoundedWindowAggExec::try_new(
                exprs,
                input,
                sorted,
                can_repartition,
            )?)
        } else {
            Arc::new(WindowAggExec::try_new(exprs, input, can_repartition)?)
        })
    }
}

/// The plan with the calls over moving frames in an operator of their own; `None` if there are none.
fn replaced(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(window) = Window::of(plan) else {
        return Ok(None);
    };
    let schema = window.input.schema();
    let is_moving = |expr: &Arc<dyn WindowExpr>| MovingCall::of(expr.as_ref(), &schema).is_some();
    let (moving, others): (Vec<usize>, Vec<usize>) =
        (0..window.exprs.len()).partition(|index| is_moving(&window.exprs[*index]));
    let exprs = |indices: &[usize]| -> Vec<Arc<dyn WindowExpr>> {
        indices
            .iter()
            .map(|index| Arc::clone(&window.exprs[*index]))
            .collect()
    };
    if moving.is_empty() {
        return Ok(None);
    }
    let input = if others.is_empty() {
        Arc::clone(window.input)
    } else {
        window.with(exprs(&others), Arc::clone(window.input))?
    };
    let Some(operator) = MovingQuantilesExec::try_new(window.with(exprs(&moving), input)?)? else {
        return Ok(None);
    };
    let operator: Arc<dyn ExecutionPlan> = Arc::new(operator);
    if others.is_empty() {
        return Ok(Some(operator));
    }
    // The input's columns, then those of all calls in their order.
    let calls = schema.fields().len();
    let place = |column: usize| match column.checked_sub(calls) {
        None => Some(column),
        Some(call) => others
            .iter()
            .chain(&moving)
            .position(|index| *index == call)
            .map(|place| calls + place),
    };
    let fields = plan.schema();
    let columns = (0..fields.fields().len()).filter_map(place).map(|place| {
        let name = operator.schema().field(place).name().clone();
        ProjectionExpr::new(Arc::new(Column::new(&name, place)), name)
    });
    let columns: Vec<ProjectionExpr> = columns.collect();
    Ok(Some(Arc::new(ProjectionExec::try_new(columns, operator)?)))
}
