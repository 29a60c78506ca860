//! Count and discard: each round has one pivot. Every shard counts its keys below, at and above the pivot, and the side without the rank is
//! dropped. Al-Furaih's select reduces the counts in a tree, Jeffers's collects them (GK Select, sections IV-2 and IV-3).
//!
//! ```text
//! host:   order ── broadcast ──> shards: partition, count, draw a candidate from each side
//!           ^                                        │ tree or flat
//!           └── rank below: the lower candidate <── tally: counts summed, of two candidates one kept, weighted
//!               by counts (a reservoir of one), so that the next pivot is any key of its side with equal chance
//! ```
//!
//! Shards send a candidate pivot of both sides, which saves the round that would ask for the next pivot. Two things are added to the
//! source. Ranks share rounds: ranks that lie together have one open interval. And few candidates are fetched at once.

use std::ops::Range;

use datafusion::common::Result;

use super::samplesort::Random;
use super::{KeyLists, Setup, partition};
use crate::cluster::{Cluster, Gather};
use crate::message_log::Counted;
use datafusion_quantiles::key::Key;
use datafusion_quantiles::wire::{Message, Reader, put, put_key, put_keys};

/// The keys of the ranks (from 1, ascending, distinct, at most the number of keys).
///
/// # Errors
/// Internal errors only: a message that cannot be read from its bytes.
pub(super) fn select<K: Key>(
    cluster: &mut Cluster,
    shards: Vec<Vec<K>>,
    ranks: &[u64],
    gather: Gather,
    setup: &Setup,
) -> Result<Vec<K>> {
    let square = (cluster.shards() as u64).pow(2);
    let mut host = Host::new(&shards, ranks, setup.few.unwrap_or(square), setup.seed);
    let mut piles: Vec<Pile<K>> = shards
        .into_iter()
        .zip(1..)
        .map(|(keys, number)| Pile::new(keys, setup.seed.wrapping_add(number << 32)))
        .collect();
    while let Some(order) = host.order() {
        let orders = cluster.broadcast("order", &order)?;
        if order.pivots.is_empty() {
            let rest = cluster.local("rest", &mut piles, |shard, pile| Ok(pile.rest(&orders[shard])))?;
            let rest = cluster.gather("rest", gather, rest, |_, lower, upper| {
                Ok(lower.join(upper, |keys, _| keys))
            })?;
            cluster.host("select", || host.finish(rest));
            break;
        }
        let tallies = cluster.local("partition", &mut piles, |shard, pile| {
            Ok(pile.count(&orders[shard]))
        })?;
        let round = host.next_seed();
        let tally = cluster.gather("counts", gather, tallies, |number, lower, upper| {
            Ok(lower.add(upper, &mut Random::new(round.wrapping_add(number))))
        })?;
        host.decide(&tally);
    }
    Ok(host.found)
}

/// A run of ranks that no pivot has parted yet.
#[derive(Debug, Clone)]
struct Interval<K> {
    /// Indices of the ranks.
    ranks: Range<usize>,
    /// Number of keys below the interval.
    skipped: u64,
    /// Number of keys inside the interval.
    candidates: u64,
    /// The next pivot.
    pivot: K,
}

/// The state of the host, which turns tallies into orders.
struct Host<'a, K> {
    ranks: &'a [u64],
    found: Vec<K>,
    open: Vec<Interval<K>>,
    /// Whether each side of the last pivots is an open interval. At first there is one side with all keys.
    keep: Vec<bool>,
    few: u64,
    random: Random,
}

impl<'a, K: Key> Host<'a, K> {
    /// The host's first state. The first pivot is one of its own keys, if it has any, so that no message is needed.
    fn new(shards: &[Vec<K>], ranks: &'a [u64], few: u64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let pivot = shards.first().and_then(|keys| draw(keys, &mut random));
        let whole = Interval {
            ranks: 0..ranks.len(),
            skipped: 0,
            candidates: shards.iter().map(|keys| keys.len() as u64).sum(),
            pivot: pivot.unwrap_or_default(),
        };
        Self {
            ranks,
            found: vec![K::default(); ranks.len()],
            open: vec![whole],
            keep: vec![true],
            few,
            random,
        }
    }

    fn next_seed(&mut self) -> u64 {
        self.random.next()
    }

    /// The next order to the shards; `None` when all ranks are found. An order without pivots asks for all remaining keys.
    fn order(&self) -> Option<Order<K>> {
        let candidates: u64 = self.open.iter().map(|interval| interval.candidates).sum();
        let pivots = if candidates <= self.few {
            vec![]
        } else {
            self.open.iter().map(|interval| interval.pivot).collect()
        };
        (!self.open.is_empty()).then(|| Order {
            keep: self.keep.clone(),
            pivots,
        })
    }

    fn decide(&mut self, tally: &Tally<K>) {
        self.keep.clear();
        let intervals = std::mem::take(&mut self.open);
        for (interval, count) in intervals.into_iter().zip(&tally.0) {
            let equal_start = interval.skipped + count.below.keys;
            let equal_end = equal_start + count.equal;
            let until = |end| {
                interval.ranks.start + self.ranks[interval.ranks.clone()].partition_point(|rank| *rank <= end)
            };
            let (lower_end, upper_start) = (until(equal_start), until(equal_end));
            self.found[lower_end..upper_start].fill(interval.pivot);
            self.open_side(interval.ranks.start..lower_end, interval.skipped, &count.below);
            self.open_side(upper_start..interval.ranks.end, equal_end, &count.above);
        }
    }

