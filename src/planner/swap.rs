//! One function call for another, with every name and schema of the plan kept.

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Window, WindowFunctionDefinition};

/// Offers each call of each aggregation and window, in subqueries too, to `swap`, with the schema of its input. A call
/// that takes another's place gets its name.
pub(super) fn swap_calls(
    plan: LogicalPlan,
    swap: &dyn Fn(&Expr, &DFSchema) -> Option<Expr>,
) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Aggregate(aggregate) => {
            let calls = swapped(aggregate.aggr_expr, aggregate.input.schema(), swap);
            let (input, groups, schema) = (aggregate.input, aggregate.group_expr, aggregate.schema);
            calls.map_data(|calls| {
                let aggregate = Aggregate::try_new_with_schema(input, groups, calls, schema)?;
                Ok(LogicalPlan::Aggregate(aggregate))
            })
        }
        LogicalPlan::Window(window) => {
            let calls = swapped(window.window_expr, window.input.schema(), swap);
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

fn swapped(
    calls: Vec<Expr>,
    schema: &DFSchema,
    swap: &dyn Fn(&Expr, &DFSchema) -> Option<Expr>,
) -> Transformed<Vec<Expr>> {
    let mut changed = false;
    let calls = calls.into_iter().map(|call| {
        let inner = match &call {
            Expr::Alias(alias) => swap(&alias.expr, schema),
            call => swap(call, schema),
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
    // Ours skip NULLs, and say so only by doing it.
    (params.args, params.null_treatment) = (args, None);
    Expr::WindowFunction(Box::new(WindowFunction {
        fun: function,
        params,
    }))
}
