//! Sessions: tables by their names, and statements.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::catalog::TableProvider;
use datafusion::common::{DataFusionError, Result, TableReference, plan_err};
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion_quantiles::session::SessionLimits;
use pyo3::prelude::*;

use crate::error::{exception, mistake};
use crate::overlay::with_tables;
use crate::query::Query;
use crate::tables::table;
use crate::wait::{check_process, run};

/// A session of DataFusion with exact quantiles.
#[pyclass(module = "dfq", frozen)]
pub(crate) struct Session {
    /// `None` once it is closed.
    ctx: Mutex<Option<SessionContext>>,
    /// Number of the process that made it.
    process: u32,
}

/// A session within these limits, in which quoted paths are tables.
pub(crate) fn context(limits: &SessionLimits) -> Result<SessionContext> {
    let state = SessionStateBuilder::new()
        .with_config(limits.config()?)
        .with_runtime_env(limits.runtime()?)
        .with_default_features()
        .build();
    let ctx = SessionContext::new_with_state(state).enable_url_table();
    datafusion_quantiles::register_all(&ctx)?;
    Ok(ctx)
}

impl Session {
    fn ctx(&self) -> PyResult<SessionContext> {
        check_process(self.process).map_err(exception)?;
        let ctx = self.ctx.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ctx.ok_or_else(|| mistake("the session is closed"))
    }
}

#[pymethods]
impl Session {
    #[new]
    fn new(
        memory_limit: Option<usize>,
        spill_dir: Option<PathBuf>,
        partitions: Option<usize>,
    ) -> PyResult<Self> {
        let partitions = partitions
            .map(|partitions| {
                NonZeroUsize::new(partitions)
                    .ok_or_else(|| mistake("partitions is 0: allowed are whole numbers from 1 on"))
            })
            .transpose()?;
        let limits = SessionLimits {
            memory: memory_limit,
            partitions,
            spill_dir,
        };
        Ok(Self {
            ctx: Mutex::new(Some(context(&limits).map_err(exception)?)),
            process: std::process::id(),
        })
    }

    /// Lets go of all tables. Queries that exist go on.
    fn close(&self) {
        self.ctx.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Names, without a schema, that a statement reads as tables and the session does not know.
    fn unknown_tables(&self, sql: &str) -> PyResult<Vec<String>> {
        let ctx = self.ctx()?;
        let unknown = || {
            let state = ctx.state();
            let dialect = state.config_options().sql_parser.dialect;
            let statement = state.sql_to_statement(sql, &dialect)?;
            let mut names = Vec::new();
            for reference in state.resolve_table_references(&statement)? {
                if let TableReference::Bare { table } = &reference
                    && !ctx.table_exist(reference.clone())?
                {
                    names.push(table.to_string());
                }
            }
            Ok(names)
        };
        unknown().map_err(exception)
    }

    /// Plans a statement that also sees `tables`, objects by their names. What is no query is done at once.
    fn sql(&self, py: Python<'_>, sql: String, tables: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Query> {
        let mut ctx = self.ctx()?;
        if !tables.is_empty() {
            let partitions = ctx.copied_config().target_partitions();
            let table = |(name, object)| {
                let table: Arc<dyn TableProvider> = Arc::new(table(&object, partitions)?);
                Ok((name, table))
            };
            let tables = tables.into_iter().map(table).collect::<PyResult<_>>()?;
            ctx = with_tables(&ctx, tables);
        }
        let planned = run(py, async move { plan(&ctx, &sql).await })?;
        Ok(Query::new(planned, self.process))
    }

    /// Gives an object a name, in place of what had it.
    fn register(&self, name: String, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let ctx = self.ctx()?;
        let table = table(object, ctx.copied_config().target_partitions())?;
        replace(&ctx, &name, Arc::new(table)).map_err(exception)
    }

    /// Gives a query's answer a name: it runs whenever the name is read.
    fn register_query(&self, name: String, query: &Query) -> PyResult<()> {
        replace(&self.ctx()?, &name, query.frame().into_view()).map_err(exception)
    }

    /// Gives a file, folder, glob or URL a name.
    fn register_path(&self, py: Python<'_>, name: String, path: String) -> PyResult<()> {
        let ctx = self.ctx()?;
        run(py, async move {
            let found = ctx.table_provider(TableReference::bare(path.as_str())).await;
            match found {
                Ok(table) => replace(&ctx, &name, table),
                Err(DataFusionError::Plan(_)) => plan_err!(
                    "no table at '{path}': allowed are files that end in .parquet, .csv, .json or .arrow, folders and globs of them"
                ),
                Err(error) => Err(error.context(format!("cannot read '{path}'"))),
            }
        })
    }

    /// Takes a name away; whether there was one.
    fn deregister(&self, name: &str) -> PyResult<bool> {
        let table = self.ctx()?.deregister_table(TableReference::bare(name));
        Ok(table.map_err(exception)?.is_some())
    }
}

/// Gives a table a name, in place of the one that had it.
fn replace(ctx: &SessionContext, name: &str, table: Arc<dyn TableProvider>) -> Result<()> {
    ctx.deregister_table(TableReference::bare(name))?;
    ctx.register_table(TableReference::bare(name), table).map(drop)
}

/// Plans a statement. One that writes is done at once: nobody may ever read its answer.
async fn plan(ctx: &SessionContext, sql: &str) -> Result<DataFrame> {
    let frame = ctx.sql(sql).await?;
    match frame.logical_plan() {
        LogicalPlan::Dml(_) | LogicalPlan::Copy(_) => frame.cache().await,
        _ => Ok(frame),
    }
}
