//! How much the rounds of a selection may collect.

use crate::cells::MAX_CELLS;

/// Memory for a collected key, in its own bytes: a list is up to twice as large as what it holds, and is copied when it
/// is merged with others.
pub(crate) const COLLECTED_BYTES: usize = 3;

/// What rounds can do with the memory that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Cells of a count, at most; more where there are more ranks than that.
    pub cells: usize,
    /// Keys of a sample, at most.
    pub sample: u64,
    /// Keys that can be collected at once.
    pub keys: u64,
}

impl MemoryBudget {
    /// No limit.
    pub const UNLIMITED: MemoryBudget = MemoryBudget {
        cells: MAX_CELLS,
        sample: u64::MAX,
        keys: u64::MAX,
    };
}
