//! Rows in the order of their distance from a vector, and the naive distance.

use datafusion::arrow::datatypes::{DataType, Field};

use crate::draw::Draw;
use crate::statement::NAMES;
use crate::table::{Table, X, Y};
use crate::value::{Cell, Value};

/// A distance of a column of vectors from a constant.
#[derive(Debug, Clone)]
pub(crate) struct Distance {
    function: &'static str,
    column: usize,
    query: Vec<f64>,
    /// Whether the constant is the first argument.
    query_first: bool,
}

/// Types of vectors, whose values all have one length.
pub(crate) fn vector_types() -> Vec<DataType> {
    let item = |data_type| std::sync::Arc::new(Field::new("item", data_type, true));
    vec![
        DataType::FixedSizeList(item(DataType::Float32), 3),
        DataType::FixedSizeList(item(DataType::Float16), 9),
        DataType::FixedSizeList(item(DataType::Float64), 2),
        DataType::List(item(DataType::Float32)),
        DataType::List(item(DataType::Float16)),
    ]
}

/// The length of all vectors of a type; `None` for other types.
pub(crate) fn vector_length(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::FixedSizeList(item, length) if item.data_type().is_floating() => Some(*length as usize),
        DataType::List(item) if matches!(item.data_type(), DataType::Float16 | DataType::Float32) => Some(4),
        _ => None,
    }
}

/// Leaves at most one component that is no number, or so large that its square is none: which of several NaNs a sum ends in is open.
pub(crate) fn with_one_special(items: &mut [Cell]) {
    let mut seen = false;
    for item in items {
        if let Some(Value::Float(component)) = item
            && (!component.is_finite() || component.abs() > 1e100)
        {
            if seen {
                *component = 0.5;
            }
            seen = true;
        }
    }
}

impl Distance {
    /// A distance of one of the table's columns of vectors, if it has one.
    pub(crate) fn draw(draw: &mut Draw, table: &Table) -> Option<Self> {
        let length = |column: usize| vector_length(&table.columns[column].data_type);
        let columns: Vec<usize> = [X, Y]
            .into_iter()
            .filter(|column| length(*column).is_some())
            .collect();
        if columns.is_empty() {
            return None;
        }
        let column = draw.pick(&columns);
        let component = |draw: &mut Draw| draw.between(-8, 8) as f64 / draw.pick(&[1.0, 2.0, 10.0]);
        Some(Self {
            function: draw.pick(&[
                "array_distance",
                "array_distance",
                "cosine_distance",
                "inner_product",
                "-inner_product",
            ]),
            column,
            query: (0..length(column)?).map(|_| component(draw)).collect(),
            query_first: draw.chance(20),
        })
    }

    pub(crate) fn sql(&self) -> String {
        let args = [NAMES[self.column].to_owned(), format!("{:?}", self.query)];
        let [first, second] = if self.query_first {
            [&args[1], &args[0]]
        } else {
            [&args[0], &args[1]]
        };
        format!("{}({first}, {second})", self.function)
    }

    /// The distance of a row.
    pub(crate) fn of(&self, row: &[Cell]) -> Cell {
        let Some(Value::Many(items)) = &row[self.column] else {
            return None;
        };
        let mut vector = Vec::new();
        for item in items {
            match item {
                Some(Value::Float(component)) => vector.push(*component),
                _ => return None,
            }
        }
        let (mut a, mut b) = (&vector, &self.query);
        if self.query_first {
            (a, b) = (b, a);
        }
        let pairs = || a.iter().zip(b);
        let product = || pairs().fold(0.0, |sum, (a, b)| sum + a * b);
        let square = |v: &[f64]| v.iter().fold(0.0, |sum, x| sum + x * x);
        Some(Value::Float(match self.function {
            "array_distance" => {
                let squares = pairs().map(|(a, b)| (a - b) * (a - b));
                squares.sum::<f64>().sqrt()
            }
            "inner_product" => product(),
            "-inner_product" => -product(),
            _ if square(a) == 0.0 || square(b) == 0.0 => return None,
            _ => 1.0 - product() / (square(a).sqrt() * square(b).sqrt()),
        }))
    }
}
