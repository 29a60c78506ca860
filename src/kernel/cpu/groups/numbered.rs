//! Keys that stay where a scan put them, each with the number of its group beside it.

use std::sync::Arc;

use datafusion::arrow::buffer::Buffer;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

pub(crate) use super::super::store::BLOCK;
use super::super::store::encode;
use crate::key::{KeySpec, ShardKey, words};
use crate::memory::{FreePages, Pages, reserve};
use crate::threads::Stop;

/// Rows of a full-grown chunk: its keys of 64 bits fill two huge pages.
const CHUNK_ROWS: usize = 1 << 19;

/// Keys of some rows, and the numbers of the rows' groups.
pub(crate) struct Chunk {
    ids: Pages<u16>,
    keys: Pages<u8>,
    capacity: usize,
    len: usize,
    bytes: usize,
}

impl Chunk {
    /// Bytes of memory held, all of them reserved.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn ids(&self) -> &[u16] {
        &self.ids.words()[..self.len]
    }

    /// The keys. `K` is the type that was written.
    pub(crate) fn keys<K: bytemuck::Pod>(&self) -> &[K] {
        bytemuck::cast_slice(&self.keys.words()[..self.len * size_of::<K>()])
    }

    fn bytes<K>(capacity: usize) -> usize {
        capacity * (size_of::<u16>() + size_of::<K>())
    }
}

/// The keys of one column that one scan has read while its groups are few.
pub(crate) struct NumberedKeys {
    pub(crate) chunks: Vec<Chunk>,
    rows: usize,
    reservation: MemoryReservation,
    free: Option<Arc<FreePages>>,
}

impl NumberedKeys {
    pub(crate) fn new(reservation: MemoryReservation, free: Option<Arc<FreePages>>) -> Self {
        Self {
            chunks: Vec::new(),
            rows: 0,
            reservation,
            free,
        }
    }

    /// Adds the words of an array without NULL, with the number of each word's group.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the missing bytes.
    pub(crate) fn append<K: ShardKey>(
        &mut self,
        mut ids: &[u16],
        raw: &Buffer,
        spec: &KeySpec,
    ) -> Result<()> {
        let mut raw = words::<K>(raw);
        while !raw.is_empty() {
            let chunk = match self.chunks.last_mut() {
                Some(chunk) if chunk.len < chunk.capacity => chunk,
                _ => {
                    self.grow::<K>(raw.len())?;
                    continue;
                }
            };
            let taken = raw.len().min(chunk.capacity - chunk.len);
            let range = chunk.len..chunk.len + taken;
            chunk.ids.words_mut()[range.clone()].copy_from_slice(&ids[..taken]);
            let bytes = range.start * size_of::<K>()..range.end * size_of::<K>();
            let keys = bytemuck::cast_slice_mut(&mut chunk.keys.words_mut()[bytes]);
            encode(spec.encoding(), &raw[..taken], keys);
            chunk.len = range.end;
            self.rows += taken;
            (ids, raw) = (&ids[taken..], &raw[taken..]);
        }
        Ok(())
    }

    /// Makes sure that [`Self::append`] of `values` values will ask for no memory.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the missing bytes.
    pub(crate) fn make_room<K: ShardKey>(&mut self, values: usize) -> Result<()> {
        let has = self.chunks.last().map_or(0, |chunk| chunk.capacity - chunk.len);
        if has >= values {
            return Ok(());
        }
        // The rest of the last chunk stays unused.
        self.grow::<K>(values)
    }

    /// Adds a chunk with room for as many keys as there are so far, within bounds.
    fn grow<K>(&mut self, wanted: usize) -> Result<()> {
        let most = CHUNK_ROWS.max(wanted);
        let capacity = self.rows.max(wanted).max(BLOCK).next_power_of_two().min(most);
        let bytes = Chunk::bytes::<K>(capacity);
        reserve(&self.reservation, bytes)?;
        self.chunks.push(Chunk {
            ids: Pages::new(capacity, self.free.as_ref())?,
            keys: Pages::new(capacity * size_of::<K>(), self.free.as_ref())?,
            capacity,
            len: 0,
            bytes,
        });
        Ok(())
    }

    /// Bytes of memory held, all of them reserved.
    pub(crate) fn bytes(&self) -> usize {
        self.reservation.size()
    }

    /// Number of keys held.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The chunks, and the reservation of their memory.
    pub(crate) fn into_parts(self) -> (Vec<Chunk>, MemoryReservation) {
        (self.chunks, self.reservation)
    }
}

/// Keys with the numbers of their groups, read block by block.
pub(crate) trait Numbered<K>: Send + Sync {
    /// Number of keys.
    fn len(&self) -> usize;

    /// Calls `each` with all keys, at most [`BLOCK`] at a time, and the number of each key's group.
    ///
    /// # Errors
    /// When `stop` is set, or when keys cannot be read back from disk.
    fn blocks(&self, stop: &Stop, each: impl FnMut(&[u16], &[K]) -> Result<()>) -> Result<()>;

    /// The key at an index below [`Self::len`].
    ///
    /// # Errors
    /// When the key cannot be read back from disk.
    fn key(&self, at: usize) -> Result<K>;
}

/// A chunk of one scan, and the number that each of the scan's groups has among the groups of all scans.
pub(crate) struct Piece {
    chunk: Chunk,
    /// The final number of each group, by its number in the chunk. `None`: the numbers in the chunk are final.
    map: Option<Arc<[u16]>>,
}

impl Piece {
    pub(crate) fn new(chunk: Chunk, map: &Arc<[u16]>) -> Self {
        let is_final = map.iter().enumerate().all(|(own, id)| own == usize::from(*id));
        Self {
            chunk,
            map: (!is_final).then(|| Arc::clone(map)),
        }
    }
}

impl<K: ShardKey> Numbered<K> for Piece {
    fn len(&self) -> usize {
        self.chunk.len
    }

    fn blocks(&self, stop: &Stop, mut each: impl FnMut(&[u16], &[K]) -> Result<()>) -> Result<()> {
        let mut mapped = [0; BLOCK];
        let blocks = self
            .chunk
            .ids()
            .chunks(BLOCK)
            .zip(self.chunk.keys::<K>().chunks(BLOCK));
        for (ids, keys) in blocks {
            stop.check()?;
            match &self.map {
                None => each(ids, keys)?,
                Some(map) => {
                    for (mapped, id) in mapped.iter_mut().zip(ids) {
                        *mapped = map[usize::from(*id)];
                    }
                    each(&mapped[..ids.len()], keys)?;
                }
            }
        }
        Ok(())
    }

    fn key(&self, at: usize) -> Result<K> {
        Ok(self.chunk.keys::<K>()[at])
    }
}
