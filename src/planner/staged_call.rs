//! Which calls stages can answer: what each asks, and of which values.

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Expr, ExprSchemable, when};

use super::QuantilesNode;
use super::call_spec::aggregate_call;
use crate::exec::staged::StagedCall;
use crate::functions::{ExactQuantiles, GkFunction, constant_quantiles};
use crate::key::KeySpec;
use crate::quantile::{Ask, Method};

/// The argument of a staged call.
#[derive(PartialEq)]
pub(super) struct Column {
    pub(super) values: Expr,
    pub(super) distinct: bool,
    /// Whether it is ordered as `ORDER BY` orders.
    builtin: bool,
}

/// A call over a column of the input.
pub(super) fn staged_call(column: usize, expr: &Expr) -> Result<StagedCall> {
    let asked = asked(expr).transpose()?;
    let (ask, is_list, bounds) =
        asked.ok_or_else(|| internal_datafusion_err!("{expr} asks for no quantiles"))?;
    Ok(StagedCall {
        column,
        ask,
        is_list,
        bounds,
    })
}

/// What a call asks of its values, whether the answer is a list, and whether it says the ranks too. `None` for a call that
/// is answered otherwise.
///
/// Stages give the exact answer for less than a sample's splitters and their count would take.
fn asked(expr: &Expr) -> Option<Result<(Ask, bool, bool)>> {
    let call = aggregate_call(expr)?;
    if let Some(function) = ExactQuantiles::of(&call.func) {
        let quantiles = call.params.args.get(1)?;
        let known = constant_quantiles(function.called(), quantiles);
        return Some(known.map(|known| {
            let ask = Ask {
                quantiles: known.list,
                method: function.method(),
                descending: function.is_descending(),
            };
            (ask, known.is_list, false)
        }));
    }
    let function = GkFunction::of(&call.func)?;
    let (quantiles, sampled) = function.sampled()?;
    let ask = Ask {
        quantiles: quantiles.list.clone(),
        method: Method::Disc,
        descending: function.is_descending(),
    };
    Some(Ok((ask, quantiles.is_list, sampled.bounds)))
}

/// The values of a call: NULL where its filter drops a row. `None` if stages cannot answer it.
pub(super) fn column_of(expr: &Expr, node: &QuantilesNode) -> Result<Option<Column>> {
    let Some(AggregateFunction { func, params }) = aggregate_call(expr) else {
        return Ok(None);
    };
    let is_builtin = match (ExactQuantiles::of(func), GkFunction::of(func)) {
        (Some(function), _) => function.called().is_builtin(),
        (None, Some(function)) if function.sampled().is_some() => false,
        _ => return Ok(None),
    };
    let Some(x) = params.args.first() else {
        return Ok(None);
    };
    let data_type = x.get_type(node.input().schema())?;
    // GROUP BY need not tell the zeros of a float apart, as DISTINCT of ours does.
    let groups_differ = params.distinct && data_type.is_floating();
    let repeatable = !x.is_volatile() && params.filter.iter().all(|filter| !filter.is_volatile());
    if groups_differ || !repeatable || !KeySpec::supports(&data_type) {
        return Ok(None);
    }
    let values = match &params.filter {
        None => x.clone(),
        Some(filter) => when(filter.as_ref().clone(), x.clone()).end()?,
    };
    Ok(Some(Column {
        values,
        distinct: params.distinct,
        builtin: is_builtin,
    }))
}
