//! Storage of a shard's keys. There are three kinds of chunks: encoded keys in memory of its own; Arrow buffers that
//! someone else keeps alive anyway (such as a table in memory), which are encoded block by block as they are read; and,
//! where memory is refused, runs of encoded keys in a file.
//!
//! Copying the keys of a scan costs less than keeping the scan's buffers: the decoder reuses its warm buffers, and the
//! memory of the chunks is cheap to get.
//!
//! When memory is refused, the last chunk is written out and used again, over and over. Keys that fitted before stay in
//! memory. Only the rest is written, once, and read once a round.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::buffer::Buffer;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::cells::simd::{Kernel, dispatch};
use crate::key::{Encoding, Key, Width, words};
use crate::memory::{FreePages, Pages, RoundMemory, SpillFile, Spilling, reserve_or_spill, reserve_to_begin};
use crate::threads::Stop;

/// The sources of a shard's memory besides its own reservation.
#[derive(Debug, Clone)]
pub(super) struct ShardMemory {
    pub(super) free: Option<Arc<FreePages>>,
    pub(super) spilling: Option<Spilling>,
    pub(super) round_memory: Arc<RoundMemory>,
}

/// Number of keys that a kernel handles between two checks of the stop flag, and the size of its scratch memory.
pub(crate) const BLOCK: usize = 4096;

/// Number of words that are searched for NaNs, then encoded, while they are in the first-level cache.
const PIECE: usize = 1024;

struct Encode<'a, K> {
    encoding: Encoding,
    words: &'a [K],
    keys: &'a mut [K],
}

impl<K: Key> Kernel for Encode<'_, K> {
    #[inline(always)]
    fn run(self) {
        for (words, keys) in self.words.chunks(PIECE).zip(self.keys.chunks_mut(PIECE)) {
            self.encoding.encode(words, keys);
        }
    }
}

/// Encodes words as keys; both slices have equal lengths.
pub(super) fn encode<K: Key>(encoding: Encoding, words: &[K], keys: &mut [K]) {
    dispatch(Encode {
        encoding,
        words,
        keys,
    });
}

/// Bytes of a full-grown chunk: two huge pages.
const CHUNK_BYTES: usize = 4 << 20;

/// Bytes of the smaller chunk that is requested, as a write buffer, when a whole chunk was refused.
const STAGING_BYTES: usize = 256 << 10;

/// Bytes of one read of a file: they stay in the second-level cache until they are processed.
pub(super) const READ_BYTES: usize = 256 << 10;

/// Bytes between sampled keys from which on they are read from a file one by one.
const FAR_BYTES: u64 = 4096;

/// A run of keys.
pub(super) enum Chunk<K> {
    /// Encoded keys in memory of the store.
    Own { pages: Pages<K>, len: usize },
    /// Arrow's words, which are not encoded yet.
    Shared { raw: Buffer, encoding: Encoding },
    /// Encoded keys in the store's file, from an offset in bytes on.
    Spilled { offset: u64, len: usize },
}

impl<K: Key> Chunk<K> {
    pub(super) fn len(&self) -> usize {
        match self {
            Chunk::Own { len, .. } | Chunk::Spilled { len, .. } => *len,
            Chunk::Shared { raw, .. } => words::<K>(raw).len(),
        }
    }

    /// Bytes of memory that the chunk takes.
    fn bytes(&self) -> usize {
        match self {
            Chunk::Own { pages, .. } => size_of_val(pages.words()),
            Chunk::Shared { raw, .. } => raw.len(),
            Chunk::Spilled { .. } => 0,
        }
    }
}

/// A block of keys, which may be Arrow's words that are not encoded yet.
pub(super) struct WordBlock<'a, K> {
    words: &'a [K],
    /// The encoding of the words; `None`: they are keys.
    encoding: Option<Encoding>,
}

impl<K: Key> WordBlock<'_, K> {
    /// The key at an index of the block.
    #[inline(always)]
    pub(super) fn key(&self, at: usize) -> K {
        let word = self.words[at];
        self.encoding.map_or(word, |encoding| encoding.key(word))
    }
}

/// All keys of a shard.
pub(super) struct Store<K> {
    chunks: Vec<Chunk<K>>,
    len: u64,
    encoding: Encoding,
    reservation: MemoryReservation,
    memory: ShardMemory,
    /// The first chunk of a shard that can spill, reserved from the start. It is also the write buffer when no other
    /// memory is granted.
    spare: Option<Pages<K>>,
    /// The spill file. It is shared once the store is split; no keys are added after that.
    file: Option<Arc<SpillFile>>,
}

