//! Partition-local work: a *shard* keeps the keys of one partition and answers the coordinator's requests.
//!
//! [`round`] holds what goes back and forth, `round_messages` the form in which it travels, [`cpu`] the shards for the processor, and
//! `byte_strings` those values whose prefixes are keys of shards.

pub(crate) mod byte_strings;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub(crate) mod intervals;
pub mod round;
pub mod round_messages;

use std::fmt::Debug;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::key::{KeyBits, KeySpec};
use crate::threads::Stop;
pub use cpu::CpuBackend;
use round::{Reply, Request};

/// Where shards come from: one implementation a device.
pub trait Backend: Debug + Send + Sync {
    /// An empty shard for keys as `spec` says, which reserves what it holds in `reservation`.
    ///
    /// # Errors
    /// The device's own.
    fn open(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<Box<dyn Shard>>;
}

/// The partition-local accumulator: it is filled once, then answers any number of requests.
pub trait Shard: Send {
    /// Adds the values of `values` that are not NULL and, where there is a `filter`, whose row is true in it.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the wanted bytes; an internal error if `values` is not of the shard's type.
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()>;

    /// Values held.
    fn len(&self) -> u64;

    /// Whether no value is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held, as reserved.
    fn held_bytes(&self) -> usize;

    /// Gives away about `values` of its values as a shard of its own, so that threads can share the work evenly.
    /// `None`: it cannot, or not in so small a piece.
    fn split(&mut self, values: u64) -> Option<Box<dyn Shard>>;

    /// Moves what it holds in memory to disk until `bytes` of the reservation are given back, or all of it; how many
    /// were. 0: it cannot, or holds nothing.
    ///
    /// # Errors
    /// Those of writing: `ResourcesExhausted` where the disk has no room; when `stop` is set.
    fn spill(&mut self, _bytes: usize, _stop: &Stop) -> Result<usize> {
        Ok(0)
    }

    /// The keys of `ranks` (1-based, ascending, distinct, at most [`Self::len`]), found by the shard alone in one go, as a device
    /// does; `None`: it answers requests only.
    ///
    /// # Errors
    /// When `stop` is set; those of the device.
    fn select(&mut self, _ranks: &[u64], _stop: &Stop) -> Result<Option<Vec<KeyBits>>> {
        Ok(None)
    }

    /// Answers one request by at most one read of what it holds.
    ///
    /// # Errors
    /// When `stop` is set; an internal error for a request that does not fit the shard's keys; `ResourcesExhausted`
    /// where there is not even memory to count in. Keys that there is no memory for are left out: see [`Reply`].
    fn answer(&mut self, request: &Request, stop: &Stop) -> Result<Reply>;
}
