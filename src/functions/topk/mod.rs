//! The functions `topk_by`, `max_by` and `min_by`: the best values by another column.
//!
//! | call | answer |
//! | --- | --- |
//! | `topk_by(v, x, k)`, `topk_by(v, x, k, 'asc')` | list of the v of the k greatest (least) x; a v may be NULL |
//! | `max_by(v, x, k)`, `min_by(v, x, k)` | list of the v of the k greatest (least) x, over rows whose v is not NULL |
//! | `max(x, k)`, `min(x, k)` | list of the k greatest (least) x: `max_by(x, x, k)`, `min_by(x, x, k)` |
//! | `max_by(v, x)`, `min_by(v, x)` | the v of the greatest (least) x, over the same rows |
//!
//! Rows whose x is NULL are skipped. Among equal x smaller v come first and NULL last, so that the answer is unique. Each
//! direction is a function of its own, as for [`exact_quantiles`](super).

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
pub(crate) use self::function::{TopKBy, topk_aggregate, topk_aggregates};
pub(crate) use self::name::TopKName;
pub(crate) use self::plan::{plan_call, plan_ends};
