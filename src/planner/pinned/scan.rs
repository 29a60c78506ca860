//! The sides of a join that read pinned tables of vectors.

use std::hash::{Hash, Hasher};

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::{Expr, JoinType, LogicalPlan};

use super::table::{PinnedInput, conjunction};
use crate::config::DeviceChoice;
use crate::exec::PinnedScan;
use crate::functions::is_vectors;
use crate::planner::node::{Node, NodeKind};

/// A plan that reads a pinned table. Its operator says so to the rule that plans the nearest rows of many queries.
pub(in crate::planner) type PinnedScanNode = Node<PinnedScanKind>;

/// The pinned table behind a plan.
#[derive(Debug, Clone)]
pub(in crate::planner) struct PinnedScanKind(pub(in crate::planner) PinnedScan);

// The nodes are told apart by their inputs, which the scan follows from.
impl PartialEq for PinnedScanKind {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for PinnedScanKind {}

impl Hash for PinnedScanKind {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

impl NodeKind for PinnedScanKind {
    fn name(&self) -> &'static str {
        "PinnedScan"
    }

    fn details(&self) -> String {
        format!("table={}", self.0.table.source.name())
    }

    fn passes_rows(&self) -> bool {
        true
    }
}

/// The inputs of a join of all pairs, which may be one of queries and vectors; none for other plans.
pub(super) fn joined(plan: &LogicalPlan) -> Vec<&LogicalPlan> {
    match plan {
        LogicalPlan::Join(join) if join.on.is_empty() && join.join_type == JoinType::Inner => {
            vec![join.left.as_ref(), join.right.as_ref()]
        }
        _ => Vec::new(),
    }
}

/// The node above a plan that reads a pinned table with vectors; `None` for other plans.
///
/// # Errors
/// Errors of the catalog.
pub(super) async fn pinned_scan(
    side: &LogicalPlan,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedScanNode>> {
    let Some(pinned) = PinnedInput::below(side, session).await? else {
        return Ok(None);
    };
    let Some(filter) = pinned.filter(None, side) else {
        return Ok(None);
    };
    let columns = side.schema().columns().into_iter();
    let columns: Vec<_> = columns
        .map(|column| pinned.any_column(&Expr::Column(column), side))
        .collect();
    let is_vector = |column: &Option<usize>| {
        column.is_some_and(|column| is_vectors(pinned.table.column(column).data_type()))
    };
    if !columns.iter().any(is_vector) {
        return Ok(None);
    }
    let scan = PinnedScan {
        columns,
        filter: conjunction(filter),
        limit: pinned.options.cuda_memory_limit,
        timed,
        falls_back: pinned.options.device == DeviceChoice::Auto,
        table: pinned.table,
    };
    let schema = side.schema().clone();
    Ok(Some(PinnedScanNode::new(
        PinnedScanKind(scan),
        vec![side.clone()],
        schema,
    )))
}
