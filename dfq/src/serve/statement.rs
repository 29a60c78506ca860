//! Statements of a client: from text to something that can be run.

mod catalog;
mod parameters;

use std::sync::Arc;

use datafusion::config::{ConfigOptions, Dialect as DialectName};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{DdlStatement, LogicalPlan, Statement as PlanStatement, WriteOp};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::{CloseCursor, DiscardObject, Set, Statement as SqlStatement};
#[cfg(feature = "cuda")]
use datafusion_quantiles::pinned::PinStatement;
use datafusion_quantiles::profile::SummarizeStatement;
use datafusion_quantiles::statement::{Statement as OwnStatement, depth};
use pgwire::api::Type;
use pgwire::error::PgWireError;

pub(super) use self::catalog::{CURRENT_SETTING, Catalog, OBJECTS, VERSION};
pub(super) use self::parameters::Parameter;
use super::failure::{code, error, of_statement};
use super::policy::{self, Writes};
use super::settings;
use crate::sql::{Piece, Statement, dialect, split, tokenize};

/// Most operators of a client's statement that may hold each other. The time to plan them grows with the square of their number, and nobody can
/// interrupt it.
const MOST_OPERATORS: usize = 2_000;

/// A statement that a client prepared.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub(super) text: Arc<str>,
    pub(super) command: Arc<Command>,
}

/// What a statement does.
#[derive(Debug)]
pub(super) enum Command {
    /// Runs a plan.
    Plan(Planned),
    /// `SUMMARIZE`, which reads when it runs.
    Summarize(SummarizeStatement),
    /// `PIN TABLE` or `UNPIN TABLE`.
    #[cfg(feature = "cuda")]
    Pin(PinStatement),
    /// `SET`, of one of PostgreSQL's variables.
    Set(Set),
    /// `SHOW` of one of PostgreSQL's variables: its name and its value.
    Show(String),
    Begin,
    Commit,
    Rollback,
    /// `DEALLOCATE` of a statement, or of all.
    Deallocate(Option<String>),
    /// `DISCARD ALL`: a session as new.
    Discard,
    /// What has nothing to do here: its tag.
    Nothing(&'static str),
}

impl Command {
    /// Whether it waits for its turn to run.
    pub(super) fn takes_turn(&self) -> bool {
        matches!(self, Self::Plan(_) | Self::Summarize(_))
    }

    /// How its end is told, if it has rows.
    pub(super) fn tag(&self) -> Tag {
        match self {
            Self::Plan(planned) => planned.tag,
            Self::Summarize(_) => Tag::Rows("SELECT"),
            _ => Tag::Answer("SHOW"),
        }
    }
}

/// A plan, and how its end is told.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) plan: LogicalPlan,
    pub(super) tag: Tag,
    pub(super) parameters: Vec<Parameter>,
}

