//! Byte strings one behind the other, in memory and as blocks of a file.
//!
//! ```text
//! chunk   bytes  O s l o B o n n R o m e ...
//!         ends         4       8       12         one a value
//!
//! block   its ends, as they were in the chunk, then its bytes
//! ```

use datafusion::common::{Result, resources_datafusion_err};

use crate::memory::SpillFile;

/// Bytes of a full-grown block, unless one value is larger. A thread needs as much memory to read it.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// Values in memory, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    /// The end of each value in `bytes`.
    ends: Vec<u32>,
}

impl Chunk {
    /// Bytes of memory of a chunk with room for `values` values of `bytes` bytes together.
    pub(crate) const fn memory(bytes: usize, values: usize) -> usize {
        bytes + values * size_of::<u32>()
    }

    /// # Errors
    /// `ResourcesExhausted` if the system gives no memory.
    pub(crate) fn with_capacity(bytes: usize, values: usize) -> Result<Self> {
        let mut chunk = Self::default();
        let reserved = chunk.bytes.try_reserve_exact(bytes);
        let reserved = reserved.and_then(|()| chunk.ends.try_reserve_exact(values));
        reserved.map_err(|error| {
            resources_datafusion_err!("quantiles cannot allocate {bytes} more bytes: {error}")
        })?;
        Ok(chunk)
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    fn start(&self, row: usize) -> usize {
        row.checked_sub(1).map_or(0, |before| self.ends[before] as usize)
    }

    pub(super) fn value(&self, row: usize) -> &[u8] {
        &self.bytes[self.start(row)..self.ends[row] as usize]
    }

    /// All values, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let value = &self.bytes[start..*end as usize];
            start = *end as usize;
            value
        })
    }

    /// Adds a value, for which there must be room.
    pub(crate) fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len() as u32);
    }

    /// Whether a value of `bytes` bytes fits without more memory.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.has_room_for_bytes(bytes) && self.ends.len() < self.ends.capacity()
    }

    pub(super) fn has_room_for_bytes(&self, bytes: usize) -> bool {
        self.bytes.capacity() - self.bytes.len() >= bytes
    }

    /// Makes room for `values` values more.
    pub(super) fn more_values(&mut self, values: usize) {
        self.ends.reserve_exact(values);
    }

    /// Gives back the room that an empty chunk has for more than `values` values.
    pub(super) fn fewer_values(&mut self, values: usize) {
        self.ends.shrink_to(values);
    }

    /// Number of bytes of values that there is memory for.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(super) fn held_bytes(&self) -> usize {
        Self::memory(self.bytes.capacity(), self.ends.capacity())
    }
}

/// The location of a block in its file.
#[derive(Debug, Clone, Copy)]
struct Block {
    offset: u64,
    bytes: u32,
    values: u32,
}

impl Block {
    fn memory(&self) -> usize {
        Chunk::memory(self.bytes as usize, self.values as usize)
    }
}

/// The list of the blocks of some values in a file. Nothing else of these values stays in memory.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    list: Vec<Block>,
}

impl Blocks {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Number of values in a block.
    pub(super) fn values(&self, block: usize) -> usize {
        self.list[block].values as usize
    }

    /// Bytes of memory that the largest block needs to be read.
    pub(super) fn largest(&self) -> usize {
        self.list.iter().map(Block::memory).max().unwrap_or(0)
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.list.capacity() * size_of::<Block>()
    }

    /// Appends the values of a chunk to the file.
    ///
    /// # Errors
    /// Errors of [`SpillFile::append`].
    pub(crate) fn write(&mut self, file: &mut SpillFile, chunk: &Chunk) -> Result<()> {
        let mut first = 0;
        while first < chunk.len() {
            let start = chunk.start(first);
            let rest = chunk.ends[first..].iter().enumerate();
            let fits = |(before, end): &(usize, &u32)| {
                Chunk::memory(**end as usize - start, before + 1) <= BLOCK_BYTES
            };
            let values = rest.take_while(fits).count().max(1);
            let ends = &chunk.ends[first..first + values];
            self.write_block(file, ends, &chunk.bytes[start..chunk.start(first + values)])?;
            first += values;
        }
        Ok(())
    }

    /// Appends one value to the file.
    ///
    /// # Errors
    /// Errors of [`SpillFile::append`].
    pub(crate) fn write_value(&mut self, file: &mut SpillFile, value: &[u8]) -> Result<()> {
        self.write_block(file, &[value.len() as u32], value)
    }

    fn write_block(&mut self, file: &mut SpillFile, ends: &[u32], bytes: &[u8]) -> Result<()> {
        let offset = file.append(bytemuck::cast_slice(ends))?;
        file.append(bytes)?;
        self.list.push(Block {
            offset,
            bytes: bytes.len() as u32,
            values: ends.len() as u32,
        });
        Ok(())
    }

    /// Replaces the values of a chunk by those of a block.
    ///
    /// # Errors
    /// Errors of [`SpillFile::read_at`].
    pub(super) fn read(&self, file: &SpillFile, block: usize, into: &mut Chunk) -> Result<()> {
        let block = self.list[block];
        let (bytes, values) = (block.bytes as usize, block.values as usize);
        into.clear();
        into.ends.reserve_exact(values);
        into.ends.resize(values, 0);
        into.bytes.reserve_exact(bytes);
        into.bytes.resize(bytes, 0);
        file.read_at(block.offset, bytemuck::cast_slice_mut(&mut into.ends))?;
        file.read_at(block.offset + size_of_val(&into.ends[..]) as u64, &mut into.bytes)?;
        // The last value ends where the bytes end.
        let start = into.ends.last().map_or(0, |end| end - block.bytes);
        into.ends.iter_mut().for_each(|end| *end -= start);
        Ok(())
    }
}
