//! Conversion of a cluster's answer to the types that its statement was planned with.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{Fields, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use super::operator::{Execution, Operator, Work};

/// Casts the batches of a cluster's answer to the types of its schema.
///
/// They arrive by Arrow Flight 59, which sends dictionaries as their values and large lists as lists.
pub type PlannedTypesExec = Operator<PlannedTypesWork>;

/// Work of a [`PlannedTypesExec`]: casts columns whose type differs.
#[derive(Debug)]
pub struct PlannedTypesWork;

impl PlannedTypesExec {
    /// The operator over the plan that fetches the answer.
    ///
    /// # Errors
    /// None but internal ones.
    pub(crate) fn try_new(sent: Arc<dyn ExecutionPlan>) -> Result<Self> {
        Self::over(PlannedTypesWork, vec![sent])
    }
}

impl Work for PlannedTypesWork {
    fn name(&self) -> &'static str {
        "PlannedTypesExec"
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let (schema, planned) = (on.schema(), on.schema());
        let batches = on.input()?.map(move |batch| in_types_of(batch?, &planned));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }
}

/// The batch with the types of `planned`.
///
/// # Errors
/// Arrow's, for a value that the planned type cannot hold.
fn in_types_of(batch: RecordBatch, planned: &SchemaRef) -> Result<RecordBatch> {
    let sent = batch.schema();
    let pairs = || sent.fields().iter().zip(planned.fields());
    if pairs().all(|(sent, planned)| sent.data_type() == planned.data_type()) {
        return Ok(batch);
    }
    let fields =
        pairs().map(|(sent, planned)| sent.as_ref().clone().with_data_type(planned.data_type().clone()));
    let schema = Schema::new_with_metadata(fields.collect::<Fields>(), sent.metadata().clone());
    let never_null = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| {
        if column.data_type() == field.data_type() {
            Ok(Arc::clone(column))
        } else {
            cast_with_options(column, field.data_type(), &never_null)
        }
    });
    let columns = columns.collect::<Result<_, _>>()?;
    Ok(RecordBatch::try_new(Arc::new(schema), columns)?)
}
