//! Approximate percentiles, with a proved bound or with exact ranks, and Greenwald-Khanna sketches as values.
//!
//! ```sql
//! SELECT approx_percentile_gk(fare, 0.99, 10000) FROM trips                -- rank error <= n / 10000
//! SELECT approx_percentile_gk_bounds(fare, 0.99, 100) FROM trips           -- and which ranks it may have
//! CREATE TABLE daily AS SELECT day, gk_sketch(fare, 1000) AS s FROM trips GROUP BY day
//! SELECT gk_quantile(gk_merge(s), 0.5) FROM daily                          -- monthly, from daily sketches
//! SELECT approx_percentile_sample_bounds(fare, 0.99, 1024) FROM trips      -- near, and which rank it has
//! ```
//! Ungrouped calls run as accumulators over [`crate::sketch`]: memory for `O(1 / eps)` keys, states of one binary value.
//! Where the exact operators are the faster way, or the only one, the planner takes them: with `GROUP BY`, `DISTINCT`
//! and `OVER` the answer is exact, which is within any bound. So it is for types without keys of fixed width. Percentiles
//! from a sample are rounds of [`QuantilesExec`](crate::exec::QuantilesExec); as accumulators they are exact too.

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

use std::sync::{Arc, LazyLock};

use datafusion::logical_expr::{AggregateUDF, ScalarUDF};

pub(crate) use self::column::with_bounds;
pub(crate) use self::constants::check_arguments;
pub use self::function::GkFunction;
pub use self::name::GkName;
use self::stored::StoredFunction;

/// Metadata of a column of sketches: the type of their values.
pub(crate) const VALUES: &str = "quantiles.values";

/// A call that is answered by the nearest splitters of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sampled {
    pub(crate) buckets: u32,
    /// Whether the ranks that they have are wanted too.
    pub(crate) bounds: bool,
}

static AGGREGATES: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let ends = |called: GkName| match called.asks() {
        true => vec![false, true],
        false => vec![false],
    };
    GkName::ALL
        .into_iter()
        .flat_map(|called| {
            ends(called)
                .into_iter()
                .map(move |end| GkFunction::new(called, end))
        })
        .map(|function| Arc::new(AggregateUDF::from(function)))
        .collect()
});

static SCALARS: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
    StoredFunction::all()
        .map(|function| Arc::new(ScalarUDF::from(function)))
        .to_vec()
});

/// Every aggregate function over sketches to register.
pub fn gk_aggregates() -> &'static [Arc<AggregateUDF>] {
    &AGGREGATES
}

/// The functions that read stored sketches.
pub fn gk_scalars() -> &'static [Arc<ScalarUDF>] {
    &SCALARS
}
