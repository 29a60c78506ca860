//! Statements that DataFusion plans and cannot run, or cannot plan, in a form that it can.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, SelectItem, SetExpr, Statement, Value, ValueWithSpan, visit_expressions_mut,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;

/// Writes `LIKE pattern ESCAPE 'c'` with the only escape character that DataFusion has, the backslash.
pub(super) fn with_backslashes(statement: &mut Statement) {
    let _ = visit_expressions_mut(statement, |expression| {
        if let Expr::Like {
            pattern, escape_char, ..
        }
        | Expr::ILike {
            pattern, escape_char, ..
        } = expression
            && let Some(escape) = escape_char.as_ref().and_then(character)
            && let Some(escaped) = escaped(pattern, &escape)
        {
            **pattern = escaped;
            *escape_char = None;
        }
        ControlFlow::<()>::Continue(())
    });
}

/// The character after `ESCAPE`, if it is not a backslash; a text without one means that there is none.
fn character(escape: &ValueWithSpan) -> Option<String> {
    match &escape.value {
        Value::SingleQuotedString(escape) if escape != "\\" && escape.chars().count() <= 1 => {
            Some(escape.clone())
        }
        _ => None,
    }
}

/// A character that no pattern holds, for one that is escaped by itself.
const ESCAPED: char = '\u{1}';

fn escaped(pattern: &Expr, escape: &str) -> Option<Expr> {
    let doubled = format!(r"replace({pattern}, '\', '\\')");
    let quoted = if escape == "'" { "''" } else { escape };
    let text = match quoted {
        "" => doubled,
        escape => {
            let hidden = format!("replace({doubled}, '{escape}{escape}', '{ESCAPED}')");
            let shown = format!(r"replace({hidden}, '{escape}', '\')");
            format!("replace({shown}, '{ESCAPED}', '{escape}')")
        }
    };
    Parser::new(&PostgreSqlDialect {})
        .try_with_sql(&text)
        .ok()?
        .parse_expr()
        .ok()
}

/// Statements of drivers about the columns of keys hold this function. There are no keys here.
const OF_KEYS: &str = "information_schema._pg_expandarray";

/// The statement without rows that a driver's statement about keys is: its columns, as text.
pub(super) fn without_keys(statement: &Statement, lower_text: &str) -> Option<Statement> {
    let Statement::Query(query) = statement else {
        return None;
    };
    if !lower_text.contains(OF_KEYS) {
        return None;
    }
    let SetExpr::Select(select) = query.body.as_ref() else {
        return None;
    };
    let columns: Option<Vec<_>> = select.projection.iter().map(column).collect();
    let text = format!("SELECT {} WHERE false", columns?.join(", "));
    Parser::parse_sql(&PostgreSqlDialect {}, &text).ok()?.pop()
}

fn column(item: &SelectItem) -> Option<String> {
    let name = match item {
        SelectItem::ExprWithAlias { alias, .. } => alias.clone(),
        SelectItem::UnnamedExpr(Expr::Identifier(name)) => name.clone(),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(names)) => names.last()?.clone(),
        _ => return None,
    };
    Some(format!("CAST(NULL AS TEXT) AS {name}"))
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    fn parse(text: &str) -> Statement {
        Parser::parse_sql(&PostgreSqlDialect {}, text)
            .unwrap()
            .pop()
            .unwrap()
    }

    #[tokio::test]
    async fn patterns_match_as_their_escape_characters_say() {
        let ctx = SessionContext::new();
        for (condition, expected) in [
            (r"'pg_x' LIKE 'pg/_%' ESCAPE '/'", "true"),
            (r"'pgyx' LIKE 'pg/_%' ESCAPE '/'", "false"),
            (r"'pg/x' LIKE 'pg//%' ESCAPE '/'", "true"),
            (r"'a\b' LIKE 'a\b' ESCAPE '/'", "true"),
            (r"'a\b' LIKE 'a\b' ESCAPE ''", "true"),
            (r"'A%' ILIKE 'a!%' ESCAPE '!'", "true"),
            (r"'Ab' ILIKE 'a!%' ESCAPE '!'", "false"),
            (r"'a''%' NOT LIKE 'a''''''%' ESCAPE ''''", "false"),
            (r"'a_' LIKE 'a\_' ESCAPE '\'", "true"),
        ] {
            let mut statement = parse(&format!("SELECT {condition}"));
            with_backslashes(&mut statement);
            let answer = ctx
                .sql(&statement.to_string())
                .await
                .unwrap()
                .to_string()
                .await
                .unwrap();
            assert!(
                answer.contains(&format!("| {expected}")),
                "{condition}: {statement}\n{answer}"
            );
        }
    }

    #[test]
    fn keys_are_none() {
        let text = "SELECT NULL AS a, n.nspname AS b, result.c FROM (SELECT (information_schema._pg_expandarray(i.indkey)).n FROM i) result";
        let without = without_keys(&parse(text), text).unwrap();
        let expected =
            "SELECT CAST(NULL AS TEXT) AS a, CAST(NULL AS TEXT) AS b, CAST(NULL AS TEXT) AS c WHERE false";
        assert_eq!(without.to_string(), expected);
        assert!(without_keys(&parse("SELECT 1 AS a"), "select 1 as a").is_none());
    }
}
