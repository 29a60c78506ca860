//! What the catalog says of the session's tables: their columns, and the definitions of views.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, AsArray, BooleanArray, BooleanBuilder, Int16Builder, Int32Builder, RecordBatch, StringBuilder,
    new_null_array,
};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Int16Type, Int32Type, Schema, SchemaRef};
use datafusion::catalog::{CatalogProviderList, TableProvider};
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion_postgres::arrow_pg::datatypes::field_into_pg_type;
use datafusion_postgres::datafusion_pg_catalog::pg_catalog::oid_field::{kind, oid_field};
use futures::TryStreamExt;
use pgwire::api::Type;
use postgres_types::Kind;

use super::format_type::formatted;
use crate::serve::text;

/// What `pg_type` says of a type.
#[derive(Debug, Clone, Copy)]
struct TypeFact {
    length: i16,
    is_by_value: bool,
    /// Letters of `typalign` and `typstorage`.
    alignment: u8,
    storage: u8,
}

/// What `pg_type` says of types, by their numbers.
#[derive(Debug)]
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

    fn get(&self, number: u32) -> TypeFact {
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
struct Relation {
    number: i32,
    schema: String,
    name: String,
    table: Arc<dyn TableProvider>,
}

impl Relations {
    /// A table of the catalog.
    pub(super) fn listing(&self, listing: Listing) -> Listed {
        Listed {
            relations: self.clone(),
            listing,
            schema: Arc::new(listing.schema()),
        }
    }

    async fn all(&self, ctx: Arc<TaskContext>) -> Result<Vec<Relation>> {
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

/// A table of the catalog that is made from the session's tables.
#[derive(Debug, Clone, Copy)]
pub(super) enum Listing {
    /// `pg_attribute`
    Attributes,
    /// `information_schema.columns`
    Columns,
    /// `pg_views`
    Views,
}

impl Listing {
    pub(super) const ALL: [Self; 3] = [Self::Attributes, Self::Columns, Self::Views];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Attributes => "pg_attribute",
            Self::Columns => "information_schema.columns",
            Self::Views => "pg_views",
        }
    }

    fn schema(self) -> Schema {
        let empty = match self {
            Self::Attributes => attributes(&[], &TypeFacts(HashMap::new())),
            Self::Columns => columns(&[], ""),
            Self::Views => views(&[]),
        };
        empty.schema()
    }
}

/// A [`Listing`] that is read anew by each statement.
#[derive(Debug)]
pub(super) struct Listed {
    relations: Relations,
    listing: Listing,
    schema: SchemaRef,
}

impl PartitionStream for Listed {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, ctx: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (relations, listing, schema) = (self.relations.clone(), self.listing, Arc::clone(&self.schema));
        let rows = async move {
            let all = relations.all(ctx).await?;
            let table = match listing {
                Listing::Attributes => attributes(&all, &relations.types),
                Listing::Columns => columns(&all, &relations.catalog),
                Listing::Views => views(&all),
            };
            Ok(RecordBatch::try_new(
                schema,
                table.0.into_iter().map(|(_, column)| column).collect(),
            )?)
        };
        let rows = futures::stream::once(rows);
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}

/// Columns of a table that is being made.
struct Table(Vec<(Field, ArrayRef)>);

impl Table {
    fn schema(&self) -> Schema {
        Schema::new(self.0.iter().map(|(field, _)| field.clone()).collect::<Vec<_>>())
    }

    fn number(&mut self, field: Field, values: impl Iterator<Item = Option<i32>>) {
        let mut builder = Int32Builder::new();
        values.for_each(|value| builder.append_option(value));
        self.0.push((field, Arc::new(builder.finish())));
    }

    fn small(&mut self, name: &str, values: impl Iterator<Item = i16>) {
        let mut builder = Int16Builder::new();
        values.for_each(|value| builder.append_value(value));
        self.0.push((
            Field::new(name, DataType::Int16, false),
            Arc::new(builder.finish()),
        ));
    }

    fn flag(&mut self, name: &str, values: impl Iterator<Item = bool>) {
        let mut builder = BooleanBuilder::new();
        values.for_each(|value| builder.append_value(value));
        self.0.push((
            Field::new(name, DataType::Boolean, false),
            Arc::new(builder.finish()),
        ));
    }

    /// Lists of text, all NULL.
    fn lists(&mut self, name: &str, rows: usize) {
        let lists = new_null_array(&DataType::new_list(DataType::Utf8, true), rows);
        self.0
            .push((Field::new(name, lists.data_type().clone(), true), lists));
    }

    fn text(&mut self, name: &str, values: impl Iterator<Item = Option<String>>) {
        let mut builder = StringBuilder::new();
        values.for_each(|value| builder.append_option(value));
        self.0
            .push((Field::new(name, DataType::Utf8, true), Arc::new(builder.finish())));
    }
}

/// A column of a table, and its type on the wire.
struct Column<'a> {
    relation: &'a Relation,
    /// From 1.
    place: usize,
    field: FieldRef,
    wire: Type,
    modifier: i32,
}

