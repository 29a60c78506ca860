//! Numbers of types, functions and tables, and their names: PostgreSQL's casts to `regtype`, `regproc` and `regclass`.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    DataType, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Query, SelectItem, SetExpr, Statement,
    Value, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::constants::of_objects;
use super::types::type_of;
use crate::serve::statement::catalog::tables::ColumnTypes;

/// Gives names where PostgreSQL shows them. The other direction, from names to numbers, is a rule of the catalog's library.
pub(super) fn resolve(statement: &mut Statement, types: &ColumnTypes) {
    let _ = statement.visit(&mut Resolve(types));
    // What the answer shows of a type's number is the type's name.
    if let Statement::Query(query) = statement {
        show_types(query);
    }
}

struct Resolve<'a>(&'a ColumnTypes);

impl VisitorMut for Resolve<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        let named = function_name(expression)
            .or_else(|| name_of(expression))
            .or_else(|| definition(expression));
        let named = named.or_else(|| self.numbers(expression));
        if let Some(named) = named {
            *expression = named;
        }
        ControlFlow::Continue(())
    }
}

impl Resolve<'_> {
    /// Lists of numbers of objects, which are of a type of their own on the wire.
    fn numbers(&self, expression: &Expr) -> Option<Expr> {
        let Expr::Function(function) = expression else {
            return None;
        };
        let is_list = function.name.to_string().eq_ignore_ascii_case("array_agg");
        (is_list && type_of(expression, self.0) == "OID[]").then(|| of_objects(expression.clone()))
    }
}

/// The last word of a type's name, in lower case.
fn type_name(data_type: &DataType) -> String {
    let name = data_type.to_string().to_ascii_lowercase();
    name.rsplit('.').next().unwrap_or_default().to_string()
}

fn cast_to<'a>(expression: &'a Expr, names: &[&str]) -> Option<&'a Expr> {
    match expression {
        Expr::Cast { expr, data_type, .. } if names.contains(&type_name(data_type).as_str()) => Some(expr),
        _ => None,
    }
}

pub(super) fn parse(text: &str) -> Option<Expr> {
    Parser::new(&PostgreSqlDialect {})
        .try_with_sql(text)
        .ok()?
        .parse_expr()
        .ok()
}

/// `'pg_catalog.array_in'::regproc` as `'array_in'`: columns of functions hold their names.
fn function_name(expression: &Expr) -> Option<Expr> {
    let operand = cast_to(expression, &["regproc", "regprocedure"])?;
    let Expr::Value(value) = operand else {
        return Some(operand.clone());
    };
    let Value::SingleQuotedString(name) = &value.value else {
        return None;
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    Some(Expr::value(Value::SingleQuotedString(last.to_string())))
}

/// `number::regtype::text` and `number::regclass::text` as what gives their names.
fn name_of(expression: &Expr) -> Option<Expr> {
    let number = cast_to(expression, &["text", "varchar", "character varying", "name"])?;
    if let Some(operand) = cast_to(number, &["regtype"]) {
        return named_type(operand);
    }
    let operand = cast_to(number, &["regclass"])?;
    // A name without a table's would be looked for in the subquery.
    let Expr::CompoundIdentifier(_) = operand else {
        return None;
    };
    parse(&format!(
        "(SELECT \"named relation\".relname FROM pg_catalog.pg_class \"named relation\" WHERE \"named relation\".oid = {operand})"
    ))
}

/// The name of the type with a number. Of a type's name it is what SQL writes for it, by the catalog's library.
fn named_type(operand: &Expr) -> Option<Expr> {
    match operand {
        Expr::Value(_) => parse(&format!("format_type({operand}::regtype, NULL)")),
        _ => parse(&format!("format_type({operand}, NULL)")),
    }
}

/// `pg_get_viewdef(number, ..)` as what gives the definition.
fn definition(expression: &Expr) -> Option<Expr> {
    let Expr::Function(function) = expression else {
        return None;
    };
    let name = function.name.0.last()?.as_ident()?;
    if !name.value.eq_ignore_ascii_case("pg_get_viewdef") {
        return None;
    }
    let FunctionArguments::List(arguments) = &function.args else {
        return None;
    };
    let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(number))) = arguments.args.first() else {
        return None;
    };
    // A name without a table's would be looked for in the subquery.
    if matches!(number, Expr::Identifier(_)) {
        return None;
    }
    parse(&format!(
        "(SELECT \"defined view\".definition FROM pg_catalog.pg_views \"defined view\" \
         JOIN pg_catalog.pg_namespace \"defined schema\" ON \"defined schema\".nspname = \"defined view\".schemaname \
         JOIN pg_catalog.pg_class \"defined relation\" ON \"defined relation\".relname = \"defined view\".viewname \
         AND \"defined relation\".relnamespace = \"defined schema\".oid WHERE \"defined relation\".oid = {number})"
    ))
}

fn show_types(query: &mut Query) {
    let SetExpr::Select(select) = query.body.as_mut() else {
        return;
    };
    for item in &mut select.projection {
        match item {
            SelectItem::ExprWithAlias { expr, .. } => {
                if let Some(shown) = cast_to(expr, &["regtype"]).and_then(named_type) {
                    *expr = shown;
                }
            }
            SelectItem::UnnamedExpr(expr) => {
                if let Some(shown) = cast_to(expr, &["regtype"]).and_then(named_type) {
                    let alias = match cast_to(expr, &["regtype"]) {
                        Some(Expr::Identifier(name)) => name.clone(),
                        Some(Expr::CompoundIdentifier(names)) if !names.is_empty() => {
                            names[names.len() - 1].clone()
                        }
                        _ => "regtype".into(),
                    };
                    *item = SelectItem::ExprWithAlias { expr: shown, alias };
                }
            }
            _ => {}
        }
    }
}
