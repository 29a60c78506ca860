//! The identity of a pinned table. It is that of the table itself, because another table can get its name.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, TableReference, plan_err};
use datafusion::datasource::{TableType, source_as_provider};
use datafusion::execution::config::SessionConfig;
use datafusion::logical_expr::TableScan;
use datafusion::prelude::SessionContext;

/// The full name of a table: with the default catalog and schema of the session where the name leaves them out.
pub(crate) fn full_name(table: &TableReference, config: &SessionConfig) -> TableReference {
    let catalog = &config.options().catalog;
    let resolved = table
        .clone()
        .resolve(&catalog.default_catalog, &catalog.default_schema);
    TableReference::full(resolved.catalog, resolved.schema, resolved.table)
}

/// The table that columns were pinned from.
#[derive(Debug)]
pub(crate) struct PinnedSource {
    /// Full name of the table when it was pinned.
    name: TableReference,
    schema: SchemaRef,
    /// The table itself. `None` if its catalog makes a new table for each query, so that only the name identifies it.
    provider: Option<Weak<dyn TableProvider>>,
    /// Whether the log already has the warning that the name means another table now.
    has_warned: AtomicBool,
}

impl PinnedSource {
    /// Finds the table with this full name in the session.
    ///
    /// # Errors
    /// A planning error if there is no such table, or if it is a view: queries of a view read other tables.
    pub(crate) async fn find(ctx: &SessionContext, name: TableReference) -> Result<Self> {
        let provider = ctx.table_provider(name.clone()).await?;
        if provider.table_type() == TableType::View {
            return plan_err!(
                "{name} is a view and cannot be pinned: pin the tables that it reads, and queries of the view use them"
            );
        }
        let again = ctx.table_provider(name.clone()).await?;
        Ok(Self {
            name,
            schema: provider.schema(),
            provider: is_same(&provider, &again).then(|| Arc::downgrade(&provider)),
            has_warned: AtomicBool::new(false),
        })
    }

    /// Full name of the table when it was pinned.
    pub(crate) fn name(&self) -> &TableReference {
        &self.name
    }

    /// Whether `scan` reads the table that was pinned, with the same schema as then.
    ///
    /// # Errors
    /// Errors of the catalog.
    pub(super) async fn is_read_by(&self, scan: &TableScan, session: &dyn Session) -> Result<bool> {
        let Ok(scanned) = source_as_provider(&scan.source) else {
            return Ok(false);
        };
        let is_known = self.provider.as_ref().is_some_and(|own| is_of(own, &scanned));
        if !is_known && full_name(&scan.table_name, session.config()) != self.name {
            return Ok(false);
        }
        let is_it = is_known || self.is_made_anew(&scanned, session).await?;
        if is_it && scanned.schema() == self.schema {
            return Ok(true);
        }
        // A view keeps the table that had the name when the view was created.
        let is_renamed = match self.now(session).await? {
            Some(now) => is_it || is_same(&now, &scanned),
            None => false,
        };
        if is_renamed && !self.has_warned.swap(true, Ordering::Relaxed) {
            log::warn!(
                "table {} is another one, or has another schema, than when it was pinned: queries run over the table \
                 itself until it is pinned again",
                self.name
            );
        }
        Ok(false)
    }

    /// Whether `scanned`, a table with the same name, comes from a catalog that makes a new table for each query, as it did when the table
    /// was pinned.
    async fn is_made_anew(&self, scanned: &Arc<dyn TableProvider>, session: &dyn Session) -> Result<bool> {
        if self.provider.is_some() {
            return Ok(false);
        }
        let (now, again) = (self.now(session).await?, self.now(session).await?);
        let (Some(now), Some(again)) = (now, again) else {
            return Ok(false);
        };
        Ok(!is_same(&now, &again) && !is_same(&now, scanned))
    }

    /// The table that has the name now, if any.
    async fn now(&self, session: &dyn Session) -> Result<Option<Arc<dyn TableProvider>>> {
        let (Some(catalog), Some(schema)) = (self.name.catalog(), self.name.schema()) else {
            return Ok(None);
        };
        let catalog = session.catalog_list().catalog(catalog);
        match catalog.and_then(|catalog| catalog.schema(schema)) {
            Some(schema) => schema.table(self.name.table()).await,
            None => Ok(None),
        }
    }
}

