//! Compares answers with what they must be.

use std::collections::HashMap;

use datafusion::arrow::array::RecordBatch;

use crate::naive::{Answer, Expect, Row, by_keys};
use crate::statement::Key;
use crate::value::{Cell, Order, Value, compare, read, text, texts};

/// Rows of an answer.
pub(crate) fn rows(batches: &[RecordBatch]) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            rows.push(batch.columns().iter().map(|column| read(column, row)).collect());
        }
    }
    rows
}

fn place(values: &[Value], value: &Value) -> Option<(u64, u64)> {
    let same = |other: &Value| compare(other, value, Order::Functions).is_eq();
    let first = values.iter().position(same)?;
    let last = values.iter().rposition(same)?;
    Some((first as u64 + 1, last as u64 + 1))
}

fn within(values: &[Value], value: &Value, low: f64, high: f64) -> bool {
    place(values, value).is_some_and(|(first, last)| first as f64 <= high && last as f64 >= low)
}

fn bounds(values: &[Value], cell: &Cell, low: f64, high: f64) -> bool {
    let Some(Value::Many(fields)) = cell else {
        return false;
    };
    let [
        Some(value),
        Some(Value::Int(min)),
        Some(Value::Int(max)),
        Some(Value::Int(n)),
    ] = fields.as_slice()
    else {
        return false;
    };
    let Some((first, last)) = place(values, value) else {
        return false;
    };
    let holds = *min <= last.into() && *max >= first.into() && min <= max;
    holds && *n == values.len() as i128 && first as f64 <= high && last as f64 >= low
}

impl Expect {
    pub(crate) fn is_met(&self, cell: &Cell) -> bool {
        match (self, cell) {
            (Expect::Is(expected), _) => text(expected) == text(cell),
            (Expect::Near(expected, _), Some(Value::Float(v)))
                if expected.is_nan() || !expected.is_finite() =>
            {
                v == expected || v.is_nan() && expected.is_nan()
            }
            (Expect::Near(expected, most), Some(Value::Float(v))) => (v - expected).abs() <= *most,
            (Expect::Ranked(values, low, high), Some(v)) => within(values, v, *low, *high),
            (Expect::Bounds(values, low, high), _) => bounds(values, cell, *low, *high),
            (Expect::Counted { at, n }, Some(Value::Many(fields))) => match fields.as_slice() {
                [
                    Some(Value::Int(min)),
                    Some(Value::Int(max)),
                    Some(Value::Int(count)),
                ] => *min <= (*at).into() && *max >= (*at).into() && *count == (*n).into(),
                _ => false,
            },
            (Expect::List(expected), Some(Value::Many(items))) => {
                expected.len() == items.len() && expected.iter().zip(items).all(|(e, cell)| e.is_met(cell))
            }
            (Expect::Theirs | Expect::Open, _) => true,
            _ => false,
        }
    }

    pub(crate) fn shown(&self) -> String {
        match self {
            Expect::Is(cell) => text(cell),
            Expect::Near(v, most) => format!("{v:?} within {most:?}"),
            Expect::Ranked(values, low, high) | Expect::Bounds(values, low, high) => {
                let at = |rank: f64| text(&Some(values[rank as usize - 1].clone()));
                format!(
                    "a value of rank {low} ({}) to {high} ({}) of {}",
                    at(*low),
                    at(*high),
                    values.len()
                )
            }
            Expect::Counted { at, n } => format!("bounds around {at} of {n}"),
            Expect::List(items) => format!(
                "[{}]",
                items.iter().map(Expect::shown).collect::<Vec<_>>().join(", ")
            ),
            Expect::Theirs => "DataFusion's".into(),
            Expect::Open => "anything".into(),
        }
    }

    /// Whether the bits must be those of the second opinion.
    fn is_theirs(&self) -> bool {
        match self {
            Expect::Theirs | Expect::Near(..) => true,
            Expect::List(items) => items.iter().any(Expect::is_theirs),
            _ => false,
        }
    }
}

/// Why the rows are no answer.
pub(crate) fn judge(answer: &Answer, got: &[Vec<Cell>]) -> Result<(), String> {
    match answer {
        Answer::Keyed(width, expected) => keyed(*width, expected, got),
        Answer::First {
            rows,
            keys,
            skip,
            limit,
        } => first(rows, keys, *skip, *limit, got),
        Answer::Best {
            partitions,
            keys,
            rank,
            k,
            n,
        } => best(partitions, keys, *rank, *k, *n, got),
    }
}

/// Rows of one key: what they must be, and what they are.
#[derive(Default)]
struct Keyed<'a> {
    expected: Vec<&'a [Expect]>,
    rows: Vec<&'a [Cell]>,
}

fn keyed(width: usize, expected: &[(String, Vec<Expect>)], got: &[Vec<Cell>]) -> Result<(), String> {
    if expected.len() != got.len() {
        return Err(format!("{} rows, not {}", got.len(), expected.len()));
    }
    // Totals of ROLLUP have the key of a group of NULLs: then the rows with the key may come in any order.
    let mut by_key: HashMap<&str, Keyed> = HashMap::new();
    for (key, cells) in expected {
        by_key.entry(key).or_default().expected.push(cells);
    }
    for row in got {
        let key = texts(&row[..width]);
        match by_key.get_mut(key.as_str()) {
            Some(keyed) => keyed.rows.push(&row[width..]),
            None => return Err(format!("a row of key {key}, which there is not")),
        }
    }
    for (key, Keyed { expected, rows }) in by_key {
        if !can_match(&expected, &rows) {
            let shown: Vec<_> = expected
                .iter()
                .map(|cells| cells.iter().map(Expect::shown).collect::<Vec<_>>().join(" | "))
                .collect();
            let rows: Vec<_> = rows.iter().map(|row| texts(row)).collect();
            return Err(format!(
                "key {key}: got {}, expected {}",
                rows.join(" and "),
                shown.join(" and ")
            ));
        }
    }
    Ok(())
}

