//! The first rows of a group, and the best ones.

use super::{Expect, Row, by_keys, evaluate};
use crate::statement::{Call, Key};
use crate::table::{ID, K};
use crate::value::{Cell, Order, Value, compare, compare_cells, text};

/// `first_value` in the order of `k`, then of `id`.
pub(super) fn first_value(call: &Call, desc: bool, mut rows: Vec<&Row>) -> Expect {
    let key = |column, desc| Key {
        column,
        desc,
        nulls_first: Some(false),
    };
    let keys = [key(K, desc), key(ID, false)];
    rows.sort_by(|a, b| by_keys(a, b, &keys));
    match rows.first() {
        None => Expect::Is(None),
        Some(first) => {
            // After a UNION ALL or a join an id can come twice.
            let ties = rows.iter().filter(|row| by_keys(row, first, &keys).is_eq());
            let mut ties: Vec<Cell> = ties.map(|row| evaluate(&call.x, row)).collect();
            ties.dedup_by_key(|cell| text(cell));
            if ties.len() > 1 {
                Expect::Open
            } else {
                Expect::Is(ties.remove(0))
            }
        }
    }
}

/// `topk_by` and its kin: the best values by another column.
pub(super) fn top<'r, 'a: 'r>(
    call: &Call,
    name: &str,
    k: Option<u64>,
    asc: Option<bool>,
    rows: impl Iterator<Item = &'r Row<'a>>,
) -> Expect {
    let descending = match name {
        "min_by" | "arg_min" => false,
        _ => asc != Some(true),
    };
    let mut pairs: Vec<(Value, Cell)> = Vec::new();
    for row in rows {
        let value = evaluate(&call.v, row);
        let counts = value.is_some() || name == "topk_by";
        if let (Some(key), true) = (evaluate(&call.x, row), counts) {
            pairs.push((key, value));
        }
    }
    pairs.sort_by(|a, b| {
        let keys = compare(&a.0, &b.0, Order::Functions);
        let keys = if descending { keys.reverse() } else { keys };
        keys.then(compare_cells(&a.1, &b.1, false, Order::Functions))
    });
    if call.distinct {
        let same = |a: &(Value, Cell), b: &(Value, Cell)| {
            compare(&a.0, &b.0, Order::Functions).is_eq()
                && compare_cells(&a.1, &b.1, false, Order::Functions).is_eq()
        };
        pairs.dedup_by(|a, b| same(a, b));
    }
    pairs.truncate(k.unwrap_or(1) as usize);
    match (pairs.is_empty(), k) {
        (true, _) => Expect::Is(None),
        (false, None) => Expect::Is(pairs.remove(0).1),
        (false, Some(_)) => Expect::List(pairs.into_iter().map(|(_, value)| Expect::Is(value)).collect()),
    }
}
