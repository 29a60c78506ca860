//! Memory that DataFusion's window operators keep behind the views of strings.

use std::sync::Arc;

use datafusion::arrow::array::{Array, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::StreamExt;

use super::operator::{Execution, Operator, Work};
use super::plain::lean;
use crate::kernel::cpu::columns::behind_views;

/// Passes rows on to an operator that joins each batch with what is left of those before, as `BoundedWindowAggExec` does, and reserves
/// the bytes behind string and binary views, which that operator keeps to its end.
///
/// An array of views that is joined from others has the buffers of all of them, also those that no view points to any more. So a
/// window of ten rows keeps the text of all rows before it. It fails with `ResourcesExhausted` if the pool is too small.
///
/// It is planned if the memory pool has a limit. It has no metrics.
pub type KeptViewsExec = Operator<KeptViewsWork>;

/// Work of a [`KeptViewsExec`].
#[derive(Debug)]
pub struct KeptViewsWork;

impl KeptViewsExec {
    /// An operator over `input`; `None` if it has no columns of views, also nested ones.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn try_new(input: Arc<dyn ExecutionPlan>) -> Result<Option<Self>> {
        match has_views(&input.schema()) {
            true => Self::over(KeptViewsWork, vec![input]).map(Some),
            false => Ok(None),
        }
    }
}

fn has_views(schema: &Schema) -> bool {
    fn is_of_views(data_type: &DataType) -> bool {
        match data_type {
            DataType::Utf8View | DataType::BinaryView => true,
            DataType::Struct(fields) => fields.iter().any(|field| is_of_views(field.data_type())),
            DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
                is_of_views(field.data_type())
            }
            DataType::Map(field, _) => is_of_views(field.data_type()),
            DataType::Dictionary(_, values) => is_of_views(values),
            _ => false,
        }
    }
    schema.fields().iter().any(|field| is_of_views(field.data_type()))
}

impl Work for KeptViewsWork {
    fn name(&self) -> &'static str {
        "KeptViewsExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        Ok(Arc::clone(inputs[0].properties()))
    }

    fn details(&self) -> String {
        String::new()
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn keeps_statistics(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let memory = on.memory();
        let rows = on.input()?.map(move |batch| kept(&batch?, &memory));
        Ok(Box::pin(RecordBatchStreamAdapter::new(on.schema(), rows)))
    }
}

/// The batch with views of its own bytes alone, for which memory is reserved.
fn kept(batch: &RecordBatch, memory: &MemoryReservation) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(lean).collect::<Result<Vec<_>>>()?;
    let bytes: usize = columns.iter().map(|column| behind_views(&column.to_data())).sum();
    memory.try_grow(bytes).map_err(|error| {
        error.context(format!(
            "a window over frames keeps the strings of all its rows: {} bytes wanted; \
             arrow_cast(.., 'Utf8') makes strings that it lets go of",
            memory.size() + bytes
        ))
    })?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(
        batch.schema(),
        columns,
        &options,
    )?)
}
