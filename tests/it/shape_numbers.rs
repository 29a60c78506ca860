//! Spreads and means against those of a sort, and every function over moving frames.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use datafusion::arrow::compute::{cast, concat_batches};
use datafusion::arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int64Type, UInt64Type};
use proptest::prelude::*;

use quantiles_testing::fixed_width::values;
use quantiles_testing::*;

use crate::shape::{Case, bins, case, frequent, members, runs, sessions};

/// Numbers of a column: exact ones in the unit of the type, and floating-point ones.
#[derive(Debug, Clone, PartialEq)]
enum Numbers {
    Exact(Vec<Option<i128>>),
    Floats(Vec<Option<f64>>),
}

fn numbers(array: &ArrayRef) -> Numbers {
    match array.data_type() {
        DataType::Float16 | DataType::Float32 | DataType::Float64 => {
            let floats = cast(array, &DataType::Float64).unwrap();
            Numbers::Floats(floats.as_primitive::<Float64Type>().iter().collect())
        }
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) | DataType::Decimal128(_, scale) => {
            let decimals = cast(array, &DataType::Decimal128(38, *scale)).unwrap();
            Numbers::Exact(decimals.as_primitive::<Decimal128Type>().iter().collect())
        }
        DataType::UInt64 => {
            let whole = array.as_primitive::<UInt64Type>();
            Numbers::Exact(whole.iter().map(|v| v.map(i128::from)).collect())
        }
        _ => {
            let whole = cast(array, &DataType::Int64).unwrap();
            let whole = whole.as_primitive::<Int64Type>();
            Numbers::Exact(whole.iter().map(|v| v.map(i128::from)).collect())
        }
    }
}

/// A number that was found, and the least and the greatest one that it may be.
fn assert_within(found: f64, expected: f64, digits: f64, what: &str) {
    let is_near = (found - expected).abs() <= expected.abs().min(1e308) * digits;
    let is_same = found == expected || found.is_nan() && expected.is_nan();
    assert!(is_near || is_same, "{found:?} for {expected:?}: {what}");
}

/// `sum / count`, rounded half away from zero.
fn rounded(sum: i128, count: i128) -> i128 {
    let away = if sum < 0 { -(count / 2) } else { count / 2 };
    // An odd count has no halves.
    (sum + away) / count
}

/// The values that count in a mean without the ends, the ends replaced or not.
fn without_ends<T: Copy>(sorted: &[T], percent: usize, is_winsorized: bool) -> Vec<T> {
    let n = sorted.len();
    let end = n * percent / 100;
    let inner = &sorted[end..n - end];
    let mut kept = inner.to_vec();
    if is_winsorized {
        kept.extend(std::iter::repeat_n(inner[0], end));
        kept.extend(std::iter::repeat_n(inner[inner.len() - 1], end));
    }
    kept
}

/// The sum of floats, exact but for one rounding (Shewchuk's partial sums, as Python's `math.fsum`).
fn exact_sum(values: &[f64]) -> f64 {
    if values.iter().any(|value| !value.is_finite()) {
        return values.iter().sum();
    }
    let mut partials: Vec<f64> = Vec::new();
    for value in values {
        let (mut x, mut kept) = (*value, Vec::new());
        for y in partials {
            let (big, small) = if x.abs() < y.abs() { (y, x) } else { (x, y) };
            let high = big + small;
            let low = small - (high - big);
            if low != 0.0 {
                kept.push(low);
            }
            x = high;
        }
        kept.push(x);
        partials = kept;
    }
    partials.iter().rev().sum()
}

/// The answers of [`NUMBERS`] for exact numbers: numerator and denominator.
fn exact_answers(sorted: &[i128]) -> Vec<(i128, i128)> {
    let n = sorted.len();
    let middle = [(n - 1) / 2, n / 2];
    let median = middle.iter().map(|at| sorted[*at]).sum::<i128>();
    let mut deviations: Vec<i128> = sorted.iter().map(|value| (2 * value - median).abs()).collect();
    deviations.sort_unstable();
    let mut answers = vec![(middle.iter().map(|at| deviations[*at]).sum(), 4)];
    for (percent, is_winsorized) in MEANS {
        let kept = without_ends(sorted, percent, is_winsorized);
        answers.push((kept.iter().sum(), kept.len() as i128));
    }
    answers
}

