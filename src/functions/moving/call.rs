//! Calls over moving frames in physical plans.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::logical_expr::{WindowFrame, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::window::{
    PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr, WindowExpr,
};
use datafusion::physical_plan::windows::WindowUDFExpr;

use super::MovingQuantiles;
use crate::functions::ExactQuantiles;
use crate::quantile::{AnswerSpec, TypedAnswerSpec};

/// A call of exact quantiles over frames that move.
#[derive(Debug, Clone)]
pub(crate) struct MovingCall {
    /// The values that are ranked; NULL is none.
    pub(crate) argument: Arc<dyn PhysicalExpr>,
    /// What is asked of them.
    pub(crate) column: TypedAnswerSpec,
    /// Its frames.
    pub(crate) frame: Arc<WindowFrame>,
}

impl MovingCall {
    /// The call of a window expression over rows of `schema`; `None` for others: other functions, values without keys of fixed width, one
    /// frame for all rows, or frames whose ends only DataFusion computes.
    pub(crate) fn of(expr: &dyn WindowExpr, schema: &Schema) -> Option<Self> {
        let arguments = expr.expressions();
        let [argument] = arguments.as_slice() else {
            return None;
        };
        let data_type = argument.data_type(schema).ok()?;
        let frame = Arc::clone(expr.get_window_frame());
        if is_constant(&frame) || !has_known_ends(expr, &frame, schema) {
            return None;
        }
        Some(Self {
            column: column(expr, &data_type)?,
            argument: Arc::clone(argument),
            frame,
        })
    }
}

/// What a call with bound quantiles asks of values of this type. Its filter, if it had one, is part of its argument.
fn column(expr: &dyn WindowExpr, data_type: &DataType) -> Option<TypedAnswerSpec> {
    let expr = expr.as_any();
    if let Some(standard) = expr.downcast_ref::<StandardWindowExpr>() {
        let function = standard.get_standard_func_expr().as_any();
        let function = function.downcast_ref::<WindowUDFExpr>()?.fun().inner();
        let moving = function.downcast_ref::<MovingQuantiles>()?;
        return moving.column(data_type).ok();
    }
    let sliding = expr.downcast_ref::<SlidingAggregateWindowExpr>();
    let plain = expr.downcast_ref::<PlainAggregateWindowExpr>();
    let aggregate = sliding
        .map(SlidingAggregateWindowExpr::get_aggregate_expr)
        .or(plain.map(PlainAggregateWindowExpr::get_aggregate_expr))?;
    let function = ExactQuantiles::of(aggregate.fun())?;
    let quantiles = function.bound()?;
    if aggregate.is_reversed() {
        return None;
    }
    let quantile_spec = function.quantile_spec(quantiles, false);
    match AnswerSpec::try_new(
        data_type,
        quantile_spec,
        quantiles.is_list,
        aggregate.is_distinct(),
    )
    .ok()?
    {
        AnswerSpec::Keys(column) => Some(column),
        AnswerSpec::Bytes(_) => None,
    }
}

fn is_unbounded(bound: &WindowFrameBound) -> bool {
    match bound {
        WindowFrameBound::Preceding(offset) | WindowFrameBound::Following(offset) => offset.is_null(),
        WindowFrameBound::CurrentRow => false,
    }
}

/// Whether all rows of a partition have the same frame.
fn is_constant(frame: &WindowFrame) -> bool {
    is_unbounded(&frame.start_bound) && is_unbounded(&frame.end_bound)
}

/// Whether the ends of the frames are rows that lie at a distance in rows or peers, or in values of a type to which a distance can be
/// added without changing the type.
fn has_known_ends(expr: &dyn WindowExpr, frame: &WindowFrame, schema: &Schema) -> bool {
    let is_offset = |bound: &WindowFrameBound| *bound != WindowFrameBound::CurrentRow && !is_unbounded(bound);
    if frame.units != WindowFrameUnits::Range
        || !is_offset(&frame.start_bound) && !is_offset(&frame.end_bound)
    {
        return true;
    }
    let [order] = expr.order_by() else {
        return false;
    };
    order.expr.data_type(schema).is_ok_and(|order| {
        let is_time = matches!(
            order,
            DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)
        );
        order.is_integer() || order.is_floating() || is_time
    })
}
