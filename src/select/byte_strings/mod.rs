//! Order statistics of byte strings: keys of their first bytes go through the ordinary rounds, and ties are refined level by level.
//!
//! ```text
//! common prefix of all     key of the next bytes         ranks whose value is longer than its key: gather the
//! "trips/2026-11-"     ->  "01/oslo/000417.."        ->  values with that key, and begin again behind their
//!                          rounds over u64 or u128       common prefix
//! ```
//! The cost is a copy of the values, one read of them to make keys (8 or 16 bytes each, while rounds run), and the rounds. Where keys
//! tie, one more read finds the values behind the keys of target ranks. Few values are selected by comparing them. Long common
//! prefixes cost only their bytes. Values on disk are streamed. The bytes that follow tied keys are written to files of their own, so
//! that each level reads no more than it must. It loses where most values share long prefixes, but not all of them the same one: each
//! level then gathers most values of the level before.

mod distinct;
mod gather;
mod level;

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use self::level::{Compared, Level, Subset, TargetRank, WorkChunk, each_value};
use super::requests::count;
use super::{LocalShards, Shards, Solution, solve_ranks, wanted_ranks};
use crate::cells::{Brackets, Cells, Edges};
use crate::config::StrategyName;
use crate::failpoint::may_fail;
use crate::kernel::byte_strings::{At, Bounds, ByteStrings};
use crate::kernel::round::Reply;
use crate::kernel::{Backend, Shard};
use crate::key::{ByteSpec, KeyBits, PrefixKey};
use crate::memory::{MemoryBudget, RoundMemory, Spilling};
use crate::quantile::QuantileSpec;
use crate::threads::{Stop, ThreadPool};

/// Values up to which they are selected by comparing them.
const FEW: u64 = 1 << 14;

/// Keys that go to a shard at a time.
const BLOCK: usize = 8192;

/// Keys whose ties are counted in one round. Each takes two edges.
const COUNTED: usize = 1 << 14;

/// Fewest bytes of the buffers that a thread writes values from.
const DEALING_BYTES: usize = 256 << 10;

/// The order statistics of byte strings.
#[derive(Debug)]
pub(crate) struct ByteStringSolution {
    /// Number of values that were ranked.
    pub(crate) n: u64,
    /// The rounds over prefix keys, level by level.
    pub(crate) rounds: Vec<Solution>,
    /// Number of levels: 1 if the keys behind the common prefix of all values found every answer.
    pub(crate) levels: usize,
    /// Number of values that a further level looked at, because their prefix keys did not tell them apart.
    pub(crate) refined: u64,
    ranks: Vec<u64>,
    answers: Vec<Vec<u8>>,
}

impl ByteStringSolution {
    /// The value of a rank that one of the quantile specifications needs.
    ///
    /// # Errors
    /// An internal error for any other rank.
    pub(crate) fn value_at(&self, rank: u64) -> Result<&[u8]> {
        let at = self.ranks.binary_search(&rank);
        at.map(|at| self.answers[at].as_slice())
            .map_err(|_| internal_datafusion_err!("rank {rank} was not selected"))
    }

    /// The answers to one of the quantile specifications, as [`QuantileSpec::answers`] gives them.
    ///
    /// # Errors
    /// Those of [`ByteSpec::to_array`]; an internal error if the selection was made for other specifications.
    pub(crate) fn answers(&self, quantile_spec: &QuantileSpec, spec: &ByteSpec) -> Result<ArrayRef> {
        quantile_spec.byte_string_answers(spec, self.n, &|rank| self.value_at(rank))
    }
}

/// A selection from byte strings, with its memory and threads.
pub(crate) struct ByteStringSelection {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) strategy: StrategyName,
    pub(crate) pool: ThreadPool,
    /// Memory for keys and places. The values have their own.
    pub(crate) memory: MemoryReservation,
    /// Memory for rounds, and for reading and writing between them.
    pub(crate) round_memory: Arc<RoundMemory>,
    /// What rounds may collect in `round_memory`, in keys and cells.
    pub(crate) budget: MemoryBudget,
    /// Files for values that there is no memory for; `None`: such values are an error.
    pub(crate) disk: Option<Spilling>,
}

/// The values with one key that does not tell them apart.
struct Tie {
    key: KeyBits,
    /// Number of values with smaller keys.
    below: u64,
    /// Number of values with this key.
    equal: u64,
    /// The target ranks among all values of the level that have this key.
    targets: Vec<TargetRank>,
}

impl ByteStringSelection {
    /// Bytes that each thread needs between rounds, beside the block that it reads values into.
    pub(crate) const THREAD_BYTES: usize = DEALING_BYTES;

    /// Bytes that each shard of keys begins with.
    pub(crate) const SHARD_BYTES: usize = 64 << 10;

