//! The naive evaluation: filters, sorts and counts the model's rows. It shares no code with the crate.

mod ranks;
mod rows;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use datafusion::arrow::datatypes::DataType;

use crate::exact::{exact, spark};
use crate::groups::{Group, grouped, one_zero, partitioned};
use crate::statement::*;
use crate::summary::summary;
use crate::table::{F, H, ID, K, S, Table};
use crate::value::{Cell, Order, Value, compare, compare_cells, text};
use ranks::{Ranked, iqr};
use rows::{first_value, top};

pub(crate) type Row<'a> = Cow<'a, Vec<Cell>>;

/// What a cell of an answer must be.
#[derive(Debug, Clone)]
pub(crate) enum Expect {
    Is(Cell),
    /// A float up to this difference.
    Near(f64, f64),
    /// A value that has one of these ranks, from 1, of these values.
    Ranked(Rc<Vec<Value>>, f64, f64),
    /// `value, rank_min, rank_max, n` of these values.
    Bounds(Rc<Vec<Value>>, f64, f64),
    /// `rank_min, rank_max, n` around a number of values at or below one.
    Counted {
        at: u64,
        n: u64,
    },
    List(Vec<Expect>),
    /// What DataFusion's own function says, which the second opinion compares.
    Theirs,
    /// Nothing is promised.
    Open,
}

/// What an answer must be.
pub(crate) enum Answer<'a> {
    /// Rows, told apart by their first columns: how many those are, and all rows.
    Keyed(usize, Vec<(String, Vec<Expect>)>),
    /// The rows at these places of the source in this order.
    First {
        rows: Vec<Row<'a>>,
        keys: Vec<Key>,
        skip: usize,
        limit: usize,
    },
    /// The best rows of each partition; `n` tells whether their number is the last column.
    Best {
        partitions: Vec<Vec<Row<'a>>>,
        keys: Vec<Key>,
        rank: bool,
        k: usize,
        n: bool,
    },
}

fn int(cell: &Cell) -> Option<i64> {
    match cell {
        Some(Value::Int(v)) => Some(*v as i64),
        _ => None,
    }
}

fn holds(op: &str, ordering: Ordering) -> bool {
    match op {
        "<" => ordering.is_lt(),
        "<=" => ordering.is_le(),
        ">" => ordering.is_gt(),
        ">=" => ordering.is_ge(),
        "=" => ordering.is_eq(),
        _ => ordering.is_ne(),
    }
}

pub(crate) fn truth(pred: &Pred, row: &[Cell]) -> Option<bool> {
    match pred {
        Pred::Compare(c, op, v) => Some(holds(op, int(&row[*c])?.cmp(&(*v)?))),
        Pred::Float(op, v) => match &row[F] {
            // DataFusion compares zeros of either sign as equal, and NaNs as IEEE 754 totalOrder does.
            Some(Value::Float(f)) => Some(holds(op, one_zero(*f).total_cmp(&one_zero(*v)))),
            _ => None,
        },
        Pred::Text(op, v) => match &row[S] {
            Some(Value::Text(s)) => Some(holds(op, s.as_slice().cmp(v.as_bytes()))),
            _ => None,
        },
        Pred::IsNull(c, is) => Some(row[*c].is_none() == *is),
        Pred::In(c, list, not) => {
            let value = int(&row[*c])?;
            if list.contains(&Some(value)) {
                return Some(!not);
            }
            (!list.contains(&None)).then_some(*not)
        }
        Pred::Between(c, a, b) => int(&row[*c]).map(|v| *a <= v && v <= *b),
        Pred::And(a, b) => match (truth(a, row), truth(b, row)) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        },
        Pred::Or(a, b) => match (truth(a, row), truth(b, row)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        },
        Pred::Not(a) => truth(a, row).map(|v| !v),
    }
}

