//! One function call for another, with every name and schema of the plan kept.

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Window, WindowFunctionDefinition};

/// What a call stands in.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// Schema of its input.
    pub(super) schema: &'a DFSchema,
    /// Whether it is an aggregation by groups, without grouping sets.
    pub(super) is_grouped: bool,
}

/// Offers each call of each aggregation and window, in subqueries too, to `swap`. A call that takes another's place gets
/// its name.
pub(super) fn swap_calls(
    plan: LogicalPlan,
    swap: &dyn Fn(&Expr, Place<'_>) -> Option<Expr>,
) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Aggregate(aggregate) => {
            let is_set = |group: &Expr| matches!(group, Expr::GroupingSet(_));
            let groups = &aggregate.group_expr;
            let place = Place {
                schema: aggregate.input.schema(),
                is_grouped: !groups.is_empty() && !groups.iter().any(is_set),
            };
            let calls = swapped(aggregate.aggr_expr, place, swap);
            let (input, groups, schema) = (aggregate.input, aggregate.group_expr, aggregate.schema);
            calls.map_data(|calls| {
                let aggregate = Aggregate::try_new_with_schema(input, groups, calls, schema)?;
                Ok(LogicalPlan::Aggregate(aggregate))
            })
        }
        LogicalPlan::Window(window) => {
            let place = Place {
                schema: window.input.schema(),
                is_grouped: false,
            };
            let calls = swapped(window.window_expr, place, swap);
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
    place: Place<'_>,
    swap: &dyn Fn(&Expr, Place<'_>) -> Option<Expr>,
) -> Transformed<Vec<Expr>> {
    let mut changed = false;
    let calls = calls.into_iter().map(|call| {
        let inner = match &call {
            Expr::Alias(alias) => swap(&alias.expr, place),
            call => swap(call, place),
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
