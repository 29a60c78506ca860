//! Which rows are of one group, as DataFusion groups them.

use std::collections::BTreeMap;

use datafusion::arrow::datatypes::DataType;

use crate::naive::Row;
use crate::table::Table;
use crate::value::{Cell, Value, texts};

/// The same number without a sign, if it is 0.
pub(crate) fn one_zero(v: f64) -> f64 {
    if v == 0.0 { 0.0 } else { v }
}

/// What a group is called, and what else tells it apart: the signs of NaNs.
pub(crate) type Group = (String, Vec<bool>);

/// The rows of each group of `GROUP BY` and `DISTINCT ON`: zeros of either sign are one, unless they are inside of values or of
/// a dictionary.
pub(crate) fn grouped<'a>(rows: Vec<Row<'a>>, by: &[usize], table: &Table) -> BTreeMap<Group, Vec<Row<'a>>> {
    let key = |column: usize, cell: &Cell| match cell {
        Some(Value::Float(v)) if !is_dictionary(table, column) => Some(Value::Float(one_zero(*v))),
        other => other.clone(),
    };
    apart(rows, by, key)
}

fn is_dictionary(table: &Table, column: usize) -> bool {
    let column = table.columns.get(column);
    column.is_some_and(|column| matches!(column.data_type, DataType::Dictionary(..)))
}

/// The rows of each partition of `PARTITION BY`, which tells zeros apart.
pub(crate) fn partitioned<'a>(rows: Vec<Row<'a>>, by: &[usize]) -> BTreeMap<Group, Vec<Row<'a>>> {
    apart(rows, by, |_, cell| cell.clone())
}

fn apart<'a>(
    rows: Vec<Row<'a>>,
    by: &[usize],
    key: impl Fn(usize, &Cell) -> Cell,
) -> BTreeMap<Group, Vec<Row<'a>>> {
    let mut groups: BTreeMap<Group, Vec<Row>> = BTreeMap::new();
    for row in rows {
        let key: Vec<Cell> = by.iter().map(|c| key(*c, &row[*c])).collect();
        let mut signs = Vec::new();
        nan_signs(&key, &mut signs);
        groups.entry((texts(&key), signs)).or_default().push(row);
    }
    groups
}

fn nan_signs(cells: &[Cell], signs: &mut Vec<bool>) {
    for cell in cells.iter().flatten() {
        match cell {
            Value::Float(v) if v.is_nan() => signs.push(v.is_sign_negative()),
            Value::Many(items) => nan_signs(items, signs),
            _ => {}
        }
    }
}
