//! A strategy, and the shards that it asks.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;

use super::progress::Progress;
use crate::config::StrategyName;
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, Width};
use crate::memory::MemoryBudget;

/// Where the shards are: threads, simulated machines, devices.
#[async_trait]
pub trait Shards: Send {
    /// Width of the keys.
    fn width(&self) -> Width;

    /// Values in all shards together.
    fn population(&self) -> u64;

    /// Shards that can work at the same time.
    fn parallelism(&self) -> usize;

    /// What the shards have memory for.
    fn budget(&self) -> MemoryBudget {
        MemoryBudget::UNLIMITED
    }

    /// The strategy of this name for `ranks` of the values, in the memory that there is.
    ///
    /// # Errors
    /// Internal errors only.
    fn strategy(&self, name: StrategyName, ranks: &[u64]) -> Result<Box<dyn Strategy>> {
        name.strategy(self.population(), ranks, self.parallelism(), &self.budget())
    }

    /// The keys of `ranks` (1-based, ascending, distinct, at most the population), found in one go without rounds, as devices do,
    /// and what found them; `None`: rounds are to find them.
    ///
    /// # Errors
    /// As [`Self::round`].
    async fn select(&mut self, _ranks: &[u64]) -> Result<Option<Found>> {
        Ok(None)
    }

    /// Sends a request to every shard and merges the replies.
    ///
    /// # Errors
    /// A shard's error; an execution error when the work was cancelled.
    async fn round(&mut self, request: Arc<Request>) -> Result<Reply>;
}

/// Keys of ranks that were found without rounds.
#[derive(Debug)]
pub struct Found {
    /// What found them, for `EXPLAIN ANALYZE`.
    pub label: &'static str,
    /// The key of each rank.
    pub keys: Vec<KeyBits>,
}

/// What a strategy wants next.
#[derive(Debug)]
pub enum Step {
    /// Another round: the merged reply comes back to [`Strategy::step`].
    Round(Progress, Request),
    /// Every rank has its key.
    Done(Progress),
}

/// A sequence of rounds that finds order statistics, as a pure function from state and reply to the next request.
pub trait Strategy: Send + Sync {
    /// What runs, for `EXPLAIN ANALYZE`: the strategy's name and, where it has several, its form.
    fn label(&self) -> &'static str;

    /// The first request.
    ///
    /// # Errors
    /// Internal errors only.
    fn begin(&self, progress: Progress) -> Result<Step>;

    /// The next request, after the merged reply to `asked`.
    ///
    /// # Errors
    /// An internal error if the reply does not fit the request.
    fn step(&self, progress: Progress, asked: &Request, reply: Reply) -> Result<Step>;
}