fn evaluate(expr: &Expr, row: &[Cell]) -> Cell {
    match expr {
        Expr::Column(c) => row[*c].clone(),
        Expr::Decimal(c) => row[*c].clone(),
        Expr::Plus(c, v) => int(&row[*c]).map(|a| Value::Int((a + v).into())),
        Expr::Case(pred, c) => (truth(pred, row) == Some(true))
            .then(|| row[*c].clone())
            .flatten(),
    }
}

fn source<'a>(statement: &Statement, table: &'a Table) -> Vec<Row<'a>> {
    let kept = |pred: &Pred| -> Vec<Row<'a>> {
        let rows = table.rows.iter().filter(|row| truth(pred, row) == Some(true));
        rows.map(Cow::Borrowed).collect()
    };
    let mut rows: Vec<Row> = match &statement.from {
        From::Table => table.rows.iter().map(Cow::Borrowed).collect(),
        From::Subquery(pred) | From::View(pred) => kept(pred),
        From::Union(a, b) => kept(a).into_iter().chain(kept(b)).collect(),
        From::Join { left, greater } => joined(table, *left, *greater),
        From::Exists { not } => {
            let rows = table.rows.iter();
            rows.filter(|row| partners(row, true).is_empty() == *not)
                .map(Cow::Borrowed)
                .collect()
        }
    };
    if let Some(pred) = &statement.filter {
        rows.retain(|row| truth(pred, row) == Some(true));
    }
    if let Some(least) = statement.prepared {
        rows.retain(|row| int(&row[K]).is_some_and(|k| k >= least));
    }
    rows
}

/// `w` of the rows of `d` whose `h` is less than that of `row`, or equal.
fn partners(row: &[Cell], greater: bool) -> Vec<Option<i64>> {
    let h = int(&row[H]);
    let fits = |other: i64| h.is_some_and(|h| if greater { h > other } else { h == other });
    let partners = JOINED.iter().filter(|(other, _)| other.is_some_and(fits));
    partners.map(|(_, w)| *w).collect()
}

fn joined(table: &Table, left: bool, greater: bool) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for row in &table.rows {
        let mut partners = partners(row, greater);
        if partners.is_empty() && left {
            partners.push(None);
        }
        for w in partners {
            let mut row = row.clone();
            row.push(w.map(|w| Value::Int(w.into())));
            rows.push(Cow::Owned(row));
        }
    }
    rows
}