fn is_same(one: &Arc<dyn TableProvider>, other: &Arc<dyn TableProvider>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

fn is_of(own: &Weak<dyn TableProvider>, other: &Arc<dyn TableProvider>) -> bool {
    std::ptr::addr_eq(own.as_ptr(), Arc::as_ptr(other))
}

#[cfg(test)]
mod tests {
    use datafusion::catalog::MemorySchemaProvider;
    use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
    use datafusion::logical_expr::LogicalPlan;

    use super::*;

    async fn run(ctx: &SessionContext, sql: &str) {
        ctx.sql(sql).await.unwrap().collect().await.unwrap();
    }

    async fn reads(source: &PinnedSource, ctx: &SessionContext, sql: &str) -> bool {
        let plan = ctx.sql(sql).await.unwrap().into_optimized_plan().unwrap();
        let mut scans = Vec::new();
        plan.apply(|part| {
            if let LogicalPlan::TableScan(scan) = part {
                scans.push(scan.clone());
            }
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
        assert_eq!(scans.len(), 1, "{sql}");
        source.is_read_by(&scans[0], &ctx.state()).await.unwrap()
    }

    async fn found(ctx: &SessionContext, name: &str) -> Result<PinnedSource> {
        PinnedSource::find(ctx, full_name(&name.into(), &ctx.copied_config())).await
    }

    #[tokio::test]
    async fn a_table_is_known_by_itself() {
        let ctx = SessionContext::new();
        run(&ctx, "CREATE TABLE t AS VALUES (1), (2)").await;
        run(&ctx, "CREATE VIEW v AS SELECT column1 AS x FROM t").await;
        let source = found(&ctx, "t").await.unwrap();
        assert!(reads(&source, &ctx, "SELECT * FROM t AS other").await);
        assert!(reads(&source, &ctx, "SELECT * FROM v").await);
        run(&ctx, "INSERT INTO t VALUES (3)").await;
        assert!(reads(&source, &ctx, "SELECT * FROM datafusion.public.t").await);
        // Another session's table of the name and schema.
        let other = SessionContext::new_with_config(ctx.copied_config());
        run(&other, "CREATE TABLE t AS VALUES (1), (2)").await;
        assert!(!reads(&source, &other, "SELECT * FROM t").await);
        // This session's next table of the name; a view keeps the first.
        run(&ctx, "DROP TABLE t").await;
        run(&ctx, "CREATE TABLE t AS VALUES (7)").await;
        assert!(!reads(&source, &ctx, "SELECT * FROM t").await);
        assert!(source.has_warned.load(Ordering::Relaxed));
        assert!(reads(&source, &ctx, "SELECT * FROM v").await);
    }

    #[tokio::test]
    async fn names_with_dots_are_not_those_of_schemas() {
        let ctx = SessionContext::new();
        let catalog = ctx.catalog("datafusion").unwrap();
        for name in ["a.c", "a"] {
            let schema = Arc::new(MemorySchemaProvider::new());
            catalog.register_schema(name, schema).unwrap();
        }
        run(&ctx, "CREATE TABLE \"a.c\".b AS VALUES (1)").await;
        run(&ctx, "CREATE TABLE a.\"c.b\" AS VALUES (2)").await;
        let (one, other) = ("SELECT * FROM \"a.c\".b", "SELECT * FROM a.\"c.b\"");
        let source = found(&ctx, "\"a.c\".b").await.unwrap();
        assert!(reads(&source, &ctx, one).await && !reads(&source, &ctx, other).await);
        assert!(!source.has_warned.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn files_as_tables_are_known_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, "x\n1\n").unwrap();
        let ctx = SessionContext::new().enable_url_table();
        let source = found(&ctx, &format!("\"{}\"", path.display())).await.unwrap();
        assert!(source.provider.is_none());
        let sql = format!("SELECT * FROM '{}'", path.display());
        assert!(reads(&source, &ctx, &sql).await);
        std::fs::write(&path, "y\n1\n").unwrap();
        assert!(!reads(&source, &ctx, &sql).await);
        assert!(source.has_warned.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn views_cannot_be_pinned() {
        let ctx = SessionContext::new();
        run(&ctx, "CREATE VIEW v AS SELECT 1 AS x").await;
        let error = found(&ctx, "v").await.unwrap_err().strip_backtrace();
        assert!(error.contains("datafusion.public.v is a view"), "{error}");
    }
}
