//! Distances and estimates against a plain loop.

use std::cell::Cell;
use std::ops::Range;

use datafusion::common::resources_err;
use half::f16;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

/// The pairs of [`reaching`], with room for few at first.
fn found_pairs(
    queries: &QueryTiles,
    of: Range<usize>,
    vectors: &VectorTiles,
    marks: Option<Marks<'_>>,
    floors: &mut Floors,
    shared: &SharedBounds,
) -> Vec<Pair> {
    let room = Cell::new(7);
    let grow = &|pairs| {
        room.set(pairs);
        Ok(())
    };
    let pairs = Room { pairs: 7, grow };
    let found = reaching(queries, of, vectors, marks, floors, shared, pairs).unwrap();
    assert!(
        found.len() <= room.get(),
        "{} pairs, room for {}",
        found.len(),
        room.get()
    );
    found
}

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

/// The score of a pair.
fn score(ranking: Ranking, query: &[f64], vector: &[f64]) -> f64 {
    let value = naive(ranking.measure, query, vector).unwrap_or(f64::NAN);
    if ranking.ascending { value } else { -value }
}

/// Of many vectors, in tiles of either width and in several batches: every pair that may be among the best is found, few others are, and in order.
#[test]
fn pairs_that_are_left_out_have_better_ones() {
    let mut rng = SmallRng::seed_from_u64(3);
    for (dimension, queries, rows, few) in [
        (1, 7, 900, false),
        (3, 1, 500, true),
        (31, 20, 700, false),
        (130, 13, 400, true),
    ] {
        let mut drawn = |count: usize| -> Vec<f64> {
            let component = |_| match few {
                true => f64::from(rng.random_range(-1..2)),
                false => rng.random_range(-1.0..1.0),
            };
            (0..count * dimension).map(component).collect()
        };
        let (asked, table) = (drawn(queries), drawn(rows));
        for (measure, ascending, k, lanes) in [
            (Measure::Euclidean, true, 5, 16),
            (Measure::Euclidean, false, 1, 32),
            (Measure::InnerProduct, false, 10, 32),
            (Measure::InnerProduct, true, 3, 16),
            (Measure::Cosine, true, 4, 32),
            (Measure::Cosine, false, 600, 16),
        ] {
            let ranking = Ranking { measure, ascending };
            let of_queries = Vectors::dense(&asked, dimension, queries).unwrap();
            let tiles = QueryTiles::new(ranking, &of_queries, |_| false);
            let (mut floors, shared) = (Floors::new(k, queries), SharedBounds::new(queries));
            let mut found = vec![Vec::new(); queries];
            for first in (0..rows).step_by(150) {
                let count = 150.min(rows - first);
                let part = &table[first * dimension..(first + count) * dimension];
                let vectors = Vectors::dense(part, dimension, count).unwrap();
                let vectors = VectorTiles::with_lanes(ranking, &vectors, |_| false, lanes);
                for of in (0..queries)
                    .step_by(12)
                    .map(|first| first..queries.min(first + 12))
                {
                    let pairs = found_pairs(&tiles, of.clone(), &vectors, None, &mut floors, &shared);
                    assert!(pairs.is_sorted());
                    for pair in pairs {
                        assert!(of.contains(&(pair.query as usize)));
                        found[pair.query as usize].push(first + pair.row as usize);
                    }
                }
            }
            for (query, found) in found.iter().enumerate() {
                let of_query = &asked[query * dimension..(query + 1) * dimension];
                let scores: Vec<f64> = table
                    .chunks(dimension)
                    .map(|vector| score(ranking, of_query, vector))
                    .collect();
                let mut sorted = scores.clone();
                sorted.sort_by(f64::total_cmp);
                let last = sorted[k.min(rows) - 1];
                let best: Vec<usize> = (0..rows).filter(|row| scores[*row] <= last).collect();
                let missed = best.iter().filter(|row| !found.contains(row)).count();
                let known = measure != Measure::Cosine || of_query.iter().any(|component| *component != 0.0);
                assert!(
                    missed == 0 || !known,
                    "{measure:?} {ascending} {k} {dimension}: {missed} missed"
                );
                let is_sharp = !few && k < 20 && dimension > 1;
                assert!(!is_sharp || found.len() < 40 * k, "{} of {k}", found.len());
            }
        }
    }
}

