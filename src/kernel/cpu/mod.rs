//! Shards on the CPU.
//!
//! A shard answers a request by the cheapest of three reads: of the few keys that an earlier round left (`reduced`); of
//! all keys by the cell numbers that an earlier count wrote down (the *oracle* of SampleSelect, section IV-B, in two
//! bytes instead of one); or of all keys.
//!
//! Where the memory pool has a limit, keys that it has no room for go to a file, and are read from there block by
//! block. The oracle and `reduced` are left out where they do not fit. Keys that were to be collected are dropped, so
//! that the coordinator narrows its brackets further. Counts are right in any case.
//!
//! Cost on one of two busy cores, for each key of 64 bits: counting into 60 000 cells and writing the oracle 1 ns,
//! extraction by oracle 0.4 ns, counting and extracting around a bracket 0.6 ns, the search tree 4 ns.

mod blocks;
pub(crate) mod cell_bounds;
pub(crate) mod columns;
mod count;
pub(crate) mod distance;
pub(crate) mod edges;
mod exact_levels;
pub(crate) mod exact_sum;
mod extract;
pub(crate) mod frequent_cells;
pub(crate) mod groups;
mod lists;
pub(crate) mod moving;
mod rounds;
mod row_ranges;
pub(crate) mod sample;
pub(crate) mod scan_answer;
mod sketch;
mod store;
pub(crate) mod top;
pub(crate) mod weighted_cells;

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType};
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnv;

use self::extract::{BracketFinder, CellLists};
use self::lists::Reserved;
use self::store::{BLOCK, READ_BYTES, ShardMemory, Store};
use super::round::{Reply, Request, share};
use super::{Backend, Shard};
use crate::cells::{Brackets, Cells};
use crate::key::{KeySpec, KeyVec, ShardKey, Width, dense, with_key, words};
use crate::memory::{FreePages, Lease, Pages, RoundMemory, Spiller, Spilling, limit};
use crate::threads::Stop;

/// Opens shards in main memory, and on disk where memory does not suffice.
#[derive(Debug, Clone, Default)]
pub struct CpuBackend {
    free: Option<Arc<FreePages>>,
    spilling: Option<Spilling>,
    /// The memory that the rounds of all shards share. `None`: each shard has its own.
    round_memory: Option<Arc<RoundMemory>>,
}

impl CpuBackend {
    /// A backend whose shards reserve memory in `pool`. Where the pool has no limit, the memory of one selection waits
    /// up to two seconds for the next one: at most an eighth of the memory of the machine, or of its control group, for the whole process.
    pub fn new(pool: &dyn MemoryPool) -> Self {
        Self {
            free: FreePages::of(pool),
            ..Self::default()
        }
    }

    /// A backend whose shards reserve memory in the pool of `runtime`, and write keys that the pool refuses to the
    /// files of its disk manager. The rounds of these shards work in memory that is reserved for the consumer of
    /// `memory`.
    pub fn spilling(runtime: &RuntimeEnv, memory: &MemoryReservation) -> Self {
        Self::in_workspace(runtime, RoundMemory::new(memory.new_empty()))
    }

    /// A backend as [`Self::spilling`] makes it, whose rounds work in `round_memory`.
    pub(crate) fn in_workspace(runtime: &RuntimeEnv, round_memory: Arc<RoundMemory>) -> Self {
        let pool = &runtime.memory_pool;
        let limit = limit(pool.as_ref());
        let spiller = Spiller::new(runtime);
        let refuses = !matches!(pool.memory_limit(), MemoryLimit::Infinite);
        let spilling =
            (refuses && spiller.is_enabled()).then(|| Spilling::new(spiller, Arc::clone(pool), limit));
        Self {
            free: FreePages::of(pool.as_ref()),
            spilling,
            round_memory: Some(round_memory),
        }
    }

    /// The means by which other users than shards can write to the same disk. `None` where nothing is refused or there
    /// is no disk.
    pub(crate) fn disk(&self) -> Option<Spilling> {
        self.spilling.clone()
    }

    /// Number of files, and of bytes, that shards and the users of [`Self::disk`] wrote to disk so far.
    pub(crate) fn spilled(&self) -> (u64, u64) {
        self.spilling.as_ref().map_or((0, 0), |spilling| {
            (spilling.spiller.spilled_files(), spilling.spiller.spilled_bytes())
        })
    }
}

