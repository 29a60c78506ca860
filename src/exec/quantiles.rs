//! The operator behind ungrouped `exact_quantiles`.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::RecordOutput;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

use super::aggregate::{Aggregates, ExecAggregate};
#[cfg(feature = "cuda")]
use super::on_device::{UploadChoice, is_for_device};
use super::operator::{Execution, Operator, Work, at_the_end, comma_separated};
use super::reread::RereadableInput;
use super::run::QuantilesExecution;
use super::run_metrics::RunMetrics;
use super::selection::SelectionContext;
use crate::config::{QuantilesOptions, ReadAgain, StrategyName};

/// Exact quantiles over a whole input, with plain aggregates beside them. The output is one partition of one row.
///
/// Reads each input partition once and in parallel. Keeps the keys of every distinct pair of argument and filter; strings and
/// similar types are kept as bytes. Then rounds over the keys narrow the ranks down. Cost: the scan, the width of the type in bytes
/// for each value, and a few reads of those keys.
///
/// Where the input can be read again ([`ReadAgain`](crate::config::ReadAgain)), keys are counted while it is read, and none are kept but
/// those around the wanted ranks.
///
/// Memory: everything that grows with the input is reserved in the task's pool. Up to two thirds of the pool hold keys and values.
/// Further ones go to files of the task's disk manager, which are removed when the query ends, however it ends. The rounds get up to
/// a third of the pool; if needed, keys in memory are written out to make room for them. With less memory, more rounds run. If the
/// disk manager is disabled, or the pool cannot hold a few hundred KiB for each partition, the query ends with `ResourcesExhausted`.
/// Each value of variable width must fit in memory, and so must the answers.
///
/// With `quantiles.device = 'cuda'`, columns of fixed-width types are sent to the memory of a device as they are read, and are
/// selected there; `EXPLAIN` names them (`on_device`). They take a few MB of page-locked host memory for each partition, and twice
/// their size on the device. They are never spilled: if the device's memory is too small, the query ends with an error.
///
/// Metrics: `input_rows`, `values_kept`, `bytes_held` (in memory after the scan), `spill_count` (files), `spilled_bytes`, `rounds`,
/// `candidates_after_round_<i>`, `scan_time` (processor time), `select_time` (elapsed) and its parts `sample_time`, `count_time` and
/// `extract_time`, and `strategy_<name>`, the number of columns that the strategy selected. Of columns that are selected while they
/// are read also `input_reads`, `sample_time` (elapsed) and `rows_left_out` (rows that their statistics answered for). For types of
/// variable width also `levels` (of prefixes) and `refined_values` (those whose bytes behind a prefix were read too). For columns on a device also those
/// of [`PinnedExec`](super::PinnedExec).
pub type QuantilesExec = Operator<QuantilesWork>;

/// Work of a [`QuantilesExec`]: its aggregates, and the strategy that selects.
#[derive(Debug, Clone)]
pub struct QuantilesWork {
    aggregates: Arc<Aggregates>,
    strategy: StrategyName,
    schema: SchemaRef,
    /// Devices to which columns are sent as they are read, if a device can select them; `None`: the CPU selects.
    #[cfg(feature = "cuda")]
    device: Option<UploadChoice>,
}

impl QuantilesExec {
    /// An operator that computes `aggregates` over `input`. Each becomes one output column, with the name and type in `schema`.
    ///
    /// # Errors
    /// An internal error if `schema` has a different number of columns.
    pub fn try_new(
        input: Arc<dyn ExecutionPlan>,
        aggregates: Vec<ExecAggregate>,
        strategy: StrategyName,
        schema: SchemaRef,
    ) -> Result<Self> {
        if schema.fields().len() != aggregates.len() {
            return internal_err!(
                "{} aggregates for {} output columns",
                aggregates.len(),
                schema.fields().len()
            );
        }
        let work = QuantilesWork {
            aggregates: Arc::new(Aggregates::new(aggregates)),
            strategy,
            schema,
            #[cfg(feature = "cuda")]
            device: None,
        };
        Self::over(work, vec![input])
    }

    /// The operator, sending the columns that a device can select to a device while they are read.
    ///
    /// # Errors
    /// None but internal ones.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_device(self, choice: UploadChoice) -> Result<Self> {
        if !self.work().aggregates.columns.iter().any(is_for_device) {
            return Ok(self);
        }
        let work = QuantilesWork {
            device: Some(choice),
            ..self.work().clone()
        };
        Self::over(work, vec![Arc::clone(self.input())])
    }

    /// The strategy that selects; `auto` decides when the number of values is known.
    pub fn strategy(&self) -> StrategyName {
        self.work().strategy
    }
}

impl QuantilesWork {
    /// The device, and the columns that are sent there, as `EXPLAIN` shows them.
    #[cfg(feature = "cuda")]
    fn device_details(&self) -> String {
        let columns = self.aggregates.columns.iter();
        let sent = comma_separated(columns.filter(|column| is_for_device(column)));
        match &self.device {
            Some(device) => format!(", device={device}, on_device=[{sent}]"),
            None => String::new(),
        }
    }

    #[cfg(not(feature = "cuda"))]
    fn device_details(&self) -> String {
        String::new()
    }
}

impl QuantilesWork {
    /// The input, if it can be read again and the session allows it.
    fn may_read_again(&self, on: &Execution<'_>) -> Option<RereadableInput> {
        let allowed = QuantilesOptions::of(on.context.session_config().options()).read_again;
        if self.strategy != StrategyName::Auto || allowed == ReadAgain::Never {
            return None;
        }
        RereadableInput::of(&on.inputs[0], &on.reading_context(), allowed)
    }
}

impl Work for QuantilesWork {
    fn name(&self) -> &'static str {
        "QuantilesExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        Ok(at_the_end(Arc::clone(&self.schema), 1, &inputs[0]))
    }

    fn details(&self) -> String {
        let (strategy, device) = (self.strategy, self.device_details());
        format!("strategy={strategy}{device}, {}", self.aggregates.details())
    }

    fn tree_details(&self) -> String {
        format!("strategy={}\n{}", self.strategy, self.aggregates.tree_details())
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.aggregates.expressions()
    }

    fn wants_partitions(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let streams = on.partitions()?;
        let run = QuantilesExecution {
            aggregates: Arc::clone(&self.aggregates),
            schema: Arc::clone(&self.schema),
            selection: SelectionContext::new(self.strategy, on.memory(), &on.context),
            input: self.may_read_again(&on),
            metrics: RunMetrics::new(on.metrics),
            #[cfg(feature = "cuda")]
            device: self.device.clone(),
        };
        let baseline = run.metrics.baseline.clone();
        let answer = async move { run.batch(streams).await.record_output(&baseline) };
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            futures::stream::once(answer),
        )))
    }
}
