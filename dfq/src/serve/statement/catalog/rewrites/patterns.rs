//! Patterns with another escape character than the backslash.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Statement, Value, ValueWithSpan, visit_expressions_mut};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;

/// Writes `LIKE pattern ESCAPE 'c'` with the only escape character that DataFusion has, the backslash.
pub(in crate::serve::statement::catalog) fn with_backslashes(statement: &mut Statement) {
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
}