/// How the end of a statement is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    /// The word, and the number of rows.
    Rows(&'static str),
    /// The word alone, after rows.
    Answer(&'static str),
    /// The word, and the number in the only row of the answer.
    Written(&'static str),
    /// The word; there are no rows.
    Done(&'static str),
}

impl Tag {
    fn of(plan: &LogicalPlan) -> Self {
        match plan {
            LogicalPlan::Ddl(ddl) => Self::Done(match ddl {
                DdlStatement::CreateExternalTable(_) => "CREATE EXTERNAL TABLE",
                DdlStatement::CreateMemoryTable(_) => "CREATE TABLE",
                DdlStatement::CreateView(_) => "CREATE VIEW",
                DdlStatement::CreateCatalogSchema(_) => "CREATE SCHEMA",
                DdlStatement::CreateCatalog(_) => "CREATE DATABASE",
                DdlStatement::CreateIndex(_) => "CREATE INDEX",
                DdlStatement::DropTable(_) => "DROP TABLE",
                DdlStatement::DropView(_) => "DROP VIEW",
                DdlStatement::DropCatalogSchema(_) => "DROP SCHEMA",
                DdlStatement::CreateFunction(_) => "CREATE FUNCTION",
                DdlStatement::DropFunction(_) => "DROP FUNCTION",
            }),
            LogicalPlan::Dml(dml) => Self::Written(match dml.op {
                WriteOp::Delete => "DELETE",
                WriteOp::Update => "UPDATE",
                WriteOp::Truncate => "TRUNCATE TABLE",
                _ => "INSERT 0",
            }),
            LogicalPlan::Copy(_) => Self::Written("COPY"),
            LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => Self::Answer("EXPLAIN"),
            LogicalPlan::Statement(statement) => Self::Done(match statement {
                PlanStatement::ResetVariable(_) => "RESET",
                PlanStatement::Prepare(_) => "PREPARE",
                PlanStatement::Deallocate(_) => "DEALLOCATE",
                _ => "SET",
            }),
            _ => Self::Rows("SELECT"),
        }
    }

    /// Whether rows come before it.
    pub(super) fn has_rows(self) -> bool {
        matches!(self, Self::Rows(_) | Self::Answer(_))
    }
}

/// Cuts the text of a simple query into statements.
///
/// # Errors
/// If the session's dialect is none.
pub(super) fn pieces(ctx: &SessionContext, text: &str) -> Result<Vec<Piece>, PgWireError> {
    let config = ctx.copied_config();
    let dialect = dialect(config.options()).map_err(|failure| of_statement(&failure, text))?;
    let mut split = split(text, 1, dialect.as_ref());
    split.pieces.extend(split.rest);
    Ok(split.pieces)
}

/// Prepares one statement, whose parameters have the types that the client gives. `None` if there is none in it.
///
/// # Errors
/// What is wrong with the statement, or that clients may not run it.
pub(super) async fn prepare(
    ctx: &SessionContext,
    catalog: &Catalog,
    writes: Writes,
    piece: &Piece,
    types: &[Option<Type>],
) -> Result<Prepared, PgWireError> {
    check_size(ctx, piece)?;
    let of_text = |failure: DataFusionError| of_statement(&failure, &piece.text);
    let config = ctx.copied_config();
    let parsed = parse(piece, config.options()).map_err(of_text)?;
    let command = match parsed {
        #[cfg(feature = "cuda")]
        Statement::Own(OwnStatement::Pin(PinStatement::Show)) => {
            let answer = PinStatement::Show.execute(ctx).await.map_err(of_text)?;
            Command::Plan(Planned {
                plan: answer.logical_plan().clone(),
                tag: Tag::Answer("SHOW"),
                parameters: Vec::new(),
            })
        }
        #[cfg(feature = "cuda")]
        Statement::Own(OwnStatement::Pin(statement)) => {
            policy::check_write("PIN TABLE and UNPIN TABLE", writes)?;
            Command::Pin(statement)
        }
        Statement::Own(OwnStatement::Summarize(statement)) => {
            let rows = statement.rows(ctx).await.map_err(of_text)?;
            policy::check(rows.logical_plan(), writes)?;
            Command::Summarize(statement)
        }
        Statement::DataFusion(statement, _) => match own(&statement)? {
            Some(command) => command,
            None => Command::Plan(plan(ctx, catalog, writes, *statement, piece, types).await?),
        },
    };
    Ok(Prepared {
        text: piece.text.as_str().into(),
        command: Arc::new(command),
    })
}

/// Parses a statement by the session's dialect, and by the generic one that `dfq sql` has if that fails.
fn parse(piece: &Piece, options: &ConfigOptions) -> Result<Statement> {
    let refused = match Statement::parse(piece, options) {
        Ok(statement) => return Ok(statement),
        Err(refused) => refused,
    };
    if options.sql_parser.dialect == DialectName::Generic {
        return Err(refused);
    }
    let mut generic = options.clone();
    generic.sql_parser.dialect = DialectName::Generic;
    Statement::parse(piece, &generic).map_err(|_| refused)
}

/// Refuses a statement that is a tree too deep to be walked.
fn check_size(ctx: &SessionContext, piece: &Piece) -> Result<(), PgWireError> {
    let config = ctx.copied_config();
    let of_text = |failure: DataFusionError| of_statement(&failure, &piece.text);
    let dialect = dialect(config.options()).map_err(of_text)?;
    // What cannot be cut into tokens is refused by the parser.
    let tokens = tokenize(piece, dialect.as_ref()).unwrap_or_default();
    let operators = depth(&tokens);
    if operators > MOST_OPERATORS {
        return Err(error(
            code::TOO_COMPLEX,
            format!(
                "the statement has {operators} operators and keywords that may hold each other, and {MOST_OPERATORS} are allowed: lists of \
                 values belong into IN (...) or VALUES"
            ),
        ));
    }
    Ok(())
}

/// The statement if it is run here, and not by DataFusion.
fn own(statement: &DataFusionStatement) -> Result<Option<Command>, PgWireError> {
    let DataFusionStatement::Statement(statement) = statement else {
        return Ok(None);
    };
    let unsupported = |what: &str| Err(error(code::NOT_SUPPORTED, format!("{what} is not supported")));
    Ok(Some(match statement.as_ref() {
        SqlStatement::StartTransaction { .. } => Command::Begin,
        SqlStatement::Commit { .. } => Command::Commit,
        SqlStatement::Rollback { savepoint: None, .. } => Command::Rollback,
        SqlStatement::Rollback { .. }
        | SqlStatement::Savepoint { .. }
        | SqlStatement::ReleaseSavepoint { .. } => {
            return unsupported("a savepoint");
        }
        SqlStatement::Set(set) if settings::is_own(set) => Command::Set(set.clone()),
        SqlStatement::ShowVariable { variable } => match settings::shown(variable) {
            Some(name) => Command::Show(name),
            None => return Ok(None),
        },
        SqlStatement::Discard {
            object_type: DiscardObject::ALL,
        } => Command::Discard,
        SqlStatement::Discard { .. } => Command::Nothing("DISCARD"),
        SqlStatement::UNLISTEN { .. } => Command::Nothing("UNLISTEN"),
        SqlStatement::LISTEN { .. } => return unsupported("LISTEN"),
        SqlStatement::Close {
            cursor: CloseCursor::All,
        } => Command::Nothing("CLOSE CURSOR ALL"),
        SqlStatement::Declare { .. } | SqlStatement::Fetch { .. } | SqlStatement::Close { .. } => {
            return unsupported("a cursor of SQL (a portal with a limit of rows is)");
        }
        SqlStatement::Deallocate { name, .. } => {
            let is_all = name.value.eq_ignore_ascii_case("all");
            Command::Deallocate((!is_all).then(|| name.value.clone()))
        }
        _ => return Ok(None),
    }))
}

async fn plan(
    ctx: &SessionContext,
    catalog: &Catalog,
    writes: Writes,
    statement: DataFusionStatement,
    piece: &Piece,
    types: &[Option<Type>],
) -> Result<Planned, PgWireError> {
    let hints = match &statement {
        DataFusionStatement::Statement(statement) => parameters::hints(statement),
        _ => Vec::new(),
    };
    let shows = matches!(&statement, DataFusionStatement::Statement(statement) if is_show(statement));
    let of_text = |failure: DataFusionError| of_statement(&failure, &piece.text);
    let mut plan = catalog.plan(ctx, statement, &piece.text).await.map_err(of_text)?;
    policy::check(&plan, writes)?;
    if let LogicalPlan::Statement(PlanStatement::Execute(_)) = &plan {
        // The statement that was prepared by SQL, with its values.
        let answer = ctx.execute_logical_plan(plan).await.map_err(of_text)?;
        plan = answer.into_unoptimized_plan();
    }
    let tag = match Tag::of(&plan) {
        Tag::Rows(_) if shows => Tag::Answer("SHOW"),
        tag => tag,
    };
    let parameters = Parameter::of(&plan, types, &hints).map_err(of_text)?;
    Ok(Planned {
        plan,
        tag,
        parameters,
    })
}

fn is_show(statement: &SqlStatement) -> bool {
    matches!(
        statement,
        SqlStatement::ShowVariable { .. }
            | SqlStatement::ShowTables { .. }
            | SqlStatement::ShowColumns { .. }
            | SqlStatement::ShowFunctions { .. }
    )
}
