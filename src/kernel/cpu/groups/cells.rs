//! Selection in few groups: keys stay where they are, each with the number of its group beside it.
//!
//! A sample gives one cell function for all groups. One read counts (group, cell) pairs, in counters that fit the
//! cache. The counts name the cell of every target rank of every group. A second read takes out the keys of those
//! cells, about one key in fifty, and the ranks are selected among them. A group whose values are distributed
//! differently from the others' only makes that second part larger.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::buffer::Buffer;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

pub(crate) use super::super::store::BLOCK;
use super::super::store::encode;
use super::segments::{GroupAnswers, Plans, Segments, select_ranks};
use crate::cells::classify::{LinearOf, TableOf, TreeOf, number, with_classifier};
use crate::cells::{CellTable, Cells, Edges};
use crate::key::{KeyBits, KeySpec, ShardKey, words};
use crate::memory::{FreePages, Pages, reserve};
use crate::threads::Stop;

/// Rows of a full-grown chunk: its keys of 64 bits fill two huge pages.
const CHUNK_ROWS: usize = 1 << 19;
/// Number of keys that are sampled for the cell function.
const SAMPLE: usize = 1 << 14;
/// Least number of cells of a group, where there are several groups.
pub(crate) const LEAST_CELLS: usize = 64;
/// Number of counters of 32 bits that stay in the second-level cache beside the keys that pass through it.
pub(crate) const COUNTERS: usize = 1 << 17;
/// Most cells of the table that all groups share. Where there are too many groups for that, neighbouring cells are
/// counted together.
const TABLE_CELLS: usize = 1 << 14;

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

/// Most rows that one set of counters can count.
const MOST_COUNTED: u64 = u32::MAX as u64;

/// The cell function that all groups share.
pub(crate) struct Grid {
    cells: Cells,
    /// log2 of the number of neighbouring cells that are counted together.
    shift: u32,
    /// Number of cells of a group.
    width: usize,
    groups: usize,
}

impl Grid {
    /// Most bytes of the sample that [`Self::sampled`] takes.
    pub(crate) fn sample_bytes<K>() -> usize {
        sample_bytes::<K>(SAMPLE)
    }

    /// Chooses cells by a sample of the keys of all pieces, which hold `rows > 0` keys together. There will be about
    /// `counters` counters, or as many as [`LEAST_CELLS`] for each group take.
    ///
    /// # Errors
    /// When keys cannot be read back from disk.
    pub(crate) fn sampled<K: ShardKey>(
        pieces: &[impl Numbered<K>],
        rows: usize,
        groups: usize,
        counters: usize,
    ) -> Result<Self> {
        let lengths = pieces.iter().map(Numbered::len);
        let mut sample = sampled(lengths, rows, SAMPLE, |piece, at| pieces[piece].key(at))?;
        sample.sort_unstable();
        let most = (counters / groups).clamp(LEAST_CELLS, TABLE_CELLS);
        let heavy = most_frequent(&sample) * most > 4 * sample.len();
        let cells = if heavy {
            Cells::Edges(Edges::try_new(edges(&sample, most / 2))?)
        } else {
            Cells::Table(CellTable::from_sample(
                &K::vec(sample),
                TABLE_CELLS.min(4 * most),
            )?)
        };
        let shift = match cells {
            Cells::Edges(_) => 0,
            _ => cells.len().div_ceil(most).next_power_of_two().ilog2(),
        };
        Ok(Self {
            width: cells.len().div_ceil(1 << shift),
            cells,
            shift,
            groups,
        })
    }

    /// Number of counters of one thread.
    pub(crate) fn counters(&self) -> usize {
        self.width * self.groups
    }

    /// Counts the (group, cell) pairs of some pieces, in one or more sets of counters, which are to be added up. A set
    /// counts at most 2^32 - 1 rows.
    ///
    /// # Errors
    /// When `stop` is set.
    pub(crate) fn count<K: ShardKey>(
        &self,
        pieces: &[impl Numbered<K>],
        stop: &Stop,
    ) -> Result<Vec<Vec<u32>>> {
        with_classifier!(&self.cells, K, classify => {
            let mut full = Vec::new();
            let mut counts = vec![0_u32; self.counters()];
            let mut counted = 0;
            let mut numbers = [0; BLOCK];
            for piece in pieces {
                piece.blocks(stop, |ids, keys| {
                    counted += keys.len() as u64;
                    if counted > MOST_COUNTED {
                        full.push(std::mem::replace(&mut counts, vec![0; self.counters()]));
                        counted = keys.len() as u64;
                    }
                    let numbers = &mut numbers[..keys.len()];
                    number(keys, &classify, numbers);
                    for (id, cell) in ids.iter().zip(numbers) {
                        counts[self.slot(*id, *cell)] += 1;
                    }
                    Ok(())
                })?;
            }
            full.push(counts);
            Ok(full)
        })
    }

