//! Subqueries that give one value for each row of the query around them. DataFusion runs them as joins, if they are aggregates.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, GroupByExpr, Query, Select, SelectItem, SetExpr, Statement, TableFactor, TableWithJoins, Visit,
    VisitMut, Visitor, VisitorMut,
};

use super::empty::is_aggregate;
use super::names::parse;

/// Takes the first value of such subqueries, in statements about the catalog: what they look up by its number is there once.
pub(super) fn aggregate(statement: &mut Statement) {
    let _ = VisitMut::visit(statement, &mut First);
}

struct First;

impl VisitorMut for First {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Expr::Subquery(query) = expression {
            let _ = first(query);
        }
        ControlFlow::Continue(())
    }
}

fn first(query: &mut Query) -> Option<()> {
    if query.order_by.is_some() || query.with.is_some() {
        return None;
    }
    let SetExpr::Select(select) = query.body.as_mut() else {
        return None;
    };
    let groups = match &select.group_by {
        GroupByExpr::All(_) => true,
        GroupByExpr::Expressions(groups, _) => !groups.is_empty(),
    };
    if groups || !is_of_catalog(select) || !is_correlated(select) {
        return None;
    }
    let [SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. }] =
        select.projection.as_mut_slice()
    else {
        return None;
    };
    if is_aggregate(value) {
        return None;
    }
    *value = parse(&format!("first_value({value})"))?;
    query.limit_clause = None;
    Some(())
}

/// Whether a query reads the catalog's tables alone.
pub(super) fn is_of_catalog(select: &Select) -> bool {
    let is_of_catalog = |factor: &TableFactor| match factor {
        TableFactor::Table { name, .. } => {
            let schema = name.0.first().and_then(|part| part.as_ident());
            name.0.len() > 1 && schema.is_some_and(|schema| SCHEMAS.contains(&schema.value.as_str()))
        }
        _ => false,
    };
    let joined = |table: &TableWithJoins| {
        is_of_catalog(&table.relation) && table.joins.iter().all(|join| is_of_catalog(&join.relation))
    };
    !select.from.is_empty() && select.from.iter().all(joined)
}

/// Schemas of the catalog.
const SCHEMAS: [&str; 2] = ["pg_catalog", "information_schema"];

/// Whether a query names a table that is not its own.
fn is_correlated(select: &Select) -> bool {
    let mut own = HashSet::new();
    for table in &select.from {
        add(&table.relation, &mut own);
        for join in &table.joins {
            add(&join.relation, &mut own);
        }
    }
    Visit::visit(select, &mut Foreign(own)).is_break()
}

fn add(factor: &TableFactor, own: &mut HashSet<String>) {
    let name = match factor {
        TableFactor::Table { name, alias, .. } => match alias {
            Some(alias) => Some(alias.name.value.clone()),
            None => name
                .0
                .last()
                .and_then(|part| part.as_ident())
                .map(|part| part.value.clone()),
        },
        TableFactor::Derived { alias, .. } => alias.as_ref().map(|alias| alias.name.value.clone()),
        _ => None,
    };
    own.extend(name.map(|name| name.to_ascii_lowercase()));
}

struct Foreign(HashSet<String>);

impl Visitor for Foreign {
    type Break = ();

    // A query within the query has tables of its own.
    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if let SetExpr::Select(select) = query.body.as_ref() {
            for table in &select.from {
                add(&table.relation, &mut self.0);
                for join in &table.joins {
                    add(&join.relation, &mut self.0);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
        match expression {
            Expr::CompoundIdentifier(names) => match names.as_slice() {
                [.., of, _] if !self.0.contains(&of.value.to_ascii_lowercase()) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        }
    }
}
