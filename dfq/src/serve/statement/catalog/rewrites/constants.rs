//! Branches of `CASE` that no row of the catalog takes, such as that of columns with a default: there are none here.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, DataType, Expr, ObjectName, Statement, TableFactor, UnaryOperator, Value,
    Visit, VisitMut, Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::types::type_of;
use crate::serve::statement::catalog::functions::{AS_OBJECTS, NULLS};
use crate::serve::statement::catalog::tables::{ColumnTypes, NO_KINDS};

/// Columns of the catalog that hold one value: table, column, value.
const CONSTANTS: [(&str, &str, &str); 5] = [
    ("pg_attribute", "atthasdef", "false"),
    ("pg_attribute", "attidentity", ""),
    ("pg_attribute", "attgenerated", ""),
    ("pg_attribute", "attcollation", "0"),
    ("pg_attribute", "attisdropped", "false"),
];

/// Leaves out such branches.
pub(super) fn fold(statement: &mut Statement, types: &ColumnTypes) {
    let mut tables = Tables::default();
    let _ = Visit::visit(&*statement, &mut tables);
    let _ = VisitMut::visit(statement, &mut Fold { tables, types });
}

/// Tables of a statement by the names that it gives them.
#[derive(Default)]
struct Tables(HashMap<String, String>);

impl Visitor for Tables {
    type Break = ();

    fn post_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name, alias, .. } = factor {
            let table = last(name);
            let alias = alias
                .as_ref()
                .map_or_else(|| table.clone(), |alias| alias.name.value.to_ascii_lowercase());
            self.0.insert(alias, table);
        }
        ControlFlow::Continue(())
    }
}

fn last(name: &ObjectName) -> String {
    let part = name.0.last().and_then(|part| part.as_ident());
    part.map(|part| part.value.to_ascii_lowercase())
        .unwrap_or_default()
}

impl Tables {
    /// Whether an expression is this column of this table.
    fn is_column(&self, expression: &Expr, table: &str, column: &str) -> bool {
        match expression {
            Expr::Identifier(name) => {
                name.value.eq_ignore_ascii_case(column) && self.0.values().any(|known| known == table)
            }
            Expr::CompoundIdentifier(names) => match names.as_slice() {
                [.., of, name] => {
                    let of = self.0.get(&of.value.to_ascii_lowercase());
                    name.value.eq_ignore_ascii_case(column) && of.is_some_and(|of| of == table)
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// The value of an expression, if it is the same for all rows.
    fn value(&self, expression: &Expr) -> Option<String> {
        let of_column = CONSTANTS
            .into_iter()
            .find(|(table, column, _)| self.is_column(expression, table, column));
        if let Some((.., value)) = of_column {
            return Some(value.to_string());
        }
        match expression {
            Expr::Nested(inner) => self.value(inner),
            Expr::Cast { expr, .. } => self.value(expr),
            Expr::Value(value) => match &value.value {
                Value::SingleQuotedString(text) => Some(text.clone()),
                Value::Number(number, _) => Some(number.clone()),
                Value::Boolean(truth) => Some(truth.to_string()),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether a condition is true for all rows, or for none.
    fn truth(&self, condition: &Expr) -> Option<bool> {
        match condition {
            Expr::Nested(inner) => self.truth(inner),
            Expr::UnaryOp {
                op: UnaryOperator::Not,
                expr,
            } => self.truth(expr).map(|truth| !truth),
            Expr::BinaryOp { left, op, right } => self.compared(left, op, right),
            Expr::Identifier(_) | Expr::CompoundIdentifier(_) => self.value(condition)?.parse().ok(),
            _ => None,
        }
    }

    fn compared(&self, left: &Expr, op: &BinaryOperator, right: &Expr) -> Option<bool> {
        let is_equal = || {
            let no_kind = |column: &Expr, value: &Expr| {
                let value = self.value(value)?;
                (self.is_column(column, "pg_type", "typtype") && NO_KINDS.contains(&value.as_str()))
                    .then_some(false)
            };
            let values = || Some(self.value(left)? == self.value(right)?);
            no_kind(left, right)
                .or_else(|| no_kind(right, left))
                .or_else(values)
        };
        match op {
            BinaryOperator::And => match (self.truth(left), self.truth(right)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), right) => right,
                (left, Some(true)) => left,
                _ => None,
            },
            BinaryOperator::Or => match (self.truth(left), self.truth(right)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), right) => right,
                (left, Some(false)) => left,
                _ => None,
            },
            BinaryOperator::Eq => is_equal(),
            BinaryOperator::NotEq => is_equal().map(|is_equal| !is_equal),
            _ => None,
        }
    }
}

struct Fold<'a> {
    tables: Tables,
    types: &'a ColumnTypes,
}

impl VisitorMut for Fold<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if is_null_function(expression) {
            *expression = null_of("TEXT");
        }
        let Expr::Case {
            operand: None,
            conditions,
            else_result,
            ..
        } = expression
        else {
            return ControlFlow::Continue(());
        };
        let data_type = conditions
            .first()
            .map(|branch| type_of(&branch.result, self.types));
        conditions.retain(|branch| self.tables.truth(&branch.condition) != Some(false));
        if conditions.is_empty() {
            let otherwise = match else_result.take() {
                Some(otherwise) if !is_null(&otherwise) => *otherwise,
                _ => null_of(&data_type.unwrap_or_default()),
            };
            *expression = otherwise;
        }
        ControlFlow::Continue(())
    }
}

/// Whether an expression is a call of a function that gives NULL whatever its arguments are.
fn is_null_function(expression: &Expr) -> bool {
    match expression {
        Expr::Function(function) => NULLS.contains(&function.name.to_string().to_ascii_lowercase().as_str()),
        _ => false,
    }
}

/// A list of whole numbers as one of numbers of objects.
pub(super) fn of_objects(list: Expr) -> Expr {
    let text = format!("{AS_OBJECTS}({list})");
    let call = Parser::new(&PostgreSqlDialect {})
        .try_with_sql(&text)
        .and_then(|mut parser| parser.parse_expr());
    call.unwrap_or(list)
}

fn is_null(expression: &Expr) -> bool {
    matches!(expression, Expr::Value(value) if value.value == Value::Null)
}

/// A NULL of a type.
pub(super) fn null_of(data_type: &str) -> Expr {
    if data_type.eq_ignore_ascii_case("OID[]") {
        return of_objects(null_of("INT[]"));
    }
    let parsed = Parser::new(&PostgreSqlDialect {}).try_with_sql(data_type);
    let data_type = parsed
        .and_then(|mut parser| parser.parse_data_type())
        .unwrap_or(DataType::Text);
    Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(Expr::value(Value::Null)),
        data_type,
        array: false,
        format: None,
    }
}