    #[inline(always)]
    fn slot(&self, group: u16, cell: u16) -> usize {
        usize::from(group) * self.width + usize::from(cell >> self.shift)
    }

    /// The only key of a cell, if the cell can hold no other key.
    fn only_key(&self, cell: usize, spec: &KeySpec) -> Option<KeyBits> {
        let range = (self.shift == 0).then(|| self.cells.range(cell as u32, spec.width()))??;
        (range.first == range.last).then_some(range.first)
    }

    /// The keys of the target cells, each with the number that `wanted` gives its (group, cell) pair.
    ///
    /// # Errors
    /// When `stop` is set; `ResourcesExhausted` if there is no memory for the keys.
    pub(crate) fn extract<K: ShardKey>(
        &self,
        pieces: &[impl Numbered<K>],
        wanted: &TargetCells,
        reservation: &MemoryReservation,
        stop: &Stop,
    ) -> Result<(Vec<u32>, Vec<K>)> {
        with_classifier!(&self.cells, K, classify => {
            let (mut slots, mut taken) = (Vec::new(), Vec::<K>::new());
            let mut numbers = [0; BLOCK];
            let mut chosen = [0_u16; BLOCK];
            for piece in pieces {
                piece.blocks(stop, |ids, keys| {
                    let numbers = &mut numbers[..keys.len()];
                    number(keys, &classify, numbers);
                    let mut len = 0;
                    for (at, (id, cell)) in ids.iter().zip(&*numbers).enumerate() {
                        chosen[len % BLOCK] = at as u16;
                        len += usize::from(wanted.is_set(self.slot(*id, *cell)));
                    }
                    if taken.len() + len > taken.capacity() {
                        let more = taken.capacity().max(BLOCK);
                        reserve(reservation, more * (size_of::<u32>() + size_of::<K>()))?;
                        taken.reserve_exact(more);
                        slots.reserve_exact(more);
                    }
                    for at in &chosen[..len] {
                        let at = usize::from(*at);
                        slots.push(wanted.numbers[self.slot(ids[at], numbers[at])]);
                        taken.push(keys[at]);
                    }
                    Ok(())
                })?;
            }
            Ok((slots, taken))
        })
    }
}

/// Most bytes of a sample of this `size`: see [`sampled`].
pub(super) fn sample_bytes<K>(size: usize) -> usize {
    2 * size * size_of::<K>()
}

/// Samples `size` to twice as many of the `rows` keys of some pieces, which have `lengths` keys; all, if there are fewer. `key` gives
/// the key of a piece at an index.
///
/// # Errors
/// Errors of `key`.
pub(super) fn sampled<K>(
    lengths: impl Iterator<Item = usize>,
    rows: usize,
    size: usize,
    key: impl Fn(usize, usize) -> Result<K>,
) -> Result<Vec<K>> {
    let stride = (rows / size).max(1);
    let (mut sample, mut at) = (Vec::with_capacity(rows.min(2 * size)), stride / 2);
    for (piece, length) in lengths.enumerate() {
        // A step that no period of the data divides evenly.
        while at < length {
            sample.push(key(piece, at)?);
            at += stride - stride / 16 + (sample.len() * 0x9e37_79b9) % (stride / 8 + 1);
        }
        at -= length;
    }
    Ok(sample)
}

/// The number of occurrences of the most frequent key in a sorted sample.
fn most_frequent<K: PartialEq>(sample: &[K]) -> usize {
    sample.chunk_by(|a, b| a == b).map(<[K]>::len).max().unwrap_or(0)
}

/// Ascending splitters at equal shares of a sorted sample. A key that fills more than one share gets a cell of its own.
fn edges<K: ShardKey>(sample: &[K], cells: usize) -> Vec<KeyBits> {
    let share = (sample.len() / cells).max(1);
    let mut edges: Vec<KeyBits> = Vec::new();
    let mut since = 0;
    for run in sample.chunk_by(|a, b| a == b) {
        let key = run[0].to_bits();
        if run.len() > share {
            edges.push(key);
            if run[0] < K::MAX {
                edges.push(key + 1);
            }
            since = 0;
            continue;
        }
        since += run.len();
        if since >= share {
            edges.push(key);
            since = 0;
        }
    }
    edges.dedup();
    edges
}