/// What the statement must answer.
pub(crate) fn answer<'a>(statement: &Statement, table: &'a Table) -> Answer<'a> {
    let rows = source(statement, table);
    match &statement.shape {
        Shape::Aggregate {
            groups,
            rollup,
            calls,
            having,
        } => Answer::Keyed(
            groups.len(),
            aggregated(&rows, groups, *rollup, calls, *having, table),
        ),
        Shape::Window { calls } => Answer::Keyed(1, windows(&rows, calls, table)),
        Shape::First { keys, limit, offset } => {
            let mut rows = rows;
            rows.sort_by(|a, b| by_keys(a, b, keys));
            Answer::First {
                rows,
                keys: keys.clone(),
                skip: *offset,
                limit: *limit,
            }
        }
        Shape::Nearest {
            distance,
            desc,
            nulls_first,
            then,
            limit,
            offset,
        } => {
            let mut rows = rows;
            for row in &mut rows {
                let distance = distance.of(row);
                row.to_mut().push(distance);
            }
            let by = rows.first().map_or(0, |row| row.len() - 1);
            let mut keys = vec![Key {
                column: by,
                desc: *desc,
                nulls_first: *nulls_first,
            }];
            keys.extend(then.iter().cloned());
            rows.sort_by(|a, b| by_keys(a, b, &keys));
            Answer::First {
                rows,
                keys,
                skip: *offset,
                limit: *limit,
            }
        }
        Shape::Neighbours(neighbours) => {
            let mut partitions = neighbours.of(&rows, table);
            let width = partitions.iter().flatten().next().map_or(0, |row| row.len());
            let mut keys = vec![Key {
                column: width.saturating_sub(1),
                desc: neighbours.desc,
                nulls_first: neighbours.nulls_first,
            }];
            keys.extend(neighbours.by_id.then(|| Key::ascending(ID)));
            for rows in &mut partitions {
                rows.sort_by(|a, b| by_keys(a, b, &keys));
            }
            Answer::Best {
                partitions,
                keys,
                rank: neighbours.rank,
                k: neighbours.k,
                n: true,
            }
        }
        Shape::Best {
            spelling,
            rank,
            partition,
            keys,
            k,
        } => {
            let distinct_on = *spelling == Spelling::DistinctOn;
            let partitions = match distinct_on {
                true => grouped(rows, partition, table),
                false => partitioned(rows, partition),
            };
            let mut partitions: Vec<_> = partitions.into_values().collect();
            // `ORDER BY` of `DISTINCT ON` begins with what its groups are of, and tells zeros of either sign apart, which are one group.
            let group = partition
                .iter()
                .filter(|_| distinct_on)
                .map(|column| Key::ascending(*column));
            let keys: Vec<Key> = group.chain(keys.iter().cloned()).collect();
            for rows in &mut partitions {
                rows.sort_by(|a, b| by_keys(a, b, &keys));
            }
            let (rank, k) = if distinct_on { (false, 1) } else { (*rank, *k) };
            Answer::Best {
                partitions,
                keys,
                rank,
                k,
                n: !distinct_on,
            }
        }
        Shape::Merged { x, accuracy, q } => {
            let values = sorted(rows.iter().filter_map(|row| row[*x].clone()).collect());
            Answer::Keyed(0, vec![(String::new(), vec![ranked(values, q, *accuracy)])])
        }
        Shape::Summary { columns } => Answer::Keyed(1, summary(&rows, columns)),
        Shape::Above { q } => {
            let values = sorted(rows.iter().filter_map(|row| row[K].clone()).collect());
            let least = exact(&values, q, "", &DataType::Int64);
            let count = table.rows.iter().filter(|row| match (&least, &row[K]) {
                (Expect::Is(Some(least)), Some(k)) => compare(k, least, Order::Total).is_ge(),
                _ => false,
            });
            Answer::Keyed(
                0,
                vec![(
                    String::new(),
                    vec![Expect::Is(Some(Value::Int(count.count() as i128)))],
                )],
            )
        }
    }
}

pub(crate) fn by_keys(a: &[Cell], b: &[Cell], keys: &[Key]) -> Ordering {
    for key in keys {
        let first = key.nulls_first() != key.desc;
        let ordering = compare_cells(&a[key.column], &b[key.column], first, Order::Total);
        let ordering = if key.desc { ordering.reverse() } else { ordering };
        if ordering.is_ne() {
            return ordering;
        }
    }
    Ordering::Equal
}

fn aggregated(
    rows: &[Row],
    by: &[usize],
    rollup: bool,
    calls: &[Call],
    having: Option<i64>,
    table: &Table,
) -> Vec<(String, Vec<Expect>)> {
    let mut answer = Vec::new();
    for width in if rollup { 0..=by.len() } else { by.len()..=by.len() } {
        let mut groups = grouped(rows.to_vec(), &by[..width], table);
        if width == 0 {
            groups.entry(Group::default()).or_default();
        }
        for ((key, _), rows) in groups {
            if having.is_some_and(|least| rows.len() as i64 <= least) {
                continue;
            }
            let mut key: Vec<String> = if width == 0 { Vec::new() } else { vec![key] };
            key.extend((width..by.len()).map(|_| "NULL".into()));
            let rows: Vec<&Row> = rows.iter().collect();
            answer.push((
                key.join(" | "),
                calls.iter().map(|call| called(call, &rows, table)).collect(),
            ));
        }
    }
    answer
}