/// The mean of two floats as NumPy interpolates.
fn mean_of_two(low: f64, high: f64) -> f64 {
    if low == high {
        low
    } else if !low.is_finite() || !high.is_finite() {
        low + high
    } else {
        high - (high - low) * 0.5
    }
}

/// The same for floats. `narrow` rounds to their type.
fn float_answers(sorted: &[f64], narrow: &dyn Fn(f64) -> f64) -> Vec<f64> {
    let n = sorted.len();
    let mean = |sorted: &[f64]| narrow(mean_of_two(sorted[(n - 1) / 2], sorted[n / 2]));
    let median = mean(sorted);
    let deviation = |value: &f64| match *value == median {
        true => 0.0,
        false => narrow((value - median).abs()),
    };
    let mut deviations: Vec<f64> = sorted.iter().map(deviation).collect();
    deviations.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let mut answers = vec![mean(&deviations)];
    for (percent, is_winsorized) in MEANS {
        let kept = without_ends(sorted, percent, is_winsorized);
        answers.push(narrow(exact_sum(&kept) / kept.len() as f64));
    }
    answers
}

/// What is asked of numbers.
const NUMBERS: &str =
    "mad(x), trimmed_mean(x, 0.1), winsorized_mean(x, 0.1), trimmed_mean(x, 0.49), winsorized_mean(x, 0)";

/// The means of [`NUMBERS`]: percent of an end, and whether ends are replaced.
const MEANS: [(usize, bool); 4] = [(10, false), (10, true), (49, false), (0, true)];

async fn check_numbers(case: &Case) {
    let x = values(&case.data_type, case.pattern, case.len, case.seed, true);
    let own = numbers(&x);
    let digits = match case.data_type {
        DataType::Float16 => 1e-3,
        DataType::Float32 => 1e-6,
        _ => 1e-15,
    };
    let narrow = |value: f64| {
        let one: ArrayRef = Arc::new(datafusion::arrow::array::Float64Array::from(vec![value]));
        let Numbers::Floats(floats) = numbers(&cast(&one, &case.data_type).unwrap()) else {
            panic!("no float")
        };
        floats[0].unwrap()
    };
    let mut first: Vec<Option<Vec<Numbers>>> = vec![None; 2];
    for (name, ctx) in sessions(case, &x) {
        for (groups, first) in [None, Some(case.groups)].into_iter().zip(&mut first) {
            let what = format!("{name} {groups:?} {case:?}");
            let by = if groups.is_some() {
                "GROUP BY g ORDER BY g"
            } else {
                ""
            };
            let sql = format!("SELECT {NUMBERS} FROM t {by}");
            let plan = ctx.sql(&sql).await.unwrap();
            let schema = Arc::new(plan.schema().as_arrow().clone());
            let found = concat_batches(&schema, &plan.collect().await.unwrap()).unwrap();
            let found: Vec<Numbers> = found.columns().iter().map(numbers).collect();
            // The same bits in every session.
            let bits = |all: &Vec<Numbers>| format!("{all:?}");
            let seen = first.get_or_insert_with(|| found.clone());
            assert_eq!(bits(seen), bits(&found), "{what}");
            for (row, members) in members(case.len, groups).iter().enumerate() {
                check_group(&own, members, &found, row, digits, &narrow, &what);
            }
        }
    }
}

