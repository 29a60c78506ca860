//! Rows in the order of their distance from a query vector: an estimate of the distance tells which of them can reach the floor.
//!
//! ```text
//! vectors of a batch ── estimate beyond the floor by more than its margin? ──yes──> dropped, at the speed of reading the vectors
//!                           │ no
//!                       distance, added in order: the value that rows are ordered by
//! ```

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array};
use datafusion::arrow::datatypes::Float64Type;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, ScalarValue};
use datafusion::physical_expr::expressions::NegativeExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr, ScalarFunctionExpr};

use crate::functions::VectorDistance;
use crate::kernel::cpu::distance::Bound;

/// The distance, or the negative of one, that rows are ordered by first.
#[derive(Debug)]
pub(super) struct LeadDistance {
    call: Arc<dyn PhysicalExpr>,
    is_negative: bool,
    descending: bool,
}

/// The call of [`VectorDistance`] that an expression is, or is the negative of, and whether it is the negative.
pub(crate) fn distance_call(expr: &Arc<dyn PhysicalExpr>) -> Option<(&Arc<dyn PhysicalExpr>, bool)> {
    let (call, is_negative) = match expr.downcast_ref::<NegativeExpr>() {
        Some(negative) => (negative.arg(), true),
        None => (expr, false),
    };
    let is_distance = ScalarFunctionExpr::try_downcast_func::<VectorDistance>(call.as_ref()).is_some();
    is_distance.then_some((call, is_negative))
}

impl LeadDistance {
    /// The distance that an order begins with, if it does, from a query that is the same for all rows.
    pub(super) fn of(by: &PhysicalSortExpr) -> Option<Self> {
        let (call, is_negative) = distance_call(&by.expr)?;
        let function = ScalarFunctionExpr::try_downcast_func::<VectorDistance>(call.as_ref())?;
        let has_query = function.args().iter().any(|arg| collect_columns(arg).is_empty());
        has_query.then(|| Self {
            call: Arc::clone(call),
            is_negative,
            descending: by.options.descending,
        })
    }

    /// The rows of a batch whose value may come no later than `floor` or is NULL, ascending, and their values. `None` if an estimate cannot
    /// tell: all values are to be computed.
    ///
    /// # Errors
    /// The expression's.
    pub(super) fn reaching(
        &self,
        batch: &RecordBatch,
        floor: &ScalarValue,
    ) -> Result<Option<(Vec<u32>, ArrayRef)>> {
        let (Some(bound), Some(call)) = (
            self.bound(floor),
            ScalarFunctionExpr::try_downcast_func::<VectorDistance>(self.call.as_ref()),
        ) else {
            return Ok(None);
        };
        let (Some(function), [first, second]) = (VectorDistance::of(call.fun()), call.args()) else {
            return Ok(None);
        };
        let (first, second) = (first.evaluate(batch)?, second.evaluate(batch)?);
        let arguments = VectorDistance::arguments([&first, &second]);
        let Some(vectors) = arguments.and_then(|arguments| function.over(arguments)) else {
            return Ok(None);
        };
        let Some(rows) = vectors.within(bound) else {
            return Ok(None);
        };
        let distances = vectors.of(&rows)?;
        Ok(distances.map(|distances| (rows, self.signed(distances))))
    }

    /// The bound on distances of rows that come no later than a value; `None` if there is none.
    fn bound(&self, floor: &ScalarValue) -> Option<Bound> {
        let ScalarValue::Float64(Some(floor)) = floor else {
            return None;
        };
        let floor = if self.is_negative { -floor } else { *floor };
        if floor.is_nan() {
            None
        } else if self.descending == self.is_negative {
            Some(Bound::AtMost(floor))
        } else {
            Some(Bound::AtLeast(floor))
        }
    }

    /// The values that rows are ordered by.
    fn signed(&self, distances: Float64Array) -> ArrayRef {
        if self.is_negative {
            Arc::new(distances.unary::<_, Float64Type>(|distance| -distance))
        } else {
            Arc::new(distances)
        }
    }
}
