//! Replaces DataFusion's `median` and `percentile_cont` by this crate's functions, while `quantiles.replace_builtins` is on.
//!
//! ```text
//! Aggregate: aggr=[[median(CAST(t.x AS Float64)) AS median(t.x)]]
//!     ->  Aggregate: aggr=[[exact_median(CAST(t.x AS Float64), 0.5) AS median(t.x)]]
//! ```
//! Only calls whose answers are the same are replaced ([`Method::Median`], [`Method::PercentileCont`]), to the bit but for weights that
//! DataFusion cuts to six digits. It
//! happens after the optimizer, when types are coerced, and keeps the schema. Other functions of these names stay, and so
//! do calls with arguments that DataFusion would refuse.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::functions_aggregate::median::Median;
use datafusion::logical_expr::expr::{AggregateFunction, NullTreatment, Sort};
use datafusion::logical_expr::{
    AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition, lit,
};

use super::swap::{CallSite, over_same_window, swap_calls};
use crate::functions::{aggregate, is_percentile_cont};
use crate::quantile::Method;

/// Replaces the calls in each aggregation and window, in subqueries too.
pub(super) fn replace_builtins(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    swap_calls(plan, &|call, CallSite { schema, .. }| match call {
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
            let nulls = window.params.null_treatment;
            let (func, args) = same_answers(func, &window.params.args, &[], nulls, schema)?;
            Some(over_same_window(window, func.into(), args))
        }
        _ => None,
    })
}

/// The function of this crate, and its arguments, that give the same answer to the bit; `None`: there is none.
/// `order`: that of `WITHIN GROUP`.
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
    // DataFusion takes only the direction from the order, whatever the order is by.
    let descending = method == Method::PercentileCont && order.first().is_some_and(|order| !order.asc);
    Some((aggregate(method, descending), vec![x.clone(), lit(quantile)]))
}
