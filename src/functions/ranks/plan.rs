//! Finds the function that a call means: the direction of `WITHIN GROUP` is in its name.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Result, plan_err};
use datafusion::functions_window::{cume_dist, rank};
use datafusion::logical_expr::expr::{NullTreatment, Sort};
use datafusion::logical_expr::{AggregateUDF, Expr, WindowUDF};

use super::function::{RankFunction, no_distinct, not_constant, ranking};
use super::name::RankName;
use super::spec::Direction;
use crate::functions::call::constant;

/// The function that a call means, and its two arguments.
///
/// # Errors
/// A planning error that names what is wrong with the arguments.
pub(crate) fn plan_call(
    function: &RankFunction,
    args: &[Expr],
    order_by: &[Sort],
    is_distinct: bool,
    nulls: Option<NullTreatment>,
) -> Result<(Arc<AggregateUDF>, Vec<Expr>)> {
    let sql_name = function.sql_name();
    let [_, constants] = args else {
        return plan_err!("{}", sql_name.wrong_arguments(args.len()));
    };
    if nulls == Some(NullTreatment::RespectNulls) {
        return plan_err!("{sql_name} skips NULLs: RESPECT NULLS is not allowed");
    }
    if is_distinct && sql_name.is_hypothetical() {
        return plan_err!("{}", no_distinct(sql_name));
    }
    check_constants(sql_name, constants)?;
    let direction = match order_by.first() {
        Some(order) => Direction {
            descending: !order.asc,
            nulls_first: order.nulls_first,
        },
        None if sql_name.is_hypothetical() => return plan_err!("{}", sql_name.wrong_arguments(args.len())),
        None => function.direction,
    };
    Ok((ranking(sql_name, direction), args.to_vec()))
}

/// Checks that the second argument of a call is constant, as far as it is known yet.
///
/// # Errors
/// A planning error that names it.
pub(crate) fn check_constants(sql_name: RankName, constants: &Expr) -> Result<()> {
    let is_unbound = |expr: &Expr| expr.exists(|part| Ok(matches!(part, Expr::Placeholder(_))));
    if constant(constants)?.is_some() || is_unbound(constants)? {
        Ok(())
    } else {
        plan_err!("{}", not_constant(sql_name, constants))
    }
}

/// DataFusion's window function of the same name, which ranks rows; `None` for the names of this crate.
pub(crate) fn window_function(function: &RankFunction) -> Option<Arc<WindowUDF>> {
    match function.sql_name() {
        RankName::Rank => Some(rank::rank_udwf()),
        RankName::DenseRank => Some(rank::dense_rank_udwf()),
        RankName::PercentRank => Some(rank::percent_rank_udwf()),
        RankName::CumeDist => Some(cume_dist::cume_dist_udwf()),
        RankName::ExactRank | RankName::ExactCdf => None,
    }
}
