//! Memory that rounds work in: reserved in the session's pool like the keys, and set aside before the rounds begin
//! where the pool has a limit, so that they do not fail half-way for what the keys have taken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

/// Memory for the work of several shards on several threads.
#[derive(Debug)]
pub(crate) struct RoundMemory {
    reservation: MemoryReservation,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Reserved, whether it is held or not.
    aside: usize,
    /// Lease by somebody.
    held: usize,
}

impl RoundMemory {
    /// Nothing set aside: all that is held comes from the pool of `reservation` when it is wanted.
    pub(crate) fn new(reservation: MemoryReservation) -> Arc<Self> {
        Arc::new(Self {
            reservation,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The numbers change only after all that can fail.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves so much for later, in place of what was set aside before.
    ///
    /// # Errors
    /// The pool's; then what was set aside before is kept.
    pub(crate) fn set_aside(&self, bytes: usize) -> Result<()> {
        let mut state = self.lock();
        self.reservation.try_resize(bytes.max(state.held))?;
        state.aside = bytes;
        Ok(())
    }

    /// Takes memory from what was set aside, and from the pool beyond that.
    ///
    /// # Errors
    /// `ResourcesExhausted` that says what it was wanted for.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize, what: &'static str) -> Result<Lease> {
        let mut held = Lease {
            round_memory: Arc::clone(self),
            bytes: 0,
            what,
        };
        held.grow(bytes)?;
        Ok(held)
    }
}

/// Memory in use, given back when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    round_memory: Arc<RoundMemory>,
    bytes: usize,
    what: &'static str,
}

impl Lease {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more.
    ///
    /// # Errors
    /// As for [`RoundMemory::hold`]; then it holds what it held.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        let round_memory = &self.round_memory;
        let mut state = round_memory.lock();
        let missing = (state.held + bytes).saturating_sub(round_memory.reservation.size());
        // A pool that is full beyond its limit, as checksums of spilled blocks can make it, refuses even no bytes.
        if missing > 0 {
            round_memory.reservation.try_grow(missing).map_err(|error| {
                error.context(format!(
                    "the memory limit is too small for exact quantiles: {bytes} more bytes wanted for {}, {} held",
                    self.what, state.held
                ))
            })?;
        }
        state.held += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives some back.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        let mut state = self.round_memory.lock();
        state.held -= bytes;
        let kept = state.held.max(state.aside);
        let beyond = self.round_memory.reservation.size().saturating_sub(kept);
        self.round_memory.reservation.shrink(beyond);
        drop(state);
        self.bytes -= bytes;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;

    #[test]
    fn what_is_set_aside_is_used_first_and_kept() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(100));
        let round_memory = RoundMemory::new(MemoryConsumer::new("rounds").register(&pool));
        round_memory.set_aside(60).unwrap();
        let mut one = round_memory.hold(50, "one").unwrap();
        assert_eq!(pool.reserved(), 60);
        one.grow(20).unwrap();
        assert_eq!((pool.reserved(), one.bytes()), (70, 70));
        let error = round_memory.hold(31, "two").unwrap_err().to_string();
        assert!(error.contains("31 more bytes wanted for two, 70 held"), "{error}");
        assert!(round_memory.set_aside(101).is_err());
        let two = round_memory.hold(30, "two").unwrap();
        assert_eq!(pool.reserved(), 100);
        drop(one);
        assert_eq!(pool.reserved(), 60);
        round_memory.set_aside(10).unwrap();
        assert_eq!(pool.reserved(), 30);
        drop(two);
        assert_eq!(pool.reserved(), 10);
        // What others take beyond the limit does not touch what is set aside.
        let beyond = MemoryConsumer::new("checksums").register(&pool);
        beyond.grow(100);
        drop(round_memory.hold(10, "one").unwrap());
        assert!(round_memory.hold(11, "one").is_err());
        drop((beyond, round_memory));
        assert_eq!(pool.reserved(), 0);
    }
}
