//! Refuses a bad quantile argument before the optimizer can drop the call.

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{AggregateUDF, Expr, LogicalPlan, WindowFunctionDefinition};
use datafusion::optimizer::AnalyzerRule;

use crate::functions::gk::{GkFunction, check_arguments};
use crate::functions::{ExactQuantiles, QuantileArgument, TopKBy, topk};

/// Checks the constants of every call in a plan: a quantile that is not a number in [0, 1] is a planning error that
/// names it, also where no row would ever reach the call. Leaves the plan as it is.
///
/// For calls that no SQL planner saw (the DataFrame API) or whose parameters were bound later (`EXECUTE`).
#[derive(Debug, Default)]
pub struct CheckQuantiles;

impl AnalyzerRule for CheckQuantiles {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        check_calls(&plan)?;
        Ok(plan)
    }

    fn name(&self) -> &str {
        "check_quantiles"
    }
}

/// As [`CheckQuantiles`], on a plan and its subqueries.
///
/// # Errors
/// A planning error for the first bad argument.
pub(super) fn check_calls(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                check_call(part)?;
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(())
}

fn check_call(expr: &Expr) -> Result<()> {
    let (function, args): (&AggregateUDF, _) = match expr {
        Expr::AggregateFunction(call) => (&call.func, &call.params.args),
        Expr::WindowFunction(call) => match &call.fun {
            WindowFunctionDefinition::AggregateUDF(function) => (function, &call.params.args),
            WindowFunctionDefinition::WindowUDF(_) => return Ok(()),
        },
        _ => return Ok(()),
    };
    if let Some(function) = GkFunction::of(function).filter(|function| !function.is_bound()) {
        return check_arguments(function.called(), args);
    }
    if let Some(function) = TopKBy::of(function).filter(|function| !function.is_bound()) {
        return topk::check_arguments(function.called(), args);
    }
    match (ExactQuantiles::of(function), args.get(1)) {
        (Some(function), Some(quantiles)) => {
            QuantileArgument::try_new(function.called(), quantiles).map(drop)
        }
        _ => Ok(()),
    }
}
