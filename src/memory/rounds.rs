//! Memory that rounds work in. It is reserved in the session's pool, as the keys are. Where the pool has a limit, it is
//! set aside before the rounds begin, so that they do not fail half-way because keys have taken it.

use std::sync::{Arc, Mutex, MutexGuard};

use datafusion::common::{Result, resources_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::threads::locked;

/// Memory that several shards on several threads work in.
#[derive(Debug)]
pub(crate) struct RoundMemory {
    reservation: MemoryReservation,
    /// Most bytes that are leased at a time.
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that stay reserved, whether they are leased or not.
    set_aside: usize,
    /// Bytes that are leased.
    leased: usize,
}

impl RoundMemory {
    /// Memory of which nothing is set aside: leased bytes come from the pool of `reservation` when they are needed.
    pub(crate) fn new(reservation: MemoryReservation) -> Arc<Self> {
        Self::at_most(reservation, usize::MAX)
    }

    /// Memory as [`Self::new`], of which at most `most` bytes are leased at a time.
    pub(crate) fn at_most(reservation: MemoryReservation, most: usize) -> Arc<Self> {
        Arc::new(Self {
            reservation,
            most,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The numbers change only after everything that can fail.
        locked(&self.state)
    }

    /// Sets `bytes` bytes aside for later, in place of those that were set aside before.
    ///
    /// # Errors
    /// Errors of the pool; then the bytes that were set aside before stay.
    pub(crate) fn set_aside(&self, bytes: usize) -> Result<()> {
        let mut state = self.lock();
        self.reservation.try_resize(bytes.max(state.leased))?;
        state.set_aside = bytes;
        Ok(())
    }

    /// Leases `bytes` bytes, first from those that were set aside, then from the pool.
    ///
    /// # Errors
    /// `ResourcesExhausted` with `what`, the purpose of the memory.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize, what: &'static str) -> Result<Lease> {
        let mut lease = Lease {
            round_memory: Arc::clone(self),
            bytes: 0,
            what,
        };
        lease.grow(bytes)?;
        Ok(lease)
    }
}

/// A part of [`RoundMemory`] in use, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    round_memory: Arc<RoundMemory>,
    bytes: usize,
    what: &'static str,
}

impl Lease {
    /// Bytes leased.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Leases `bytes` bytes more.
    ///
    /// # Errors
    /// Errors of [`RoundMemory::hold`]; then the lease stays as it was.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        let round_memory = &self.round_memory;
        let mut state = round_memory.lock();
        if state.leased + bytes > round_memory.most {
            return resources_err!(
                "{bytes} more bytes wanted for {}, {} of {} held",
                self.what,
                state.leased,
                round_memory.most
            );
        }
        let missing = (state.leased + bytes).saturating_sub(round_memory.reservation.size());
        // A pool that is filled beyond its limit, as checksums of spilled blocks can do it, refuses even zero bytes.
        if missing > 0 {
            round_memory.reservation.try_grow(missing).map_err(|error| {
                error.context(format!(
                    "the memory limit is too small for exact quantiles: {bytes} more bytes wanted for {}, {} held",
                    self.what, state.leased
                ))
            })?;
        }
        state.leased += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` bytes back.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        let mut state = self.round_memory.lock();
        state.leased -= bytes;
        let kept = state.leased.max(state.set_aside);
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
        // Memory that others take beyond the limit does not touch the bytes that are set aside.
        let beyond = MemoryConsumer::new("checksums").register(&pool);
        beyond.grow(100);
        drop(round_memory.hold(10, "one").unwrap());
        assert!(round_memory.hold(11, "one").is_err());
        drop((beyond, round_memory));
        assert_eq!(pool.reserved(), 0);
    }
}
