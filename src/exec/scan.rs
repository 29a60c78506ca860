//! Scan of one input partition without groups: keys go into shards, values without keys into byte strings, and the input of other
//! aggregates into plain accumulators.

use std::time::Instant;

use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
#[cfg(feature = "cuda")]
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::{Count, Time};
use futures::StreamExt;

use super::aggregate::KeyColumn;
use super::collected::CollectedColumn;
use super::expressions::{mask, values};
use super::give_way::give_way;
#[cfg(feature = "cuda")]
use super::on_device::{OpenDevices, is_for_device};
use super::plain::PlainAccumulators;
use crate::failpoint::may_fail;
use crate::threads::Stop;
#[cfg(feature = "cuda")]
use crate::threads::fed;

/// The scan of one input partition, and what it has collected.
pub(super) struct PartitionScan {
    columns: Vec<KeyColumn>,
    /// The collected values of each of `columns`.
    pub(super) collected: Vec<CollectedColumn>,
    pub(super) plain: PlainAccumulators,
    /// Counts the rows read.
    rows: Count,
    /// Count processor time.
    times: [Time; 2],
}

impl PartitionScan {
    /// A scan before its first row, which collects each column of `collected`, and counts rows and processor time.
    pub(super) fn new(
        collected: Vec<(KeyColumn, CollectedColumn)>,
        plain: PlainAccumulators,
        rows: Count,
        times: [Time; 2],
    ) -> Self {
        let (columns, collected) = collected.into_iter().unzip();
        Self {
            columns,
            collected,
            plain,
            rows,
            times,
        }
    }

    /// The scan, sending the columns that a device can select to the device of its partition.
    #[cfg(feature = "cuda")]
    pub(super) fn onto_device(
        mut self,
        devices: &OpenDevices,
        partition: usize,
        memory: &MemoryReservation,
    ) -> Result<Self> {
        let staging = devices.staging(partition, memory.new_empty());
        for (column, collected) in self.columns.iter().zip(&mut self.collected) {
            if is_for_device(column) {
                let memory = memory.new_empty();
                *collected =
                    CollectedColumn::Device(Box::new(devices.column(column, partition, memory, &staging)?));
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
            .collected
            .iter()
            .any(|column| matches!(column, CollectedColumn::Device(_)))
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
        for (column, collected) in self.columns.iter().zip(&mut self.collected) {
            push_column(column, collected, batch)?;
        }
        self.plain.push(batch)?;
        match self.plain.reserve() {
            // Accumulators cannot spill, but the values collected beside them can.
            Err(_) if self.spill()? > 0 => self.plain.reserve(),
            reserved => reserved,
        }
    }

    /// Writes all collected values to disk, since more memory will be wanted soon. Returns the bytes given back.
    fn spill(&mut self) -> Result<usize> {
        let stop = Stop::default();
        let given = self
            .collected
            .iter_mut()
            .map(|column| column.spill(usize::MAX, &stop));
        given.sum()
    }
}

/// Adds the values of a batch to a column.
fn push_column(column: &KeyColumn, collected: &mut CollectedColumn, batch: &RecordBatch) -> Result<()> {
    let Some(filter) = &column.filter else {
        return collected.append(&values(&column.argument, batch)?, None);
    };
    let passed = mask(filter, batch)?;
    if column.argument.downcast_ref::<Column>().is_some() {
        return collected.append(&values(&column.argument, batch)?, Some(&passed));
    }
    // An expression must not see rows that the filter drops: `1 / x` with FILTER (WHERE x <> 0).
    let batch = filter_record_batch(batch, &passed)?;
    collected.append(&values(&column.argument, &batch)?, None)
}
