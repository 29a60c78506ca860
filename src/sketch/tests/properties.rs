//! Tests of the bound over patterns, widths, variants, accuracies and merge trees.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::oracle::check;
use super::{VARIANTS, eps, sketch};
use crate::key::Key;
use crate::sketch::tests::patterns::{ALL, generate, mix};
use crate::sketch::{Epsilon, Sketch, Summary, Variant};

fn runner() -> TestRunner {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    TestRunner::new(Config {
        cases: cases.unwrap_or(256),
        failure_persistence: None,
        ..Config::default()
    })
}

fn accuracies() -> impl Strategy<Value = f64> {
    prop_oneof![
        proptest::sample::select(vec![
            0.5, 0.25, 0.1, 0.05, 0.01, 0.003, 0.001, 1e-4, 1.0, 3.0, 128.0
        ]),
        1e-4..0.5,
    ]
}

fn counts() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..300_usize, 8 => 300..6000_usize, 3 => 6000..40_000_usize]
}

/// Keys of another width, in the same order.
fn widened(keys: &[u64]) -> (Vec<u32>, Vec<u128>) {
    let narrow = keys
        .iter()
        .map(|key| (key >> 32) as u32 ^ (*key as u32 & 0xff))
        .collect();
    let wide = keys
        .iter()
        .map(|key| u128::from(*key) << 60 | u128::from(key % 3))
        .collect();
    (narrow, wide)
}

fn sorted<K: Key>(keys: &[K]) -> Vec<K> {
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    sorted
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    Balanced,
    Chain,
    ReverseChain,
    Random,
    Filled,
}

const SHAPES: [Shape; 5] = [
    Shape::Balanced,
    Shape::Chain,
    Shape::ReverseChain,
    Shape::Random,
    Shape::Filled,
];

fn merged<K: Key>(mut sides: Vec<Summary<K>>, eps: Epsilon, shape: Shape, seed: u64) -> Summary<K> {
    let chain = |sides: Vec<Summary<K>>| {
        let start = Summary::new(eps);
        sides
            .into_iter()
            .fold(start, |all, side| all.merge(side).unwrap())
    };
    match shape {
        Shape::Balanced => Summary::merge_all(eps, sides).unwrap(),
        Shape::Chain => chain(sides),
        Shape::ReverseChain => {
            sides.reverse();
            chain(sides)
        }
        Shape::Random => {
            for step in seed >> 1.. {
                if sides.len() < 2 {
                    break;
                }
                let a = sides.swap_remove(mix(step) as usize % sides.len());
                let b = sides.swap_remove(mix(!step) as usize % sides.len());
                sides.push(a.merge(b).unwrap());
            }
            sides.pop().unwrap_or_else(|| Summary::new(eps))
        }
        Shape::Filled => {
            let mut sketch = Sketch::new(eps, Variant::Modified);
            sides.into_iter().for_each(|side| sketch.merge(side).unwrap());
            sketch.finish().unwrap()
        }
    }
}

