//! Limits of memory pools, and pools that decide otherwise about one request than the pool behind them.

use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};

/// Bytes of a pool's limit; `None` if it has none, or does not say how large it is.
pub(crate) fn limit(pool: &dyn MemoryPool) -> Option<usize> {
    match pool.memory_limit() {
        MemoryLimit::Finite(limit) => Some(limit),
        MemoryLimit::Infinite | MemoryLimit::Unknown => None,
    }
}

/// What a [`WrappedPool`] does when memory is wanted or given back. Everything else is done by the pool behind it.
pub(crate) trait Ration: Debug + Send + Sync {
    /// Reserves `additional` bytes of `pool` if that is possible.
    ///
    /// # Errors
    /// `ResourcesExhausted`.
    fn try_grow(
        &self,
        pool: &dyn MemoryPool,
        reservation: &MemoryReservation,
        additional: usize,
    ) -> Result<()>;

    /// Is told of bytes that are reserved without being asked for.
    fn grown(&self, _reservation: &MemoryReservation, _additional: usize) {}

    /// Is told of bytes that are given back.
    fn shrunk(&self, _reservation: &MemoryReservation, _bytes: usize) {}
}

/// Another pool, whose memory is given out as a [`Ration`] says.
#[derive(Debug)]
pub(crate) struct WrappedPool<R> {
    pool: Arc<dyn MemoryPool>,
    ration: R,
}

impl<R: Ration> WrappedPool<R> {
    pub(crate) fn new(pool: Arc<dyn MemoryPool>, ration: R) -> Self {
        Self { pool, ration }
    }
}

impl<R> Display for WrappedPool<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.pool, f)
    }
}

impl<R: Ration + 'static> MemoryPool for WrappedPool<R> {
    fn name(&self) -> &str {
        self.pool.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.ration.grown(reservation, additional);
        self.pool.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.ration.shrunk(reservation, shrink);
        self.pool.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.ration.try_grow(self.pool.as_ref(), reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}
