//! Distances and estimates against a plain loop.

use half::f16;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

/// The distance by DataFusion's loop.
fn naive(measure: Measure, a: &[f64], b: &[f64]) -> Option<f64> {
    match measure {
        Measure::Euclidean => {
            let squares = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b));
            Some(squares.sum::<f64>().sqrt())
        }
        Measure::Cosine | Measure::InnerProduct => {
            let [mut product, mut of_a, mut of_b] = [0.0; 3];
            for (a, b) in a.iter().zip(b) {
                product += a * b;
                of_a += a * a;
                of_b += b * b;
            }
            match measure {
                Measure::InnerProduct => Some(product),
                _ if of_a == 0.0 || of_b == 0.0 => None,
                _ => Some(1.0 - product / (of_a.sqrt() * of_b.sqrt())),
            }
        }
    }
}

/// The bits of a number; all NaNs are one.
fn bits_of(x: f64) -> u64 {
    if x.is_nan() {
        f64::NAN.to_bits()
    } else {
        x.to_bits()
    }
}

/// Components of several magnitudes, with some that are special.
fn component(rng: &mut SmallRng, special: bool) -> f64 {
    match rng.random_range(0..40) {
        0 if special => f64::NAN,
        1 if special => f64::INFINITY,
        2 if special => -f64::INFINITY,
        3 => 0.0,
        4 => -0.0,
        5 => 1e30 * rng.random_range(-1.0..1.0),
        6 => 1e-30 * rng.random_range(-1.0..1.0),
        _ => rng.random_range(-1.0..1.0),
    }
}

fn check<T: Component>(
    rng: &mut SmallRng,
    dimension: usize,
    rows: usize,
    special: bool,
    narrow: impl Fn(f64) -> T,
) {
    let components: Vec<T> = (0..rows * dimension)
        .map(|_| narrow(component(rng, special)))
        .collect();
    let query: Vec<f64> = (0..dimension).map(|_| component(rng, special)).collect();
    let dense = Vectors::dense(&components, dimension, rows).unwrap();
    // Every other row, from the last to the first.
    let others: Vec<usize> = (0..rows).rev().step_by(2).collect();
    let starts: Vec<usize> = others.iter().map(|row| row * dimension).collect();
    let some = Vectors::at(&components, dimension, &starts).unwrap();
    for measure in Measure::ALL {
        let expected: Vec<Option<f64>> = (0..rows)
            .map(|row| {
                let row: Vec<f64> = dense.row(row).iter().map(|x| x.widen()).collect();
                naive(measure, &row, &query)
            })
            .collect();
        let shown = |distances: Distances| -> Vec<Option<u64>> {
            let values = distances.values.iter().enumerate();
            let is_missing = |row| distances.missing.binary_search(&row).is_ok();
            values
                .map(|(row, value)| (!is_missing(row)).then(|| bits_of(*value)))
                .collect()
        };
        let bits: Vec<Option<u64>> = expected.iter().map(|x| x.map(bits_of)).collect();
        assert_eq!(
            shown(distances(measure, &dense, &query)),
            bits,
            "{measure:?} {dimension}"
        );
        let of_others: Vec<Option<u64>> = others.iter().map(|row| bits[*row]).collect();
        assert_eq!(
            shown(distances(measure, &some, &query)),
            of_others,
            "{measure:?} {dimension}"
        );
        for bound in expected.iter().flatten().copied().filter(|bound| !bound.is_nan()) {
            for bound in [Bound::AtMost(bound), Bound::AtLeast(bound)] {
                let mut found = Vec::new();
                within(measure, &dense, &query, bound, &mut found);
                for (row, distance) in expected.iter().enumerate() {
                    let is_within = match (bound, distance) {
                        (Bound::AtMost(bound), Some(distance)) => *distance <= bound,
                        (Bound::AtLeast(bound), Some(distance)) => *distance >= bound,
                        (_, None) => true,
                    };
                    assert!(
                        !is_within || found.binary_search(&(row as u32)).is_ok(),
                        "{measure:?} {bound:?} {distance:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn distances_have_the_bits_of_a_plain_loop_and_estimates_lose_none() {
    let mut rng = SmallRng::seed_from_u64(7);
    for dimension in [0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 100, 128, 131] {
        for rows in [0, 1, 7, 8, 9, 63, 64, 65, 130] {
            for special in [false, true] {
                check(&mut rng, dimension, rows, special, |x| x);
                check(&mut rng, dimension, rows, special, |x| x as f32);
                check(&mut rng, dimension, rows, special, |x| f16::from_f64(x).to_bits());
            }
        }
    }
}

#[test]
fn bounds_leave_few_vectors() {
    let mut rng = SmallRng::seed_from_u64(8);
    let components: Vec<f32> = (0..1000 * 128).map(|_| rng.random_range(-1.0..1.0)).collect();
    let query: Vec<f64> = (0..128).map(|_| rng.random_range(-1.0..1.0)).collect();
    let vectors = Vectors::dense(&components, 128, 1000).unwrap();
    for measure in Measure::ALL {
        let mut sorted = distances(measure, &vectors, &query).values;
        sorted.sort_by(f64::total_cmp);
        let mut found = Vec::new();
        within(measure, &vectors, &query, Bound::AtMost(sorted[9]), &mut found);
        assert_eq!(found.len(), 10, "{measure:?}");
        found.clear();
        within(measure, &vectors, &query, Bound::AtLeast(sorted[990]), &mut found);
        assert_eq!(found.len(), 10, "{measure:?}");
    }
}

#[test]
fn halves_are_widened_without_rounding() {
    for bits in 0..=u16::MAX {
        let (ours, half) = (bits.widen(), f16::from_bits(bits).to_f64());
        assert!(
            ours.to_bits() == half.to_bits() || ours.is_nan() && half.is_nan(),
            "{bits:x}"
        );
        assert_eq!(ours.is_sign_negative(), half.is_sign_negative(), "{bits:x}");
    }
}

#[test]
fn vectors_behind_the_end_are_refused() {
    assert!(Vectors::dense(&[0.0_f64; 7], 2, 4).is_none());
    assert!(Vectors::at(&[0.0_f64; 7], 2, &[0, 5]).is_some());
    assert!(Vectors::at(&[0.0_f64; 7], 2, &[0, 6]).is_none());
    assert!(Vectors::at(&[0.0_f64; 1], 2, &[]).is_some());
    assert!(Vectors::at(&[0.0_f64; 1], 2, &[usize::MAX]).is_none());
}
