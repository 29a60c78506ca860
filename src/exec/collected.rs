//! The values of a column that one partition's scan has collected.

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::aggregate::KeyColumn;
#[cfg(feature = "cuda")]
use super::on_device::send;
use crate::kernel::byte_strings::ByteStrings;
use crate::kernel::cpu::scan_answer::ScanAnswer;
#[cfg(feature = "cuda")]
use crate::kernel::cuda::ColumnUpload;
use crate::kernel::{Backend, CpuBackend, Shard};
use crate::key::ByteSpec;
use crate::threads::Stop;

/// The collected values of a column in one partition: all that are not NULL and not filtered out.
pub(super) enum CollectedColumn {
    /// As keys, in a shard on the CPU.
    Keys(Box<dyn Shard>),
    /// As byte strings.
    Bytes(ByteSpec, Box<ByteStrings>),
    /// Not kept: the answer to a request, made while they pass by.
    Answered(Box<dyn ScanAnswer>),
    /// On a device, or on their way there.
    #[cfg(feature = "cuda")]
    Device(Box<ColumnUpload>),
}

impl CollectedColumn {
    /// A column without values, on the CPU. Its memory is reserved for the consumer of `memory`.
    pub(super) fn open(column: &KeyColumn, backend: &CpuBackend, memory: MemoryReservation) -> Result<Self> {
        Ok(match &column.bytes {
            None => CollectedColumn::Keys(backend.open(&column.spec, memory)?),
            Some(bytes) => {
                let values = ByteStrings::spilling(memory, backend.disk())?;
                CollectedColumn::Bytes(bytes.clone(), Box::new(values))
            }
        })
    }

    /// Adds the values of the rows where `filter` is true; all if it is `None`.
    pub(super) fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()> {
        match self {
            CollectedColumn::Keys(shard) => shard.append(values, filter),
            CollectedColumn::Bytes(spec, collected) => collected.append(spec, values, filter).map(drop),
            CollectedColumn::Answered(answer) => answer.append(values, filter),
            #[cfg(feature = "cuda")]
            CollectedColumn::Device(upload) => send(upload, values, filter),
        }
    }

    /// Number of values.
    pub(super) fn len(&self) -> u64 {
        match self {
            CollectedColumn::Keys(shard) => shard.len(),
            CollectedColumn::Bytes(_, values) => values.len(),
            CollectedColumn::Answered(answer) => answer.seen().values,
            #[cfg(feature = "cuda")]
            CollectedColumn::Device(upload) => upload.valid(),
        }
    }

    /// Bytes of host memory that the values hold, without what an answer keeps of them.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            CollectedColumn::Keys(shard) => shard.held_bytes(),
            CollectedColumn::Bytes(_, values) => values.held_bytes(),
            CollectedColumn::Answered(_) => 0,
            #[cfg(feature = "cuda")]
            CollectedColumn::Device(_) => 0,
        }
    }

    /// Bytes that a thread needs to read values that are on disk: see [`ByteStrings::reading_bytes`].
    pub(super) fn reading_bytes(&self) -> usize {
        match self {
            CollectedColumn::Keys(_) | CollectedColumn::Answered(_) => 0,
            CollectedColumn::Bytes(_, values) => values.reading_bytes(),
            #[cfg(feature = "cuda")]
            CollectedColumn::Device(_) => 0,
        }
    }

    /// Gives back memory that only further values would need, and returns how many bytes that is.
    pub(super) fn seal(&mut self) -> usize {
        match self {
            CollectedColumn::Keys(shard) => shard.seal(),
            CollectedColumn::Bytes(_, values) => values.seal(),
            CollectedColumn::Answered(_) => 0,
            #[cfg(feature = "cuda")]
            CollectedColumn::Device(_) => 0,
        }
    }

    /// Writes values to disk until `bytes` are given back, as [`Shard::spill`]. Returns the bytes given back.
    pub(super) fn spill(&mut self, bytes: usize, stop: &Stop) -> Result<usize> {
        match self {
            CollectedColumn::Keys(shard) => shard.spill(bytes, stop),
            CollectedColumn::Bytes(_, values) => values.spill(bytes, stop),
            CollectedColumn::Answered(_) => Ok(0),
            #[cfg(feature = "cuda")]
            CollectedColumn::Device(_) => Ok(0),
        }
    }
}
