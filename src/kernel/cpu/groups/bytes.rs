//! Byte strings of rows in order of hash partition. This file does for values of any length what [`runs`](super::runs)
//! does for keys.
//!
//! ```text
//! batch as it comes   lengths 4 2 4 ..   bytes  OsloUlRome..
//! run, by part        lengths 4 4 | 2    bytes  OsloRome | Ul       where the bytes of each part start: 0 8 10
//! ```

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::Array;
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::common::{Result, resources_datafusion_err, resources_err};

use super::super::columns::write;
use super::group_key::HASH_PARTITIONS;
use super::partitioned::{PartitionStarts, Partitioned, Storage};
use crate::key::ByteSpec;
use crate::memory::{FreePages, Pages, SpillFile};
use crate::threads::Stop;

/// Number of values whose lengths are read at a time.
pub(crate) const VALUES: usize = 4096;

/// Bytes of values that are read at a time, unless one value is longer.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// The byte strings of a batch that waits for its run, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct WaitingBytes {
    bytes: Vec<u8>,
    lengths: Vec<u32>,
}

impl WaitingBytes {
    /// Copies the byte strings of the rows of `values` that are set in `kept` (`None`: of all rows).
    ///
    /// # Errors
    /// `ResourcesExhausted` for a value of 4 GiB or more; the errors of [`ByteSpec::each`].
    pub(crate) fn of(spec: &ByteSpec, values: &dyn Array, kept: Option<&BooleanBuffer>) -> Result<Self> {
        let rows = kept.map_or(values.len(), BooleanBuffer::count_set_bits);
        let mut waiting = Self {
            bytes: Vec::new(),
            lengths: Vec::with_capacity(rows),
        };
        spec.each(values, kept, |value| {
            waiting.lengths.push(length(value)?);
            waiting.bytes.extend_from_slice(value);
            Ok(())
        })?;
        waiting.bytes.shrink_to_fit();
        Ok(waiting)
    }

    /// Bytes of memory held. A run will hold as many for these values.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.len() + self.lengths.len() * size_of::<u32>()
    }

    fn values(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.lengths.iter().map(move |length| {
            let end = start + *length as usize;
            let value = &self.bytes[start..end];
            start = end;
            value
        })
    }
}

fn length(value: &[u8]) -> Result<u32> {
    u32::try_from(value.len()).map_err(|_| {
        resources_datafusion_err!(
            "a quantile argument has a value of {} bytes: at most {} are handled",
            value.len(),
            u32::MAX
        )
    })
}

/// Byte strings in order of hash partition.
pub(crate) struct PartitionedBytes {
    lengths: Partitioned,
    /// The offset in bytes at which each hash partition starts, and the end of the last one.
    starts: Box<[u32]>,
    storage: Storage,
}

impl PartitionedBytes {
    /// Bytes of the offsets of all hash partitions. They stay in memory when the values are spilled.
    pub(super) const INDEX_BYTES: usize = (HASH_PARTITIONS + 1) * size_of::<u32>();

    /// Brings the byte strings of `batches` in order of hash partition. Each batch has the hash partition of each of
    /// its values beside it. `indices` has the row index that each value gets, and `starts` the first row index of each
    /// hash partition.
    ///
    /// # Errors
    /// When the system gives no memory; `ResourcesExhausted` if all values take 4 GiB or more.
    pub(super) fn scattered(
        batches: &[(&WaitingBytes, &[u16])],
        starts: &PartitionStarts,
        indices: &[u32],
        free: Option<&Arc<FreePages>>,
    ) -> Result<Self> {
        let lengths = Partitioned::filled::<u32>(starts, free, |out| {
            let mut from = 0;
            for (waiting, _) in batches {
                let to = from + waiting.lengths.len();
                write(&waiting.lengths, &indices[from..to], out);
                from = to;
            }
        })?;
        let all: usize = batches.iter().map(|(waiting, _)| waiting.bytes.len()).sum();
        if u32::try_from(all).is_err() {
            return resources_err!(
                "{all} bytes of quantile values come at a time: at most {} are handled",
                u32::MAX
            );
        }
        let mut byte_starts = vec![0; HASH_PARTITIONS + 1];
        for (waiting, parts) in batches {
            for (length, partition) in waiting.lengths.iter().zip(*parts) {
                byte_starts[usize::from(*partition) + 1] += length;
            }
        }
        for partition in 0..HASH_PARTITIONS {
            byte_starts[partition + 1] += byte_starts[partition];
        }
        let mut next = byte_starts.clone();
        let mut pages = Pages::<u8>::new(all, free)?;
        let out = pages.words_mut();
        for (waiting, parts) in batches {
            // Values of one hash partition come in the order in which their row indices were given out.
            for (value, partition) in waiting.values().zip(*parts) {
                let next = &mut next[usize::from(*partition)];
                let start = *next as usize;
                out[start..start + value.len()].copy_from_slice(value);
                *next += value.len() as u32;
            }
        }
        Ok(Self {
            lengths,
            starts: byte_starts.into(),
            storage: Storage::Memory(pages),
        })
    }

