//! The floor that all partitions share. Scans below read it through DataFusion's dynamic filter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, DynamicFilterPhysicalExpr, is_not_null, is_null, lit,
};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};

use super::plan::SortLimitPlan;
use crate::config::QuantilesOptions;
use crate::key::KeyBits;
use crate::threads::locked;

/// Whether scans may skip rows by the statistics of floating-point columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FloatBounds {
    /// Scans get no bound of them: statistics of files leave out NaNs, so that a bound might skip these.
    Unbounded,
    /// Scans get a bound of the first floating-point column. This is right for data without NaNs.
    Bounded,
}

impl FloatBounds {
    pub(super) fn of(config: &ConfigOptions) -> Self {
        if QuantilesOptions::of(config).trust_float_statistics {
            FloatBounds::Bounded
        } else {
            FloatBounds::Unbounded
        }
    }
}

/// The floor of all partitions: the greatest key that `k` rows of one partition reach. Rows of other partitions that do not exceed it
/// cannot be part of the answer.
///
/// The partition that raised the floor holds `k` rows that reach it until another partition raises it further. So no row of the answer
/// is lost.
pub(super) struct SharedFloor {
    plan: Arc<SortLimitPlan>,
    /// Number of times that the floor has risen. Partitions look at it once a batch.
    risen: AtomicU64,
    /// The floor; `None`: not raised yet.
    key: Mutex<Option<KeyBits>>,
    filter: Option<Arc<DynamicFilterPhysicalExpr>>,
    floats: FloatBounds,
}

impl SharedFloor {
    /// A floor that is not raised yet. Scans below read it through `filter`.
    pub(super) fn new(
        plan: Arc<SortLimitPlan>,
        filter: Option<Arc<DynamicFilterPhysicalExpr>>,
        floats: FloatBounds,
    ) -> Self {
        Self {
            plan,
            risen: AtomicU64::new(0),
            key: Mutex::new(None),
            filter,
            floats,
        }
    }

    /// Raises the floor to `key`, if that is higher.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn raise(&self, key: KeyBits) -> Result<()> {
        let mut current = locked(&self.key);
        if current.is_some_and(|current| current >= key) {
            return Ok(());
        }
        *current = Some(key);
        self.risen.fetch_add(1, Ordering::Release);
        match &self.filter {
            Some(filter) => filter.update(self.exceeding(filter, key)?),
            None => Ok(()),
        }
    }

    /// The condition that a row exceeds `key`, over the filter's own expressions, which may be those of a scan with more columns.
    fn exceeding(&self, filter: &DynamicFilterPhysicalExpr, key: KeyBits) -> Result<Arc<dyn PhysicalExpr>> {
        let by = filter.children().into_iter().zip(&self.plan.by);
        let by = by.map(|(expr, by)| PhysicalSortExpr::new(Arc::clone(expr), by.options));
        exceeding(&by.collect::<Vec<_>>(), &self.plan.keys.values(key)?, self.floats)
    }

    /// The floor, if it has risen more than `seen` times; `seen` is brought up to date.
    pub(super) fn risen_since(&self, seen: &mut u64) -> Option<KeyBits> {
        let risen = self.risen.load(Ordering::Acquire);
        if risen == *seen {
            return None;
        }
        *seen = risen;
        *locked(&self.key)
    }

    /// Tells scans that the floor will not rise any more.
    pub(super) fn finish(&self) {
        if let Some(filter) = &self.filter {
            filter.mark_complete();
        }
    }
}

/// The condition that a row comes before the row of these values: `a > 1 OR (a = 1 AND b < 2)`. Some further rows may pass.
///
/// Columns from the first floating-point one on are not compared exactly: rows that tie up to there pass. The reason is that comparisons
/// take both zeros as equal, and the order does not. That floating-point column is bounded only if `floats` says so.
fn exceeding(
    by: &[PhysicalSortExpr],
    values: &[ScalarValue],
    floats: FloatBounds,
) -> Result<Arc<dyn PhysicalExpr>> {
    let exact = values
        .iter()
        .position(|value| value.data_type().is_floating())
        .unwrap_or(values.len());
    let mut rest = by
        .get(exact)
        .zip(values.get(exact))
        .map(|(by, value)| match floats {
            FloatBounds::Unbounded => Ok(lit(true)),
            FloatBounds::Bounded => not_after(by, value),
        })
        .transpose()?;
    for (by, value) in by.iter().zip(values).take(exact).rev() {
        let tied = match rest {
            Some(rest) => Some(binary(equal(by, value)?, Operator::And, rest)),
            None => None,
        };
        rest = match (before(by, value)?, tied) {
            (Some(before), Some(tied)) => Some(binary(before, Operator::Or, tied)),
            (before, tied) => before.or(tied),
        };
    }
    Ok(rest.unwrap_or_else(|| lit(false)))
}

fn binary(left: Arc<dyn PhysicalExpr>, op: Operator, right: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    Arc::new(BinaryExpr::new(left, op, right))
}