impl Column<'_> {
    fn is_list(&self) -> bool {
        matches!(self.wire.kind(), Kind::Array(_))
    }
}

fn columns_of(relations: &[Relation]) -> Vec<Column<'_>> {
    let mut columns = Vec::new();
    for relation in relations {
        for (place, field) in relation.table.schema().fields().iter().enumerate() {
            columns.push(Column {
                relation,
                place: place + 1,
                field: Arc::clone(field),
                // What has no type on the wire cannot be asked for.
                wire: field_into_pg_type(&text::known(field)).unwrap_or(Type::UNKNOWN),
                modifier: modifier(field.data_type()),
            });
        }
    }
    columns
}

/// The type modifier: precision and scale of `numeric(12, 2)`.
fn modifier(data_type: &DataType) -> i32 {
    match data_type {
        DataType::Decimal128(precision, scale @ 0..) => {
            ((i32::from(*precision) << 16) | i32::from(*scale)) + 4
        }
        _ => -1,
    }
}

fn small(number: usize) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

fn attributes(relations: &[Relation], types: &TypeFacts) -> Table {
    let all = columns_of(relations);
    let facts: Vec<_> = all.iter().map(|column| types.get(column.wire.oid())).collect();
    let letter = |letter: u8| Some(char::from(letter).to_string());
    let zeros = || all.iter().map(|_| Some(0));
    let falses = || all.iter().map(|_| false);
    let nothing = || all.iter().map(|_| Some(String::new()));
    let nulls = || all.iter().map(|_| None);
    let plain = |name: &str| Field::new(name, DataType::Int32, false);
    let mut table = Table(Vec::new());
    let numbers = all.iter().map(|column| Some(column.relation.number));
    table.number(oid_field("attrelid", kind::OID, false), numbers);
    table.text(
        "attname",
        all.iter().map(|column| Some(column.field.name().clone())),
    );
    let numbers = all.iter().map(|column| Some(column.wire.oid().cast_signed()));
    table.number(oid_field("atttypid", kind::OID, false), numbers);
    table.number(plain("attstattarget"), all.iter().map(|_| Some(-1)));
    table.small("attlen", facts.iter().map(|fact| fact.length));
    table.small("attnum", all.iter().map(|column| small(column.place)));
    table.number(
        plain("attndims"),
        all.iter().map(|column| Some(i32::from(column.is_list()))),
    );
    table.number(plain("attcacheoff"), all.iter().map(|_| Some(-1)));
    table.number(plain("atttypmod"), all.iter().map(|column| Some(column.modifier)));
    table.flag("attbyval", facts.iter().map(|fact| fact.is_by_value));
    table.text("attalign", facts.iter().map(|fact| letter(fact.alignment)));
    table.text("attstorage", facts.iter().map(|fact| letter(fact.storage)));
    table.text("attcompression", nothing());
    table.flag("attnotnull", all.iter().map(|column| !column.field.is_nullable()));
    table.flag("atthasdef", falses());
    table.flag("atthasmissing", falses());
    table.text("attidentity", nothing());
    table.text("attgenerated", nothing());
    table.flag("attisdropped", falses());
    table.flag("attislocal", all.iter().map(|_| true));
    table.number(plain("attinhcount"), zeros());
    table.number(oid_field("attcollation", kind::OID, false), zeros());
    for name in ["attacl", "attoptions", "attfdwoptions"] {
        table.lists(name, all.len());
    }
    table.text("attmissingval", nulls());
    table
}

