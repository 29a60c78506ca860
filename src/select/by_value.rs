//! Order statistics of byte strings: prefix keys go through the ordinary rounds, ties are refined level by level.
//!
//! ```text
//! common prefix of all     key of the next bytes         ranks whose key goes on: gather the values
//! "trips/2026-11-"     ->  "01/oslo/000417.."        ->  with that key, and again behind what these
//!                          rounds over u64 or u128       have in common
//! ```
//! Cost: a copy of the values, one read of them to make keys (8 or 16 bytes each, while rounds run), the rounds, and
//! where keys go on one more read that finds the values behind the wanted keys. Few values are selected by comparing
//! them. Long common prefixes cost nothing but their bytes. It loses where most values share long prefixes without all
//! of them sharing one: each level then gathers most of what the level before had.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, new_null_array};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::quantile::by_value::Picked;
use super::workers::Workers;
use super::{Ask, Shards, Solution, StrategyName, solve_ranks, wanted_ranks};
use crate::kernel::buckets::{Cells, Edges};
use crate::kernel::round::{Brackets, Reply, Request};
use crate::kernel::values::{At, Bounds, Values};
use crate::kernel::{Backend, Lane, Stop};
use crate::key::{ByteSpec, KeyBits, PrefixKey};

/// Up to this many values are selected by comparing them.
const FEW: u64 = 1 << 14;

/// Keys that go to a lane at a time.
const BLOCK: usize = 8192;

/// Keys whose ties are counted in one round: each takes two edges.
const COUNTED: usize = 1 << 14;

/// Places in one list of a level.
const LIST: usize = 1 << 16;

/// The order statistics of byte strings.
#[derive(Debug)]
pub(crate) struct ValueSolution {
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

impl ValueSolution {
    /// The value of a rank that one of the questions needs.
    ///
    /// # Errors
    /// An internal error for any other rank.
    pub(crate) fn value_at(&self, rank: u64) -> Result<&[u8]> {
        let at = self.ranks.binary_search(&rank);
        at.map(|at| self.answers[at].as_slice())
            .map_err(|_| internal_datafusion_err!("rank {rank} was not selected"))
    }

    /// The answers to one of the questions, as [`Ask::answers`] gives them.
    ///
    /// # Errors
    /// Those of [`ByteSpec::to_array`]; an internal error if `ask` was not asked.
    pub(crate) fn answers(&self, ask: &Ask, spec: &ByteSpec) -> Result<ArrayRef> {
        if self.n == 0 {
            let one = ask.method.result_type(spec.data_type())?;
            return Ok(new_null_array(&one, ask.quantiles.len()));
        }
        let mut picked = Picked::new(ask.method);
        picked.add(ask, self.n, &|rank| self.value_at(rank))?;
        picked.finish(spec)
    }
}

/// Finds the order statistics that all of `asks` need.
pub(crate) struct ValueSelection {
    pub(crate) values: Arc<Values>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) strategy: StrategyName,
    pub(crate) workers: Workers,
    /// For keys and places; the values have theirs.
    pub(crate) memory: MemoryReservation,
}

/// Values that share their first bytes, and what is wanted of them.
struct Level {
    lists: Vec<List>,
    n: u64,
    /// How many first bytes of all are equal, at least.
    known: usize,
    /// 1 for all values.
    depth: usize,
    wanted: Vec<Wanted>,
    _reservation: Option<MemoryReservation>,
}

impl Level {
    /// The answers by comparing values: which, and where they are.
    fn select(&self, values: &Values) -> Result<Vec<(usize, At)>> {
        let mut places = Vec::with_capacity(self.n as usize);
        for list in &self.lists {
            list.each(values, |at, _| {
                places.push(at);
                Ok(())
            })?;
        }
        let ranks: Vec<u64> = self.wanted.iter().map(|wanted| wanted.rank).collect();
        let answers = self.wanted.iter().map(|wanted| wanted.answer);
        Ok(answers.zip(values.select(&places, self.known, &ranks)).collect())
    }
}

