//! The statements that `dfq sql` knows.
//!
//! A statement kind of our own gets a variant here and a branch in [`Statement::parse`] that looks at the
//! first tokens (`DFParser::parser` is public); everything else is DataFusion's.

use datafusion::common::{plan_datafusion_err, plan_err};
use datafusion::config::{ConfigOptions, Dialect as DialectName};
use datafusion::error::Result;
use datafusion::sql::parser::{DFParserBuilder, Statement as DataFusionStatement};
use datafusion::sql::sqlparser::dialect::{Dialect, dialect_from_str};
use datafusion::sql::sqlparser::parser::ParserError;
use datafusion_quantiles::statement::{Statement as OwnStatement, rewrite_calls};

use super::labels::Labels;
use super::split::{Piece, tokenize};

/// A parsed statement.
#[derive(Debug)]
pub(crate) enum Statement {
    /// One of DataFusion's own, with the headings of its answer.
    DataFusion(Box<DataFusionStatement>, Labels),
    /// One that the library adds to SQL.
    Own(OwnStatement),
}

impl Statement {
    /// Parses one statement in the session's dialect.
    ///
    /// # Errors
    /// A syntax error, with the line and column in the whole script.
    pub(crate) fn parse(piece: &Piece, options: &ConfigOptions) -> Result<Self> {
        let dialect = dialect(options)?;
        let tokens = tokenize(piece, dialect.as_ref()).map_err(ParserError::from)?;
        if let Some(statement) = OwnStatement::parse(&tokens, dialect.as_ref(), options)? {
            return Ok(Self::Own(statement));
        }
        let mut statements = DFParserBuilder::new(tokens)
            .with_dialect(dialect.as_ref())
            .with_recursion_limit(options.sql_parser.recursion_limit.get())
            .build()?
            .parse_statements()?;
        match (statements.pop_front(), statements.pop_front()) {
            (Some(mut statement), None) => {
                let labels = Labels::of(&statement);
                rewrite_calls(&mut statement);
                Ok(Self::DataFusion(Box::new(statement), labels))
            }
            _ => plan_err!("expected one statement, found: {}", piece.text),
        }
    }
}

/// The SQL dialect that the session is set to.
///
/// # Errors
/// A dialect that the parser does not have.
pub(crate) fn dialect(options: &ConfigOptions) -> Result<Box<dyn Dialect>> {
    let name = &options.sql_parser.dialect;
    dialect_from_str(name).ok_or_else(|| {
        plan_datafusion_err!("no SQL dialect '{name}'; there are: {}", DialectName::available())
    })
}
