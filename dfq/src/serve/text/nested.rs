//! Lists and records as PostgreSQL writes them: `{1,"a b",NULL}`, `(1,"a b",)`.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringArray, StringBuilder};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::error::Result;

use super::{Style, texts};

/// Rows of a struct as records.
///
/// # Errors
/// A value that has no text.
pub(super) fn records(column: &ArrayRef, style: Style) -> Result<ArrayRef> {
    let rows = column.as_struct();
    let fields = rows.columns().iter().map(|column| cells(column, style));
    let fields: Vec<StringArray> = fields.collect::<Result<_>>()?;
    let mut records = StringBuilder::new();
    for row in 0..rows.len() {
        if rows.is_null(row) {
            records.append_null();
            continue;
        }
        let parts = fields.iter().map(|field| match field.is_null(row) {
            true => String::new(),
            false => quoted(
                field.value(row),
                &['"', '\\', '(', ')', ','],
                |quote| ['"', quote],
                "",
            ),
        });
        records.append_value(format!("({})", parts.collect::<Vec<_>>().join(",")));
    }
    Ok(Arc::new(records.finish()))
}

/// The values of a column as text.
///
/// # Errors
/// A value that has no text.
pub(super) fn cells(column: &ArrayRef, style: Style) -> Result<StringArray> {
    let column = match texts(column, style)? {
        Some(texts) => texts,
        None => Arc::clone(column),
    };
    let mut cells = StringBuilder::new();
    match column.data_type() {
        DataType::Utf8 => return Ok(column.as_string::<i32>().clone()),
        DataType::Boolean => {
            let letters = column.as_boolean().iter();
            letters.for_each(|value| cells.append_option(value.map(|value| if value { "t" } else { "f" })));
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            let bytes = cast(&column, &DataType::Binary)?;
            for value in bytes.as_binary::<i32>() {
                let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                cells.append_option(value.map(|bytes| format!("\\x{}", hex(bytes))));
            }
        }
        DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
            let lists = cast(&column, &DataType::List(Arc::clone(element)))?;
            for list in lists.as_list::<i32>().iter() {
                cells.append_option(list.map(|list| list_text(&list, style)).transpose()?);
            }
        }
        _ => return Ok(cast(&column, &DataType::Utf8)?.as_string::<i32>().clone()),
    }
    Ok(cells.finish())
}

fn list_text(elements: &ArrayRef, style: Style) -> Result<String> {
    let elements = cells(elements, style)?;
    let parts = elements.iter().map(|element| match element {
        None => "NULL".to_string(),
        Some(text) => quoted(text, &['"', '\\', '{', '}', ','], |quote| ['\\', quote], "NULL"),
    });
    Ok(format!("{{{}}}", parts.collect::<Vec<_>>().join(",")))
}

/// A part of a list or a record: in quotes if it is empty, holds one of these or a space, or is `reserved`.
fn quoted(text: &str, special: &[char], escaped: impl Fn(char) -> [char; 2], reserved: &str) -> String {
    let is_special = |character: char| special.contains(&character) || character.is_ascii_whitespace();
    if !text.is_empty() && !text.chars().any(is_special) && !text.eq_ignore_ascii_case(reserved) {
        return text.to_string();
    }
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.extend(escaped('"')),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
