//! Tests of every claim of the module, against a sort. `PROPTEST_CASES` sets the number of cases (default 256).

mod mutated;
mod oracle;
mod patterns;
mod properties;
mod stored;

pub(crate) use stored::sealed;

use super::{Epsilon, Sketch, Summary, Variant};
use crate::key::Key;
use oracle::check;

/// The text of an execution error.
fn message(error: datafusion::common::DataFusionError) -> String {
    let shown = error.strip_backtrace();
    shown
        .strip_prefix("Execution error: ")
        .unwrap_or(&shown)
        .to_owned()
}

fn eps(accuracy: f64) -> Epsilon {
    Epsilon::try_new(accuracy).unwrap()
}

/// The summary of keys that come in batches of odd sizes.
fn sketch<K: Key>(keys: &[K], eps: Epsilon, variant: Variant) -> Summary<K> {
    let mut sketch = Sketch::new(eps, variant);
    let (mut rest, mut size) = (keys, 1);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(size.min(rest.len()));
        sketch.extend(now).unwrap();
        (rest, size) = (later, size * 3 % 9973 + 1);
    }
    assert_eq!(sketch.n(), keys.len() as u64);
    // One of the two forms.
    if keys.len().is_multiple_of(2) {
        sketch.finish().unwrap()
    } else {
        sketch.partial().unwrap()
    }
}

const VARIANTS: [Variant; 3] = [Variant::Classical, Variant::Spark, Variant::Modified];

#[test]
fn one_to_a_thousand_with_any_accuracy() {
    let keys: Vec<u64> = (1..=1000).collect();
    for accuracy in [
        0.999, 0.5, 0.3, 0.1, 0.07, 0.01, 0.001, 0.0005, 1e-9, 1.0, 2.0, 3.7, 100.0, 999.0, 1e4, 1e300,
    ] {
        for variant in VARIANTS {
            check(&sketch(&keys, eps(accuracy), variant), &keys);
        }
    }
}

#[test]
fn few_values_are_exact_and_small() {
    for n in [0, 1, 2, 30, 4999] {
        let keys: Vec<u64> = (0..n).map(crate::sketch::tests::patterns::mix).collect();
        for variant in VARIANTS {
            let summary = sketch(&keys, eps(1e4), variant);
            assert!(summary.is_exact() && summary.len() as u64 == n);
        }
    }
    let mut small = Sketch::new(eps(100.0), Variant::Modified);
    small.extend(&[5_u32, 6, 7]).unwrap();
    assert!(
        small.size() <= 32 && size_of_val(&small) <= 72,
        "{} {}",
        small.size(),
        size_of_val(&small)
    );
    assert!(small.finish().unwrap().write(b"").len() <= 30);
}

#[test]
fn equal_values_are_one_tuple() {
    for variant in VARIANTS {
        let summary = sketch(&[7_u64; 100_000], eps(1e3), variant);
        assert_eq!(summary.tuples().collect::<Vec<_>>(), [(7, 100_000, -99_999)]);
        let bracket = summary.bracket(50_000).unwrap();
        assert_eq!(
            (bracket.lo, bracket.hi, bracket.between, bracket.upto_lo),
            (7, 7, 0, (100_000, 100_000))
        );
    }
}

#[test]
fn no_values_no_answers() {
    let summary = Summary::<u64>::new(eps(0.1));
    assert_eq!(
        (
            summary.value_at(1),
            summary.bracket(1),
            summary.min(),
            summary.max()
        ),
        (None, None, None, None)
    );
    assert_eq!((summary.rank(5), summary.widest()), ((0, 0), 0));
    let one = sketch(&[9_u64], eps(0.1), Variant::Modified);
    assert_eq!((one.value_at(0), one.value_at(2)), (None, None));
    assert_eq!(
        message(one.brackets(&[2]).unwrap_err()),
        "rank 2 of 1 values: allowed are 1..=1"
    );
    assert_eq!(
        summary.clone().merge(one.clone()).unwrap(),
        one.clone().merge(summary).unwrap()
    );
    assert!(Summary::<u64>::merge_all(eps(0.1), vec![]).unwrap().is_empty());
}

#[test]
fn thousands_of_tiny_sides_stay_small() {
    let keys: Vec<u64> = (0..30_000).map(crate::sketch::tests::patterns::mix).collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    let sides = || {
        keys.chunks(7)
            .map(|keys| sketch(keys, eps(100.0), Variant::Modified))
    };
    let mut filled = Sketch::new(eps(100.0), Variant::Modified);
    sides().for_each(|side| filled.merge(side).unwrap());
    let chain = sides().fold(Summary::new(eps(100.0)), |all, side| all.merge(side).unwrap());
    for summary in [
        Summary::merge_all(eps(100.0), sides().collect()).unwrap(),
        filled.finish().unwrap(),
        chain,
    ] {
        check(&summary, &sorted);
        assert!(summary.len() <= 800, "{}", summary.len());
    }
}
