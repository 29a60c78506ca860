//! Which columns of a table can be pinned.

use std::fmt::{self, Display};

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::{Result, TableReference, plan_err};

use crate::kernel::cuda::DeviceColumn;

/// A column of a table of which all was to be pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedColumn {
    /// Its name.
    pub name: String,
    /// The type of its values.
    pub data_type: DataType,
    /// Why it is not pinned; `None` if it is.
    pub left_out: Option<String>,
}

impl Display for PinnedColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.left_out {
            None => write!(f, "{} is pinned", self.name),
            Some(reason) => write!(f, "{} is left out: {reason}", self.name),
        }
    }
}

/// Checks that the columns exist, that each is named once, and that they can be on a device.
///
/// # Errors
/// A planning error that says what is wrong.
pub(super) fn check(table: &TableReference, schema: &Schema, columns: &[&str]) -> Result<()> {
    if columns.is_empty() {
        return plan_err!("no columns to pin of table {table}: name at least one");
    }
    for (i, name) in columns.iter().enumerate() {
        let Ok(field) = schema.field_with_name(name) else {
            let names: Vec<_> = schema
                .fields()
                .iter()
                .map(|field| field.name().as_str())
                .collect();
            return plan_err!(
                "table {table} has no column {name}: there are {}",
                names.join(", ")
            );
        };
        if columns[..i].contains(name) {
            return plan_err!("column {name} of table {table} is named twice");
        }
        if let Some(reason) = reason_against(field.data_type()) {
            return plan_err!(
                "column {name} of table {table} cannot be pinned: {reason}; numbers up to 128 bits, Booleans, dates, times, \
                 timestamps and durations have; vectors are FixedSizeList of Float16 or Float32"
            );
        }
    }
    Ok(())
}

/// Why values of a type cannot be on a device; `None` if they can.
fn reason_against(data_type: &DataType) -> Option<String> {
    (!DeviceColumn::holds(data_type))
        .then(|| format!("values of type {data_type} have no key of fixed width"))
}

/// The columns of a table, each with the reason why it cannot be pinned, if there is one.
pub(super) fn all_columns(schema: &Schema) -> Vec<PinnedColumn> {
    let fields = schema.fields().iter();
    fields
        .map(|field| PinnedColumn {
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            left_out: reason_against(field.data_type()),
        })
        .collect()
}

/// The names of the columns that can be pinned.
///
/// # Errors
/// A planning error for a table without any, that says why.
pub(super) fn pinnable(table: &TableReference, columns: &[PinnedColumn]) -> Result<Vec<String>> {
    let found: Vec<_> = columns
        .iter()
        .filter(|column| column.left_out.is_none())
        .map(|column| column.name.clone())
        .collect();
    if found.is_empty() {
        let reasons: Vec<_> = columns.iter().map(PinnedColumn::to_string).collect();
        let why = if reasons.is_empty() {
            "it has no columns".to_owned()
        } else {
            reasons.join(", ")
        };
        return plan_err!("table {table} has no column that can be pinned: {why}");
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{Field, TimeUnit};

    #[test]
    fn a_whole_table_is_pinned_but_for_what_cannot_be() {
        let list = DataType::new_list(DataType::Int64, true);
        let schema = Schema::new(vec![
            Field::new("city", DataType::Utf8, true),
            Field::new("fare", DataType::Float64, true),
            Field::new("at", DataType::Timestamp(TimeUnit::Second, None), false),
            Field::new("stops", list, true),
            Field::new("price", DataType::Decimal128(38, 2), true),
        ]);
        let all = all_columns(&schema);
        let table = TableReference::bare("trips");
        assert_eq!(pinnable(&table, &all).unwrap(), ["fare", "at", "price"]);
        let left_out: Vec<_> = all.iter().filter(|column| column.left_out.is_some()).collect();
        assert_eq!(left_out.len(), 2);
        assert_eq!(
            left_out[0].to_string(),
            "city is left out: values of type Utf8 have no key of fixed width"
        );
        let error = pinnable(&table, &all[..1]).unwrap_err().strip_backtrace();
        assert!(
            error.contains("table trips has no column that can be pinned: city is left out"),
            "{error}"
        );
        let error = pinnable(&table, &[]).unwrap_err().strip_backtrace();
        assert!(error.contains("it has no columns"), "{error}");
    }
}
