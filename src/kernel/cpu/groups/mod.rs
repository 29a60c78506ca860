//! Groups: order statistics of every group at once, without a list for any of them.
//!
//! Two ways, by the number of groups:
//! - few: each key stays where it is, with the number of its group beside it; (group, cell) pairs are counted in one
//!   read, and the cells that hold a wanted rank are taken out in a second one ([`cells`]);
//! - many: rows are partitioned by the hash of their group into parts that fit the cache ([`runs`]); then, part by
//!   part, groups are numbered, keys brought together by group, and the ranks selected in place ([`segments`]).
//!
//! Byte strings always go the second way ([`bytes`], [`strings`]).
//!
//! Where groups are spread over machines, a partition counts the keys of each of its groups in [`intervals`] first, and takes
//! out those that lie in the groups' brackets in a second read ([`collect`]).

pub(crate) mod bytes;
pub(crate) mod carried;
pub(crate) mod cells;
pub(crate) mod collect;
pub(crate) mod group_key;
pub(crate) mod intervals;
pub(crate) mod partitioned;
pub(crate) mod runs;
pub(crate) mod segments;
pub(crate) mod strings;
