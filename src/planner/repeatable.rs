//! Decides which plans give the same rows each time they are read.
//!
//! Stages read their input several times, each time from the start, with rows in any order; reads that differ are an
//! error. So plans whose rows depend on the order of their input are read only once: those with limits, row numbers
//! among ties, sums of floating point.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, LogicalPlan};

use super::QuantilesNode;
use super::call_spec::aggregate_call;
use super::grouped_topk::has_one_form;
use crate::functions::{ExactQuantiles, Guarded, TopKBy};

/// Aggregates of DataFusion whose answer does not depend on the order of rows, if it is no floating point.
const UNORDERED: [&str; 13] = [
    "approx_distinct",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "count",
    "grouping",
    "max",
    "mean",
    "min",
    "sum",
];

/// Aggregates of DataFusion that sort their values, so that the answer never depends on the order of rows.
const ORDERING: [&str; 2] = ["median", "percentile_cont"];

/// Window functions that give rows that tie the same value.
const RANKS: [&str; 4] = ["rank", "dense_rank", "percent_rank", "cume_dist"];

/// Whether `plan` gives the same rows when it is read again, in any order.
pub(crate) fn is_repeatable(plan: &LogicalPlan) -> Result<bool> {
    let mut differs = false;
    plan.apply_with_subqueries(|node| {
        differs = match node {
            LogicalPlan::Limit(_) => true,
            LogicalPlan::Sort(sort) => sort.fetch.is_some(),
            LogicalPlan::TableScan(scan) => scan.fetch.is_some(),
            LogicalPlan::Window(window) => !window.window_expr.iter().all(is_rank),
            LogicalPlan::Aggregate(aggregate) => {
                let schema = aggregate.input.schema();
                !are_unordered(&aggregate.group_expr, &aggregate.aggr_expr, schema)?
            }
            other => match QuantilesNode::of(other) {
                Some(node) => !are_unordered(node.group_expr(), node.aggr_expr(), node.input().schema())?,
                None => false,
            },
        } || node.expressions().iter().any(Expr::is_volatile);
        Ok(if differs {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(!differs)
}

/// Whether a window expression gives rows that tie the same value.
fn is_rank(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_rank(&alias.expr),
        Expr::WindowFunction(window) => RANKS.contains(&window.fun.name()),
        _ => false,
    }
}

/// Whether groups and their aggregates are the same for rows in any order. Groups by floating point are not: the two
/// zeros are one group, which shows whichever zero came first.
fn are_unordered(groups: &[Expr], calls: &[Expr], schema: &DFSchema) -> Result<bool> {
    for group in groups {
        if !matches!(group, Expr::GroupingSet(_)) && !has_one_form(&group.get_type(schema)?) {
            return Ok(false);
        }
    }
    for call in calls {
        let Some(function) = aggregate_call(call).map(|call| call.func.as_ref()) else {
            return Ok(false);
        };
        let is_unordered = orders_itself(function)
            || UNORDERED.contains(&function.name()) && has_one_form(&call.get_type(schema)?);
        if !is_unordered {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a function sorts its values, or ranks its rows, itself.
fn orders_itself(function: &AggregateUDF) -> bool {
    let function = Guarded::of(function).map_or(function, Guarded::inner);
    ExactQuantiles::of(function).is_some()
        || TopKBy::of(function).is_some()
        || ORDERING.contains(&function.name())
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn what_depends_on_the_order_of_rows_is_not_repeated() {
        let ctx = SessionContext::new();
        crate::register_all(&ctx).unwrap();
        let table = "CREATE TABLE t (id BIGINT, x DOUBLE, n INT, s VARCHAR)";
        ctx.sql(table).await.unwrap().collect().await.unwrap();
        for (sql, repeatable) in [
            ("SELECT x FROM t WHERE n > 3", true),
            ("SELECT x FROM t LIMIT 10", false),
            ("SELECT x FROM t ORDER BY x LIMIT 10", false),
            ("SELECT x FROM t WHERE random() < 0.5", false),
            ("SELECT a.x FROM t AS a JOIN t AS b ON a.id = b.n", true),
            ("SELECT s, sum(n), min(id), count(x) FROM t GROUP BY s", true),
            ("SELECT DISTINCT s, n FROM t", true),
            ("SELECT DISTINCT x FROM t", false),
            ("SELECT s, avg(n) AS m FROM t GROUP BY s", false),
            ("SELECT s, sum(x) AS m FROM t GROUP BY s", false),
            ("SELECT s, max(x) AS m FROM t GROUP BY s", false),
            ("SELECT s, array_agg(n) FROM t GROUP BY s", false),
            ("SELECT s, first_value(n ORDER BY id) FROM t GROUP BY s", false),
            (
                "SELECT s, exact_quantiles(x, 0.5) AS m, count(*) FROM t GROUP BY s",
                true,
            ),
            (
                "SELECT s, exact_quantiles(x, 0.5) AS m, avg(x) AS a FROM t GROUP BY s",
                false,
            ),
            ("SELECT s, topk_by(x, n, 3), median(x) FROM t GROUP BY s", true),
            (
                "SELECT x, rank() OVER (PARTITION BY s ORDER BY n) AS r FROM t",
                true,
            ),
            (
                "SELECT x, row_number() OVER (PARTITION BY s ORDER BY n) AS r FROM t",
                false,
            ),
            ("SELECT x, lag(x) OVER (ORDER BY n) AS r FROM t", false),
            ("SELECT x FROM t WHERE x > (SELECT avg(x) FROM t)", false),
            ("SELECT x FROM t WHERE n IN (SELECT n FROM t)", true),
        ] {
            let plan = ctx.sql(sql).await.unwrap().into_optimized_plan().unwrap();
            assert_eq!(is_repeatable(&plan).unwrap(), repeatable, "{sql}\n{plan}");
        }
    }
}
