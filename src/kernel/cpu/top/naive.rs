//! The reference for tests, a sort of all rows; and the patterns of keys that the kernels are tested with.

use proptest::prelude::*;

use super::slots::Segments;

/// The best `k` rows of each group.
pub(crate) fn best_of_groups<K: Copy + Ord, R: Copy + Into<u64> + TryFrom<u64, Error: std::fmt::Debug>>(
    groups: usize,
    of: &[u32],
    keys: &[K],
    rows: &[R],
    k: usize,
) -> Segments<K, R> {
    let mut each = vec![Vec::new(); groups];
    for ((group, key), row) in of.iter().zip(keys).zip(rows) {
        each[*group as usize].push((*key, (*row).into()));
    }
    let mut out = Segments::default();
    for mut pairs in each {
        pairs.sort_by(|a: &(K, u64), b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        for (key, row) in pairs.into_iter().take(k) {
            out.keys.push(key);
            out.rows.push(R::try_from(row).unwrap());
        }
        out.offsets.push(out.keys.len());
    }
    out
}

/// A random number from a seed.
pub(crate) fn mix(mut seed: u64) -> u64 {
    seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ (seed >> 31)
}

/// Number of patterns of [`keys`].
pub(crate) const PATTERNS: usize = 9;

/// `n` keys of a pattern.
pub(crate) fn keys(pattern: usize, n: usize, seed: u64) -> Vec<u64> {
    let random = |i: u64| mix(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed);
    let n = n as u64;
    let key = |i: u64| match pattern {
        0 => random(i),
        1 => i,
        2 => n - i,
        3 => random(i) % 5,
        4 => seed,
        5 => i % 37,
        6 => i.min(n - i),
        7 => [0, u64::MAX, random(i)][(random(i) % 3) as usize],
        _ => random(i) >> (random(!i) % 64),
    };
    (0..n).map(key).collect()
}

/// Row numbers, all distinct: ascending, descending, or in no order.
pub(crate) fn rows(order: usize, n: usize, from: u64) -> Vec<u64> {
    let mut rows: Vec<u64> = (from..from + n as u64).collect();
    match order {
        0 => {}
        1 => rows.reverse(),
        _ => rows.sort_by_key(|row| mix(*row)),
    }
    rows
}

/// Numbers of rows, mostly small, some past every limit of a buffer.
pub(crate) fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0..300_usize, 2 => 0..5_000_usize, 1 => 0..60_000_usize]
}