/// A rank among the values of a level, and where the answer goes.
#[derive(Clone, Copy)]
struct Wanted {
    rank: u64,
    answer: usize,
}

/// A part of a level's values.
#[derive(Clone)]
enum List {
    Chunk(u32),
    Places(Arc<Vec<At>>),
}

impl List {
    fn len(&self, values: &Values) -> usize {
        match self {
            List::Chunk(chunk) => values.chunk_len(*chunk),
            List::Places(places) => places.len(),
        }
    }

    fn each(&self, values: &Values, mut each: impl FnMut(At, &[u8]) -> Result<()>) -> Result<()> {
        match self {
            List::Chunk(chunk) => values.chunk(*chunk).try_for_each(|(at, value)| each(at, value)),
            List::Places(places) => places.iter().try_for_each(|at| each(*at, values.value(*at))),
        }
    }

    fn bounds(&self, values: &Values, known: usize) -> Option<Bounds> {
        match self {
            List::Places(places) => values.bounds_of(places, known),
            List::Chunk(_) => None,
        }
    }
}

/// Wanted keys that go on, with what is wanted behind each.
type Ties = BTreeMap<KeyBits, Vec<Wanted>>;

/// The values equal to a key: how many are less, and how many there are.
struct Tie {
    key: KeyBits,
    below: u64,
    equal: u64,
}