/// Pairs of equal marks are left out, and do not make bounds tighter.
#[test]
fn unwanted_pairs_do_not_count() {
    let vectors: Vec<f32> = (0..100).map(|at| at as f32).collect();
    let ranking = Ranking {
        measure: Measure::Euclidean,
        ascending: true,
    };
    let tiled = Vectors::dense(&vectors, 1, 100).unwrap();
    let (queries, table) = (
        QueryTiles::new(ranking, &tiled, |_| false),
        VectorTiles::new(ranking, &tiled, |_| false),
    );
    let marks: Vec<u32> = (0..100).collect();
    let none = vec![Marks::UNWANTED; 100];
    for (of_rows, least) in [(&marks, 2), (&none, 0)] {
        let (mut floors, shared) = (Floors::new(2, 100), SharedBounds::new(100));
        let marks = Marks {
            queries: &marks,
            rows: of_rows,
        };
        let pairs = found_pairs(&queries, 0..100, &table, Some(marks), &mut floors, &shared);
        for query in 0..100 {
            let found: Vec<u32> = pairs
                .iter()
                .filter(|pair| pair.query == query)
                .map(|pair| pair.row)
                .collect();
            assert!(
                found.len() >= least && found.len() < 10 && !found.contains(&query),
                "{query}: {found:?}"
            );
            assert!(least > 0 || found.is_empty(), "{query}: {found:?}");
        }
    }
}

/// NULL, NaN, infinity and sizes out of range are found with every partner, and hide no other pair.
#[test]
fn what_cannot_be_judged_is_found() {
    let special = [f64::NAN, f64::INFINITY, -f64::INFINITY, 1e200, 1e-15, 0.0];
    for measure in Measure::ALL {
        let ranking = Ranking {
            measure,
            ascending: true,
        };
        let mut components: Vec<f64> = (1..40).flat_map(|at| [f64::from(at), 1.0]).collect();
        components.extend(special.iter().flat_map(|component| [*component, 0.0]));
        let rows = components.len() / 2;
        let vectors = Vectors::dense(&components, 2, rows).unwrap();
        let is_null = |row| row == 5;
        let (queries, table) = (
            QueryTiles::new(ranking, &vectors, is_null),
            VectorTiles::new(ranking, &vectors, is_null),
        );
        let (mut floors, shared) = (Floors::new(1, rows), SharedBounds::new(rows));
        let pairs = found_pairs(&queries, 0..rows, &table, None, &mut floors, &shared);
        // The zero vector has distances, but no cosine distance.
        let is_known = |row: usize| {
            row < rows - special.len() && row != 5 || row == rows - 1 && measure != Measure::Cosine
        };
        for query in 0..rows as u32 {
            for row in 0..rows as u32 {
                let found = pairs.binary_search(&Pair { query, row }).is_ok();
                assert!(
                    found || is_known(query as usize) && is_known(row as usize),
                    "{measure:?} {query} {row}"
                );
            }
        }
        assert!(pairs.len() < rows * rows / 2, "{measure:?}: {}", pairs.len());
    }
}

/// Equal vectors are all as near as the nearest: there must be room for every pair, or an error.
#[test]
fn pairs_have_room_or_are_refused() {
    let equal = Vectors::dense(&[1.0_f32; 200], 1, 200).unwrap();
    let ranking = Ranking {
        measure: Measure::Euclidean,
        ascending: true,
    };
    let (queries, table) = (
        QueryTiles::new(ranking, &equal, |_| false),
        VectorTiles::new(ranking, &equal, |_| false),
    );
    let (mut floors, shared) = (Floors::new(3, 200), SharedBounds::new(200));
    let all = found_pairs(&queries, 0..60, &table, None, &mut floors, &shared);
    assert_eq!(all.len(), 60 * 200);
    let grow = &|pairs| {
        if pairs > 1000 {
            return resources_err!("{pairs} pairs");
        }
        Ok(())
    };
    let room = Room { pairs: 10, grow };
    let error = reaching(&queries, 60..120, &table, None, &mut floors, &shared, room).unwrap_err();
    assert!(error.to_string().contains("1280 pairs"), "{error}");
}
