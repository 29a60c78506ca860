//! Statements with UNION ALL that Ballista 55 answers wrongly or never, which are refused.

use ballista_core::config::BallistaConfig;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, not_impl_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::LogicalPlan;

/// Refuses a plan with a UNION ALL that the session's Ballista planner would not run rightly.
///
/// With adaptive planning a task of one partition of a union may run all branches, so that rows are counted several
/// times. With either planner a branch that reads no table may wait for ever. A session without Ballista's options is not
/// Ballista's: nothing is refused.
///
/// # Errors
/// For such a plan, with what to do instead.
pub(crate) fn check_unions(plan: &LogicalPlan, options: &ConfigOptions) -> Result<()> {
    let Some(ballista) = options.extensions.get::<BallistaConfig>() else {
        return Ok(());
    };
    let adaptive = ballista.adaptive_query_planner_enabled();
    plan.apply_with_subqueries(|node| {
        let LogicalPlan::Union(union) = node else {
            return Ok(TreeNodeRecursion::Continue);
        };
        for branch in &union.inputs {
            if !branch.exists(|node| Ok(is_source(node)))? {
                return not_impl_err!(
                    "a UNION with a branch that reads no table, which Ballista 55 may never end: write the table of \
                     that branch's rows to a file and read it, or run the statement in one process"
                );
            }
        }
        match adaptive {
            true => not_impl_err!(
                "UNION with adaptive planning, where Ballista 55 may run a branch several times and count its rows \
                 again: SET ballista.planner.adaptive.enabled = false"
            ),
            false => Ok(TreeNodeRecursion::Continue),
        }
    })?;
    Ok(())
}

/// Whether a node has rows of its own that Ballista can divide among tasks.
fn is_source(node: &LogicalPlan) -> bool {
    node.inputs().is_empty() && !matches!(node, LogicalPlan::EmptyRelation(_))
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::ballista::session_config;

    async fn checked(sql: &str, adaptive: bool) -> Result<()> {
        let config = session_config().set_bool("ballista.planner.adaptive.enabled", adaptive);
        let ctx = SessionContext::new_with_config(config);
        ctx.sql("CREATE TABLE t AS VALUES (1), (2)").await?;
        let plan = ctx.sql(sql).await?.into_optimized_plan()?;
        check_unions(&plan, ctx.state().config_options())
    }

    #[tokio::test]
    async fn unions_are_refused_with_adaptive_planning_only() {
        let sql = "SELECT sum(q) FROM (SELECT avg(column1) AS q FROM t UNION ALL SELECT avg(column1) FROM t)";
        let error = checked(sql, true).await.unwrap_err().to_string();
        assert!(
            error.contains("ballista.planner.adaptive.enabled = false"),
            "{error}"
        );
        checked(sql, false).await.unwrap();
        checked("SELECT avg(column1) FROM t", true).await.unwrap();
    }

    #[tokio::test]
    async fn unions_with_a_branch_without_a_table_are_refused() {
        for adaptive in [true, false] {
            let sql = "SELECT median(column1) FROM (SELECT column1 FROM t UNION ALL SELECT NULL)";
            let error = checked(sql, adaptive).await.unwrap_err().to_string();
            assert!(error.contains("reads no table"), "{error}");
        }
    }
}