fn windows(rows: &[Row], calls: &[(Call, Window)], table: &Table) -> Vec<(String, Vec<Expect>)> {
    let mut answers: BTreeMap<String, Vec<Expect>> = BTreeMap::new();
    for (call, window) in calls {
        for (_, mut rows) in partitioned(rows.to_vec(), window.partition.as_slice()) {
            let keys = window.order.as_slice();
            rows.sort_by(|a, b| by_keys(a, b, keys));
            let peers = peers(&rows, keys);
            for (i, row) in rows.iter().enumerate() {
                let within: Vec<&Row> = (0..rows.len())
                    .filter(|other| in_frame(window, &rows, &peers, i, *other))
                    .map(|other| &rows[other])
                    .collect();
                answers
                    .entry(text(&row[ID]))
                    .or_default()
                    .push(called(call, &within, table));
            }
        }
    }
    answers.into_iter().collect()
}

/// The number of the group of peers of each row.
fn peers(rows: &[Row], keys: &[Key]) -> Vec<i64> {
    let mut number = 0;
    let numbers = (0..rows.len()).map(|i| {
        if i > 0 && by_keys(&rows[i - 1], &rows[i], keys).is_ne() {
            number += 1;
        }
        number
    });
    numbers.collect()
}

fn in_frame(window: &Window, rows: &[Row], peers: &[i64], row: usize, other: usize) -> bool {
    let Some(key) = &window.order else { return true };
    let (unit, start, end) = window.frame.unwrap_or(("GROUPS", None, Some(0)));
    let distance = match unit {
        "ROWS" => other as i64 - row as i64,
        "GROUPS" => peers[other] - peers[row],
        _ => match (int(&rows[row][key.column]), int(&rows[other][key.column])) {
            (Some(a), Some(b)) if key.desc => a - b,
            (Some(a), Some(b)) => b - a,
            (None, None) => {
                // NULLs are each other's peers: every bounded end is their own group.
                return true;
            }
            _ => {
                // NULL lies outside of every bounded end.
                let behind = peers[other] > peers[row];
                return if behind { end.is_none() } else { start.is_none() };
            }
        },
    };
    start.is_none_or(|start| start <= distance) && end.is_none_or(|end| distance <= end)
}

fn sorted(mut values: Vec<Value>) -> Rc<Vec<Value>> {
    values.sort_by(|a, b| compare(a, b, Order::Functions));
    Rc::new(values)
}

