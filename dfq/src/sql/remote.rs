//! What is seen to while a statement runs on a cluster.

use std::sync::Arc;

use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;

use super::progress::Shown;
#[cfg(feature = "ballista")]
use crate::console::say;

/// How long a statement may stand still on a cluster without a word.
#[cfg(feature = "ballista")]
const STANDSTILL: std::time::Duration = std::time::Duration::from_secs(60);

/// A plan that is about to be executed, on a cluster or in this process, where nothing is to be seen to.
pub(super) struct Remote {
    #[cfg(feature = "ballista")]
    watched: Option<(Arc<datafusion_quantiles::ballista::Watch>, Arc<dyn ExecutionPlan>)>,
}

impl Remote {
    /// Begins to watch the cluster at `url`, if there is one.
    #[cfg(feature = "ballista")]
    pub(super) async fn watch(
        url: Option<&str>,
        plan: &Arc<dyn ExecutionPlan>,
        ctx: &SessionContext,
    ) -> Self {
        // SET and its like give no rows, and run here.
        let url = url.filter(|_| !plan.schema().fields().is_empty());
        let watch = match url {
            Some(url) => datafusion_quantiles::ballista::Watch::start(url, &ctx.copied_config()).await,
            None => None,
        };
        Self {
            watched: watch.map(|watch| (Arc::new(watch), Arc::clone(plan))),
        }
    }

    #[cfg(not(feature = "ballista"))]
    pub(super) async fn watch(
        _url: Option<&str>,
        _plan: &Arc<dyn ExecutionPlan>,
        _ctx: &SessionContext,
    ) -> Self {
        Self {}
    }

    /// Waits until the cluster has lost the statement; without end in one process.
    pub(super) async fn lost(&self) -> DataFusionError {
        #[cfg(feature = "ballista")]
        if let Some((watch, plan)) = &self.watched {
            return watch.run(plan, STANDSTILL, say).await;
        }
        std::future::pending().await
    }

    /// What is shown of the statement while it runs.
    pub(super) fn shown(&self, plan: &Arc<dyn ExecutionPlan>) -> Shown {
        #[cfg(feature = "ballista")]
        if let Some((watch, _)) = &self.watched {
            return Shown::Cluster(Arc::clone(watch));
        }
        Shown::Plan(Arc::clone(plan))
    }

    /// The same rows: the first of them once it is known that no executor was lost on the way.
    #[cfg(feature = "ballista")]
    pub(super) fn checked(&self, stream: SendableRecordBatchStream) -> SendableRecordBatchStream {
        match &self.watched {
            Some((watch, _)) => watch.checked(stream),
            None => stream,
        }
    }

    #[cfg(not(feature = "ballista"))]
    pub(super) fn checked(&self, stream: SendableRecordBatchStream) -> SendableRecordBatchStream {
        stream
    }
}
