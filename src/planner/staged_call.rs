//! The calls that stages can answer: which argument each ranks, and what it asks for.

use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{Expr, ExprSchemable, when};

use super::call_spec::{CallSpec, QuantilesAsked};
use crate::exec::staged::StagedCall;
use crate::key::KeySpec;
use crate::quantile::AnswerForm;

/// The argument of a staged call. Calls with equal arguments share one column of keys.
#[derive(PartialEq)]
pub(super) struct Argument {
    /// The ranked values: NULL where the call's filter drops a row.
    pub(super) values: Expr,
    /// Whether each distinct value counts once.
    pub(super) distinct: bool,
    /// Whether the values are ordered as `ORDER BY` orders them.
    builtin: bool,
}

/// A call over column number `column` of the input. A call that asks for an approximate answer from a sample gets the
/// exact one: in stages that costs less than the sample's splitters and their count.
pub(super) fn staged_call(column: usize, call: &CallSpec<QuantilesAsked>) -> StagedCall {
    StagedCall {
        column,
        quantile_spec: call.asked.quantile_spec.clone(),
        is_list: call.asked.is_list,
        bounds: wants_bounds(call),
    }
}

/// Whether a call asks for the ranks that its answer has, too.
fn wants_bounds(call: &CallSpec<QuantilesAsked>) -> bool {
    call.asked.sampled.is_some_and(|sampled| sampled.bounds)
}

/// The argument of a call; `None` if stages cannot answer the call. `is_grouped`: it stands in an aggregation with `GROUP BY`.
///
/// All that stages demand of a call is decided here, `DISTINCT` included.
///
/// # Errors
/// DataFusion's, for an expression without a type.
pub(super) fn argument_of(
    call: &CallSpec<QuantilesAsked>,
    input: &DFSchema,
    is_grouped: bool,
) -> Result<Option<Argument>> {
    // Stages read groups from rows of the input: the distinct values of a group are no such rows. Bounds of ranks are answered
    // without groups only.
    if is_grouped && (call.distinct || wants_bounds(call)) || call.asked.form != AnswerForm::Values {
        return Ok(None);
    }
    let data_type = call.values.get_type(input)?;
    // Distinct values come from a GROUP BY, which may take the two zeros of a floating-point type for one value. DISTINCT of this
    // crate's functions tells them apart.
    let groups_differ = call.distinct && data_type.is_floating();
    let repeatable = !call.values.is_volatile() && call.filter.iter().all(|filter| !filter.is_volatile());
    if groups_differ || !repeatable || !KeySpec::supports(&data_type) {
        return Ok(None);
    }
    let values = match &call.filter {
        None => call.values.clone(),
        Some(filter) => when(filter.clone(), call.values.clone()).end()?,
    };
    Ok(Some(Argument {
        values,
        distinct: call.distinct,
        builtin: call.asked.is_builtin,
    }))
}
