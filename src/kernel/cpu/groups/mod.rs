//! Order statistics of every group at once, without a list of values for any group.
//!
//! The method depends on the number of groups:
//! - few groups: each key stays where it is, with the number of its group beside it ([`numbered`]). (group, cell) pairs are counted in
//!   one read, and the keys of the cells that hold a target rank are taken out in a second one ([`cells`]);
//! - many groups: rows are partitioned by the hash of their group into hash partitions that fit the cache ([`runs`]).
//!   Then, in one hash partition after the other, groups are numbered, keys brought together by group, and the ranks
//!   selected in place ([`segments`]).
//!
//! Byte strings always go the second way ([`bytes`], [`strings`]).
//!
//! Values that have weights are ranked as often as their weights say ([`weighted`]).
//!
//! Where groups are spread over machines, a partition first counts the keys of each of its groups in [`intervals`]. In
//! a second read it takes out the keys that lie in the brackets of the groups ([`collect`]).

pub(crate) mod bytes;
pub(crate) mod carried;
pub(crate) mod cells;
pub(crate) mod collect;
pub(crate) mod group_key;
pub(crate) mod intervals;
pub(crate) mod numbered;
pub(crate) mod partitioned;
pub(crate) mod runs;
pub(crate) mod segments;
pub(crate) mod strings;
pub(crate) mod weighted;
