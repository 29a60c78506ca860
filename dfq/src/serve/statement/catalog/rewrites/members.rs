//! `x IN (SELECT ..)` within `CASE`, which DataFusion has in conditions of queries only.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Query, SelectItem, SetExpr, Statement, VisitMut, VisitorMut};

use super::names::parse;

/// Writes it as a search in a list, in statements about the catalog.
pub(super) fn as_lists(statement: &mut Statement) {
    let _ = statement.visit(&mut Cases);
}

struct Cases;

impl VisitorMut for Cases {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Expr::Case { conditions, .. } = expression {
            for branch in conditions {
                let _ = branch.condition.visit(&mut Members);
                let _ = branch.result.visit(&mut Members);
            }
        }
        if let Expr::Case {
            else_result: Some(otherwise),
            ..
        } = expression
        {
            let _ = otherwise.visit(&mut Members);
        }
        ControlFlow::Continue(())
    }
}

struct Members;

impl VisitorMut for Members {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Expr::InSubquery {
            expr,
            subquery,
            negated,
        } = expression
            && let Some(list) = list(subquery)
            && let Some(found) = parse(&format!("array_contains({list}, {expr})"))
        {
            *expression = match negated {
                false => found,
                true => match parse(&format!("NOT {found}")) {
                    Some(absent) => absent,
                    None => return ControlFlow::Continue(()),
                },
            };
        }
        ControlFlow::Continue(())
    }
}

/// The query as one that gives a list of its values.
fn list(query: &Query) -> Option<Expr> {
    let mut query = query.clone();
    let SetExpr::Select(select) = query.body.as_mut() else {
        return None;
    };
    let [SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. }] =
        select.projection.as_slice()
    else {
        return None;
    };
    select.projection = vec![SelectItem::UnnamedExpr(parse(&format!("array_agg({value})"))?)];
    Some(Expr::Subquery(Box::new(query)))
}
