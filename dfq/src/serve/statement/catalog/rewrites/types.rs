//! Types of expressions, as far as their text tells.

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Query, SelectItem, SetExpr,
};

use crate::serve::statement::catalog::functions::AS_OBJECTS;
use crate::serve::statement::catalog::tables::ColumnTypes;

/// Functions that give numbers or truth.
const FUNCTIONS: [(&str, &str); 8] = [
    (AS_OBJECTS, "OID[]"),
    ("bool_and", "BOOLEAN"),
    ("bool_or", "BOOLEAN"),
    ("count", "BIGINT"),
    ("generate_subscripts", "INT"),
    ("row_number", "BIGINT"),
    ("pg_get_constraintdef", "TEXT"),
    ("format_type", "TEXT"),
];

/// The type of an expression over the catalog's columns; text where nothing tells another.
pub(super) fn type_of(expression: &Expr, known: &ColumnTypes) -> String {
    let of_column = |name: &str| {
        known
            .get(&name.to_ascii_lowercase())
            .copied()
            .unwrap_or("TEXT")
            .to_string()
    };
    match expression {
        Expr::Cast { data_type, .. } => match data_type.to_string().to_ascii_lowercase().rsplit('.').next() {
            Some("oid[]") => "OID[]".to_string(),
            Some(name) if name.starts_with("reg") || name == "oid" => "OID".to_string(),
            _ => data_type.to_string(),
        },
        Expr::Identifier(name) => of_column(&name.value),
        Expr::CompoundIdentifier(names) => names
            .last()
            .map_or_else(|| "TEXT".to_string(), |name| of_column(&name.value)),
        Expr::Nested(inner) => type_of(inner, known),
        Expr::IsNull(_)
        | Expr::IsNotNull(_)
        | Expr::Exists { .. }
        | Expr::InList { .. }
        | Expr::Like { .. } => "BOOLEAN".to_string(),
        Expr::UnaryOp { op, .. } if op.to_string().eq_ignore_ascii_case("not") => "BOOLEAN".to_string(),
        Expr::BinaryOp { op, left, .. } => match op.to_string().to_ascii_uppercase().as_str() {
            "=" | "<>" | "!=" | "<" | ">" | "<=" | ">=" | "AND" | "OR" | "~" | "!~" => "BOOLEAN".to_string(),
            "||" => "TEXT".to_string(),
            _ => type_of(left, known),
        },
        Expr::Case { conditions, .. } => match conditions.first() {
            Some(branch) => type_of(&branch.result, known),
            None => "TEXT".to_string(),
        },
        Expr::Subquery(query) => of_query(query, known),
        Expr::Function(function) => of_function(function, known),
        Expr::Value(value) if value.value.to_string().parse::<i32>().is_ok() => "INT".to_string(),
        _ => "TEXT".to_string(),
    }
}

fn of_function(function: &Function, known: &ColumnTypes) -> String {
    let name = function.name.to_string().to_ascii_lowercase();
    let name = name.rsplit('.').next().unwrap_or_default();
    if let Some((_, result)) = FUNCTIONS.iter().find(|(known, _)| *known == name) {
        return (*result).to_string();
    }
    match (name, first_argument(function)) {
        ("array_agg", Some(element)) => format!("{}[]", type_of(element, known)),
        ("min" | "max" | "sum" | "coalesce" | "nullif", Some(value)) => type_of(value, known),
        _ => "TEXT".to_string(),
    }
}

fn first_argument(function: &Function) -> Option<&Expr> {
    let FunctionArguments::List(list) = &function.args else {
        return None;
    };
    match list.args.first()? {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    }
}

fn of_query(query: &Query, known: &ColumnTypes) -> String {
    let SetExpr::Select(select) = query.body.as_ref() else {
        return "TEXT".to_string();
    };
    match select.projection.first() {
        Some(SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) => type_of(expr, known),
        _ => "TEXT".to_string(),
    }
}
