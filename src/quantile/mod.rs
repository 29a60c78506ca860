//! Quantiles as exact numbers, the ranks that they stand for, and the values that answer them.
//!
//! A quantile is the shortest decimal that prints it (0.1 is one tenth), so a rank is computed with integers. For `n`
//! values the default method takes the rank `max(1, ceil(q n))`. Others take the position `q (n - 1)`, counted from 0, and
//! the values at or around it, or one of the ranks of Hyndman and Fan (`position`). Methods and their names are NumPy's
//! (`numpy.quantile`; Hyndman and Fan 1996, "Sample quantiles in statistical packages").

mod answer;
mod answer_type;
mod between;
mod builtin;
mod byte_strings;
pub(crate) mod fences;
mod method;
mod number;
mod pick;
#[cfg(feature = "ballista")]
mod plan_bytes;
mod position;
mod spark;
mod spec;
#[cfg(test)]
mod tests;

pub(crate) use answer::{AnswerForm, AnswerSpec, Typed, TypedAnswerSpec, state_item, state_type};
pub(crate) use between::Interpolation;
pub use method::Method;
use number::Fraction;
pub use number::{Quantile, Quantiles};
pub(crate) use pick::{Found, Pick, Picks, ranks_of};
pub use spec::QuantileSpec;
