//! A strategy, and the shards that it asks.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;

use super::progress::Progress;
use crate::kernel::round::{Reply, Request};
use crate::key::Width;
use crate::memory::Room;

/// Where the lanes are: threads, simulated machines, devices.
#[async_trait]
pub trait Shards: Send {
    /// Width of the keys.
    fn width(&self) -> Width;

    /// Values in all lanes together.
    fn population(&self) -> u64;

    /// Lanes that can work at the same time.
    fn parallelism(&self) -> usize;

    /// What the lanes have memory for.
    fn room(&self) -> Room {
        Room::UNLIMITED
    }

    /// Sends a request to every lane and merges the replies.
    ///
    /// # Errors
    /// A lane's error; an execution error when the work was cancelled.
    async fn round(&mut self, request: Arc<Request>) -> Result<Reply>;
}

/// What a strategy wants next.
#[derive(Debug)]
pub enum Step {
    /// Another round: the merged reply comes back to [`Strategy::step`].
    Ask(Progress, Request),
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
