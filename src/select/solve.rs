//! Runs a strategy over shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::{Result, internal_datafusion_err, internal_err};

use super::progress::Progress;
use super::{Found, NextStep, Shards, Strategy};
use crate::config::StrategyName;
use crate::key::KeyBits;
use crate::quantile::QuantileSpec;

/// What one round asked for, and how it went.
#[derive(Debug, Clone)]
pub struct RoundTrace {
    /// Name of the request: sample, sketch, count or extract.
    pub request: &'static str,
    /// Values that can still be an answer after the round.
    pub candidates: u64,
    /// Wall time of the round, with the coordinator's step.
    pub elapsed: Duration,
    /// Values in the merged reply.
    pub values: u64,
}

/// The keys of the target ranks of a selection.
#[derive(Debug)]
pub struct Solution {
    /// Number of values that were ranked.
    pub n: u64,
    /// Label of the strategy that ran, for `EXPLAIN ANALYZE`.
    pub strategy: &'static str,
    /// The rounds, in order.
    pub rounds: Vec<RoundTrace>,
    /// The target ranks, from 1, ascending and distinct.
    pub(super) ranks: Vec<u64>,
    /// The key of each target rank.
    pub(super) keys: Vec<KeyBits>,
    /// The least and the greatest rank of each key; `None` if they were not wanted.
    pub(super) rank_bounds: Option<Vec<(u64, u64)>>,
    /// Numbers of values below keys, for the keys for which they were counted.
    pub(super) below: BTreeMap<KeyBits, u64>,
}

impl Solution {
    /// The key of a rank that one of the quantile specifications needs.
    ///
    /// # Errors
    /// An internal error for any other rank.
    pub fn key_at(&self, rank: u64) -> Result<KeyBits> {
        Ok(self.keys[self.index_of(rank)?])
    }

    /// The least and the greatest rank that the key of a target rank is known to have. Both are the target rank if no others were wanted.
    ///
    /// # Errors
    /// Those of [`Self::key_at`].
    pub fn rank_bounds_at(&self, rank: u64) -> Result<(u64, u64)> {
        let index = self.index_of(rank)?;
        Ok(self
            .rank_bounds
            .as_ref()
            .map_or((rank, rank), |bounds| bounds[index]))
    }

    fn index_of(&self, rank: u64) -> Result<usize> {
        let index = self.ranks.binary_search(&rank);
        index.map_err(|_| internal_datafusion_err!("rank {rank} was not selected"))
    }
}

/// What a selection is to find: the keys of ranks (from 1, ascending, distinct, at most the number of values).
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) ranks: Vec<u64>,
    /// Whether the least and the greatest rank of each key are wanted too.
    pub(crate) bounds: bool,
}

impl Wanted {
    /// The ranks that the quantile specifications need among `n` values; with `bounds` those of their keys, too.
    pub(crate) fn of(quantile_specs: &[&QuantileSpec], n: u64, bounds: bool) -> Self {
        let ranks = wanted_ranks(quantile_specs, n);
        Self { ranks, bounds }
    }
}

/// Rounds after which a strategy must have ended: every strategy halves its brackets in each round.
const MAX_ROUNDS: usize = 200;

/// The ranks that the quantile specifications need among `n` values: from 1, ascending, distinct.
pub(crate) fn wanted_ranks(quantile_specs: &[&QuantileSpec], n: u64) -> Vec<u64> {
    let mut ranks: Vec<u64> = quantile_specs
        .iter()
        .flat_map(|quantile_spec| quantile_spec.ranks(n))
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Finds the order statistics that the quantile specifications need: without rounds where the shards can do that, else in rounds that
/// all of them share.
///
/// # Errors
/// Those of the shards.
pub async fn solve(
    shards: &mut dyn Shards,
    strategy: StrategyName,
    quantile_specs: &[&QuantileSpec],
) -> Result<Solution> {
    let wanted = Wanted::of(quantile_specs, shards.population(), false);
    solve_wanted(shards, strategy, wanted).await
}

/// Finds what is wanted: without rounds where the shards can do that, else in rounds that all of them share.
///
/// # Errors
/// Those of the shards.
pub(crate) async fn solve_wanted(
    shards: &mut dyn Shards,
    strategy: StrategyName,
    wanted: Wanted,
) -> Result<Solution> {
    let Wanted { ranks, bounds } = wanted;
    let n = shards.population();
    if strategy.is_sample_select()
        && !bounds
        && let Some(Found { label, keys }) = shards.select(&ranks).await?
    {
        return Ok(Solution {
            n,
            strategy: label,
            rounds: Vec::new(),
            ranks,
            keys,
            rank_bounds: None,
            below: BTreeMap::new(),
        });
    }
    let strategy = shards.strategy(strategy, &ranks)?;
    solve_by(shards, strategy.as_ref(), Wanted { ranks, bounds }).await
}

/// Finds the keys of ranks by a strategy. Ranks count from 1; they must be ascending, distinct, and at most the population.
///
/// # Errors
/// Those of the shards; an internal error for ranks that are not so.
pub async fn solve_ranks(
    shards: &mut dyn Shards,
    strategy: &dyn Strategy,
    ranks: Vec<u64>,
) -> Result<Solution> {
    solve_by(shards, strategy, Wanted { ranks, bounds: false }).await
}

/// Finds what is wanted by a strategy.
///
/// # Errors
/// Those of [`solve_ranks`].
pub(crate) async fn solve_by(
    shards: &mut dyn Shards,
    strategy: &dyn Strategy,
    wanted: Wanted,
) -> Result<Solution> {
    let (n, ranks) = (shards.population(), wanted.ranks);
    let mut rounds = Vec::new();
    let mut progress = Progress::try_new(shards.width(), n, ranks.clone())?;
    if wanted.bounds {
        progress = progress.with_rank_bounds();
    }
    progress.budget = shards.budget();
    let mut step = if progress.is_done() {
        NextStep::Done(progress)
    } else {
        strategy.begin(progress)?
    };
    loop {
        let (progress, request) = match step {
            NextStep::Round(progress, request) => (progress, Arc::new(request)),
            NextStep::Done(mut progress) => {
                let rank_bounds = progress.take_rank_bounds();
                let keys = progress.into_keys()?;
                return Ok(Solution {
                    n,
                    strategy: strategy.label(),
                    rounds,
                    ranks,
                    keys,
                    rank_bounds,
                    below: BTreeMap::new(),
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
        let (NextStep::Round(progress, _) | NextStep::Done(progress)) = &step;
        let candidates = progress.candidates();
        rounds.push(RoundTrace {
            request: request.name(),
            candidates,
            elapsed: start.elapsed(),
            values,
        });
    }
}
