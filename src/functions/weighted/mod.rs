//! Quantiles of rows with weights: a row of weight 3 counts as three rows, and is held once.
//!
//! ```sql
//! SELECT exact_quantiles(latency, [0.5, 0.99], 'disc', requests) FROM minutes   -- each minute counts as often as it had requests
//! SELECT percentile(latency, 0.99, requests) FROM minutes                       -- Spark's name, Spark's bits
//! ```
//! Weights are [counted](weights) as 64-bit integers, of which a row has none or more. The accumulators are those of other quantiles, over values
//! with their weights; where many values are equal, these are brought together, so that memory grows with the distinct values only.

mod keys;
mod strings;
mod weights;

pub(super) use self::keys::WeightedKeys;
pub(super) use self::strings::WeightedStrings;
pub(crate) use self::weights::counted as counted_weights;
pub(super) use self::weights::weight_type;

use datafusion::arrow::array::{ArrayRef, AsArray, UInt64Array};
use datafusion::arrow::datatypes::UInt64Type;
use datafusion::common::{Result, internal_datafusion_err};

use crate::kernel::cpu::groups::segments::Plan;
use crate::quantile::Found;

/// The weights in the second of the columns that [`counted`](weights::counted) gives.
pub(crate) fn weights_of(columns: &[ArrayRef]) -> &UInt64Array {
    columns[1].as_primitive::<UInt64Type>()
}

/// Number of items from which on equal values are brought together.
const MERGED_FROM: usize = 1 << 16;

/// Adds the answers of a plan to `found`. `selected` has the item of each of its ranks.
///
/// # Errors
/// Internal errors only.
fn add_selected<T: Copy, V>(
    plan: &Plan,
    selected: &[T],
    value: impl Fn(T) -> V,
    found: &mut Found<V>,
) -> Result<()> {
    for picks in &plan.picks {
        found.add(picks, &|rank| {
            let index = plan.ranks.binary_search(&rank).ok();
            index
                .and_then(|index| selected.get(index))
                .map(|item| value(*item))
                .ok_or_else(|| internal_datafusion_err!("rank {rank} was not selected"))
        })?;
    }
    Ok(())
}
