//! Functions of all values of a column in order: the most frequent ones, their spread, and how many lie where.
//!
//! | call | answer |
//! | --- | --- |
//! | `mode(x)` | the most frequent value; of several the smallest |
//! | `top_values(x, k)` | list of the k most frequent values with their counts, the most frequent first, of equal counts the smaller value first |
//! | `approx_top_k(x, k)` | the same values without their counts, exact in spite of the name, which is DuckDB's |
//! | `mad(x)` | the median of the absolute deviations from the median |
//! | `trimmed_mean(x, p)`, `winsorized_mean(x, p)` | [means](mean) in which floor(p n) values at each end do not count, or count as what is next to them |
//! | `histogram(x, bins [, kind])` | list of [bins](histogram) with their edges and counts |
//! | `count_distinct_exact(x)` | the number of distinct values; 0 of none |
//!
//! NULLs are skipped; no values give NULL where the table does not say otherwise. The accumulators hold the values of a group ([`held`],
//! and flat memory for many groups) and hand them over [in order](sorted); a [question](asked) reads them once.

mod asked;
mod call;
mod deviation;
mod distinct;
mod fences;
mod frequency;
mod function;
mod held;
mod histogram;
mod mean;
mod name;
mod number;
mod plan;
mod selected;
mod sorted;

pub(crate) use self::call::check_arguments;
pub(crate) use self::deviation::{Deviation, Known};
pub(crate) use self::fences::{Fenced, fences_array};
pub(crate) use self::frequency::Frequency;
pub(crate) use self::function::{ShapeFunction, shape, shape_aggregates};
pub(crate) use self::histogram::{EquiWidth, bins_between};
pub(crate) use self::mean::{ExactMean, ExactTotal};
pub(crate) use self::name::ShapeName;
pub(crate) use self::plan::plan_call;
pub(crate) use self::selected::{ShapeQuestion, asked_of_ranks, asked_of_values, tukey_fences};
