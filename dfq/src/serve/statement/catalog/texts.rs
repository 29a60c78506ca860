//! Functions that make text: `format`, `json_build_object`, `pg_size_pretty`.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::exec_err;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, create_udf,
};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::keywords::{ALL_KEYWORDS, ALL_KEYWORDS_INDEX, RESERVED_FOR_COLUMN_ALIAS};

/// Adds the functions to a session.
pub(super) fn register(ctx: &SessionContext) {
    let signature = || Signature::variadic_any(Volatility::Stable);
    ctx.register_udf(ScalarUDF::new_from_impl(JsonBuildObject {
        signature: signature(),
    }));
    ctx.register_udf(ScalarUDF::new_from_impl(Format {
        signature: signature(),
    }));
    let sizes = |args: &[ColumnarValue]| {
        let mut texts = StringBuilder::new();
        for sizes in ColumnarValue::values_to_arrays(args)? {
            for size in sizes.as_primitive::<Int64Type>() {
                texts.append_option(size.map(size_text));
            }
        }
        Ok(ColumnarValue::Array(Arc::new(texts.finish())))
    };
    let (int, text) = (DataType::Int64, DataType::Utf8);
    ctx.register_udf(create_udf(
        "pg_size_pretty",
        vec![int],
        text,
        Volatility::Immutable,
        Arc::new(sizes),
    ));
}

fn columns(args: ScalarFunctionArgs) -> Result<Vec<ArrayRef>> {
    let rows = args.number_rows;
    args.args
        .into_iter()
        .map(|value| value.into_array(rows))
        .collect()
}

/// A number of bytes with the unit in which it has at most five digits.
fn size_text(size: i64) -> String {
    let mut size = size;
    for unit in ["bytes", "kB", "MB", "GB", "TB"] {
        if size.unsigned_abs() < 10 * 1024 {
            return format!("{size} {unit}");
        }
        size = (size + 512 * size.signum()) / 1024;
    }
    format!("{size} PB")
}

/// `format(text, value, ...)`: `%s` is a value, `%I` one as a name and `%L` one as a literal of SQL, `%%` a percent sign.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Format {
    signature: Signature,
}

impl ScalarUDFImpl for Format {
    fn name(&self) -> &str {
        "format"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let columns = columns(args)?;
        let options = FormatOptions::default();
        let cells = columns
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options));
        let cells: Vec<_> = cells.collect::<Result<_, _>>()?;
        let mut texts = StringBuilder::new();
        for row in 0..rows {
            let values = columns
                .iter()
                .zip(&cells)
                .map(|(column, cells)| match is_null(column, row) {
                    true => Ok(None),
                    false => cells.value(row).try_to_string().map(Some),
                });
            let values: Vec<Option<String>> = values.collect::<Result<_, _>>()?;
            match values.split_first() {
                Some((Some(text), values)) => texts.append_value(filled(text, values)?),
                _ => texts.append_null(),
            }
        }
        Ok(ColumnarValue::Array(Arc::new(texts.finish())))
    }
}

fn filled(text: &str, values: &[Option<String>]) -> Result<String> {
    let mut values = values.iter();
    let mut filled = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            filled.push(character);
            continue;
        }
        let kind = characters.next();
        if kind == Some('%') {
            filled.push('%');
            continue;
        }
        let Some(value) = values.next() else {
            return exec_err!("format: too few values for '{text}'");
        };
        match (kind, value) {
            (Some('s'), value) => filled.push_str(value.as_deref().unwrap_or_default()),
            (Some('I'), Some(value)) => filled.push_str(&name_text(value)),
            (Some('I'), None) => return exec_err!("format: NULL is no name"),
            (Some('L'), Some(value)) => filled.push_str(&format!("'{}'", value.replace('\'', "''"))),
            (Some('L'), None) => filled.push_str("NULL"),
            _ => return exec_err!("format: '{text}' can have %s, %I, %L and %%"),
        }
    }
    Ok(filled)
}

