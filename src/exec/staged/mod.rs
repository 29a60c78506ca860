//! Quantiles as a plan of stages, for engines whose plans are fixed before they run. The number of stages does not depend on the data.
//!
//! ```text
//! RefineExec: answers            1    keys of the brackets -> the row of answers
//!   RoundExec: count             P    input again, and the state: counts around its brackets, copies what lies inside
//!     input | RefineExec: state  1    merged summaries -> brackets, in one row
//!               RoundExec: sketch P   input: a summary of each column
//! ```
//! These are the rounds of `gk_select`, unrolled; other strategies have more rounds. A [`crate::select::Strategy`] steps in a
//! `RefineExec`, shards answer in a `RoundExec`. The input is read once for each round. Every read reports how many values it saw and
//! the sum of their mixed keys; where reads differ, the query fails. Rows of a few KiB travel between stages, with the messages of
//! [`crate::kernel::round`].
//!
//! Replies that add up (sketches, counts) of more than 256 partitions go up a tree, so that no task fetches them all:
//!
//! ```text
//! RefineExec            1          at most 256 merged replies
//!   MergeExec           P / 128    about 128 replies each, as a hash of their checksums has it
//!     RoundExec         P
//! ```
//! with another level where the merged replies are more than 256. Keys do not add up: a tree would not make them fewer.
//!
//! Quantiles with `GROUP BY`: [`GroupStageExec`].

mod columns;
mod cost;
mod device;
mod fingerprint;
mod groups;
mod merge;
mod merged;
mod plan;
mod refine;
mod round;
mod rounds;
mod rows;
mod source;
mod stage;
mod state;
#[cfg(test)]
mod tests;
#[cfg(feature = "ballista")]
pub(crate) mod wire;
mod workload;

pub(crate) use columns::{KeyColumns, StagedCall, StagedColumns};
pub(crate) use cost::rounds;
pub use device::RoundDevice;
#[cfg(feature = "ballista")]
pub(crate) use fingerprint::READ_DIFFERENTLY;
pub use groups::GroupStageExec;
pub(crate) use groups::GroupedColumns;
pub use merge::MergeExec;
pub(crate) use plan::{group_stages, stages};
pub use refine::RefineExec;
pub use round::RoundExec;
pub(crate) use workload::{GroupWorkload, Workload};
