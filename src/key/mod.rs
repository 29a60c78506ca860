//! Order-preserving keys: every value that can be ranked maps to an unsigned integer of the same order.
//!
//! Algorithms never see SQL types. They work on `u32`, `u64` or `u128` inside a shard and on [`KeyBits`] outside, where
//! a [`KeySpec`] says what the bits mean. NULLs have no key; they are left out.
//!
//! Two orders exist, and they differ in floating point only. The functions' own order (that of
//! [`KeySpec::try_new`]) makes all NaNs one value above `+inf`; `ORDER BY`'s order ([`KeySpec::for_order_by`]) is
//! IEEE 754 `totalOrder`, which puts a NaN with its sign bit set below `-inf`. In both, `-0.0` lies just below
//! `0.0`.
//!
//! Types that no integer of up to 128 bits can hold (strings, binary, lists, structs, 256-bit decimals) are ordered as
//! byte strings, whose prefixes serve as keys.

mod bits;
mod bound;
mod bytes;
mod dense;
mod fixed;
mod hash;
mod keys;
mod lists;
mod prefix;
mod rows;
mod single;
mod sort;
mod spec;

pub use bits::{Key, KeyBits, Width};
pub(crate) use bits::{on_width, with_key};
pub(crate) use bound::{LeadBound, WordBound};
pub(crate) use bytes::ByteSpec;
pub use dense::dense;
pub(crate) use dense::kept;
pub(crate) use fixed::Encoding;
#[cfg(test)]
pub(crate) use fixed::tests::samples;
pub(crate) use hash::mixed;
pub use hash::{GOLDEN, finalised};
pub use keys::{KeyVec, ShardKey};
pub(crate) use prefix::PrefixKey;
pub(crate) use sort::{OrderBy, RowOrder, SortColumn, SortKeys, with_one_nan};
pub use spec::KeySpec;
pub(crate) use spec::{Order, words};