/// Cuts keys into sides of very different lengths, some of them empty.
fn sides<K: Key>(keys: &[K], count: usize, seed: u64) -> Vec<&[K]> {
    let mut cuts: Vec<usize> = (0..count as u64)
        .map(|i| {
            let within = (keys.len() >> (mix(seed ^ i) % 8)).max(1);
            mix(seed.wrapping_add(i)) as usize % within
        })
        .collect();
    cuts.extend([0, keys.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &keys[pair[0]..pair[1]]).collect()
}

fn check_merges<K: Key>(keys: &[K], eps: Epsilon, count: usize, shape: Shape, seed: u64) {
    let variant = |index: usize| VARIANTS[mix(seed.wrapping_add(index as u64)) as usize % 3];
    let sides = sides(keys, count, seed).into_iter().enumerate();
    let sides = sides
        .map(|(index, side)| sketch(side, eps, variant(index)))
        .collect();
    check(&merged(sides, eps, shape, seed), &sorted(keys));
}

#[test]
fn the_bound_holds_whatever_the_order() {
    let case = (
        0..ALL.len(),
        counts(),
        any::<u64>(),
        accuracies(),
        0..3_usize,
        0..3_u8,
    );
    let test = |(pattern, n, seed, accuracy, variant, width): (usize, usize, u64, f64, usize, u8)| {
        let keys = generate(ALL[pattern], n, seed);
        let (eps, variant) = (eps(accuracy), VARIANTS[variant]);
        let (narrow, wide) = widened(&keys);
        match width {
            0 => check(&sketch(&narrow, eps, variant), &sorted(&narrow)),
            1 => check(&sketch(&keys, eps, variant), &sorted(&keys)),
            _ => check(&sketch(&wide, eps, variant), &sorted(&wide)),
        }
        Ok(())
    };
    runner().run(&case, test).unwrap();
}

#[test]
fn the_bound_holds_after_any_merges() {
    let shape = proptest::sample::select(SHAPES.to_vec());
    let count = prop_oneof![4 => 0..20_usize, 1 => 20..400_usize];
    let case = (
        0..ALL.len(),
        counts(),
        any::<u64>(),
        accuracies(),
        count,
        shape,
        any::<bool>(),
    );
    let test =
        |(pattern, n, seed, accuracy, count, shape, wide): (usize, usize, u64, f64, usize, Shape, bool)| {
            let keys = generate(ALL[pattern], n.min(20_000), seed);
            if wide {
                check_merges(&widened(&keys).1, eps(accuracy), count, shape, seed)
            } else {
                check_merges(&keys, eps(accuracy), count, shape, seed)
            }
            Ok(())
        };
    runner().run(&case, test).unwrap();
}

#[test]
fn mixed_patterns_and_accuracies_merge() {
    let part = (0..ALL.len(), 0..3000_usize, accuracies());
    let case = (proptest::collection::vec(part, 0..6), any::<u64>());
    let test = |(parts, seed): (Vec<(usize, usize, f64)>, u64)| {
        let keys: Vec<Vec<u64>> = parts
            .iter()
            .map(|(pattern, n, _)| generate(ALL[*pattern], *n, seed))
            .collect();
        let summaries = keys.iter().zip(&parts);
        let summaries =
            summaries.map(|(keys, (_, _, accuracy))| sketch(keys, eps(*accuracy), Variant::Modified));
        let largest = parts.iter().map(|(_, _, accuracy)| eps(*accuracy)).max();
        let merged = merged(
            summaries.collect(),
            largest.unwrap_or(eps(0.1)),
            Shape::Random,
            seed,
        );
        check(&merged, &sorted(&keys.concat()));
        // The same values one after the other through one sketch: the distribution jumps.
        check(
            &sketch(&keys.concat(), eps(0.01), Variant::Modified),
            &sorted(&keys.concat()),
        );
        Ok(())
    };
    runner().run(&case, test).unwrap();
}

/// Keys in the manner of Cormode and Vesely ("A tight lower bound for comparison-based quantile summaries", PODS 2020):
/// each batch goes into the widest gap of the sketch so far.
fn adversarial(eps: Epsilon, variant: Variant, batch: u64, seed: u64) -> Vec<u128> {
    let mut keys: Vec<u128> = Vec::new();
    let (mut low, mut high) = (0, u128::MAX);
    for round in 0..24 {
        let step = ((high - low) / (u128::from(batch) + 1)).max(1);
        let inside = (1..=u128::from(batch))
            .map(|i| low + i * step)
            .filter(|key| *key < high);
        let start = keys.len();
        keys.extend(inside);
        if mix(seed.wrapping_add(round)).is_multiple_of(2) {
            keys[start..].reverse();
        }
        let summary = sketch(&keys, eps, variant);
        let pairs = summary.tuples.windows(2);
        if let Some(pair) = pairs.max_by_key(|pair| pair[1].below - pair[0].upto) {
            (low, high) = (pair[0].key, pair[1].key);
        }
    }
    keys
}

#[test]
fn the_bound_holds_against_an_adversary() {
    let case = (accuracies(), 0..3_usize, 1..500_u64, any::<u64>());
    let test = |(accuracy, variant, batch, seed): (f64, usize, u64, u64)| {
        let (eps, variant) = (eps(accuracy), VARIANTS[variant]);
        let keys = adversarial(eps, variant, batch, seed);
        check(&sketch(&keys, eps, variant), &sorted(&keys));
        Ok(())
    };
    runner().run(&case, test).unwrap();
}
