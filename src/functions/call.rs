//! Reads the constant arguments of a call from expressions, with errors that name what is wrong.

use std::fmt::Display;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatchOptions;
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue, plan_err};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{ColumnarValue, Expr};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::PhysicalExpr;

use super::FunctionName;
use crate::quantile::Quantiles;

/// Checks that a call has no order, which would mean nothing.
///
/// # Errors
/// A planning error that names the order.
pub(super) fn no_order(name: impl Display, order_by: &[Sort]) -> Result<()> {
    match order_by {
        [] => Ok(()),
        [order, ..] => plan_err!("{name} takes no order but its own: remove ORDER BY {order}"),
    }
}

/// The second argument of a call, the quantiles, as far as a logical plan tells.
pub(crate) enum QuantileArgument {
    /// Quantiles that are known, and checked.
    Known(Quantiles),
    /// A parameter that no value is bound to yet.
    Unbound,
}

impl QuantileArgument {
    /// Reads and checks the argument of a call of the function `sql_name`.
    ///
    /// # Errors
    /// A planning error that names the value if it is not a constant number or list of numbers in [0, 1].
    pub(crate) fn try_new(sql_name: impl Display, expr: &Expr) -> Result<Self> {
        if let Some(value) = constant(expr)? {
            return checked(&sql_name, &value).map(Self::Known);
        }
        if expr.exists(|part| Ok(matches!(part, Expr::Placeholder(_))))? {
            return Ok(Self::Unbound);
        }
        plan_err!("{}", not_constant(&sql_name, expr))
    }
}

/// The quantiles in `value`; an error names the function.
fn checked(sql_name: &dyn Display, value: &ScalarValue) -> Result<Quantiles> {
    Quantiles::try_from_scalar(value).map_err(|error| match error {
        DataFusionError::Plan(message) => DataFusionError::Plan(format!("{sql_name}: {message}")),
        other => other,
    })
}

/// The message for an argument that is no constant.
fn not_constant(sql_name: &dyn Display, shown: &dyn Display) -> String {
    format!("{sql_name}: quantiles must be a constant number or list of numbers from 0 to 1, got {shown}")
}

/// The checked quantiles of a call that is about to be planned.
///
/// # Errors
/// Those of [`QuantileArgument::try_new`], and a planning error for a parameter without a value.
pub(crate) fn constant_quantiles(sql_name: FunctionName, expr: &Expr) -> Result<Quantiles> {
    match QuantileArgument::try_new(sql_name, expr)? {
        QuantileArgument::Known(quantiles) => Ok(quantiles),
        QuantileArgument::Unbound => plan_err!("{}", not_constant(&sql_name, expr)),
    }
}

/// The value of an expression without columns, subqueries, parameters or volatile functions; `None` for others.
///
/// # Errors
/// Those of evaluating it, such as a division by zero.
pub(crate) fn constant(expr: &Expr) -> Result<Option<ScalarValue>> {
    let varies = |part: &Expr| {
        Ok(match part {
            Expr::Column(_)
            | Expr::OuterReferenceColumn(..)
            | Expr::Placeholder(_)
            | Expr::AggregateFunction(_)
            | Expr::WindowFunction(_)
            | Expr::ScalarSubquery(_)
            | Expr::Exists(_)
            | Expr::InSubquery(_)
            | Expr::Unnest(_) => true,
            other => other.is_volatile_node(),
        })
    };
    if let Expr::Literal(value, _) = expr {
        return Ok(Some(value.clone()));
    }
    if expr.exists(varies)? {
        return Ok(None);
    }
    let simplifier = ExprSimplifier::new(SimplifyContext::builder().with_current_time().build());
    let typed = simplifier.coerce(expr.clone(), &DFSchema::empty())?;
    match simplifier.simplify(typed)?.unalias_nested().data {
        Expr::Literal(value, _) => Ok(Some(value)),
        _ => Ok(None),
    }
}

/// The value of a physical expression without columns; `None` for others.
///
/// # Errors
/// DataFusion's, which no expression causes.
pub(super) fn evaluated(expr: &Arc<dyn PhysicalExpr>) -> Result<Option<ScalarValue>> {
    let one_row = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &one_row)?;
    Ok(match expr.evaluate(&row) {
        Ok(ColumnarValue::Scalar(value)) => Some(value),
        Ok(ColumnarValue::Array(array)) => Some(ScalarValue::try_from_array(&array, 0)?),
        // The row has no columns: an expression that fails here needs one.
        Err(_) => None,
    })
}

/// The checked quantiles of a call that is about to run.
///
/// # Errors
/// A planning error that names the value if it is not a constant number or list of numbers in [0, 1].
pub(super) fn evaluated_quantiles(sql_name: impl Display, expr: &Arc<dyn PhysicalExpr>) -> Result<Quantiles> {
    match evaluated(expr)? {
        Some(value) => checked(&sql_name, &value),
        None => plan_err!("{}", not_constant(&sql_name, expr)),
    }
}

/// Whether the `WITHIN GROUP` of a call turns its direction around. A call has one only where no `QuantilesExprPlanner` has
/// turned it into the function's name.
pub(super) fn is_reversed(args: &AccumulatorArgs) -> bool {
    let order = args.order_bys.first();
    order.is_some_and(|order| order.options.descending)
}