fn check_group(
    own: &Numbers,
    members: &[usize],
    found: &[Numbers],
    row: usize,
    digits: f64,
    narrow: &dyn Fn(f64) -> f64,
    what: &str,
) {
    match own {
        Numbers::Exact(own) => {
            let mut sorted: Vec<i128> = members.iter().filter_map(|row| own[*row]).collect();
            sorted.sort_unstable();
            if sorted.is_empty() {
                return assert_null(found, row, what);
            }
            for (found, (sum, count)) in found.iter().zip(exact_answers(&sorted)) {
                match found {
                    Numbers::Exact(found) => assert_eq!(found[row], Some(rounded(sum, count)), "{what}"),
                    Numbers::Floats(found) => {
                        assert_within(found[row].unwrap(), sum as f64 / count as f64, 1e-15, what);
                    }
                }
            }
        }
        Numbers::Floats(own) => {
            let mut sorted: Vec<f64> = members.iter().filter_map(|row| own[*row]).collect();
            let one_nan = |value: f64| if value.is_nan() { f64::NAN.abs() } else { value };
            sorted.sort_by(|a, b| one_nan(*a).total_cmp(&one_nan(*b)));
            if sorted.is_empty() {
                return assert_null(found, row, what);
            }
            for (at, (found, expected)) in found.iter().zip(float_answers(&sorted, narrow)).enumerate() {
                let Numbers::Floats(found) = found else {
                    panic!("{what}")
                };
                // Deviations are rounded as here; a mean is rounded once, and here twice.
                let digits = if at == 0 { 0.0 } else { digits };
                assert_within(found[row].unwrap(), expected, digits, what);
            }
        }
    }
}

fn assert_null(found: &[Numbers], row: usize, what: &str) {
    for found in found {
        match found {
            Numbers::Exact(found) => assert_eq!(found[row], None, "{what}"),
            Numbers::Floats(found) => assert_eq!(found[row], None, "{what}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn spreads_and_means_are_those_of_a_sort(case in case()) {
        use DataType::*;
        if case.data_type.is_numeric() || matches!(case.data_type, Duration(_)) {
            tokio::runtime::Runtime::new().unwrap().block_on(check_numbers(&case));
        }
    }
}

#[tokio::test]
async fn frames_that_move_are_answered_row_by_row() {
    let ctx = session(2);
    let word = |i: i64| i * 7919 % 23 - 5;
    let x = Int64Array::from_iter((0..200).map(|i| (i % 9 > 0).then(|| word(i))));
    let i = Int64Array::from_iter_values(0..200);
    register(
        &ctx,
        "t",
        &batch(vec![("i", Arc::new(i) as ArrayRef), ("x", Arc::new(x.clone()))]),
        2,
        30,
    );
    for (frame, from) in [
        ("ROWS BETWEEN 6 PRECEDING AND CURRENT ROW", 6),
        ("ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW", 1000),
    ] {
        let calls = [
            "mode(x)",
            "top_values(x, 2)",
            "mad(x)",
            "trimmed_mean(x, 0.2)",
            "histogram(x, 2)",
            "max(x, 2)",
        ];
        let calls = calls.map(|call| format!("{call} OVER (ORDER BY i {frame})"));
        let found = rows(&ctx, &format!("SELECT {} FROM t ORDER BY i", calls.join(", "))).await;
        for (at, found) in found.iter().enumerate() {
            let mut frame: Vec<i128> = (at.saturating_sub(from)..=at)
                .filter(|row| x.is_valid(*row))
                .map(|row| x.value(row).into())
                .collect();
            frame.sort_unstable();
            if frame.is_empty() {
                assert_eq!(found, "NULL | NULL | NULL | NULL | NULL | NULL");
                continue;
            }
            let distinct: Vec<i128> = runs(&frame).iter().map(|run| run.0).collect();
            let places: Vec<usize> = frame
                .iter()
                .map(|value| distinct.binary_search(value).unwrap())
                .collect();
            let shown = |place: usize| distinct[place].to_string();
            let best: Vec<String> = frequent(&places)
                .iter()
                .take(2)
                .map(|(place, count)| format!("{{value: {}, count: {count}}}", shown(*place)))
                .collect();
            let bins: Vec<String> = bins(&places, 2)
                .iter()
                .map(|(low, high, count)| {
                    format!("{{low: {}, high: {}, count: {count}}}", shown(*low), shown(*high))
                })
                .collect();
            let kept = without_ends(&frame, 20, false);
            let mean = kept.iter().sum::<i128>() as f64 / kept.len() as f64;
            let deviation = exact_answers(&frame)[0].0 as f64 / 4.0;
            let greatest: Vec<String> = frame.iter().rev().take(2).map(i128::to_string).collect();
            let expected = format!(
                "{} | [{}] | {deviation:?} | {mean:?} | [{}] | [{}]",
                shown(frequent(&places)[0].0),
                best.join(", "),
                bins.join(", "),
                greatest.join(", "),
            );
            assert_eq!(found, &expected, "row {at} {from}");
        }
    }
}
