//! Scans and streams that let other tasks run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, stream};

use super::operator::{Execution, Operator, Work};

/// How long a scan works before it lets other tasks run.
const YIELD_AFTER: Duration = Duration::from_millis(10);

/// Lets other tasks run if the last time was more than 10 ms before, and sets `since` to now if so.
///
/// Without it, a scan of a stream that is always ready would not notice that its query was cancelled.
pub(super) async fn give_way(since: &mut Instant) {
    if since.elapsed() > YIELD_AFTER {
        tokio::task::yield_now().await;
        *since = Instant::now();
    }
}

/// Passes batches on unchanged, and lets other tasks of its thread run after each one that took more than 10 ms.
///
/// A task ends where it lets others run, if its query was cancelled. DataFusion's sources do so once in 128 batches that they
/// give, which is rare for a join that makes thousands of batches of each. It has no metrics.
pub type GiveWayExec = Operator<GiveWayWork>;

/// Work of a [`GiveWayExec`].
#[derive(Debug)]
pub struct GiveWayWork;

impl GiveWayExec {
    /// An operator over `input`.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn try_new(input: Arc<dyn ExecutionPlan>) -> Result<Self> {
        Self::over(GiveWayWork, vec![input])
    }
}

impl Work for GiveWayWork {
    fn name(&self) -> &'static str {
        "GiveWayExec"
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn keeps_statistics(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let start = (on.input()?, Instant::now());
        let batches = stream::unfold(start, |(mut input, mut since)| async move {
            let batch = input.next().await?;
            give_way(&mut since).await;
            Some((batch, (input, since)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(on.schema(), batches)))
    }
}
