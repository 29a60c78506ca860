//! Parameters of a prepared statement: their types on the wire and in plans.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ParamValues, ScalarValue, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};
use datafusion::sql::sqlparser::ast::{Expr as SqlExpr, Statement, Value, Visit, Visitor};
use datafusion_postgres::arrow_pg::datatypes::df::deserialize_parameters_with_server_types;
use datafusion_postgres::arrow_pg::datatypes::{PG_OID_ALIAS_KEY, into_pg_type, pg_type_for_alias_kind};
use pgwire::api::Type;
use pgwire::api::portal::Portal;
use pgwire::error::PgWireResult;

/// One of `$1`, `$2` and so on.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::serve) struct Parameter {
    /// In the plan.
    pub(in crate::serve) data_type: DataType,
    /// As the client sends it.
    pub(in crate::serve) wire: Type,
}

/// What a plan says of a parameter.
#[derive(Debug, Default)]
struct Found {
    data_type: Option<DataType>,
    wire: Option<Type>,
}

impl Parameter {
    /// The parameters of a plan, in order; `types` are those that the client gives, `hints` those of the statement's text, as many as it
    /// has parameters. One of which nobody says anything is text.
    ///
    /// # Errors
    /// Placeholders that are not `$1` to `$n`.
    pub(in crate::serve) fn of(
        plan: &LogicalPlan,
        types: &[Option<Type>],
        hints: &[Option<Type>],
    ) -> Result<Vec<Self>> {
        let found = find(plan)?;
        let count = found
            .len()
            .max(found.keys().next_back().copied().unwrap_or(0))
            .max(hints.len());
        let empty = Found::default();
        let parameter = |number: usize| {
            let found = found.get(&number).unwrap_or(&empty);
            // A type that is not known is the client's way to ask.
            let given = types
                .get(number - 1)
                .cloned()
                .flatten()
                .filter(|wire| *wire != Type::UNKNOWN);
            let hint = hints.get(number - 1).cloned().flatten();
            let data_type = found.data_type.clone();
            let told = given.as_ref().or(hint.as_ref());
            let data_type = data_type.or_else(|| told.and_then(data_type_of));
            let data_type = data_type.unwrap_or(DataType::Utf8);
            // Plans know numbers of objects as whole numbers.
            let objects = hint.filter(|hint| [Type::OID, Type::OID_ARRAY].contains(hint));
            let wire = given.or(objects).or_else(|| found.wire.clone());
            let wire = wire
                .or_else(|| into_pg_type(&data_type).ok())
                .unwrap_or(Type::TEXT);
            Self { data_type, wire }
        };
        Ok((1..=count).map(parameter).collect())
    }

    /// NULLs in place of values, for the types of an answer before there are values.
    ///
    /// # Errors
    /// A type without a NULL.
    pub(in crate::serve) fn nulls(parameters: &[Self]) -> Result<ParamValues> {
        let null = |parameter: &Self| ScalarValue::try_from(&parameter.data_type);
        Ok(ParamValues::from(
            parameters.iter().map(null).collect::<Result<Vec<_>>>()?,
        ))
    }

    /// The values that a client bound.
    ///
    /// # Errors
    /// A value that is none of its parameter's type.
    pub(in crate::serve) fn values<S: Clone>(
        parameters: &[Self],
        portal: &Portal<S>,
    ) -> PgWireResult<ParamValues> {
        let data_types: Vec<_> = parameters
            .iter()
            .map(|parameter| Some(&parameter.data_type))
            .collect();
        let wires: Vec<_> = parameters
            .iter()
            .map(|parameter| read_as(&parameter.wire))
            .collect();
        let wires: Vec<_> = wires.iter().map(Some).collect();
        deserialize_parameters_with_server_types(portal, &data_types, &wires)
    }
}

/// The type by which values are read: numbers of objects have the bytes of whole numbers.
fn read_as(wire: &Type) -> Type {
    match *wire {
        Type::OID_ARRAY => Type::INT4_ARRAY,
        _ => wire.clone(),
    }
}

/// What the text of a statement says of its parameters: as many as there are, with the types of those that are cast. A plan may have lost
/// some of them.
pub(super) fn hints(statement: &Statement) -> Vec<Option<Type>> {
    let mut hints = Hints(Vec::new());
    let _ = statement.visit(&mut hints);
    hints.0
}

