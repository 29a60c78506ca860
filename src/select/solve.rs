//! Runs a strategy over shards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::{Result, internal_datafusion_err, internal_err};

use super::progress::Progress;
use super::{Found, Shards, Step, Strategy};
use crate::config::StrategyName;
use crate::key::KeyBits;
use crate::quantile::QuantileSpec;

/// One round, as it went.
#[derive(Debug, Clone)]
pub struct RoundTrace {
    /// sample, count or extract.
    pub request: &'static str,
    /// Values that could still be an answer after it.
    pub candidates: u64,
    /// Wall time, coordinator included.
    pub elapsed: Duration,
    /// Values in the merged reply.
    pub values: u64,
}

/// The order statistics that were asked for.
#[derive(Debug)]
pub struct Solution {
    /// Values that were ranked.
    pub n: u64,
    /// What ran.
    pub strategy: &'static str,
    /// The rounds, in order.
    pub rounds: Vec<RoundTrace>,
    pub(super) ranks: Vec<u64>,
    pub(super) keys: Vec<KeyBits>,
    pub(super) places: Option<Vec<(u64, u64)>>,
}

impl Solution {
    /// The key of a rank that one of the questions needs.
    ///
    /// # Errors
    /// An internal error for any other rank.
    pub fn key_at(&self, rank: u64) -> Result<KeyBits> {
        Ok(self.keys[self.index_of(rank)?])
    }

    /// The least and the greatest rank that the key at a rank is known to have; the rank itself, but for approximate
    /// answers.
    ///
    /// # Errors
    /// As [`Self::key_at`].
    pub fn place_at(&self, rank: u64) -> Result<(u64, u64)> {
        let index = self.index_of(rank)?;
        Ok(self.places.as_ref().map_or((rank, rank), |places| places[index]))
    }

    fn index_of(&self, rank: u64) -> Result<usize> {
        let index = self.ranks.binary_search(&rank);
        index.map_err(|_| internal_datafusion_err!("rank {rank} was not selected"))
    }
}

/// Rounds after which something is wrong: every strategy halves its brackets in each.
const MAX_ROUNDS: usize = 200;

/// The ranks that all of `quantile_specs` need among `n` values: 1-based, ascending, distinct.
pub(crate) fn wanted_ranks(quantile_specs: &[&QuantileSpec], n: u64) -> Vec<u64> {
    let mut ranks: Vec<u64> = quantile_specs
        .iter()
        .flat_map(|quantile_spec| quantile_spec.ranks(n))
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Finds the order statistics that all of `quantile_specs` need: in one go where the shards can, else in shared rounds.
///
/// # Errors
/// Those of the shards.
pub async fn solve(
    shards: &mut dyn Shards,
    strategy: StrategyName,
    quantile_specs: &[&QuantileSpec],
) -> Result<Solution> {
    let n = shards.population();
    let ranks = wanted_ranks(quantile_specs, n);
    if strategy.is_sample_select()
        && let Some(Found { label, keys }) = shards.select(&ranks).await?
    {
        return Ok(Solution {
            n,
            strategy: label,
            rounds: Vec::new(),
            ranks,
            keys,
            places: None,
        });
    }
    let strategy = shards.strategy(strategy, &ranks)?;
    solve_ranks(shards, strategy.as_ref(), ranks).await
}

/// Finds the keys of ranks: 1-based, ascending, distinct, at most the population.
///
/// # Errors
/// Those of the shards; an internal error for ranks that are not so.
pub async fn solve_ranks(
    shards: &mut dyn Shards,
    strategy: &dyn Strategy,
    ranks: Vec<u64>,
) -> Result<Solution> {
    let n = shards.population();
    let mut rounds = Vec::new();
    let mut progress = Progress::try_new(shards.width(), n, ranks.clone())?;
    progress.budget = shards.budget();
    let mut step = if progress.is_done() {
        Step::Done(progress)
    } else {
        strategy.begin(progress)?
    };
    loop {
        let (progress, request) = match step {
            Step::QuantileSpec(progress, request) => (progress, Arc::new(request)),
            Step::Done(mut progress) => {
                let places = progress.take_places();
                let keys = progress.into_keys()?;
                return Ok(Solution {
                    n,
                    strategy: strategy.label(),
                    rounds,
                    ranks,
                    keys,
                    places,
                });
            }
        };
        if rounds.len() == MAX_ROUNDS {
            return internal_err!("{} is not done after {MAX_ROUNDS} rounds", strategy.label());
        }
        let start = Instant::now();
        let reply = shards.round(Arc::clone(&request)).await?;
        let values = reply.values();
        step = strategy.step(progress, &request, reply)?;
        let (Step::QuantileSpec(progress, _) | Step::Done(progress)) = &step;
        let candidates = progress.candidates();
        rounds.push(RoundTrace {
            request: request.name(),
            candidates,
            elapsed: start.elapsed(),
            values,
        });
    }
}
