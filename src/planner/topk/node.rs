//! The logical node between the optimizer and [`GroupedTopKExec`](crate::exec::GroupedTopKExec).

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::exec::Numbering;

/// What is made of the best rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Made {
    /// The answer of a `topk_by` call, an alias may be around it: one row for each group.
    Call(Expr),
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopKNode {
    pub(super) input: LogicalPlan,
    pub(super) group: Vec<Expr>,
    pub(super) made: Made,
    /// Whether it is planned for many machines.
    pub(super) staged: bool,
    /// What it stands in for, over the same input: where that streams, it is planned instead.
    pub(super) original: Option<Arc<LogicalPlan>>,
    pub(super) schema: DFSchemaRef,
}

impl PartialOrd for TopKNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (&self.input, self.expressions())
            .partial_cmp(&(&other.input, other.expressions()))
            .filter(|order| *order != Ordering::Equal || self == other)
    }
}

impl UserDefinedLogicalNodeCore for TopKNode {
    fn name(&self) -> &str {
        "TopK"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        let mut all = self.group.clone();
        match &self.made {
            Made::Call(call) => all.push(call.clone()),
            Made::Rows { order, columns, .. } => {
                all.extend(order.iter().map(|order| order.expr.clone()));
                all.extend(columns.iter().cloned());
            }
        }
        all
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let shown = |list: Vec<String>| list.join(", ");
        write!(f, "TopK: ")?;
        match &self.made {
            Made::Call(call) => write!(f, "{call}")?,
            Made::Rows {
                k, numbering, order, ..
            } => {
                let order = shown(order.iter().map(Sort::to_string).collect());
                write!(f, "{numbering} <= {k}, orderBy=[[{order}]]")?;
            }
        }
        write!(
            f,
            ", groupBy=[[{}]]",
            shown(self.group.iter().map(Expr::to_string).collect())
        )
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        let (Some(input), true) = (inputs.pop(), inputs.is_empty()) else {
            return internal_err!("a TopK node has one input");
        };
        if exprs.len() != self.expressions().len() {
            return internal_err!("a TopK node keeps its expressions");
        }
        let mut node = self.clone();
        if self.input != input || self.expressions() != exprs {
            node.original = None;
        }
        node.input = input;
        let mut exprs = exprs.into_iter();
        let (order, rows): (Vec<&mut Expr>, Vec<&mut Expr>) = match &mut node.made {
            Made::Call(call) => (Vec::new(), vec![call]),
            Made::Rows { order, columns, .. } => (
                order.iter_mut().map(|order| &mut order.expr).collect(),
                columns.iter_mut().collect(),
            ),
        };
        for (old, new) in node.group.iter_mut().chain(order).chain(rows).zip(&mut exprs) {
            *old = new;
        }
        Ok(node)
    }
}
