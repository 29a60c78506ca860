//! Replaces function calls by others, and keeps every name and schema of the plan.

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Window, WindowFunctionDefinition};

/// The node that a call stands in.
#[derive(Clone, Copy)]
pub(super) struct CallSite<'a> {
    /// Schema of the node's input.
    pub(super) schema: &'a DFSchema,
    /// Whether the node is an aggregation with groups, without grouping sets.
    pub(super) is_grouped: bool,
}

/// Offers each call of each aggregation and window, in subqueries too, to `swap`, which may give another call. The
/// new call gets the name of the old one.
pub(super) fn swap_calls(
    plan: LogicalPlan,
    swap: &dyn Fn(&Expr, CallSite<'_>) -> Option<Expr>,
) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Aggregate(aggregate) => {
            let is_set = |group: &Expr| matches!(group, Expr::GroupingSet(_));
            let groups = &aggregate.group_expr;
            let site = CallSite {
                schema: aggregate.input.schema(),
                is_grouped: !groups.is_empty() && !groups.iter().any(is_set),
            };
            let calls = swapped(aggregate.aggr_expr, site, swap);
            let (input, groups, schema) = (aggregate.input, aggregate.group_expr, aggregate.schema);
            calls.map_data(|calls| {
                let aggregate = Aggregate::try_new_with_schema(input, groups, calls, schema)?;
                Ok(LogicalPlan::Aggregate(aggregate))
            })
        }
        LogicalPlan::Window(window) => {
            let site = CallSite {
                schema: window.input.schema(),
                is_grouped: false,
            };
            let calls = swapped(window.window_expr, site, swap);
            let (input, schema) = (window.input, window.schema);
            calls.map_data(|window_expr| {
                Ok(LogicalPlan::Window(Window {
                    input,
                    window_expr,
                    schema,
                }))
            })
        }
        other => Ok(Transformed::no(other)),
    })
}

/// The calls of one node, each replaced where `swap` gives another.
fn swapped(
    calls: Vec<Expr>,
    site: CallSite<'_>,
    swap: &dyn Fn(&Expr, CallSite<'_>) -> Option<Expr>,
) -> Transformed<Vec<Expr>> {
    let mut changed = false;
    let calls = calls.into_iter().map(|call| {
        let inner = match &call {
            Expr::Alias(alias) => swap(&alias.expr, site),
            call => swap(call, site),
        };
        let Some(inner) = inner else { return call };
        changed = true;
        match call {
            Expr::Alias(mut alias) => {
                *alias.expr = inner;
                Expr::Alias(alias)
            }
            call => inner.alias(call.schema_name().to_string()),
        }
    });
    let calls = calls.collect();
    Transformed::new_transformed(calls, changed)
}

/// `function(args)` over the window of another call.
pub(super) fn over_same_window(
    window: &WindowFunction,
    function: WindowFunctionDefinition,
    args: Vec<Expr>,
) -> Expr {
    let mut params = window.params.clone();
    // Functions of this crate always skip NULLs and take no clause that says so.
    (params.args, params.null_treatment) = (args, None);
    Expr::WindowFunction(Box::new(WindowFunction {
        fun: function,
        params,
    }))
}
