//! DataFusion's `median` and `percentile_cont` by this crate's functions, while `quantiles.replace_builtins` is on.
//!
//! ```text
//! Aggregate: aggr=[[median(CAST(t.x AS Float64)) AS median(t.x)]]
//!     ->  Aggregate: aggr=[[exact_median(CAST(t.x AS Float64), 0.5) AS median(t.x)]]
//! ```
//! Only calls whose answers are the same bits are swapped ([`Method::Median`], [`Method::PercentileCont`]): after the
//! optimizer, so that types are coerced, and with the schema kept. What else is called by these names, or is called with
//! arguments that DataFusion would refuse, stays DataFusion's.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::functions_aggregate::median::Median;
use datafusion::logical_expr::expr::{AggregateFunction, NullTreatment, Sort, WindowFunction};
use datafusion::logical_expr::{
    Aggregate, AggregateUDF, Expr, ExprSchemable, LogicalPlan, Window, WindowFunctionDefinition, lit,
};

use crate::functions::{aggregate, is_percentile_cont};
use crate::select::quantile::Method;

/// Swaps the calls in each aggregation and window, in subqueries too.
pub(super) fn replace_builtins(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Aggregate(aggregate) => {
            let calls = replaced(aggregate.aggr_expr, aggregate.input.schema());
            let (input, groups, schema) = (aggregate.input, aggregate.group_expr, aggregate.schema);
            calls.map_data(|calls| {
                let aggregate = Aggregate::try_new_with_schema(input, groups, calls, schema)?;
                Ok(LogicalPlan::Aggregate(aggregate))
            })
        }
        LogicalPlan::Window(window) => {
            let calls = replaced(window.window_expr, window.input.schema());
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

fn replaced(calls: Vec<Expr>, schema: &DFSchema) -> Transformed<Vec<Expr>> {
    let mut changed = false;
    let calls = calls.into_iter().map(|call| match replaced_call(&call, schema) {
        None => call,
        Some(replacement) => {
            changed = true;
            let name = call.schema_name().to_string();
            let is_same = replacement.schema_name().to_string() == name;
            match is_same {
                true => replacement,
                false => replacement.alias(name),
            }
        }
    });
    let calls = calls.collect();
    Transformed::new_transformed(calls, changed)
}

/// The call of ours that answers as `call`; an alias around it stays.
fn replaced_call(call: &Expr, schema: &DFSchema) -> Option<Expr> {
    match call {
        Expr::Alias(alias) => {
            let mut alias = alias.clone();
            *alias.expr = replaced_call(&alias.expr, schema)?;
            Some(Expr::Alias(alias))
        }
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            let (func, args) = same_answers(
                func,
                &params.args,
                &params.order_by,
                params.null_treatment,
                schema,
            )?;
            let (distinct, filter) = (params.distinct, params.filter.clone());
            let call = AggregateFunction::new_udf(func, args, distinct, filter, Vec::new(), None);
            Some(Expr::AggregateFunction(call))
        }
        Expr::WindowFunction(window) => {
            let WindowFunctionDefinition::AggregateUDF(func) = &window.fun else {
                return None;
            };
            let mut params = window.params.clone();
            let (func, args) = same_answers(func, &params.args, &[], params.null_treatment, schema)?;
            (params.args, params.null_treatment) = (args, None);
            let fun = WindowFunctionDefinition::AggregateUDF(func);
            Some(Expr::WindowFunction(Box::new(WindowFunction { fun, params })))
        }
        _ => None,
    }
}

/// The function and the arguments of ours that give the same bits. `order`: that of `WITHIN GROUP`.
fn same_answers(
    function: &AggregateUDF,
    args: &[Expr],
    order: &[Sort],
    nulls: Option<NullTreatment>,
    schema: &DFSchema,
) -> Option<(Arc<AggregateUDF>, Vec<Expr>)> {
    if nulls == Some(NullTreatment::RespectNulls) {
        return None;
    }
    let (method, x, quantile) = match args {
        [x] if function.inner().is::<Median>() => (Method::Median, x, 0.5),
        [x, Expr::Literal(ScalarValue::Float64(Some(quantile)), _)]
            if is_percentile_cont(function) && (0.0..=1.0).contains(quantile) =>
        {
            (Method::PercentileCont, x, *quantile)
        }
        _ => return None,
    };
    method.result_type(&x.get_type(schema).ok()?).ok()?;
    // The direction is all that DataFusion takes from the order, whatever it orders by.
    let descending = method == Method::PercentileCont && order.first().is_some_and(|order| !order.asc);
    Some((aggregate(method, descending), vec![x.clone(), lit(quantile)]))
}
