//! Tables that one statement sees, and no other: over the default schema of its session.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::common::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;

/// Tables by their names.
pub(crate) type Tables = HashMap<String, Arc<dyn TableProvider>>;

/// The session with some tables more. All that a statement makes in it, it makes in `ctx`.
pub(crate) fn with_tables(ctx: &SessionContext, tables: Tables) -> SessionContext {
    let state = ctx.state();
    let names = &state.config_options().catalog;
    let overlay = Catalogs {
        inner: Arc::clone(state.catalog_list()),
        catalog: names.default_catalog.clone(),
        schema: names.default_schema.clone(),
        tables: Arc::new(tables),
    };
    let builder = SessionStateBuilder::new_from_existing(state.clone());
    let builder = builder.with_session_id(state.session_id().to_owned());
    SessionContext::new_with_state(builder.with_catalog_list(Arc::new(overlay)).build())
}

#[derive(Debug)]
struct Catalogs {
    inner: Arc<dyn CatalogProviderList>,
    /// The catalog and the schema that have the tables.
    catalog: String,
    schema: String,
    tables: Arc<Tables>,
}

impl CatalogProviderList for Catalogs {
    fn register_catalog(
        &self,
        name: String,
        catalog: Arc<dyn CatalogProvider>,
    ) -> Option<Arc<dyn CatalogProvider>> {
        self.inner.register_catalog(name, catalog)
    }

    fn catalog_names(&self) -> Vec<String> {
        self.inner.catalog_names()
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        let inner = self.inner.catalog(name)?;
        if name != self.catalog {
            return Some(inner);
        }
        Some(Arc::new(Catalog {
            inner,
            schema: self.schema.clone(),
            tables: Arc::clone(&self.tables),
        }))
    }
}

#[derive(Debug)]
struct Catalog {
    inner: Arc<dyn CatalogProvider>,
    schema: String,
    tables: Arc<Tables>,
}

impl CatalogProvider for Catalog {
    fn schema_names(&self) -> Vec<String> {
        self.inner.schema_names()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        let inner = self.inner.schema(name)?;
        if name != self.schema {
            return Some(inner);
        }
        Some(Arc::new(Schema {
            inner,
            tables: Arc::clone(&self.tables),
        }))
    }

    fn register_schema(
        &self,
        name: &str,
        schema: Arc<dyn SchemaProvider>,
    ) -> Result<Option<Arc<dyn SchemaProvider>>> {
        self.inner.register_schema(name, schema)
    }

    fn deregister_schema(&self, name: &str, cascade: bool) -> Result<Option<Arc<dyn SchemaProvider>>> {
        self.inner.deregister_schema(name, cascade)
    }
}

#[derive(Debug)]
struct Schema {
    inner: Arc<dyn SchemaProvider>,
    tables: Arc<Tables>,
}

#[async_trait]
impl SchemaProvider for Schema {
    fn table_names(&self) -> Vec<String> {
        self.inner.table_names()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        match self.tables.get(name) {
            Some(table) => Ok(Some(Arc::clone(table))),
            None => self.inner.table(name).await,
        }
    }

    fn register_table(
        &self,
        name: String,
        table: Arc<dyn TableProvider>,
    ) -> Result<Option<Arc<dyn TableProvider>>> {
        self.inner.register_table(name, table)
    }

    fn deregister_table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        self.inner.deregister_table(name)
    }

    fn table_exist(&self, name: &str) -> bool {
        self.tables.contains_key(name) || self.inner.table_exist(name)
    }
}
