//! Runs one statement: parse, plan, execute, print, tell the time.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::{exec_err, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as DataFusionStatement;
use futures::FutureExt;

use super::labels::Labels;
use super::output::{Format, Output};
use super::progress::Progress;
use super::remote::Remote;
use super::split::Piece;
use super::statement::Statement;
use super::stores::{self, Region};
use crate::console::{message_of, panicked, say};

/// Why a statement did not run to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The reader of standard output went away.
    Closed,
    /// The statement failed, with this message.
    Error(String),
}

/// Runs statements in one session.
pub(crate) struct Runner {
    pub(crate) ctx: SessionContext,
    pub(crate) output: Output,
    /// Whether the time is printed after each statement.
    pub(crate) timing: bool,
    /// Shows how far a statement is.
    pub(crate) progress: Progress,
    /// How long a statement may take.
    pub(crate) timeout: Option<Duration>,
    /// Address of the cluster that runs the statements.
    pub(crate) remote: Option<String>,
    /// What runs, until it has ended.
    running: Option<Arc<dyn ExecutionPlan>>,
    /// Whether the statement that runs may have changed something outside of its answer.
    #[cfg(feature = "ballista")]
    writes: bool,
}

impl Runner {
    /// A runner that prints answers and nothing else.
    pub(crate) fn new(ctx: SessionContext, output: Output) -> Self {
        Self {
            ctx,
            output,
            timing: false,
            progress: Progress::default(),
            timeout: None,
            remote: None,
            running: None,
            #[cfg(feature = "ballista")]
            writes: false,
        }
    }

    /// The session's options as they are now.
    pub(crate) fn config_options(&self) -> Arc<ConfigOptions> {
        Arc::clone(self.ctx.copied_config().options())
    }

    /// Runs one statement and prints its answer.
    ///
    /// # Errors
    /// What is wrong with the statement or its data, or that nobody reads the output any more.
    pub(crate) async fn run(&mut self, piece: &Piece) -> Result<(), Failure> {
        let started = Instant::now();
        let bar = self.progress.start();
        let result = self.try_run_in_time(piece).await;
        drop(bar);
        let cut = match result {
            Ok(cut) => cut,
            Err(_) if self.output.closed => return Err(Failure::Closed),
            Err(error) => return Err(Failure::Error(message_of(&error, &piece.text))),
        };
        if cut {
            say(format_args!(
                "Only the first {} rows are shown; --maxrows inf shows all.",
                self.output.max_rows
            ));
        }
        if self.timing {
            say(format_args!(
                "Elapsed {:.3} seconds.",
                started.elapsed().as_secs_f64()
            ));
        }
        Ok(())
    }

    /// Has the cluster stop what it still does for a statement that did not end here.
    pub(crate) async fn cancel(&mut self) {
        let plan = self.running.take();
        #[cfg(feature = "ballista")]
        if let (Some(url), Some(plan)) = (&self.remote, &plan)
            && let Err(error) =
                datafusion_quantiles::ballista::cancel(url, plan, &self.ctx.copied_config()).await
        {
            say(format_args!("Warning: {}", crate::console::message(&error)));
        }
        drop(plan);
    }

    /// Runs one statement, and once more if a machine of the cluster was lost while it ran. What writes, or has printed rows,
    /// runs once.
    async fn try_run_or_again(&mut self, piece: &Piece) -> Result<bool> {
        #[cfg(feature = "ballista")]
        if self.remote.is_some() {
            use datafusion_quantiles::ballista::{explained, is_worth_another_try};
            (self.writes, self.output.has_written) = (false, false);
            let result = self.try_run(piece).await;
            let is_final = self.writes || self.output.has_written;
            return match result {
                Err(error) if !is_final && is_worth_another_try(&error) => {
                    say(format_args!(
                        "Trying once more: {}",
                        crate::console::message(&error)
                    ));
                    self.try_run(piece).await.map_err(explained)
                }
                result => result.map_err(explained),
            };
        }
        self.try_run(piece).await
    }

    async fn try_run_in_time(&mut self, piece: &Piece) -> Result<bool> {
        let Some(timeout) = self.timeout else {
            return self.try_run_or_again(piece).await;
        };
        match tokio::time::timeout(timeout, self.try_run_or_again(piece)).await {
            Ok(result) => result,
            Err(_) => {
                self.cancel().await;
                exec_err!("the statement was cancelled after {timeout:?}, as --timeout says")
            }
        }
    }

    async fn try_run(&mut self, piece: &Piece) -> Result<bool> {
        // A panic ends the statement alone. Sessions keep no lock that it could leave poisoned.
        match AssertUnwindSafe(self.parse_and_run(piece)).catch_unwind().await {
            Ok(result) => result,
            Err(panic) => Err(panicked(panic)),
        }
    }

