//! The schema `pg_catalog`: tables that say what there is on this server, and nothing else.
//!
//! Types, functions and the like are PostgreSQL's own rows. What refers to tables (columns, views, keys) is made from the session's
//! tables; kinds of things that this server does not have (keys, defaults, domains) have tables without rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{AsArray, BooleanArray, RecordBatch};
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::datatypes::{DataType, Int32Type, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{CatalogProviderList, MemTable, SchemaProvider, TableProvider};
use datafusion::common::metadata::FieldMetadata;
use datafusion::common::plan_datafusion_err;
use datafusion::datasource::TableType;
use datafusion::datasource::empty::EmptyTable;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, cast, ident, lit};
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion_postgres::arrow_pg::datatypes::{PG_CHAR_KEY, PG_OID_ALIAS_KEY};
use datafusion_postgres::datafusion_pg_catalog::pg_catalog::catalog_info::CatalogInfo;
use datafusion_postgres::datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use datafusion_postgres::datafusion_pg_catalog::pg_catalog::{
    PG_CATALOG_TABLES, PgCatalogSchemaProvider, PgCatalogStaticTables, PgCatalogTable,
};

use super::listings::{Listed, Listing, constraints};
use super::relations::{Relations, TypeFacts};
use super::settings_view;

/// Tables without rows: there are no keys, indexes, defaults, comments, rules and triggers here, and no inheritance.
pub(super) const WITHOUT_ROWS: [&str; 27] = [
    "pg_attrdef",
    "pg_constraint",
    "pg_depend",
    "pg_description",
    "pg_enum",
    "pg_event_trigger",
    "pg_extension",
    "pg_foreign_data_wrapper",
    "pg_foreign_server",
    "pg_foreign_table",
    "pg_index",
    "pg_inherits",
    "pg_matviews",
    "pg_partitioned_table",
    "pg_policy",
    "pg_publication",
    "pg_publication_namespace",
    "pg_publication_rel",
    "pg_rewrite",
    "pg_sequence",
    "pg_shdepend",
    "pg_statistic",
    "pg_statistic_ext",
    "pg_statistic_ext_data",
    "pg_stat_user_tables",
    "pg_subscription",
    "pg_trigger",
];

/// Tables of `information_schema` that DataFusion does not have, or has with other columns. Statements name them there; here they have
/// the prefix [`INFORMATION`].
pub(super) const OF_INFORMATION: [&str; 5] = [
    "columns",
    "constraint_column_usage",
    "key_column_usage",
    "referential_constraints",
    "table_constraints",
];

/// The start of the names that tables of `information_schema` have in `pg_catalog`.
pub(super) const INFORMATION: &str = "information_schema.";

/// Kinds of types that no type here has: domains, and rows of tables.
pub(super) const NO_KINDS: [&str; 2] = ["c", "d"];

/// Columns of the type `"char"`, which has one byte.
const CHARACTERS: [&str; 15] = [
    "amtype",
    "attalign",
    "attstorage",
    "contype",
    "prokind",
    "proparallel",
    "provolatile",
    "relkind",
    "relpersistence",
    "relreplident",
    "typalign",
    "typcategory",
    "typdelim",
    "typstorage",
    "typtype",
];

/// The database that clients are connected to, which is all that they are told of.
#[derive(Debug, Clone)]
struct Database {
    list: Arc<dyn CatalogProviderList>,
    name: String,
}

#[async_trait]
impl CatalogInfo for Database {
    async fn catalog_names(&self) -> Result<Vec<String>> {
        Ok(vec![self.name.clone()])
    }

    async fn schema_names(&self, catalog: &str) -> Result<Option<Vec<String>>> {
        // In order, so that the numbers of tables are the same whenever the server starts.
        let names = CatalogInfo::schema_names(&self.list, catalog).await?;
        Ok(names.map(|mut names| {
            names.sort_unstable();
            names
        }))
    }

    async fn table_names(&self, catalog: &str, schema: &str) -> Result<Option<Vec<String>>> {
        let names = CatalogInfo::table_names(&self.list, catalog, schema).await?;
        Ok(names.map(|mut names| {
            names.sort_unstable();
            names
        }))
    }

