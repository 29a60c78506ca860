//! Batches for a thread of their own: calls into a device's driver block, and threads of the runtime must not.

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use tokio::sync::mpsc;

use super::blocking;

/// Most batches that wait to be taken.
const WAITING: usize = 4;

/// The batches of streams as they come, for a thread that may block.
#[derive(Debug)]
pub(crate) struct Batches(mpsc::Receiver<RecordBatch>);

impl Iterator for Batches {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        self.0.blocking_recv()
    }
}

/// Calls `take` with all batches of `streams`, one stream after the other, on a thread that may block. When this future
/// is dropped, `take` sees no more batches.
///
/// # Errors
/// The error of a stream; else the error of `take`, which ends the reading.
pub(crate) async fn fed<T: Send + 'static>(
    streams: Vec<SendableRecordBatchStream>,
    take: impl FnOnce(Batches) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, batches) = mpsc::channel(WAITING);
    let read = async move {
        for mut stream in streams {
            while let Some(batch) = stream.next().await {
                let batch = batch?;
                if batch.num_rows() > 0 && sender.send(batch).await.is_err() {
                    // `take` has ended: its error is the reason.
                    return Ok(());
                }
            }
        }
        Ok::<_, DataFusionError>(())
    };
    let (read, taken) = futures::future::join(read, blocking(move || take(Batches(batches)))).await;
    read?;
    taken
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int64Array};
    use datafusion::common::exec_err;
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;

    use super::*;

    fn stream(results: Vec<Result<RecordBatch>>) -> SendableRecordBatchStream {
        let schema = batch(0).schema();
        Box::pin(RecordBatchStreamAdapter::new(
            schema,
            futures::stream::iter(results),
        ))
    }

    fn batch(rows: i64) -> RecordBatch {
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        RecordBatch::try_from_iter([("x", values)]).unwrap()
    }

    #[tokio::test]
    async fn batches_are_taken_on_another_thread() {
        let runtime = std::thread::current().id();
        let streams = || {
            vec![
                stream(vec![Ok(batch(2)), Ok(batch(0))]),
                stream(vec![Ok(batch(3))]),
            ]
        };
        let rows = fed(streams(), move |batches| {
            assert_ne!(std::thread::current().id(), runtime);
            Ok(batches.map(|batch| batch.num_rows()).collect::<Vec<_>>())
        });
        assert_eq!(rows.await.unwrap(), [2, 3]);
        let refused = fed(streams(), |_| exec_err!("refused") as Result<()>).await;
        assert!(refused.unwrap_err().to_string().contains("refused"));
        let broken = vec![stream(vec![Ok(batch(2)), exec_err!("broken")])];
        let broken = fed(broken, |batches| Ok(batches.count())).await;
        assert!(broken.unwrap_err().to_string().contains("broken"));
    }
}
