//! Calls of a parsed statement that DataFusion's planner refuses or cuts, in a form that it hands on to the planner of calls.

use std::ops::ControlFlow;

use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{Expr, VisitMut, visit_expressions_mut};

use super::clickhouse::move_parameters;
use super::within_group::{move_inline_order, move_order};

/// Rewrites the calls of a parsed statement whose form DataFusion's planner does not understand, and this crate's functions have: those with
/// `WITHIN GROUP` and `OVER` together, and ClickHouse's with two pairs of parentheses, such as `quantileExact(0.9)(x)`. A session
/// plans what comes out once [`register_all`](crate::register_all) knows it. Of a call such as `exact_quantiles(x, 0.5 ORDER BY y)` it makes
/// one that is refused: DataFusion would answer for y.
///
/// Everything else stays as it is.
pub fn rewrite_calls(statement: &mut Statement) {
    match statement {
        Statement::Statement(statement) => rewrite(statement.as_mut()),
        Statement::Explain(explain) => rewrite_calls(&mut explain.statement),
        Statement::CopyTo(copy) => {
            if let CopyToSource::Query(query) = &mut copy.source {
                rewrite(query.as_mut());
            }
        }
        Statement::CreateExternalTable(_) | Statement::Reset(_) => {}
    }
}

fn rewrite(parsed: &mut impl VisitMut) {
    let _ = visit_expressions_mut(parsed, |expr| {
        if let Expr::Function(call) = expr {
            move_parameters(call);
            move_inline_order(call);
            move_order(call);
        }
        ControlFlow::<()>::Continue(())
    });
}
