//! GK Select as in its paper (section V): three actions, with one pivot for each rank.
//!
//! ```text
//! action 1   sketches, collected: the pivot is the key that the merged sketch has for the rank
//! action 2   keys below the pivot and equal to it, collected: the pivot is off by dk ranks
//! action 3   the dk keys next to the pivot on the side of the rank, of every shard, cut to dk at each node of a tree
//! ```
//! Two things are added to the paper: ranks share the actions, and keys equal to the pivot are counted, so that duplicates end the search.

use datafusion::common::{Result, exec_datafusion_err, internal_err};

use super::{KeyLists, Setup, partition};
use crate::cluster::{Cluster, Gather};
use crate::message_log::Counted;
use datafusion_quantiles::kernel::round_messages::{put_summary, summary};
use datafusion_quantiles::key::{Key, Width};
use datafusion_quantiles::select::gk_select::GkSelect;
use datafusion_quantiles::sketch::{AnySketch, AnySummary, Epsilon, Variant};
use datafusion_quantiles::wire::{Message, Reader, put, put_key, put_numbers};

/// The keys of the ranks (from 1, ascending, distinct, at most the number of keys).
///
/// # Errors
/// Internal errors only: a message that cannot be read from its bytes.
pub(super) fn select<K: Key>(
    cluster: &mut Cluster,
    shards: Vec<Vec<K>>,
    ranks: &[u64],
    setup: &Setup,
) -> Result<Vec<K>> {
    let n = shards.iter().map(|keys| keys.len() as u64).sum();
    let eps = match setup.eps {
        Some(eps) => eps,
        None => GkSelect::try_new(n, shards.len(), ranks.len(), u64::MAX)?.epsilon(),
    };
    let pivots = pivots(cluster, &shards, ranks, eps)?;
    let orders = cluster.broadcast("pivots", &pivots)?;
    let parts = cluster.local("count", shards, |shard, keys| Ok(Part::new(keys, &orders[shard])))?;
    let counts = parts.iter().map(|part| part.counts.clone()).collect();
    let counts = cluster.gather("counts", Gather::Flat, counts, |_, own, other| Ok(own.add(other)))?;
    let near = nearness(ranks, &pivots, &counts);
    if near.iter().all(|near| near.keys == 0) {
        return Ok(pivots);
    }
    let orders = cluster.broadcast("distances", &Distances(near.clone()))?;
    let candidates = cluster.local("candidates", parts, |shard, part| {
        Ok(part.candidates(&orders[shard].0))
    })?;
    let candidates = cluster.gather("candidates", Gather::Tree, candidates, |_, own, other| {
        Ok(own.join(other, |keys, index| near[index].cut(keys)))
    })?;
    let farthest = |(near, keys): (&Near<K>, &Vec<K>)| match (near.keys, near.is_above) {
        (0, _) => Some(near.pivot),
        (_, true) => keys.iter().max().copied(),
        (_, false) => keys.iter().min().copied(),
    };
    let found: Option<Vec<K>> = near.iter().zip(&candidates.0).map(farthest).collect();
    found.ok_or_else(|| exec_datafusion_err!("shards hold fewer keys than they counted"))
}

/// The pivot of each rank: its key in the merged sketch.
fn pivots<K: Key>(cluster: &mut Cluster, shards: &[Vec<K>], ranks: &[u64], eps: Epsilon) -> Result<Vec<K>> {
    let sketches = cluster.local("sketch", shards, |_, keys: &Vec<K>| {
        let mut sketch = AnySketch::new(width_of::<K>(), eps, Variant::default());
        sketch.extend_slice(keys)?;
        Ok(Sketched(sketch.partial()?))
    })?;
    let merge = |_, own: Sketched, other: Sketched| own.0.merge(other.0).map(Sketched);
    let summary = cluster.gather("sketches", Gather::Flat, sketches, merge)?.0;
    let pivot = |rank: &u64| Ok(K::from_bits(summary.value_at(*rank)?.0));
    ranks.iter().map(pivot).collect()
}

fn width_of<K: Key>() -> Width {
    match K::BITS {
        32 => Width::W32,
        64 => Width::W64,
        _ => Width::W128,
    }
}

/// A shard's keys, partitioned around all pivots.
struct Part<K> {
    keys: Vec<K>,
    counts: Counts,
}

impl<K: Key> Part<K> {
    /// Pivots are ascending; they may repeat. `log2` of their number passes over the keys.
    fn new(mut keys: Vec<K>, pivots: &[K]) -> Self {
        let mut counts = Counts {
            below: vec![0; pivots.len()],
            equal: vec![0; pivots.len()],
        };
        let mut open = vec![(0..keys.len(), 0..pivots.len())];
        while let Some((range, within)) = open.pop() {
            if within.is_empty() {
                continue;
            }
            let pivot = pivots[within.start + within.len() / 2];
            let (below, equal) = partition::partition(&mut keys[range.clone()], pivot);
            let (start, end) = (range.start + below, range.start + below + equal);
            let lower = pivots.partition_point(|other| *other < pivot);
            let upper = pivots.partition_point(|other| *other <= pivot);
            counts.below[lower..upper].fill(start as u64);
            counts.equal[lower..upper].fill(equal as u64);
            open.push((range.start..start, within.start..lower));
            open.push((end..range.end, upper..within.end));
        }
        Self { keys, counts }
    }

