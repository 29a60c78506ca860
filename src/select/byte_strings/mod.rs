//! Order statistics of byte strings: prefix keys go through the ordinary rounds, ties are refined level by level.
//!
//! ```text
//! common prefix of all     key of the next bytes         ranks whose key goes on: gather the values
//! "trips/2026-11-"     ->  "01/oslo/000417.."        ->  with that key, and again behind what these
//!                          rounds over u64 or u128       have in common
//! ```
//! Cost: a copy of the values, one read of them to make keys (8 or 16 bytes each, while rounds run), the rounds, and
//! where keys go on one more read that finds the values behind the wanted keys. Few values are selected by comparing
//! them. Long common prefixes cost nothing but their bytes. Values on disk are streamed, and what follows the wanted keys
//! is written to files of its own, so that each level reads no more than it must. It loses where most values share long prefixes without all
//! of them sharing one: each level then gathers most of what the level before had.

mod distinct;
mod gather;
mod level;

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use self::level::{Compared, Level, Reader, Share, Wanted, Which};
use super::{Shards, Solution, solve_ranks, wanted_ranks};
use crate::cells::Brackets;
use crate::cells::{Cells, Edges};
use crate::config::StrategyName;
use crate::failpoint::may_fail;
use crate::kernel::byte_strings::{At, Bounds, ByteStrings};
use crate::kernel::round::{Reply, Request};
use crate::kernel::{Backend, Shard};
use crate::key::{ByteSpec, KeyBits, PrefixKey};
use crate::memory::MemoryBudget;
use crate::memory::RoundMemory;
use crate::memory::Spilling;
use crate::quantile::QuantileSpec;
use crate::select::LocalShards;
use crate::threads::Stop;
use crate::threads::ThreadPool;

/// Up to this many values are selected by comparing them.
const FEW: u64 = 1 << 14;

/// Keys that go to a shard at a time.
const BLOCK: usize = 8192;

/// Keys whose ties are counted in one round: each takes two edges.
const COUNTED: usize = 1 << 14;

/// What a thread writes values from, at least.
const DEALING_BYTES: usize = 256 << 10;

/// The order statistics of byte strings.
#[derive(Debug)]
pub(crate) struct ByteStringSolution {
    /// Values that were ranked.
    pub(crate) n: u64,
    /// The rounds over prefix keys, level by level.
    pub(crate) rounds: Vec<Solution>,
    /// How deep prefixes were refined: 1 where the keys behind the common prefix of all values told enough.
    pub(crate) levels: usize,
    /// Values that were looked at again because their prefix keys did not tell them apart.
    pub(crate) refined: u64,
    ranks: Vec<u64>,
    answers: Vec<Vec<u8>>,
}

impl ByteStringSolution {
    /// The value of a rank that one of the questions needs.
    ///
    /// # Errors
    /// An internal error for any other rank.
    pub(crate) fn value_at(&self, rank: u64) -> Result<&[u8]> {
        let at = self.ranks.binary_search(&rank);
        at.map(|at| self.answers[at].as_slice())
            .map_err(|_| internal_datafusion_err!("rank {rank} was not selected"))
    }

    /// The answers to one of the questions, as [`QuantileSpec::answers`] gives them.
    ///
    /// # Errors
    /// Those of [`ByteSpec::to_array`]; an internal error if `quantile_spec` was not asked.
    pub(crate) fn answers(&self, quantile_spec: &QuantileSpec, spec: &ByteSpec) -> Result<ArrayRef> {
        quantile_spec.byte_string_answers(spec, self.n, &|rank| self.value_at(rank))
    }
}

/// Finds the order statistics that all of some questions need.
pub(crate) struct ByteStringSelection {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) strategy: StrategyName,
    pub(crate) pool: ThreadPool,
    /// For keys and places; the values have theirs.
    pub(crate) memory: MemoryReservation,
    /// For rounds, and for reading and writing between them.
    pub(crate) round_memory: Arc<RoundMemory>,
    /// What rounds can do in it.
    pub(crate) budget: MemoryBudget,
    /// Where values go that there is no memory for.
    pub(crate) disk: Option<Spilling>,
}

