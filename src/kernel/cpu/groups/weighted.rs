//! Ranks among items with weights: an item of weight 3 counts as three, and is held once.
//!
//! ```text
//! items     k1   k2   k3   k4         ranks 1-2: k1, 3-5: k2, 6: k3, 7-10: k4
//! weights    2    3    1    4
//! ```
//! Time: linear in the number of items, times the logarithm of the number of ranks, whatever the weights.

use std::cmp::Ordering;
use std::iter::repeat_n;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err};

/// Most items that are always sorted: selection in place is not faster there.
const SORTED: usize = 64;
/// Items are sorted too if there are fewer than this number of them for each rank.
const ITEMS_A_RANK: usize = 16;

/// The error for weights whose sum does not fit 64 bits.
pub(crate) fn too_many() -> DataFusionError {
    exec_datafusion_err!(
        "the weights of a quantile add up to more than {}: that many rows are counted at most, and a weight with a fraction \
         counts once for each unit of its type's last digit",
        u64::MAX
    )
}

/// The sum of the weights.
///
/// # Errors
/// An execution error past 64 bits.
pub(crate) fn total<T>(items: &[(T, u64)]) -> Result<u64> {
    let mut weights = items.iter().map(|(_, weight)| *weight);
    weights.try_fold(0_u64, u64::checked_add).ok_or_else(too_many)
}

/// The items at `ranks`, which are from 1, ascending, distinct, and at most the sum of the weights. Reorders the items, whose weights add up
/// to 64 bits at most.
pub(crate) fn select_weighted<T: Copy>(
    items: &mut [(T, u64)],
    ranks: &[u64],
    compare: &impl Fn(&T, &T) -> Ordering,
) -> Vec<T> {
    let mut found = Vec::with_capacity(ranks.len());
    select_above(items, 0, ranks, compare, &mut found);
    found
}

/// Selects among items before which weights add up to `before`, in all ranks.
fn select_above<T: Copy>(
    items: &mut [(T, u64)],
    before: u64,
    ranks: &[u64],
    compare: &impl Fn(&T, &T) -> Ordering,
    found: &mut Vec<T>,
) {
    if ranks.is_empty() {
        return;
    }
    if items.len() <= SORTED || items.len() / ITEMS_A_RANK < ranks.len() {
        items.sort_unstable_by(|a, b| compare(&a.0, &b.0));
        return pick(items, before, ranks, found);
    }
    let middle = items.len() / 2;
    let (below, item, above) = items.select_nth_unstable_by(middle, |a, b| compare(&a.0, &b.0));
    let start = before + below.iter().map(|(_, weight)| weight).sum::<u64>();
    let end = start + item.1;
    let (lower, others) = ranks.split_at(ranks.partition_point(|rank| *rank <= start));
    let (here, upper) = others.split_at(others.partition_point(|rank| *rank <= end));
    select_above(below, before, lower, compare, found);
    found.extend(repeat_n(item.0, here.len()));
    select_above(above, end, upper, compare, found);
}

/// Adds the items at `ranks` of sorted items.
fn pick<T: Copy>(items: &[(T, u64)], before: u64, ranks: &[u64], found: &mut Vec<T>) {
    let mut ranks = ranks.iter().peekable();
    let mut end = before;
    for (item, weight) in items {
        end += weight;
        while ranks.next_if(|rank| **rank <= end).is_some() {
            found.push(*item);
        }
    }
}

/// Sorts the items and brings those that are equal together as one, with the sum of their weights, at the front. Returns their number. What
/// lies behind them has weight 0.
///
/// # Errors
/// An execution error for a sum past 64 bits.
pub(crate) fn merge_equal<T: Copy>(
    items: &mut [(T, u64)],
    compare: &impl Fn(&T, &T) -> Ordering,
) -> Result<usize> {
    items.sort_unstable_by(|a, b| compare(&a.0, &b.0));
    let mut distinct = 0_usize;
    for index in 0..items.len() {
        let (item, weight) = items[index];
        // What was merged stays with its weight elsewhere, so that the sum of all is kept.
        items[index].1 = 0;
        match distinct.checked_sub(1) {
            Some(last) if compare(&items[last].0, &item).is_eq() => {
                let sum = items[last].1.checked_add(weight);
                items[last].1 = sum.ok_or_else(too_many)?;
            }
            _ => {
                items[distinct] = (item, weight);
                distinct += 1;
            }
        }
    }
    Ok(distinct)
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn repeated(items: &[(u32, u64)]) -> Vec<u32> {
        let mut rows: Vec<u32> = items
            .iter()
            .flat_map(|(item, weight)| repeat_n(*item, *weight as usize))
            .collect();
        rows.sort_unstable();
        rows
    }

    #[test]
    fn ranks_are_those_of_repeated_items() {
        let mut rng = SmallRng::seed_from_u64(25);
        for n in [1, 5, 63, 64, 65, 500, 5000] {
            for values in [3, 100, u32::MAX] {
                let items: Vec<(u32, u64)> = (0..n)
                    .map(|_| (rng.random_range(0..values), rng.random_range(1..6)))
                    .collect();
                let rows = repeated(&items);
                let all = rows.len() as u64;
                for ranks in [
                    vec![1],
                    vec![all],
                    vec![1, all / 2 + 1, all],
                    (1..=all).collect(),
                    vec![],
                ] {
                    let mut ranks = ranks;
                    ranks.dedup();
                    let found = select_weighted(&mut items.clone(), &ranks, &u32::cmp);
                    let expected: Vec<u32> = ranks.iter().map(|rank| rows[*rank as usize - 1]).collect();
                    assert_eq!(found, expected, "{n} items, {} ranks", ranks.len());
                }
                let mut merged = items.clone();
                let distinct = merge_equal(&mut merged, &u32::cmp).unwrap();
                assert!(merged[..distinct].is_sorted_by(|a, b| a.0 < b.0));
                assert_eq!(repeated(&merged[..distinct]), rows);
                assert_eq!(total(&merged).unwrap(), all);
            }
        }
    }

    #[test]
    fn sums_fit_64_bits_or_are_errors() {
        let mut items = [(1_u32, u64::MAX - 7), (0, 3), (2, 4)];
        assert_eq!(total(&items).unwrap(), u64::MAX);
        let ranks = [3, 4, u64::MAX - 4, u64::MAX - 3, u64::MAX];
        assert_eq!(select_weighted(&mut items, &ranks, &u32::cmp), [0, 1, 1, 2, 2]);
        let mut items = [(1_u32, u64::MAX), (1, 1)];
        let message = "add up to more than 18446744073709551615";
        assert!(total(&items).unwrap_err().to_string().contains(message));
        let error = merge_equal(&mut items, &u32::cmp).unwrap_err();
        assert!(error.to_string().contains(message));
    }
}
