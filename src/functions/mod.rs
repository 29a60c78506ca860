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
//! ```
//! Since the function's name has the pair in it, the pair also survives where a plan travels with the names of its functions only.

mod accumulator;
mod call;
mod collected;
mod exact_quantiles;
mod expr_planner;
pub(crate) mod gk;
mod groups;
mod guarded;
mod keys;
mod moving;
#[cfg(test)]
mod mutated;
mod names;
mod percentile_cont;
mod strings;
pub(crate) mod topk;
mod types;
#[cfg(feature = "ballista")]
pub(crate) mod wire;

use std::sync::{Arc, LazyLock};

use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{AggregateUDF, Expr};

use crate::quantile::Method;

pub(crate) use call::{QuantileArgument, constant, constant_quantiles};
pub(crate) use exact_quantiles::ExactQuantiles;
pub use expr_planner::QuantilesExprPlanner;
pub(crate) use expr_planner::respell_distinct;
pub(crate) use gk::GkFunction;
#[cfg(any(feature = "ballista", test))]
pub(crate) use guarded::DELIVERED_TWICE;
pub(crate) use guarded::{Guarded, Merged, Numbers};
pub(crate) use moving::MovingQuantiles;
pub(crate) use moving::answers::answers_of_frames;
pub(crate) use moving::call::MovingCall;
pub(crate) use names::FunctionName;
pub(crate) use percentile_cont::{is_percentile_cont, unaliased};
pub(crate) use topk::TopKBy;
pub(crate) use types::ordered_type;

/// Name of the function that a user writes.
pub(crate) const EXACT_QUANTILES: &str = "exact_quantiles";

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
/// Called with two arguments: the values, and a constant number or list of numbers in [0, 1].
pub fn aggregate(method: Method, descending: bool) -> Arc<AggregateUDF> {
    let function = match method {
        // DataFusion's own methods have a name each.
        Method::Median => FunctionName::Median,
        Method::PercentileCont => FunctionName::PercentileCont,
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

/// Calls for the DataFrame and expression API.
pub mod expr_fn {
    use super::{AggregateFunction, Expr, Method, aggregate};

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
        Expr::AggregateFunction(AggregateFunction::new_udf(
            aggregate(method, descending),
            vec![x, quantiles],
            false,
            None,
            Vec::new(),
            None,
        ))
    }
}
