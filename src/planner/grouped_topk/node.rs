//! The logical node of the best rows of groups, between the optimizer and [`GroupedTopKExec`](crate::exec::GroupedTopKExec).

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{Expr, LogicalPlan};

use crate::exec::{Numbering, comma_separated};
use crate::planner::call_spec::{CallSpec, RowsAsked};
use crate::planner::node::{Node, NodeKind};

/// What a [`TopKNode`] gives for the best rows of each group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::planner) enum TopKOutput {
    /// One row for each group: the answer of a `topk_by` call, which may have an alias.
    Call(Expr, Box<CallSpec<RowsAsked>>),
    /// The best rows themselves.
    Rows {
        /// Number of the last row, from 1, that is among the best of its group.
        k: usize,
        numbering: Numbering,
        /// The order in a group, best row first.
        order: Vec<Sort>,
        /// Output columns, between the group expressions and the number where the output has those.
        columns: Vec<Expr>,
        /// Whether the output starts with the group expressions.
        with_groups: bool,
        /// Whether the output ends with the number of each row.
        with_number: bool,
    },
}

/// The node of the best rows of each group. It has the schema of the node that it replaces.
pub(in crate::planner) type TopKNode = Node<TopKKind>;

/// The groups of a [`TopKNode`], and what it gives for each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::planner) struct TopKKind {
    pub(in crate::planner) group: Vec<Expr>,
    pub(in crate::planner) output: TopKOutput,
    /// Whether the node is planned for many machines.
    pub(super) staged: bool,
    /// The plan that the node replaced, over the same input. Where that streams, it is planned instead; `None`: it
    /// never streams, or the input is another by now.
    pub(super) original: Option<Arc<LogicalPlan>>,
}

impl NodeKind for TopKKind {
    fn name(&self) -> &'static str {
        "TopK"
    }

    fn details(&self) -> String {
        let output = match &self.output {
            TopKOutput::Call(call, _) => call.to_string(),
            TopKOutput::Rows {
                k, numbering, order, ..
            } => format!(
                "{numbering} <= {k}, orderBy=[[{}]]",
                comma_separated(order.iter())
            ),
        };
        format!("{output}, groupBy=[[{}]]", comma_separated(self.group.iter()))
    }

    fn expressions(&self) -> Vec<Expr> {
        let mut all = self.group.clone();
        match &self.output {
            TopKOutput::Call(call, _) => all.push(call.clone()),
            TopKOutput::Rows { order, columns, .. } => {
                all.extend(order.iter().map(|order| order.expr.clone()));
                all.extend(columns.iter().cloned());
            }
        }
        all
    }

    fn rebuilt(&self, exprs: Vec<Expr>, has_same_inputs: &dyn Fn() -> bool) -> Result<Self> {
        let is_same = self.expressions() == exprs;
        let mut kind = self.clone();
        if !is_same || !has_same_inputs() {
            kind.original = None;
        }
        if is_same {
            return Ok(kind);
        }
        let mut exprs = exprs.into_iter();
        kind.group
            .iter_mut()
            .zip(&mut exprs)
            .for_each(|(old, new)| *old = new);
        match &mut kind.output {
            TopKOutput::Call(call, spec) => {
                let new = exprs
                    .next()
                    .and_then(|new| CallSpec::rows(&new).map(|spec| (new, spec)));
                (*call, **spec) =
                    new.ok_or_else(|| internal_datafusion_err!("a TopK node without its call"))?;
            }
            TopKOutput::Rows { order, columns, .. } => {
                let order = order.iter_mut().map(|order| &mut order.expr);
                order.chain(columns).zip(exprs).for_each(|(old, new)| *old = new);
            }
        }
        Ok(kind)
    }
}
