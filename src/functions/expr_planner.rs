//! Plans SQL calls as the aggregate functions that have method and direction in their names, while the arguments' values can still be seen.

use std::fmt::Display;
use std::sync::Arc;

use datafusion::common::{DFSchema, Result, ScalarValue, plan_err};
use datafusion::logical_expr::expr::{
    AggregateFunction, AggregateFunctionParams, NullTreatment, Sort, WindowFunction, WindowFunctionParams,
};
use datafusion::logical_expr::planner::{
    ExprPlanner, PlannerResult, RawAggregateExpr, RawBinaryExpr, RawWindowExpr,
};
use datafusion::logical_expr::{AggregateUDF, Expr, WindowFunctionDefinition, lit};

use super::call::no_order;
use super::clickhouse::{MedianExact, without_nan};
use super::gk::{GkFunction, check_arguments};
use super::iqr::{Iqr, quartiles};
use super::types::is_list;
use super::within_group::{from_the_top, take_order};
use super::{
    ExactQuantiles, FunctionName, QuantileArgument, RankFunction, ShapeFunction, TopKBy, constant,
    is_percentile_cont, pgvector, ranks, shape, topk, variant,
};
use crate::quantile::Method;

/// Plans `exact_quantiles(x, q [, method])` and its other names, with `WITHIN GROUP` and with `OVER`.
///
/// It plans pgvector's operators `<->`, `<=>` and `<#>` between vectors as DataFusion's functions of distances too, where the SQL dialect has them.
///
/// It reads the method and the direction and swaps in the aggregate function that has them in its name; a result
/// column keeps the spelling of the query. Quantiles that are known at this point are checked here, so that a bad one
/// is an error even where the optimizer would drop the call.
#[derive(Debug, Default)]
pub struct QuantilesExprPlanner;

impl ExprPlanner for QuantilesExprPlanner {
    fn plan_binary_op(&self, raw: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        pgvector::plan_operator(raw, schema)
    }

    fn plan_aggregate(&self, raw: RawAggregateExpr) -> Result<PlannerResult<RawAggregateExpr>> {
        if Iqr::is(&raw.func) {
            return plan_iqr(raw);
        }
        let meant = Written {
            function: &raw.func,
            args: &raw.args,
            order_by: &raw.order_by,
            is_distinct: raw.distinct,
            nulls: raw.null_treatment,
        };
        let Some((planned, args)) = meant.function()? else {
            return Ok(PlannerResult::Original(raw));
        };
        let written = Expr::AggregateFunction(AggregateFunction {
            func: raw.func,
            params: AggregateFunctionParams {
                args: raw.args,
                distinct: raw.distinct,
                filter: raw.filter.clone(),
                order_by: raw.order_by,
                null_treatment: raw.null_treatment,
            },
        });
        let mut call = AggregateFunction::new_udf(planned, args, raw.distinct, raw.filter, Vec::new(), None);
        respell_distinct(&call.func, &mut call.params);
        named_as(Expr::AggregateFunction(call), &written)
    }

    fn plan_window(&self, mut raw: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
        let WindowFunctionDefinition::AggregateUDF(udaf) = &raw.func_def else {
            return Ok(PlannerResult::Original(raw));
        };
        let udaf = Arc::clone(udaf);
        let order = take_order(&udaf, &mut raw.args)?;
        // DataFusion looks among aggregates first. `rank() OVER (..)` means its window function of that name.
        if let Some(ranking) = RankFunction::of(&udaf).and_then(ranks::window_function) {
            if order.is_some() {
                return plan_err!("{} takes WITHIN GROUP or OVER, not both", ranking.name());
            }
            raw.func_def = WindowFunctionDefinition::WindowUDF(ranking);
            return Ok(PlannerResult::Original(raw));
        }
        if Iqr::is(&udaf) {
            return plan_iqr_window(raw);
        }
        let meant = Written {
            function: &udaf,
            args: &raw.args,
            order_by: order.as_slice(),
            is_distinct: raw.distinct,
            nulls: raw.null_treatment,
        };
        let (planned, args, nulls) = match (meant.function()?, &order) {
            (Some((planned, args)), _) => (planned, args, None),
            (None, Some(order)) if order.asc => (Arc::clone(&udaf), raw.args.clone(), raw.null_treatment),
            (None, Some(_)) => {
                let args = from_the_top(&udaf, raw.args.clone())?;
                (Arc::clone(&udaf), args, raw.null_treatment)
            }
            (None, None) => return Ok(PlannerResult::Original(raw)),
        };
        let mut written = as_written(raw);
        let mut call = written.clone();
        call.fun = WindowFunctionDefinition::AggregateUDF(planned);
        (call.params.args, call.params.null_treatment) = (args, nulls);
        if let (Some(order), Some(x)) = (order, written.params.args.first_mut()) {
            // The name of the column says the order.
            *x = order.expr.clone().alias(order.to_string());
        }
        named_as(
            Expr::WindowFunction(Box::new(call)),
            &Expr::WindowFunction(Box::new(written)),
        )
    }
}