/// A call over the rows of a group or a frame.
fn called(call: &Call, rows: &[&Row], table: &Table) -> Expect {
    let passed = rows.iter().filter(|row| {
        call.filter
            .as_ref()
            .is_none_or(|pred| truth(pred, row) == Some(true))
    });
    match &call.func {
        Func::Plain(name) => return plain(name, passed.map(|row| evaluate(&call.x, row)).collect()),
        Func::Top { name, k, asc } => return top(call, name, *k, *asc, passed.copied()),
        Func::FirstValue { desc } => return first_value(call, *desc, passed.copied().collect()),
        Func::Rank {
            name,
            within,
            nulls_first,
            at,
        } => {
            let descending = *within == Some(true);
            let order = Ranked {
                name,
                descending,
                nulls_first: nulls_first.unwrap_or(descending),
                distinct: call.distinct,
            };
            let cells: Vec<Cell> = passed.map(|row| evaluate(&call.x, row)).collect();
            return order.of(&cells, at, call.list);
        }
        _ => {}
    }
    let times = |row: &Row| match call.weight.as_ref().map(|weight| evaluate(weight, row)) {
        None => 1,
        Some(weight) => int(&weight).unwrap_or(0) as usize,
    };
    let mut values: Vec<Value> = passed
        .flat_map(|row| evaluate(&call.x, row).map(|value| std::iter::repeat_n(value, times(row))))
        .flatten()
        .collect();
    if matches!(&call.func, Func::Quantile { name, .. } if name.starts_with("quantile_exact")) {
        values.retain(|value| !matches!(value, Value::Float(v) if v.is_nan()));
    }
    values.sort_by(|a, b| compare(a, b, Order::Functions));
    if call.distinct {
        values.dedup_by(|a, b| compare(a, b, Order::Functions).is_eq());
    }
    let data_type = call.x.data_type(table);
    let within = match &call.func {
        Func::Quantile { within, .. } | Func::Gk { within, .. } | Func::Sample { within, .. } => *within,
        _ => None,
    };
    if within == Some(true) {
        values.reverse();
    }
    if let Func::SketchRank { at, .. } = &call.func {
        let n = values.len() as u64;
        let at = values
            .iter()
            .filter(|v| compare(v, &Value::Int((*at).into()), Order::Functions).is_le())
            .count();
        return if n == 0 {
            Expect::Is(None)
        } else {
            Expect::Counted { at: at as u64, n }
        };
    }
    if matches!(call.func, Func::Builtin { .. }) {
        return builtin(&values, call.distinct);
    }
    if values.is_empty() {
        return match &call.func {
            Func::InOrder(asked) => asked.of_none(),
            _ => Expect::Is(None),
        };
    }
    if let Func::Iqr { method } = &call.func {
        return iqr(
            &values,
            if method.is_empty() { "linear" } else { method },
            &data_type,
        );
    }
    if let Func::InOrder(asked) = &call.func {
        return asked.answer(&values, &data_type);
    }
    let values = Rc::new(values);
    let one = |q: &Q| match &call.func {
        Func::Quantile { name, method, .. } => {
            let method = match *name {
                "quantile_cont" | "quantile_exact_inclusive" => "linear",
                "quantile_exact" | "quantile_exact_high" => "clickhouse",
                "quantile_exact_low" => "clickhouse_low",
                "quantile_exact_exclusive" => "weibull",
                "percentile" => return spark(&values, q, &data_type),
                _ => method,
            };
            exact(&values, q, method, &data_type)
        }
        Func::Gk { accuracy, .. } | Func::Sketch { accuracy } => ranked(values.clone(), q, *accuracy),
        Func::GkBounds { accuracy } => {
            let (low, high) = rank_bounds(values.len(), q, *accuracy);
            Expect::Bounds(values.clone(), low, high)
        }
        Func::SampleBounds { .. } => Expect::Bounds(values.clone(), 1.0, values.len() as f64),
        _ => Expect::Ranked(values.clone(), 1.0, values.len() as f64),
    };
    if call.list {
        Expect::List(call.qs.iter().map(one).collect())
    } else {
        one(&call.qs[0])
    }
}

/// DataFusion's own `median` and `percentile_cont`, which order NaNs by their bits, and over `DISTINCT` values by those of them
/// that are met first.
fn builtin(values: &[Value], distinct: bool) -> Expect {
    let open = |v: &Value| matches!(v, Value::Float(v) if v.is_nan() && (distinct || v.is_sign_negative()));
    if values.iter().any(open) {
        Expect::Open
    } else {
        Expect::Theirs
    }
}

/// From which rank to which an answer may lie.
fn rank_bounds(n: usize, q: &Q, accuracy: u64) -> (f64, f64) {
    let (n, q, error) = (n as f64, q.num as f64 / q.den as f64, 1.0 / accuracy as f64);
    (
        ((q - error) * n + 1e-9).floor().max(1.0).min(n),
        ((q + error) * n - 1e-9).ceil().min(n).max(1.0),
    )
}

fn ranked(values: Rc<Vec<Value>>, q: &Q, accuracy: u64) -> Expect {
    if values.is_empty() {
        return Expect::Is(None);
    }
    let (low, high) = rank_bounds(values.len(), q, accuracy);
    Expect::Ranked(values, low, high)
}

fn plain(name: &str, cells: Vec<Cell>) -> Expect {
    let values = || cells.iter().flatten();
    let ints = || values().filter_map(|v| int(&Some(v.clone())));
    let number = |v: i64| Value::Int(v.into());
    Expect::Is(match name {
        "count(*)" => Some(number(cells.len() as i64)),
        "count" => Some(number(values().count() as i64)),
        "sum" => ints().reduce(|a, b| a + b).map(number),
        "min" => ints().min().map(number),
        _ => ints().max().map(number),
    })
}