impl Backend for CpuBackend {
    fn open(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<Box<dyn Shard>> {
        with_key!(spec.width(), K => Ok(Box::new(CpuShard::<K>::try_new(spec, reservation, self)?)))
    }
}

/// A shard of keys that are in memory, and reserved, already. Its rounds work in `round_memory`.
///
/// # Errors
/// Internal errors only.
pub(crate) fn shard_of_keys(
    keys: KeyVec,
    memory: &MemoryReservation,
    round_memory: &Arc<RoundMemory>,
) -> Result<Box<dyn Shard>> {
    let width = keys.width();
    let spec = KeySpec::try_new(match width {
        Width::W32 => &DataType::UInt32,
        Width::W64 => &DataType::UInt64,
        Width::W128 => &DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0),
    })?;
    let memory = (memory.new_empty(), Arc::clone(round_memory));
    let raw = match keys {
        KeyVec::W32(keys) => Buffer::from_vec(keys),
        KeyVec::W64(keys) => Buffer::from_vec(keys),
        // Arrow has no buffers of unsigned words of this width.
        KeyVec::W128(keys) => Buffer::from_slice_ref(bytemuck::cast_slice::<_, i128>(&keys)),
    };
    with_key!(width, K => Ok(Box::new(CpuShard::<K>::over(spec, Store::of_keys(raw, width, memory)))))
}

/// Least bytes of a buffer that is shared with its other owners. Smaller ones are copied: a chunk for each would cost
/// more.
const SHARED_BYTES: usize = 16 << 10;

/// Bytes of memory for each cell of a count: two counters, their total, and the list that its keys go to.
const CELL_BYTES: usize = 2 * 4 + 8 + 2;

/// Bytes of memory for the entries of a cell table.
const TABLE_BYTES: usize = 16 << 10;

/// Bytes to answer one request in, beside the keys that it wants: for `counted` cells, between `edges` splitters.
fn working_bytes<K>(counted: usize, edges: usize) -> usize {
    counted * CELL_BYTES + edges * 2 * size_of::<K>() + TABLE_BYTES + 4 * BLOCK * size_of::<K>()
}

/// The cell of every key, as the last count of all keys computed it.
struct Oracle {
    cells: Cells,
    /// The cell numbers of the keys in the order of the store; in one piece, so that huge pages can hold it.
    numbers: Pages<u16>,
    /// The reservation of the numbers.
    reservation: MemoryReservation,
}

/// The keys inside some brackets, in memory.
struct Reduced<K> {
    brackets: Brackets,
    keys: Reserved<K>,
}

/// A shard of keys of one width.
struct CpuShard<K> {
    spec: KeySpec,
    store: Store<K>,
    oracle: Option<Oracle>,
    reduced: Option<Reduced<K>>,
    /// The memory of the keys of the last reply. Whoever sent the request is done with them when the next one comes.
    reply_memory: Option<Lease>,
}

impl<K: ShardKey> CpuShard<K> {
    fn try_new(spec: &KeySpec, reservation: MemoryReservation, backend: &CpuBackend) -> Result<Self> {
        let round_memory = match &backend.round_memory {
            Some(shared) => Arc::clone(shared),
            None => RoundMemory::new(reservation.new_empty()),
        };
        let memory = ShardMemory {
            free: backend.free.clone(),
            spilling: backend.spilling.clone(),
            round_memory,
        };
        Ok(Self::over(
            spec.clone(),
            Store::new(spec.encoding(), reservation, memory)?,
        ))
    }

    fn over(spec: KeySpec, store: Store<K>) -> Self {
        Self {
            spec,
            store,
            oracle: None,
            reduced: None,
            reply_memory: None,
        }
    }

    fn round_memory(&self) -> &Arc<RoundMemory> {
        &self.store.memory().round_memory
    }

    /// Memory to answer one request in: for `counted` cells, between `edges` splitters.
    fn working_memory(&self, counted: usize, edges: usize) -> Result<Lease> {
        let read = if self.store.is_spilled() { READ_BYTES } else { 0 };
        self.round_memory()
            .hold(working_bytes::<K>(counted, edges) + read, "a round")
    }