/// A name as SQL writes it.
fn name_text(name: &str) -> String {
    let is_plain = |(place, character): (usize, char)| {
        character == '_' || character.is_ascii_lowercase() || place > 0 && character.is_ascii_digit()
    };
    let upper = name.to_ascii_uppercase();
    let keyword = ALL_KEYWORDS
        .binary_search(&upper.as_str())
        .ok()
        .and_then(|place| ALL_KEYWORDS_INDEX.get(place));
    let is_reserved = keyword.is_some_and(|keyword| RESERVED_FOR_COLUMN_ALIAS.contains(keyword));
    match !name.is_empty() && name.char_indices().all(is_plain) && !is_reserved {
        true => name.to_string(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

/// `json_build_object(name, value, ...)`: the text of a JSON object. Numbers and booleans are values of JSON, all else is text.
#[derive(Debug, PartialEq, Eq, Hash)]
struct JsonBuildObject {
    signature: Signature,
}

impl ScalarUDFImpl for JsonBuildObject {
    fn name(&self) -> &str {
        "json_build_object"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        objects(&columns(args)?, rows).map(ColumnarValue::Array)
    }
}

fn objects(columns: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let options = FormatOptions::default();
    let cells = columns
        .iter()
        .map(|column| ArrayFormatter::try_new(column, &options));
    let cells: Vec<_> = cells.collect::<Result<_, _>>()?;
    let pairs: Vec<_> = columns.iter().zip(&cells).collect();
    let pairs: Vec<_> = pairs.chunks(2).collect();
    let mut texts = StringBuilder::new();
    for row in 0..rows {
        let mut members = Vec::with_capacity(pairs.len());
        for pair in &pairs {
            let [(names, name), (values, value)] = pair else {
                return exec_err!("json_build_object takes names and values in turn");
            };
            if is_null(names, row) {
                return exec_err!("json_build_object: a name is NULL");
            }
            let text = value.value(row).try_to_string()?;
            let value = match values.data_type() {
                _ if is_null(values, row) => "null".to_string(),
                data_type if data_type.is_integer() || *data_type == DataType::Boolean => text,
                DataType::Decimal128(..) => text,
                _ => quoted(text),
            };
            members.push(format!("{} : {value}", quoted(name.value(row).try_to_string()?)));
        }
        texts.append_value(format!("{{{}}}", members.join(", ")));
    }
    Ok(Arc::new(texts.finish()))
}

fn is_null(values: &ArrayRef, row: usize) -> bool {
    *values.data_type() == DataType::Null || values.is_null(row)
}

fn quoted(text: String) -> String {
    serde_json::Value::String(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_into_texts() {
        let values = |values: &[&str]| {
            values
                .iter()
                .map(|value| Some((*value).to_string()))
                .collect::<Vec<_>>()
        };
        for (text, given, expected) in [
            ("%s", vec!["int8"], "int8"),
            ("%I.%I", vec!["public", "My Table"], "public.\"My Table\""),
            ("%I", vec!["select"], "\"select\""),
            ("%L 100%%", vec!["it's"], "'it''s' 100%"),
        ] {
            assert_eq!(filled(text, &values(&given)).unwrap(), expected);
        }
        assert_eq!(filled("%s|%L", &[None, None]).unwrap(), "|NULL");
        for (text, given) in [
            ("%s %s", vec![Some("a".to_string())]),
            ("%I", vec![None]),
            ("%x", vec![None]),
        ] {
            assert!(filled(text, &given).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (size, expected) in [
            (0, "0 bytes"),
            (10_239, "10239 bytes"),
            (10_240, "10 kB"),
            (123_456_789, "118 MB"),
            (-20_000, "-20 kB"),
        ] {
            assert_eq!(size_text(size), expected);
        }
    }

    #[tokio::test]
    async fn objects_are_json() {
        let ctx = SessionContext::new();
        register(&ctx);
        let ask = async |sql: &str| ctx.sql(sql).await.unwrap().to_string().await;
        let text =
            ask("SELECT json_build_object('a', x, 'b\"', s) FROM (VALUES (1, 'c'), (NULL, NULL)) t(x, s)")
                .await
                .unwrap();
        assert!(text.contains(r#"{"a" : 1, "b\"" : "c"}"#), "{text}");
        assert!(text.contains(r#"{"a" : null, "b\"" : null}"#), "{text}");
        assert!(ask("SELECT json_build_object('a')").await.is_err());
        assert!(ask("SELECT json_build_object(NULL, 1)").await.is_err());
    }
}