/// Whether each row meets what is expected of one, in some order.
fn can_match(expected: &[&[Expect]], rows: &[&[Cell]]) -> bool {
    let met = |cells: &[Expect], row: &[Cell]| cells.iter().zip(row).all(|(e, cell)| e.is_met(cell));
    match expected.split_first() {
        None => rows.is_empty(),
        Some((first, rest)) => (0..rows.len()).any(|at| {
            let others = || [&rows[..at], &rows[at + 1..]].concat();
            met(first, rows[at]) && can_match(rest, &others())
        }),
    }
}

/// The rows that there are, by what they hold, with how many of each.
fn stock(rows: &[Row]) -> HashMap<String, usize> {
    let mut stock = HashMap::new();
    for row in rows {
        *stock.entry(texts(row)).or_default() += 1;
    }
    stock
}

fn take(stock: &mut HashMap<String, usize>, row: &[Cell]) -> Result<(), String> {
    match stock.get_mut(&texts(row)) {
        Some(left) if *left > 0 => {
            *left -= 1;
            Ok(())
        }
        _ => Err(format!(
            "a row which there is not, or not so often: {}",
            texts(row)
        )),
    }
}

fn first(rows: &[Row], keys: &[Key], skip: usize, limit: usize, got: &[Vec<Cell>]) -> Result<(), String> {
    let wanted = &rows[skip.min(rows.len())..(skip + limit).min(rows.len())];
    if wanted.len() != got.len() {
        return Err(format!("{} rows, not {}", got.len(), wanted.len()));
    }
    let mut stock = stock(rows);
    for (i, (wanted, row)) in wanted.iter().zip(got).enumerate() {
        take(&mut stock, row)?;
        if by_keys(wanted, row, keys).is_ne() {
            return Err(format!(
                "row {i}: got {}, expected one like {}",
                texts(row),
                texts(wanted)
            ));
        }
    }
    Ok(())
}

fn best(
    partitions: &[Vec<Row>],
    keys: &[Key],
    rank: bool,
    k: usize,
    n: bool,
    got: &[Vec<Cell>],
) -> Result<(), String> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut wanted: Vec<Vec<(usize, &Row)>> = Vec::new();
    let mut stocks = Vec::new();
    for (at, rows) in partitions.iter().enumerate() {
        let mut number = 0;
        let numbered = rows.iter().enumerate().map(|(i, row)| {
            if !rank || i == 0 || by_keys(&rows[i - 1], row, keys).is_ne() {
                number = i + 1;
            }
            (number, row)
        });
        wanted.push(numbered.take_while(|(number, _)| *number <= k).collect());
        places.extend(rows.iter().map(|row| (texts(row), at)));
        stocks.push(stock(rows));
    }
    let count: usize = wanted.iter().map(Vec::len).sum();
    if count != got.len() {
        return Err(format!("{} rows, not {count}", got.len()));
    }
    for row in got {
        let (row, number) = match (n, row.split_last()) {
            (true, Some((Some(Value::Int(number)), row))) => (row, Some(*number as usize)),
            (true, _) => return Err(format!("a row without a number: {}", texts(row))),
            (false, _) => (row.as_slice(), None),
        };
        let Some(&at) = places.get(&texts(row)) else {
            return Err(format!("a row which there is not: {}", texts(row)));
        };
        take(&mut stocks[at], row)?;
        let fits = |(wanted, like): &(usize, &Row)| {
            number.is_none_or(|number| number == *wanted) && by_keys(like, row, keys).is_eq()
        };
        match wanted[at].iter().position(fits) {
            Some(i) => drop(wanted[at].remove(i)),
            None => {
                return Err(format!(
                    "row {} with number {number:?} is none of the best",
                    texts(row)
                ));
            }
        }
    }
    Ok(())
}

/// Whether two answers have the same bits where only DataFusion's own functions say what is right, and where the naive
/// evaluation is near only.
pub(crate) fn agree(answer: &Answer, ours: &[Vec<Cell>], theirs: &[Vec<Cell>]) -> Result<(), String> {
    let Answer::Keyed(width, expected) = answer else {
        return Ok(());
    };
    let columns = expected.first().map_or(0, |(_, cells)| cells.len());
    for i in (0..columns).filter(|i| expected.iter().any(|(_, cells)| cells[*i].is_theirs())) {
        let open: Vec<&str> = expected
            .iter()
            .filter(|(_, cells)| !cells[i].is_theirs())
            .map(|(key, _)| key.as_str())
            .collect();
        let column = |rows: &[Vec<Cell>]| {
            let cells = rows
                .iter()
                .map(|row| (texts(&row[..*width]), text(&row[width + i])));
            let mut cells: Vec<_> = cells.filter(|(key, _)| !open.contains(&key.as_str())).collect();
            cells.sort();
            cells
        };
        let (ours, theirs) = (column(ours), column(theirs));
        if let Some((a, b)) = ours.iter().zip(&theirs).find(|(a, b)| a != b) {
            return Err(format!("column {i}: got {a:?}, DataFusion says {b:?}"));
        }
    }
    Ok(())
}
