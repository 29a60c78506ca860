//! Lanes for the processor.
//!
//! A lane answers by the cheapest of three reads: of the few keys that an earlier round left (`reduced`), of all
//! keys by the cell numbers that an earlier count wrote down (the *oracle* of SampleSelect, section IV-B, in two
//! bytes instead of one), or of all keys.
//!
//! Cost on one of two busy cores, an element of 64 bits: counting into 60 000 cells and writing the oracle 1 ns,
//! extraction by oracle 0.4 ns, counting and extracting around a bracket 0.6 ns, the search tree 4 ns.

mod classify;
mod count;
mod dispatch;
mod extract;
pub(crate) mod groups;
mod pages;
mod sample;
mod store;

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};

use self::classify::{Classify, LinearOf, TableOf, TreeOf, number, with_classifier};
use self::count::Counters;
use self::extract::{BracketsOf, Slots};
pub(crate) use self::pages::FreePages;
use self::pages::Pages;
pub(crate) use self::store::reserve;
use self::store::{BLOCK, Store};
use super::buckets::{Cells, Edges};
use super::round::{Bracket, Brackets, KeyVec, Reply, Request};
use super::{Backend, Lane, Stop};
use crate::key::{Key, KeySpec, Width, dense, words};

/// Opens lanes in main memory.
#[derive(Debug, Clone, Default)]
pub struct CpuBackend {
    free: Option<Arc<FreePages>>,
}

impl CpuBackend {
    /// Lanes that reserve in `pool`. Where it has no limit, the memory of one selection waits up to two seconds for
    /// the next: at most 512 MiB, for the whole process.
    pub fn new(pool: &dyn MemoryPool) -> Self {
        Self {
            free: FreePages::of(pool),
        }
    }
}

impl Backend for CpuBackend {
    fn open(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<Box<dyn Lane>> {
        Ok(match spec.width() {
            Width::W32 => Box::new(CpuLane::<u32>::new(spec, reservation, self)),
            Width::W64 => Box::new(CpuLane::<u64>::new(spec, reservation, self)),
            Width::W128 => Box::new(CpuLane::<u128>::new(spec, reservation, self)),
        })
    }
}

/// Buffers of fewer bytes are copied even if somebody else keeps them: a chunk each would cost more.
const SHARED_BYTES: usize = 16 << 10;

/// Up to this many edges a count goes by compares, element by element, and not by the search tree.
const FEW_EDGES: usize = 8;

/// A key type that a lane can hold: ties [`KeyVec`] to it.
pub(crate) trait LaneKey: Key {
    fn vec(keys: Vec<Self>) -> KeyVec;
}

macro_rules! lane_key {
    ($type:ty, $variant:ident) => {
        impl LaneKey for $type {
            fn vec(keys: Vec<Self>) -> KeyVec {
                KeyVec::$variant(keys)
            }
        }
    };
}
lane_key!(u32, W32);
lane_key!(u64, W64);
lane_key!(u128, W128);

/// The cell of every key, as the last whole count saw it.
struct Oracle {
    cells: Cells,
    /// In the order of the store; in one piece, for the sake of huge pages.
    numbers: Pages<u16>,
    /// What the numbers are reserved in.
    reservation: MemoryReservation,
}

/// The keys inside some brackets.
struct Reduced<K> {
    brackets: Brackets,
    keys: Vec<K>,
    _reservation: MemoryReservation,
}

/// A lane over keys of one width.
struct CpuLane<K> {
    spec: KeySpec,
    store: Store<K>,
    oracle: Option<Oracle>,
    reduced: Option<Reduced<K>>,
}

impl<K: LaneKey> CpuLane<K> {
    fn new(spec: &KeySpec, reservation: MemoryReservation, backend: &CpuBackend) -> Self {
        let store = Store::new(spec.encoding(), reservation, backend.free.clone());
        Self {
            spec: spec.clone(),
            store,
            oracle: None,
            reduced: None,
        }
    }

    /// Calls `each` with all keys, a block at a time, and the block's place among them.
    fn each_block(&self, stop: &Stop, mut each: impl FnMut(&[K], Range<usize>)) -> Result<()> {
        let mut scratch = Vec::with_capacity(BLOCK);
        let mut at = 0;
        for chunk in &self.store.chunks {
            for start in (0..chunk.len()).step_by(BLOCK) {
                stop.check()?;
                let end = chunk.len().min(start + BLOCK);
                each(chunk.block(start..end, &mut scratch), at..at + (end - start));
                at += end - start;
            }
        }
        Ok(())
    }