/// A call as it was written, with the order of `WITHIN GROUP` or none.
struct Written<'a> {
    function: &'a AggregateUDF,
    args: &'a [Expr],
    order_by: &'a [Sort],
    is_distinct: bool,
    nulls: Option<NullTreatment>,
}

impl Written<'_> {
    /// The aggregate function of this crate that the call means, and its arguments; `None` for a function that is not planned here.
    ///
    /// # Errors
    /// A planning error that names what is wrong with the call.
    fn function(&self) -> Result<Option<(Arc<AggregateUDF>, Vec<Expr>)>> {
        let (written, args, order, nulls) = (self.function, self.args, self.order_by, self.nulls);
        let descending = order.first().map(|order| !order.asc);
        Ok(Some(if let Some(function) = TopKBy::of(written) {
            topk::plan_call(function, args, order)?
        } else if let Some(ends) = topk::plan_ends(written, args, order)? {
            no_nulls(written, nulls)?;
            ends
        } else if let Some(function) = ShapeFunction::of(written) {
            shape::plan_call(function, args, order, self.is_distinct, nulls)?
        } else if let Some(function) = ExactQuantiles::of(written) {
            plan_call(function, args, descending, self.is_distinct, nulls)?
        } else if let Some(median) = MedianExact::of(written) {
            no_order(written.name(), order)?;
            let function = variant(median.function(), median.function().methods()[0], false);
            let args = median.arguments(args)?;
            return Written {
                function: &function,
                args: &args,
                ..*self
            }
            .function();
        } else if is_list_of_percentile_cont(written, args)? {
            plan_percentile_cont(args, descending)?
        } else if let Some(function) = RankFunction::of(written) {
            ranks::plan_call(function, args, order, self.is_distinct, nulls)?
        } else if let Some(function) = GkFunction::of(written) {
            (plan_sketch(function, args, descending, nulls)?, args.to_vec())
        } else {
            return Ok(None);
        }))
    }
}

/// Checks that a call does not ask for NULLs.
fn no_nulls(function: &AggregateUDF, nulls: Option<NullTreatment>) -> Result<()> {
    if nulls == Some(NullTreatment::RespectNulls) {
        return plan_err!("{} skips NULLs: RESPECT NULLS is not allowed", function.name());
    }
    Ok(())
}

/// Spells a `DISTINCT` call in a form that DataFusion's optimizer handles. Returns whether it changed the call.
///
/// The optimizer takes a `DISTINCT` call whose arguments are equal expressions for one of a single argument, and
/// fails. Calls for the one row of the best key lose their `DISTINCT`, which changes nothing there. Most other calls have
/// a constant argument, so their arguments are equal only if all are constant: such calls get a filter that drops
/// nothing, since the optimizer leaves calls with a filter alone. So do calls of this crate with one argument, whose distinct values
/// are otherwise told apart by DataFusion, for which the two zeros are one.
pub(crate) fn respell_distinct(function: &AggregateUDF, params: &mut AggregateFunctionParams) -> bool {
    if !params.distinct {
        return false;
    }
    let answers_one = TopKBy::of(function).is_some_and(|top| !top.is_bound()) && params.args.len() == 2;
    if answers_one {
        params.distinct = false;
        return true;
    }
    let is_constant = !params.args.iter().any(Expr::any_column_refs);
    let is_single = params.args.len() == 1 && ShapeFunction::of(function).is_some();
    let respelled = (is_constant || is_single) && params.filter.is_none();
    if respelled {
        params.filter = Some(Box::new(lit(true)));
    }
    respelled
}

