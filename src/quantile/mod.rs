//! Quantiles as exact numbers, the ranks that they ask for, and the values that answer them.
//!
//! A quantile is the shortest decimal that prints it (0.1 is one tenth), so a rank is a matter of integers: for
//! `n` values the default method asks for rank `max(1, ceil(q n))`, the others for the position `q (n - 1)`,
//! counted from 0, and what lies at or around it. Methods and their names are NumPy's (`numpy.quantile`,
//! Hyndman and Fan 1996, definitions 1 and 7).

mod answer_type;
mod between;
mod builtin;
mod byte_strings;
mod method;
mod number;
mod pick;
#[cfg(feature = "ballista")]
mod plan_bytes;
mod selected;
mod spec;
#[cfg(test)]
mod tests;

pub(crate) use between::Interpolation;
pub use method::Method;
use number::Fraction;
pub use number::{Quantile, Quantiles};
pub(crate) use pick::{Found, Pick, Picks};
pub(crate) use selected::{Selected, SelectedColumn, Typed, state_item, state_type};
pub use spec::QuantileSpec;