    /// Makes `reduced` hold the keys inside `within`, and perhaps others. `false` if that is all keys, or more than
    /// there is memory for.
    fn reduce(&mut self, within: &Brackets, stop: &Stop) -> Result<bool> {
        if within.is_all(self.spec.width()) {
            return Ok(false);
        }
        if self.reduced_covers(within) {
            return Ok(true);
        }
        self.reduced = None;
        let mut keys = Reserved::new(self.store.reservation());
        let mut refused = false;
        let cell_lists = self.lists_by_oracle(within)?;
        let brackets = BracketFinder::new(within, self.spec.width())?;
        let read = self.store.each_block(stop, |block, range| {
            keys.make_room(block.len()).inspect_err(|_| refused = true)?;
            match &cell_lists {
                Some((oracle, cell_lists)) => {
                    cell_lists.filter(block, &oracle.numbers.words()[range], &mut keys.keys);
                }
                None => brackets.filter(block, &mut keys.keys),
            }
            Ok(())
        });
        if refused {
            // All keys are read again for each request: this costs time only.
            return Ok(false);
        }
        read?;
        self.reduced = Some(Reduced {
            brackets: within.clone(),
            keys,
        });
        Ok(true)
    }

    fn reduced_covers(&self, within: &Brackets) -> bool {
        self.reduced
            .as_ref()
            .is_some_and(|reduced| reduced.brackets.cover(within))
    }

    /// Selects all cells that hold a part of `within`, by the oracle.
    fn lists_by_oracle(&self, within: &Brackets) -> Result<Option<(&Oracle, CellLists)>> {
        let Some(oracle) = &self.oracle else {
            return Ok(None);
        };
        let mut cell_lists = CellLists::new();
        for bracket in within.as_slice() {
            let (first, last) = oracle.cells.span(bracket)?;
            cell_lists.send(first..=last, 0);
        }
        Ok(Some((oracle, cell_lists)))
    }

    /// Calls `each` with all keys inside `within`, at most one block at a time.
    fn each_inside(
        &self,
        within: &Brackets,
        stop: &Stop,
        mut each: impl FnMut(&[K]) -> Result<()>,
    ) -> Result<()> {
        if within.is_all(self.spec.width()) {
            return self.store.each_block(stop, |block, _| each(block));
        }
        let brackets = BracketFinder::new(within, self.spec.width())?;
        let mut inside = Vec::with_capacity(BLOCK);
        let mut filtered = |block: &[K]| {
            inside.clear();
            brackets.filter(block, &mut inside);
            if inside.is_empty() { Ok(()) } else { each(&inside) }
        };
        match &self.reduced {
            Some(reduced) if reduced.brackets.cover(within) => {
                for block in reduced.keys.keys.chunks(BLOCK) {
                    stop.check()?;
                    filtered(block)?;
                }
                Ok(())
            }
            _ => self.store.each_block(stop, |block, _| filtered(block)),
        }
    }
}

impl<K: ShardKey> Shard for CpuShard<K> {
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()> {
        (self.oracle, self.reduced) = (None, None);
        let kept = dense(values.as_ref(), filter)?;
        // There is a third owner besides the batch and the caller, such as a table in memory. Then keeping the buffer
        // costs nothing.
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

    fn split(&mut self, values: u64) -> Option<Box<dyn Shard>> {
        (self.oracle, self.reduced) = (None, None);
        let store = self.store.split(values)?;
        Some(Box::new(Self::over(self.spec.clone(), store)))
    }

    fn spill(&mut self, bytes: usize, stop: &Stop) -> Result<usize> {
        (self.oracle, self.reduced) = (None, None);
        self.store.spill(bytes, stop)
    }

    fn seal(&mut self) -> usize {
        self.store.seal()
    }

    fn answer(&mut self, request: &Request, stop: &Stop) -> Result<Reply> {
        self.store.seal();
        self.reply_memory = None;
        match request {
            Request::Sample {
                size,
                population,
                seed,
                within,
                extremes,
            } => {
                let share = |own: u64| share(*size, *population, own);
                self.sample(within, share, *seed, *extremes, stop)
            }
            Request::Count { cells, within, keep } => self.count(cells, within, keep, stop),
            Request::Sketch { eps } => self.sketch(*eps, stop),
            Request::Extract { brackets } => self.extract(brackets, stop),
        }
    }
}
