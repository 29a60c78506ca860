//! Types of views and dictionaries for columns that were sorted without them.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::StreamExt;

use super::operator::{Execution, Operator, Work};

/// Gives strings and binary values that were sorted as `LargeUtf8` and `LargeBinary` their types of views and dictionaries again.
///
/// It is planned above a sort whose rows may go to disk, if the memory pool has a limit: rows that are read back and merged keep all bytes
/// behind the views of many batches, or the dictionaries of these, of which nobody knows when memory is reserved. It has no metrics.
pub type RestoredTypesExec = Operator<RestoredTypesWork>;

/// Work of a [`RestoredTypesExec`].
#[derive(Debug)]
pub struct RestoredTypesWork {
    /// Those of the sort of the rows as they are, for which the operator stands with its input.
    properties: Arc<PlanProperties>,
}

impl RestoredTypesExec {
    /// An operator over `input`, which has the rows of `sorted` in their order, as strings and binary values with offsets.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, sorted: &dyn ExecutionPlan) -> Result<Self> {
        let properties = Arc::clone(sorted.properties());
        Self::over(RestoredTypesWork { properties }, vec![input])
    }
}

impl Work for RestoredTypesWork {
    fn name(&self) -> &'static str {
        "RestoredTypesExec"
    }

    fn properties(&self, _inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        Ok(Arc::clone(&self.properties))
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let schema = on.schema();
        let rows = on.input()?.map(move |batch| restored(&batch?, &schema));
        Ok(Box::pin(RecordBatchStreamAdapter::new(on.schema(), rows)))
    }
}

/// The batch with columns of the types in `schema`.
fn restored(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| Ok(cast(column, field.data_type())?));
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns.collect::<Result<_>>()?,
        &options,
    )?)
}
