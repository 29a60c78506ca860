//! The table `pg_settings`: PostgreSQL's variables, as the session has them.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{MemTable, Session, TableProvider};
use datafusion::config::ConfigOptions;
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, Expr, ScalarFunctionArgs};
use datafusion::physical_plan::ExecutionPlan;

use super::CURRENT_SETTING;
use crate::serve::settings;

/// The table.
pub(super) fn table() -> Result<Arc<dyn TableProvider>> {
    let names = [
        "name",
        "setting",
        "unit",
        "category",
        "short_desc",
        "context",
        "vartype",
        "source",
        "boot_val",
    ];
    let fields = names.map(|name| Field::new(name, DataType::Utf8, true));
    Ok(Arc::new(Variables(Arc::new(Schema::new(fields.to_vec())))))
}

#[derive(Debug)]
struct Variables(SchemaRef);

#[async_trait]
impl TableProvider for Variables {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let names: ArrayRef = Arc::new(StringArray::from(settings::names()));
        let values = current(state, &names)?;
        let columns = self.0.fields().iter().map(|field| -> ArrayRef {
            match field.name().as_str() {
                "name" => Arc::clone(&names),
                "setting" => Arc::clone(&values),
                "context" => Arc::new(StringArray::from(vec!["user"; names.len()])),
                "source" => Arc::new(StringArray::from(vec!["session"; names.len()])),
                "vartype" => Arc::new(StringArray::from(vec!["string"; names.len()])),
                _ => Arc::new(StringArray::new_null(names.len())),
            }
        });
        let rows = RecordBatch::try_new(Arc::clone(&self.0), columns.collect())?;
        let table = MemTable::try_new(Arc::clone(&self.0), vec![vec![rows]])?;
        table.scan(state, projection, filters, limit).await
    }
}

/// The values of variables, by the session's own `current_setting`.
fn current(state: &dyn Session, names: &ArrayRef) -> Result<ArrayRef> {
    let Some(function) = state.scalar_functions().get(CURRENT_SETTING) else {
        return Ok(Arc::new(StringArray::new_null(names.len())));
    };
    let args = ScalarFunctionArgs {
        args: vec![ColumnarValue::Array(Arc::clone(names))],
        arg_fields: vec![Arc::new(Field::new("name", DataType::Utf8, true))],
        number_rows: names.len(),
        return_field: Arc::new(Field::new("setting", DataType::Utf8, true)),
        config_options: Arc::new(ConfigOptions::clone(state.config_options())),
    };
    function.invoke_with_args(args)?.into_array(names.len())
}
