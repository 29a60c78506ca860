//! Runs statements, and says what is wrong with their answers.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::statement;
use quantiles_testing::types;

use crate::config::Config;
use crate::judge::{agree, judge, rows};
use crate::known::{depends_on_time, is_foreign, known};
use crate::naive::{Answer, answer};
use crate::statement::Statement;
use crate::table::Table;
use crate::value::{Cell, texts};

/// Most seconds that a statement may take.
const PATIENCE: u64 = 60;

/// How a statement ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Right,
    /// An error for want of memory, where memory was limited.
    NoMemory,
    /// Met a defect of DataFusion which the list of known ones names.
    Known(&'static str),
    Wrong(String),
}

/// A table, where its files are, and what runs statements.
pub(crate) struct Bench<'a> {
    pub(crate) runtime: &'a tokio::runtime::Runtime,
    pub(crate) folder: PathBuf,
}

/// Sessions over one table: with the crate's planner and without.
pub(crate) struct Sessions {
    ours: SessionContext,
    theirs: SessionContext,
}

static FOLDERS: AtomicU64 = AtomicU64::new(0);

impl Bench<'_> {
    /// Stores the table, and makes sessions over it.
    pub(crate) fn sessions(&self, table: &Table, configs: &[Config]) -> Result<Vec<Sessions>> {
        let folder = self
            .folder
            .join(FOLDERS.fetch_add(1, Ordering::Relaxed).to_string());
        table.store(&folder);
        configs
            .iter()
            .map(|config| self.runtime.block_on(pair(table, &folder, config)))
            .collect()
    }

    /// Runs a statement twice and judges both answers.
    pub(crate) fn outcome(
        &self,
        sessions: &Sessions,
        table: &Table,
        config: &Config,
        statement: &Statement,
    ) -> Outcome {
        let expected = answer(statement, table);
        let case = (statement, table);
        let ours = match self.rows(&sessions.ours, statement) {
            Ok(rows) => rows,
            Err(error) if is_for_want_of_memory(&error, config) => return Outcome::NoMemory,
            // https://github.com/apache/datafusion/issues/24883: two of its inputs spill, and the third waits for ever.
            Err(error)
                if is_late(&error)
                    && config.memory.is_some()
                    && self.plans(sessions, statement, "RepartitionExec") =>
            {
                return Outcome::Known("RepartitionExec of DataFusion waits for ever under a memory limit");
            }
            // For each batch the window puts together all of its rows, with the buffers of all views of each.
            Err(error)
                if is_late(&error)
                    && config.batch_size < 100
                    && self.plans(sessions, statement, "BoundedWindowAggExec") =>
            {
                return Outcome::Known("windows over tiny batches of views take minutes");
            }
            Err(error) => return self.wrong(sessions, &expected, shown(&error), case),
        };
        if let Err(why) = judge(&expected, &ours) {
            return self.wrong(sessions, &expected, format!("wrong answer: {why}"), case);
        }
        if !statement.can_run_without_our_planner() {
            return Outcome::Right;
        }
        self.second(sessions, table, statement, (&expected, &ours))
    }

    /// A failure, with what comes without our planner.
    fn wrong(
        &self,
        sessions: &Sessions,
        expected: &Answer,
        why: String,
        (statement, table): (&Statement, &Table),
    ) -> Outcome {
        if let Some(reason) = known(&why, statement, table) {
            return Outcome::Known(reason);
        }
        let theirs = match self
            .rows(&sessions.theirs, statement)
            .map(|rows| judge(expected, &rows))
        {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(format!("wrong answer: {why}")),
            Err(error) => Some(shown(&error)),
        };
        if (theirs.is_some() || depends_on_time(statement, table)) && self.is_foreign(sessions, statement) {
            return Outcome::Known("DataFusion's own: nothing of this crate took part");
        }
        let theirs = theirs.unwrap_or_else(|| "the right answer".to_owned());
        Outcome::Wrong(format!("{why}\n   without our planner: {theirs}"))
    }

    /// Whether nothing of this crate takes part in the statement with its planner.
    fn is_foreign(&self, sessions: &Sessions, statement: &Statement) -> bool {
        self.plan(sessions, statement)
            .is_ok_and(|plan| is_foreign(statement, &plan))
    }

    /// Whether an operator of this name is in the statement's plan.
    fn plans(&self, sessions: &Sessions, statement: &Statement, operator: &str) -> bool {
        self.plan(sessions, statement)
            .is_ok_and(|plan| plan.contains(operator))
    }

    /// What `EXPLAIN` shows with our planner.
    fn plan(&self, sessions: &Sessions, statement: &Statement) -> Result<String> {
        // EXECUTE cannot be explained.
        let literal = statement.with_literals();
        let (mut all, at) = literal.sql();
        all[at] = format!("EXPLAIN {}", all[at]);
        let rows = self.run(&sessions.ours, all, at)?;
        Ok(rows.iter().map(|row| texts(row)).collect())
    }

    /// DataFusion's opinion.
    fn second(
        &self,
        sessions: &Sessions,
        table: &Table,
        statement: &Statement,
        (expected, ours): (&Answer, &[Vec<Cell>]),
    ) -> Outcome {
        let checked = match self.rows(&sessions.theirs, statement) {
            Ok(theirs) => judge(expected, &theirs)
                .map_err(|why| format!("without our planner: wrong answer: {why}"))
                .and_then(|()| agree(expected, ours, &theirs)),
            Err(error) => Err(format!("without our planner: {}", shown(&error))),
        };
        match checked {
            Ok(()) => Outcome::Right,
            Err(why) if !statement.calls_ours() => match why.contains("DataFusion says") {
                true => wrong(why, statement, table),
                false => Outcome::Known("DataFusion's own: this crate's planner is right"),
            },
            Err(why) => wrong(why, statement, table),
        }
    }

    fn rows(&self, ctx: &SessionContext, statement: &Statement) -> Result<Vec<Vec<Cell>>> {
        let (all, at) = statement.sql();
        self.run(ctx, all, at)
    }

    /// Runs statements in order; the answer is that of the one at `at`.
    fn run(&self, ctx: &SessionContext, all: Vec<String>, at: usize) -> Result<Vec<Vec<Cell>>> {
        let (ctx, prepared) = (ctx.clone(), ctx.clone());
        let run = async move {
            let mut answer = Ok(Vec::new());
            for (i, sql) in all.iter().enumerate() {
                let batches = collect(&ctx, sql).await;
                match batches {
                    Ok(batches) if i == at => answer = Ok(rows(&batches)),
                    Ok(_) => {}
                    Err(error) if answer.is_ok() => answer = Err(error),
                    Err(_) => {}
                }
            }
            answer
        };
        let mut task = self.runtime.spawn(run);
        self.runtime.block_on(async {
            match tokio::time::timeout(Duration::from_secs(PATIENCE), &mut task).await {
                Err(_) => {
                    task.abort();
                    // What comes next may prepare a statement of the same name.
                    let _ = collect(&prepared, "DEALLOCATE p").await;
                    Err(DataFusionError::Internal(format!(
                        "no answer within {PATIENCE} s"
                    )))
                }
                Ok(Err(panic)) => Err(DataFusionError::Internal(format!("a panic: {}", message(panic)))),
                Ok(Ok(answer)) => answer,
            }
        })
    }
}

