//! `x IN (SELECT ..)` within `CASE`, which DataFusion has in conditions of queries only.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Query, Select, SelectItem, SetExpr, Statement, VisitMut, VisitorMut,
};

use super::names::parse;

/// Writes it as a search in a list, in statements about the catalog.
pub(super) fn as_lists(statement: &mut Statement) {
    let _ = statement.visit(&mut Cases);
}

struct Cases;

impl VisitorMut for Cases {
    type Break = ();

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        select.selection.iter_mut().for_each(branches);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Expr::Case {
            operand: None,
            conditions,
            ..
        } = expression
        {
            for branch in conditions {
                member(&mut branch.condition);
            }
        }
        ControlFlow::Continue(())
    }
}

/// The branches of a `CASE` that is a condition itself are conditions.
fn branches(condition: &mut Expr) {
    if let Expr::Case {
        conditions,
        else_result,
        ..
    } = condition
    {
        conditions
            .iter_mut()
            .for_each(|branch| member(&mut branch.result));
        else_result.iter_mut().for_each(|otherwise| member(otherwise));
    }
}

/// Rewrites a condition, of which NULL is as good as false: what is not a member of a list with NULLs is not told apart.
fn member(condition: &mut Expr) {
    match condition {
        Expr::Nested(inner) => member(inner),
        Expr::BinaryOp {
            left,
            op: BinaryOperator::And | BinaryOperator::Or,
            right,
        } => {
            member(left);
            member(right);
        }
        Expr::InSubquery {
            expr,
            subquery,
            negated: false,
        } => {
            let found = list(subquery).and_then(|list| parse(&format!("array_contains({list}, {expr})")));
            if let Some(found) = found {
                *condition = found;
            }
        }
        _ => {}
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
