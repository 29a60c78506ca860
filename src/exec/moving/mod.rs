//! Quantiles over window frames that move.
//!
//! ```text
//! sorted batches ─> columns of the rows that frames still need ─> frames that are complete ─┬─ chunk of frames: rank its rows, answer ─┐
//!                                                                                           ├─ chunk of frames, on another thread ─────┼─> batches
//!                                                                                           └─ ..                                      ─┘
//! ```
//! DataFusion's operators ask for one row's answer after the other. Here the frames of many rows are known at once, so they are shared
//! among threads, and the rows of each chunk are ranked once ([`kernel::cpu::moving`](crate::kernel::cpu::moving)).

mod frames;
mod rows;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::{OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{Distribution, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, TryStreamExt};

use self::rows::MovingRows;
use super::operator::{Execution, Operator, Work};
use super::replaced_window::ReplacedWindow;
use crate::functions::MovingCall;

/// Adds exact quantiles of window frames to its input's rows, which are sorted by `PARTITION BY` and `ORDER BY`. Its rows, their order and
/// the answers are those of DataFusion's operators with the same functions.
///
/// It holds the rows that open frames need, reserves memory for them, and fails with `ResourcesExhausted` if the pool is too small. The
/// threads of a query are shared among its partitions. Metrics: `output_rows`, `elapsed_compute`.
pub type MovingQuantilesExec = Operator<MovingWork>;

/// Work of a [`MovingQuantilesExec`]: the calls of the operator that it replaces.
#[derive(Debug)]
pub struct MovingWork {
    replaced: ReplacedWindow,
    calls: Arc<[MovingCall]>,
}

impl MovingQuantilesExec {
    /// An operator that replaces `window`; `None` unless that is a window operator of DataFusion whose calls are all quantiles over moving
    /// frames.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn try_new(window: Arc<dyn ExecutionPlan>) -> Result<Option<Self>> {
        let bounded = window.downcast_ref::<BoundedWindowAggExec>();
        let whole = window.downcast_ref::<WindowAggExec>();
        let (exprs, input) = match (bounded, whole) {
            (Some(window), _) => (window.window_expr().to_vec(), Arc::clone(window.input())),
            (_, Some(window)) => (window.window_expr().to_vec(), Arc::clone(window.input())),
            _ => return Ok(None),
        };
        let schema = input.schema();
        let calls = exprs.iter().map(|expr| MovingCall::of(expr.as_ref(), &schema));
        let Some(calls) = calls.collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let work = MovingWork {
            replaced: ReplacedWindow::new(window, exprs),
            calls: calls.into(),
        };
        Self::over(work, vec![input]).map(Some)
    }
}

impl Work for MovingWork {
    fn name(&self) -> &'static str {
        "MovingQuantilesExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        self.replaced.properties(inputs)
    }

    fn details(&self) -> String {
        self.replaced.details()
    }

    fn tree_details(&self) -> String {
        self.replaced.tree_details()
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.replaced.expressions()
    }

    fn distribution(&self, _inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        self.replaced.distribution()
    }

    fn wanted_order(&self) -> Option<OrderingRequirements> {
        self.replaced.wanted_order()
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let baseline = BaselineMetrics::new(on.metrics, on.partition);
        let partitions = on.inputs[0].output_partitioning().partition_count();
        let threads = on.context.session_config().target_partitions() / partitions.max(1);
        let rows = MovingRows::new(
            self.replaced.exprs()[0].as_ref(),
            Arc::clone(&self.calls),
            &on,
            threads.max(1),
            baseline.clone(),
        )?;
        let batches = futures::stream::try_unfold(rows, |mut rows| async move {
            Ok(rows.next().await?.map(|batch| (batch, rows)))
        });
        let batches = batches.map(move |batch| batch.record_output(&baseline));
        let batches = RecordBatchStreamAdapter::new(on.schema(), batches.into_stream());
        Ok(make_cooperative(Box::pin(batches)))
    }
}
