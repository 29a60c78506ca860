//! The inverse of a quantile: the rank that a value has among those of a column, exactly.
//!
//! ```sql
//! SELECT exact_cdf(latency, [0.1, 0.2, 0.5]) FROM requests              -- the share of requests at or below each
//! SELECT exact_rank(latency, 0.2) FROM requests                         -- their number
//! SELECT rank(0.2) WITHIN GROUP (ORDER BY latency DESC) FROM requests   -- the SQL standard's hypothetical-set functions
//! ```
//! | function | answer, from the number of values before v, of those equal to it, of all values, of NULLs |
//! | --- | --- |
//! | `exact_rank` | before + equal |
//! | `exact_cdf` | (before + equal) / values; of none NULL |
//! | `rank` | 1 + before |
//! | `dense_rank` | 1 + distinct ones before |
//! | `percent_rank` | before / rows; of none 0 |
//! | `cume_dist` | (before + equal + 1) / (rows + 1) |
//!
//! The first two skip NULLs. For the others, which are the standard's, NULLs are rows, before or behind all values as `NULLS FIRST` and
//! `NULLS LAST` say, and v is one more row.
//!
//! Each v becomes a [cut](cut) among the keys of the column, and values are counted between the cuts: one read, no selection, and memory for
//! the counts only. Distinct values have to be held.

mod accumulator;
mod cut;
mod distinct;
mod function;
mod grid;
mod name;
mod plan;
mod spec;
#[cfg(feature = "ballista")]
mod wire;

pub(crate) use self::cut::Cut;
pub(crate) use self::function::{RankFunction, rank_aggregates, ranking};
pub(crate) use self::name::RankName;
pub(crate) use self::plan::{check_constants, plan_call, window_function};
pub(crate) use self::spec::Direction;
