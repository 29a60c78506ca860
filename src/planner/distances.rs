//! Puts functions that read vectors where they lie in the place of DataFusion's `array_distance`, `cosine_distance` and `inner_product`.
//!
//! ```text
//! Sort: array_distance(CAST(t.v AS List(Float64)), [1, 2]), fetch=10  ->  Sort: vector_array_distance(t.v, [1, 2]), fetch=10
//!   TableScan: t                                                            TableScan: t
//! ```
//! That is done wherever such a call stands, for a column of vectors (`FixedSizeList` or `List` of `Float16`, `Float32` or `Float64`) and a
//! query that is the same for all rows: a constant, a parameter, or a subquery without columns of the query around it; or for two columns of
//! vectors. The answer has the same bits. It happens after the optimizer, when types are coerced and constants folded, and keeps every name.

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{Cast, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use crate::functions::{is_list_of_float64, is_vectors, vector_distance};

/// Replaces the calls in every expression of a plan, in subqueries too.
pub(super) fn read_in_place(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| {
        if !has_calls(&node)? {
            return Ok(Transformed::no(node));
        }
        let schema = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let replaced = expr.transform_up(|part| Ok(replaced(part, &schema)))?;
            Ok(if replaced.transformed {
                replaced.update_data(|expr| name.restore(expr))
            } else {
                replaced
            })
        })
    })
}

/// Whether an expression of a node calls one of the functions: few plans do, and the others are left alone.
fn has_calls(node: &LogicalPlan) -> Result<bool> {
    let is_call = |part: &Expr| match part {
        Expr::ScalarFunction(call) => Ok(vector_distance(&call.func).is_some()),
        _ => Ok(false),
    };
    let mut found = false;
    node.apply_expressions(|expr| {
        found = expr.exists(is_call)?;
        Ok(if found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(found)
}

/// A call whose vectors are read where they lie, if the expression is one that can be.
fn replaced(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Expr::ScalarFunction(call) = &expr else {
        return Transformed::no(expr);
    };
    let (Some(func), [first, second]) = (vector_distance(&call.func), call.args.as_slice()) else {
        return Transformed::no(expr);
    };
    let args = if is_query(second, schema) {
        vectors(first, schema).map(|first| vec![first, second.clone()])
    } else if is_query(first, schema) {
        vectors(second, schema).map(|second| vec![first.clone(), second])
    } else {
        // Vectors of two tables: their nearest pairs may be found without computing all distances.
        let both = vectors(first, schema).zip(vectors(second, schema));
        let both =
            both.filter(|(first, second)| [first, second].iter().all(|arg| matches!(arg, Expr::Column(_))));
        both.map(|(first, second)| vec![first, second])
    };
    match args {
        Some(args) => Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(func, args))),
        None => Transformed::no(expr),
    }
}

/// Whether an expression is one list of `Float64` for all rows.
fn is_query(expr: &Expr, schema: &DFSchema) -> bool {
    let data_type = expr.get_type(schema);
    !expr.any_column_refs() && !expr.is_volatile() && data_type.is_ok_and(|found| is_list_of_float64(&found))
}

/// The vectors that an expression makes lists of `Float64` of, or the expression if it has them.
fn vectors(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    let is_of = |expr: &Expr, is: fn(&_) -> bool| expr.get_type(schema).is_ok_and(|found| is(&found));
    if !expr.any_column_refs() || !is_of(expr, is_list_of_float64) {
        return None;
    }
    match expr {
        Expr::Cast(Cast { expr: inner, .. }) if is_of(inner, is_vectors) => Some(inner.as_ref().clone()),
        other => Some(other.clone()),
    }
}
