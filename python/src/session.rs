//! Sessions: tables by their names, and statements.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use datafusion::catalog::TableProvider;
use datafusion::common::{DataFusionError, Result, TableReference, plan_err};
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{DataFrame, SessionContext};
#[cfg(feature = "cuda")]
use datafusion_quantiles::pinned;
use datafusion_quantiles::session::SessionLimits;
use datafusion_quantiles::statement::{self, Statement};
use pyo3::prelude::*;

use crate::error::{exception, mistake};
use crate::overlay::with_tables;
use crate::place::{Cluster, Place};
use crate::progress::Watch;
use crate::query::Query;
use crate::tables::table;
use crate::wait::Calls;

/// A session of DataFusion with exact quantiles.
#[pyclass(module = "dfq", frozen)]
pub(crate) struct Session {
    /// `None` once it is closed.
    ctx: Mutex<Option<SessionContext>>,
    place: Place,
    calls: Calls,
}

/// A session within these limits, in which quoted paths are tables, and quantiles are selected on this device.
fn context(limits: &SessionLimits, device: Option<&str>) -> Result<SessionContext> {
    let state = SessionStateBuilder::new()
        .with_config(limits.config()?)
        .with_runtime_env(limits.runtime()?)
        .with_default_features()
        .build();
    let ctx = SessionContext::new_with_state(state).enable_url_table();
    datafusion_quantiles::register_all(&ctx)?;
    select_on(&ctx, device)?;
    Ok(ctx)
}

/// Sets the device that quantiles are selected on, if one is named.
fn select_on(ctx: &SessionContext, device: Option<&str>) -> Result<()> {
    let Some(device) = device else { return Ok(()) };
    let state = ctx.state_ref();
    let mut state = state.write();
    state.config_mut().options_mut().set("quantiles.device", device)
}

/// A session without tables, for all calls: to make one takes longer than most of them.
///
/// # Errors
/// An exception for environment variables that DataFusion does not understand.
pub(crate) fn without_tables() -> PyResult<&'static Arc<SessionContext>> {
    static SESSION: LazyLock<Result<Arc<SessionContext>, String>> = LazyLock::new(|| {
        let ctx = context(&SessionLimits::default(), None);
        ctx.map(Arc::new).map_err(|error| error.to_string())
    });
    SESSION.as_ref().map_err(mistake)
}

impl Session {
    fn ctx(&self) -> PyResult<SessionContext> {
        self.calls.check_process()?;
        let ctx = self.ctx.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ctx.ok_or_else(|| mistake("the session is closed"))
    }
}

