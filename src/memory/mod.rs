//! Memory of every kind: reserved in the session's pool, mapped in pages, or bytes on disk where the pool refuses.

mod pages;
mod room;
mod rounds;
mod spill;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

pub(crate) use pages::{FreePages, Pages};
pub(crate) use room::COLLECTED_BYTES;
pub use room::Room;
pub(crate) use rounds::{Held, Workspace};
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
