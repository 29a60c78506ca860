//! Tables of the catalog that are made from the session's tables: columns, and the definitions of views.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanBuilder, Int16Builder, Int32Builder, RecordBatch, StringBuilder, new_null_array,
};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion_postgres::arrow_pg::datatypes::field_into_pg_type;
use datafusion_postgres::datafusion_pg_catalog::pg_catalog::oid_field::{kind, oid_field};
use pgwire::api::Type;
use postgres_types::Kind;

use super::format_type::formatted;
use super::relations::{Relation, Relations, TypeFacts};
use crate::serve::text;

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
            Self::Attributes => attributes(&[], &TypeFacts::default()),
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

impl Listed {
    pub(super) fn new(relations: &Relations, listing: Listing) -> Self {
        Self {
            relations: relations.clone(),
            listing,
            schema: Arc::new(listing.schema()),
        }
    }
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

/// The digits of numbers, in twos or tens.
struct Digits {
    precision: i32,
    radix: i32,
    scale: Option<i32>,
}

impl Column<'_> {
    fn digits(&self) -> Option<Digits> {
        let (precision, radix, scale) = match (&self.wire, text::known(&self.field).data_type()) {
            (_, DataType::Decimal128(precision, scale)) => {
                (i32::from(*precision), 10, Some(i32::from(*scale)))
            }
            (&Type::INT2, _) => (16, 2, Some(0)),
            (&Type::INT4, _) => (32, 2, Some(0)),
            (&Type::INT8, _) => (64, 2, Some(0)),
            (&Type::FLOAT4, _) => (24, 2, None),
            (&Type::FLOAT8, _) => (53, 2, None),
            _ => return None,
        };
        Some(Digits {
            precision,
            radix,
            scale,
        })
    }

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
                modifier: modifier(text::known(field).data_type()),
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

/// `pg_attribute`.
fn attributes(relations: &[Relation], types: &TypeFacts) -> Table {
    let all = columns_of(relations);
    let facts: Vec<_> = all.iter().map(|column| types.get(column.wire.oid())).collect();
    let letter = |letter: u8| Some(char::from(letter).to_string());
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
    let dimensions = all.iter().map(|column| Some(i32::from(column.is_list())));
    table.number(plain("attndims"), dimensions);
    table.number(plain("attcacheoff"), all.iter().map(|_| Some(-1)));
    table.number(plain("atttypmod"), all.iter().map(|column| Some(column.modifier)));
    table.flag("attbyval", facts.iter().map(|fact| fact.is_by_value));
    table.text("attalign", facts.iter().map(|fact| letter(fact.alignment)));
    table.text("attstorage", facts.iter().map(|fact| letter(fact.storage)));
    table.flag("attnotnull", all.iter().map(|column| !column.field.is_nullable()));
    what_columns_have_not(&mut table, all.len());
    table
}

/// What no column here has: a default, a collation, an owner, parents.
fn what_columns_have_not(table: &mut Table, rows: usize) {
    let nothing = || (0..rows).map(|_| Some(String::new()));
    let zeros = || (0..rows).map(|_| Some(0));
    for name in ["attcompression", "attidentity", "attgenerated"] {
        table.text(name, nothing());
    }
    for name in ["atthasdef", "atthasmissing", "attisdropped"] {
        table.flag(name, (0..rows).map(|_| false));
    }
    table.flag("attislocal", (0..rows).map(|_| true));
    table.number(Field::new("attinhcount", DataType::Int32, false), zeros());
    table.number(oid_field("attcollation", kind::OID, false), zeros());
    for name in ["attacl", "attoptions", "attfdwoptions"] {
        table.lists(name, rows);
    }
    table.text("attmissingval", (0..rows).map(|_| None));
}

/// `information_schema.columns`.
fn columns(relations: &[Relation], catalog: &str) -> Table {
    let all = columns_of(relations);
    let nulls = || all.iter().map(|_| None);
    let always = |text: &'static str| all.iter().map(move |_| Some(text.to_string()));
    let database = || all.iter().map(|_| Some(catalog.to_string()));
    let mut table = Table(Vec::new());
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
    let places = all.iter().map(|column| i32::try_from(column.place).ok());
    table.number(Field::new("ordinal_position", DataType::Int32, true), places);
    table.text("column_default", nulls());
    let nullable = |column: &Column<'_>| if column.field.is_nullable() { "YES" } else { "NO" };
    table.text(
        "is_nullable",
        all.iter().map(|column| Some(nullable(column).to_string())),
    );
    types_of(&mut table, &all);
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

/// What `information_schema.columns` says of types.
fn types_of(table: &mut Table, all: &[Column<'_>]) {
    let plain = |name: &str| Field::new(name, DataType::Int32, true);
    let named = |column: &Column<'_>| match column.is_list() {
        true => "ARRAY".to_string(),
        false => formatted(column.wire.oid(), -1),
    };
    table.text("data_type", all.iter().map(|column| Some(named(column))));
    for name in ["character_maximum_length", "character_octet_length"] {
        table.number(plain(name), all.iter().map(|_| None));
    }
    let digits: Vec<_> = all.iter().map(Column::digits).collect();
    let part =
        |part: fn(&Digits) -> Option<i32>| digits.iter().map(move |digits| digits.as_ref().and_then(part));
    table.number(plain("numeric_precision"), part(|digits| Some(digits.precision)));
    table.number(
        plain("numeric_precision_radix"),
        part(|digits| Some(digits.radix)),
    );
    table.number(plain("numeric_scale"), part(|digits| digits.scale));
    let seconds = |column: &Column<'_>| match column.wire {
        Type::DATE => Some(0),
        Type::TIME | Type::TIMESTAMP | Type::TIMESTAMPTZ | Type::INTERVAL => Some(6),
        _ => None,
    };
    table.number(plain("datetime_precision"), all.iter().map(seconds));
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

const CONSTRAINT: [&str; 3] = ["constraint_catalog", "constraint_schema", "constraint_name"];
const OF_TABLE: [&str; 3] = ["table_catalog", "table_schema", "table_name"];
const UNIQUE: [&str; 3] = [
    "unique_constraint_catalog",
    "unique_constraint_schema",
    "unique_constraint_name",
];
const KINDS: [&str; 5] = [
    "constraint_type",
    "is_deferrable",
    "initially_deferred",
    "enforced",
    "nulls_distinct",
];

/// The tables of `information_schema` that say what keys there are: none.
pub(super) fn constraints() -> Vec<(&'static str, SchemaRef)> {
    let table = |texts: &[&[&str]], numbers: &[&str]| -> SchemaRef {
        let texts = texts.iter().copied().flatten();
        let texts = texts.map(|name| Field::new(*name, DataType::Utf8, true));
        let numbers = numbers
            .iter()
            .map(|name| Field::new(*name, DataType::Int32, true));
        Arc::new(Schema::new(texts.chain(numbers).collect::<Vec<_>>()))
    };
    let (column, rules) = (["column_name"], ["match_option", "update_rule", "delete_rule"]);
    let places = ["ordinal_position", "position_in_unique_constraint"];
    vec![
        (
            "constraint_column_usage",
            table(&[&OF_TABLE, &column, &CONSTRAINT], &[]),
        ),
        (
            "key_column_usage",
            table(&[&CONSTRAINT, &OF_TABLE, &column], &places),
        ),
        (
            "referential_constraints",
            table(&[&CONSTRAINT, &UNIQUE, &rules], &[]),
        ),
        ("table_constraints", table(&[&CONSTRAINT, &OF_TABLE, &KINDS], &[])),
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
