//! Runs one method over simulated shards, and what it took.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, UInt32Array, UInt64Array};
use datafusion::common::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion_quantiles::kernel::{Backend, CpuBackend, Shard};
use datafusion_quantiles::key::KeyVec;
use datafusion_quantiles::key::{KeyBits, KeySpec};
use datafusion_quantiles::select::bms::{Dibms, DistributedBms};
use datafusion_quantiles::select::gk_select::GkSelect;
use datafusion_quantiles::select::{Strategy, solve_ranks};
use quantiles_literature::{Baseline, MessageLog, Setup, SimulatedShards};

/// A method, by the name of its paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    GkSelect,
    DistributedBms,
    Dibms,
    Baseline(Baseline),
}

impl Method {
    pub(crate) const ALL: [Method; 10] = [
        Method::GkSelect,
        Method::DistributedBms,
        Method::Dibms,
        Method::Baseline(Baseline::GkSelectCount),
        Method::Baseline(Baseline::Psrs),
        Method::Baseline(Baseline::AlFuraih),
        Method::Baseline(Baseline::Jeffers),
        Method::Baseline(Baseline::SortAndChoose),
        Method::Baseline(Baseline::SortAndChooseFlat),
        Method::Baseline(Baseline::Quickselect),
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::GkSelect => "gk_select",
            Method::DistributedBms => "distributed_bms",
            Method::Dibms => "dibms",
            Method::Baseline(rival) => rival.name(),
        }
    }
}

/// What a run took.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) time: Duration,
    pub(crate) log: MessageLog,
    pub(crate) keys: Vec<KeyBits>,
}

/// The keys of every shard: random, of one width.
#[derive(Debug)]
pub(crate) struct Input {
    shards: Vec<KeyVec>,
}

/// A number that looks random (the finaliser of SplitMix64).
pub(crate) fn mix(counter: u64) -> u64 {
    let mut bits = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Input {
    /// `n` random keys of 64 bits, or of 32 where `narrow`, in `shards` equal parts.
    pub(crate) fn random(n: u64, shards: u64, narrow: bool) -> Self {
        let cut = |shard: u64| (u128::from(shard) * u128::from(n) / u128::from(shards)) as u64;
        let own = |shard: u64| cut(shard)..cut(shard + 1);
        let shards = (0..shards).map(|shard| match narrow {
            true => KeyVec::W32(own(shard).map(|i| mix(i) as u32).collect()),
            false => KeyVec::W64(own(shard).map(mix).collect()),
        });
        Self {
            shards: shards.collect(),
        }
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.len() as u64).sum()
    }

    /// A shard for each part of the keys. Unsigned integers are their own keys.
    fn open(&self) -> Result<Vec<Box<dyn Shard>>> {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let shard = |keys: &KeyVec| {
            let values: ArrayRef = match keys {
                KeyVec::W32(keys) => Arc::new(UInt32Array::from_iter_values(keys.iter().copied())),
                KeyVec::W64(keys) => Arc::new(UInt64Array::from_iter_values(keys.iter().copied())),
                KeyVec::W128(_) => unreachable!("inputs have keys of 32 or 64 bits"),
            };
            let spec = KeySpec::try_new(values.data_type())?;
            let mut shard =
                CpuBackend::default().open(&spec, MemoryConsumer::new("bench").register(&pool))?;
            shard.append(&values, None)?;
            Ok(shard)
        };
        self.shards.iter().map(shard).collect()
    }

    /// Finds ranks by a strategy; the keys are in shards before the clock starts.
    pub(crate) fn solve(&self, strategy: &dyn Strategy, ranks: &[u64], threads: usize) -> Result<Run> {
        let width = match self.shards[0] {
            KeyVec::W32(_) => datafusion_quantiles::key::Width::W32,
            _ => datafusion_quantiles::key::Width::W64,
        };
        let mut shards = SimulatedShards::try_new(width, self.open()?, threads)?;
        let start = Instant::now();
        let solution = futures::executor::block_on(solve_ranks(&mut shards, strategy, ranks.to_vec()))?;
        let time = start.elapsed();
        let keys = ranks
            .iter()
            .map(|rank| solution.key_at(*rank))
            .collect::<Result<_>>()?;
        Ok(Run {
            time,
            log: shards.log().clone(),
            keys,
        })
    }

    /// Finds ranks by a method.
    pub(crate) fn run(&self, method: Method, ranks: &[u64], setup: &Setup) -> Result<Run> {
        let threads = setup.threads;
        match method {
            Method::GkSelect => {
                let strategy = match setup.eps {
                    Some(eps) => GkSelect::with(eps),
                    None => GkSelect::try_new(self.len(), self.shards(), ranks.len(), u64::MAX)?,
                };
                self.solve(&strategy, ranks, threads)
            }
            Method::DistributedBms => self.solve(&DistributedBms::default(), ranks, threads),
            Method::Dibms => self.solve(&Dibms::default(), ranks, threads),
            Method::Baseline(rival) => {
                let own = self.shards.clone();
                let start = Instant::now();
                let outcome = quantiles_literature::solve(rival, own, ranks, setup)?;
                Ok(Run {
                    time: start.elapsed(),
                    log: outcome.log,
                    keys: outcome.keys,
                })
            }
        }
    }
}

/// The ranks of the median, or of `count` quantiles at equal distances.
pub(crate) fn ranks(n: u64, count: u64) -> Vec<u64> {
    let rank = |i: u64| (u128::from(i) * u128::from(n)).div_ceil(u128::from(count + 1)) as u64;
    (1..=count).map(rank).collect()
}