impl<K: Key> Store<K> {
    /// # Errors
    /// `ResourcesExhausted` if the pool has not even memory for a write buffer.
    pub(super) fn new(
        encoding: Encoding,
        reservation: MemoryReservation,
        memory: ShardMemory,
    ) -> Result<Self> {
        let mut store = Self {
            chunks: Vec::new(),
            len: 0,
            encoding,
            reservation,
            memory,
            spare: None,
            file: None,
        };
        if store.memory.spilling.is_some() {
            let bytes = BLOCK * size_of::<K>();
            reserve_to_begin(&store.reservation, bytes)?;
            store.spare = Some(store.pages(BLOCK)?);
        }
        Ok(store)
    }

    /// A store of encoded keys of this width, for which someone else has reserved memory.
    pub(super) fn of_keys(raw: Buffer, width: Width, memory: (MemoryReservation, Arc<RoundMemory>)) -> Self {
        let (encoding, len) = (Encoding::Unsigned(width), words::<K>(&raw).len() as u64);
        Self {
            chunks: if len > 0 {
                vec![Chunk::Shared { raw, encoding }]
            } else {
                Vec::new()
            },
            len,
            encoding,
            reservation: memory.0,
            memory: ShardMemory {
                free: None,
                spilling: None,
                round_memory: memory.1,
            },
            spare: None,
            file: None,
        }
    }

