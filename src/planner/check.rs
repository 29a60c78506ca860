//! Refuses bad constant arguments before the optimizer can drop a call, and respells calls that the optimizer would misunderstand.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{AggregateUDF, Expr, LogicalPlan, WindowFunctionDefinition};
use datafusion::optimizer::AnalyzerRule;

use crate::functions::gk::{GkFunction, check_arguments};
use crate::functions::{
    ExactQuantiles, QuantileArgument, RankFunction, ShapeFunction, TopKBy, constant, ranks, respell_distinct,
    shape, topk,
};

/// Checks the constants of every call in a plan: a quantile that is not a number in [0, 1] is a planning error that
/// names it, even if no row would ever reach the call.
///
/// It is needed for calls that no SQL planner saw (the DataFrame API) and for calls whose parameters were bound later
/// (`EXECUTE`). Constants that the optimizer has moved below a call are first put back into the call: `PREPARE`
/// optimizes a plan while its parameters have no values, and moves a parameter that occurs twice into a projection,
/// to compute it once. Calls with `DISTINCT` over equal arguments are respelled, since the optimizer takes them for
/// calls of one argument.
#[derive(Debug, Default)]
pub struct CheckQuantiles;

impl AnalyzerRule for CheckQuantiles {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let plan = plan.transform_up_with_subqueries(respelled)?.data;
        check_calls(&plan)?;
        Ok(plan)
    }

    fn name(&self) -> &str {
        "check_quantiles"
    }
}

/// A node whose calls of this crate's functions have their constants as arguments, and `DISTINCT` only in a form that
/// the optimizer handles.
fn respelled(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let input = match &node {
        LogicalPlan::Aggregate(aggregate) => Arc::clone(&aggregate.input),
        LogicalPlan::Window(window) => Arc::clone(&window.input),
        _ => return Ok(Transformed::no(node)),
    };
    let names = NamePreserver::new(&node);
    let node = node.map_expressions(|expr| {
        let name = names.save(&expr);
        let expr = expr.transform_up(|part| respelled_call(part, &input))?;
        Ok(expr.update_data(|expr| name.restore(expr)))
    })?;
    if node.transformed {
        node.map_data(LogicalPlan::recompute_schema)
    } else {
        Ok(node)
    }
}

/// One expression of such a node: see [`respelled`]. `input`: the node's input.
fn respelled_call(expr: Expr, input: &LogicalPlan) -> Result<Transformed<Expr>> {
    match expr {
        Expr::AggregateFunction(mut call) => {
            let Some(values) = value_arguments(&call.func) else {
                return Ok(Transformed::no(Expr::AggregateFunction(call)));
            };
            let inlined = inline_constants(&mut call.params.args, values, input)?;
            let respelled = respell_distinct(&call.func, &mut call.params);
            let expr = Expr::AggregateFunction(call);
            Ok(Transformed::new_transformed(expr, inlined || respelled))
        }
        Expr::WindowFunction(mut call) => {
            let values = match &call.fun {
                WindowFunctionDefinition::AggregateUDF(function) => value_arguments(function),
                WindowFunctionDefinition::WindowUDF(_) => None,
            };
            let inlined = match values {
                Some(values) => inline_constants(&mut call.params.args, values, input)?,
                None => false,
            };
            Ok(Transformed::new_transformed(Expr::WindowFunction(call), inlined))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// Number of leading arguments that are columns; the others are constants. `None` for functions that are not this crate's.
fn value_arguments(function: &AggregateUDF) -> Option<usize> {
    let is_ranked = ExactQuantiles::of(function).is_some()
        || GkFunction::of(function).is_some()
        || RankFunction::of(function).is_some()
        || ShapeFunction::of(function).is_some();
    let is_top = TopKBy::of(function).is_some();
    is_top.then_some(2).or(is_ranked.then_some(1))
}

/// Replaces arguments after the first `values` that refer to constants, computed by projections of the input, by those constants. Returns
/// whether it replaced any.
fn inline_constants(args: &mut [Expr], values: usize, input: &LogicalPlan) -> Result<bool> {
    let mut changed = false;
    for arg in args.iter_mut().skip(values) {
        let inlined = arg.clone().transform_up(|part| {
            Ok(match &part {
                Expr::Column(column) => match computed(column, input) {
                    Some(computed) => Transformed::yes(computed.clone()),
                    None => Transformed::no(part),
                },
                _ => Transformed::no(part),
            })
        })?;
        if inlined.transformed && constant(&inlined.data)?.is_some() {
            *arg = inlined.data;
            changed = true;
        }
    }
    Ok(changed)
}

/// The expression that a projection in `plan` computes for a column; `None` if no projection computes it.
fn computed<'a>(column: &Column, plan: &'a LogicalPlan) -> Option<&'a Expr> {
    match plan {
        LogicalPlan::Projection(projection) => {
            let index = projection.schema.maybe_index_of_column(column)?;
            match projection.expr[index].clone().unalias_nested().data {
                Expr::Column(inner) => computed(&inner, &projection.input),
                _ => Some(&projection.expr[index]),
            }
        }
        LogicalPlan::Filter(filter) => computed(column, &filter.input),
        LogicalPlan::Window(window) if window.input.schema().has_column(column) => {
            computed(column, &window.input)
        }
        _ => None,
    }
}

/// Checks the constants of every call in a plan and its subqueries, as [`CheckQuantiles`] does.
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

/// Checks the constants of `expr`, if it is a call of one of this crate's functions.
fn check_call(expr: &Expr) -> Result<()> {
    let (function, args, is_distinct): (&AggregateUDF, _, _) = match expr {
        Expr::AggregateFunction(call) => (&call.func, &call.params.args, call.params.distinct),
        Expr::WindowFunction(call) => match &call.fun {
            WindowFunctionDefinition::AggregateUDF(function) => {
                (function, &call.params.args, call.params.distinct)
            }
            WindowFunctionDefinition::WindowUDF(_) => return Ok(()),
        },
        _ => return Ok(()),
    };
    if let Some(function) = GkFunction::of(function).filter(|function| !function.is_bound()) {
        return check_arguments(function.sql_name(), args);
    }
    if let Some(function) = TopKBy::of(function).filter(|function| !function.is_bound()) {
        return topk::check_arguments(function.sql_name(), args);
    }
    if let Some(function) = ShapeFunction::of(function) {
        return shape::check_arguments(function.sql_name(), args);
    }
    if let (Some(function), [_, constants]) = (RankFunction::of(function), args.as_slice()) {
        return ranks::check_constants(function.sql_name(), constants);
    }
    match (ExactQuantiles::of(function), args.get(1)) {
        (Some(function), Some(quantiles)) => {
            function.check_distinct(args, is_distinct)?;
            QuantileArgument::try_new(function.sql_name(), quantiles).map(drop)
        }
        _ => Ok(()),
    }
}