    /// Number of values in a hash partition.
    pub(crate) fn partition_len(&self, partition: usize) -> usize {
        self.lengths.partition_len(partition)
    }

    /// Bytes of all values in a hash partition.
    pub(crate) fn partition_bytes(&self, partition: usize) -> usize {
        (self.starts[partition + 1] - self.starts[partition]) as usize
    }

    /// Moves lengths and values to the end of `file`.
    pub(super) fn spill(&mut self, file: &mut SpillFile) -> Result<()> {
        self.lengths.spill(size_of::<u32>(), file)?;
        let starts = self.starts.windows(2);
        self.storage
            .spill(starts.map(|pair| (pair[1] - pair[0]) as usize), file)
    }

    /// Appends the lengths and the bytes of the values of a hash partition. `file` is the file that they were spilled
    /// to, if they were.
    ///
    /// # Errors
    /// Errors of reading the file.
    pub(crate) fn append_partition(
        &self,
        partition: usize,
        file: Option<&SpillFile>,
        lengths: &mut Vec<u32>,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        self.lengths.append_partition(partition, file, lengths)?;
        let range = self.starts[partition] as usize..self.starts[partition + 1] as usize;
        self.storage.append(&range, range.clone(), file, bytes)
    }

    /// Replaces `lengths` by the lengths, in bytes, of the values in a range of a hash partition.
    ///
    /// # Errors
    /// Errors of reading the file.
    pub(crate) fn lengths(
        &self,
        partition: usize,
        range: Range<usize>,
        file: Option<&SpillFile>,
        lengths: &mut Vec<u32>,
    ) -> Result<()> {
        self.lengths.read(partition, range, file, lengths)
    }
}

/// Reads the values that one run has of a hash partition, from the first to the last, a block at a time.
pub(crate) struct PartitionedBytesReader<'a> {
    values: &'a PartitionedBytes,
    partition: usize,
    file: Option<&'a SpillFile>,
    /// The offset of the next value, in bytes.
    at: usize,
    bytes: Vec<u8>,
}

impl<'a> PartitionedBytesReader<'a> {
    pub(crate) fn new(values: &'a PartitionedBytes, partition: usize, file: Option<&'a SpillFile>) -> Self {
        Self {
            values,
            partition,
            file,
            at: values.starts[partition] as usize,
            bytes: Vec::new(),
        }
    }

    /// Reads the next values, whose lengths in bytes are `lengths`, and calls `each` with the index into `lengths` and
    /// the bytes of each value.
    ///
    /// # Errors
    /// Errors of reading the file and of `each`; an execution error when `stop` is set.
    pub(crate) fn each(
        &mut self,
        lengths: &[u32],
        stop: &Stop,
        mut each: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut first = 0;
        while first < lengths.len() {
            stop.check()?;
            let (mut last, mut bytes) = (first + 1, lengths[first] as usize);
            while last < lengths.len() && bytes + lengths[last] as usize <= READ_BYTES {
                bytes += lengths[last] as usize;
                last += 1;
            }
            self.bytes.clear();
            let range = self.at..self.at + bytes;
            let storage = &self.values.storage;
            storage.append(&range, range.clone(), self.file, &mut self.bytes)?;
            let mut start = 0;
            for (number, length) in lengths.iter().enumerate().take(last).skip(first) {
                let end = start + *length as usize;
                each(number, &self.bytes[start..end])?;
                start = end;
            }
            (self.at, first) = (self.at + bytes, last);
        }
        debug_assert!(self.at <= self.values.starts[self.partition + 1] as usize);
        Ok(())
    }
}