    /// Makes `reduced` hold the keys inside `within`, and perhaps others; `false` where that is all keys.
    fn reduce(&mut self, within: &Brackets, stop: &Stop) -> Result<bool> {
        if within.is_all(self.spec.width()) {
            return Ok(false);
        }
        if self
            .reduced
            .as_ref()
            .is_some_and(|reduced| reduced.brackets.cover(within))
        {
            return Ok(true);
        }
        let keys = match &self.oracle {
            Some(oracle) => self.keys_by_oracle(oracle, within, stop)?,
            None => {
                let (mut keys, brackets) = (Vec::new(), BracketsOf::new(within, self.spec.width())?);
                self.each_block(stop, |block, _| brackets.filter(block, &mut keys))?;
                keys
            }
        };
        let reservation = self.store.reservation().new_empty();
        reserve(&reservation, keys.capacity() * size_of::<K>())?;
        self.reduced = Some(Reduced {
            brackets: within.clone(),
            keys,
            _reservation: reservation,
        });
        Ok(true)
    }

    /// The keys of all cells that hold a part of `within`: at least those inside it.
    fn keys_by_oracle(&self, oracle: &Oracle, within: &Brackets, stop: &Stop) -> Result<Vec<K>> {
        let mut slots = Slots::new(1);
        for bracket in within.as_slice() {
            let (first, last) = oracle.cells.span(bracket)?;
            slots.send(first..=last, 0);
        }
        let mut keys = Vec::new();
        self.each_block(stop, |block, range| {
            slots.filter(block, &oracle.numbers.words()[range], &mut keys);
        })?;
        Ok(keys)
    }

    fn count(&mut self, cells: &Cells, within: &Brackets, keep: &[u32], stop: &Stop) -> Result<Reply> {
        if let Cells::Edges(edges) = cells
            && edges.as_slice().len() <= FEW_EDGES
        {
            return self.count_few(cells, edges, within, keep, stop);
        }
        let domain = self.domain(cells, within)?;
        let reduced = self.reduce(&domain, stop)?;
        with_classifier!(cells, K, classify => {
            if reduced {
                Ok(self.count_reduced(cells, &classify, within, keep, stop)?)
            } else {
                self.count_all(cells, &classify, keep, stop)
            }
        })
    }

    /// The keys that can have a cell.
    fn domain(&self, cells: &Cells, within: &Brackets) -> Result<Brackets> {
        match cells {
            Cells::Linear(linear) if within.is_all(self.spec.width()) => {
                let mut domain: Vec<Bracket> = Vec::new();
                for piece in &linear.pieces {
                    match domain.last_mut() {
                        Some(last) if last.last + 1 == piece.first => last.last = piece.last,
                        _ => domain.push(Bracket {
                            first: piece.first,
                            last: piece.last,
                        }),
                    }
                }
                // One bracket is the whole range of the data, as in DIBMS's first phase: nothing to reduce.
                if domain.len() == 1 && self.oracle.is_none() && self.reduced.is_none() {
                    return Ok(Brackets::all(self.spec.width()));
                }
                Brackets::try_new(domain)
            }
            _ => Ok(within.clone()),
        }
    }

    /// Counts all keys and remembers their cells, memory permitting.
    fn count_all(
        &mut self,
        cells: &Cells,
        classify: &impl Classify<K>,
        keep: &[u32],
        stop: &Stop,
    ) -> Result<Reply> {
        let mut counters = Counters::new(cells.len());
        let slots = slots_of(keep);
        let mut kept = slots.empty_lists();
        let mut pages = self.oracle_pages();
        let mut scratch = [0; BLOCK];
        self.each_block(stop, |block, range| {
            let numbers = match &mut pages {
                Some((pages, _)) => &mut pages.words_mut()[range],
                None => &mut scratch[..block.len()],
            };
            number(block, classify, numbers);
            counters.add(numbers);
            if !keep.is_empty() {
                slots.sort_out(block, numbers, &mut kept);
            }
        })?;
        // Keys without a cell have the number after the last, which no bracket ever wants.
        self.oracle = pages.map(|(numbers, reservation)| Oracle {
            cells: cells.clone(),
            numbers,
            reservation,
        });
        Ok(Reply::Counts {
            counts: counters.finish(),
            kept: kept.into_iter().map(K::vec).collect(),
        })
    }

