//! `ORDER BY ... LIMIT k` on many machines, as two [`SortLimitExec`]s.
//!
//! ```text
//! Sort: fare DESC, fetch=100        SortLimitExec: mode=Final, k=100, by=[fare DESC]       1
//!   TableScan: trips           ->     SortLimitExec: mode=Partial, k=100, by=[fare DESC]   P
//!                                       DataSourceExec
//! ```
//! A node of its own, and not the rule of one process: an engine that plans again after each stage has other rules, and no
//! dynamic filter reaches a scan on another machine.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::expr::Sort as SortBy;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, Sort};
use datafusion::physical_expr::{LexOrdering, create_physical_sort_exprs};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::grouped_topk::sort_column;
use super::node::{Node, NodeKind};
use super::rewrite::has_subquery;
use super::sort_limit::is_faster;
use crate::exec::{Mode, SortLimitExec, comma_separated};
use crate::key::SortKeys;

/// The first rows of an order.
pub(super) type FirstRowsNode = Node<FirstRowsKind>;

/// Which order the rows of a [`FirstRowsNode`] have, and how many they are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct FirstRowsKind {
    by: Vec<SortBy>,
    k: usize,
}

/// Replaces sorts with a limit where two operators are faster, in subqueries too.
pub(super) fn first_rows(plan: LogicalPlan, session: &dyn Session) -> Result<Transformed<LogicalPlan>> {
    // Rows dealt out anew lose their order, which the rules that do so only know to be wanted above a sort.
    if session.config_options().optimizer.enable_round_robin_repartition {
        return Ok(Transformed::no(plan));
    }
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Sort(sort) => {
            let Some(k) = rows_of(&sort)? else {
                return Ok(Transformed::no(LogicalPlan::Sort(sort)));
            };
            let schema = Arc::clone(sort.input.schema());
            let input = Arc::unwrap_or_clone(sort.input);
            let node = FirstRowsNode::new(FirstRowsKind { by: sort.expr, k }, vec![input], schema);
            Ok(Transformed::yes(node.into_plan()))
        }
        other => Ok(Transformed::no(other)),
    })
}

/// How many rows are wanted, if the operator stands in for the sort.
fn rows_of(sort: &Sort) -> Result<Option<usize>> {
    let Some(k) = sort.fetch.filter(|k| is_faster(*k)) else {
        return Ok(None);
    };
    let schema = sort.input.schema();
    let mut columns = Vec::with_capacity(sort.expr.len());
    for by in &sort.expr {
        let column = sort_column(by, schema)?;
        if column.data_type.is_null() || has_subquery(&by.expr) {
            return Ok(None);
        }
        columns.push(column);
    }
    let is_ours = SortKeys::try_packed(&columns).is_some() && !schema.fields().is_empty();
    Ok(is_ours.then_some(k))
}

impl FirstRowsNode {
    /// The two operators over the planned input; a sort where its order is a useful one.
    ///
    /// # Errors
    /// DataFusion's, for expressions.
    pub(super) fn exec(
        &self,
        input: Arc<dyn ExecutionPlan>,
        session: &dyn Session,
        planning: &PhysicalPlanningContext,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (FirstRowsKind { by, k }, schema) = (&self.kind, self.input().schema());
        let by = create_physical_sort_exprs(by, schema, session.execution_props(), planning)?;
        let Some(by) = LexOrdering::new(by) else {
            return internal_err!("an order of no expressions");
        };
        let ordered = input.equivalence_properties().clone();
        let (prefix, is_sorted) = ordered.extract_common_sort_prefix(by.clone())?;
        if !is_sorted && prefix.is_empty() {
            let partial = SortLimitExec::step(Arc::clone(&input), by.clone(), *k, Mode::Partial)?;
            if let Some(partial) = partial
                && let Some(last) = SortLimitExec::step(Arc::new(partial), by.clone(), *k, Mode::Final)?
            {
                return Ok(Arc::new(last));
            }
        }
        Ok(Arc::new(SortExec::new(by, input).with_fetch(Some(*k))))
    }
}

impl NodeKind for FirstRowsKind {
    fn name(&self) -> &'static str {
        "FirstRows"
    }

    fn details(&self) -> String {
        format!("{}, fetch={}", comma_separated(self.by.iter()), self.k)
    }

    fn expressions(&self) -> Vec<Expr> {
        self.by.iter().map(|by| by.expr.clone()).collect()
    }

    fn rebuilt(&self, exprs: Vec<Expr>, _has_same_inputs: &dyn Fn() -> bool) -> Result<Self> {
        let by = self.by.iter().zip(exprs).map(|(by, expr)| by.with_expr(expr));
        Ok(Self {
            by: by.collect(),
            k: self.k,
        })
    }

    fn passes_rows(&self) -> bool {
        true
    }
}
