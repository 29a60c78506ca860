//! The logical node between the optimizer and [`GroupedTopKExec`](crate::exec::GroupedTopKExec).

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{Expr, LogicalPlan};

use crate::exec::{Numbering, comma_separated};
use crate::planner::call_spec::{CallSpec, RowsAsked};
use crate::planner::node::{Node, NodeKind};

/// What is made of the best rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Made {
    /// The answer of a `topk_by` call, an alias may be around it: one row for each group.
    Call(Expr, Box<CallSpec<RowsAsked>>),
    /// The rows.
    Rows {
        k: usize,
        numbering: Numbering,
        /// How they are ordered.
        order: Vec<Sort>,
        /// Output columns, but for group expressions that come first and the number that comes last, where they do.
        columns: Vec<Expr>,
        /// Whether the output starts with the group expressions.
        with_groups: bool,
        /// Whether it ends with the number of each row.
        with_number: bool,
    },
}

/// The best rows of each group. Stands in for what asked for them, and keeps its schema.
pub(in crate::planner) type TopKNode = Node<TopKKind>;

/// What a [`TopKNode`] makes of which groups.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::planner) struct TopKKind {
    pub(super) group: Vec<Expr>,
    pub(super) made: Made,
    /// Whether it is planned for many machines.
    pub(super) staged: bool,
    /// What it stands in for, over the same input: where that streams, it is planned instead.
    pub(super) original: Option<Arc<LogicalPlan>>,
}

impl NodeKind for TopKKind {
    fn name(&self) -> &'static str {
        "TopK"
    }

    fn details(&self) -> String {
        let made = match &self.made {
            Made::Call(call, _) => call.to_string(),
            Made::Rows {
                k, numbering, order, ..
            } => format!(
                "{numbering} <= {k}, orderBy=[[{}]]",
                comma_separated(order.iter())
            ),
        };
        format!("{made}, groupBy=[[{}]]", comma_separated(self.group.iter()))
    }

    fn expressions(&self) -> Vec<Expr> {
        let mut all = self.group.clone();
        match &self.made {
            Made::Call(call, _) => all.push(call.clone()),
            Made::Rows { order, columns, .. } => {
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
        match &mut kind.made {
            Made::Call(call, spec) => {
                let new = exprs
                    .next()
                    .and_then(|new| CallSpec::rows(&new).map(|spec| (new, spec)));
                (*call, **spec) =
                    new.ok_or_else(|| internal_datafusion_err!("a TopK node without its call"))?;
            }
            Made::Rows { order, columns, .. } => {
                let order = order.iter_mut().map(|order| &mut order.expr);
                order.chain(columns).zip(exprs).for_each(|(old, new)| *old = new);
            }
        }
        Ok(kind)
    }
}
