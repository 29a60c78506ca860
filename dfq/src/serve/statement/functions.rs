//! Functions of PostgreSQL that statements about its catalog call, and DataFusion does not have.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, StringBuilder};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::{ScalarValue, exec_err};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, create_udf,
};
use datafusion::prelude::SessionContext;

/// The version of PostgreSQL whose protocol and catalog these are.
pub(in crate::serve) const VERSION: &str = "16.6";

/// Adds the functions to a session.
pub(super) fn register(ctx: &SessionContext) {
    let version = format!(
        "PostgreSQL {VERSION} (dfq {}, DataFusion {})",
        env!("CARGO_PKG_VERSION"),
        ctx.state().version()
    );
    ctx.register_udf(create_udf(
        "version",
        Vec::new(),
        DataType::Utf8,
        Volatility::Stable,
        Arc::new(move |_| Ok(ColumnarValue::Scalar(ScalarValue::from(version.as_str())))),
    ));
    ctx.register_udf(ScalarUDF::new_from_impl(JsonBuildObject {
        signature: Signature::variadic_any(Volatility::Stable),
    }));
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
        let columns = args.args.into_iter().map(|value| value.into_array(rows));
        let columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
        objects(&columns, rows).map(ColumnarValue::Array)
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
        assert!(ask("SELECT version()").await.unwrap().contains("PostgreSQL 16.6"));
    }
}