/// The values equal to a key that goes on: how many are less, how many there are, and what is wanted of them.
struct Tie {
    key: KeyBits,
    below: u64,
    equal: u64,
    wanted: Vec<Wanted>,
}

impl ByteStringSelection {
    /// Memory that each thread needs between rounds, beside what it reads values into.
    pub(crate) const THREAD_BYTES: usize = DEALING_BYTES;

    /// Memory that each shard of keys begins with.
    pub(crate) const SHARD_BYTES: usize = 64 << 10;

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
        let wanted = solution.ranks.iter().enumerate();
        let wanted = wanted.map(|(answer, rank)| Wanted { rank: *rank, answer });
        let mut levels = vec![Level {
            values: Arc::new(values),
            before: Vec::new(),
            which: Which::All,
            n,
            known: 0,
            depth: 1,
            wanted: wanted.collect(),
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

    /// Levels of few values, by comparing them. Those come back that there is no memory for.
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
        let compared = match is_little && !levels.iter().any(|level| level.values.is_spilled()) {
            true => {
                let stop = Stop::default();
                let compared = levels.into_iter().map(|level| compare(level, &stop));
                compared.collect::<Result<Vec<_>>>()?
            }
            false => self.pool.map(levels, compare).await?,
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

    /// A level of many values: answers what prefix keys tell, and returns the levels behind the keys that go on.
    async fn refine(&self, level: Level, solution: &mut ByteStringSolution) -> Result<Vec<Level>> {
        solution.levels = solution.levels.max(level.depth);
        let bounds = match &level.which {
            Which::Places(lists) => self.bounds_at(&level, lists.clone()).await?,
            Which::All => match level.values.bounds() {
                Some(bounds) if bounds.is_cut() => self.bounds_of_all(&level).await?,
                bounds => bounds.cloned(),
            },
        };
        let Some(bounds) = bounds else {
            return internal_err!("{} ranks are wanted of no values", level.wanted.len());
        };
        // Strings that one key holds whole need no second look; others are told apart by as many bytes as there can be.
        match bounds.longest - bounds.prefix.len() {
            0 => {
                for wanted in &level.wanted {
                    solution.answers[wanted.answer] = level.answer(&bounds.prefix);
                }
                Ok(Vec::new())
            }
            1..=<u64 as PrefixKey>::BYTES => self.by_keys::<u64>(level, &bounds.prefix, solution).await,
            _ => self.by_keys::<u128>(level, &bounds.prefix, solution).await,
        }
    }

    async fn bounds_at(&self, level: &Level, lists: Vec<Arc<Vec<At>>>) -> Result<Option<Bounds>> {
        let (values, known) = (Arc::clone(&level.values), level.known);
        let of_list = move |list: Arc<Vec<At>>, _: &Stop| Ok(values.bounds_of(&list, known));
        let each = self.pool.map(lists, of_list).await?;
        Ok(each.into_iter().flatten().reduce(Bounds::joined))
    }

    /// By reading all values: their common prefix is long.
    async fn bounds_of_all(&self, level: &Level) -> Result<Option<Bounds>> {
        let (values, round_memory) = (Arc::clone(&level.values), Arc::clone(&self.round_memory));
        let longest = values.bounds().map_or(0, |bounds| bounds.longest);
        let of_share = move |share: Share, stop: &Stop| {
            let bytes = values.largest_block() + longest;
            let _held = round_memory.hold(bytes, "a common prefix")?;
            let mut all: Option<Bounds> = None;
            Reader::new(Arc::clone(&values)).each(&share, stop, |value| {
                match &mut all {
                    Some(bounds) => bounds.add(value),
                    none => *none = Some(Bounds::of(value)),
                }
                Ok(())
            })?;
            Ok(all)
        };
        let each = self.pool.map(self.shares(level), of_share).await?;
        Ok(each.into_iter().flatten().reduce(Bounds::joined))
    }

    async fn by_keys<K: PrefixKey>(
        &self,
        level: Level,
        prefix: &[u8],
        solution: &mut ByteStringSolution,
    ) -> Result<Vec<Level>> {
        let shards = self.shards::<K>(&level, prefix.len()).await?;
        let shards = LocalShards::on(K::spec().width(), shards, self.pool.another());
        let mut shards = shards.within(self.budget, Arc::clone(&self.round_memory));
        let ranks: Vec<u64> = level.wanted.iter().map(|wanted| wanted.rank).collect();
        let strategy = self
            .strategy
            .strategy(level.n, &ranks, shards.parallelism(), &shards.budget())?;
        let keys = solve_ranks(&mut shards, strategy.as_ref(), ranks).await?;
        let mut tied: BTreeMap<KeyBits, Vec<Wanted>> = BTreeMap::new();
        for wanted in &level.wanted {
            let key = keys.key_at(wanted.rank)?;
            match K::whole(key) {
                Some(length) => {
                    let value = [prefix, &K::bytes(key)[..length]].concat();
                    solution.answers[wanted.answer] = level.answer(&value);
                }
                None => tied.entry(key).or_default().push(*wanted),
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

    /// Shards with the keys of what follows the common prefix.
    async fn shards<K: PrefixKey>(&self, level: &Level, common: usize) -> Result<Vec<Box<dyn Shard>>> {
        let (values, backend) = (Arc::clone(&level.values), Arc::clone(&self.backend));
        let round_memory = Arc::clone(&self.round_memory);
        let shares = self.shares(level).into_iter();
        let items = shares.map(|share| (share, self.memory.new_empty()));
        let fill = move |(share, memory): (Share, MemoryReservation), stop: &Stop| {
            may_fail!("value_keys");
            // One block is filled while the shard takes in the other.
            let bytes = 2 * BLOCK * size_of::<K>() + values.largest_block();
            let _held = round_memory.hold(bytes, "keys of values")?;
            let mut reader = Reader::new(Arc::clone(&values));
            let mut shard = backend.open(&K::spec(), memory)?;
            let mut keys = Vec::with_capacity(BLOCK);
            reader.each(&share, stop, |value| {
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
        self.pool.map(items.collect(), fill).await
    }
}

/// How many values are less than each key (not the largest), and how many are equal.
async fn count_ties(shards: &mut dyn Shards, tied: BTreeMap<KeyBits, Vec<Wanted>>) -> Result<Vec<Tie>> {
    let most = COUNTED.min(shards.budget().cells / 2).max(1);
    let mut ties = Vec::with_capacity(tied.len());
    let mut tied = tied.into_iter().peekable();
    while tied.peek().is_some() {
        let part: Vec<_> = tied.by_ref().take(most).collect();
        let edges = part.iter().flat_map(|(key, _)| [*key, key + 1]);
        let cells = Cells::Edges(Edges::try_new(edges.collect())?);
        let request = Arc::new(Request::Count {
            cells: cells.clone(),
            within: Brackets::all(shards.width()),
            keep: Vec::new(),
        });
        let Reply::Counts { counts, .. } = shards.round(request).await? else {
            return internal_err!("a count is answered by counts");
        };
        let mut before = Vec::with_capacity(counts.len());
        let mut sum = 0;
        for count in &counts {
            before.push(sum);
            sum += count;
        }
        for (key, wanted) in part {
            let cell = cells.cell(key).map(|cell| cell as usize);
            let counted = cell.and_then(|cell| Some((*before.get(cell)?, *counts.get(cell)?)));
            let (below, equal) =
                counted.ok_or_else(|| internal_datafusion_err!("key {key} was not counted"))?;
            ties.push(Tie {
                key,
                below,
                equal,
                wanted,
            });
        }
    }
    Ok(ties)
}

#[cfg(test)]
mod tests;