    /// Finds the order statistics that the quantile specifications need.
    ///
    /// # Errors
    /// `ResourcesExhausted` if the pool refuses memory that nothing can do without, or the disk is full; those of the
    /// rounds; an execution error when cancelled.
    pub(crate) async fn solve(
        &self,
        values: ByteStrings,
        quantile_specs: &[&QuantileSpec],
    ) -> Result<ByteStringSolution> {
        let n = values.len();
        let ranks = wanted_ranks(quantile_specs, n);
        let mut solution = ByteStringSolution {
            n,
            rounds: Vec::new(),
            levels: 0,
            refined: 0,
            answers: vec![Vec::new(); ranks.len()],
            ranks,
        };
        if solution.ranks.is_empty() {
            return Ok(solution);
        }
        let targets = solution.ranks.iter().enumerate();
        let targets = targets.map(|(answer, rank)| TargetRank { rank: *rank, answer });
        let mut levels = vec![Level {
            values: Arc::new(values),
            before: Vec::new(),
            subset: Subset::All,
            n,
            known: 0,
            depth: 1,
            targets: targets.collect(),
            refused: false,
            _reservation: None,
        }];
        while !levels.is_empty() {
            let is_few = |level: &mut Level| level.n <= FEW && !level.refused;
            let few: Vec<Level> = levels.extract_if(.., is_few).collect();
            levels.extend(self.compare(few, &mut solution).await?);
            if let Some(level) = levels.pop() {
                levels.extend(self.refine(level, &mut solution).await?);
            }
        }
        Ok(solution)
    }

    /// Answers levels of few values by comparing them. Levels that there is no memory for come back.
    async fn compare(&self, levels: Vec<Level>, solution: &mut ByteStringSolution) -> Result<Vec<Level>> {
        let deepest = levels.iter().map(|level| level.depth).max();
        solution.levels = solution.levels.max(deepest.unwrap_or(0));
        // Waking threads would cost more.
        let is_little = levels.iter().map(|level| level.n).sum::<u64>() <= FEW;
        let round_memory = Arc::clone(&self.round_memory);
        let compare = move |level: Level, stop: &Stop| {
            may_fail!("value_compare");
            level.compare(&round_memory, stop)
        };
        let compared = if is_little && !levels.iter().any(|level| level.values.is_spilled()) {
            let stop = Stop::default();
            let compared = levels.into_iter().map(|level| compare(level, &stop));
            compared.collect::<Result<Vec<_>>>()?
        } else {
            self.pool.map(levels, compare).await?
        };
        let mut refused = Vec::new();
        for compared in compared {
            match compared {
                Compared::Answers(answers) => {
                    for (answer, value) in answers {
                        solution.answers[answer] = value;
                    }
                }
                Compared::Refused(level) => refused.push(level),
            }
        }
        Ok(refused)
    }

    /// Answers a level of many values as far as prefix keys tell values apart, and returns the levels behind tied keys.
    async fn refine(&self, level: Level, solution: &mut ByteStringSolution) -> Result<Vec<Level>> {
        solution.levels = solution.levels.max(level.depth);
        let bounds = match &level.subset {
            Subset::Places(lists) => self.bounds_at(&level, lists.clone()).await?,
            Subset::All => match level.values.bounds() {
                Some(bounds) if bounds.is_cut() => self.bounds_of_all(&level).await?,
                bounds => bounds.cloned(),
            },
        };
        let Some(bounds) = bounds else {
            return internal_err!("{} ranks are wanted of no values", level.targets.len());
        };
        // Strings that one key holds whole need no further level. For others the widest keys tell most apart.
        match bounds.longest - bounds.prefix.len() {
            0 => {
                for target in &level.targets {
                    solution.answers[target.answer] = level.answer(&bounds.prefix);
                }
                Ok(Vec::new())
            }
            1..=<u64 as PrefixKey>::BYTES => self.by_keys::<u64>(level, &bounds.prefix, solution).await,
            _ => self.by_keys::<u128>(level, &bounds.prefix, solution).await,
        }
    }

    /// The bounds of the values at these places: their common prefix, and the longest length.
    async fn bounds_at(&self, level: &Level, lists: Vec<Arc<Vec<At>>>) -> Result<Option<Bounds>> {
        let (values, known) = (Arc::clone(&level.values), level.known);
        let of_list = move |list: Arc<Vec<At>>, _: &Stop| Ok(values.bounds_of(&list, known));
        let each = self.pool.map(lists, of_list).await?;
        Ok(each.into_iter().flatten().reduce(Bounds::joined))
    }

    /// The bounds of all values of a level, by reading them: for a common prefix that is longer than the values keep.
    async fn bounds_of_all(&self, level: &Level) -> Result<Option<Bounds>> {
        let (values, round_memory) = (Arc::clone(&level.values), Arc::clone(&self.round_memory));
        let longest = values.bounds().map_or(0, |bounds| bounds.longest);
        let of_chunk = move |chunk: WorkChunk, stop: &Stop| {
            let bytes = values.largest_block() + longest;
            let _held = round_memory.hold(bytes, "a common prefix")?;
            let mut all: Option<Bounds> = None;
            each_value(&values, &chunk, stop, |value| {
                match &mut all {
                    Some(bounds) => bounds.add(value),
                    none => *none = Some(Bounds::of(value)),
                }
                Ok(())
            })?;
            Ok(all)
        };
        let each = self.pool.map(self.work_chunks(level), of_chunk).await?;
        Ok(each.into_iter().flatten().reduce(Bounds::joined))
    }

