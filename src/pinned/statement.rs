//! The statements `PIN TABLE`, `UNPIN TABLE` and `SHOW PINNED`: parser and execution.

use datafusion::common::{Result, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::LogicalPlanBuilder;
use datafusion::prelude::SessionContext;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::Ident;
use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::parser::{IsOptional, Parser};
use datafusion::sql::sqlparser::tokenizer::TokenWithSpan;

use super::{pin_table, pinned_tables, unpin_table};
use crate::parsing::{expect_end, expect_word, first_words, syntax, word};

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
        let (first, second) = first_words(tokens);
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
    expect_end(parser)?;
    Ok(statement)
}

fn name_of(ident: Ident, normalize: bool) -> String {
    match ident.quote_style {
        None if normalize => ident.value.to_lowercase(),
        _ => ident.value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::tokenizer::Tokenizer;

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