/// Types by the names that casts give them. Others are as their text.
const NAMED: [(&str, Type); 13] = [
    ("bigint", Type::INT8),
    ("boolean", Type::BOOL),
    ("date", Type::DATE),
    ("double precision", Type::FLOAT8),
    ("float", Type::FLOAT8),
    ("int", Type::INT4),
    ("integer", Type::INT4),
    ("numeric", Type::NUMERIC),
    ("oid", Type::OID),
    ("oid[]", Type::OID_ARRAY),
    ("real", Type::FLOAT4),
    ("smallint", Type::INT2),
    ("timestamp", Type::TIMESTAMP),
];

struct Hints(Vec<Option<Type>>);

impl Hints {
    fn note(&mut self, placeholder: &str, wire: Option<Type>) {
        // What is no parameter is refused where the plan's are found.
        if let Ok(number) = number(placeholder) {
            if self.0.len() < number {
                self.0.resize(number, None);
            }
            if let Some(hint) = self.0.get_mut(number - 1)
                && wire.is_some()
            {
                *hint = wire;
            }
        }
    }
}

impl Visitor for Hints {
    type Break = ();

    fn pre_visit_expr(&mut self, expression: &SqlExpr) -> ControlFlow<()> {
        match expression {
            SqlExpr::Value(value) => {
                if let Value::Placeholder(name) = &value.value {
                    self.note(name, None);
                }
            }
            SqlExpr::Cast { expr, data_type, .. } => {
                let name = data_type.to_string().to_ascii_lowercase();
                let name = name.strip_prefix("pg_catalog.").unwrap_or(&name);
                let wire = NAMED.iter().find(|(named, _)| *named == name);
                let wire = wire.map(|(_, wire)| wire.clone());
                if let SqlExpr::Value(value) = expr.as_ref()
                    && let Value::Placeholder(name) = &value.value
                {
                    self.note(name, wire);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Most parameters of a statement, as the protocol counts them.
const MOST: usize = 65_535;

fn find(plan: &LogicalPlan) -> Result<BTreeMap<usize, Found>> {
    let mut all: BTreeMap<usize, Found> = BTreeMap::new();
    for (id, data_type) in plan.get_parameter_types()? {
        all.entry(number(&id)?).or_default().data_type = data_type;
    }
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Limit(limit) = node {
            for count in [&limit.skip, &limit.fetch].into_iter().flatten() {
                note_type(count, &DataType::Int64, &mut all)?;
            }
        }
        node.apply_expressions(|expression| {
            expression.apply(|expression| {
                note(expression, &mut all)?;
                note_list(expression, node, &mut all)?;
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(all)
}

/// Notes what a cast, or the column that it is compared with, says of a parameter.
fn note(expression: &Expr, all: &mut BTreeMap<usize, Found>) -> Result<()> {
    match expression {
        Expr::Cast(cast) => {
            if let Expr::Placeholder(placeholder) = cast.expr.as_ref() {
                let found = all.entry(number(&placeholder.id)?).or_default();
                found
                    .data_type
                    .get_or_insert_with(|| cast.field.data_type().clone());
            }
        }
        Expr::Placeholder(placeholder) => {
            let found = all.entry(number(&placeholder.id)?).or_default();
            let kind = placeholder
                .field
                .as_ref()
                .and_then(|field| field.metadata().get(PG_OID_ALIAS_KEY));
            // Only object numbers have a type of their own: the other kinds are shown, and bound, as names.
            if let (Some(kind), Some(DataType::Int32)) = (kind, &found.data_type) {
                found.wire = pg_type_for_alias_kind(kind.as_str());
            }
        }
        _ => {}
    }
    Ok(())
}

/// The columns that a node's expressions are over.
fn merged(node: &LogicalPlan) -> DFSchema {
    let mut schema = DFSchema::empty();
    for input in node.inputs() {
        schema.merge(input.schema());
    }
    schema
}

/// Notes that `x = ANY($1)` takes a list of what `x` is.
fn note_list(expression: &Expr, node: &LogicalPlan, all: &mut BTreeMap<usize, Found>) -> Result<()> {
    let Expr::ScalarFunction(call) = expression else {
        return Ok(());
    };
    let (true, [Expr::Placeholder(list), element]) = (call.name() == "array_has", call.args.as_slice())
    else {
        return Ok(());
    };
    if let Ok(element) = element.get_type(&merged(node)) {
        let found = all.entry(number(&list.id)?).or_default();
        found
            .data_type
            .get_or_insert_with(|| DataType::new_list(element, true));
    }
    Ok(())
}

/// Notes the type that a parameter has where it stands.
fn note_type(expression: &Expr, data_type: &DataType, all: &mut BTreeMap<usize, Found>) -> Result<()> {
    if let Expr::Placeholder(placeholder) = expression {
        let found = all.entry(number(&placeholder.id)?).or_default();
        found.data_type.get_or_insert_with(|| data_type.clone());
    }
    Ok(())
}

fn number(id: &str) -> Result<usize> {
    match id.strip_prefix('$').and_then(|number| number.parse().ok()) {
        Some(number @ 1..=MOST) => Ok(number),
        _ => plan_err!("'{id}' is no parameter: they are $1 to ${MOST}"),
    }
}

/// The type in plans of a value that a client says is of type `wire`.
fn data_type_of(wire: &Type) -> Option<DataType> {
    Some(match *wire {
        Type::BOOL => DataType::Boolean,
        Type::INT2 => DataType::Int16,
        Type::INT4 | Type::OID => DataType::Int32,
        Type::OID_ARRAY => DataType::new_list(DataType::Int32, true),
        Type::INT8 => DataType::Int64,
        Type::FLOAT4 => DataType::Float32,
        Type::FLOAT8 => DataType::Float64,
        Type::NUMERIC => DataType::Decimal128(38, 10),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME => DataType::Utf8,
        Type::BYTEA => DataType::Binary,
        Type::DATE => DataType::Date32,
        Type::TIME => DataType::Time64(TimeUnit::Nanosecond),
        Type::TIMESTAMP => DataType::Timestamp(TimeUnit::Microsecond, None),
        Type::TIMESTAMPTZ => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;
    use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    async fn parameters(text: &str, types: &[Option<Type>]) -> Result<Vec<(DataType, Type)>> {
        let ctx = SessionContext::new();
        ctx.sql("CREATE TABLE t(x BIGINT, s TEXT)").await.unwrap();
        let plan = ctx.state().create_logical_plan(text).await?;
        let parameters = Parameter::of(&plan, types, &[])?;
        Ok(parameters
            .into_iter()
            .map(|parameter| (parameter.data_type, parameter.wire))
            .collect())
    }

    #[test]
    fn the_text_of_a_statement_tells_types_and_how_many_there_are() {
        let hinted = |text: &str| {
            let mut statements = Parser::parse_sql(&PostgreSqlDialect {}, text).unwrap();
            hints(&statements.pop().unwrap())
        };
        for (text, expected) in [
            ("SELECT 1", vec![]),
            ("SELECT $2", vec![None, None]),
            (
                "SELECT $1::INTEGER, x = ANY($3::oid[]), CAST($2 AS TEXT)",
                vec![Some(Type::INT4), None, Some(Type::OID_ARRAY)],
            ),
            ("SELECT $1::pg_catalog.oid WHERE $1 > 0", vec![Some(Type::OID)]),
        ] {
            assert_eq!(hinted(text), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn types_come_from_columns_casts_and_clients() {
        let int = (DataType::Int64, Type::INT8);
        let text = (DataType::Utf8, Type::TEXT);
        for (statement, types, expected) in [
            ("SELECT * FROM t WHERE x > $1", vec![], vec![int.clone()]),
            (
                "SELECT * FROM t WHERE x > $1",
                vec![Some(Type::INT4)],
                vec![(DataType::Int64, Type::INT4)],
            ),
            ("SELECT $1", vec![], vec![text.clone()]),
            ("SELECT $1", vec![Some(Type::UNKNOWN)], vec![text.clone()]),
            ("SELECT $1", vec![Some(Type::INT8)], vec![int.clone()]),
            ("SELECT $1::BIGINT, $2", vec![], vec![int.clone(), text.clone()]),
            (
                "SELECT x FROM t LIMIT $1 OFFSET $2",
                vec![],
                vec![int.clone(), int.clone()],
            ),
            (
                "SELECT * FROM t WHERE array_has($1, x)",
                vec![],
                vec![(DataType::new_list(DataType::Int64, true), Type::INT8_ARRAY)],
            ),
            (
                "SELECT * FROM t WHERE x IN (SELECT x FROM t WHERE x = $2)",
                vec![],
                vec![text, int],
            ),
        ] {
            assert_eq!(
                parameters(statement, &types).await.unwrap(),
                expected,
                "{statement}"
            );
        }
        for statement in ["SELECT $x", "SELECT $0", "SELECT $70000"] {
            let error = parameters(statement, &[]).await.unwrap_err().to_string();
            let is_about_it = error.contains("parameter") || error.contains("placeholder");
            assert!(is_about_it, "{statement}: {error}");
        }
    }
}