    async fn table_schema(&self, catalog: &str, schema: &str, table: &str) -> Result<Option<SchemaRef>> {
        CatalogInfo::table_schema(&self.list, catalog, schema, table).await
    }

    async fn table_type(&self, catalog: &str, schema: &str, table: &str) -> Result<Option<TableType>> {
        CatalogInfo::table_type(&self.list, catalog, schema, table).await
    }
}

/// The tables by name.
#[derive(Debug)]
struct Tables(HashMap<String, Arc<dyn TableProvider>>);

#[async_trait]
impl SchemaProvider for Tables {
    fn table_names(&self) -> Vec<String> {
        let names = self.0.keys().filter(|name| !name.starts_with(INFORMATION));
        let mut names: Vec<_> = names.cloned().collect();
        names.sort_unstable();
        names
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        Ok(self.0.get(name).cloned())
    }

    async fn table_type(&self, name: &str) -> Result<Option<TableType>> {
        Ok(self.0.contains_key(name).then_some(TableType::Base))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// Types of the columns of the catalog's tables by name, as SQL writes them.
pub(super) type ColumnTypes = HashMap<String, &'static str>;

/// Adds the schema to the session's default catalog.
///
/// # Errors
/// A catalog that cannot have it.
pub(super) fn install(ctx: &SessionContext) -> Result<ColumnTypes> {
    let config = ctx.copied_config();
    let name = config.options().catalog.default_catalog.clone();
    let database = Database {
        list: Arc::clone(ctx.state().catalog_list()),
        name: name.clone(),
    };
    let fixed = Arc::new(PgCatalogStaticTables::try_new()?);
    let all = PgCatalogSchemaProvider::try_new(database.clone(), Arc::clone(&fixed), EmptyContextProvider)?;
    let mut tables = HashMap::new();
    for table in PG_CATALOG_TABLES {
        if let Some(made) = all.build_table_by_name(table)? {
            tables.insert((*table).to_string(), adapted(ctx, table, &made)?);
        }
    }
    let relations = relations(&all, database, TypeFacts::of(fixed.pg_type.data())?)?;
    for listing in Listing::ALL {
        let stream = Listed::new(&relations, listing);
        let schema = Arc::clone(datafusion::physical_plan::streaming::PartitionStream::schema(
            &stream,
        ));
        let table = StreamingTable::try_new(schema, vec![Arc::new(stream)])?;
        let table = ctx.read_table(Arc::new(table))?;
        tables.insert(listing.name().to_string(), with_characters(table)?.into_view());
    }
    tables.insert("pg_settings".to_string(), settings_view::table()?);
    for (table, schema) in constraints() {
        tables.insert(format!("{INFORMATION}{table}"), Arc::new(EmptyTable::new(schema)));
    }
    let types = types(&tables);
    let catalog = ctx.catalog(&name);
    let catalog = catalog.ok_or_else(|| plan_datafusion_err!("there is no catalog '{name}'"))?;
    catalog.register_schema("pg_catalog", Arc::new(Tables(tables)))?;
    Ok(types)
}

fn relations<P>(
    all: &PgCatalogSchemaProvider<Database, P>,
    database: Database,
    types: TypeFacts,
) -> Result<Relations>
where
    P: datafusion_postgres::datafusion_pg_catalog::pg_catalog::context::PgCatalogContextProvider,
{
    let stream = |name: &str| match all.build_table_by_name(name)? {
        Some(PgCatalogTable::Dynamic(stream)) => Ok(stream),
        _ => Err(plan_datafusion_err!("there is no table '{name}' in pg_catalog")),
    };
    Ok(Relations {
        classes: stream("pg_class")?,
        namespaces: stream("pg_namespace")?,
        list: database.list,
        catalog: database.name,
        types: Arc::new(types),
    })
}

/// A table as it is here.
fn adapted(ctx: &SessionContext, name: &str, made: &PgCatalogTable) -> Result<Arc<dyn TableProvider>> {
    if WITHOUT_ROWS.contains(&name) {
        return Ok(Arc::new(EmptyTable::new(made.schema())));
    }
    let table = match made {
        PgCatalogTable::Static(table) => {
            let rows = match name {
                "pg_type" => known_types(table.data())?,
                _ => table.data().to_vec(),
            };
            Arc::new(MemTable::try_new(table.schema(), vec![rows])?)
        }
        other => other.try_into_table_provider()?,
    };
    let frame = ctx.read_table(table)?;
    let text = || cast(lit(datafusion::common::ScalarValue::Null), DataType::Utf8);
    let texts = || {
        cast(
            lit(datafusion::common::ScalarValue::Null),
            DataType::new_list(DataType::Utf8, true),
        )
    };
    // Nobody has privileges of its own.
    let lists = frame
        .schema()
        .fields()
        .iter()
        .filter(|field| field.name().ends_with("acl"));
    let lists: Vec<_> = lists.map(|field| field.name().clone()).collect();
    let frame = lists
        .iter()
        .try_fold(frame, |frame, name| frame.with_column(name, texts()))?;
    let frame = match name {
        "pg_class" => frame
            .with_column("relacl", texts())?
            .with_column("reloptions", texts())?,
        "pg_collation" => frame.with_column("colliculocale", text())?,
        _ => frame,
    };
    Ok(with_characters(frame)?.into_view())
}

/// The types that are not of [`NO_KINDS`], nor lists of such.
fn known_types(rows: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
    let numbers = |rows: &RecordBatch, name: &str| -> Result<Vec<i32>> {
        let column = rows
            .column_by_name(name)
            .and_then(|column| column.as_primitive_opt::<Int32Type>());
        let column = column.ok_or_else(|| plan_datafusion_err!("pg_type has no column '{name}'"))?;
        Ok(column.values().to_vec())
    };
    let is_other = |rows: &RecordBatch| -> Result<Vec<bool>> {
        let kinds = rows
            .column_by_name("typtype")
            .and_then(|column| column.as_string_opt::<i32>());
        let kinds = kinds.ok_or_else(|| plan_datafusion_err!("pg_type has no column 'typtype'"))?;
        Ok(kinds
            .iter()
            .map(|kind| kind.is_some_and(|kind| NO_KINDS.contains(&kind)))
            .collect())
    };
    let mut others = HashSet::new();
    for rows in rows {
        let all = numbers(rows, "oid")?.into_iter().zip(is_other(rows)?);
        others.extend(all.filter_map(|(number, is_other)| is_other.then_some(number)));
    }
    let kept = rows.iter().map(|rows| {
        let all = numbers(rows, "oid")?.into_iter().zip(numbers(rows, "typelem")?);
        let kept: Vec<bool> = all
            .map(|(number, element)| !others.contains(&number) && !others.contains(&element))
            .collect();
        Ok(filter_record_batch(rows, &BooleanArray::from(kept))?)
    });
    kept.collect()
}

/// Marks the columns of the type `"char"`.
fn with_characters(frame: DataFrame) -> Result<DataFrame> {
    let mark = || FieldMetadata::from(HashMap::from([(PG_CHAR_KEY.to_string(), String::new())]));
    let schema = frame.schema().clone();
    let has_any = schema
        .fields()
        .iter()
        .any(|field| CHARACTERS.contains(&field.name().as_str()));
    if !has_any {
        return Ok(frame);
    }
    let columns = schema.fields().iter().map(|field| match field.name().as_str() {
        name if CHARACTERS.contains(&name) => ident(name).alias_with_metadata(name, Some(mark())),
        name => ident(name),
    });
    frame.select(columns.collect::<Vec<Expr>>())
}

fn types(tables: &HashMap<String, Arc<dyn TableProvider>>) -> ColumnTypes {
    let schemas = tables.values().map(|table| table.schema());
    let mut types = ColumnTypes::new();
    for schema in schemas {
        for field in schema.fields() {
            let name = match field.data_type() {
                DataType::Int32 if field.metadata().contains_key(PG_OID_ALIAS_KEY) => "OID",
                DataType::Boolean => "BOOLEAN",
                DataType::Int16 => "SMALLINT",
                DataType::Int32 => "INT",
                DataType::Int64 => "BIGINT",
                DataType::Float32 => "REAL",
                DataType::Float64 => "DOUBLE",
                _ => continue,
            };
            types.insert(field.name().clone(), name);
        }
    }
    types
}
