//! Inputs of the tests, as keys of each width.

pub(super) use quantiles_testing::patterns::{ALL, Pattern};

/// Random words, `len` of them, which depend on the seed only.
pub(super) fn words(pattern: Pattern, len: usize, seed: u64) -> Vec<u64> {
    pattern
        .words(len, seed)
        .into_iter()
        .map(i64::cast_unsigned)
        .collect()
}

/// Words as keys of 32 bits: some of the upper half, mixed with the lower one.
pub(super) fn narrow(words: &[u64]) -> Vec<u32> {
    words
        .iter()
        .map(|word| (word >> 16) as u32 ^ *word as u32)
        .collect()
}

/// Words as keys of 128 bits, up to the greatest.
pub(super) fn wide(words: &[u64]) -> Vec<u128> {
    let bits = |word: u64| u128::from(word) << 64 | u128::from(word);
    words.iter().map(|word| bits(*word)).collect()
}
