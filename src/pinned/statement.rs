//! The statements `PIN TABLE`, `UNPIN TABLE` and `SHOW PINNED`: parser and execution.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, RecordBatch, StringArray};
use datafusion::common::{Result, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::LogicalPlanBuilder;
use datafusion::prelude::SessionContext;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::Ident;
use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::parser::{IsOptional, Parser};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::{PinnedColumn, pin_all_columns, pin_table, pinned_tables, unpin_table};
use crate::parsing::{expect_end, expect_word, first_words, syntax, word};

/// A statement about pinned tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinStatement {
    /// `PIN TABLE name [(column, ...)]`
    Pin {
        /// The table.
        table: TableReference,
        /// Its columns; `None`: all that can be pinned.
        columns: Option<Vec<String>>,
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

    /// Executes the statement. `SHOW PINNED` returns the rows of [`pinned_tables`]. `PIN TABLE` without columns returns a row for each column of
    /// the table: `column_name`, `data_type`, `pinned`, and the `reason` why it is not, or NULL. The others return no rows.
    ///
    /// # Errors
    /// Errors of [`pin_table`], [`pin_all_columns`], [`unpin_table`] and [`pinned_tables`].
    pub async fn execute(&self, ctx: &SessionContext) -> Result<DataFrame> {
        match self {
            PinStatement::Pin { table, columns: None } => {
                let columns = pin_all_columns(ctx, table.clone()).await?;
                ctx.read_batch(told(&columns)?)
            }
            PinStatement::Pin {
                table,
                columns: Some(columns),
            } => {
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

/// What became of the columns of a table, a row for each.
fn told(columns: &[PinnedColumn]) -> Result<RecordBatch> {
    let all = || columns.iter();
    let names = StringArray::from_iter_values(all().map(|column| &column.name));
    let types = StringArray::from_iter_values(all().map(|column| column.data_type.to_string()));
    let pinned: BooleanArray = all().map(|column| Some(column.left_out.is_none())).collect();
    let reasons: StringArray = all().map(|column| column.left_out.as_deref()).collect();
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("column_name", Arc::new(names) as ArrayRef, false),
        ("data_type", Arc::new(types), false),
        ("pinned", Arc::new(pinned), false),
        ("reason", Arc::new(reasons), true),
    ])?)
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
                let is_whole = matches!(parser.peek_token().token, Token::EOF | Token::SemiColon);
                let columns = if is_whole {
                    None
                } else {
                    let columns = parser.parse_parenthesized_column_list(IsOptional::Mandatory, false);
                    let columns = columns.map_err(syntax)?.into_iter();
                    Some(columns.map(|column| name_of(column, normalize)).collect())
                };
                PinStatement::Pin { table, columns }
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
    use datafusion::arrow::datatypes::DataType;
    use datafusion::arrow::util::pretty::pretty_format_batches;
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
            columns: Some(columns.iter().map(|name| (*name).to_owned()).collect()),
        };
        let whole = |table: &str| PinStatement::Pin {
            table: table.into(),
            columns: None,
        };
        for (sql, expected) in [
            ("PIN TABLE trips", whole("trips")),
            ("pin table s.\"T\" ;", whole("s.\"T\"")),
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
    fn what_is_left_out_is_told() {
        let column = |name: &str, left_out: Option<&str>| PinnedColumn {
            name: name.to_owned(),
            data_type: DataType::Utf8,
            left_out: left_out.map(str::to_owned),
        };
        let batch = told(&[column("a", None), column("b", Some("too long"))]).unwrap();
        let text = pretty_format_batches(&[batch]).unwrap().to_string();
        assert!(
            text.contains("| a           | Utf8      | true   |          |"),
            "{text}"
        );
        assert!(
            text.contains("| b           | Utf8      | false  | too long |"),
            "{text}"
        );
    }

    #[test]
    fn syntax_errors_say_what_was_expected() {
        for (sql, expected) in [
            ("PIN trips (x)", "Expected: TABLE, found: trips"),
            (
                "PIN TABLE trips fare",
                "Expected: a list of columns in parentheses, found: fare",
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
