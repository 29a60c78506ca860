//! The best `k` rows of all or of each group, without a sort.
//!
//! [`Best`] takes the keys of a stream; the others are for groups. [`segments`] ranks rows that are all in memory.
//! [`Sieve`] takes rows batch by batch, cuts them to the best of each group when they are too many, and rejects rows
//! below the floor of their group before anything of them is copied. Largest keys come first: whoever wants the
//! smallest inverts their bits.

mod best;
mod chunks;
mod cut;
mod filter;
mod floor;
mod lead;
#[cfg(test)]
mod naive;
mod ranking;
mod rows;
mod segments;
mod sieve;
mod slots;
#[cfg(test)]
mod tests;
mod ties;

use datafusion::common::{Result, resources_datafusion_err};

pub(crate) use best::{Best, Places};
pub(crate) use rows::Rows;
pub(crate) use sieve::{GroupLimit, Sieve};
pub(crate) use ties::Ties;

/// Makes room for `more` values. The capacity grows at least to twice as much, but not beyond `most` values unless they
/// are needed.
///
/// # Errors
/// `ResourcesExhausted` when the system gives no memory.
fn make_room<T>(values: &mut Vec<T>, more: usize, most: usize) -> Result<()> {
    let needed = values.len().saturating_add(more);
    if needed <= values.capacity() {
        return Ok(());
    }
    let doubled = values.capacity().saturating_mul(2).min(most).max(needed);
    let bytes = doubled.saturating_mul(size_of::<T>());
    values
        .try_reserve_exact(doubled - values.len())
        .map_err(|_| resources_datafusion_err!("no memory for {bytes} bytes of the best rows"))
}
