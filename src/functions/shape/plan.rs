//! Finds the function that a call means, and checks the call, while SQL is planned.

use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::expr::{NullTreatment, Sort};
use datafusion::logical_expr::{AggregateUDF, Expr};

use super::call::{check_arguments, check_distinct};
use super::function::{ShapeFunction, shape};
use super::name::ShapeName;
use crate::functions::call::{constant, no_order};

/// The function that a call means, and its arguments: the kind of a histogram is an argument in SQL, and a function of its own in a plan.
///
/// # Errors
/// A planning error that names what is not allowed.
pub(crate) fn plan_call(
    function: &ShapeFunction,
    args: &[Expr],
    order_by: &[Sort],
    is_distinct: bool,
    nulls: Option<NullTreatment>,
) -> Result<(Arc<AggregateUDF>, Vec<Expr>)> {
    let (sql_name, args) = match (function.sql_name(), args) {
        (ShapeName::Histogram, [x, bins, kind]) => {
            (histogram_kind(kind)?, [x.clone(), bins.clone()].to_vec())
        }
        (name, args) => (name, args.to_vec()),
    };
    if nulls == Some(NullTreatment::RespectNulls) {
        return plan_err!("{sql_name} skips NULLs: RESPECT NULLS is not allowed");
    }
    check_distinct(sql_name, is_distinct)?;
    // `mode() WITHIN GROUP (ORDER BY x)` is PostgreSQL's form: x arrives as the argument, and in the order.
    match order_by {
        [] => {}
        [order] if sql_name == ShapeName::Mode && order.asc && args == [order.expr.clone()] => {}
        order_by => no_order(sql_name, order_by)?,
    }
    check_arguments(sql_name, &args)?;
    Ok((shape(sql_name), args))
}

/// The function of a kind of histogram.
fn histogram_kind(kind: &Expr) -> Result<ShapeName> {
    let value = constant(kind)?;
    let name = match &value {
        Some(value) => value.try_as_str().flatten().map(str::to_ascii_lowercase),
        None => None,
    };
    match name.as_deref() {
        Some("equi-depth") => Ok(ShapeName::Histogram),
        Some("equi-width") => Ok(ShapeName::EquiWidth),
        _ => plan_err!(
            "{}: the kind of bins must be a constant 'equi-depth' or 'equi-width', got {kind}",
            ShapeName::Histogram
        ),
    }
}
