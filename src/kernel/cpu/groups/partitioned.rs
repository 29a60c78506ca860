//! Integers and bytes in order of hash partition, in memory or in a spill file.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::{Result, internal_err};

use crate::memory::{FreePages, Pages, SpillFile};

/// The index of the first row of each hash partition, and the number of all rows.
#[derive(Debug, Clone)]
pub(super) struct PartitionStarts(Arc<[u32]>);

impl PartitionStarts {
    /// The starts for the number of rows in each hash partition.
    pub(super) fn from_counts(counts: &[u32]) -> Self {
        let mut sum = 0;
        let ends = counts.iter().map(|count| {
            sum += count;
            sum
        });
        Self(std::iter::once(0).chain(ends).collect())
    }

    /// The index of the first row of each hash partition, and the number of all rows.
    pub(super) fn offsets(&self) -> &[u32] {
        &self.0
    }

    /// The indices of the rows of a hash partition.
    pub(super) fn range(&self, partition: usize) -> Range<usize> {
        self.0[partition] as usize..self.0[partition + 1] as usize
    }

    /// Rows of all hash partitions.
    pub(super) fn rows(&self) -> usize {
        self.0.last().map_or(0, |end| *end as usize)
    }
}

/// Plain integers in order of hash partition.
pub(crate) struct Partitioned {
    pub(super) starts: PartitionStarts,
    storage: Storage,
}

/// The storage of integers or bytes.
pub(super) enum Storage {
    Memory(Pages<u8>),
    /// In the spill file of the scan, from this offset in bytes on.
    Disk(u64),
}

impl Storage {
    /// Appends the values of type `T` in a range of indices. `file` is the file that they were spilled to, if they
    /// were.
    pub(super) fn append<T: bytemuck::Pod>(
        &self,
        Range { start, end }: Range<usize>,
        file: Option<&SpillFile>,
        out: &mut Vec<T>,
    ) -> Result<()> {
        let size = size_of::<T>();
        match (self, file) {
            _ if start == end => {}
            (Storage::Memory(pages), _) => {
                out.extend_from_slice(bytemuck::cast_slice(&pages.words()[start * size..end * size]));
            }
            (Storage::Disk(offset), Some(file)) => {
                let from = out.len();
                out.resize(from + (end - start), T::zeroed());
                let bytes = bytemuck::cast_slice_mut(&mut out[from..]);
                file.read_at(offset + (start * size) as u64, bytes)?;
            }
            (Storage::Disk(_), None) => return internal_err!("spilled rows without their file"),
        }
        Ok(())
    }

    /// Moves the first bytes, which are all that was written, to the end of `file`: as many as the hash partitions have, one after the other.
    pub(super) fn spill(
        &mut self,
        partitions: impl Iterator<Item = usize> + Clone,
        file: &mut SpillFile,
    ) -> Result<()> {
        if let Storage::Memory(pages) = self {
            let bytes: usize = partitions.clone().sum();
            let offset = file.append_pieces(&pages.words()[..bytes], partitions)?;
            *self = Storage::Disk(offset);
        }
        Ok(())
    }
}

impl Partitioned {
    /// Values of type `T`, one for each row, which `fill` writes.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(super) fn filled<T: bytemuck::Pod>(
        starts: &PartitionStarts,
        free: Option<&Arc<FreePages>>,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Self> {
        let bytes = starts.rows() * size_of::<T>();
        let mut pages = Pages::new(bytes, free)?;
        fill(bytemuck::cast_slice_mut(&mut pages.words_mut()[..bytes]));
        Ok(Self {
            starts: starts.clone(),
            storage: Storage::Memory(pages),
        })
    }

    /// Appends the values of a hash partition. `T` is the type that was written. `file` is the file that they were
    /// spilled to, if they were.
    pub(crate) fn append_partition<T: bytemuck::Pod>(
        &self,
        partition: usize,
        file: Option<&SpillFile>,
        out: &mut Vec<T>,
    ) -> Result<()> {
        self.storage.append(self.starts.range(partition), file, out)
    }

    /// Replaces `out` by the values in a range of a hash partition. `range` counts from the first row of the hash
    /// partition.
    pub(crate) fn read<T: bytemuck::Pod>(
        &self,
        partition: usize,
        range: Range<usize>,
        file: Option<&SpillFile>,
        out: &mut Vec<T>,
    ) -> Result<()> {
        out.clear();
        let start = self.starts.range(partition).start;
        let range = start + range.start..start + range.end;
        self.storage.append(range, file, out)
    }

    /// Moves the values, of `size` bytes each, to the end of `file`.
    pub(super) fn spill(&mut self, size: usize, file: &mut SpillFile) -> Result<()> {
        let starts = self.starts.offsets().windows(2);
        self.storage
            .spill(starts.map(|pair| (pair[1] - pair[0]) as usize * size), file)
    }

    /// Number of values in a hash partition.
    pub(crate) fn partition_len(&self, partition: usize) -> usize {
        self.starts.range(partition).len()
    }
}

/// Writes each value to its index in `out`, which `indices` gives.
pub(super) fn write<T: Copy>(values: &[T], indices: &[u32], out: &mut [T]) {
    for (value, index) in values.iter().zip(indices) {
        out[*index as usize] = *value;
    }
}
