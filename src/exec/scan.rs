//! One input partition, read once: keys into shards, values without keys into flat chunks, the rest into plain
//! accumulators.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::{Count, Time};
use futures::StreamExt;

use super::aggregate::{Aggregates, KeyColumn};
use super::collected::CollectedColumn;
use super::expressions::{mask, values};
use super::give_way::give_way;
#[cfg(feature = "cuda")]
use super::on_device::{ToDevice, is_for_device};
use super::plain::PlainAccumulators;
use crate::failpoint::may_fail;
use crate::kernel::CpuBackend;
use crate::threads::Stop;
#[cfg(feature = "cuda")]
use crate::threads::fed;

/// What one partition leaves behind.
pub(super) struct PartitionScan {
    columns: Vec<KeyColumn>,
    /// One for each of `columns`.
    pub(super) kept: Vec<CollectedColumn>,
    pub(super) plain: PlainAccumulators,
    rows: Count,
    times: [Time; 2],
}

impl PartitionScan {
    /// Nothing kept yet, and empty accumulators. Memory is accounted to the consumer of `memory`, processor time to each of
    /// `times`.
    pub(super) fn try_new(
        aggregates: &Aggregates,
        backend: &CpuBackend,
        memory: &MemoryReservation,
        rows: Count,
        times: [Time; 2],
    ) -> Result<Self> {
        let kept = aggregates
            .columns
            .iter()
            .map(|column| CollectedColumn::open(column, backend, memory.new_empty()));
        Ok(Self {
            kept: kept.collect::<Result<_>>()?,
            columns: aggregates.columns.clone(),
            plain: PlainAccumulators::try_new(&aggregates.plain, memory.new_empty())?,
            rows,
            times,
        })
    }

    /// Makes the scan send columns that a device can select to the device of its partition.
    #[cfg(feature = "cuda")]
    pub(super) fn onto_device(
        mut self,
        to: &ToDevice,
        partition: usize,
        memory: &MemoryReservation,
    ) -> Result<Self> {
        let staging = to.staging(partition, memory.new_empty());
        for (column, kept) in self.columns.iter().zip(&mut self.kept) {
            if is_for_device(column) {
                let memory = memory.new_empty();
                *kept = CollectedColumn::Device(Box::new(to.column(column, partition, memory, &staging)?));
            }
        }
        Ok(self)
    }

    /// Reads the whole partition.
    ///
    /// # Errors
    /// The stream's, an expression's, or `ResourcesExhausted` when the pool refuses to grow.
    pub(super) async fn read(mut self, mut stream: SendableRecordBatchStream) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if self
            .kept
            .iter()
            .any(|kept| matches!(kept, CollectedColumn::Device(_)))
        {
            let read = fed(vec![stream], move |batches| {
                for batch in batches {
                    self.push(&batch)?;
                }
                Ok(self)
            });
            return read.await;
        }
        let mut since = Instant::now();
        while let Some(batch) = stream.next().await {
            self.push(&batch?)?;
            give_way(&mut since).await;
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
        may_fail!("scan");
        self.rows.add(batch.num_rows());
        for (column, kept) in self.columns.iter().zip(&mut self.kept) {
            push_column(column, kept, batch)?;
        }
        self.plain.push(batch)?;
        match self.plain.reserve() {
            // Accumulators cannot spill, but what is kept beside them can.
            Err(_) if self.spill()? > 0 => self.plain.reserve(),
            reserved => reserved,
        }
    }

    /// Writes all that is kept to disk, since more will be wanted soon; bytes given back.
    fn spill(&mut self) -> Result<usize> {
        let stop = Stop::default();
        let given = self.kept.iter_mut().map(|kept| kept.spill(usize::MAX, &stop));
        given.sum()
    }
}

fn push_column(column: &KeyColumn, kept: &mut CollectedColumn, batch: &RecordBatch) -> Result<()> {
    let Some(filter) = &column.filter else {
        return kept.append(&values(&column.argument, batch)?, None);
    };
    let passed = mask(filter, batch)?;
    if column.argument.downcast_ref::<Column>().is_some() {
        return kept.append(&values(&column.argument, batch)?, Some(&passed));
    }
    // An expression must not see rows that the filter drops: `1 / x` with FILTER (WHERE x <> 0).
    let batch = filter_record_batch(batch, &passed)?;
    kept.append(&values(&column.argument, &batch)?, None)
}
