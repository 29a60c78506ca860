//! Where a lane keeps its keys: chunks of encoded keys in memory of its own, or Arrow buffers that somebody else
//! keeps alive anyway (a table in memory), which are encoded block by block as they are read.
//!
//! Copying the keys of a scan costs less than keeping the scan's buffers: the decoder reuses its warm ones, and the
//! chunks lie in pages that are cheap to come by.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::buffer::Buffer;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::dispatch::{Kernel, dispatch};
use super::pages::{FreePages, Pages};
use crate::key::{Encoding, Key, words};

/// Keys that a kernel handles between two looks at the stop flag, and the size of its scratch.
pub(crate) const BLOCK: usize = 4096;

/// Words that are looked at for NaNs, then encoded, while they are in the first-level cache.
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

/// Encodes words to as many keys.
pub(super) fn encode<K: Key>(encoding: Encoding, words: &[K], keys: &mut [K]) {
    dispatch(Encode {
        encoding,
        words,
        keys,
    });
}

/// Bytes of a full-grown chunk: two huge pages.
const CHUNK_BYTES: usize = 4 << 20;

/// A run of keys.
pub(super) enum Chunk<K> {
    /// Encoded, in our own memory.
    Own { pages: Pages<K>, len: usize },
    /// Arrow's words, not yet encoded.
    Shared { raw: Buffer, encoding: Encoding },
}

impl<K: Key> Chunk<K> {
    pub(super) fn len(&self) -> usize {
        match self {
            Chunk::Own { len, .. } => *len,
            Chunk::Shared { raw, .. } => words::<K>(raw).len(),
        }
    }

    /// The keys at `range`, encoded into `scratch` where they are not yet.
    pub(super) fn block<'a>(&'a self, range: Range<usize>, scratch: &'a mut Vec<K>) -> &'a [K] {
        match self {
            Chunk::Own { pages, .. } => &pages.words()[range],
            Chunk::Shared { raw, encoding } => {
                scratch.resize(range.len(), K::default());
                encode(*encoding, &words(raw)[range], scratch);
                scratch
            }
        }
    }

    /// The key at `index`.
    pub(super) fn key(&self, index: usize) -> K {
        match self {
            Chunk::Own { pages, .. } => pages.words()[index],
            Chunk::Shared { raw, encoding } => {
                let mut key = [K::default()];
                encoding.encode(&words(raw)[index..=index], &mut key);
                key[0]
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Chunk::Own { pages, .. } => size_of_val(pages.words()),
            Chunk::Shared { raw, .. } => raw.len(),
        }
    }
}

/// All keys of a lane.
pub(super) struct Store<K> {
    pub(super) chunks: Vec<Chunk<K>>,
    len: u64,
    encoding: Encoding,
    reservation: MemoryReservation,
    free: Option<Arc<FreePages>>,
}

impl<K: Key> Store<K> {
    pub(super) fn new(
        encoding: Encoding,
        reservation: MemoryReservation,
        free: Option<Arc<FreePages>>,
    ) -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
            encoding,
            reservation,
            free,
        }
    }

    /// Memory beside the keys, from where theirs comes from. It is not reserved.
    pub(super) fn pages<T: bytemuck::Pod>(&self, capacity: usize) -> Result<Pages<T>> {
        Pages::new(capacity, self.free.as_ref())
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn reservation(&self) -> &MemoryReservation {
        &self.reservation
    }

    /// Keeps a buffer that others keep too.
    pub(super) fn share(&mut self, raw: Buffer) -> Result<()> {
        reserve(&self.reservation, raw.len())?;
        self.len += words::<K>(&raw).len() as u64;
        self.chunks.push(Chunk::Shared {
            raw,
            encoding: self.encoding,
        });
        Ok(())
    }

    /// Encodes and copies.
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

    /// A new chunk: as large as all before, within bounds, so that small inputs stay small.
    fn grow(&mut self, wanted: usize) -> Result<()> {
        let most = CHUNK_BYTES / size_of::<K>();
        let capacity = (self.len as usize)
            .max(wanted)
            .max(BLOCK)
            .next_power_of_two()
            .min(most);
        reserve(&self.reservation, capacity * size_of::<K>())?;
        self.chunks.push(Chunk::Own {
            pages: self.pages(capacity)?,
            len: 0,
        });
        Ok(())
    }

    /// Moves whole chunks of about `values` keys to a store of their own.
    pub(super) fn split(&mut self, values: u64) -> Option<Store<K>> {
        let (mut chunks, mut len) = (Vec::new(), 0);
        while len < values && self.chunks.len() > 1 {
            let chunk = self.chunks.pop()?;
            // Half a chunk too many is as good as half a chunk too few.
            if len > 0 && len + chunk.len() as u64 / 2 > values {
                self.chunks.push(chunk);
                break;
            }
            len += chunk.len() as u64;
            chunks.push(chunk);
        }
        self.len -= len;
        let reservation = self.reservation.split(chunks.iter().map(Chunk::bytes).sum());
        (len > 0).then_some(Store {
            chunks,
            len,
            encoding: self.encoding,
            reservation,
            free: self.free.clone(),
        })
    }
}

/// Reserves, or says what was wanted.
pub(crate) fn reserve(reservation: &MemoryReservation, bytes: usize) -> Result<()> {
    reservation.try_grow(bytes).map_err(|error| {
        error.context(format!(
            "quantiles keep every key until the answer is known: {bytes} more bytes wanted, {} bytes held",
            reservation.size()
        ))
    })
}