    /// Answers a level by rounds over keys of the bytes behind `prefix`, and returns the levels behind tied keys.
    async fn by_keys<K: PrefixKey>(
        &self,
        level: Level,
        prefix: &[u8],
        solution: &mut ByteStringSolution,
    ) -> Result<Vec<Level>> {
        let shards = self.shards::<K>(&level, prefix.len()).await?;
        let shards = LocalShards::on(K::spec().width(), shards, self.pool.another());
        let mut shards = shards.within(self.budget, Arc::clone(&self.round_memory));
        let ranks: Vec<u64> = level.targets.iter().map(|target| target.rank).collect();
        let strategy = self
            .strategy
            .strategy(level.n, &ranks, shards.parallelism(), &shards.budget())?;
        let keys = solve_ranks(&mut shards, strategy.as_ref(), ranks).await?;
        let mut tied: BTreeMap<KeyBits, Vec<TargetRank>> = BTreeMap::new();
        for target in &level.targets {
            let key = keys.key_at(target.rank)?;
            match K::whole(key) {
                Some(length) => {
                    let value = [prefix, &K::bytes(key)[..length]].concat();
                    solution.answers[target.answer] = level.answer(&value);
                }
                None => tied.entry(key).or_default().push(*target),
            }
        }
        solution.rounds.push(keys);
        if tied.is_empty() {
            return Ok(Vec::new());
        }
        let ties = count_ties(&mut shards, tied).await?;
        drop(shards);
        solution.refined += ties.iter().map(|tie| tie.equal).sum::<u64>();
        self.gather::<K>(&level, prefix, ties).await
    }

    /// Shards with the keys of the bytes that follow the common prefix, which is `common` bytes long.
    async fn shards<K: PrefixKey>(&self, level: &Level, common: usize) -> Result<Vec<Box<dyn Shard>>> {
        let (values, backend) = (Arc::clone(&level.values), &self.backend);
        let round_memory = Arc::clone(&self.round_memory);
        let chunks = self.work_chunks(level).into_iter();
        // All shards begin before one of them is filled, whose spill file takes memory for its checksums.
        let items = chunks.map(|chunk| Ok((chunk, backend.open(&K::spec(), self.memory.new_empty())?)));
        let items = items.collect::<Result<Vec<_>>>()?;
        let fill = move |(chunk, mut shard): (WorkChunk, Box<dyn Shard>), stop: &Stop| {
            may_fail!("value_keys");
            // One block is filled while the shard takes in the other.
            let bytes = 2 * BLOCK * size_of::<K>() + values.largest_block();
            let _held = round_memory.hold(bytes, "keys of values")?;
            let mut keys = Vec::with_capacity(BLOCK);
            each_value(&values, &chunk, stop, |value| {
                keys.push(K::of(&value[common..]));
                if keys.len() < BLOCK {
                    return Ok(());
                }
                let full = std::mem::replace(&mut keys, Vec::with_capacity(BLOCK));
                shard.append(&K::array(full), None)
            })?;
            shard.append(&K::array(keys), None)?;
            Ok(shard)
        };
        self.pool.map(items, fill).await
    }
}

/// Counts the values with smaller keys than each tied key, and those with the same key. No tied key is the greatest of its width.
async fn count_ties(shards: &mut dyn Shards, tied: BTreeMap<KeyBits, Vec<TargetRank>>) -> Result<Vec<Tie>> {
    let most = COUNTED.min(shards.budget().cells / 2).max(1);
    let mut ties = Vec::with_capacity(tied.len());
    let mut tied = tied.into_iter().peekable();
    while tied.peek().is_some() {
        let part: Vec<_> = tied.by_ref().take(most).collect();
        let edges = part.iter().flat_map(|(key, _)| [*key, key + 1]);
        let cells = Cells::Edges(Edges::try_new(edges.collect())?);
        let request = count(cells.clone(), Brackets::all(shards.width()));
        let Reply::Counts { counts, .. } = shards.round(Arc::new(request)).await? else {
            return internal_err!("a count is answered by counts");
        };
        let mut before = Vec::with_capacity(counts.len());
        let mut sum = 0;
        for count in &counts {
            before.push(sum);
            sum += count;
        }
        for (key, targets) in part {
            let cell = cells.cell(key).map(|cell| cell as usize);
            let counted = cell.and_then(|cell| Some((*before.get(cell)?, *counts.get(cell)?)));
            let (below, equal) =
                counted.ok_or_else(|| internal_datafusion_err!("key {key} was not counted"))?;
            ties.push(Tie {
                key,
                below,
                equal,
                targets,
            });
        }
    }
    Ok(ties)
}

#[cfg(test)]
mod tests;
