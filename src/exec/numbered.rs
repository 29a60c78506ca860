//! Numbers of rows between two steps on many machines: a row that is delivered twice is an error.
//!
//! ```text
//! partial step:  rows | number   ── exchange ──>   final step: each number once, then the rows without it
//! ```
//! Rows that never arrive are not noticed.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use crate::functions::{Merged, Numbers};

/// Name of the column of row numbers, which is the last column.
const NUMBER: &str = "quantiles.number";

/// The schema with a column of row numbers added.
pub(super) fn numbered(schema: &SchemaRef) -> SchemaRef {
    let number = Arc::new(Field::new(NUMBER, DataType::UInt64, false));
    let fields = schema.fields().iter().cloned().chain([number]);
    let metadata = schema.metadata().clone();
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), metadata))
}

/// The schema without its column of row numbers.
///
/// # Errors
/// An execution error if it has none.
pub(super) fn unnumbered(schema: &SchemaRef) -> Result<SchemaRef> {
    match schema.fields().split_last() {
        Some((last, fields)) if last.name() == NUMBER && *last.data_type() == DataType::UInt64 => {
            let metadata = schema.metadata().clone();
            Ok(Arc::new(Schema::new_with_metadata(fields.to_vec(), metadata)))
        }
        _ => exec_err!("rows of a partial step without their numbers"),
    }
}

/// The rows, each with a number that no other row of any partition has.
pub(super) fn with_numbers(rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let (schema, mut numbers) = (numbered(&rows.schema()), Numbers::default());
    let rows = rows.map(move |batch| {
        let batch = batch?;
        let mut columns = batch.columns().to_vec();
        columns.push(numbers.take(batch.num_rows()));
        Ok(RecordBatch::try_new(numbered(batch.schema_ref()), columns)?)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// The rows without their numbers; an execution error in place of a row that has come before. `memory` grows by one bit a number,
/// even beyond the limit of the pool: operators that can spill will give way.
///
/// # Errors
/// As for [`unnumbered`].
pub(super) fn each_once(
    rows: SendableRecordBatchStream,
    memory: MemoryReservation,
) -> Result<SendableRecordBatchStream> {
    let (schema, mut merged) = (unnumbered(&rows.schema())?, Merged::default());
    let columns: Vec<usize> = (0..schema.fields().len()).collect();
    let rows = rows.map(move |batch| {
        let batch = batch?;
        match batch.columns().get(columns.len()) {
            Some(numbers) => merged.add(numbers.as_ref())?,
            None => return exec_err!("rows of a partial step without their numbers"),
        }
        memory.resize(merged.size());
        Ok(batch.project(&columns)?)
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, Int64Array};
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
    use futures::TryStreamExt;

    use super::*;
    use crate::functions::DELIVERED_TWICE;

    fn batches(rows: &[i64]) -> Vec<RecordBatch> {
        let batch = |rows: &[i64]| {
            let rows: ArrayRef = Arc::new(Int64Array::from(rows.to_vec()));
            RecordBatch::try_from_iter([("x", rows)]).unwrap()
        };
        rows.chunks(3).map(batch).collect()
    }

    fn stream(batches: &[RecordBatch]) -> SendableRecordBatchStream {
        let (schema, owned) = (batches[0].schema(), batches.to_vec());
        let rows = futures::stream::iter(owned.into_iter().map(Ok));
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }

    #[tokio::test]
    async fn rows_are_read_once_and_their_numbers_are_reserved() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(8));
        let reserved = || MemoryConsumer::new("numbers").register(&pool);
        let parts = [batches(&[1, 2, 3, 4, 5]), batches(&[6, 7]), batches(&[1])];
        let mut sent = Vec::new();
        for part in &parts {
            let numbered = with_numbers(stream(part)).try_collect::<Vec<_>>().await;
            sent.extend(numbered.unwrap());
        }
        let rows = each_once(stream(&sent), reserved()).unwrap();
        let found = rows
            .inspect_ok(|_| assert!(pool.reserved() > 8))
            .try_collect::<Vec<_>>()
            .await
            .unwrap();
        assert_eq!(found, parts.concat());
        assert_eq!(pool.reserved(), 0);
        for again in 0..sent.len() {
            let mut twice = sent.clone();
            twice.push(sent[again].slice(sent[again].num_rows() - 1, 1));
            let rows = each_once(stream(&twice), reserved()).unwrap();
            let error = rows.try_collect::<Vec<_>>().await.unwrap_err().to_string();
            assert!(error.contains(DELIVERED_TWICE), "{error}");
        }
        assert!(each_once(stream(&parts[0]), reserved()).is_err());
    }
}
