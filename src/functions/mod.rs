//! The SQL functions, and the way of a call from the parser to an accumulator.
//!
//! The return type of an aggregate depends on the types of its arguments, never on their values. So the method and the
//! direction cannot be plain arguments. Each pair of them is an aggregate function of its own (`ExactQuantiles`, 26 in
//! all, and a few for each of its other names, `FunctionName`), and [`QuantilesExprPlanner`] picks the right one while SQL
//! is planned:
//!
//! ```text
//! exact_quantiles(x, 0.5)                                -> exact_quantiles(x, 0.5)
//! exact_quantiles(x, 0.5, 'Linear')                      -> exact_quantiles_linear(x, 0.5)
//! exact_quantiles(0.5) WITHIN GROUP (ORDER BY x DESC)    -> exact_quantiles_desc(x, 0.5)
//! percentile_disc(0.5) WITHIN GROUP (ORDER BY x)         -> percentile_disc(x, 0.5)
//! exact_quantiles(x, 0.5, 'linear', w)                   -> exact_quantiles_linear(x, 0.5, w), each row counts w times
//! ```
//! Since the function's name has the pair in it, the pair also survives where a plan travels with the names of its functions only.

mod accumulator;
mod call;
mod clickhouse;
mod collected;
mod distance;
mod exact_quantiles;
mod expr_planner;
pub(crate) mod gk;
mod groups;
mod guarded;
mod iqr;
mod keys;
mod moving;
#[cfg(test)]
mod mutated;
mod names;
mod parsed;
mod peak;
mod percentile_cont;
mod pgvector;
pub(crate) mod ranks;
pub(crate) mod shape;
mod states;
mod strings;
pub(crate) mod topk;
mod types;
mod vector_pairs;
mod weighted;
#[cfg(feature = "ballista")]
pub(crate) mod wire;
mod within_group;

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{AggregateUDF, Expr, lit};

use crate::quantile::Method;

pub(crate) use call::{QuantileArgument, constant, constant_quantiles};
pub(crate) use clickhouse::{median_aggregates, without_nan};
pub(crate) use distance::{
    VectorDistance, builtin_distance, components_of, is_list_of_float64, is_vectors, vector_distance,
    vector_distances,
};
pub(crate) use exact_quantiles::{Arguments, ExactQuantiles};
pub use expr_planner::QuantilesExprPlanner;
pub(crate) use expr_planner::respell_distinct;
pub(crate) use gk::GkFunction;
#[cfg(any(feature = "ballista", test))]
pub(crate) use guarded::DELIVERED_TWICE;
pub(crate) use guarded::{Guarded, Merged, Numbers};
pub(crate) use iqr::{iqr_aggregate, widened};
pub(crate) use moving::MovingQuantiles;
pub(crate) use moving::answers::answers_of_frames;
pub(crate) use moving::call::MovingCall;
pub(crate) use names::FunctionName;
pub use parsed::rewrite_calls;
pub(crate) use peak::PeakSize;
pub(crate) use percentile_cont::{is_percentile_cont, unaliased};
pub(crate) use ranks::RankFunction;
pub(crate) use shape::{ShapeFunction, tukey_fences};
pub(crate) use topk::TopKBy;
pub(crate) use types::ordered_type;
pub(crate) use vector_pairs::dimension_of;
#[cfg(feature = "cuda")]
pub(crate) use vector_pairs::vectors_of;
pub(crate) use weighted::{counted_weights, weights_of};
pub(crate) use within_group::within_group;

/// Name of the function that a user writes.
pub(crate) const EXACT_QUANTILES: &str = "exact_quantiles";

/// Part of an error message: the second read of the input found other rows than the first.
pub(crate) const CHANGED: &str = "the input changed between two reads of one query";

/// Name of Spark's function.
pub(crate) const PERCENTILE: &str = "percentile";

static AGGREGATES: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let methods = |sql_name: FunctionName| sql_name.methods().iter().map(move |method| (sql_name, *method));
    FunctionName::ALL
        .into_iter()
        .flat_map(methods)
        .flat_map(|(sql_name, method)| {
            [false, true].map(|descending| ExactQuantiles::new(sql_name, method, descending))
        })
        .map(|function| Arc::new(AggregateUDF::from(function)))
        .collect()
});

/// Every aggregate function of exact quantiles, to register: one for each name, method and direction.
pub fn all_aggregates() -> &'static [Arc<AggregateUDF>] {
    &AGGREGATES
}

