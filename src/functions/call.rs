//! The constant arguments of a call: from an expression to numbers, or an error that names what is wrong.

use std::fmt::Display;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatchOptions;
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue, plan_err};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{ColumnarValue, Expr};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::PhysicalExpr;

use super::FunctionName;
use crate::quantile::Quantiles;

/// What the second argument of a call is, as far as a logical plan tells.
pub(crate) enum QuantileArgument {
    /// Checked and ready.
    Known(Quantiles),
    /// A parameter that no value is bound to yet.
    Unbound,
}

impl QuantileArgument {
    /// Reads and checks the argument of a call of `called`.
    ///
    /// # Errors
    /// A planning error that names the value if it is not a constant number or list of numbers in [0, 1].
    pub(crate) fn try_new(called: impl Display, expr: &Expr) -> Result<Self> {
        if let Some(value) = constant(expr)? {
            return checked(&called, &value).map(Self::Known);
        }
        if expr.exists(|part| Ok(matches!(part, Expr::Placeholder(_))))? {
            return Ok(Self::Unbound);
        }
        plan_err!("{}", not_constant(&called, expr))
    }
}

/// The quantiles in `value`; an error says whose argument it was.
fn checked(called: &dyn Display, value: &ScalarValue) -> Result<Quantiles> {
    Quantiles::try_from_scalar(value).map_err(|error| match error {
        DataFusionError::Plan(message) => DataFusionError::Plan(format!("{called}: {message}")),
        other => other,
    })
}

fn not_constant(called: &dyn Display, shown: &dyn Display) -> String {
    format!("{called}: quantiles must be a constant number or list of numbers from 0 to 1, got {shown}")
}

/// Checked quantiles of a call that is about to be planned.
///
/// # Errors
/// As [`QuantileArgument::try_new`], and for a parameter without a value.
pub(crate) fn constant_quantiles(called: FunctionName, expr: &Expr) -> Result<Quantiles> {
    match QuantileArgument::try_new(called, expr)? {
        QuantileArgument::Known(quantiles) => Ok(quantiles),
        QuantileArgument::Unbound => plan_err!("{}", not_constant(&called, expr)),
    }
}

/// The value of an expression without columns, subqueries, parameters or volatile functions; else `None`.
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
        // No row has columns here: what fails needs one.
        Err(_) => None,
    })
}

/// Checked quantiles of a call that is about to run.
///
/// # Errors
/// A planning error that names the value if it is not a constant number or list of numbers in [0, 1].
pub(super) fn evaluated_quantiles(called: impl Display, expr: &Arc<dyn PhysicalExpr>) -> Result<Quantiles> {
    match evaluated(expr)? {
        Some(value) => checked(&called, &value),
        None => plan_err!("{}", not_constant(&called, expr)),
    }
}
