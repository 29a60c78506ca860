//! Work on the keys of one partition: a *shard* keeps them and answers the coordinator's requests.
//!
//! [`round`] has requests and replies, `round_messages` their form as bytes, [`cpu`] the shards on the CPU, and
//! `byte_strings` the values of types without keys, whose prefixes serve as keys of shards.

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

/// Opens shards: one implementation for each kind of device.
pub trait Backend: Debug + Send + Sync {
    /// An empty shard for keys of `spec`, which reserves the memory that it holds in `reservation`.
    ///
    /// # Errors
    /// Errors of the device.
    fn open(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<Box<dyn Shard>>;
}

/// The keys of one partition. A shard is filled once, then answers any number of requests.
pub trait Shard: Send {
    /// Adds the values of `values` that are not NULL. If there is a `filter`, only values in whose row it is true.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the missing bytes; an internal error if `values` is not of the shard's type.
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()>;

    /// Number of values held.
    fn len(&self) -> u64;

    /// Whether no value is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory held, all of them reserved.
    fn held_bytes(&self) -> usize;

    /// Moves about `values` values to a shard of their own, so that threads can share the work evenly. `None` if the
    /// shard cannot be split, or not into so small a piece.
    fn split(&mut self, values: u64) -> Option<Box<dyn Shard>>;

    /// Moves values from memory to disk until `bytes` bytes of the reservation are given back, or all of them. Returns
    /// the bytes given back: 0 if the shard cannot spill, or holds nothing in memory.
    ///
    /// # Errors
    /// Errors of writing: `ResourcesExhausted` if the disk is full; when `stop` is set.
    fn spill(&mut self, _bytes: usize, _stop: &Stop) -> Result<usize> {
        Ok(0)
    }

    /// Gives back memory that only further values would need, and returns how many bytes that is.
    fn seal(&mut self) -> usize {
        0
    }

    /// The keys of `ranks` (from 1, ascending, distinct, at most [`Self::len`]), found by the shard alone without
    /// further requests, as a device can. `None` if the shard can only answer requests.
    ///
    /// # Errors
    /// When `stop` is set; errors of the device.
    fn select(&mut self, _ranks: &[u64], _stop: &Stop) -> Result<Option<Vec<KeyBits>>> {
        Ok(None)
    }

    /// Answers one request by at most one read of all values.
    ///
    /// # Errors
    /// When `stop` is set; an internal error for a request that does not fit the shard's keys; `ResourcesExhausted` if
    /// there is not even memory to count in. Keys that there is no memory for are left out of the reply: see [`Reply`].
    fn answer(&mut self, request: &Request, stop: &Stop) -> Result<Reply>;
}
