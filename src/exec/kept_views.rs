//! Memory that DataFusion's window operators keep behind the views of strings.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayData, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use super::operator::{Execution, Operator, Work};
use super::plain::{allocated, lean};
use crate::kernel::cpu::columns::row_bytes;

/// Passes rows on to a `BoundedWindowAggExec` without `PARTITION BY`, and reserves the bytes behind string and binary views, which that
/// operator keeps to its end.
///
/// It joins each batch with what is left of those before. An array of views that is joined from others has the buffers of all of them, also
/// those that no view points to any more: a window of ten rows keeps the text of all rows before it. With `PARTITION BY` it lets go of them
/// where a partition ends. Besides, four times the rows of the largest batch are reserved, for what becomes of a batch while its window is
/// computed. The query fails with `ResourcesExhausted` if the pool is too small.
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

    fn keeps_order(&self) -> bool {
        true
    }

    fn keeps_statistics(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let mut kept = Kept {
            seen: HashSet::new(),
            bytes: 0,
            largest: 0,
            memory: on.memory(),
        };
        let rows = on.input()?.map(move |batch| kept.pass(&batch?));
        Ok(Box::pin(RecordBatchStreamAdapter::new(on.schema(), rows)))
    }
}

/// Copies of a batch that are in memory at once while a window is computed, at most: the answers for its rows, value by value and as an
/// array, and what operators above make of them.
const COPIES: usize = 4;

/// What a window operator holds of the batches that were passed on to it.
struct Kept {
    /// Addresses of the buffers behind views.
    seen: HashSet<usize>,
    /// Bytes that are [`allocated`] for them.
    bytes: usize,
    /// Bytes of the rows of the largest batch.
    largest: usize,
    memory: MemoryReservation,
}

impl Kept {
    /// The batch, without buffers of which it needs less than half. Memory is reserved for those of its buffers that are new, and for
    /// [`COPIES`] of the largest batch.
    fn pass(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = batch.columns().iter().map(lean).collect::<Result<Vec<_>>>()?;
        let new = columns
            .iter()
            .map(|column| new_bytes(&column.to_data(), &mut self.seen));
        self.bytes += allocated(new.sum());
        self.largest = self.largest.max(columns.iter().map(row_bytes).sum());
        let wanted = self.bytes + COPIES * self.largest;
        self.memory.try_resize(wanted).map_err(|error| {
            error.context(format!(
                "a window over frames keeps the strings of all its rows: {wanted} bytes wanted; \
                 a subquery with arrow_cast(.., 'Utf8') makes strings that it lets go of"
            ))
        })?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(
            batch.schema(),
            columns,
            &options,
        )?)
    }
}

/// Bytes of the buffers behind views, also nested ones, whose addresses are not in `seen`.
fn new_bytes(data: &ArrayData, seen: &mut HashSet<usize>) -> usize {
    let buffers = match data.data_type() {
        DataType::Utf8View | DataType::BinaryView => data.buffers().get(1..).unwrap_or_default(),
        _ => &[],
    };
    let new = buffers
        .iter()
        .filter(|buffer| seen.insert(buffer.as_ptr() as usize));
    let own: usize = new.map(|buffer| buffer.capacity()).sum();
    own + data
        .child_data()
        .iter()
        .map(|child| new_bytes(child, seen))
        .sum::<usize>()
}
