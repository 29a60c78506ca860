//! Which calls stages can answer: what each asks, and of which values.

use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{Expr, ExprSchemable, when};

use super::call_spec::{CallSpec, QuantilesAsked};
use crate::exec::staged::StagedCall;
use crate::key::KeySpec;

/// The argument of a staged call.
#[derive(PartialEq)]
pub(super) struct Column {
    pub(super) values: Expr,
    pub(super) distinct: bool,
    /// Whether it is ordered as `ORDER BY` orders.
    builtin: bool,
}

/// A call over a column of the input. Stages give the exact answer for less than a sample's splitters and their count would take.
pub(super) fn staged_call(column: usize, call: &CallSpec<QuantilesAsked>) -> StagedCall {
    StagedCall {
        column,
        quantile_spec: call.asked.quantile_spec.clone(),
        is_list: call.asked.is_list,
        bounds: call.asked.sampled.is_some_and(|sampled| sampled.bounds),
    }
}

/// The values of a call: NULL where its filter drops a row. `None` if stages cannot answer it.
pub(super) fn column_of(call: &CallSpec<QuantilesAsked>, input: &DFSchema) -> Result<Option<Column>> {
    let data_type = call.values.get_type(input)?;
    // GROUP BY need not tell the zeros of a float apart, as DISTINCT of ours does.
    let groups_differ = call.distinct && data_type.is_floating();
    let repeatable = !call.values.is_volatile() && call.filter.iter().all(|filter| !filter.is_volatile());
    if groups_differ || !repeatable || !KeySpec::supports(&data_type) {
        return Ok(None);
    }
    let values = match &call.filter {
        None => call.values.clone(),
        Some(filter) => when(filter.clone(), call.values.clone()).end()?,
    };
    Ok(Some(Column {
        values,
        distinct: call.distinct,
        builtin: call.asked.is_builtin,
    }))
}