    /// Unreserved memory for other data, from the same free pages as that of the keys.
    pub(super) fn pages<T: bytemuck::Pod>(&self, capacity: usize) -> Result<Pages<T>> {
        Pages::new(capacity, self.memory.free.as_ref())
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn memory(&self) -> &ShardMemory {
        &self.memory
    }

    pub(super) fn reservation(&self) -> &MemoryReservation {
        &self.reservation
    }

    /// Whether some keys are in a file.
    pub(super) fn is_spilled(&self) -> bool {
        self.file.is_some()
    }

    /// Keeps a buffer that has other owners too.
    pub(super) fn share(&mut self, raw: Buffer) -> Result<()> {
        if !self.granted(raw.len())? {
            return self.copy(words(&raw));
        }
        self.len += words::<K>(&raw).len() as u64;
        self.chunks.push(Chunk::Shared {
            raw,
            encoding: self.encoding,
        });
        Ok(())
    }

    /// Encodes words and appends the keys.
    pub(super) fn copy(&mut self, mut words: &[K]) -> Result<()> {
        while !words.is_empty() {
            let taken = match self.chunks.last_mut() {
                Some(Chunk::Own { pages, len }) if *len < pages.words().len() => {
                    let free = &mut pages.words_mut()[*len..];
                    let taken = free.len().min(words.len());
                    encode(self.encoding, &words[..taken], &mut free[..taken]);
                    *len += taken;
                    taken
                }
                _ => {
                    self.grow(words.len())?;
                    continue;
                }
            };
            self.len += taken as u64;
            words = &words[taken..];
        }
        Ok(())
    }

    /// Reserves `bytes` for keys. `false` if the pool refuses, but the store can spill.
    fn granted(&self, bytes: usize) -> Result<bool> {
        reserve_or_spill(&self.reservation, self.memory.spilling.as_ref(), bytes)
    }

    /// Makes room for more keys, `needed` if possible: by a new chunk as large as all chunks so far, within bounds, so
    /// that small inputs stay small; or by writing out the last chunk.
    fn grow(&mut self, needed: usize) -> Result<()> {
        if let Some(pages) = self.spare.take_if(|_| self.chunks.is_empty()) {
            self.chunks.push(Chunk::Own { pages, len: 0 });
            return Ok(());
        }
        let most = CHUNK_BYTES / size_of::<K>();
        let capacity = (self.len as usize)
            .max(needed)
            .max(BLOCK)
            .next_power_of_two()
            .min(most);
        let staging = STAGING_BYTES / size_of::<K>();
        let small =
            !matches!(self.chunks.last(), Some(Chunk::Own { pages, .. }) if pages.words().len() >= staging);
        for capacity in [capacity, staging.min(capacity)]
            .into_iter()
            .take(1 + usize::from(small))
        {
            if self.granted(capacity * size_of::<K>())? {
                let pages = self.pages(capacity)?;
                self.chunks.push(Chunk::Own { pages, len: 0 });
                return Ok(());
            }
        }
        self.write_last()
    }

    /// Writes the last chunk out and empties it, or begins with the spare one.
    fn write_last(&mut self) -> Result<()> {
        // Buffers with other owners may come after it.
        let own = self
            .chunks
            .iter()
            .rposition(|chunk| matches!(chunk, Chunk::Own { .. }));
        let pages = match own.map(|own| self.chunks.remove(own)) {
            Some(Chunk::Own { pages, len }) => {
                self.write(&pages.words()[..len])?;
                pages
            }
            _ => {
                let spare = self.spare.take();
                spare.ok_or_else(|| {
                    internal_datafusion_err!("a shard that spills has nothing to write from")
                })?
            }
        };
        self.chunks.push(Chunk::Own { pages, len: 0 });
        Ok(())
    }

    /// Appends keys to the file, and the chunk for them.
    fn write(&mut self, keys: &[K]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let spilling = self.memory.spilling.as_ref();
                let spilling = spilling.ok_or_else(|| internal_datafusion_err!("a shard cannot spill"))?;
                none.insert(Arc::new(spilling.spiller.create("keys of exact quantiles")?))
            }
        };
        let file = Arc::get_mut(file)
            .ok_or_else(|| internal_datafusion_err!("keys are added to a shard that was split"))?;
        let offset = file.append(bytemuck::cast_slice(keys))?;
        self.push_spilled(offset, keys.len());
        Ok(())
    }

    fn push_spilled(&mut self, offset: u64, len: usize) {
        match self.chunks.last_mut() {
            Some(Chunk::Spilled {
                offset: start,
                len: before,
            }) if *start + (*before * size_of::<K>()) as u64 == offset => {
                *before += len;
            }
            _ => self.chunks.push(Chunk::Spilled { offset, len }),
        }
    }

    /// Writes keys in memory to the file until `needed` bytes are given back, or all of them. Returns the bytes given
    /// back. More keys can follow.
    pub(super) fn spill(&mut self, needed: usize, stop: &Stop) -> Result<usize> {
        if self.memory.spilling.is_none() {
            return Ok(0);
        }
        let before = self.reservation.size();
        let mut scratch = Vec::new();
        for chunk in std::mem::take(&mut self.chunks) {
            stop.check()?;
            let bytes = chunk.bytes();
            match chunk {
                chunk if before - self.reservation.size() >= needed => {
                    self.chunks.push(chunk);
                    continue;
                }
                Chunk::Spilled { offset, len } => self.push_spilled(offset, len),
                Chunk::Own { pages, len } => {
                    self.write(&pages.words()[..len])?;
                    if pages.words().len() == BLOCK && self.spare.is_none() {
                        self.spare = Some(pages);
                        continue;
                    }
                }
                Chunk::Shared { raw, encoding } => {
                    for words in words(&raw).chunks(READ_BYTES / size_of::<K>()) {
                        scratch.resize(words.len(), K::default());
                        encode(encoding, words, &mut scratch);
                        self.write(&scratch)?;
                    }
                }
            }
            self.reservation.shrink(bytes);
        }
        Ok(before - self.reservation.size())
    }

    /// Gives back the memory that only further keys would need. Returns its bytes.
    pub(super) fn seal(&mut self) -> usize {
        let bytes = self.spare.take().map_or(0, |spare| size_of_val(spare.words()));
        self.reservation.shrink(bytes);
        bytes
    }

    /// Moves chunks of about `values` keys to a store of their own. Chunks in memory are moved as a whole, runs in the
    /// file are split.
    pub(super) fn split(&mut self, values: u64) -> Option<Store<K>> {
        self.seal();
        let (mut chunks, mut len) = (Vec::new(), 0);
        while len < values {
            let only = self.chunks.len() == 1;
            let missing = usize::try_from(values - len).unwrap_or(usize::MAX);
            let chunk = match self.chunks.pop()? {
                Chunk::Spilled { offset, len } if len > missing => {
                    let kept = len - missing;
                    self.chunks.push(Chunk::Spilled { offset, len: kept });
                    let offset = offset + (kept * size_of::<K>()) as u64;
                    Chunk::Spilled { offset, len: missing }
                }
                // After the first one, a chunk is moved only if at least half of it is needed.
                chunk if only || len > 0 && chunk.len() / 2 > missing => {
                    self.chunks.push(chunk);
                    break;
                }
                chunk => chunk,
            };
            len += chunk.len() as u64;
            chunks.push(chunk);
        }
        self.len -= len;
        let reservation = self.reservation.split(chunks.iter().map(Chunk::bytes).sum());
        (len > 0).then(|| Store {
            chunks,
            len,
            encoding: self.encoding,
            reservation,
            memory: self.memory.clone(),
            spare: None,
            file: self.file.clone(),
        })
    }

    /// Calls `each` with all keys, a block at a time, and the range of the block's indices among all keys.
    ///
    /// # Errors
    /// When `stop` is set; errors of `each`, and of reading the file.
    pub(super) fn each_block(
        &self,
        stop: &Stop,
        mut each: impl FnMut(&[K], Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut keys = Vec::with_capacity(BLOCK);
        self.each_words(stop, |block, range| match block.encoding {
            None => each(block.words, range),
            Some(encoding) => {
                keys.resize(block.words.len(), K::default());
                encode(encoding, block.words, &mut keys);
                each(&keys, range)
            }
        })
    }

    /// Calls `each` as [`Self::each_block`] does, with keys that are not encoded yet where the store has none but words.
    ///
    /// # Errors
    /// Those of [`Self::each_block`].
    pub(super) fn each_words(
        &self,
        stop: &Stop,
        mut each: impl FnMut(WordBlock<'_, K>, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        let mut each = |words: &[K], encoding: Option<Encoding>| {
            stop.check()?;
            let start = at;
            at += words.len();
            each(WordBlock { words, encoding }, start..at)
        };
        let mut scratch = Vec::new();
        for chunk in &self.chunks {
            match chunk {
                Chunk::Own { pages, len } => {
                    let mut blocks = pages.words()[..*len].chunks(BLOCK);
                    blocks.try_for_each(|keys| each(keys, None))?;
                }
                Chunk::Shared { raw, encoding } => {
                    let mut blocks = words(raw).chunks(BLOCK);
                    blocks.try_for_each(|words| each(words, Some(*encoding)))?;
                }
                Chunk::Spilled { offset, len } => {
                    for start in (0..*len).step_by(READ_BYTES / size_of::<K>()) {
                        scratch.resize((*len - start).min(READ_BYTES / size_of::<K>()), K::default());
                        self.read(*offset, start, &mut scratch)?;
                        let mut blocks = scratch.chunks(BLOCK);
                        blocks.try_for_each(|keys| each(keys, None))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads keys from the file: keys of the run at `offset` bytes, from its key `start` on.
    fn read(&self, offset: u64, start: usize, keys: &mut [K]) -> Result<()> {
        let file = self.file.as_ref();
        let file = file.ok_or_else(|| internal_datafusion_err!("spilled keys without a file"))?;
        let offset = offset + (start * size_of::<K>()) as u64;
        file.read_at(offset, bytemuck::cast_slice_mut(keys))
    }

    /// The keys at ascending positions. `count` is about the number of positions.
    ///
    /// # Errors
    /// Errors of [`Store::each_block`].
    pub(super) fn keys_at(
        &self,
        positions: impl Iterator<Item = u64>,
        count: u64,
        stop: &Stop,
    ) -> Result<Vec<K>> {
        let far = self.len / count.max(1) * size_of::<K>() as u64 > FAR_BYTES;
        let ahead = if far { 1 } else { READ_BYTES / size_of::<K>() };
        let mut chunks = self.chunks.iter();
        let (mut chunk, mut start, mut end) = (None, 0, 0);
        let mut keys = Vec::with_capacity(count as usize);
        // The keys that were last read from the file, and the index in the run of the first of them.
        let (mut window, mut first) = (Vec::new(), 0);
        for position in positions {
            stop.check()?;
            while position >= end {
                let Some(next) = chunks.next() else {
                    return Ok(keys);
                };
                (chunk, start, end) = (Some(next), end, end + next.len() as u64);
                window.clear();
            }
            let at = (position - start) as usize;
            keys.push(match chunk {
                None => continue,
                Some(Chunk::Own { pages, .. }) => pages.words()[at],
                Some(Chunk::Shared { raw, encoding }) => encoding.key(words(raw)[at]),
                Some(Chunk::Spilled { offset, len }) => {
                    if at >= first + window.len() || window.is_empty() {
                        window.resize(ahead.min(len - at), K::default());
                        self.read(*offset, at, &mut window)?;
                        first = at;
                    }
                    window[at - first]
                }
            });
        }
        Ok(keys)
    }
}
