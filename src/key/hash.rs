//! Hashes of keys.

use super::KeyBits;

/// Increment of the state in Steele, Lea and Flood's SplitMix64 (2014).
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A hash of a key: both halves of a product, combined as in Wang's wyhash (2019), with one multiplication a word. It
/// need not withstand an adversary. The key [`GOLDEN`] has the hash 0, so that only the number of keys beside a sum of
/// hashes tells whether it is there.
#[inline(always)]
pub(crate) fn mixed(key: KeyBits) -> u64 {
    let fold = |word: u64| {
        let product = u128::from(word ^ GOLDEN) * 0xbf58_476d_1ce4_e5b9;
        product as u64 ^ (product >> 64) as u64
    };
    match (key >> 64) as u64 {
        0 => fold(key as u64),
        upper => fold(key as u64 ^ fold(upper)),
    }
}

/// The output of SplitMix64 for a state.
pub fn finalised(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
