//! Limits on what the rounds of a selection may collect.

use crate::cells::MAX_CELLS;

/// Bytes of memory for a collected key, as a multiple of the key's own bytes: a list takes up to twice as many as its
/// keys, and is copied when it is merged with others.
pub(crate) const COLLECTED_BYTES: usize = 3;

/// Limits on rounds by the memory that is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Most cells of a count; more are allowed if there are more ranks.
    pub cells: usize,
    /// Most keys of a sample.
    pub sample: u64,
    /// Most keys that can be collected at once.
    pub keys: u64,
}

impl MemoryBudget {
    /// A budget without limits.
    pub const UNLIMITED: MemoryBudget = MemoryBudget {
        cells: MAX_CELLS,
        sample: u64::MAX,
        keys: u64::MAX,
    };
}