/// `information_schema.columns`.
fn columns(relations: &[Relation], catalog: &str) -> Table {
    let all = columns_of(relations);
    let nulls = || all.iter().map(|_| None);
    let always = |text: &'static str| all.iter().map(move |_| Some(text.to_string()));
    let plain = |name: &str| Field::new(name, DataType::Int32, true);
    let mut table = Table(Vec::new());
    let database = || all.iter().map(|_| Some(catalog.to_string()));
    table.text("table_catalog", database());
    table.text(
        "table_schema",
        all.iter().map(|column| Some(column.relation.schema.clone())),
    );
    table.text(
        "table_name",
        all.iter().map(|column| Some(column.relation.name.clone())),
    );
    table.text(
        "column_name",
        all.iter().map(|column| Some(column.field.name().clone())),
    );
    table.number(
        plain("ordinal_position"),
        all.iter().map(|column| i32::try_from(column.place).ok()),
    );
    table.text("column_default", nulls());
    let nullable =
        |column: &Column<'_>| Some(if column.field.is_nullable() { "YES" } else { "NO" }.to_string());
    table.text("is_nullable", all.iter().map(nullable));
    let named = |column: &Column<'_>| {
        Some(match column.is_list() {
            true => "ARRAY".to_string(),
            false => formatted(column.wire.oid(), -1),
        })
    };
    table.text("data_type", all.iter().map(named));
    table.number(plain("character_maximum_length"), nulls().map(|_| None));
    table.number(plain("character_octet_length"), nulls().map(|_| None));
    let precision = |column: &Column<'_>| match (&column.wire, column.field.data_type()) {
        (_, DataType::Decimal128(precision, _)) => Some((i32::from(*precision), 10, None)),
        (wire, _) if *wire == Type::INT2 => Some((16, 2, Some(0))),
        (wire, _) if *wire == Type::INT4 => Some((32, 2, Some(0))),
        (wire, _) if *wire == Type::INT8 => Some((64, 2, Some(0))),
        (wire, _) if *wire == Type::FLOAT4 => Some((24, 2, None)),
        (wire, _) if *wire == Type::FLOAT8 => Some((53, 2, None)),
        _ => None,
    };
    table.number(
        plain("numeric_precision"),
        all.iter()
            .map(|column| precision(column).map(|(digits, ..)| digits)),
    );
    table.number(
        plain("numeric_precision_radix"),
        all.iter()
            .map(|column| precision(column).map(|(_, radix, _)| radix)),
    );
    let scale = |column: &Column<'_>| match column.field.data_type() {
        DataType::Decimal128(_, scale) => Some(i32::from(*scale)),
        _ => precision(column).and_then(|(.., scale)| scale),
    };
    table.number(plain("numeric_scale"), all.iter().map(scale));
    let seconds = |column: &Column<'_>| match column.wire {
        Type::DATE => Some(0),
        Type::TIME | Type::TIMESTAMP | Type::TIMESTAMPTZ | Type::INTERVAL => Some(6),
        _ => None,
    };
    table.number(plain("datetime_precision"), all.iter().map(seconds));
    for name in ["character_set_name", "collation_name", "domain_name"] {
        table.text(name, nulls());
    }
    table.text("udt_catalog", database());
    table.text("udt_schema", always("pg_catalog"));
    table.text(
        "udt_name",
        all.iter().map(|column| Some(short_name(&column.wire))),
    );
    table.text("is_identity", always("NO"));
    table.text("identity_generation", nulls());
    table.text("is_generated", always("NEVER"));
    table.text("generation_expression", nulls());
    table.text("is_updatable", always("NO"));
    table
}

