//! Parallel sorting by regular sampling (Shi and Schaeffer 1992; GK Select, section IV-1), then the keys at the ranks, as Spark's full sort
//! does it.
//!
//! | step | collective | what is sent |
//! | --- | --- | --- |
//! | sort, sample every `s`-th key | broadcast, collect | `s`; `P^2` keys at most |
//! | cut at the splitters | broadcast, exchange | `P - 1` splitters; all keys that move |
//! | merge, pick | collect | the keys of the ranks |
//!
//! Splitters are positions in the order of (key, shard, position), not keys. So equal keys spread over shards like other keys, and with
//! `s = n / P^2` no shard gets more than `2n/P + 2P` keys, for any keys on any shards. Each piece is sent with the number of keys below it
//! on its shard. The sum of these numbers is the rank at which the receiver's keys begin, so that picking takes no further round.

use datafusion::common::Result;

use super::local_sort::{LocalSort, Sorters};
use crate::cluster::Cluster;
use crate::message_log::Counted;
use datafusion_quantiles::key::Key;
use datafusion_quantiles::wire::{Message, Reader, put, put_key, put_keys};

/// The keys of the ranks (from 1, ascending, distinct, at most the number of keys).
///
/// # Errors
/// Internal errors only: a message that cannot be read from its bytes.
pub(super) fn psrs<K: Key>(
    cluster: &mut Cluster,
    shards: Vec<Vec<K>>,
    ranks: &[u64],
    sort: LocalSort,
) -> Result<Vec<K>> {
    let sorters = Sorters::new(sort);
    let (pieces, plans) = shuffle(cluster, shards, ranks, &sorters)?;
    let picked = cluster.local("merge", pieces, |shard, pieces| {
        Ok(pick(pieces, &plans[shard].ranks, &sorters))
    })?;
    Ok(cluster
        .collect("answers", picked)?
        .into_iter()
        .flatten()
        .collect())
}

/// Number of keys that each shard gets.
#[cfg(test)]
pub(super) fn loads<K: Key>(cluster: &mut Cluster, shards: Vec<Vec<K>>) -> Result<Vec<usize>> {
    let (pieces, _) = shuffle(cluster, shards, &[], &Sorters::new(LocalSort::Standard))?;
    let load = |pieces: Vec<Piece<K>>| pieces.iter().map(|piece| piece.keys.len()).sum();
    Ok(pieces.into_iter().map(load).collect())
}

/// Sorts locally, cuts and exchanges. Returns each shard's pieces, and the plan that it received.
fn shuffle<K: Key>(
    cluster: &mut Cluster,
    shards: Vec<Vec<K>>,
    ranks: &[u64],
    sorters: &Sorters<K>,
) -> Result<(Received<K>, Vec<Plan<K>>)> {
    let sorted = cluster.local("sort", shards, |_, mut keys| {
        sorters.sort(&mut keys);
        Ok(keys)
    })?;
    let splitters = splitters(cluster, &sorted)?;
    let ranks = ranks.to_vec();
    let plans = cluster.broadcast("splitters", &Plan { splitters, ranks })?;
    Ok((exchange(cluster, sorted, &plans)?, plans))
}

/// The splitters between as many parts as there are shards, from every shard's regular sample, which the host sorts.
fn splitters<K: Key>(cluster: &mut Cluster, sorted: &[Vec<K>]) -> Result<Vec<Splitter<K>>> {
    let shards = cluster.shards();
    let population: usize = sorted.iter().map(Vec::len).sum();
    let stride = Stride(population.div_ceil(shards * shards).max(1) as u64);
    let strides = cluster.broadcast("stride", &stride)?;
    let samples = cluster.local("sample", sorted, |shard, keys: &Vec<K>| {
        let stride = strides[shard].0 as usize;
        Ok(keys.iter().skip(stride - 1).step_by(stride).copied().collect())
    })?;
    let samples: Vec<Vec<K>> = cluster.collect("samples", samples)?;
    let place = |shard: usize, (at, key): (usize, &K)| Splitter {
        key: *key,
        shard: shard as u64,
        position: (at as u64 + 1) * stride.0 - 1,
    };
    let places = |(shard, keys): (usize, &Vec<K>)| {
        let keys: Vec<_> = keys.iter().enumerate().map(|key| place(shard, key)).collect();
        keys
    };
    let mut all: Vec<Splitter<K>> = samples.iter().enumerate().flat_map(places).collect();
    all.sort_unstable();
    let at = |part| all.get(part * all.len() / shards).copied();
    Ok((1..shards).filter_map(at).collect())
}

