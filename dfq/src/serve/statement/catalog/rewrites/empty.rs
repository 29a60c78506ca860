//! Queries of tables that have no rows: whatever else they say, their answer has none.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, GroupByExpr, Ident, JoinOperator, ObjectName, Query, Select,
    SelectItem, SetExpr, Statement, TableFactor, TableWithJoins, Value, Visit, VisitMut, Visitor, VisitorMut,
};

use super::constants::null_of;
use super::types::type_of;
use crate::serve::statement::catalog::tables::{ColumnTypes, INFORMATION, OF_INFORMATION, WITHOUT_ROWS};

/// Puts queries without rows in place of such queries, with the same columns.
pub(super) fn fold(statement: &mut Statement, types: &ColumnTypes) {
    let _ = VisitMut::visit(statement, &mut Fold(types));
}

struct Fold<'a>(&'a ColumnTypes);

impl VisitorMut for Fold<'_> {
    type Break = ();

    // Queries within a query come first.
    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let SetExpr::Select(select) = query.body.as_mut() else {
            return ControlFlow::Continue(());
        };
        if is_folded(select) || !select.from.iter().any(has_no_rows) || is_one_row(select) {
            return ControlFlow::Continue(());
        }
        let Some(projection) = columns(select, self.0) else {
            return ControlFlow::Continue(());
        };
        select.projection = projection;
        select.from.clear();
        select.distinct = None;
        select.group_by = GroupByExpr::Expressions(Vec::new(), Vec::new());
        select.having = None;
        select.selection = Some(Expr::value(Value::Boolean(false)));
        query.order_by = None;
        query.limit_clause = None;
        query.with = None;
        ControlFlow::Continue(())
    }
}

fn is_folded(select: &Select) -> bool {
    let is_false =
        |condition: &Expr| matches!(condition, Expr::Value(value) if value.value == Value::Boolean(false));
    select.from.is_empty() && select.selection.as_ref().is_some_and(is_false)
}

/// Whether a table of `FROM`, with all that is joined to it, has no rows.
fn has_no_rows(table: &TableWithJoins) -> bool {
    let drops = |operator: &JoinOperator| {
        matches!(
            operator,
            JoinOperator::Join(_) | JoinOperator::Inner(_) | JoinOperator::CrossJoin(_)
        )
    };
    let keeps_left = |operator: &JoinOperator| {
        drops(operator) || matches!(operator, JoinOperator::Left(_) | JoinOperator::LeftOuter(_))
    };
    let mut joins = table.joins.iter();
    // A join that keeps rows of the right makes rows again.
    let first = is_without_rows(&table.relation) && joins.clone().all(|join| keeps_left(&join.join_operator));
    first
        || joins.clone().all(|join| keeps_left(&join.join_operator))
            && joins.any(|join| drops(&join.join_operator) && is_without_rows(&join.relation))
}

fn is_without_rows(factor: &TableFactor) -> bool {
    match factor {
        TableFactor::Table { name, args: None, .. } => is_table_without_rows(name),
        TableFactor::Table {
            name,
            args: Some(args),
            ..
        } => is_unnested_null(name, &args.args),
        TableFactor::Derived { subquery, .. } => {
            matches!(subquery.body.as_ref(), SetExpr::Select(select) if is_folded(select))
        }
        TableFactor::NestedJoin { table_with_joins, .. } => has_no_rows(table_with_joins),
        _ => false,
    }
}

/// Columns of the catalog that are NULL in all rows.
const NULLS: [&str; 4] = ["attacl", "attoptions", "relacl", "reloptions"];

/// Whether a table is made of the elements of such a column.
fn is_unnested_null(name: &ObjectName, args: &[FunctionArg]) -> bool {
    let is_unnest = name.to_string().eq_ignore_ascii_case("unnest");
    let [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::CompoundIdentifier(column)))] = args else {
        return false;
    };
    is_unnest
        && column
            .last()
            .is_some_and(|column| NULLS.contains(&column.value.as_str()))
}

fn is_table_without_rows(name: &ObjectName) -> bool {
    let parts: Vec<_> = name
        .0
        .iter()
        .filter_map(|part| part.as_ident())
        .map(|part| part.value.to_ascii_lowercase())
        .collect();
    match parts.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["pg_catalog", table] => {
            let information = table.strip_prefix(INFORMATION);
            WITHOUT_ROWS.contains(table)
                || information.is_some_and(|table| table != "columns" && OF_INFORMATION.contains(&table))
        }
        _ => false,
    }
}

/// Aggregates, which give a row without groups even if there are no rows.
const AGGREGATES: [&str; 12] = [
    "array_agg",
    "avg",
    "bool_and",
    "bool_or",
    "count",
    "every",
    "json_agg",
    "jsonb_agg",
    "max",
    "min",
    "string_agg",
    "sum",
];

/// Whether a query gives one row, whatever it reads.
fn is_one_row(select: &Select) -> bool {
    let groups = match &select.group_by {
        GroupByExpr::All(_) => true,
        GroupByExpr::Expressions(groups, _) => !groups.is_empty(),
    };
    !groups
        && (select.having.is_some()
            || select
                .projection
                .iter()
                .any(|item| Visit::visit(item, &mut Aggregates).is_break()))
}

struct Aggregates;

impl Visitor for Aggregates {
    type Break = ();

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
        match is_aggregate(expression) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Whether an expression is a call of an aggregate.
pub(super) fn is_aggregate(expression: &Expr) -> bool {
    match expression {
        Expr::Function(function) if function.over.is_none() => {
            let name = function.name.to_string().to_ascii_lowercase();
            AGGREGATES.contains(&name.rsplit('.').next().unwrap_or_default())
        }
        _ => false,
    }
}

/// NULLs with the names and types of a query's columns; `None` if it does not name them all.
fn columns(select: &Select, types: &ColumnTypes) -> Option<Vec<SelectItem>> {
    let mut names: Vec<Ident> = Vec::new();
    let mut columns = Vec::new();
    for item in &select.projection {
        let (expression, name) = match item {
            SelectItem::ExprWithAlias { expr, alias } => (expr, alias.clone()),
            SelectItem::UnnamedExpr(expr) => (expr, name_of(expr)),
            _ => return None,
        };
        let same = names.iter().filter(|known| known.value == name.value).count();
        names.push(name.clone());
        let alias = match same {
            0 => name,
            _ => Ident::with_quote('"', format!("{}:{same}", name.value)),
        };
        columns.push(SelectItem::ExprWithAlias {
            expr: null_of(&type_of(expression, types)),
            alias,
        });
    }
    Some(columns)
}

/// The name that PostgreSQL gives to a column without one.
pub(super) fn name_of(expression: &Expr) -> Ident {
    match expression {
        Expr::Identifier(name) => name.clone(),
        Expr::CompoundIdentifier(names) if !names.is_empty() => names[names.len() - 1].clone(),
        Expr::Cast { expr, .. } | Expr::Nested(expr) => name_of(expr),
        Expr::Function(function) => {
            let name = function.name.0.last().and_then(|part| part.as_ident());
            name.cloned()
                .unwrap_or_else(|| Ident::with_quote('"', "?column?"))
        }
        Expr::Case { .. } => Ident::with_quote('"', "case"),
        _ => Ident::with_quote('"', "?column?"),
    }
}
