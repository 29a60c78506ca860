//! Positions of a few keys in descending order, by comparing all keys with all: there is no branch, so none is
//! mispredicted.
//!
//! The cost is `n` times `N` comparisons for `n` keys in an array of `N`, of which a vector instruction makes 4 to 16
//! at once. Keys of any width are first narrowed to the 32 bits below the highest bit in which they differ, which
//! rarely makes two of them equal. Wins over a sort up to 64 keys, loses beyond.

use crate::key::Key;

/// Most keys that are ordered by comparing all with all.
pub(crate) const FEW: usize = 64;

/// Number of keys whose positions are counted together: registers hold them and their counts.
const LANES: usize = 16;

/// The position of each of the first `n` keys in descending order: the number of keys that are larger, or equal at a
/// smaller index. Keys from index `n` on may be anything; their positions mean nothing. `N` is less than [`LANES`], or
/// a multiple of it.
#[inline(always)]
pub(crate) fn positions<K: Key, const N: usize>(keys: &[K; N], n: usize) -> [u32; N] {
    let n = n.min(N);
    if N < LANES {
        return separated(keys, n, [0; N]);
    }
    let (narrow, exact) = narrowed(keys, n);
    let mut positions = [0; N];
    let lanes = positions
        .as_chunks_mut::<LANES>()
        .0
        .iter_mut()
        .zip(narrow.as_chunks::<LANES>().0);
    for (positions, others) in lanes.take(n.div_ceil(LANES)) {
        *positions = count_above(&narrow[..n], others);
    }
    let sum: u32 = positions[..n].iter().sum();
    if sum as usize >= n * n.saturating_sub(1) / 2 {
        return positions;
    }
    // Equal keys got the same position.
    if exact {
        separated(&narrow, n, positions)
    } else {
        separated(keys, n, [0; N])
    }
}

/// Maps the keys to 32 bits in the same order. The flag is true if different keys certainly stay different.
#[inline(always)]
fn narrowed<K: Key, const N: usize>(keys: &[K; N], n: usize) -> ([u32; N], bool) {
    let (mut least, mut shift) = (K::default(), 0);
    if K::BITS > u32::BITS {
        let (low, high) = keys[..n].iter().fold((K::MAX, K::default()), |(low, high), key| {
            (low.min(*key), high.max(*key))
        });
        let bits = u128::BITS - high.minus(low).to_bits().leading_zeros();
        (least, shift) = (low, bits.saturating_sub(u32::BITS) % K::BITS);
    }
    let mut narrow = [0; N];
    for (narrow, key) in narrow.iter_mut().zip(keys) {
        *narrow = key.minus(least).shr32(shift);
    }
    (narrow, shift == 0)
}

#[inline(always)]
fn count_above(keys: &[u32], others: &[u32; LANES]) -> [u32; LANES] {
    let mut counts = [0; LANES];
    for key in keys {
        for (count, other) in counts.iter_mut().zip(others) {
            *count += u32::from(key > other);
        }
    }
    counts
}

/// Positions of keys some of which may be equal: equal keys are told apart by their indices. `positions` are the positions
/// without that, or all 0: then they are counted here.
#[inline(always)]
fn separated<K: Key, const N: usize>(keys: &[K; N], n: usize, mut positions: [u32; N]) -> [u32; N] {
    let anew = positions == [0; N];
    for (at, key) in keys[..n].iter().enumerate() {
        for (i, (position, other)) in positions.iter_mut().zip(keys).enumerate() {
            let above = anew & (*key > *other);
            *position += u32::from(above | ((*key == *other) & (at < i)));
        }
    }
    positions
}

/// Runs `$body` with `$n` as the least array size for `$len <= FEW` keys.
macro_rules! with_size {
    ($len:expr, $n:ident => $body:expr) => {
        match $len {
            0..=4 => {
                const $n: usize = 4;
                $body
            }
            5..=8 => {
                const $n: usize = 8;
                $body
            }
            9..=16 => {
                const $n: usize = 16;
                $body
            }
            17..=32 => {
                const $n: usize = 32;
                $body
            }
            _ => {
                const $n: usize = $crate::kernel::cpu::top::ranking::FEW;
                $body
            }
        }
    };
}
pub(crate) use with_size;

/// The positions of at most [`FEW`] keys in descending order, as [`positions`] defines them.
pub(crate) fn positions_of<K: Key>(keys: &[K]) -> [u8; FEW] {
    let mut out = [0; FEW];
    with_size!(keys.len(), N => {
        let mut array = [K::default(); N];
        let n = keys.len().min(N);
        array[..n].copy_from_slice(&keys[..n]);
        for (out, position) in out.iter_mut().zip(&positions(&array, n)[..n]) {
            *out = *position as u8;
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<K: Key>(keys: &[K]) {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|a, b| keys[*b].cmp(&keys[*a]));
        let positions = positions_of(keys);
        for (position, at) in order.into_iter().enumerate() {
            assert_eq!(usize::from(positions[at]), position, "{keys:?}");
        }
    }

    #[test]
    fn places_are_those_of_a_stable_sort() {
        for n in 0..=FEW as u64 {
            for (factor, modulus) in [(7919, 1 << 40), (1, 3), (0, 1), (7919, 50), (u64::MAX, u64::MAX)] {
                let keys: Vec<u64> = (0..n).map(|i| i.wrapping_mul(factor) % modulus).collect();
                check(&keys);
                check(&keys.iter().map(|key| *key as u32).collect::<Vec<_>>());
                check(&keys.iter().map(|key| u128::from(*key) << 60).collect::<Vec<_>>());
            }
        }
    }
}