impl ValueSelection {
    /// # Errors
    /// `ResourcesExhausted` if the pool refuses memory for keys; those of the rounds; an execution error when cancelled.
    pub(crate) async fn solve(&self, asks: &[&Ask]) -> Result<ValueSolution> {
        let n = self.values.len();
        let ranks = wanted_ranks(asks, n);
        let mut solution = ValueSolution {
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
            lists: (0..self.values.chunks()).map(List::Chunk).collect(),
            n,
            known: 0,
            depth: 1,
            wanted: wanted.collect(),
            _reservation: None,
        }];
        while !levels.is_empty() {
            let few: Vec<Level> = levels.extract_if(.., |level| level.n <= FEW).collect();
            self.compare(few, &mut solution).await?;
            if let Some(level) = levels.pop() {
                levels.extend(self.refine(level, &mut solution).await?);
            }
        }
        Ok(solution)
    }

    /// Levels of few values, by comparing them.
    async fn compare(&self, levels: Vec<Level>, solution: &mut ValueSolution) -> Result<()> {
        let deepest = levels.iter().map(|level| level.depth).max();
        solution.levels = solution.levels.max(deepest.unwrap_or(0));
        // Waking threads would cost more.
        let found = match levels.iter().map(|level| level.n).sum::<u64>() <= FEW {
            true => {
                let selected = levels.iter().map(|level| level.select(&self.values));
                selected.collect::<Result<Vec<_>>>()?
            }
            false => {
                let values = Arc::clone(&self.values);
                let select = move |level: Level, _: &Stop| level.select(&values);
                self.workers.map(levels, select).await?
            }
        };
        for (answer, at) in found.into_iter().flatten() {
            solution.answers[answer] = self.values.value(at).to_vec();
        }
        Ok(())
    }

    /// A level of many values: answers what prefix keys tell, and returns the levels behind the keys that go on.
    async fn refine(&self, level: Level, solution: &mut ValueSolution) -> Result<Vec<Level>> {
        solution.levels = solution.levels.max(level.depth);
        let bounds = match level.lists.first() {
            Some(List::Chunk(_)) => self.values.bounds(),
            _ => self.bounds(&level).await?,
        };
        let Some(bounds) = bounds else {
            return internal_err!("{} ranks are wanted of no values", level.wanted.len());
        };
        // Strings that one key holds whole need no second look; others are told apart by as many bytes as there can be.
        match bounds.longest - bounds.common {
            0 => {
                for wanted in &level.wanted {
                    solution.answers[wanted.answer] = self.values.value(bounds.first).to_vec();
                }
                Ok(Vec::new())
            }
            1..=<u64 as PrefixKey>::BYTES => self.by_keys::<u64>(level, bounds, solution).await,
            _ => self.by_keys::<u128>(level, bounds, solution).await,
        }
    }

    async fn bounds(&self, level: &Level) -> Result<Option<Bounds>> {
        let (values, known) = (Arc::clone(&self.values), level.known);
        let each = self
            .workers
            .map(
                level.lists.clone(),
                move |list, _| Ok(list.bounds(&values, known)),
            )
            .await?;
        Ok(each.into_iter().flatten().reduce(|a, b| self.values.joined(a, b)))
    }

    async fn by_keys<K: PrefixKey>(
        &self,
        level: Level,
        bounds: Bounds,
        solution: &mut ValueSolution,
    ) -> Result<Vec<Level>> {
        let lanes = self.lanes::<K>(&level, bounds.common).await?;
        let mut shards = self.workers.shards(K::spec().width(), lanes);
        let ranks: Vec<u64> = level.wanted.iter().map(|wanted| wanted.rank).collect();
        let strategy = self
            .strategy
            .strategy(level.n, &ranks, shards.parallelism(), &shards.room())?;
        let keys = solve_ranks(&mut shards, strategy.as_ref(), ranks).await?;
        let prefix = &self.values.value(bounds.first)[..bounds.common];
        let mut ties = Ties::new();
        for wanted in &level.wanted {
            let key = keys.key_at(wanted.rank)?;
            match K::whole(key) {
                Some(length) => {
                    solution.answers[wanted.answer] = [prefix, &K::bytes(key)[..length]].concat();
                }
                None => ties.entry(key).or_default().push(*wanted),
            }
        }
        solution.rounds.push(keys);
        if ties.is_empty() {
            return Ok(Vec::new());
        }
        let tied: Vec<KeyBits> = ties.keys().copied().collect();
        let counts = count_ties(&mut shards, &tied).await?;
        drop(shards);
        solution.refined += counts.iter().map(|tie| tie.equal).sum::<u64>();
        self.gather::<K>(&level, bounds.common, counts, ties).await
    }

    /// Lanes with the keys of what follows the common prefix.
    async fn lanes<K: PrefixKey>(&self, level: &Level, common: usize) -> Result<Vec<Box<dyn Lane>>> {
        let shares = self.shares(level);
        let (values, backend) = (Arc::clone(&self.values), Arc::clone(&self.backend));
        let items = shares.into_iter().map(|share| (share, self.memory.new_empty()));
        let fill = move |(share, memory): (Vec<List>, MemoryReservation), stop: &Stop| {
            let mut lane = backend.open(&K::spec(), memory)?;
            let mut keys = Vec::with_capacity(BLOCK);
            for list in share {
                stop.check()?;
                list.each(&values, |_, value| {
                    keys.push(K::of(&value[common..]));
                    if keys.len() < BLOCK {
                        return Ok(());
                    }
                    let full = std::mem::replace(&mut keys, Vec::with_capacity(BLOCK));
                    lane.append(&K::array(full), None)
                })?;
            }
            lane.append(&K::array(keys), None)?;
            Ok(lane)
        };
        self.workers.map(items.collect(), fill).await
    }

    /// A level's lists in about equal parts, one a thread.
    fn shares(&self, level: &Level) -> Vec<Vec<List>> {
        let most = (level.n as usize).div_ceil(self.workers.threads());
        let mut shares: Vec<Vec<List>> = vec![Vec::new()];
        let mut len = 0;
        for list in &level.lists {
            if len >= most {
                shares.push(Vec::new());
                len = 0;
            }
            len += list.len(&self.values);
            if let Some(share) = shares.last_mut() {
                share.push(list.clone());
            }
        }
        shares
    }

    /// One read of a level: the places of the values behind each tied key, as levels of their own.
    async fn gather<K: PrefixKey>(
        &self,
        level: &Level,
        common: usize,
        counts: Vec<Tie>,
        ties: Ties,
    ) -> Result<Vec<Level>> {
        let reservations = counts.iter().map(|tie| {
            let reservation = self.memory.new_empty();
            reservation.try_grow(tie.equal as usize * size_of::<At>())?;
            Ok(reservation)
        });
        let reservations = reservations.collect::<Result<Vec<_>>>()?;
        let keys: Vec<K> = counts.iter().map(|tie| K::from_bits(tie.key)).collect();
        let (values, finder, count) = (Arc::clone(&self.values), Finder::new(keys), counts.len());
        let find = move |share: Vec<List>, stop: &Stop| {
            let mut found: Vec<Vec<Vec<At>>> = vec![Vec::new(); count];
            for list in share {
                stop.check()?;
                list.each(&values, |at, value| {
                    if let Some(index) = finder.find(K::of(&value[common..])) {
                        append(&mut found[index as usize], &[at]);
                    }
                    Ok(())
                })?;
            }
            Ok(found)
        };
        let mut lists: Vec<Vec<Vec<At>>> = vec![Vec::new(); counts.len()];
        for share in self.workers.map(self.shares(level), find).await? {
            for (lists, found) in lists.iter_mut().zip(share) {
                for places in found {
                    append(lists, &places);
                }
            }
        }
        let parts = counts
            .into_iter()
            .zip(ties.into_values())
            .zip(lists)
            .zip(reservations);
        let levels = parts.map(|(((tie, mut wanted), lists), reservation)| {
            wanted.iter_mut().for_each(|wanted| wanted.rank -= tie.below);
            Level {
                lists: lists
                    .into_iter()
                    .map(|places| List::Places(Arc::new(places)))
                    .collect(),
                n: tie.equal,
                known: common + K::BYTES,
                depth: level.depth + 1,
                wanted,
                _reservation: Some(reservation),
            }
        });
        Ok(levels.collect())
    }
}

