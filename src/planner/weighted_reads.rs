//! Answers ungrouped quantiles of rows with weights by three reads of them, of which few rows are held.
//!
//! ```text
//! Aggregate: exact_quantiles(x, q, weight)
//!   Union
//!     Filter: in_wanted_bin(x, bins)                     third read
//!       TableScan: t
//!     Unnest: other_bins(bins)                           a row for each bin without an answer
//!
//! bins, a subquery:  weights_of(bin_of(x, edges), weight)   second read
//! edges, in it:      exact_quantiles(x, [..])               first read
//! ```

use std::sync::Arc;

use datafusion::common::{Column, Result, Spans};
use datafusion::execution::SessionState;
use datafusion::functions::core::expr_fn::{get_field, named_struct};
use datafusion::functions_aggregate::expr_fn::sum;
use datafusion::logical_expr::logical_plan::Subquery;
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, lit};

use super::call_spec::aggregate_call;
use crate::functions::{ROW, WeightedReads};

/// Names of the values that a read has for the next one.
const EDGES: &str = "edges";
const WEIGHTS: &str = "weights";
const OTHERS: &str = "others";
const BIN: &str = "bin";
const ANSWER: &str = "answer";

/// How a call of an aggregation is answered in three reads; `None` if it has no weights, or is not.
pub(super) fn weighted_reads(call: &Expr, aggregate: &Aggregate) -> Result<Option<WeightedReads>> {
    let Some(call) = aggregate_call(call) else {
        return Ok(None);
    };
    WeightedReads::of(call, |expr| expr.get_type(aggregate.input.schema()))
}

fn column(name: &str) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}

/// The answer of a call over the rows of `input`, as a scalar subquery.
///
/// # Errors
/// DataFusion's.
pub(super) fn weighted_answer(
    call: &WeightedReads,
    input: &Arc<LogicalPlan>,
    state: &SessionState,
) -> Result<Expr> {
    let rows = || {
        let rows = LogicalPlanBuilder::from(Arc::clone(input));
        match call.filter() {
            Some(filter) => rows.filter(filter.clone()),
            None => Ok(rows),
        }
    };
    let nothing = Vec::<Expr>::new;
    let first = rows()?
        .aggregate(nothing(), [call.edges().alias(EDGES)])?
        .build()?;
    let edges = scalar(&first, state)?;
    let [bin, weight] = call.binned(edges.clone());
    let second = rows()?
        .project([bin.alias(BIN), weight.alias(ROW[1])])?
        .aggregate(
            nothing(),
            [WeightedReads::weights(column(BIN), column(ROW[1])).alias(WEIGHTS)],
        )?
        .project([named_struct(vec![lit(EDGES), edges, lit(WEIGHTS), column(WEIGHTS)]).alias(BIN)])?
        .build()?;
    // As a whole: a field of it would become a column of its own, a list in each row.
    let bins = scalar(&second, state)?;
    let named = |[x, weight]: [Expr; 2]| [x.alias(ROW[0]), weight.alias(ROW[1])];
    let others = LogicalPlanBuilder::empty(true)
        .project([call.others(bins.clone()).alias(OTHERS)])?
        .unnest_column(OTHERS)?
        .project(named(ROW.map(|name| get_field(column(OTHERS), name))))?
        .build()?;
    let third = rows()?
        .filter(call.is_wanted(bins.clone()))?
        .project(named(call.columns()))?
        .union(others)?
        .aggregate(
            nothing(),
            [
                call.call(ROW.map(column)).alias(ANSWER),
                sum(column(ROW[1])).alias(WEIGHTS),
            ],
        )?
        .project([call.checked(column(ANSWER), column(WEIGHTS), bins).alias(ANSWER)])?
        .build()?;
    scalar(&third, state)
}

/// The only value of a plan's only row.
pub(super) fn scalar(plan: &LogicalPlan, state: &SessionState) -> Result<Expr> {
    Ok(Expr::ScalarSubquery(Subquery {
        subquery: Arc::new(state.optimize(plan)?),
        outer_ref_columns: Vec::new(),
        spans: Spans::new(),
    }))
}
