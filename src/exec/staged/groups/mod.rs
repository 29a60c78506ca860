//! Quantiles with `GROUP BY` as stages: two reads, between which only counts and brackets travel.
//!
//! ```text
//! select    P   keys of the brackets, by class of group -> a row of answers for each group
//!   extract P   input again, and the state: the keys that lie in the brackets of their group
//!     input | brackets  1   counts of all partitions -> for each rank of each group the interval that holds it
//!               count   P   input: for each group counts of intervals
//! ```
//! Intervals are dyadic and adapted to each group ([`crate::kernel::cpu::groups::intervals`]); those of different partitions
//! nest, so that their counts add, and the interval of a rank is certain. Whatever the data, the second read brings all
//! keys in it, and the answer is the ordinary one. It costs a read more than the exchange of all keys and moves some
//! percent of them: 1000 groups of 30 000 values each about 5% for a median.
//!
//! **Many groups.** Where a partition finds more than [`MOST_GROUPS`], or has no memory to count them, or there are too
//! many ranks, it says so in place of counts, and the second read sends all keys: exact, no replanning, one read wasted.
//!
//! **Guards.** Groups are of 64 classes, by hash. Every read says how many rows and values it saw of each class, with an
//! order-free checksum of their keys; whoever selects the answers of a class compares the sums of both reads.

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
