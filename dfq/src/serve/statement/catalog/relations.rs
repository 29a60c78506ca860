//! The session's tables, as the catalog numbers them, and what it says of types.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, BooleanArray, RecordBatch};
use datafusion::arrow::datatypes::{Int16Type, Int32Type};
use datafusion::catalog::{CatalogProviderList, TableProvider};
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::TryStreamExt;

/// What `pg_type` says of a type.
#[derive(Debug, Clone, Copy)]
pub(super) struct TypeFact {
    pub(super) length: i16,
    pub(super) is_by_value: bool,
    /// Letters of `typalign` and `typstorage`.
    pub(super) alignment: u8,
    pub(super) storage: u8,
}

/// What `pg_type` says of types, by their numbers.
#[derive(Debug, Default)]
pub(super) struct TypeFacts(HashMap<u32, TypeFact>);

impl TypeFacts {
    /// # Errors
    /// Rows without the columns of `pg_type`.
    pub(super) fn of(rows: &[RecordBatch]) -> Result<Self> {
        let mut facts = HashMap::new();
        for rows in rows {
            let column = |name: &str| {
                let column = rows.column_by_name(name);
                column.ok_or_else(|| internal_datafusion_err!("pg_type has no column '{name}'"))
            };
            let numbers = column("oid")?.as_primitive::<Int32Type>();
            let lengths = column("typlen")?.as_primitive::<Int16Type>();
            let by_value: &BooleanArray = column("typbyval")?.as_boolean();
            let letter = |name: &str, row: usize| -> Result<u8> {
                let text = column(name)?.as_string::<i32>().value(row);
                Ok(text.bytes().next().unwrap_or(b' '))
            };
            for row in 0..rows.num_rows() {
                let fact = TypeFact {
                    length: lengths.value(row),
                    is_by_value: by_value.value(row),
                    alignment: letter("typalign", row)?,
                    storage: letter("typstorage", row)?,
                };
                facts.insert(numbers.value(row).cast_unsigned(), fact);
            }
        }
        Ok(Self(facts))
    }

    /// What is known of a type; of one that is not, what text is like.
    pub(super) fn get(&self, number: u32) -> TypeFact {
        let text = TypeFact {
            length: -1,
            is_by_value: false,
            alignment: b'i',
            storage: b'x',
        };
        self.0.get(&number).copied().unwrap_or(text)
    }
}

/// Where the session's tables are read from.
#[derive(Debug, Clone)]
pub(super) struct Relations {
    pub(super) classes: Arc<dyn PartitionStream>,
    pub(super) namespaces: Arc<dyn PartitionStream>,
    pub(super) list: Arc<dyn CatalogProviderList>,
    pub(super) catalog: String,
    pub(super) types: Arc<TypeFacts>,
}

/// A table of the session.
pub(super) struct Relation {
    pub(super) number: i32,
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) table: Arc<dyn TableProvider>,
}

impl Relations {
    /// All tables, in the catalog's order.
    ///
    /// # Errors
    /// Those of the tables' sources.
    pub(super) async fn all(&self, ctx: Arc<TaskContext>) -> Result<Vec<Relation>> {
        let namespaces: Vec<RecordBatch> = self.namespaces.execute(Arc::clone(&ctx)).try_collect().await?;
        let classes: Vec<RecordBatch> = self.classes.execute(ctx).try_collect().await?;
        let schemas: HashMap<i32, String> = pairs(&namespaces, "oid", "nspname")?.into_iter().collect();
        let names = pairs(&classes, "oid", "relname")?;
        let places = pairs_of_numbers(&classes, "relnamespace")?;
        let mut relations = Vec::with_capacity(names.len());
        for ((number, name), namespace) in names.into_iter().zip(places) {
            let Some(schema) = schemas.get(&namespace) else {
                continue;
            };
            let provider = self.list.catalog(&self.catalog);
            let provider = provider.and_then(|catalog| catalog.schema(schema));
            // A table that was dropped meanwhile is none.
            let table = match provider {
                Some(provider) => provider.table(&name).await?,
                None => None,
            };
            relations.extend(table.map(|table| Relation {
                number,
                schema: schema.clone(),
                name,
                table,
            }));
        }
        Ok(relations)
    }
}

fn pairs(rows: &[RecordBatch], number: &str, name: &str) -> Result<Vec<(i32, String)>> {
    let numbers = pairs_of_numbers(rows, number)?;
    let mut names = Vec::with_capacity(numbers.len());
    for rows in rows {
        match rows
            .column_by_name(name)
            .and_then(|names| names.as_string_opt::<i32>())
        {
            Some(column) => names.extend(column.iter().map(|name| name.unwrap_or_default().to_string())),
            None => return internal_err!("the catalog has no column '{name}'"),
        }
    }
    Ok(numbers.into_iter().zip(names).collect())
}

fn pairs_of_numbers(rows: &[RecordBatch], name: &str) -> Result<Vec<i32>> {
    let mut numbers = Vec::new();
    for rows in rows {
        match rows
            .column_by_name(name)
            .and_then(|column| column.as_primitive_opt::<Int32Type>())
        {
            Some(column) => numbers.extend(column.values()),
            None => return internal_err!("the catalog has no column '{name}'"),
        }
    }
    Ok(numbers)
}
