//! Levels behind tied keys. In memory a level is a list of places of its values. Where the values are on disk, or there is no memory
//! for the places, the bytes that follow the key are written to files.

use std::sync::Arc;

use datafusion::common::{Result, resources_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::level::{Level, Subset, TargetRank, WorkChunk, each_value};
use super::{ByteStringSelection, Tie};
use crate::failpoint::may_fail;
use crate::kernel::byte_strings::{At, Blocks, ByteStrings, Chunk, Totals};
use crate::key::PrefixKey;
use crate::memory::Lease;
use crate::memory::SpillFile;
use crate::threads::Stop;

/// Places in one list of a level.
const LIST: usize = 1 << 16;

/// Bytes of the buffers that a thread writes values from, for all keys together, the best first.
const DEALING_BYTES: [usize; 3] = [4 << 20, 1 << 20, super::DEALING_BYTES];

/// Fewest bytes of the buffer for one key, which is the size of a block in the file.
pub(super) const PART_BYTES: usize = 8 << 10;

impl ByteStringSelection {
    /// The level behind each tied key, by one read of this level, or a few. All values of this level begin with `prefix`.
    pub(super) async fn gather<K: PrefixKey>(
        &self,
        level: &Level,
        prefix: &[u8],
        ties: Vec<Tie>,
    ) -> Result<Vec<Level>> {
        may_fail!("value_gather");
        let mut refused = None;
        if !level.values.is_spilled() {
            match self.reserve_places(&ties) {
                Ok(reservations) => {
                    return self.places::<K>(level, prefix.len(), ties, reservations).await;
                }
                Err(error) => refused = Some(error),
            }
        }
        match (&self.disk, refused) {
            (None, Some(error)) => Err(error),
            _ => self.deal::<K>(level, prefix, ties).await,
        }
    }

    /// Memory for the places of the values behind each tied key.
    fn reserve_places(&self, ties: &[Tie]) -> Result<Vec<MemoryReservation>> {
        let bytes = |tie: &Tie| tie.equal as usize * size_of::<At>();
        if let Some(disk) = &self.disk
            && !disk.allows(ties.iter().map(bytes).sum())
        {
            return resources_err!("no memory for the places of values");
        }
        let reservations = ties.iter().map(|tie| {
            let reservation = self.memory.new_empty();
            reservation.try_grow(bytes(tie))?;
            Ok(reservation)
        });
        reservations.collect()
    }

    /// The levels behind tied keys, as places of values in memory.
    async fn places<K: PrefixKey>(
        &self,
        level: &Level,
        common: usize,
        ties: Vec<Tie>,
        reservations: Vec<MemoryReservation>,
    ) -> Result<Vec<Level>> {
        let (values, finder, count) = (Arc::clone(&level.values), Finder::<K>::of(&ties), ties.len());
        let find = move |chunk: WorkChunk, stop: &Stop| {
            let mut found: Vec<Vec<Vec<At>>> = vec![Vec::new(); count];
            each_place(&values, chunk, stop, |at, value| {
                if let Some(tie) = finder.find(K::of(&value[common..])) {
                    append(&mut found[tie], &[at]);
                }
            })?;
            Ok(found)
        };
        let mut lists: Vec<Vec<Vec<At>>> = vec![Vec::new(); ties.len()];
        for chunk in self.pool.map(self.work_chunks(level), find).await? {
            for (lists, found) in lists.iter_mut().zip(chunk) {
                found.iter().for_each(|places| append(lists, places));
            }
        }
        let parts = ties.into_iter().zip(lists).zip(reservations);
        let levels = parts.map(|((tie, lists), reservation)| Level {
            values: Arc::clone(&level.values),
            before: level.before.clone(),
            subset: Subset::Places(lists.into_iter().map(Arc::new).collect()),
            known: common + K::BYTES,
            _reservation: Some(reservation),
            ..level.behind(tie)
        });
        Ok(levels.collect())
    }

    /// The levels behind tied keys, as files of the bytes that follow each key. Each read of the level serves as many keys as there is
    /// memory to write from.
    async fn deal<K: PrefixKey>(&self, level: &Level, prefix: &[u8], ties: Vec<Tie>) -> Result<Vec<Level>> {
        let (_held, bytes) = self.hold_to_deal(level.values.largest_block())?;
        let mut levels = Vec::with_capacity(ties.len());
        let mut ties = ties.into_iter().peekable();
        while ties.peek().is_some() {
            let some: Vec<Tie> = ties.by_ref().take(bytes / PART_BYTES).collect();
            let dealt = self
                .dealt::<K>(level, prefix.len(), &some, bytes / some.len())
                .await?;
            for (tie, values) in some.into_iter().zip(dealt) {
                let key = &K::bytes(tie.key)[..K::BYTES];
                levels.push(Level {
                    before: level.answer(&[prefix, key].concat()),
                    values: Arc::new(values),
                    ..level.behind(tie)
                });
            }
        }
        Ok(levels)
    }

    /// Memory of all threads to read a block of this size and to write from, and the bytes that each thread writes from.
    pub(super) fn hold_to_deal(&self, block: usize) -> Result<(Lease, usize)> {
        let mut refused = None;
        for bytes in DEALING_BYTES {
            let all = (block + bytes) * self.pool.threads();
            match self.round_memory.hold(all, "sorting values out on disk") {
                Ok(held) => return Ok((held, bytes)),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) => Err(error),
            None => resources_err!("no memory to write values from"),
        }
    }

    /// One read of a level: the bytes that follow each key, written from `bytes` bytes of memory for each key and thread.
    async fn dealt<K: PrefixKey>(
        &self,
        level: &Level,
        common: usize,
        ties: &[Tie],
        bytes: usize,
    ) -> Result<Vec<ByteStrings>> {
        let finder = Finder::<K>::of(ties);
        let find = move |value: &[u8]| {
            let tie = finder.find(K::of(&value[common..]))?;
            Some((tie, common + K::BYTES))
        };
        let (chunks, parts) = (self.work_chunks(level), (ties.len(), bytes));
        self.deal_out(&level.values, chunks, parts, find).await
    }

    /// One read of some values, which are written to files by part, from so many bytes of memory for each part and thread. `part_of`
    /// gives the part that a value goes to, if any, and the number of its first bytes that are left out.
    pub(super) async fn deal_out(
        &self,
        values: &Arc<ByteStrings>,
        chunks: Vec<WorkChunk>,
        (parts, bytes): (usize, usize),
        part_of: impl Fn(&[u8]) -> Option<(usize, usize)> + Send + Sync + 'static,
    ) -> Result<Vec<ByteStrings>> {
        let (values, disk) = (Arc::clone(values), self.disk.clone());
        let memory = self.memory.new_empty();
        let deal = move |chunk: WorkChunk, stop: &Stop| {
            may_fail!("value_deal");
            let Some(disk) = &disk else {
                return resources_err!("values cannot be written to disk: spilling is off");
            };
            let file = disk.spiller.create("parts of the values of exact quantiles")?;
            let mut dealer = Dealer::new(file, parts, bytes)?;
            each_value(&values, &chunk, stop, |value| match part_of(value) {
                Some((part, from)) => dealer.push(part, &value[from..]),
                None => Ok(()),
            })?;
            dealer.finish(|| memory.new_empty())
        };
        let mut dealt: Vec<Vec<ByteStrings>> = Vec::new();
        dealt.resize_with(parts, Vec::new);
        for chunk in self.pool.map(chunks, deal).await? {
            for (dealt, part) in dealt.iter_mut().zip(chunk) {
                dealt.push(part);
            }
        }
        Ok(dealt.into_iter().map(ByteStrings::merged).collect())
    }

    /// The values of a level in chunks, one for each thread.
    pub(super) fn work_chunks(&self, level: &Level) -> Vec<WorkChunk> {
        level.work_chunks(self.pool.threads())
    }
}

impl Level {
    /// The level behind a tied key of this level, still without its values.
    fn behind(&self, tie: Tie) -> Level {
        let below = tie.below;
        let targets = tie.targets.into_iter().map(|target| TargetRank {
            rank: target.rank - below,
            ..target
        });
        Level {
            values: Arc::default(),
            before: Vec::new(),
            subset: Subset::All,
            n: tie.equal,
            known: 0,
            depth: self.depth + 1,
            targets: targets.collect(),
            refused: false,
            _reservation: None,
        }
    }
}

/// Calls `each` with the place and the bytes of every value of a chunk that is in memory.
fn each_place(
    values: &ByteStrings,
    chunk: WorkChunk,
    stop: &Stop,
    mut each: impl FnMut(At, &[u8]),
) -> Result<()> {
    match chunk {
        WorkChunk::Pieces(pieces) => {
            for piece in pieces {
                stop.check()?;
                values.placed(piece).for_each(|(at, value)| each(at, value));
            }
        }
        WorkChunk::Places(lists) => {
            for list in lists {
                stop.check()?;
                list.iter().for_each(|at| each(*at, values.value(*at)));
            }
        }
    }
    Ok(())
}

/// Appends places to lists of bounded length.
fn append(lists: &mut Vec<Vec<At>>, places: &[At]) {
    match lists.last_mut() {
        Some(last) if last.len() + places.len() <= LIST => last.extend_from_slice(places),
        _ => lists.push(places.to_vec()),
    }
}

/// A file that values are written to by part. Each block of it holds values of one part.
struct Dealer {
    file: SpillFile,
    parts: Vec<OutputPart>,
}

/// The values of one part.
struct OutputPart {
    /// Values that are not yet written.
    chunk: Chunk,
    blocks: Blocks,
    totals: Totals,
}

impl Dealer {
    /// A file of this number of parts, each written from a buffer of `bytes` bytes.
    fn new(file: SpillFile, parts: usize, bytes: usize) -> Result<Self> {
        // A quarter of the buffer is for the ends of values: enough for values of twelve bytes.
        let ends = bytes / 4 / size_of::<u32>();
        let part = || {
            Ok(OutputPart {
                chunk: Chunk::with_capacity(bytes - Chunk::memory(0, ends), ends)?,
                blocks: Blocks::default(),
                totals: Totals::default(),
            })
        };
        let parts = std::iter::repeat_with(part).take(parts);
        Ok(Self {
            file,
            parts: parts.collect::<Result<_>>()?,
        })
    }

    fn push(&mut self, part: usize, value: &[u8]) -> Result<()> {
        let part = &mut self.parts[part];
        part.totals.add(value);
        if !part.chunk.has_room(value.len()) {
            part.blocks.write(&mut self.file, &part.chunk)?;
            part.chunk.clear();
        }
        if part.chunk.has_room(value.len()) {
            part.chunk.push(value)
        } else {
            part.blocks.write_value(&mut self.file, value)?
        }
        Ok(())
    }

    /// The values of each part, each with a memory reservation of its own.
    fn finish(mut self, memory: impl Fn() -> MemoryReservation) -> Result<Vec<ByteStrings>> {
        for part in &mut self.parts {
            part.blocks.write(&mut self.file, &part.chunk)?;
            part.chunk = Chunk::default();
        }
        let file = Arc::new(self.file);
        let parts = self.parts.into_iter();
        let values =
            parts.map(|part| ByteStrings::written(Arc::clone(&file), part.blocks, part.totals, memory()));
        Ok(values.collect())
    }
}

/// Finds the tied key of a value: a small table of bits rules out most values.
struct Finder<K> {
    keys: Vec<K>,
    bits: Box<[u64; 1 << 10]>,
}

impl<K: PrefixKey> Finder<K> {
    /// A finder of the keys of `ties`, which are ascending.
    fn of(ties: &[Tie]) -> Self {
        let keys: Vec<K> = ties.iter().map(|tie| K::from_bits(tie.key)).collect();
        let mut bits = Box::new([0; 1 << 10]);
        for key in &keys {
            let bit = Self::bit(*key);
            bits[bit >> 6] |= 1 << (bit & 63);
        }
        Self { keys, bits }
    }

    /// Number of a key's bit in the table: the upper 16 bits of a product that depends on every bit of the key.
    fn bit(key: K) -> usize {
        let bits = key.to_bits();
        let mixed = (bits as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (bits >> 64) as u64;
        (mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 48) as usize
    }

    /// Index of the tie with this key.
    fn find(&self, key: K) -> Option<usize> {
        let bit = Self::bit(key);
        if self.bits[bit >> 6] >> (bit & 63) & 1 == 0 {
            return None;
        }
        self.keys.binary_search(&key).ok()
    }
}
