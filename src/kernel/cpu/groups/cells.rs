//! Selection in few groups: keys stay where they are, each with the number of its group beside it.
//!
//! A sample gives one cell function for all groups. One read counts (group, cell) pairs, in counters that fit the
//! cache. The counts name the cell of every target rank of every group. A second read takes out the keys of those
//! cells, about one key in fifty, and the ranks are selected among them. A group whose values are distributed
//! differently from the others' only makes that second part larger.

use std::ops::Range;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::super::store::BLOCK;
use super::numbered::Numbered;
use super::segments::{GroupAnswers, Plans, Segments, select_ranks};
use crate::cells::classify::{LinearOf, TableOf, TreeOf, number, with_classifier};
use crate::cells::{CellTable, Cells, Edges};
use crate::key::{KeyBits, KeySpec, ShardKey};
use crate::memory::reserve;
use crate::threads::Stop;

/// Number of keys that are sampled for the cell function.
const SAMPLE: usize = 1 << 14;
/// Least number of cells of a group, where there are several groups.
pub(crate) const LEAST_CELLS: usize = 64;
/// Number of counters of 32 bits that stay in the second-level cache beside the keys that pass through it.
pub(crate) const COUNTERS: usize = 1 << 17;
/// Most cells of the table that all groups share. Where there are too many groups for that, neighbouring cells are
/// counted together.
const TABLE_CELLS: usize = 1 << 14;

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
    /// Number of keys in each pair that holds a target rank.
    sizes: Vec<u64>,
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
            sizes: Vec::new(),
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
                self.numbers[slot] = self.sizes.len() as u32;
                self.sizes.push(counts[cell]);
            }
            self.inside
                .push((self.numbers[slot], rank - below, self.keys.len()));
            self.keys.push(0);
        }
    }

    /// Number of pairs that hold a target rank.
    pub(crate) fn pairs(&self) -> usize {
        self.sizes.len()
    }

    /// Divides the pairs that hold a target rank into at most `threads` ranges, of about equal numbers of keys.
    pub(crate) fn shares(&self, threads: usize) -> Vec<Range<usize>> {
        equal_shares(self.sizes.iter().copied(), threads)
    }

    #[inline(always)]
    fn is_set(&self, slot: usize) -> bool {
        self.bits[slot / 64] >> (slot % 64) & 1 == 1
    }

    /// The keys of the target ranks in some pairs, each with its index among the keys of all ranks. `extracted`: the keys of all pairs.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn select<K: ShardKey>(
        &self,
        pairs: Range<usize>,
        extracted: &[(Vec<u32>, Vec<K>)],
    ) -> Result<Vec<(usize, KeyBits)>> {
        let size = self.sizes[pairs.clone()].iter().sum::<u64>() as usize;
        let (mut own, mut keys) = (Vec::with_capacity(size), Vec::with_capacity(size));
        let start = pairs.start as u32;
        for (slots, extracted) in extracted {
            let inside = slots.iter().zip(extracted).filter_map(|(slot, key)| {
                let pair = slot.wrapping_sub(start);
                ((pair as usize) < pairs.len()).then_some((pair, *key))
            });
            for (pair, key) in inside {
                own.push(pair);
                keys.push(key);
            }
        }
        let mut segments = Segments::default();
        segments.fill(pairs.len(), &[(&own, &keys)]);
        let (mut found, mut ranks) = (Vec::new(), Vec::new());
        let inside = |at: usize| self.inside.partition_point(|(pair, ..)| (*pair as usize) < at);
        for ranked in self.inside[inside(pairs.start)..inside(pairs.end)].chunk_by(|a, b| a.0 == b.0) {
            ranks.clear();
            ranks.extend(ranked.iter().map(|(_, rank, _)| *rank));
            let segment = segments.segment_mut(ranked[0].0 as usize - pairs.start);
            select_ranks(segment, &ranks);
            for (_, rank, index) in ranked {
                let key = segment.get(*rank as usize - 1);
                let key = key.ok_or_else(|| internal_datafusion_err!("a counted key was not extracted"))?;
                found.push((*index, key.to_bits()));
            }
        }
        Ok(found)
    }

    /// The answers, from the keys that [`Self::select`] found in all pairs.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn answers(
        &self,
        found: impl IntoIterator<Item = (usize, KeyBits)>,
        plans: &mut Plans,
    ) -> Result<GroupAnswers> {
        let mut keys = self.keys.clone();
        for (index, key) in found {
            keys[index] = key;
        }
        self.assemble(&keys, plans)
    }

    fn assemble(&self, keys: &[KeyBits], plans: &mut Plans) -> Result<GroupAnswers> {
        let mut answers = GroupAnswers::with_capacity(plans.quantile_specs(), self.lengths.len());
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
            answers.add(n, plan, &key_at)?;
        }
        Ok(answers)
    }
}

/// Divides pieces into at most `threads` contiguous ranges, of about equal numbers of rows.
pub(crate) fn shares<K>(pieces: &[impl Numbered<K>], threads: usize) -> Vec<Range<usize>> {
    equal_shares(pieces.iter().map(|piece| piece.len() as u64), threads)
}

/// Divides items of these sizes into at most `parts` contiguous ranges, of about equal sizes.
fn equal_shares(sizes: impl ExactSizeIterator<Item = u64> + Clone, parts: usize) -> Vec<Range<usize>> {
    let (total, items) = (sizes.clone().sum::<u64>() as u128, sizes.len());
    let mut shares = Vec::with_capacity(parts);
    let (mut from, mut size) = (0, 0);
    for (at, own) in sizes.enumerate() {
        size += u128::from(own);
        if size * parts as u128 >= total * (shares.len() as u128 + 1) || at + 1 == items {
            shares.push(from..at + 1);
            from = at + 1;
        }
    }
    shares
}