/// The approximate aggregate function that a call means. `descending`: the direction of `WITHIN GROUP`, if there is one.
fn plan_sketch(
    function: &GkFunction,
    args: &[Expr],
    descending: Option<bool>,
    nulls: Option<NullTreatment>,
) -> Result<Arc<AggregateUDF>> {
    let sql_name = function.sql_name();
    if nulls == Some(NullTreatment::RespectNulls) {
        return plan_err!("{sql_name} skips NULLs: RESPECT NULLS is not allowed");
    }
    check_arguments(sql_name, args)?;
    Ok(function.counting_from(descending.unwrap_or(function.is_descending())))
}

/// The aggregate function that a call of exact quantiles means, and its arguments without the method. `descending`: the direction of
/// `WITHIN GROUP`, if there is one.
fn plan_call(
    function: &ExactQuantiles,
    args: &[Expr],
    descending: Option<bool>,
    is_distinct: bool,
    nulls: Option<NullTreatment>,
) -> Result<(Arc<AggregateUDF>, Vec<Expr>)> {
    let sql_name = function.sql_name();
    if sql_name.is_builtin() {
        return plan_err!("write {sql_name}(..): what stands in for it is not called by name");
    }
    if nulls == Some(NullTreatment::RespectNulls) {
        return plan_err!("{sql_name} skips NULLs: RESPECT NULLS is not allowed");
    }
    let own = function.method();
    let (x, quantiles, method, weight) = match args {
        [x, quantiles] if !sql_name.needs_weight() => (x, quantiles, own, None),
        [x, quantiles, ..] if descending.is_some() && constant(quantiles)?.is_none() => {
            return plan_err!(
                "{sql_name} with WITHIN GROUP (ORDER BY {x}) takes its values from there: remove the argument \
                 {quantiles}"
            );
        }
        [x, quantiles, method] if sql_name.takes_method() => {
            (x, quantiles, method_argument(sql_name, method)?, None)
        }
        [x, quantiles, method, weight] if sql_name.takes_method() => {
            (x, quantiles, method_argument(sql_name, method)?, Some(weight))
        }
        [x, quantiles, weight] if sql_name.takes_weight() => (x, quantiles, own, Some(weight)),
        _ => return plan_err!("{}", sql_name.wrong_arguments(args.len())),
    };
    QuantileArgument::try_new(sql_name, quantiles)?;
    let planned = variant(sql_name, method, descending.unwrap_or(function.is_descending()));
    let x = if sql_name.is_of_clickhouse() {
        without_nan().call(vec![x.clone()])
    } else {
        x.clone()
    };
    let args: Vec<Expr> = [x, quantiles.clone()]
        .into_iter()
        .chain(weight.cloned())
        .collect();
    function.check_distinct(&args, is_distinct)?;
    Ok((planned, args))
}

/// Whether a call is of DataFusion's `percentile_cont` with a list of quantiles, which DataFusion refuses.
fn is_list_of_percentile_cont(function: &AggregateUDF, args: &[Expr]) -> Result<bool> {
    let [_, quantiles] = args else { return Ok(false) };
    Ok(is_percentile_cont(function) && constant(quantiles)?.is_some_and(|value| is_list(&value.data_type())))
}

/// The function that answers `percentile_cont` for a list of quantiles, and its arguments.
fn plan_percentile_cont(args: &[Expr], descending: Option<bool>) -> Result<(Arc<AggregateUDF>, Vec<Expr>)> {
    if let Some(quantiles) = args.get(1) {
        QuantileArgument::try_new(FunctionName::PercentileCont, quantiles)?;
    }
    let name = FunctionName::PercentileCont;
    let planned = variant(name, Method::PercentileCont, descending.unwrap_or(false));
    Ok((planned, args.to_vec()))
}