/// The condition that the value of an expression comes before `value`; `None`: no value does.
fn before(by: &PhysicalSortExpr, value: &ScalarValue) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let expr = || Arc::clone(&by.expr);
    if value.is_null() {
        return if by.options.nulls_first {
            Ok(None)
        } else {
            is_not_null(expr()).map(Some)
        };
    }
    let op = if by.options.descending {
        Operator::Gt
    } else {
        Operator::Lt
    };
    let compared = binary(expr(), op, lit(value.clone()));
    Ok(Some(if by.options.nulls_first {
        binary(is_null(expr())?, Operator::Or, compared)
    } else {
        compared
    }))
}

/// The condition that a floating-point value comes before `value` or equals it, where both zeros are equal. Every value passes if
/// `value` is a NaN.
fn not_after(by: &PhysicalSortExpr, value: &ScalarValue) -> Result<Arc<dyn PhysicalExpr>> {
    let is_nan = match value {
        ScalarValue::Float16(Some(x)) => x.is_nan(),
        ScalarValue::Float32(Some(x)) => x.is_nan(),
        ScalarValue::Float64(Some(x)) => x.is_nan(),
        _ => false,
    };
    if is_nan {
        return Ok(lit(true));
    }
    let tied = equal(by, value)?;
    Ok(match before(by, value)? {
        Some(before) => binary(before, Operator::Or, tied),
        None => tied,
    })
}

fn equal(by: &PhysicalSortExpr, value: &ScalarValue) -> Result<Arc<dyn PhysicalExpr>> {
    if value.is_null() {
        is_null(Arc::clone(&by.expr))
    } else {
        Ok(binary(Arc::clone(&by.expr), Operator::Eq, lit(value.clone())))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Array, AsArray, Float64Array, Int32Array, RecordBatch};
    use datafusion::arrow::compute::SortOptions;
    use datafusion::physical_expr::LexOrdering;
    use datafusion::physical_expr::expressions::col;

    use super::*;

    /// The filter passes the rows whose key is greater, for each row as the floor; without floats no others.
    #[test]
    fn filters_are_in_the_order_of_keys() {
        let ints = [
            Some(1),
            None,
            Some(i32::MIN),
            Some(7),
            None,
            Some(7),
            Some(i32::MAX),
            Some(1),
        ];
        let floats = [f64::NAN, 0.0, -f64::NAN, -0.0, f64::INFINITY, 1.5, -1.5, f64::NAN];
        let floats = floats.iter().enumerate().map(|(i, x)| (i != 4).then_some(*x));
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("a", Arc::new(Int32Array::from(ints.to_vec())) as _, true),
            ("b", Arc::new(Float64Array::from_iter(floats)) as _, true),
            (
                "c",
                Arc::new(Int32Array::from_iter(
                    (0..8).map(|i| (i % 5 > 0).then_some(i % 3)),
                )) as _,
                true,
            ),
        ])
        .unwrap();
        for number in 0..64 {
            let bit = |at: u32| number >> at & 1 == 1;
            let options = |at| SortOptions {
                descending: bit(at),
                nulls_first: bit(at + 1),
            };
            let by = |name, at| PhysicalSortExpr::new(col(name, &batch.schema()).unwrap(), options(at));
            let order = match (bit(4), bit(5)) {
                (true, false) => vec![by("b", 2), by("a", 0)],
                (false, false) => vec![by("b", 2)],
                (true, true) => vec![by("a", 0), by("c", 2)],
                (false, true) => vec![by("a", 2), by("b", 0)],
            };
            let is_exact = bit(4) && bit(5);
            let order = LexOrdering::new(order).unwrap();
            let plan = SortLimitPlan::try_new(order, 3, batch.schema()).unwrap().unwrap();
            let columns = plan.by.iter().map(|by| by.expr.evaluate(&batch).unwrap());
            let columns: Vec<_> = columns.map(|value| value.into_array(8).unwrap()).collect();
            let keys = plan.keys.keys::<u128>(&columns).unwrap();
            for floor in &keys {
                let values = plan.keys.values(*floor).unwrap();
                let filtered = |floats| {
                    let filter = exceeding(&plan.by, &values, floats).unwrap();
                    filter.evaluate(&batch).unwrap().into_array(8).unwrap()
                };
                let passed = filtered(FloatBounds::Unbounded);
                let bounded = filtered(FloatBounds::Bounded);
                let bounded = bounded.as_boolean();
                for (row, key) in keys.iter().enumerate() {
                    let passes = passed.as_boolean();
                    let passes = passes.value(row) && !passes.nulls().is_some_and(|nulls| nulls.is_null(row));
                    assert!(passes || key <= floor, "{plan} {values:?} {row}");
                    assert!(!is_exact || passes == (key > floor), "{plan} {values:?} {row}");
                    let passes =
                        bounded.value(row) && !bounded.nulls().is_some_and(|nulls| nulls.is_null(row));
                    assert!(passes || key <= floor, "bounded: {plan} {values:?} {row}");
                }
            }
        }
    }
}
