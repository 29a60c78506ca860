//! The SQL functions, and how a call travels from the parser to an accumulator.
//!
//! An aggregate's return type sees the types of its arguments and never their values, so the method and the
//! direction cannot be plain arguments. Each pair of them is an aggregate function of its own
//! ([`ExactQuantiles`], twelve in all, and a few for each of its other names, [`FunctionName`]), and
//! [`QuantilesExprPlanner`] swaps the right one in while SQL is planned:
//!
//! ```text
//! exact_quantiles(x, 0.5)                                -> exact_quantiles(x, 0.5)
//! exact_quantiles(x, 0.5, 'Linear')                      -> exact_quantiles_linear(x, 0.5)
//! exact_quantiles(0.5) WITHIN GROUP (ORDER BY x DESC)    -> exact_quantiles_desc(x, 0.5)
//! percentile_disc(0.5) WITHIN GROUP (ORDER BY x)         -> percentile_disc(x, 0.5)
//! ```
//! Since the pair is the function's name, it also survives a plan's way over a wire that carries names only.

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
#[cfg(feature = "ballista")]
pub(crate) mod wire;

use std::sync::{Arc, LazyLock};

use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{AggregateUDF, Expr};

use crate::quantile::Method;

pub(crate) use call::{QuantileArgument, constant, constant_quantiles};
pub(crate) use exact_quantiles::{ExactQuantiles, ordered_type};
pub use expr_planner::QuantilesExprPlanner;
pub(crate) use expr_planner::respell_distinct;
pub(crate) use gk::GkFunction;
#[cfg(any(feature = "ballista", test))]
pub(crate) use guarded::DELIVERED_TWICE;
pub(crate) use guarded::{Guarded, Merged, Numbers};
pub(crate) use moving::MovingQuantiles;
pub(crate) use names::FunctionName;
pub(crate) use percentile_cont::{is_percentile_cont, unaliased};
pub(crate) use topk::TopKBy;

/// Name of the function that a user writes.
pub(crate) const EXACT_QUANTILES: &str = "exact_quantiles";

static AGGREGATES: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let methods = |called: FunctionName| called.methods().iter().map(move |method| (called, *method));
    FunctionName::ALL
        .into_iter()
        .flat_map(methods)
        .flat_map(|(called, method)| {
            [false, true].map(|descending| ExactQuantiles::new(called, method, descending))
        })
        .map(|function| Arc::new(AggregateUDF::from(function)))
        .collect()
});

/// Every aggregate function to register: one for each name, method and direction.
pub fn all_aggregates() -> &'static [Arc<AggregateUDF>] {
    &AGGREGATES
}

/// `exact_quantiles` for one method and direction; `descending` counts from the greatest value.
///
/// Called with two arguments: the values, and a constant number or list of numbers in [0, 1].
pub fn aggregate(method: Method, descending: bool) -> Arc<AggregateUDF> {
    match Method::ALL.contains(&method) {
        true => variant(FunctionName::ExactQuantiles, method, descending),
        // DataFusion's own rules have a name each.
        false if method == Method::Median => variant(FunctionName::Median, method, descending),
        false => variant(FunctionName::PercentileCont, method, descending),
    }
}

/// The aggregate function for one of the methods of a name, and one direction.
pub(crate) fn variant(called: FunctionName, method: Method, descending: bool) -> Arc<AggregateUDF> {
    let name = called.registered(method, descending);
    let found = AGGREGATES.iter().find(|udf| udf.name() == name);
    Arc::clone(found.expect("there is one for each method of a name and each direction"))
}

/// Calls for the DataFrame and expression API.
pub mod expr_fn {
    use super::{AggregateFunction, Expr, Method, aggregate};

    /// Exact quantiles of `x`, which skips NULLs.
    ///
    /// `quantiles` is a constant expression: a number in [0, 1], then the answer is one value, or a list of them,
    /// then the answer is a list in the same order. `descending` counts from the greatest value. What is wrong
    /// with the arguments is an error when the plan is made.
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
