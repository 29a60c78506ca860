//! Quantiles with `GROUP BY` as stages: two reads of the input. Only counts and brackets travel between them.
//!
//! ```text
//! select    P   keys of the brackets, by class of groups -> a row of answers for each group
//!   extract P   input again, and the state: the keys that lie in the brackets of their group
//!     input | brackets  1   counts of all partitions -> for each rank of each group the interval that holds it
//!               count   P   input: for each group counts of intervals
//! ```
//! Intervals are dyadic, and adapted to each group ([`crate::kernel::cpu::groups::intervals`]). Intervals of different partitions nest,
//! so that their counts add up and the interval of each rank is certain. The second read brings all keys of that interval, so that the
//! answer is exact for any data. Against the exchange of all keys this takes one read more, and moves a few percent of the keys: of 1000
//! groups of 30 000 values each, about 5% for a median.
//!
//! **Many groups.** If a partition finds more than [`MOST_GROUPS`] groups, or has no memory to count them, or if there are too many
//! ranks, the stage reports that instead of counts, and the second read sends all keys. The answer is exact and the plan stays the
//! same; the first read is wasted.
//!
//! **Guards.** The hash of a group puts it in one of 64 classes. Every read reports the number of rows and values that it saw of each
//! class, and a checksum of their keys that does not depend on their order. The stage that selects the answers of a class compares the
//! sums of both reads.

mod brackets;
mod classes;
mod columns;
mod count;
mod extract;
#[cfg(test)]
mod mutated;
mod select;
mod step;
#[cfg(test)]
mod tests;

pub(crate) use columns::GroupedColumns;
pub(super) use columns::{MOST_GROUPS, MOST_RANKS};
pub use step::GroupStageExec;
pub(super) use step::{GroupStage, GroupStep};
