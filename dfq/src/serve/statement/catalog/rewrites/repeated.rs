//! Columns of an answer with the same name, which PostgreSQL has and DataFusion has not.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Ident, Query, SelectItem, SetExpr, Statement, VisitMut, VisitorMut};

use super::empty::name_of;

/// Gives such columns names of their own from the second on.
pub(in crate::serve::statement::catalog) fn with_names(statement: &mut Statement) {
    let _ = VisitMut::visit(statement, &mut Names);
}

struct Names;

impl VisitorMut for Names {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        name(query.body.as_mut());
        ControlFlow::Continue(())
    }
}

fn name(body: &mut SetExpr) {
    match body {
        SetExpr::Select(select) => {
            let mut seen: HashMap<String, usize> = HashMap::new();
            for item in &mut select.projection {
                let key = match item {
                    SelectItem::UnnamedExpr(expr) => expr.to_string(),
                    SelectItem::ExprWithAlias { alias, .. } => alias.value.clone(),
                    _ => continue,
                };
                let count = seen.entry(key).or_default();
                *count += 1;
                if *count == 1 {
                    continue;
                }
                let (expr, base) = match item {
                    SelectItem::UnnamedExpr(expr) => (expr.clone(), name_of(expr).value),
                    SelectItem::ExprWithAlias { expr, alias } => (expr.clone(), alias.value.clone()),
                    _ => continue,
                };
                let alias = Ident::with_quote('"', format!("{base}:{}", *count - 1));
                *item = SelectItem::ExprWithAlias { expr, alias };
            }
        }
        SetExpr::SetOperation { left, right, .. } => {
            name(left);
            name(right);
        }
        _ => {}
    }
}
