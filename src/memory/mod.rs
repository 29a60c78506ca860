//! Memory: reservations in the session's pool, pages for keys, and files on disk for what the pool refuses.

mod budget;
mod pages;
mod pools;
mod rounds;
mod spill;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;

pub(crate) use budget::COLLECTED_BYTES;
pub use budget::MemoryBudget;
pub(crate) use pages::{FreePages, Pages};
pub(crate) use pools::{Ration, WrappedPool, limit};
pub(crate) use rounds::{Lease, RoundMemory};
pub(crate) use spill::{SpillFile, Spiller, Spilling};

/// Whether an error says that memory was refused.
pub(crate) fn is_exhausted(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Reserves `bytes` for keys; an error says how many bytes were missing.
pub(crate) fn reserve(reservation: &MemoryReservation, bytes: usize) -> Result<()> {
    // A pool that is filled beyond its limit, as checksums of spilled blocks can do it, refuses even zero bytes.
    if bytes == 0 {
        return Ok(());
    }
    reservation.try_grow(bytes).map_err(|error| {
        error.context(format!(
            "exact quantiles keep every key until the answer is known: {bytes} more bytes wanted, {} bytes held",
            reservation.size()
        ))
    })
}

/// Moves all bytes of `other` to `memory`. No other consumer can take them in between.
pub(crate) fn take_over(memory: &MemoryReservation, other: &MemoryReservation) {
    memory.grow(other.size());
    other.free();
}

/// Reserves `bytes` for keys or values. `false` if the pool refuses, but they can be spilled by `spilling`.
///
/// # Errors
/// Errors of [`reserve`], if there is no `spilling`.
pub(crate) fn reserve_or_spill(
    reservation: &MemoryReservation,
    spilling: Option<&Spilling>,
    bytes: usize,
) -> Result<bool> {
    match spilling {
        Some(spilling) => Ok(spilling.allows(bytes) && reservation.try_grow(bytes).is_ok()),
        None => match reserve(reservation, bytes) {
            Ok(()) => Ok(true),
            Err(error) => Err(error.context("spilling is off")),
        },
    }
}

/// Reserves the write buffer of keys or values that can be spilled.
///
/// # Errors
/// `ResourcesExhausted` if the pool has not even that much.
pub(crate) fn reserve_to_begin(reservation: &MemoryReservation, bytes: usize) -> Result<()> {
    reservation.try_grow(bytes).map_err(|error| {
        error.context(format!(
            "the memory limit is too small for exact quantiles: {bytes} bytes wanted for each partition and \
             column to begin with"
        ))
    })
}
