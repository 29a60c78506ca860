//! Approximate percentiles, with a proved bound of the error or with exact ranks, and Greenwald-Khanna sketches as values.
//!
//! ```sql
//! SELECT approx_percentile_gk(fare, 0.99, 10000) FROM trips                -- rank error <= n / 10000
//! SELECT approx_percentile_gk_bounds(fare, 0.99, 100) FROM trips           -- and which ranks it may have
//! CREATE TABLE daily AS SELECT day, gk_sketch(fare, 1000) AS s FROM trips GROUP BY day
//! SELECT gk_quantile(gk_merge(s), 0.5) FROM daily                          -- monthly, from daily sketches
//! SELECT approx_percentile_sample_bounds(fare, 0.99, 1024) FROM trips      -- a value near, and the ranks that it has
//! ```
//! Ungrouped calls run as accumulators over [`crate::sketch`], with memory for `O(1 / eps)` keys and partial states
//! of one binary value. The planner takes the exact operators instead where those are faster, or nothing else works:
//! with `GROUP BY`, `DISTINCT` and `OVER`, and for types without keys of fixed width. Such answers are exact, which
//! is within any bound. Percentiles from a sample are rounds of [`QuantilesExec`](crate::exec::QuantilesExec); where
//! they run as accumulators they are exact too.

mod accumulator;
mod column;
mod constants;
mod function;
mod groups;
mod merge;
#[cfg(test)]
mod mutated;
mod name;
mod stored;
#[cfg(feature = "ballista")]
mod wire;

pub(crate) use self::column::with_bounds;
pub(crate) use self::constants::{Sampled, check_arguments};
pub(crate) use self::function::{GkFunction, gk_aggregates};
pub(crate) use self::name::GkName;
pub(crate) use self::stored::{Stored, gk_scalars};
