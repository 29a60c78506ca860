//! The best `k` rows of all or of each group, without a sort.
//!
//! [`Best`] takes the keys of a stream; the others are for groups:
//! [`segments`] ranks rows that are there as a whole; [`Sieve`] takes them batch by batch, cuts them to the best of each
//! group when they are too many, and rejects rows that reach no group's floor before anything is kept of them.
//! Largest keys come first: who wants the smallest inverts their bits.

mod best;
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
pub(crate) use sieve::{Sieve, Wanted};
pub(crate) use ties::Ties;

/// Makes room for `more` values, in at least doubling steps up to `most` of them in all.
///
/// # Errors
/// `ResourcesExhausted` when the system gives no memory.
fn make_room<T>(values: &mut Vec<T>, more: usize, most: usize) -> Result<()> {
    let wanted = values.len().saturating_add(more);
    if wanted <= values.capacity() {
        return Ok(());
    }
    let doubled = values.capacity().saturating_mul(2).min(most).max(wanted);
    let bytes = doubled.saturating_mul(size_of::<T>());
    values
        .try_reserve_exact(doubled - values.len())
        .map_err(|_| resources_datafusion_err!("no memory for {bytes} bytes of the best rows"))
}