/// `exact_quantiles` for one method and direction; `descending` counts from the greatest value.
///
/// Called with two arguments, the values and a constant number or list of numbers in [0, 1], or three: the third is how often each row counts.
pub fn aggregate(method: Method, descending: bool) -> Arc<AggregateUDF> {
    let function = match method {
        // DataFusion's own methods have a name each.
        Method::Median => FunctionName::Median,
        Method::PercentileCont => FunctionName::PercentileCont,
        Method::SparkPercentile => FunctionName::Percentile,
        Method::ClickHouse => FunctionName::QuantileExact,
        Method::ClickHouseLow => FunctionName::QuantileExactLow,
        _ => FunctionName::ExactQuantiles,
    };
    variant(function, method, descending)
}

/// The aggregate function of one name, one of its methods ([`FunctionName::methods`]), and one direction.
pub(crate) fn variant(sql_name: FunctionName, method: Method, descending: bool) -> Arc<AggregateUDF> {
    let name = sql_name.registered(method, descending);
    let found = AGGREGATES.iter().find(|udf| udf.name() == name);
    Arc::clone(found.expect("there is one for each method of a name and each direction"))
}

/// A list as a constant expression, of items of one type.
pub(crate) fn constant_list(items: &[ScalarValue], item: &DataType) -> Expr {
    lit(ScalarValue::List(ScalarValue::new_list_nullable(items, item)))
}

/// A plain call of an aggregate function: without DISTINCT, filter or order.
pub(crate) fn call_of(function: Arc<AggregateUDF>, args: Vec<Expr>) -> Expr {
    Expr::AggregateFunction(AggregateFunction::new_udf(
        function,
        args,
        false,
        None,
        Vec::new(),
        None,
    ))
}

/// Calls for the DataFrame and expression API.
pub mod expr_fn {
    use datafusion::logical_expr::expr::Sort;
    use datafusion::logical_expr::lit;

    use super::iqr::quartiles;
    use super::ranks::{Direction, RankName, ranking};
    use super::shape::{ShapeName, shape};
    use super::topk::{TopKName, topk_aggregate};
    use super::{Expr, Method, aggregate, call_of as call};

    /// Exact quantiles of `x`, which skips NULLs.
    ///
    /// `quantiles` is a constant expression. A number in [0, 1] gives one value; a list of such numbers gives a list in the
    /// same order. `descending` counts from the greatest value. Bad arguments are an error when the plan is made.
    ///
    /// ```
    /// # use datafusion::prelude::*;
    /// # use datafusion_quantiles::functions::expr_fn::exact_quantiles;
    /// # use datafusion_quantiles::Method;
    /// let median = exact_quantiles(col("fare"), lit(0.5), Method::Disc, false).alias("median");
    /// ```
    pub fn exact_quantiles(x: Expr, quantiles: Expr, method: Method, descending: bool) -> Expr {
        call(aggregate(method, descending), vec![x, quantiles])
    }

    /// Exact quantiles of `x`, where each row counts as often as `weight` says: an integer, or a decimal. NULL, and a row of weight 0, count not
    /// at all.
    ///
    /// ```
    /// # use datafusion::prelude::*;
    /// # use datafusion_quantiles::functions::expr_fn::exact_quantiles_weighted;
    /// # use datafusion_quantiles::Method;
    /// let p99 = exact_quantiles_weighted(col("latency"), lit(0.99), col("requests"), Method::Disc, false);
    /// ```
    pub fn exact_quantiles_weighted(
        x: Expr,
        quantiles: Expr,
        weight: Expr,
        method: Method,
        descending: bool,
    ) -> Expr {
        call(aggregate(method, descending), vec![x, quantiles, weight])
    }

    /// Spark's `percentile` of the numbers `x`, with Spark's arithmetic. Each row counts as often as `frequency` says, or once.
    pub fn percentile(x: Expr, percentages: Expr, frequency: Option<Expr>) -> Expr {
        let args = [x, percentages].into_iter().chain(frequency).collect();
        call(aggregate(Method::SparkPercentile, false), args)
    }

    /// The distance between the quartiles of `x`, by a method that interpolates. NULLs are skipped.
    pub fn iqr(x: Expr, method: Method) -> Expr {
        let [upper, lower] = quartiles(&x, method, None, call);
        upper - lower
    }

    /// The most frequent value of `x`; of several the smallest. NULLs are skipped.
    pub fn mode(x: Expr) -> Expr {
        call(shape(ShapeName::Mode), vec![x])
    }

    /// A list of the `k` most frequent values of `x` with their counts, the most frequent first. NULLs are skipped.
    ///
    /// ```
    /// # use datafusion::prelude::*;
    /// # use datafusion_quantiles::functions::expr_fn::top_values;
    /// let usual = top_values(col("fare"), 3).alias("usual");
    /// ```
    pub fn top_values(x: Expr, k: u64) -> Expr {
        call(shape(ShapeName::TopValues), vec![x, lit(k)])
    }