/// Sends each part of each shard's keys to the shard with the part's number.
fn exchange<K: Key>(cluster: &mut Cluster, sorted: Vec<Vec<K>>, plans: &[Plan<K>]) -> Result<Received<K>> {
    let shards = cluster.shards();
    let cuts = cluster.local("cut", &sorted, |shard, keys: &Vec<K>| {
        let cuts = plans[shard]
            .splitters
            .iter()
            .map(|splitter| splitter.cut(shard as u64, keys));
        let mut cuts: Vec<usize> = std::iter::once(0).chain(cuts).collect();
        cuts.resize(shards + 1, keys.len());
        Ok(cuts)
    })?;
    cluster.exchange("exchange", |from, to, out| {
        let (start, end) = (cuts[from][to], cuts[from][to + 1]);
        put(out, start as u64);
        put_keys(out, &sorted[from][start..end]);
    })
}

/// The keys of the ranks that lie in a receiver's part, which it merges from pieces.
fn pick<K: Key>(pieces: Vec<Piece<K>>, ranks: &[u64], sorters: &Sorters<K>) -> Vec<K> {
    let first: u64 = pieces.iter().map(|piece| piece.below).sum();
    let keys = sorters.merge(pieces.into_iter().map(|piece| piece.keys).collect());
    let start = ranks.partition_point(|rank| *rank <= first);
    let end = ranks.partition_point(|rank| *rank <= first + keys.len() as u64);
    ranks[start..end]
        .iter()
        .map(|rank| keys[(rank - first - 1) as usize])
        .collect()
}

/// The distance between sampled keys.
struct Stride(u64);

impl Message for Stride {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.0);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        input.number("stride").map(Stride)
    }
}

impl Counted for Stride {
    fn values(&self) -> u64 {
        1
    }
}

/// A position in the order of all keys, where equal keys are ordered by shard and position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Splitter<K> {
    key: K,
    shard: u64,
    position: u64,
}

impl<K: Key> Splitter<K> {
    /// Number of a shard's sorted keys that are at this position or before it.
    fn cut(&self, shard: u64, keys: &[K]) -> usize {
        match shard.cmp(&self.shard) {
            std::cmp::Ordering::Less => keys.partition_point(|key| *key <= self.key),
            std::cmp::Ordering::Equal => self.position as usize + 1,
            std::cmp::Ordering::Greater => keys.partition_point(|key| *key < self.key),
        }
    }
}

/// The host's message to every shard, by which it cuts its keys and picks answers.
struct Plan<K> {
    splitters: Vec<Splitter<K>>,
    ranks: Vec<u64>,
}

impl<K: Key> Message for Plan<K> {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.splitters.len() as u64);
        for splitter in &self.splitters {
            put_key(out, splitter.key);
            put(out, splitter.shard);
            put(out, splitter.position);
        }
        put_keys(out, &self.ranks);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let splitters = input.list("splitters", |input| {
            Ok(Splitter {
                key: input.key()?,
                shard: input.number("shard")?,
                position: input.number("position")?,
            })
        })?;
        let ranks = input.keys()?;
        Ok(Self { splitters, ranks })
    }
}

impl<K: Key> Counted for Plan<K> {
    fn values(&self) -> u64 {
        3 * self.splitters.len() as u64 + self.ranks.len() as u64
    }
}

/// The pieces of every shard, in the order of their senders.
type Received<K> = Vec<Vec<Piece<K>>>;

/// The keys that one shard sends to another.
struct Piece<K> {
    /// Number of the sender's keys in earlier pieces.
    below: u64,
    /// The keys, ascending.
    keys: Vec<K>,
}

impl<K: Key> Message for Piece<K> {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.below);
        put_keys(out, &self.keys);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            below: input.number("number of keys below")?,
            keys: input.keys()?,
        })
    }
}

impl<K: Key> Counted for Piece<K> {
    fn values(&self) -> u64 {
        1 + self.keys.len() as u64
    }
}
