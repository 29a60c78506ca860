//! Requests that several strategies send.

use crate::cells::{Brackets, Cells};
use crate::kernel::round::Request;
use crate::key::Width;

/// The request for about `size` of all `population` keys. `extremes`: also for the least and the greatest of all keys.
pub(crate) fn sample_of_all(size: u64, population: u64, width: Width, extremes: bool) -> Request {
    Request::Sample {
        size,
        population,
        seed: 0,
        within: Brackets::all(width),
        extremes,
    }
}

/// The request for the number of keys in each cell, of those inside `within`. No key is copied.
pub(super) fn count(cells: Cells, within: Brackets) -> Request {
    Request::Count {
        cells,
        within,
        keep: Vec::new(),
    }
}