    /// The number of distinct values of `x`. NULLs are skipped.
    ///
    /// ```
    /// # use datafusion::prelude::*;
    /// # use datafusion_quantiles::functions::expr_fn::count_distinct_exact;
    /// let riders = count_distinct_exact(col("rider")).alias("riders");
    /// ```
    pub fn count_distinct_exact(x: Expr) -> Expr {
        call(shape(ShapeName::CountDistinct), vec![x])
    }

    /// The median of the absolute deviations of `x` from its median. NULLs are skipped.
    pub fn mad(x: Expr) -> Expr {
        call(shape(ShapeName::Mad), vec![x])
    }

    /// The mean of `x` without the share `p` of its least and of its greatest values, from 0 to less than 0.5. NULLs are skipped.
    pub fn trimmed_mean(x: Expr, p: f64) -> Expr {
        call(shape(ShapeName::TrimmedMean), vec![x, lit(p)])
    }

    /// The mean of `x`, of whose least and greatest values a share `p` each, from 0 to less than 0.5, counts as the value next to them. NULLs
    /// are skipped.
    pub fn winsorized_mean(x: Expr, p: f64) -> Expr {
        call(shape(ShapeName::WinsorizedMean), vec![x, lit(p)])
    }

    /// A list of at most `bins` bins of about as many values of `x` each, with their edges and counts. NULLs are skipped.
    pub fn histogram_equi_depth(x: Expr, bins: u64) -> Expr {
        call(shape(ShapeName::Histogram), vec![x, lit(bins)])
    }

    /// A list of at most `bins` bins of the same width, with their edges and the number of values of `x` in each. NULLs are skipped.
    pub fn histogram_equi_width(x: Expr, bins: u64) -> Expr {
        call(shape(ShapeName::EquiWidth), vec![x, lit(bins)])
    }

    /// A list of the `k` greatest values of `x`, the greatest first: `max(x, k)` in SQL. NULLs are skipped.
    pub fn greatest_values(x: Expr, k: u64) -> Expr {
        call(topk_aggregate(TopKName::Max, false), vec![x.clone(), x, lit(k)])
    }

    /// A list of the `k` least values of `x`, the least first: `min(x, k)` in SQL. NULLs are skipped.
    pub fn least_values(x: Expr, k: u64) -> Expr {
        call(topk_aggregate(TopKName::Min, true), vec![x.clone(), x, lit(k)])
    }

    /// The number of values of `x` at or below `v`, a constant or a list of constants. NULLs are skipped.
    ///
    /// ```
    /// # use datafusion::prelude::*;
    /// # use datafusion_quantiles::functions::expr_fn::exact_rank;
    /// let cheap = exact_rank(col("fare"), lit(10)).alias("cheap");
    /// ```
    pub fn exact_rank(x: Expr, v: Expr) -> Expr {
        call(ranking(RankName::ExactRank, Direction::of(false)), vec![x, v])
    }

    /// The share of the values of `x` that is at or below `v`, a constant or a list of constants. NULLs are skipped; no values give NULL.
    pub fn exact_cdf(x: Expr, v: Expr) -> Expr {
        call(ranking(RankName::ExactCdf, Direction::of(false)), vec![x, v])
    }

    /// The rank that a row with `v` would have in an order: SQL's `rank(v) WITHIN GROUP (ORDER BY ..)`.
    pub fn hypothetical_rank(v: Expr, order: Sort) -> Expr {
        hypothetical(RankName::Rank, v, order)
    }

    /// The rank that a row with `v` would have in an order where equal rows count once: SQL's `dense_rank(v) WITHIN GROUP (ORDER BY ..)`.
    pub fn hypothetical_dense_rank(v: Expr, order: Sort) -> Expr {
        hypothetical(RankName::DenseRank, v, order)
    }

    /// The share of rows before one with `v`: SQL's `percent_rank(v) WITHIN GROUP (ORDER BY ..)`.
    pub fn hypothetical_percent_rank(v: Expr, order: Sort) -> Expr {
        hypothetical(RankName::PercentRank, v, order)
    }

    /// The share of rows up to one with `v` and its equals, itself included: SQL's `cume_dist(v) WITHIN GROUP (ORDER BY ..)`.
    pub fn hypothetical_cume_dist(v: Expr, order: Sort) -> Expr {
        hypothetical(RankName::CumeDist, v, order)
    }

    fn hypothetical(sql_name: RankName, v: Expr, order: Sort) -> Expr {
        let direction = Direction {
            descending: !order.asc,
            nulls_first: order.nulls_first,
        };
        call(ranking(sql_name, direction), vec![order.expr, v])
    }
}