/// The batches of an answer, which have the types that the statement was planned with, before any planner of ours.
async fn collect(ctx: &SessionContext, sql: &str) -> Result<Vec<datafusion::arrow::array::RecordBatch>> {
    let frame = statement::sql(ctx, sql).await?;
    let planned = types(frame.schema().fields());
    let batches = frame.collect().await?;
    for batch in &batches {
        let found = types(batch.schema().fields());
        if found != planned {
            return Err(DataFusionError::Internal(format!(
                "an answer of types {found:?}, where {planned:?} are planned"
            )));
        }
    }
    Ok(batches)
}

async fn pair(table: &Table, folder: &Path, config: &Config) -> Result<Sessions> {
    Ok(Sessions {
        ours: config.session(table, folder, true).await?,
        theirs: config.session(table, folder, false).await?,
    })
}

fn message(panic: tokio::task::JoinError) -> String {
    match panic.try_into_panic() {
        Ok(payload) => match (payload.downcast_ref::<String>(), payload.downcast_ref::<&str>()) {
            (Some(text), _) => text.clone(),
            (_, Some(text)) => (*text).to_owned(),
            _ => "without a message".into(),
        },
        Err(error) => error.to_string(),
    }
}

fn shown(error: &DataFusionError) -> String {
    error.strip_backtrace().chars().take(600).collect()
}

fn is_late(error: &DataFusionError) -> bool {
    error.strip_backtrace().contains("no answer within")
}

fn is_for_want_of_memory(error: &DataFusionError, config: &Config) -> bool {
    config.memory.is_some() && matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

fn wrong(why: String, statement: &Statement, table: &Table) -> Outcome {
    match known(&why, statement, table) {
        Some(reason) => Outcome::Known(reason),
        None => Outcome::Wrong(why),
    }
}
