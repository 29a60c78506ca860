//! Ranks of constants among values, and the distance between quartiles.

use std::cmp::Ordering;

use datafusion::arrow::datatypes::DataType;

use super::Expect;
use crate::exact::exact;
use crate::statement::{Point, Q};
use crate::value::{Cell, Order, Value, compare, compare_cells};

/// The distance between the quartiles of values.
pub(super) fn iqr(values: &[Value], method: &str, data_type: &DataType) -> Expect {
    let quartile = |num| {
        let q = Q {
            num,
            den: 4,
            text: String::new(),
        };
        match exact(values, &q, method, data_type) {
            Expect::Near(at, most) => (at, most),
            Expect::Is(Some(Value::Float(at))) => (at, 0.0),
            other => panic!("a quartile is no number: {other:?}"),
        }
    };
    let ((low, below), (high, above)) = (quartile(1), quartile(3));
    // Floats narrower than f64 are subtracted in their own type.
    let digits = match data_type {
        DataType::Float16 => 1e-3,
        DataType::Float32 => 1e-6,
        _ => 1e-12,
    };
    let rounding = high.abs().max(low.abs()).min(1e308) * digits;
    Expect::Near(high - low, below + above + rounding)
}

/// What a call that ranks values asks.
pub(super) struct Ranked<'a> {
    pub(super) name: &'a str,
    pub(super) descending: bool,
    pub(super) nulls_first: bool,
    pub(super) distinct: bool,
}

impl Ranked<'_> {
    /// The answer over some rows.
    pub(super) fn of(&self, cells: &[Cell], at: &[Option<Point>], list: bool) -> Expect {
        let mut cells: Vec<&Cell> = cells.iter().collect();
        let skips = self.name.starts_with("exact");
        if skips {
            cells.retain(|cell| cell.is_some());
        }
        if self.distinct || self.name == "dense_rank" {
            cells.sort_by(|a, b| compare_cells(a, b, true, Order::Functions));
            cells.dedup_by(|a, b| compare_cells(a, b, true, Order::Functions).is_eq());
        }
        if self.name == "exact_cdf" && cells.is_empty() {
            return Expect::Is(None);
        }
        let one = |point: &Option<Point>| match point {
            None if skips => Expect::Is(None),
            point => Expect::Is(Some(self.at(&cells, point))),
        };
        if list {
            Expect::List(at.iter().map(one).collect())
        } else {
            one(&at[0])
        }
    }

    /// The answer for one constant.
    fn at(&self, cells: &[&Cell], point: &Option<Point>) -> Value {
        let ordering = |cell: &&Cell| match (cell, point) {
            (Some(value), Some(point)) if self.descending => beside(value, point).reverse(),
            (Some(value), Some(point)) => beside(value, point),
            (None, None) => Ordering::Equal,
            (None, Some(_)) if self.nulls_first => Ordering::Less,
            (Some(_), None) if !self.nulls_first => Ordering::Less,
            _ => Ordering::Greater,
        };
        let before = cells.iter().filter(|cell| ordering(cell).is_lt()).count();
        let through = cells.iter().filter(|cell| ordering(cell).is_le()).count();
        let rows = cells.len();
        let share = |part: usize, whole: usize| Value::Float(part as f64 / whole as f64);
        match self.name {
            "exact_rank" => Value::Int(through as i128),
            "exact_cdf" => share(through, rows),
            "percent_rank" => share(before, rows.max(1)),
            "cume_dist" => share(through + 1, rows + 1),
            _ => Value::Int(before as i128 + 1),
        }
    }
}

/// Where a value lies beside a constant.
fn beside(value: &Value, point: &Point) -> Ordering {
    match (value, point) {
        (Value::Int(value), Point::Half(twice)) => (2 * value).cmp(&(*twice).into()),
        (Value::Float(_), Point::Half(twice)) => {
            compare(value, &Value::Float(*twice as f64 / 2.0), Order::Functions)
        }
        (Value::Float(_), Point::Float(v)) => compare(value, &Value::Float(*v), Order::Functions),
        (_, Point::Text(text)) => compare(value, &Value::Text(text.as_bytes().to_vec()), Order::Functions),
        (value, point) => panic!("{value:?} is not compared with {point:?}"),
    }
}
