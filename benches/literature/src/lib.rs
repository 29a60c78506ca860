//! Published methods that the strategies of `datafusion-quantiles` are measured against, over a simulated cluster whose messages are
//! real bytes; and a shard that answers requests by plain loops, for tests to compare with.
//!
//! | baseline | rounds | bytes, of `n` keys on `P` shards | source |
//! | --- | --- | --- | --- |
//! | [`Baseline::Psrs`] | 3 | `n (P - 1) / P` keys, `P^2` samples | Shi and Schaeffer 1992; GK Select, section IV-1 |
//! | [`Baseline::AlFuraih`] | `O(log n)`, counts up a tree | 5 values a message | GK Select, section IV-2 |
//! | [`Baseline::Jeffers`] | `O(log n)`, counts to the host | 5 values a message | GK Select, section IV-3 |
//! | [`Baseline::GkSelectCount`] | 3: sketches, counts, candidates up a tree | a sketch and `eps n` keys a shard | GK Select, section V |
//! | [`Baseline::SortAndChoose`] | 1, a tree | `n/2 log2 P` keys | DIBMS, section II |
//! | [`Baseline::SortAndChooseFlat`] | 1 | `n (P - 1) / P` keys | the same, without the tree |
//! | [`Baseline::Quickselect`] | 1 | `n (P - 1) / P` keys | Hoare 1961 ("Find"), in one partition |
//!
//! Baselines have every advantage: local sorts are sample sorts, counts of several ranks share rounds, equal keys spread over all shards.
//! But every message of a baseline is counted ([`MessageLog`]).

mod cluster;
mod count_discard;
mod gk_select_count;
mod local_sort;
mod message_log;
mod naive;
mod partition;
#[cfg(test)]
mod patterns;
mod psrs;
mod quickselect;
mod samplesort;
mod simulated;
mod sort_and_choose;

#[cfg(test)]
mod tests;

use datafusion::common::{Result, exec_err};

use self::cluster::{Cluster, Gather};
use datafusion_quantiles::key::KeyVec;
use datafusion_quantiles::key::ShardKey;
use datafusion_quantiles::key::{Key, KeyBits};
use datafusion_quantiles::sketch::Epsilon;
use datafusion_quantiles::wire::{Message, Reader, put, put_keys};
pub use local_sort::{LocalSort, sort};
use message_log::Counted;
pub use message_log::{Collective, MessageLog, Transfer, Work};
pub use naive::{NaiveBackend, NaiveShard};
pub use simulated::SimulatedShards;

/// The published methods to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Baseline {
    /// Parallel sorting by regular sampling, then the keys at the ranks.
    Psrs,
    /// Al-Furaih's select: a pivot a round, counts and candidate pivots reduced in a tree.
    AlFuraih,
    /// Jeffers's select: a pivot a round; the host collects counts and candidate pivots from every shard.
    Jeffers,
    /// GK Select as in its paper: a pivot from a sketch, a count, then the keys between the pivot and the rank.
    GkSelectCount,
    /// Each shard sorts, pairs merge up a tree, the host chooses.
    SortAndChoose,
    /// Each shard sorts, the host merges all of them and chooses.
    SortAndChooseFlat,
    /// The host collects all keys and selects.
    Quickselect,
}

impl Baseline {
    /// All baselines.
    pub const ALL: [Baseline; 7] = [
        Baseline::Psrs,
        Baseline::AlFuraih,
        Baseline::Jeffers,
        Baseline::GkSelectCount,
        Baseline::SortAndChoose,
        Baseline::SortAndChooseFlat,
        Baseline::Quickselect,
    ];

    /// The baseline's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Baseline::Psrs => "psrs",
            Baseline::AlFuraih => "al_furaih",
            Baseline::Jeffers => "jeffers",
            Baseline::GkSelectCount => "gk_select_count",
            Baseline::SortAndChoose => "sort_and_choose",
            Baseline::SortAndChooseFlat => "sort_and_choose_flat",
            Baseline::Quickselect => "quickselect",
        }
    }
}

/// The parameters of a baseline's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// Number of threads that run the shards, at least 1.
    pub threads: usize,
    /// Seed of random pivots.
    pub seed: u64,
    /// The sort of a shard's keys.
    pub sort: LocalSort,
    /// Candidates, in keys, up to which count-and-discard fetches them instead of another round. With 0 it ends as in the source, when
    /// every rank is that of a pivot. `None` is the square of the number of shards.
    pub few: Option<u64>,
    /// Error fraction of GK Select's sketches. `None` is the choice of
    /// [`gk_select`](datafusion_quantiles::select::gk_select::GkSelect::try_new).
    pub eps: Option<Epsilon>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            threads: 1,
            seed: 1,
            sort: LocalSort::InPlace,
            few: None,
            eps: None,
        }
    }
}