/// Plans `iqr` as the difference of two quantiles, which share the column and its scan.
fn plan_iqr(raw: RawAggregateExpr) -> Result<PlannerResult<RawAggregateExpr>> {
    no_order(Iqr::NAME, &raw.order_by)?;
    let method = iqr_method(&raw.args, raw.distinct, raw.null_treatment)?;
    let [upper, lower] = quartiles(&raw.args[0], method, raw.args.get(2), |func, args| {
        let filter = raw.filter.clone();
        let mut call = AggregateFunction::new_udf(func, args, raw.distinct, filter, Vec::new(), None);
        respell_distinct(&call.func, &mut call.params);
        Expr::AggregateFunction(call)
    });
    let written = Expr::AggregateFunction(AggregateFunction::new_udf(
        raw.func,
        raw.args,
        raw.distinct,
        raw.filter,
        raw.order_by,
        raw.null_treatment,
    ));
    named_as(upper - lower, &written)
}

/// The window call that was written.
fn as_written(raw: RawWindowExpr) -> WindowFunction {
    WindowFunction {
        fun: raw.func_def,
        params: WindowFunctionParams {
            args: raw.args,
            partition_by: raw.partition_by,
            order_by: raw.order_by,
            window_frame: raw.window_frame,
            filter: raw.filter,
            null_treatment: raw.null_treatment,
            distinct: raw.distinct,
        },
    }
}

/// Plans `iqr` over a window, as [`plan_iqr`].
fn plan_iqr_window(raw: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
    let method = iqr_method(&raw.args, raw.distinct, raw.null_treatment)?;
    let written = as_written(raw);
    let params = &written.params;
    let [upper, lower] = quartiles(&params.args[0], method, params.args.get(2), |func, args| {
        let mut call = written.clone();
        call.fun = WindowFunctionDefinition::AggregateUDF(func);
        (call.params.args, call.params.null_treatment) = (args, None);
        Expr::WindowFunction(Box::new(call))
    });
    named_as(upper - lower, &Expr::WindowFunction(Box::new(written)))
}

/// The method of a call of `iqr`.
///
/// # Errors
/// A planning error for a wrong number of arguments, for `DISTINCT` beside a weight, and for a method that does not interpolate: the difference of
/// two integers may be none of their type.
fn iqr_method(args: &[Expr], is_distinct: bool, nulls: Option<NullTreatment>) -> Result<Method> {
    if nulls == Some(NullTreatment::RespectNulls) {
        return plan_err!("{} skips NULLs: RESPECT NULLS is not allowed", Iqr::NAME);
    }
    let method = match args {
        [_] => Method::Linear,
        [_, _, _] if is_distinct => return plan_err!("{} takes DISTINCT or a weight, not both", Iqr::NAME),
        [_, method] | [_, method, _] => method_argument(Iqr::NAME, method)?,
        _ => return plan_err!("{}", Iqr::wrong_arguments(args.len())),
    };
    if method.interpolates() {
        Ok(method)
    } else {
        plan_err!(
            "{} by method {method}: allowed are the methods that interpolate, {}",
            Iqr::NAME,
            Method::names(Method::interpolates)
        )
    }
}

/// The method that an argument names.
fn method_argument(sql_name: impl Display, expr: &Expr) -> Result<Method> {
    match constant(expr)? {
        Some(
            ScalarValue::Utf8(Some(name))
            | ScalarValue::LargeUtf8(Some(name))
            | ScalarValue::Utf8View(Some(name)),
        ) => name.parse(),
        Some(value) => plan_err!(
            "{sql_name}: the method must be a string, one of {}, got {value} of type {}",
            Method::names(|_| true),
            value.data_type()
        ),
        None => plan_err!(
            "{sql_name}: the method must be a constant string, one of {}, got {expr}",
            Method::names(|_| true)
        ),
    }
}

/// The planned call under the name that `written`, the call in the query, has.
fn named_as<T>(planned: Expr, written: &Expr) -> Result<PlannerResult<T>> {
    let name = written.schema_name().to_string();
    let is_same = planned.schema_name().to_string() == name;
    Ok(PlannerResult::Planned(if is_same {
        planned
    } else {
        planned.alias(name)
    }))
}
