//! One input partition, read once: keys into lanes, the rest into plain accumulators.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::Accumulator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::{Count, Time};
use futures::StreamExt;

use super::aggregate::{Aggregates, KeyColumn, PlainAggregate};
use crate::kernel::{Backend, Lane};

/// What one partition leaves behind.
pub(super) struct PartitionScan {
    columns: Vec<KeyColumn>,
    plain: Vec<PlainAggregate>,
    /// One for each of `columns`.
    pub(super) lanes: Vec<Box<dyn Lane>>,
    /// One for each of `plain`.
    pub(super) accumulators: Vec<Box<dyn Accumulator>>,
    /// For the accumulators; lanes have their own.
    reservation: MemoryReservation,
    rows: Count,
    times: [Time; 2],
}

impl PartitionScan {
    /// Empty lanes and accumulators. Memory is accounted to the consumer of `memory`, processor time to each of
    /// `times`.
    pub(super) fn try_new(
        aggregates: &Aggregates,
        backend: &dyn Backend,
        memory: &MemoryReservation,
        rows: Count,
        times: [Time; 2],
    ) -> Result<Self> {
        let lanes = aggregates
            .columns
            .iter()
            .map(|column| backend.open(&column.spec, memory.new_empty()));
        let accumulators = aggregates
            .plain
            .iter()
            .map(|plain| plain.expr.create_accumulator());
        Ok(Self {
            lanes: lanes.collect::<Result<_>>()?,
            accumulators: accumulators.collect::<Result<_>>()?,
            columns: aggregates.columns.clone(),
            plain: aggregates.plain.clone(),
            reservation: memory.new_empty(),
            rows,
            times,
        })
    }

    /// Reads the whole partition.
    ///
    /// # Errors
    /// The stream's, an expression's, or `ResourcesExhausted` when the pool refuses to grow.
    pub(super) async fn read(mut self, mut stream: SendableRecordBatchStream) -> Result<Self> {
        while let Some(batch) = stream.next().await {
            self.push(&batch?)?;
        }
        Ok(self)
    }

    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let start = Instant::now();
        let pushed = self.push_all(batch);
        self.times.iter().for_each(|time| time.add_elapsed(start));
        pushed
    }

    fn push_all(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows.add(batch.num_rows());
        for (column, lane) in self.columns.iter().zip(&mut self.lanes) {
            push_keys(column, lane.as_mut(), batch)?;
        }
        for (plain, accumulator) in self.plain.iter().zip(&mut self.accumulators) {
            push_values(plain, accumulator.as_mut(), batch)?;
        }
        let held = self.accumulators.iter().map(|accumulator| accumulator.size());
        self.reservation.try_resize(held.sum())
    }
}

fn push_keys(column: &KeyColumn, lane: &mut dyn Lane, batch: &RecordBatch) -> Result<()> {
    let Some(filter) = &column.filter else {
        return lane.append(&values(&column.argument, batch)?, None);
    };
    let kept = mask(filter, batch)?;
    if column.argument.downcast_ref::<Column>().is_some() {
        return lane.append(&values(&column.argument, batch)?, Some(&kept));
    }
    // An expression must not see rows that the filter drops: `1 / x` with FILTER (WHERE x <> 0).
    let batch = filter_record_batch(batch, &kept)?;
    lane.append(&values(&column.argument, &batch)?, None)
}

fn push_values(plain: &PlainAggregate, accumulator: &mut dyn Accumulator, batch: &RecordBatch) -> Result<()> {
    let filtered = match &plain.filter {
        None => None,
        Some(filter) => Some(filter_record_batch(batch, &mask(filter, batch)?)?),
    };
    let batch = filtered.as_ref().unwrap_or(batch);
    let arguments = plain.expr.expressions();
    let arguments = arguments.iter().map(|argument| values(argument, batch));
    accumulator.update_batch(&arguments.collect::<Result<Vec<_>>>()?)
}

pub(super) fn values(expr: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<ArrayRef> {
    expr.evaluate(batch)?.into_array(batch.num_rows())
}

pub(super) fn mask(filter: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<BooleanArray> {
    let mask = values(filter, batch)?;
    mask.as_any()
        .downcast_ref::<BooleanArray>()
        .cloned()
        .ok_or_else(|| exec_datafusion_err!("FILTER ({filter}) must be Boolean, got {}", mask.data_type()))
}
