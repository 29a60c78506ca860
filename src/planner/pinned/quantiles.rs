//! Quantiles of pinned columns, on their device.
//!
//! ```text
//! Quantiles: aggr=[[exact_quantiles(fare, ..)]]  ->  PinnedExec: device=cuda:0 .., columns=[fare]
//!   TableScan: trips projection=[fare]
//! ```
//! The device answers if
//!
//! * all aggregates are exact quantiles of columns of one pinned table, without `DISTINCT`; with `GROUP BY` they can also be `count`, and
//!   `min` and `max` of types other than floating point,
//! * `GROUP BY` names pinned columns of types other than floating point, and
//! * `WHERE` and `FILTER` only compare pinned columns with constants.
//!
//! Sizes play no part in the choice: a device reads pinned columns 50 times as fast as they are read from the memory of the host.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::{DFSchema, Result};
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use super::table::{PinnedInput, conjunction};
use crate::exec::{
    ExecAggregate, FilteredColumn, PinnedCount, PinnedGroups, PinnedQuantiles, PinnedQuery, QuantilesCall,
};
use crate::key::Encoding;
use crate::planner::QuantilesNode;
use crate::planner::call_spec::{CallSpec, QuantilesAsked, aggregate_call};
use crate::planner::physical::Lowering;

/// The query of `node` to a pinned table. `None` if a device cannot answer it.
///
/// # Errors
/// Errors of the catalog; a planning error if a quantile is not a constant number in [0, 1].
pub(super) async fn quantiles_query(
    node: &QuantilesNode,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedQuery>> {
    let (input, is_grouped) = (node.input(), !node.group_expr().is_empty());
    let Some(pinned) = PinnedInput::on_devices(input, session).await? else {
        return Ok(None);
    };
    let planning = PhysicalPlanningContext::default();
    let lowering = Lowering {
        schema: input.schema(),
        input: Arc::clone(input.schema().inner()),
        session,
        planning: &planning,
    };
    let (mut aggregates, mut sources, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for (expr, selected) in node.selected() {
        let end = match (selected, is_grouped) {
            (None, true) => end_of(expr, input.schema())?,
            _ => None,
        };
        let found = match selected.or(end.as_ref()) {
            Some(asked) => {
                let call = lowering.call(asked)?;
                let source = sourced(asked, &call, input, &pinned);
                aggregates.push(ExecAggregate::Quantiles(call));
                source.map(|source| sources.push(source))
            }
            None if is_grouped && aggregate_call(expr).is_some_and(counts_rows) => {
                aggregates.push(ExecAggregate::Plain(lowering.plain(expr)?));
                counted(expr, input, &pinned).map(|count| counts.push(count))
            }
            None => None,
        };
        if found.is_none() {
            return Ok(None);
        }
    }
    let schema = Arc::clone(node.schema().inner());
    if !is_grouped {
        let calls = PinnedQuantiles::new(aggregates, sources, pinned.options.strategy);
        return Ok(Some(pinned.query(calls, schema, timed)));
    }
    let grouped = pinned.grouped(node.group_expr(), input);
    Ok(grouped.map(|(groups, filter)| {
        let calls = PinnedGroups::new(groups, filter, aggregates, (sources, counts));
        pinned.query(calls, schema, timed)
    }))
}

/// A call of `min` or `max` as a quantile. `None` for floating point, where they rank NaNs in another way.
fn end_of(expr: &Expr, input: &DFSchema) -> Result<Option<CallSpec<QuantilesAsked>>> {
    let Some(call) = aggregate_call(expr).filter(|call| call.params.order_by.is_empty()) else {
        return Ok(None);
    };
    let function = call.func.inner();
    let (min, max) = (function.downcast_ref::<Min>(), function.downcast_ref::<Max>());
    let (Some(quantile), [x]) = (min.map(|_| 0.0).or(max.map(|_| 1.0)), call.params.args.as_slice()) else {
        return Ok(None);
    };
    let data_type = x.get_type(input)?;
    if data_type.is_floating() || Encoding::of(&data_type).is_none() {
        return Ok(None);
    }
    CallSpec::end(call, x, quantile).map(Some)
}

/// Whether the call is `count(*)`, or `count` of one argument.
fn counts_rows(call: &AggregateFunction) -> bool {
    call.func.inner().downcast_ref::<Count>().is_some()
        && call.params.args.len() == 1
        && !call.params.distinct
        && call.params.order_by.is_empty()
}

/// A call of `count` over pinned columns. `None` if a device cannot compute it.
fn counted(expr: &Expr, input: &LogicalPlan, pinned: &PinnedInput) -> Option<PinnedCount> {
    let call = aggregate_call(expr)?;
    let column = match call.params.args.as_slice() {
        [Expr::Literal(value, _)] if !value.is_null() => None,
        [x] => Some(pinned.column(x, input)?),
        _ => return None,
    };
    let filter = pinned.filter(call.params.filter.as_deref(), input)?;
    Some(PinnedCount {
        column,
        filter: conjunction(filter),
    })
}

/// The pinned column, with the filter, that a call of a quantile is over. `None` if a device cannot compute it.
fn sourced(
    asked: &CallSpec<QuantilesAsked>,
    call: &QuantilesCall,
    input: &LogicalPlan,
    pinned: &PinnedInput,
) -> Option<FilteredColumn> {
    if !call.is_exact_by_keys() {
        return None;
    }
    let column = pinned.column(&asked.values, input)?;
    let filter = conjunction(pinned.filter(asked.filter.as_ref(), input)?);
    Some(FilteredColumn { column, filter })
}
