//! What connections share, and what each has alone.
//!
//! ```text
//! shared             catalog of tables, pinned tables, memory pool, spill folder, object stores, PostgreSQL's catalog
//! of a connection    options of DataFusion and of this crate, prepared statements, PostgreSQL's variables
//! ```

mod functions;

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::timezone::Tz;
use datafusion::catalog::CatalogProviderList;
use datafusion::config::Dialect;
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::{LogicalPlan, SetVariable, Statement};
use datafusion::prelude::SessionContext;
use parking_lot::{RwLock, RwLockReadGuard};
use pgwire::error::{PgWireError, PgWireResult};

use super::failure::{code, error, of_statement};
use super::policy::Writes;
use super::settings::{self, Assigned, Change, Settings};
use super::statement::Catalog;
use crate::sql::{SessionArgs, add_table, enable_files};

/// What all connections share.
pub(super) struct Base {
    /// The session in which tables are made before there are clients. Files can be named in it.
    pub(super) ctx: SessionContext,
    /// Its tables alone, without those that files are.
    tables: Arc<dyn CatalogProviderList>,
    pub(super) catalog: Catalog,
    pub(super) writes: Writes,
}

impl Base {
    /// # Errors
    /// Options of the session that are wrong.
    pub(super) async fn new(args: &SessionArgs, writes: Writes) -> Result<Self> {
        let ctx = args.build_without_files()?;
        // What clients for business intelligence send is `PERCENTILE_CONT(q) WITHIN GROUP (ORDER BY x)`.
        ctx.sql("SET quantiles.replace_builtins = true").await?;
        let catalog = Catalog::install(&ctx, writes)?;
        let tables = Arc::clone(ctx.state().catalog_list());
        enable_files(&ctx);
        Ok(Self {
            ctx,
            tables,
            catalog,
            writes,
        })
    }

    /// Serves a file, a folder, a glob or a URL as a table: `trips.parquet` as `trips`, `rides=trips.parquet` as `rides`.
    ///
    /// # Errors
    /// A file that is no table, and a name without characters.
    pub(super) async fn add_table(&self, text: &str) -> Result<()> {
        add_table(&self.ctx, text).await
    }

    /// A session for a connection, with the options that the base has.
    fn session(&self) -> SessionContext {
        let state = self.ctx.state();
        let mut config = state.config().clone();
        config.options_mut().sql_parser.dialect = Dialect::PostgreSQL;
        let state = SessionStateBuilder::new_from_existing(state)
            .with_config(config)
            .with_catalog_list(Arc::clone(&self.tables))
            .build();
        let ctx = SessionContext::new_with_state(state);
        #[cfg(feature = "cuda")]
        datafusion_quantiles::pinned::share_pinned_tables(&self.ctx, &ctx);
        if self.writes == Writes::Allowed {
            enable_files(&ctx);
        }
        ctx
    }

    /// Bytes of the memory pool that statements hold.
    pub(super) fn reserved(&self) -> usize {
        self.ctx.runtime_env().memory_pool.reserved()
    }
}

/// Who is connected.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) user: String,
    /// The number of the connection, which its cancels name.
    pub(super) number: i32,
}

/// What a connection has alone.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) ctx: SessionContext,
    settings: Arc<RwLock<Settings>>,
    /// How long a statement may take, as the client says.
    pub(super) timeout: Option<Duration>,
}

impl Session {
    /// A session with the values that the client started with.
    ///
    /// # Errors
    /// Those of [`Self::assign`].
    pub(super) async fn start(base: &Base, values: &[Assigned], identity: &Identity) -> PgWireResult<Self> {
        let mut session = Self {
            ctx: base.session(),
            settings: Arc::default(),
            timeout: None,
        };
        functions::register(&session.ctx, &session.settings, identity);
        if base.writes == Writes::Allowed {
            for name in ["default_transaction_read_only", "transaction_read_only"] {
                session.assign(&settings::assign(name, "off")?).await?;
            }
        }
        for assigned in values {
            session.assign(assigned).await?;
        }
        Ok(session)
    }

    /// Gives a variable its value.
    ///
    /// # Errors
    /// A time zone that does not exist.
    pub(super) async fn assign(&mut self, assigned: &Assigned) -> PgWireResult<()> {
        match &assigned.change {
            Change::Nothing => {}
            Change::Timeout(timeout) => self.timeout = *timeout,
            Change::Option(variable, value) => {
                if assigned.name == "timezone" {
                    check_time_zone(value)?;
                }
                let set = Statement::SetVariable(SetVariable {
                    variable: (*variable).to_string(),
                    value: value.clone(),
                });
                let set = self.ctx.execute_logical_plan(LogicalPlan::Statement(set)).await;
                set.map_err(|failure| of_statement(&failure, assigned.name))?;
            }
        }
        self.settings.write().assign(assigned);
        Ok(())
    }

    /// PostgreSQL's variables as they are.
    pub(super) fn settings(&self) -> RwLockReadGuard<'_, Settings> {
        self.settings.read()
    }
}

fn check_time_zone(name: &str) -> Result<(), PgWireError> {
    match name.parse::<Tz>() {
        Ok(_) => Ok(()),
        Err(_) => Err(error(
            code::INVALID_PARAMETER,
            format!("invalid value for parameter \"TimeZone\": \"{name}\""),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_share_tables_and_memory_and_no_options() {
        let base = Base::new(&SessionArgs::default(), Writes::Refused).await.unwrap();
        base.ctx
            .sql("CREATE TABLE t AS SELECT 1 AS x")
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        let (one, other) = (base.session(), base.session());
        one.sql("SET quantiles.strategy = 'gk_select'").await.unwrap();
        let strategy = async |ctx: &SessionContext| {
            let shown = ctx
                .sql("SHOW quantiles.strategy")
                .await
                .unwrap()
                .collect()
                .await
                .unwrap();
            format!("{:?}", shown[0].column(1))
        };
        assert!(strategy(&one).await.contains("gk_select"));
        assert!(strategy(&other).await.contains("auto"));
        assert!(Arc::ptr_eq(
            &one.runtime_env().memory_pool,
            &other.runtime_env().memory_pool
        ));
        for ctx in [&one, &other] {
            assert_eq!(ctx.table("t").await.unwrap().count().await.unwrap(), 1);
            let options = ctx.copied_config().options().entries();
            let replaces = options
                .iter()
                .find(|option| option.key == "quantiles.replace_builtins")
                .unwrap();
            assert_eq!(replaces.value.as_deref(), Some("true"));
        }
    }
}