/// Appends places to lists of bounded length.
fn append(lists: &mut Vec<Vec<At>>, places: &[At]) {
    match lists.last_mut() {
        Some(last) if last.len() + places.len() <= LIST => last.extend_from_slice(places),
        _ => lists.push(places.to_vec()),
    }
}

/// How many values are less than each key (ascending, distinct, not the largest), and how many are equal.
async fn count_ties(shards: &mut dyn Shards, keys: &[KeyBits]) -> Result<Vec<Tie>> {
    let mut ties = Vec::with_capacity(keys.len());
    for part in keys.chunks(COUNTED) {
        let edges = Edges::try_new(part.iter().flat_map(|key| [*key, key + 1]).collect())?;
        let cells = Cells::Edges(edges);
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
        for key in part {
            let cell = cells.cell(*key).map(|cell| cell as usize);
            let counted = cell.and_then(|cell| Some((*before.get(cell)?, *counts.get(cell)?)));
            let (below, equal) =
                counted.ok_or_else(|| internal_datafusion_err!("key {key} was not counted"))?;
            ties.push(Tie {
                key: *key,
                below,
                equal,
            });
        }
    }
    Ok(ties)
}

/// Finds which of some keys a key is: a small table of bits says no for most.
struct Finder<K> {
    keys: Vec<K>,
    bits: Box<[u64; 1 << 10]>,
}

impl<K: PrefixKey> Finder<K> {
    /// `keys` ascending.
    fn new(keys: Vec<K>) -> Self {
        let mut bits = Box::new([0; 1 << 10]);
        for key in &keys {
            let bit = Self::bit(*key);
            bits[bit >> 6] |= 1 << (bit & 63);
        }
        Self { keys, bits }
    }

    /// Its bit: the upper 16 of a product that every bit of the key goes into.
    fn bit(key: K) -> usize {
        let bits = key.to_bits();
        let mixed = (bits as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (bits >> 64) as u64;
        (mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 48) as usize
    }

    fn find(&self, key: K) -> Option<u32> {
        let bit = Self::bit(key);
        if self.bits[bit >> 6] >> (bit & 63) & 1 == 0 {
            return None;
        }
        self.keys.binary_search(&key).ok().map(|index| index as u32)
    }
}

#[cfg(test)]
mod tests;
