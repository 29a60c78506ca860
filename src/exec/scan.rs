//! One input partition, read once: keys into shards, values without keys into flat chunks, the rest into plain
//! accumulators.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute::{filter_record_batch, prep_null_mask_filter};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::{Count, Time};
use futures::StreamExt;

use super::aggregate::{Aggregates, KeyColumn};
#[cfg(feature = "cuda")]
use super::on_device::{ToDevice, is_for_device, send};
use super::plain::PlainAccumulators;
use crate::failpoint::may_fail;
use crate::kernel::byte_strings::ByteStrings;
#[cfg(feature = "cuda")]
use crate::kernel::cuda::ColumnUpload;
use crate::kernel::{Backend, CpuBackend, Shard};
use crate::key::ByteSpec;
use crate::threads::Stop;
#[cfg(feature = "cuda")]
use crate::threads::fed;

/// A scan gives way to others, and to being cancelled, after so much work.
pub(super) const YIELD: Duration = Duration::from_millis(10);

/// The values of a column that calls may answer with.
pub(super) enum Kept {
    /// As keys.
    Keys(Box<dyn Shard>),
    /// As bytes.
    Bytes(ByteSpec, Box<ByteStrings>),
    /// On a device.
    #[cfg(feature = "cuda")]
    Device(Box<ColumnUpload>),
}

impl Kept {
    fn open(column: &KeyColumn, backend: &CpuBackend, memory: MemoryReservation) -> Result<Self> {
        Ok(match &column.bytes {
            None => Kept::Keys(backend.open(&column.spec, memory)?),
            Some(bytes) => {
                let values = ByteStrings::spilling(memory, backend.disk())?;
                Kept::Bytes(bytes.clone(), Box::new(values))
            }
        })
    }

    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()> {
        match self {
            Kept::Keys(shard) => shard.append(values, filter),
            Kept::Bytes(spec, kept) => kept.append(spec, values, filter).map(drop),
            #[cfg(feature = "cuda")]
            Kept::Device(upload) => send(upload, values, filter),
        }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Kept::Keys(shard) => shard.len(),
            Kept::Bytes(_, values) => values.len(),
            #[cfg(feature = "cuda")]
            Kept::Device(upload) => upload.valid(),
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Kept::Keys(shard) => shard.held_bytes(),
            Kept::Bytes(_, values) => values.held_bytes(),
            #[cfg(feature = "cuda")]
            Kept::Device(_) => 0,
        }
    }

    /// What a thread needs to read values that are on disk: see [`ByteStrings::reading_bytes`].
    pub(super) fn reading_bytes(&self) -> usize {
        match self {
            Kept::Keys(_) => 0,
            Kept::Bytes(_, values) => values.reading_bytes(),
            #[cfg(feature = "cuda")]
            Kept::Device(_) => 0,
        }
    }

    /// Gives back what only further values would need; how many bytes. Shards do so when they are first asked.
    pub(super) fn seal(&mut self) -> usize {
        match self {
            Kept::Keys(_) => 0,
            Kept::Bytes(_, values) => values.seal(),
            #[cfg(feature = "cuda")]
            Kept::Device(_) => 0,
        }
    }

    /// As [`Shard::spill`].
    pub(super) fn spill(&mut self, bytes: usize, stop: &Stop) -> Result<usize> {
        match self {
            Kept::Keys(shard) => shard.spill(bytes, stop),
            Kept::Bytes(_, values) => values.spill(bytes, stop),
            #[cfg(feature = "cuda")]
            Kept::Device(_) => Ok(0),
        }
    }
}

/// What one partition leaves behind.
pub(super) struct PartitionScan {
    columns: Vec<KeyColumn>,
    /// One for each of `columns`.
    pub(super) kept: Vec<Kept>,
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
            .map(|column| Kept::open(column, backend, memory.new_empty()));
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
                *kept = Kept::Device(Box::new(to.column(column, partition, memory, &staging)?));
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
        if self.kept.iter().any(|kept| matches!(kept, Kept::Device(_))) {
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
            // A stream that is always ready would not notice that the query is gone.
            if since.elapsed() > YIELD {
                tokio::task::yield_now().await;
                since = Instant::now();
            }
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

fn push_column(column: &KeyColumn, kept: &mut Kept, batch: &RecordBatch) -> Result<()> {
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

pub(super) fn values(expr: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<ArrayRef> {
    expr.evaluate(batch)?.into_array(batch.num_rows())
}

/// The rows of a batch that a FILTER keeps, without NULLs: a row whose predicate is NULL is left out.
///
/// # Errors
/// The expression's, or a predicate that is not Boolean.
pub(super) fn mask(filter: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<BooleanArray> {
    let mask = values(filter, batch)?;
    let Some(mask) = mask.as_any().downcast_ref::<BooleanArray>() else {
        return exec_err!("FILTER ({filter}) must be Boolean, got {}", mask.data_type());
    };
    Ok(match mask.null_count() {
        0 => BooleanArray::new(mask.values().clone(), None),
        _ => prep_null_mask_filter(mask),
    })
}