    /// Room for one number a key, or `None` where the pool has none: then later rounds compute cells again.
    fn oracle_pages(&mut self) -> Option<(Pages<u16>, MemoryReservation)> {
        if let Some(Oracle {
            numbers, reservation, ..
        }) = self.oracle.take()
        {
            return Some((numbers, reservation));
        }
        let reservation = self.store.reservation().new_empty();
        let len = self.store.len() as usize;
        reservation.try_grow(len * size_of::<u16>()).ok()?;
        Some((self.store.pages(len).ok()?, reservation))
    }

    fn count_reduced(
        &self,
        cells: &Cells,
        classify: &impl Classify<K>,
        within: &Brackets,
        keep: &[u32],
        stop: &Stop,
    ) -> Result<Reply> {
        let Some(reduced) = &self.reduced else {
            return internal_err!("no reduced keys to count");
        };
        let mut counters = Counters::new(cells.len());
        let slots = slots_of(keep);
        let mut kept = slots.empty_lists();
        let brackets = BracketsOf::new(within, self.spec.width())?;
        let mut inside = Vec::with_capacity(BLOCK);
        let mut numbers = [0; BLOCK];
        for block in reduced.keys.chunks(BLOCK) {
            stop.check()?;
            inside.clear();
            brackets.filter(block, &mut inside);
            let numbers = &mut numbers[..inside.len()];
            number(&inside, classify, numbers);
            counters.add(numbers);
            if !keep.is_empty() {
                slots.sort_out(&inside, numbers, &mut kept);
            }
        }
        Ok(Reply::Counts {
            counts: counters.finish(),
            kept: kept.into_iter().map(K::vec).collect(),
        })
    }

    /// A few edges: one pass counts by compares and copies the kept cells.
    fn count_few(
        &mut self,
        cells: &Cells,
        edges: &Edges,
        within: &Brackets,
        keep: &[u32],
        stop: &Stop,
    ) -> Result<Reply> {
        let reduced = self.reduce(within, stop)?;
        let width = self.spec.width();
        let tree = TreeOf::<K>::new(edges);
        let edges: Vec<K> = edges.as_slice().iter().map(|edge| K::from_bits(*edge)).collect();
        let wanted = kept_ranges::<K>(cells, keep, width);
        let (mut above, mut copied, mut total) = (vec![0; edges.len()], Vec::new(), 0);
        if reduced {
            let Some(reduced) = &self.reduced else {
                return internal_err!("no reduced keys to count");
            };
            let brackets = BracketsOf::new(within, width)?;
            let mut inside = Vec::with_capacity(BLOCK);
            for block in reduced.keys.chunks(BLOCK) {
                stop.check()?;
                inside.clear();
                brackets.filter(block, &mut inside);
                total += inside.len() as u64;
                extract::by_compares(&inside, &edges, &mut above, &wanted, &mut copied);
            }
        } else {
            total = self.store.len();
            self.each_block(stop, |block, _| {
                extract::by_compares(block, &edges, &mut above, &wanted, &mut copied);
            })?;
        }
        let slots = slots_of(keep);
        let mut kept = slots.empty_lists();
        match &mut kept[..] {
            [only] => *only = copied,
            _ => {
                let mut numbers = [0; BLOCK];
                for block in copied.chunks(BLOCK) {
                    let numbers = &mut numbers[..block.len()];
                    number(block, &tree, numbers);
                    slots.sort_out(block, numbers, &mut kept);
                }
            }
        }
        let counts = cells_from_edges(total, &above);
        Ok(Reply::Counts {
            counts,
            kept: kept.into_iter().map(K::vec).collect(),
        })
    }

    fn extract(&mut self, wanted: &Brackets, stop: &Stop) -> Result<Reply> {
        let lists = match self.extract_cells(wanted, stop)? {
            Some(lists) => lists,
            None => {
                let brackets = BracketsOf::<K>::new(wanted, self.spec.width())?;
                let mut lists = brackets.empty_lists();
                if self.reduce(wanted, stop)? {
                    let Some(reduced) = &self.reduced else {
                        return internal_err!("no reduced keys to extract");
                    };
                    for block in reduced.keys.chunks(BLOCK) {
                        stop.check()?;
                        brackets.sort_out(block, &mut lists);
                    }
                } else {
                    self.each_block(stop, |block, _| brackets.sort_out(block, &mut lists))?;
                }
                lists
            }
        };
        Ok(Reply::Extracted(lists.into_iter().map(K::vec).collect()))
    }