    fn candidates(&self, near: &[Near<K>]) -> KeyLists<K> {
        let counts = &self.counts;
        let ends: Vec<u64> = counts
            .below
            .iter()
            .zip(&counts.equal)
            .map(|(below, equal)| below + equal)
            .collect();
        let nearest = |(index, near): (usize, &Near<K>)| {
            // The keys from the pivot to the next pivot that is far enough.
            let (start, end) = if near.is_above {
                let enough = ends[index].saturating_add(near.keys);
                let next = counts.below.iter().find(|below| **below >= enough);
                (ends[index], next.copied().unwrap_or(self.keys.len() as u64))
            } else {
                let enough = counts.below[index];
                let next = ends
                    .iter()
                    .rev()
                    .find(|end| end.saturating_add(near.keys) <= enough);
                (next.copied().unwrap_or(0), enough)
            };
            near.cut(self.keys[start as usize..end as usize].to_vec())
        };
        KeyLists(near.iter().enumerate().map(nearest).collect())
    }
}

/// The side and the distance of each rank from its pivot.
fn nearness<K: Key>(ranks: &[u64], pivots: &[K], counts: &Counts) -> Vec<Near<K>> {
    let counts = counts.below.iter().zip(&counts.equal);
    let near = |((rank, pivot), (below, equal)): ((&u64, &K), (&u64, &u64))| Near {
        pivot: *pivot,
        is_above: *rank > *below,
        keys: if rank > below {
            rank.saturating_sub(below + equal)
        } else {
            below + 1 - rank
        },
    };
    ranks.iter().zip(pivots).zip(counts).map(near).collect()
}

/// The keys between a pivot and a rank.
#[derive(Debug, Clone)]
struct Near<K> {
    pivot: K,
    is_above: bool,
    /// Number of keys from the pivot to the rank: the paper's delta k.
    keys: u64,
}

impl<K: Key> Near<K> {
    /// The keys that may be among the nearest to the pivot, of keys on the side of the rank: at most [`Self::keys`], in any order.
    fn cut(&self, mut keys: Vec<K>) -> Vec<K> {
        let most = usize::try_from(self.keys).unwrap_or(usize::MAX);
        if keys.len() <= most {
            return keys;
        }
        if most == 0 {
            return vec![];
        }
        if self.is_above {
            keys.select_nth_unstable(most - 1);
        } else {
            keys.select_nth_unstable_by(most - 1, |own, other| other.cmp(own));
        }
        keys.truncate(most);
        keys
    }
}

/// A message with a sketch.
struct Sketched(AnySummary);

impl Message for Sketched {
    fn write(&self, out: &mut Vec<u8>) {
        put_summary(out, Some(&self.0));
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        match summary(input)? {
            Some(summary) => Ok(Sketched(summary)),
            None => input.damaged("no sketch"),
        }
    }
}

impl Counted for Sketched {
    fn values(&self) -> u64 {
        3 * self.0.len() as u64
    }
}

/// The numbers of keys below and equal to each pivot.
#[derive(Debug, Clone)]
struct Counts {
    below: Vec<u64>,
    equal: Vec<u64>,
}

impl Counts {
    fn add(mut self, other: Self) -> Self {
        let add =
            |own: &mut [u64], other: &[u64]| own.iter_mut().zip(other).for_each(|(own, more)| *own += more);
        add(&mut self.below, &other.below);
        add(&mut self.equal, &other.equal);
        self
    }
}

impl Message for Counts {
    fn write(&self, out: &mut Vec<u8>) {
        put_numbers(out, &self.below);
        put_numbers(out, &self.equal);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let (below, equal) = (input.numbers("counts")?, input.numbers("counts")?);
        if below.len() == equal.len() {
            Ok(Self { below, equal })
        } else {
            internal_err!("{} counts and {}", below.len(), equal.len())
        }
    }
}

impl Counted for Counts {
    fn values(&self) -> u64 {
        (self.below.len() + self.equal.len()) as u64
    }
}

/// The host's message to the shards: the keys to send around each pivot.
struct Distances<K>(Vec<Near<K>>);

impl<K: Key> Message for Distances<K> {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.0.len() as u64);
        for near in &self.0 {
            put_key(out, near.pivot);
            out.push(u8::from(near.is_above));
            put(out, near.keys);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let near = input.list("pivots", |input| {
            Ok(Near {
                pivot: input.key()?,
                is_above: input.flag("side")?,
                keys: input.number("distance")?,
            })
        });
        near.map(Distances)
    }
}

impl<K: Key> Counted for Distances<K> {
    fn values(&self) -> u64 {
        2 * self.0.len() as u64
    }
}
