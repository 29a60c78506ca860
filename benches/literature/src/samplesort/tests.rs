use proptest::prelude::*;

use super::super::patterns::{self, Pattern};
use super::tree::MAX_BUCKETS;
use super::*;

fn agrees<K: Key>(keys: &[K], near_len: usize, levels: u32) {
    let mut expected = keys.to_vec();
    expected.sort_unstable();
    let check = |form: &str, sort: &mut dyn FnMut(&mut [K])| {
        let mut own = keys.to_vec();
        sort(&mut own);
        assert!(own == expected, "{form}: {} keys, {levels} levels", keys.len());
    };
    check("out of place", &mut |keys| OutOfPlace::new().sort(keys));
    check("in place", &mut |keys| InPlace::new().sort(keys));
    let mut kept = (OutOfPlace::new(), InPlace::with_near_len(near_len));
    for _ in 0..2 {
        check("out of place, few levels", &mut |keys| {
            kept.0.sort_unordered(keys, levels)
        });
        check("in place, in small blocks", &mut |keys| {
            kept.1.sort_unordered(keys, levels)
        });
    }
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => 0..SMALL + 2,
        4 => SMALL..20_000_usize,
        1 => 60_000..300_000_usize,
    ]
}

proptest! {
    #[test]
    fn both_forms_sort_like_the_standard_library(
        pattern in prop::sample::select(&patterns::ALL[..]),
        len in lengths(),
        seed: u64,
        near_len in 0..4096_usize,
        levels in prop_oneof![0..3_u32, Just(20)],
    ) {
        let words = patterns::words(pattern, len, seed);
        agrees(&patterns::narrow(&words), near_len, levels);
        agrees(&words, near_len, levels);
        agrees(&patterns::wide(&words), near_len, levels);
    }

    #[test]
    fn buckets_are_those_that_the_splitters_say(
        pattern in prop::sample::select(&patterns::ALL[..]),
        len in 1..3000_usize,
        log in 1..=8_u32,
        seed: u64,
    ) {
        let keys = patterns::words(pattern, len, seed);
        let mut sample: Vec<u64> = keys.iter().step_by(3).copied().collect();
        sample.sort_unstable();
        let classifier = Classifier::of_sample(&sample, log);
        prop_assert!(classifier.buckets() <= MAX_BUCKETS);
        let mut oracle = vec![0; keys.len()];
        classifier.classify(&keys, &mut oracle);
        let mut pairs: Vec<(u8, u64)> = oracle.into_iter().zip(keys).collect();
        for (bucket, key) in &pairs {
            prop_assert_eq!(classifier.bucket(*key), *bucket as usize);
        }
        pairs.sort_unstable();
        prop_assert!(pairs.is_sorted_by_key(|(_, key)| *key), "buckets are out of order");
        for pair in pairs.windows(2) {
            let equality = pair[0].0 == pair[1].0 && classifier.is_equality(pair[0].0.into());
            prop_assert!(!equality || pair[0].1 == pair[1].1, "keys differ in an equality bucket");
        }
    }
}

#[test]
fn a_sample_with_repeats_gets_equality_buckets_and_one_without_gets_none() {
    let distinct: Vec<u64> = (0..1024).collect();
    let classifier = Classifier::of_sample(&distinct, 8);
    assert_eq!(classifier.buckets(), 256);
    assert!(!classifier.is_equality(classifier.bucket(4)));
    let repeated: Vec<u64> = (0..1024).map(|i| if i < 512 { 5 } else { i }).collect();
    let classifier = Classifier::of_sample(&repeated, 8);
    assert!(classifier.buckets() <= 256);
    assert!(classifier.is_equality(classifier.bucket(5)));
    assert!(!classifier.is_equality(classifier.bucket(4)));
}

#[test]
fn equal_keys_take_one_level() {
    // With one level of patience only a bucket of its own keeps a key from the small sort; it must not be called.
    let keys = patterns::words(Pattern::AllEqual, 100_000, 3);
    let classifier = classifier(&keys, &mut Random::new(1));
    assert_eq!(classifier.buckets(), 4);
    assert!(classifier.is_equality(classifier.bucket(42)));
}

#[test]
fn ranges_leave_about_256_keys_each() {
    let logs = [300, 1025, 1 << 12, 100_000, 1 << 33].map(log_ranges);
    assert_eq!(logs, [1, 2, 4, 8, 8]);
}