    async fn parse_and_run(&mut self, piece: &Piece) -> Result<bool> {
        match Statement::parse(piece, &self.config_options())? {
            Statement::DataFusion(statement, labels) => {
                self.output.labels = labels;
                self.run_datafusion(*statement).await
            }
            Statement::Own(statement) => {
                self.output.labels = Labels::default();
                let answer = statement.execute(&self.ctx).await?;
                self.print(answer, false).await
            }
        }
    }

    async fn run_datafusion(&mut self, statement: DataFusionStatement) -> Result<bool> {
        #[cfg(feature = "ballista")]
        let statement = match &self.remote {
            Some(_) => super::files::with_folders(statement),
            None => statement,
        };
        let plan = self.ctx.state().statement_to_plan(statement).await?;
        #[cfg(feature = "ballista")]
        {
            self.writes = datafusion_quantiles::ballista::writes(&plan)?;
        }
        // Plans and descriptions are always shown whole.
        let whole = matches!(
            plan,
            LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) | LogicalPlan::DescribeTable(_)
        );
        let answer = self.start(plan).await?;
        self.print(answer, whole).await
    }

    /// Runs what is planned and prints its rows, all of them if `whole`; whether some were left out.
    async fn print(&mut self, answer: DataFrame, whole: bool) -> Result<bool> {
        let physical = answer.create_physical_plan().await?;
        self.check_bounded(physical.as_ref())?;
        let task = self.ctx.task_ctx();
        let reservation = MemoryConsumer::new("dfq table output").register(task.memory_pool());
        self.running = Some(Arc::clone(&physical));
        let watch = Remote::watch(self.remote.as_deref(), &physical, &self.ctx).await;
        self.progress.show(watch.shown(&physical));
        let stream = watch.checked(execute_stream(physical, Arc::clone(&task))?);
        let max_rows = self.output.max_rows;
        if whole {
            self.output.max_rows = usize::MAX;
        }
        let options = task.session_config().options();
        let printed = tokio::select! {
            printed = self.output.print(stream, &options.format, &reservation) => Ok(printed),
            lost = watch.lost() => Err(lost),
        };
        self.output.max_rows = max_rows;
        let printed = match printed {
            Ok(printed) => printed,
            Err(lost) => {
                self.cancel().await;
                Err(lost)
            }
        };
        // What failed has stopped by itself; what a closed output left has not.
        if !self.output.closed {
            self.running = None;
        }
        printed
    }

    /// Makes the stores that the plan names, then lets DataFusion run what is not a query.
    async fn start(&self, plan: LogicalPlan) -> Result<DataFrame> {
        stores::register(&self.ctx, &plan, Region::Configured).await?;
        let again =
            matches!(plan, LogicalPlan::Ddl(DdlStatement::CreateExternalTable(_))).then(|| plan.clone());
        match (self.ctx.execute_logical_plan(plan).await, again) {
            (Err(error), Some(plan)) if stores::is_region_failure(&error) => {
                stores::register(&self.ctx, &plan, Region::LookedUp).await?;
                self.ctx.execute_logical_plan(plan).await
            }
            (started, _) => started,
        }
    }

    /// An endless source can stream rows, but has no last row and no last state.
    fn check_bounded(&self, plan: &dyn ExecutionPlan) -> Result<()> {
        check_endless(plan)?;
        if plan.boundedness().is_unbounded() && self.output.format == Format::Table {
            return plan_err!(
                "the source is endless: a table cannot show it, use --format csv, tsv, nd-json, markdown or line"
            );
        }
        Ok(())
    }
}

/// Refuses a query over an endless source that would answer at its end.
///
/// # Errors
/// Says so.
pub(crate) fn check_endless(plan: &dyn ExecutionPlan) -> Result<()> {
    if plan.boundedness().is_unbounded() && plan.pipeline_behavior() == EmissionType::Final {
        return plan_err!("the query has an answer only at the end of its source, and the source is endless");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_panic_ends_its_statement_and_no_other() {
        let ctx = SessionContext::new();
        datafusion_quantiles::register_all(&ctx).unwrap();
        let output = Output::new(Format::Csv);
        let mut runner = Runner::new(ctx, output);
        for (text, is_right) in [
            ("CREATE TABLE t AS SELECT value AS v FROM range(0, 5)", true),
            (
                "PREPARE p(BIGINT) AS SELECT [0, 0.5, 1] FROM t WHERE v > $1",
                false,
            ),
            ("SELECT exact_quantiles(v, 0.5) FROM t", true),
            (
                "PREPARE q(BIGINT) AS SELECT [0, 0.5, 1] FROM t WHERE v > $1",
                false,
            ),
            ("CREATE TABLE u AS SELECT count(*) FROM t", true),
        ] {
            let piece = Piece {
                text: text.to_string(),
                line: 1,
                column: 1,
            };
            match (runner.run(&piece).await, is_right) {
                (Ok(()), true) => {}
                (Err(Failure::Error(message)), false) => {
                    assert!(
                        message.contains("panicked") && message.contains(text),
                        "{message}"
                    );
                }
                (result, _) => panic!("{text}: {result:?}"),
            }
        }
    }
}
