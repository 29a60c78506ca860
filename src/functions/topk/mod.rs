//! `topk_by(value, key, k [, 'asc' | 'desc'])` and its other names: the best values by another column.
//!
//! | call | answer |
//! | --- | --- |
//! | `topk_by(v, x, k)`, `topk_by(v, x, k, 'asc')` | list of the v of the k greatest (least) x, NULL among them |
//! | `max_by(v, x, k)`, `min_by(v, x, k)` | the same over rows that have a v |
//! | `max_by(v, x)`, `min_by(v, x)` | one v |
//!
//! Rows without an x are skipped. Among equal x smaller v come first and NULL last, so that the answer is unique. A
//! direction is a function of its own, as for [`exact_quantiles`](super), since types are all that a return type sees.

mod accumulator;
mod call;
mod column;
mod function;
mod groups;
mod name;
mod plan;
mod sliding;
#[cfg(feature = "ballista")]
mod wire;

pub(crate) use self::call::check_arguments;
pub(crate) use self::column::{Call, firsts, lists};
pub(crate) use self::function::{TopKBy, topk_aggregates};
pub(crate) use self::name::TopKName;
pub(crate) use self::plan::plan_call;