#[pymethods]
impl Session {
    #[new]
    fn new(
        py: Python<'_>,
        memory_limit: Option<usize>,
        spill_dir: Option<PathBuf>,
        partitions: Option<usize>,
        device: Option<&str>,
        progress: bool,
        cluster: Option<Cluster>,
    ) -> PyResult<Self> {
        let partitions = partitions
            .map(|partitions| {
                NonZeroUsize::new(partitions)
                    .ok_or_else(|| mistake("partitions is 0: allowed are whole numbers from 1 on"))
            })
            .transpose()?;
        let calls = Calls::new(progress);
        let (ctx, place) = match cluster {
            Some(cluster) => {
                let partitions = partitions.map(NonZeroUsize::get);
                let (ctx, place) = calls.run(py, |_| cluster.connect(partitions))?;
                select_on(&ctx, device).map_err(exception)?;
                (ctx, place)
            }
            None => {
                let limits = SessionLimits {
                    memory: memory_limit,
                    partitions,
                    spill_dir,
                };
                (context(&limits, device).map_err(exception)?, Place::default())
            }
        };
        Ok(Self {
            ctx: Mutex::new(Some(ctx)),
            place,
            calls,
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
            let references = match Statement::of(sql, state.config_options())? {
                Some(ours) => ours.table_references(&state)?,
                None => {
                    let dialect = state.config_options().sql_parser.dialect;
                    state.resolve_table_references(&state.sql_to_statement(sql, &dialect)?)?
                }
            };
            let mut names = Vec::new();
            for reference in references {
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

    /// Names of the tables that the session has, in its default schema.
    fn tables(&self) -> PyResult<Vec<String>> {
        let ctx = self.ctx()?;
        let state = ctx.state();
        let names = &state.config_options().catalog;
        let catalog = ctx.catalog(&names.default_catalog);
        let schema = catalog.and_then(|catalog| catalog.schema(&names.default_schema));
        Ok(schema.map_or_else(Vec::new, |schema| schema.table_names()))
    }

    /// Plans a statement that also sees `tables`, objects by their names. What is no query is done at once.
    fn sql(&self, py: Python<'_>, sql: String, tables: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Query> {
        let mut ctx = self.ctx()?;
        if !tables.is_empty() {
            self.place.check_shares_memory()?;
            let partitions = ctx.copied_config().target_partitions();
            let tables = tables.into_iter();
            let tables = tables.map(|(name, object)| Ok((name, table(&object, partitions)?)));
            let tables = tables.collect::<PyResult<_>>()?;
            ctx = with_tables(&ctx, tables);
        }
        let place = self.place.clone();
        let (frame, place) = self
            .calls
            .run(py, |watch| async move { plan(&ctx, &sql, place, watch).await })?;
        Ok(Query::new(frame, place, self.calls))
    }

    /// Gives an object a name, in place of what had it.
    fn register(&self, name: String, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let ctx = self.ctx()?;
        self.place.check_shares_memory()?;
        let table = table(object, ctx.copied_config().target_partitions())?;
        replace(&ctx, &name, table).map_err(exception)
    }

    /// Gives a query's answer a name: it runs whenever the name is read.
    fn register_query(&self, name: String, query: &Query) -> PyResult<()> {
        replace(&self.ctx()?, &name, query.frame().into_view()).map_err(exception)
    }

    /// Gives a file, folder, glob or URL a name.
    fn register_path(&self, py: Python<'_>, name: String, path: String) -> PyResult<()> {
        let ctx = self.ctx()?;
        self.calls.run(py, |_| async move {
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

    /// Reads columns of a table, or all that can be pinned, into the memory of a device. Returns the columns that are left out, and why.
    fn pin(
        &self,
        py: Python<'_>,
        table: String,
        columns: Option<Vec<String>>,
    ) -> PyResult<Vec<(String, String)>> {
        let ctx = self.ctx()?;
        #[cfg(feature = "cuda")]
        return self.calls.run(py, |_| async move {
            let table = TableReference::bare(table);
            let Some(columns) = columns else {
                let all = pinned::pin_all_columns(&ctx, table).await?.into_iter();
                let left_out = all.filter_map(|column| Some((column.name, column.left_out?)));
                return Ok(left_out.collect());
            };
            let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
            pinned::pin_table(&ctx, table, &columns).await?;
            Ok(Vec::new())
        });
        #[cfg(not(feature = "cuda"))]
        Err(without_cuda((py, ctx, table, columns)))
    }

    /// Frees the memory of a device that a table's columns have there.
    fn unpin(&self, table: &str) -> PyResult<()> {
        let ctx = self.ctx()?;
        #[cfg(feature = "cuda")]
        return pinned::unpin_table(&ctx, TableReference::bare(table)).map_err(exception);
        #[cfg(not(feature = "cuda"))]
        Err(without_cuda((ctx, table)))
    }

    /// Takes a name away; whether there was one.
    fn deregister(&self, name: &str) -> PyResult<bool> {
        let table = self.ctx()?.deregister_table(TableReference::bare(name));
        Ok(table.map_err(exception)?.is_some())
    }
}

/// An exception for what this build cannot do with its arguments.
#[cfg(not(feature = "cuda"))]
fn without_cuda<T>(_: T) -> PyErr {
    mistake("this build of dfq has no devices: it was built without the feature 'cuda'")
}

/// Gives a table a name, in place of the one that had it.
fn replace(ctx: &SessionContext, name: &str, table: Arc<dyn TableProvider>) -> Result<()> {
    ctx.deregister_table(TableReference::bare(name))?;
    ctx.register_table(TableReference::bare(name), table).map(drop)
}

/// Plans a statement, and says where its answer is read. One that writes is done at once: nobody may ever read its answer.
async fn plan(ctx: &SessionContext, sql: &str, place: Place, watch: Watch) -> Result<(DataFrame, Place)> {
    let frame = statement::sql(ctx, sql).await?;
    if !matches!(frame.logical_plan(), LogicalPlan::Dml(_) | LogicalPlan::Copy(_)) {
        return Ok((frame, place));
    }
    let schema = Arc::clone(frame.schema().inner());
    let batches = place.collect(frame, watch).await?;
    let schema = batches.first().map_or(schema, |batch| batch.schema());
    let rows = MemTable::try_new(schema, vec![batches])?;
    let answer = SessionContext::new().read_table(Arc::new(rows))?;
    Ok((answer, Place::default()))
}