    fn open_side(&mut self, ranks: Range<usize>, skipped: u64, side: &Side<K>) {
        self.keep.push(!ranks.is_empty());
        if let (false, Some(pivot)) = (ranks.is_empty(), side.candidate) {
            self.open.push(Interval {
                ranks,
                skipped,
                candidates: side.keys,
                pivot,
            });
        }
    }

    /// Selects the keys of all open intervals from their remaining keys.
    fn finish(&mut self, mut rest: KeyLists<K>) {
        for (interval, keys) in self.open.iter().zip(&mut rest.0) {
            let ranks = self.ranks[interval.ranks.clone()].iter();
            let at: Vec<usize> = ranks.map(|rank| (rank - interval.skipped - 1) as usize).collect();
            let found = partition::select(keys, &at, &mut self.random);
            self.found[interval.ranks.clone()].copy_from_slice(&found);
        }
    }
}

/// The state of a shard.
struct Pile<K> {
    keys: Vec<K>,
    /// Positions of the keys on both sides of each of the last pivots. At first there is one side with all keys.
    sides: Vec<Range<usize>>,
    random: Random,
}

impl<K: Key> Pile<K> {
    fn new(keys: Vec<K>, seed: u64) -> Self {
        let whole = 0..keys.len();
        Self {
            keys,
            sides: Vec::from([whole]),
            random: Random::new(seed),
        }
    }

    fn kept(&mut self, order: &Order<K>) -> Vec<Range<usize>> {
        let sides = std::mem::take(&mut self.sides).into_iter().zip(&order.keep);
        sides.filter(|(_, keep)| **keep).map(|(side, _)| side).collect()
    }

    fn count(&mut self, order: &Order<K>) -> Tally<K> {
        let mut counts = vec![];
        for (range, pivot) in self.kept(order).into_iter().zip(&order.pivots) {
            let (below, equal) = partition::partition(&mut self.keys[range.clone()], *pivot);
            let sides = [
                range.start..range.start + below,
                range.start + below + equal..range.end,
            ];
            let [below, above] = sides.clone().map(|side| Side {
                keys: side.len() as u64,
                candidate: draw(&self.keys[side], &mut self.random),
            });
            self.sides.extend(sides);
            counts.push(Count {
                below,
                equal: equal as u64,
                above,
            });
        }
        Tally(counts)
    }

    fn rest(&mut self, order: &Order<K>) -> KeyLists<K> {
        let kept = self.kept(order).into_iter();
        KeyLists(kept.map(|range| self.keys[range].to_vec()).collect())
    }
}

/// A random key, each with equal chance; `None` without keys.
fn draw<K: Key>(keys: &[K], random: &mut Random) -> Option<K> {
    match keys.len() as u64 {
        0 => None,
        len => Some(keys[random.below(len) as usize]),
    }
}

/// The host's message to the shards.
struct Order<K> {
    /// Whether each side of the last pivots is still searched.
    keep: Vec<bool>,
    /// The next pivot of each side that is searched. Without any, shards send their remaining keys.
    pivots: Vec<K>,
}

impl<K: Key> Message for Order<K> {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.keep.len() as u64);
        out.extend(self.keep.iter().map(|keep| u8::from(*keep)));
        put_keys(out, &self.pivots);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            keep: input.list("sides", |input| input.flag("side"))?,
            pivots: input.keys()?,
        })
    }
}

impl<K: Key> Counted for Order<K> {
    fn values(&self) -> u64 {
        self.pivots.len() as u64
    }
}

/// One side of a pivot.
#[derive(Debug, Clone)]
struct Side<K> {
    /// Number of keys.
    keys: u64,
    /// One of the keys, each with equal chance.
    candidate: Option<K>,
}

impl<K: Key> Side<K> {
    fn add(self, other: Self, random: &mut Random) -> Self {
        let keys = self.keys + other.keys;
        let others = keys > 0 && random.below(keys) >= self.keys;
        Self {
            keys,
            candidate: if others { other.candidate } else { self.candidate },
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.keys);
        self.candidate.into_iter().for_each(|key| put_key(out, key));
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let keys = input.number("count")?;
        let candidate = (keys > 0).then(|| input.key()).transpose()?;
        Ok(Self { keys, candidate })
    }
}

/// The counts of one interval around its pivot.
#[derive(Debug, Clone)]
struct Count<K> {
    below: Side<K>,
    equal: u64,
    above: Side<K>,
}

/// A shard's message to the host: the counts of each interval.
struct Tally<K>(Vec<Count<K>>);

impl<K: Key> Tally<K> {
    fn add(self, other: Self, random: &mut Random) -> Self {
        let pairs = self.0.into_iter().zip(other.0);
        let add = |(own, other): (Count<K>, Count<K>)| Count {
            below: own.below.add(other.below, random),
            equal: own.equal + other.equal,
            above: own.above.add(other.above, random),
        };
        Tally(pairs.map(add).collect())
    }
}

impl<K: Key> Message for Tally<K> {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.0.len() as u64);
        for count in &self.0 {
            count.below.write(out);
            put(out, count.equal);
            count.above.write(out);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let count = |input: &mut Reader<'_>| {
            Ok(Count {
                below: Side::read(input)?,
                equal: input.number("count")?,
                above: Side::read(input)?,
            })
        };
        input.list("counts", count).map(Tally)
    }
}

impl<K: Key> Counted for Tally<K> {
    fn values(&self) -> u64 {
        let candidates = |side: &Side<K>| u64::from(side.candidate.is_some());
        let values = |count: &Count<K>| 3 + candidates(&count.below) + candidates(&count.above);
        self.0.iter().map(values).sum()
    }
}