    /// The keys of brackets that are whole cells, by the oracle alone; `None` if they are not, or there is none.
    fn extract_cells(&self, wanted: &Brackets, stop: &Stop) -> Result<Option<Vec<Vec<K>>>> {
        let Some(oracle) = &self.oracle else {
            return Ok(None);
        };
        let mut slots = Slots::new(wanted.as_slice().len());
        for (list, bracket) in wanted.as_slice().iter().enumerate() {
            let (first, last) = oracle.cells.span(bracket)?;
            let range = |cell| oracle.cells.range(cell, self.spec.width());
            let (Some(from), Some(to)) = (range(first), range(last)) else {
                return Ok(None);
            };
            if from.first < bracket.first || to.last > bracket.last {
                return Ok(None);
            }
            slots.send(first..=last, list);
        }
        let mut lists = slots.empty_lists();
        self.each_block(stop, |block, range| {
            slots.sort_out(block, &oracle.numbers.words()[range], &mut lists);
        })?;
        Ok(Some(lists))
    }
}

/// Sends each of the kept cells to its own list.
fn slots_of(keep: &[u32]) -> Slots {
    let mut slots = Slots::new(keep.len());
    for (list, cell) in keep.iter().enumerate() {
        slots.send(*cell..=*cell, list);
    }
    slots
}

/// First key and length of kept cells, neighbours joined.
fn kept_ranges<K: Key>(cells: &Cells, keep: &[u32], width: Width) -> Vec<(K, K)> {
    let mut joined: Vec<Bracket> = Vec::new();
    for range in keep.iter().filter_map(|cell| cells.range(*cell, width)) {
        match joined.last_mut() {
            Some(last) if last.last + 1 == range.first => last.last = range.last,
            _ => joined.push(range),
        }
    }
    joined
        .iter()
        .map(|range| (K::from_bits(range.first), K::from_bits(range.last - range.first)))
        .collect()
}

/// Keys in each cell, from the number of all keys and of those at or above each edge.
fn cells_from_edges(total: u64, above: &[u64]) -> Vec<u64> {
    let upper = above.iter().copied().chain([0]);
    [total]
        .into_iter()
        .chain(above.iter().copied())
        .zip(upper)
        .map(|(from, to)| from - to)
        .collect()
}

impl<K: LaneKey> Lane for CpuLane<K> {
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()> {
        (self.oracle, self.reduced) = (None, None);
        let kept = dense(values.as_ref(), filter)?;
        // A third owner beside the batch and the caller: a table in memory, say. Then keeping costs nothing.
        let shared = kept.is_none() && Arc::strong_count(values) > 2 && !self.spec.widens();
        let raw = self.spec.raw(kept.as_ref().unwrap_or(values).as_ref())?;
        if raw.len() % size_of::<K>() != 0 {
            return internal_err!("{} bytes are not keys of {} bits", raw.len(), K::BITS);
        }
        if shared && raw.len() >= SHARED_BYTES {
            self.store.share(raw)
        } else {
            self.store.copy(words(&raw))
        }
    }

    fn len(&self) -> u64 {
        self.store.len()
    }

    fn held_bytes(&self) -> usize {
        self.store.reservation().size()
    }

    fn split(&mut self, values: u64) -> Option<Box<dyn Lane>> {
        (self.oracle, self.reduced) = (None, None);
        let store = self.store.split(values)?;
        Some(Box::new(Self {
            spec: self.spec.clone(),
            store,
            oracle: None,
            reduced: None,
        }))
    }

    fn answer(&mut self, request: &Request, stop: &Stop) -> Result<Reply> {
        match request {
            Request::Sample {
                size,
                population,
                seed,
                within,
                extremes,
            } => {
                let share = |own: u64| {
                    (u128::from(*size) * u128::from(own)).div_ceil(u128::from((*population).max(1))) as u64
                };
                let reduced = self.reduce(within, stop)?;
                self.sample(reduced, within, share, *seed, *extremes, stop)
            }
            Request::Count { cells, within, keep } => self.count(cells, within, keep, stop),
            Request::Extract { brackets } => self.extract(brackets, stop),
        }
    }
}
