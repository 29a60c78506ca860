//! Memory of every kind: reserved in the session's pool, mapped in pages, or bytes on disk where the pool refuses.

mod budget;
mod pages;
mod rounds;
mod spill;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

pub(crate) use budget::COLLECTED_BYTES;
pub use budget::MemoryBudget;
pub(crate) use pages::{FreePages, Pages};
pub(crate) use rounds::{Lease, RoundMemory};
pub(crate) use spill::{SpillFile, Spiller, Spilling};

/// Reserves, or says what was wanted.
pub(crate) fn reserve(reservation: &MemoryReservation, bytes: usize) -> Result<()> {
    reservation.try_grow(bytes).map_err(|error| {
        error.context(format!(
            "exact quantiles keep every key until the answer is known: {bytes} more bytes wanted, {} bytes held",
            reservation.size()
        ))
    })
}

/// Reserves for keys or values. `false`: refused, but `spilling` says where they can go.
///
/// # Errors
/// As [`reserve`], where nothing spills.
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

/// Reserves what keys or values that can spill are written from.
///
/// # Errors
/// `ResourcesExhausted` where the pool has not even that much.
pub(crate) fn reserve_to_begin(reservation: &MemoryReservation, bytes: usize) -> Result<()> {
    reservation.try_grow(bytes).map_err(|error| {
        error.context(format!(
            "the memory limit is too small for exact quantiles: {bytes} bytes wanted for each partition and \
             column to begin with"
        ))
    })
}
