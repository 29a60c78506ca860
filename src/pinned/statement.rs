//! The statements `PIN TABLE`, `UNPIN TABLE` and `SHOW PINNED`: parser and execution.

use datafusion::common::{DataFusionError, Result, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::LogicalPlanBuilder;
use datafusion::prelude::SessionContext;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::Ident;
use datafusion::sql::sqlparser::dialect::{Dialect, dialect_from_str};
use datafusion::sql::sqlparser::parser::{IsOptional, Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use super::{pin_table, pinned_tables, unpin_table};

/// A statement about pinned tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinStatement {
    /// `PIN TABLE name (column, ...)`
    Pin {
        /// The table.
        table: TableReference,
        /// Its columns.
        columns: Vec<String>,
    },
    /// `UNPIN TABLE name`
    Unpin {
        /// The table.
        table: TableReference,
    },
    /// `SHOW PINNED`
    Show,
}

impl PinStatement {
    /// The statement about pinned tables that this text is, in the session's dialect. `None` if it is another kind of statement.
    ///
    /// # Errors
    /// Those of [`Self::parse`].
    pub fn of(text: &str, options: &ConfigOptions) -> Result<Option<Self>> {
        match dialect_from_str(options.sql_parser.dialect) {
            // DataFusion reports the wrong dialect.
            None => Ok(None),
            Some(dialect) => match Tokenizer::new(dialect.as_ref(), text).tokenize_with_location() {
                Ok(tokens) => Self::parse(&tokens, dialect.as_ref(), options),
                Err(_) => Ok(None),
            },
        }
    }

    /// Parses the tokens of one statement. `None` if it is another kind of statement. Names without quotes become lower case if the session
    /// says so (`datafusion.sql_parser.enable_ident_normalization`).
    ///
    /// # Errors
    /// A syntax error with its place, that says what was expected.
    pub fn parse(
        tokens: &[TokenWithSpan],
        dialect: &dyn Dialect,
        options: &ConfigOptions,
    ) -> Result<Option<Self>> {
        let words = tokens
            .iter()
            .filter(|token| !matches!(token.token, Token::Whitespace(_)));
        let mut words = words.map(|token| word(&token.token));
        let (first, second) = (words.next().flatten(), words.next().flatten());
        let is = |found: &Option<String>, wanted: &str| found.as_deref() == Some(wanted);
        let is_ours = is(&first, "pin") || is(&first, "unpin") || is(&first, "show") && is(&second, "pinned");
        if !is_ours {
            return Ok(None);
        }
        let mut parser = Parser::new(dialect).with_tokens_with_locations(tokens.to_vec());
        let normalize = options.sql_parser.enable_ident_normalization;
        parse_ours(&mut parser, normalize).map(Some)
    }

    /// Executes the statement. `SHOW PINNED` returns the rows of [`pinned_tables`], and the others return none.
    ///
    /// # Errors
    /// Errors of [`pin_table`], [`unpin_table`] and [`pinned_tables`].
    pub async fn execute(&self, ctx: &SessionContext) -> Result<DataFrame> {
        match self {
            PinStatement::Pin { table, columns } => {
                let columns: Vec<_> = columns.iter().map(String::as_str).collect();
                pin_table(ctx, table.clone(), &columns).await?;
                nothing(ctx).await
            }
            PinStatement::Unpin { table } => {
                unpin_table(ctx, table.clone())?;
                nothing(ctx).await
            }
            PinStatement::Show => ctx.read_batch(pinned_tables(ctx)?),
        }
    }
}

/// An empty answer.
async fn nothing(ctx: &SessionContext) -> Result<DataFrame> {
    ctx.execute_logical_plan(LogicalPlanBuilder::empty(false).build()?)
        .await
}

/// The word of a token in lower case, if it is a word without quotes.
fn word(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_lowercase()),
        _ => None,
    }
}