/// The (group, cell) pairs that hold a target rank.
pub(crate) struct TargetCells {
    /// One bit for each (group, cell) pair: whether it holds a target rank.
    bits: Vec<u64>,
    /// For each pair that holds a target rank: its number among these pairs.
    numbers: Vec<u32>,
    count: usize,
    /// The target ranks in these pairs, ascending: the number of the pair, the rank among the pair's keys (from 1), and
    /// the index into `keys`.
    inside: Vec<(u32, u64, usize)>,
    /// The key of each rank of each group's plan. The keys of ranks in `inside` are not known yet.
    keys: Vec<KeyBits>,
    /// Number of values of each group.
    lengths: Vec<u64>,
}

impl TargetCells {
    /// Finds the target ranks by the counts of all pairs.
    pub(crate) fn new(grid: &Grid, counts: &[u64], plans: &mut Plans, spec: &KeySpec) -> Self {
        let mut wanted = Self {
            bits: vec![0; counts.len().div_ceil(64)],
            numbers: vec![0; counts.len()],
            count: 0,
            inside: Vec::new(),
            keys: Vec::new(),
            lengths: Vec::with_capacity(grid.groups),
        };
        for (group, counts) in counts.chunks(grid.width).enumerate() {
            let n = counts.iter().sum();
            wanted.lengths.push(n);
            if n > 0 {
                wanted.find_ranks(grid, group, counts, &plans.of(n).ranks, spec);
            }
        }
        wanted
    }

    fn find_ranks(&mut self, grid: &Grid, group: usize, counts: &[u64], ranks: &[u64], spec: &KeySpec) {
        let (mut cell, mut below) = (0, 0);
        for rank in ranks {
            while below + counts[cell] < *rank {
                below += counts[cell];
                cell += 1;
            }
            if let Some(key) = grid.only_key(cell, spec) {
                self.keys.push(key);
                continue;
            }
            let slot = group * grid.width + cell;
            if !self.is_set(slot) {
                self.bits[slot / 64] |= 1 << (slot % 64);
                self.numbers[slot] = self.count as u32;
                self.count += 1;
            }
            self.inside
                .push((self.numbers[slot], rank - below, self.keys.len()));
            self.keys.push(0);
        }
    }

    /// Number of pairs that hold a target rank.
    pub(crate) fn pairs(&self) -> usize {
        self.count
    }

    #[inline(always)]
    fn is_set(&self, slot: usize) -> bool {
        self.bits[slot / 64] >> (slot % 64) & 1 == 1
    }

    /// The answers, from the keys of all pairs that hold a target rank.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn answers<K: ShardKey>(
        &self,
        extracted: &[(Vec<u32>, Vec<K>)],
        plans: &mut Plans,
    ) -> Result<GroupAnswers> {
        let mut segments = Segments::default();
        let pieces: Vec<(&[u32], &[K])> = extracted
            .iter()
            .map(|(slots, keys)| (slots.as_slice(), keys.as_slice()))
            .collect();
        segments.fill(self.count, &pieces);
        let mut found = self.keys.clone();
        let mut ranks = Vec::new();
        for ranked in self.inside.chunk_by(|a, b| a.0 == b.0) {
            ranks.clear();
            ranks.extend(ranked.iter().map(|(_, rank, _)| *rank));
            let segment = segments.segment_mut(ranked[0].0 as usize);
            select_ranks(segment, &ranks);
            for (_, rank, index) in ranked {
                let key = segment.get(*rank as usize - 1);
                let key = key.ok_or_else(|| internal_datafusion_err!("a counted key was not extracted"))?;
                found[*index] = key.to_bits();
            }
        }
        self.assemble(&found, plans)
    }

    fn assemble(&self, keys: &[KeyBits], plans: &mut Plans) -> Result<GroupAnswers> {
        let mut answers = GroupAnswers::new(plans.calls());
        let mut rest = keys;
        for &n in &self.lengths {
            if n == 0 {
                answers.add_empty();
                continue;
            }
            let plan = plans.of(n);
            let (keys, others) = rest.split_at(plan.ranks.len());
            rest = others;
            let key_at = |rank: u64| match plan.ranks.binary_search(&rank) {
                Ok(at) => Ok(keys[at]),
                Err(_) => Err(internal_datafusion_err!("rank {rank} was not selected")),
            };
            answers.add(n, &plan, &key_at)?;
        }
        Ok(answers)
    }
}

/// Divides pieces into `threads` contiguous ranges, of about equal numbers of rows.
pub(crate) fn shares<K>(pieces: &[impl Numbered<K>], threads: usize) -> Vec<Range<usize>> {
    let total: usize = pieces.iter().map(Numbered::len).sum();
    let mut shares = Vec::with_capacity(threads);
    let (mut from, mut rows) = (0, 0);
    for (at, piece) in pieces.iter().enumerate() {
        rows += piece.len();
        if rows * threads >= total * (shares.len() + 1) || at + 1 == pieces.len() {
            shares.push(from..at + 1);
            from = at + 1;
        }
    }
    shares
}
