//! Plans with the help of a query planner that does not know the logical nodes of this crate.
//!
//! Nodes are replaced one by one, innermost first. The inner planner plans the input of the node, the operator is put
//! on it, and a scan of a table that gives the finished operator replaces the node. The inner planner then plans the
//! remaining plan, which has no such node.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, Result, TableReference};
use datafusion::datasource::{TableType, provider_as_source};
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_expr::projection::ProjectionExpr;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, expressions};

use super::QuantilesNode;
use super::physical::quantiles_exec;

/// A query planner that is shared.
pub(super) type SharedQueryPlanner = Arc<dyn QueryPlanner + Send + Sync>;

/// Plans a rewritten plan with the help of `inner`. `fallback` plans again, for the CPU, when a device has failed.
pub(super) async fn plan_with_inner(
    mut plan: LogicalPlan,
    fallback: &SharedQueryPlanner,
    inner: &SharedQueryPlanner,
    session: &dyn Session,
) -> Result<Arc<dyn ExecutionPlan>> {
    let timed = matches!(plan, LogicalPlan::Analyze(_));
    let mut number = 0;
    while let Some(node) = innermost(&plan)? {
        let exec = planned(&node, (fallback, timed), inner, session).await?;
        plan = replace_first(plan, &node, &scan_of(&node, exec, number)?)?;
        number += 1;
    }
    inner.create_physical_plan(&plan, session).await
}

/// The operator for `node`: on a device where pinned tables answer it, otherwise over its planned input. `device`:
/// the planner to fall back to, and whether the query is timed by `EXPLAIN ANALYZE`.
async fn planned(
    node: &QuantilesNode,
    device: (&SharedQueryPlanner, bool),
    inner: &SharedQueryPlanner,
    session: &dyn Session,
) -> Result<Arc<dyn ExecutionPlan>> {
    #[cfg(feature = "cuda")]
    {
        let plan = node.clone().into_plan();
        let (fallback, timed) = device;
        if let Some(node) = super::pinned::pinned_node(&plan, fallback, timed, session).await? {
            return node.exec(session);
        }
    }
    #[cfg(not(feature = "cuda"))]
    let _ = device;
    let input = inner.create_physical_plan(node.input(), session).await?;
    quantiles_exec(node, input, session, &PhysicalPlanningContext::default())
}

/// A node of this crate that has none below it; `None` if the plan has no such node.
fn innermost(plan: &LogicalPlan) -> Result<Option<QuantilesNode>> {
    let mut found = None;
    plan.apply_with_subqueries(|part| {
        let Some(node) = QuantilesNode::of(part) else {
            return Ok(TreeNodeRecursion::Continue);
        };
        let below = innermost(node.input())?;
        found = Some(below.unwrap_or_else(|| node.clone()));
        Ok(TreeNodeRecursion::Stop)
    })?;
    Ok(found)
}

/// The plan with one occurrence of `node` replaced. An equal node elsewhere needs an input of its own, since a scan
/// can be executed only once.
fn replace_first(plan: LogicalPlan, node: &QuantilesNode, by: &LogicalPlan) -> Result<LogicalPlan> {
    let mut replaced = false;
    let plan = plan.transform_up_with_subqueries(|part| {
        if replaced || QuantilesNode::of(&part) != Some(node) {
            return Ok(Transformed::no(part));
        }
        replaced = true;
        Ok(Transformed::yes(by.clone()))
    })?;
    Ok(plan.data)
}

/// A scan that gives the rows of `plan`, under the names of the node's schema. `number` makes the table's name unique.
fn scan_of(node: &QuantilesNode, plan: Arc<dyn ExecutionPlan>, number: usize) -> Result<LogicalPlan> {
    let table = TableReference::bare(format!("__quantiles_{number}"));
    let source = provider_as_source(Arc::new(PlannedTable { plan }));
    let columns = node.schema().iter().map(|(qualifier, field)| {
        Expr::Column(Column::new(Some(table.clone()), field.name()))
            .alias_qualified(qualifier.cloned(), field.name())
    });
    let columns: Vec<_> = columns.collect();
    LogicalPlanBuilder::scan(table.clone(), source, None)?
        .project(columns)?
        .build()
}

/// A table whose rows are those of a finished physical plan.
#[derive(Debug)]
struct PlannedTable {
    plan: Arc<dyn ExecutionPlan>,
}

#[async_trait]
impl TableProvider for PlannedTable {
    fn schema(&self) -> SchemaRef {
        self.plan.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        _session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(projection) = projection else {
            return Ok(Arc::clone(&self.plan));
        };
        let schema = self.schema();
        let columns = projection.iter().map(|&index| {
            let name = schema.field(index).name();
            ProjectionExpr::new(Arc::new(expressions::Column::new(name, index)), name)
        });
        Ok(Arc::new(ProjectionExec::try_new(
            columns,
            Arc::clone(&self.plan),
        )?))
    }
}
