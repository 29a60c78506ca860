//! Quantiles of pinned columns, on their device.
//!
//! ```text
//! Quantiles: aggr=[[exact_quantiles(fare, ..)]]  ->  PinnedExec: device=cuda:0 .., columns=[fare]
//!   TableScan: trips projection=[fare]
//! ```
//! Taken where all aggregates are exact quantiles of columns of one pinned table, without `DISTINCT`, with `GROUP BY` also `count`,
//! and `min` and `max` but of floating point, `GROUP BY` names such columns too, but not floating point, and `WHERE` and `FILTER` compare only pinned columns with constants. The choice costs
//! nothing: what is resident is read 50 times as fast as from the memory of the host, so the device is picked for any size.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::{DFSchema, Result};
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use super::table::{Resident, conjunction};
use crate::exec::{
    ExecAggregate, FilteredColumn, PinnedCount, PinnedGroups, PinnedQuantiles, PinnedQuestion, QuantilesCall,
};
use crate::key::Encoding;
use crate::planner::QuantilesNode;
use crate::planner::call_spec::{CallSpec, QuantilesAsked, aggregate_call};
use crate::planner::physical::Lowering;

/// What `node` asks of a pinned table; `None`: it is planned as any other.
///
/// # Errors
/// Those of the catalog; a planning error if a quantile is not a constant number in [0, 1].
pub(super) async fn quantiles_question(
    node: &QuantilesNode,
    timed: bool,
    session: &dyn Session,
) -> Result<Option<PinnedQuestion>> {
    let (input, is_grouped) = (node.input(), !node.group_expr().is_empty());
    let Some(resident) = Resident::on_devices(input, session).await? else {
        return Ok(None);
    };
    if is_grouped && resident.table.is_spread() {
        return Ok(None);
    }
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
                let source = sourced(asked, &call, input, &resident);
                aggregates.push(ExecAggregate::Quantiles(call));
                source.map(|source| sources.push(source))
            }
            None if is_grouped && aggregate_call(expr).is_some_and(counts_rows) => {
                aggregates.push(ExecAggregate::Plain(lowering.plain(expr)?));
                counted(expr, input, &resident).map(|count| counts.push(count))
            }
            None => None,
        };
        if found.is_none() {
            return Ok(None);
        }
    }
    let schema = Arc::clone(node.schema().inner());
    if !is_grouped {
        let calls = PinnedQuantiles::new(aggregates, sources, resident.options.strategy);
        return Ok(Some(resident.question(calls, schema, timed)));
    }
    let grouped = resident.grouped(node.group_expr(), input);
    Ok(grouped.map(|(groups, filter)| {
        let calls = PinnedGroups::new(groups, filter, aggregates, (sources, counts));
        resident.question(calls, schema, timed)
    }))
}

/// What `min` and `max` ask; not of floating point, whose NaNs they rank in their own way.
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
    match data_type.is_floating() || Encoding::of(&data_type).is_none() {
        true => Ok(None),
        false => CallSpec::end(call, x, quantile).map(Some),
    }
}

/// Whether it is `count(*)`, or `count` of one argument.
fn counts_rows(call: &AggregateFunction) -> bool {
    call.func.inner().downcast_ref::<Count>().is_some()
        && call.params.args.len() == 1
        && !call.params.distinct
        && call.params.order_by.is_empty()
}

/// The rows that a call of `count` is about.
fn counted(expr: &Expr, input: &LogicalPlan, resident: &Resident) -> Option<PinnedCount> {
    let call = aggregate_call(expr)?;
    let column = match call.params.args.as_slice() {
        [Expr::Literal(value, _)] if !value.is_null() => None,
        [x] => Some(resident.column(x, input)?),
        _ => return None,
    };
    let filter = resident.filter(call.params.filter.as_deref(), input)?;
    Some(PinnedCount {
        column,
        filter: conjunction(filter),
    })
}

/// The values of a call whose physical form is `call`, if they are a pinned column.
fn sourced(
    asked: &CallSpec<QuantilesAsked>,
    call: &QuantilesCall,
    input: &LogicalPlan,
    resident: &Resident,
) -> Option<FilteredColumn> {
    if !call.is_exact_by_keys() {
        return None;
    }
    let column = resident.column(&asked.values, input)?;
    let filter = conjunction(resident.filter(asked.filter.as_ref(), input)?);
    Some(FilteredColumn { column, filter })
}
