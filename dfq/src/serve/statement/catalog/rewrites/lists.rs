//! Lists of what a query gives.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArguments, SelectItem, SetExpr, Statement, VisitMut, VisitorMut,
};

use super::names::parse;
use super::single::is_of_catalog;

/// Writes such lists of the catalog's rows as aggregates. One without elements becomes NULL.
pub(super) fn aggregate(statement: &mut Statement) {
    let _ = statement.visit(&mut Lists);
}

struct Lists;

impl VisitorMut for Lists {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Some(list) = list(expression) {
            *expression = list;
        }
        ControlFlow::Continue(())
    }
}

/// `ARRAY(SELECT x ..)` as `(SELECT array_agg(x) ..)`.
fn list(expression: &Expr) -> Option<Expr> {
    let Expr::Function(function) = expression else {
        return None;
    };
    let FunctionArguments::Subquery(query) = &function.args else {
        return None;
    };
    if !function.name.to_string().eq_ignore_ascii_case("array") {
        return None;
    }
    let mut query = query.clone();
    let order = query
        .order_by
        .take()
        .map(|order| order.to_string())
        .unwrap_or_default();
    let SetExpr::Select(select) = query.body.as_mut() else {
        return None;
    };
    if !select.from.is_empty() && !is_of_catalog(select) {
        return None;
    }
    let [SelectItem::UnnamedExpr(element) | SelectItem::ExprWithAlias { expr: element, .. }] =
        select.projection.as_slice()
    else {
        return None;
    };
    // What is ordered by its place is ordered by itself.
    let order = match order.as_str() {
        "ORDER BY 1" => format!("ORDER BY {element}"),
        order => order.to_string(),
    };
    select.projection = vec![SelectItem::UnnamedExpr(parse(&format!(
        "array_agg({element} {order})"
    ))?)];
    Some(Expr::Subquery(query))
}
