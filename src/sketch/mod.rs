//! Greenwald and Khanna's quantile summary ("Space-efficient online computation of quantile summaries", SIGMOD 2001)
//! over keys, with the three ways of filling it that GK Select (section IV) compares.
//!
//! ```text
//! keys ── Sketch: classical | Spark's | modified ── flush ── Summary ── merge ── value_at, rank, bracket
//!                    (cells, parts: a buffer becomes a summary        └─ write, read
//!                     at once, mostly without a sort)
//! ```
//!
//! The bound is a theorem, whatever the keys, their order and the merges: the value that `Summary::value_at` gives for
//! a rank `r` of `n` values has a rank within `floor(eps n)` of `r`. The proofs are with `Summary`.
//!
//! | step | cost | where |
//! | --- | --- | --- |
//! | keys whose distribution stays | a cell number and a counter a key, no copy | `cells` |
//! | keys in ascending or descending order | a compare a key | `parts` |
//! | other keys | radix partition until a part fits the error: 1 to 3 scatters a key | `parts` |
//! | merge, compress | linear in the tuples | `merge`, `Summary::compress` |
//!
//! `dyadic` makes summaries of counts of intervals, for `gk_select`: they are shorter, and narrower once merged, but
//! their keys are not values.
//!
//! A sketch loses where `eps` is so small that there are about as many tuples as keys: sorting the keys is cheaper
//! then.

mod any;
mod build;
mod cells;
mod cuts;
pub(crate) mod dyadic;
mod epsilon;
mod fold;
mod gk;
mod merge;
mod parts;
mod stream;
mod summary_bytes;
mod tree;

#[cfg(test)]
mod tests;

pub use any::{AnySketch, AnySummary};
pub use epsilon::Epsilon;
pub(crate) use gk::Summary;
pub(crate) use stream::Sketch;
pub use stream::Variant;
pub(crate) use summary_bytes::Header;
#[cfg(test)]
pub(crate) use tests::sealed;
