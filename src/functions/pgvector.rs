//! The operators of pgvector, as functions of DataFusion.
//!
//! | operator | function |
//! | --- | --- |
//! | `v <-> q` | `array_distance(v, q)` |
//! | `v <=> q` | `cosine_distance(v, q)` |
//! | `v <#> q` | `-inner_product(v, q)` |
//!
//! SQL dialects that know the operators parse them: PostgreSQL all three, others `<=>` only, which means `IS NOT DISTINCT FROM` unless it
//! stands between two vectors.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{DFSchema, Result, ScalarValue, plan_err};
use datafusion::functions_nested::cosine_distance::cosine_distance_udf;
use datafusion::functions_nested::distance::array_distance_udf;
use datafusion::functions_nested::inner_product::inner_product_udf;
use datafusion::logical_expr::planner::{PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ExprSchemable, lit};
use datafusion::sql::sqlparser::ast::BinaryOperator;

/// Plans an operator of pgvector between a vector and another, or the text of another such as `'[1, 2, 3]'`, or a parameter.
///
/// # Errors
/// A planning error for a text that is no vector.
pub(super) fn plan_operator(raw: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
    let (function, is_negative) = match &raw.op {
        BinaryOperator::LtDashGt => (array_distance_udf(), false),
        BinaryOperator::Spaceship => (cosine_distance_udf(), false),
        BinaryOperator::Custom(name) if name == "<#>" => (inner_product_udf(), true),
        _ => return Ok(PlannerResult::Original(raw)),
    };
    let item = |expr: &Expr| expr.get_type(schema).ok().and_then(|found| item_type(&found));
    let args = match (item(&raw.left), item(&raw.right)) {
        (Some(_), Some(_)) => Some([raw.left.clone(), raw.right.clone()]),
        (Some(of), None) => vector(&raw.right, &of)?.map(|right| [raw.left.clone(), right]),
        (None, Some(of)) => vector(&raw.left, &of)?.map(|left| [left, raw.right.clone()]),
        (None, None) => None,
    };
    Ok(match args {
        Some(args) => {
            let call = function.call(args.to_vec());
            PlannerResult::Planned(if is_negative { -call } else { call })
        }
        None => PlannerResult::Original(raw),
    })
}

/// The type of the components of a vector; `None` for other types.
fn item_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type().is_numeric().then(|| item.data_type().clone())
        }
        _ => None,
    }
}

/// The vector that stands opposite to one whose components are of type `item`: a text, or a parameter. `None` for anything else.
fn vector(expr: &Expr, item: &DataType) -> Result<Option<Expr>> {
    Ok(match expr {
        Expr::Literal(
            ScalarValue::Utf8(Some(text))
            | ScalarValue::LargeUtf8(Some(text))
            | ScalarValue::Utf8View(Some(text)),
            _,
        ) => Some(lit(parsed(text, item)?)),
        Expr::Placeholder(_) => Some(expr.clone()),
        _ => None,
    })
}

/// The vector that a text stands for. Floating-point components are rounded to the type of those that they are compared with.
fn parsed(text: &str, item: &DataType) -> Result<ScalarValue> {
    let inside = text
        .trim()
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let parts = inside.map(|inside| match inside.trim() {
        "" => Vec::new(),
        inside => inside.split(',').map(|part| part.trim().parse::<f64>()).collect(),
    });
    let components: Option<std::result::Result<Vec<f64>, _>> = parts.map(|parts| parts.into_iter().collect());
    let Some(Ok(components)) = components else {
        return plan_err!("{text:?} is no vector: write '[1, 2, 3]'");
    };
    let mut values: ArrayRef = Arc::new(Float64Array::from(components));
    if item.is_floating() {
        values = cast(&values, item)?;
    }
    Ok(SingleRowListArrayBuilder::new(values).build_list_scalar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_vectors_or_errors() {
        let shown = |text| parsed(text, &DataType::Float32).map(|vector| vector.to_string());
        assert_eq!(shown("[1, 2.5,-3e2]").unwrap(), "[1.0, 2.5, -300.0]");
        assert_eq!(shown(" [ 1 ] ").unwrap(), "[1.0]");
        assert_eq!(shown("[]").unwrap(), "[]");
        for text in ["", "1, 2", "[1, 2", "[1, x]", "[1,,2]", "[[1]]"] {
            let error = shown(text).unwrap_err().strip_backtrace();
            assert_eq!(
                error,
                format!("Error during planning: {text:?} is no vector: write '[1, 2, 3]'")
            );
        }
    }
}
