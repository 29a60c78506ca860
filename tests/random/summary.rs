//! The naive answers of `SUMMARIZE`, for columns of whole numbers and of text.

use crate::in_order::{equi_depth, frequent};
use crate::naive::{Expect, Row};
use crate::statement::NAMES;
use crate::table::S;
use crate::value::{Order, Value, compare, text, texts};

/// Distinct values that have room within every memory limit that is drawn; of more there may be an estimate.
const FEW: usize = 30;

/// The percentages of the statement.
const PERCENTAGES: [u64; 7] = [1, 5, 25, 50, 75, 95, 99];

/// The row of each column, without its name, which is the key.
pub(crate) fn summary(rows: &[Row], columns: &[usize]) -> Vec<(String, Vec<Expect>)> {
    let named = |column: usize| {
        let key = texts(&[Some(Value::Text(NAMES[column].into()))]);
        (key, of_column(rows, column))
    };
    columns.iter().map(|column| named(*column)).collect()
}

fn count(number: usize) -> Expect {
    Expect::Is(Some(Value::Int(number as i128)))
}

/// A value as text, as the statement shows it.
fn shown(value: &Value) -> Value {
    match value {
        Value::Text(_) => value.clone(),
        other => Value::Text(text(&Some(other.clone())).into_bytes()),
    }
}

fn of_column(rows: &[Row], column: usize) -> Vec<Expect> {
    let mut values: Vec<Value> = rows.iter().filter_map(|row| row[column].clone()).collect();
    values.sort_by(|a, b| compare(a, b, Order::Functions));
    let runs = frequent(&values);
    let is_few = runs.len() <= FEW;
    let end = |value: Option<&Value>| Expect::Is(value.map(shown));
    let mut cells = vec![
        Expect::Open,
        count(values.len()),
        count(rows.len() - values.len()),
        Expect::Is(None),
    ];
    cells.push(if is_few { count(runs.len()) } else { Expect::Open });
    cells.push(if is_few {
        Expect::Is(Some(Value::Int(1)))
    } else {
        Expect::Open
    });
    cells.extend([end(values.first()), end(values.last())]);
    if column == S {
        cells.extend((0..13).map(|_| Expect::Is(None)));
        cells.extend(lengths(&values));
    } else {
        cells.extend(of_numbers(&values));
        cells.extend((0..3).map(|_| Expect::Is(None)));
    }
    let best = runs.iter().take(10).map(|(value, times)| {
        let fields = vec![Some(shown(value)), Some(Value::Int(*times))];
        Expect::Is(Some(Value::Many(fields)))
    });
    cells.push(if is_few {
        Expect::List(best.collect())
    } else {
        Expect::Open
    });
    cells.push(match values.is_empty() || column == S {
        true => Expect::Open,
        false => bins(&values),
    });
    cells
}

/// Mean, deviation, percentiles, fences, and the numbers of values beyond them.
fn of_numbers(values: &[Value]) -> Vec<Expect> {
    let numbers: Vec<i128> = values
        .iter()
        .map(|value| match value {
            Value::Int(number) => *number,
            other => panic!("{other:?} is no whole number"),
        })
        .collect();
    if numbers.is_empty() {
        return vec![Expect::Open; 13];
    }
    let n = numbers.len();
    let most = numbers
        .iter()
        .map(|number| number.unsigned_abs())
        .max()
        .unwrap_or(0) as f64;
    let mean = numbers.iter().sum::<i128>() as f64 / n as f64;
    let ranked = |percentage: u64| (percentage as usize * n).div_ceil(100).max(1) - 1;
    let mut cells = vec![Expect::Near(mean, most.max(1.0) * 1e-9), Expect::Open];
    let percentile = |percentage| Expect::Is(Some(shown(&values[ranked(percentage)])));
    cells.extend(PERCENTAGES.map(percentile));
    cells.extend([Expect::Open, Expect::Open]);
    if most > 1e15 {
        // The fences may lie beyond the type.
        cells.extend([Expect::Open, Expect::Open]);
        return cells;
    }
    let (low, high) = (numbers[ranked(25)], numbers[ranked(75)]);
    let beyond = 3 * (high - low);
    let below = numbers.iter().filter(|number| 2 * **number < 2 * low - beyond);
    let above = numbers.iter().filter(|number| 2 * **number > 2 * high + beyond);
    cells.extend([count(below.count()), count(above.count())]);
    cells
}

/// The shortest, the mean and the longest number of characters.
fn lengths(values: &[Value]) -> Vec<Expect> {
    let length = |value: &Value| match value {
        Value::Text(bytes) => String::from_utf8_lossy(bytes).chars().count(),
        other => panic!("{other:?} is no text"),
    };
    let lengths: Vec<usize> = values.iter().map(length).collect();
    let (Some(shortest), Some(longest)) = (lengths.iter().min(), lengths.iter().max()) else {
        return vec![Expect::Open; 3];
    };
    let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
    vec![
        count(*shortest),
        Expect::Near(mean, mean * 1e-12),
        count(*longest),
    ]
}

/// The histogram of 20 bins, with edges as text.
fn bins(values: &[Value]) -> Expect {
    let Expect::List(bins) = equi_depth(values, 20) else {
        return Expect::Open;
    };
    let bin = |bin: Expect| match bin {
        Expect::Is(Some(Value::Many(fields))) => match fields.as_slice() {
            [Some(low), Some(high), count] => Expect::Is(Some(Value::Many(vec![
                Some(shown(low)),
                Some(shown(high)),
                count.clone(),
            ]))),
            other => panic!("no bin: {other:?}"),
        },
        other => panic!("no bin: {other:?}"),
    };
    Expect::List(bins.into_iter().map(bin).collect())
}