/// The name of a type in `pg_type`: the driver's library names records by their columns.
fn short_name(wire: &Type) -> String {
    Type::from_oid(wire.oid()).map_or_else(|| wire.name().to_string(), |known| known.name().to_string())
}

/// `pg_views`.
fn views(relations: &[Relation]) -> Table {
    let views: Vec<_> = relations
        .iter()
        .filter(|relation| relation.schema != "pg_catalog")
        .filter_map(|relation| Some((relation, relation.table.get_table_definition()?)))
        .collect();
    let mut table = Table(Vec::new());
    table.text(
        "schemaname",
        views.iter().map(|(view, _)| Some(view.schema.clone())),
    );
    table.text("viewname", views.iter().map(|(view, _)| Some(view.name.clone())));
    table.text("viewowner", views.iter().map(|_| Some("postgres".to_string())));
    table.text(
        "definition",
        views.iter().map(|(_, text)| Some(query_of(text).to_string())),
    );
    table
}

/// The query of `CREATE VIEW name AS query`.
fn query_of(definition: &str) -> &str {
    let lower = definition.to_ascii_lowercase();
    let starts = [" as select", " as with", " as values", " as ("];
    let start = starts.into_iter().filter_map(|start| lower.find(start)).min();
    start.map_or(definition, |start| definition[start + 4..].trim())
}

/// The tables of `information_schema` that say what keys there are: none.
pub(super) fn constraints() -> Vec<(&'static str, SchemaRef)> {
    let table = |texts: &[&str], numbers: &[&str]| -> SchemaRef {
        let texts = texts.iter().map(|name| Field::new(*name, DataType::Utf8, true));
        let numbers = numbers
            .iter()
            .map(|name| Field::new(*name, DataType::Int32, true));
        Arc::new(Schema::new(texts.chain(numbers).collect::<Vec<_>>()))
    };
    let constraint = ["constraint_catalog", "constraint_schema", "constraint_name"];
    let of_table = ["table_catalog", "table_schema", "table_name"];
    let unique = [
        "unique_constraint_catalog",
        "unique_constraint_schema",
        "unique_constraint_name",
    ];
    let column = ["column_name"];
    let rules = ["match_option", "update_rule", "delete_rule"];
    let kinds = [
        "constraint_type",
        "is_deferrable",
        "initially_deferred",
        "enforced",
        "nulls_distinct",
    ];
    let places = ["ordinal_position", "position_in_unique_constraint"];
    vec![
        (
            "constraint_column_usage",
            table(&[&of_table[..], &column, &constraint].concat(), &[]),
        ),
        (
            "key_column_usage",
            table(&[&constraint[..], &of_table, &column].concat(), &places),
        ),
        (
            "referential_constraints",
            table(&[&constraint[..], &unique, &rules].concat(), &[]),
        ),
        (
            "table_constraints",
            table(&[&constraint[..], &of_table, &kinds].concat(), &[]),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_of_a_view_is_what_comes_after_as() {
        for (text, expected) in [
            ("CREATE VIEW v AS SELECT 1 AS select_1", "SELECT 1 AS select_1"),
            (
                "CREATE OR REPLACE VIEW v AS WITH a AS (SELECT 1) SELECT * FROM a",
                "WITH a AS (SELECT 1) SELECT * FROM a",
            ),
            ("SELECT 1", "SELECT 1"),
        ] {
            assert_eq!(query_of(text), expected);
        }
    }

    #[test]
    fn numerics_have_precision_and_scale() {
        assert_eq!(modifier(&DataType::Decimal128(12, 2)), 786_438);
        assert_eq!(modifier(&DataType::Float64), -1);
    }
}