/// The keys that a baseline found, and the messages that it sent.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The key of each rank.
    pub keys: Vec<KeyBits>,
    /// The messages and the work.
    pub log: MessageLog,
}

/// Finds the keys of ranks: from 1, ascending, distinct, at most the number of keys on all shards. The first shard is the host, as in
/// DIBMS (section II). All shards know the host and the number of keys.
///
/// # Errors
/// An execution error if there is no shard or no thread, if shards differ in width, and for other ranks.
pub fn solve(baseline: Baseline, shards: Vec<KeyVec>, ranks: &[u64], setup: &Setup) -> Result<Outcome> {
    match shards.first() {
        None => exec_err!("a baseline needs at least one shard"),
        Some(KeyVec::W32(_)) => solve_keys::<u32>(baseline, shards, ranks, setup),
        Some(KeyVec::W64(_)) => solve_keys::<u64>(baseline, shards, ranks, setup),
        Some(KeyVec::W128(_)) => solve_keys::<u128>(baseline, shards, ranks, setup),
    }
}

fn solve_keys<K: ShardKey>(
    baseline: Baseline,
    shards: Vec<KeyVec>,
    ranks: &[u64],
    setup: &Setup,
) -> Result<Outcome> {
    let shards: Option<Vec<Vec<K>>> = shards.into_iter().map(K::keys).collect();
    let Some(shards) = shards else {
        return exec_err!("shards hold keys of different widths");
    };
    let mut cluster = Cluster::try_new(shards.len(), setup.threads)?;
    check(ranks, shards.iter().map(|keys| keys.len() as u64).sum())?;
    let keys = match baseline {
        _ if ranks.is_empty() => vec![],
        Baseline::Psrs => psrs::psrs(&mut cluster, shards, ranks, setup.sort)?,
        Baseline::AlFuraih => count_discard::select(&mut cluster, shards, ranks, Gather::Tree, setup)?,
        Baseline::Jeffers => count_discard::select(&mut cluster, shards, ranks, Gather::Flat, setup)?,
        Baseline::GkSelectCount => gk_select_count::select(&mut cluster, shards, ranks, setup)?,
        Baseline::SortAndChoose => {
            sort_and_choose::sort_and_choose(&mut cluster, shards, ranks, Gather::Tree, setup.sort)?
        }
        Baseline::SortAndChooseFlat => {
            sort_and_choose::sort_and_choose(&mut cluster, shards, ranks, Gather::Flat, setup.sort)?
        }
        Baseline::Quickselect => quickselect::quickselect(&mut cluster, shards, ranks, setup.seed)?,
    };
    Ok(Outcome {
        keys: keys.into_iter().map(Key::to_bits).collect(),
        log: cluster.into_log(),
    })
}

/// Checks that ranks are ascending, distinct, and between 1 and the population.
fn check(ranks: &[u64], population: u64) -> Result<()> {
    let ascending = ranks.is_sorted_by(|left, right| left < right);
    let inside = ranks.iter().all(|rank| (1..=population).contains(rank));
    if ascending && inside {
        Ok(())
    } else {
        exec_err!("ranks must be ascending, distinct and between 1 and {population}: {ranks:?}")
    }
}

/// A message with a list of keys for each rank, or for each interval of ranks.
struct KeyLists<K>(Vec<Vec<K>>);

impl<K: Key> KeyLists<K> {
    /// The keys of both messages. `cut` drops keys of each list that are not needed any more.
    fn join(self, other: Self, cut: impl Fn(Vec<K>, usize) -> Vec<K>) -> Self {
        let pairs = self.0.into_iter().zip(other.0).enumerate();
        let joined = pairs.map(|(index, (mut own, other))| {
            own.extend(other);
            cut(own, index)
        });
        KeyLists(joined.collect())
    }
}

impl<K: Key> Message for KeyLists<K> {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.0.len() as u64);
        self.0.iter().for_each(|keys| put_keys(out, keys));
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        input.list("lists of keys", |input| input.keys()).map(KeyLists)
    }
}

impl<K: Key> Counted for KeyLists<K> {
    fn values(&self) -> u64 {
        self.0.iter().map(|keys| keys.len() as u64).sum()
    }
}
