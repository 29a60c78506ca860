//! The traits of strategies and of the shards that answer their requests.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;

use super::progress::Progress;
use crate::config::StrategyName;
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, Width};
use crate::memory::MemoryBudget;

/// All shards of one column, wherever they are: in threads, in simulated machines, on devices.
#[async_trait]
pub trait Shards: Send {
    /// Width of the keys.
    fn width(&self) -> Width;

    /// Number of values in all shards together.
    fn population(&self) -> u64;

    /// Number of shards that can work at the same time.
    fn parallelism(&self) -> usize;

    /// What the rounds may collect, in keys and cells, by the memory that the shards have.
    fn budget(&self) -> MemoryBudget {
        MemoryBudget::UNLIMITED
    }

    /// The strategy of this name for these ranks, within [`Self::budget`].
    ///
    /// # Errors
    /// Internal errors only.
    fn strategy(&self, name: StrategyName, ranks: &[u64]) -> Result<Box<dyn Strategy>> {
        name.strategy(self.population(), ranks, self.parallelism(), &self.budget())
    }

    /// The keys of `ranks` (from 1, ascending, distinct, at most the population), found without rounds, as devices do. `None` if only
    /// rounds can find them.
    ///
    /// # Errors
    /// Those of [`Self::round`].
    async fn select(&mut self, _ranks: &[u64]) -> Result<Option<Found>> {
        Ok(None)
    }

    /// Sends a request to every shard and merges the replies.
    ///
    /// # Errors
    /// Those of the shards; an execution error when the work was cancelled.
    async fn round(&mut self, request: Arc<Request>) -> Result<Reply>;
}

/// Keys of ranks that were found without rounds.
#[derive(Debug)]
pub struct Found {
    /// Name of the method that found them, for `EXPLAIN ANALYZE`.
    pub label: &'static str,
    /// The key of each rank.
    pub keys: Vec<KeyBits>,
}

/// A strategy's next step, with the state of the selection.
#[derive(Debug)]
pub enum NextStep {
    /// Another round. Its merged reply goes to [`Strategy::step`].
    Round(Progress, Request),
    /// The end: every rank has its key.
    Done(Progress),
}

/// A sequence of rounds that finds order statistics, as a pure function from state and reply to the next request.
pub trait Strategy: Send + Sync {
    /// Name of the strategy for `EXPLAIN ANALYZE`, with its variant where it has several.
    fn label(&self) -> &'static str;

    /// The first request.
    ///
    /// # Errors
    /// Internal errors only.
    fn begin(&self, progress: Progress) -> Result<NextStep>;

    /// The next request, after the merged reply to `asked`.
    ///
    /// # Errors
    /// An internal error if the reply does not fit the request.
    fn step(&self, progress: Progress, asked: &Request, reply: Reply) -> Result<NextStep>;
}