fn parse_ours(parser: &mut Parser<'_>, normalize: bool) -> Result<PinStatement> {
    let first = word(&parser.next_token().token);
    let statement = match first.as_deref() {
        Some("show") => {
            parser.next_token();
            PinStatement::Show
        }
        other => {
            let pins = other == Some("pin");
            expect_word(parser, "table")?;
            let name = parser.parse_object_name(false).map_err(syntax)?;
            let table = object_name_to_table_reference(name, normalize)?;
            if pins {
                let columns = parser.parse_parenthesized_column_list(IsOptional::Mandatory, false);
                let columns = columns.map_err(syntax)?;
                PinStatement::Pin {
                    table,
                    columns: columns
                        .into_iter()
                        .map(|column| name_of(column, normalize))
                        .collect(),
                }
            } else {
                PinStatement::Unpin { table }
            }
        }
    };
    while parser.consume_token(&Token::SemiColon) {}
    match parser.peek_token().token {
        Token::EOF => Ok(statement),
        _ => expected("the end of the statement", &parser.peek_token()),
    }
}

fn expect_word(parser: &mut Parser<'_>, wanted: &str) -> Result<()> {
    let found = parser.next_token();
    if word(&found.token).as_deref() == Some(wanted) {
        Ok(())
    } else {
        expected(&wanted.to_ascii_uppercase(), &found)
    }
}

fn name_of(ident: Ident, normalize: bool) -> String {
    match ident.quote_style {
        None if normalize => ident.value.to_lowercase(),
        _ => ident.value,
    }
}

fn expected<T>(what: &str, found: &TokenWithSpan) -> Result<T> {
    let at = found.span.start;
    Err(syntax(ParserError::ParserError(format!(
        "Expected: {what}, found: {found}{at}"
    ))))
}

fn syntax(error: ParserError) -> DataFusionError {
    DataFusionError::SQL(Box::new(error), None)
}

/// Runs one statement of SQL: those of this module here, and all others by `SessionContext::sql`.
///
/// # Errors
/// A syntax error, or another error of the statement.
pub async fn sql(ctx: &SessionContext, statement: &str) -> Result<DataFrame> {
    match PinStatement::of(statement, ctx.copied_config().options())? {
        Some(ours) => ours.execute(ctx).await,
        None => ctx.sql(statement).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    fn parse(sql: &str) -> Result<Option<PinStatement>> {
        let tokens = Tokenizer::new(&GenericDialect, sql)
            .tokenize_with_location()
            .unwrap();
        PinStatement::parse(&tokens, &GenericDialect, &ConfigOptions::default())
    }

    #[test]
    fn statements() {
        let pin = |table: &str, columns: &[&str]| PinStatement::Pin {
            table: table.into(),
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
        };
        for (sql, expected) in [
            ("PIN TABLE trips (fare, tip)", pin("trips", &["fare", "tip"])),
            ("pin table Trips (FARE, \"Tip\");", pin("trips", &["fare", "Tip"])),
            ("/* all */ PIN TABLE a.b.c (x)", pin("a.b.c", &["x"])),
            ("UNPIN TABLE s.t ;", PinStatement::Unpin { table: "s.t".into() }),
            ("show Pinned", PinStatement::Show),
        ] {
            assert_eq!(parse(sql).unwrap(), Some(expected), "{sql}");
        }
        for sql in [
            "SELECT 1",
            "SHOW TABLES",
            "\"pin\" TABLE t (x)",
            "",
            "SHOW \"pinned\"",
        ] {
            assert_eq!(parse(sql).unwrap(), None, "{sql}");
        }
    }

    #[test]
    fn syntax_errors_say_what_was_expected() {
        for (sql, expected) in [
            ("PIN trips (x)", "Expected: TABLE, found: trips"),
            (
                "PIN TABLE trips",
                "Expected: a list of columns in parentheses, found: EOF",
            ),
            ("PIN TABLE trips ()", "Expected: identifier, found: )"),
            ("UNPIN TABLE", "Expected: identifier, found: EOF"),
            ("UNPIN TABLE t x", "Expected: the end of the statement, found: x"),
            (
                "SHOW PINNED TABLES",
                "Expected: the end of the statement, found: TABLES",
            ),
        ] {
            let error = parse(sql).unwrap_err().to_string();
            assert!(error.contains(expected), "{sql}: {error}");
        }
    }
}
