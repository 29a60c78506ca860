//! The statements that this crate adds to SQL: `PIN TABLE`, `UNPIN TABLE` and `SHOW PINNED`, and `SUMMARIZE`; and forms of calls that it
//! adds to all others.

use datafusion::common::{Result, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::dataframe::DataFrame;
use datafusion::execution::SessionState;
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::dialect::{Dialect, dialect_from_str};
use datafusion::sql::sqlparser::tokenizer::{TokenWithSpan, Tokenizer};

use crate::parsing::check_depth;
#[cfg(feature = "cuda")]
use crate::pinned::PinStatement;
use crate::profile::SummarizeStatement;

pub use crate::functions::rewrite_calls;
pub use crate::parsing::depth;

/// A statement that this crate adds to SQL.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// About tables in the memory of a device.
    #[cfg(feature = "cuda")]
    Pin(PinStatement),
    /// What the columns of a table hold.
    Summarize(SummarizeStatement),
}

impl Statement {
    /// The statement that this text is, in the session's dialect. `None` if it is another kind of statement.
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

    /// Parses the tokens of one statement. `None` if it is another kind of statement.
    ///
    /// # Errors
    /// A syntax error with its place, that says what was expected. A statement of any kind that is too deep to be planned.
    pub fn parse(
        tokens: &[TokenWithSpan],
        dialect: &dyn Dialect,
        options: &ConfigOptions,
    ) -> Result<Option<Self>> {
        check_depth(tokens)?;
        #[cfg(feature = "cuda")]
        if let Some(statement) = PinStatement::parse(tokens, dialect, options)? {
            return Ok(Some(Self::Pin(statement)));
        }
        let summarize = SummarizeStatement::parse(tokens, dialect, options)?;
        Ok(summarize.map(Self::Summarize))
    }

    /// The tables that the statement reads, as it names them; none of a statement about pinned tables.
    ///
    /// # Errors
    /// A name that DataFusion does not understand.
    pub fn table_references(&self, state: &SessionState) -> Result<Vec<TableReference>> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Pin(_) => Ok(Vec::new()),
            Self::Summarize(statement) => statement.table_references(state),
        }
    }

    /// Executes the statement.
    ///
    /// # Errors
    /// Those of the statement.
    pub async fn execute(&self, ctx: &SessionContext) -> Result<DataFrame> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Pin(statement) => statement.execute(ctx).await,
            Self::Summarize(statement) => statement.execute(ctx).await,
        }
    }
}

/// Runs one statement of SQL: those of this crate, and all that `SessionContext::sql` runs, in which calls may also have the
/// forms that [`rewrite_calls`] rewrites.
///
/// # Errors
/// A syntax error, or another error of the statement.
pub async fn sql(ctx: &SessionContext, statement: &str) -> Result<DataFrame> {
    let state = ctx.state();
    if let Some(ours) = Statement::of(statement, state.config_options())? {
        return ours.execute(ctx).await;
    }
    let mut parsed = state.sql_to_statement(statement, &state.config_options().sql_parser.dialect)?;
    rewrite_calls(&mut parsed);
    let plan = state.statement_to_plan(parsed).await?;
    ctx.execute_logical_plan(plan).await
}
