//! Filters that a device can compute: comparisons of pinned columns with constants, `IN`, `BETWEEN`, `IS [NOT] NULL`, columns of type
//! Boolean, and combinations of these by `AND`, `OR` and `NOT`.

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};

use crate::exec::PinnedTable;
use crate::kernel::cuda::Predicate;
use crate::key::{KeyBits, KeySpec};

/// The predicate for `expr` over columns of `table`, where `index_of` gives the index of a column. `None` if a device cannot compute it.
pub(super) fn predicate(
    expr: &Expr,
    table: &PinnedTable,
    index_of: &dyn Fn(&Column) -> Option<usize>,
) -> Option<Predicate> {
    let translation = Translation { table, index_of };
    translation.predicate(expr)
}

/// Turns expressions into predicates.
struct Translation<'a> {
    table: &'a PinnedTable,
    index_of: &'a dyn Fn(&Column) -> Option<usize>,
}

impl Translation<'_> {
    fn predicate(&self, expr: &Expr) -> Option<Predicate> {
        match expr {
            Expr::Alias(alias) => self.predicate(&alias.expr),
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
                Operator::And => Some(Predicate::And(vec![
                    self.predicate(left)?,
                    self.predicate(right)?,
                ])),
                Operator::Or => Some(Predicate::Or(vec![self.predicate(left)?, self.predicate(right)?])),
                _ => self
                    .comparison(left, *op, right)
                    .or_else(|| self.comparison(right, op.swap()?, left)),
            },
            Expr::Not(inner) => self.predicate(inner).map(Predicate::negated),
            Expr::IsNull(inner) => Some(Predicate::IsNull {
                column: self.column(inner)?,
            }),
            Expr::IsNotNull(inner) => self.column(inner).map(Predicate::is_not_null),
            Expr::Between(between) => {
                let low = self.comparison(&between.expr, Operator::GtEq, &between.low)?;
                let high = self.comparison(&between.expr, Operator::LtEq, &between.high)?;
                let inside = Predicate::And(vec![low, high]);
                Some(if between.negated { inside.negated() } else { inside })
            }
            Expr::InList(list) => self.in_list(list),
            // A column of type Boolean: the key of true is 1.
            Expr::Column(_) => {
                self.comparison(expr, Operator::Eq, &Expr::Literal(ScalarValue::from(true), None))
            }
            _ => None,
        }
    }

    /// Index of the pinned column that the expression is.
    fn column(&self, expr: &Expr) -> Option<usize> {
        match expr {
            Expr::Column(column) => (self.index_of)(column),
            _ => None,
        }
    }

    fn in_list(&self, list: &InList) -> Option<Predicate> {
        // DataFusion compares floats with a list by their bits or by their numbers, depending on the length of the list.
        let column = self.column(&list.expr)?;
        if self.table.column(column).data_type().is_floating() || list.list.is_empty() {
            return None;
        }
        let equal = list
            .list
            .iter()
            .map(|item| self.comparison(&list.expr, Operator::Eq, item));
        let any = Predicate::Or(equal.collect::<Option<Vec<_>>>()?);
        Some(if list.negated { any.negated() } else { any })
    }

    /// A comparison of a column with a constant of its type, as an interval of keys. DataFusion compares floats in `totalOrder`, the order
    /// of `ORDER BY`, except that both zeros are equal.
    fn comparison(&self, column: &Expr, op: Operator, constant: &Expr) -> Option<Predicate> {
        let column = self.column(column)?;
        let data_type = self.table.column(column).data_type();
        let Expr::Literal(value, _) = constant else {
            return None;
        };
        if value.is_null() || value.data_type() != *data_type {
            return None;
        }
        let spec = KeySpec::for_order_by(data_type).ok()?;
        let (low, high) = equals(&spec, *spec.keys(&value.to_array().ok()?).ok()?.first()?);
        let greatest = spec.width().max_key();
        let (first, last, outside) = match op {
            Operator::Eq => (low, high, false),
            Operator::NotEq => (low, high, true),
            Operator::LtEq => (0, high, false),
            Operator::GtEq => (low, greatest, false),
            // As the outside of an interval, because the keys inside may be none or all, which `[first, last]` cannot say.
            Operator::Lt => (low, greatest, true),
            Operator::Gt => (0, high, true),
            _ => return None,
        };
        Some(within(column, first, last, outside, greatest))
    }
}

/// The least and the greatest key of the numbers that are equal to that of `key`. They differ only for the two zeros.
fn equals(spec: &KeySpec, key: KeyBits) -> (KeyBits, KeyBits) {
    match spec.float(key) {
        Some(0.0) => (spec.float_key(-0.0), spec.float_key(0.0)),
        _ => (key, key),
    }
}

/// The predicate that a key lies in an interval, or outside of it. The interval of all keys is divided into two halves: as one interval
/// it would mean `IS NOT NULL`, whose negation is true for NULLs.
fn within(column: usize, first: KeyBits, last: KeyBits, outside: bool, greatest: KeyBits) -> Predicate {
    let part = |first, last| Predicate::Within {
        column,
        first,
        last,
        outside,
    };
    match (first, last) {
        (0, last) if last == greatest && last == KeyBits::MAX => {
            let middle = greatest / 2;
            let halves = vec![part(0, middle), part(middle + 1, greatest)];
            if outside {
                Predicate::And(halves)
            } else {
                Predicate::Or(halves)
            }
        }
        _ => part(first, last),
    }
}
