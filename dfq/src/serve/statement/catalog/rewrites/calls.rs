//! Functions where PostgreSQL has tables: `FROM string_to_array('a,b', ',') s`, `FROM generate_series(1, 3) i`.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArguments, Statement, TableAliasColumnDef, TableFactor, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::names::parse;

/// Functions that are tables in DataFusion too.
const TABLES: [&str; 3] = ["generate_series", "pg_get_keywords", "range"];

/// Makes a table with one column of each such function, which has the table's name; and of `user` a call.
pub(super) fn as_tables(statement: &mut Statement) {
    let _ = statement.visit(&mut Calls);
}

struct Calls;

impl VisitorMut for Calls {
    type Break = ();

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let TableFactor::Table {
            name,
            alias: Some(alias),
            args: Some(_),
            ..
        } = factor
        else {
            return ControlFlow::Continue(());
        };
        let function = name.to_string().to_ascii_lowercase();
        if function == "unnest" || !alias.columns.is_empty() {
            return ControlFlow::Continue(());
        }
        if function == "generate_series" {
            alias.columns = vec![TableAliasColumnDef::from_name(alias.name.value.clone())];
        } else if !TABLES.contains(&function.as_str()) {
            let named = alias.clone();
            let mut call = factor.clone();
            if let TableFactor::Table { alias, .. } = &mut call {
                *alias = None;
            }
            if let Some(derived) = derived(&format!("(SELECT {call} AS {}) AS {}", named.name, named.name)) {
                *factor = derived;
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expression
            && matches!(function.args, FunctionArguments::None)
            && function.name.to_string().eq_ignore_ascii_case("user")
            && let Some(call) = parse("session_user()")
        {
            *expression = call;
        }
        ControlFlow::Continue(())
    }
}

fn derived(text: &str) -> Option<TableFactor> {
    Parser::new(&PostgreSqlDialect {})
        .try_with_sql(text)
        .ok()?
        .parse_table_factor()
        .ok()
}
