//! Bit masks that say which keys of a block reach a bound, by plain loops that the compiler vectorises.
//!
//! A block of 64 keys is first tested for any key that passes, which costs about a tenth of a nanosecond a key. Only if
//! there is one, the mask is made. Loses where most blocks have a key that passes: then both steps are paid.

use super::floor::Floor;
use crate::cells::simd::{Kernel, dispatch};
use crate::key::Key;

/// Number of keys that one mask covers.
pub(crate) const BLOCK: usize = 64;
/// Number of keys that are tested between two reads of the bound.
pub(crate) const CHUNK: usize = 1024;
/// One bit for each key of a chunk of [`CHUNK`] keys.
pub(crate) type Masks = [u64; CHUNK / BLOCK];

/// Sets in `masks` the bits of the keys of a chunk that are above `floor`; with `ties`, of the keys equal to it too.
pub(crate) fn passing<K: Key>(keys: &[K], floor: K, ties: bool, masks: &mut Masks) {
    if ties {
        dispatch(Passing::<K, true> { keys, floor, masks });
    } else {
        dispatch(Passing::<K, false> { keys, floor, masks });
    }
}

struct Passing<'a, K, const TIES: bool> {
    keys: &'a [K],
    floor: K,
    masks: &'a mut Masks,
}

impl<K: Key, const TIES: bool> Kernel for Passing<'_, K, TIES> {
    #[inline(always)]
    fn run(self) {
        let (blocks, rest) = self.keys.as_chunks::<BLOCK>();
        let pass = |key: &K| {
            if TIES {
                *key >= self.floor
            } else {
                *key > self.floor
            }
        };
        let mut masks = self.masks.iter_mut();
        for (block, mask) in blocks.iter().zip(&mut masks) {
            *mask = 0;
            if block.iter().fold(false, |any, key| any | pass(key)) {
                let all = block.iter().fold(true, |all, key| all & pass(key));
                *mask = if all { u64::MAX } else { bits(block, pass) };
            }
        }
        if let Some(mask) = masks.next() {
            *mask = bits(rest, pass);
        }
    }
}

/// Number of keys that are at least `floor`.
pub(crate) fn count_from<K: Key>(keys: &[K], floor: K) -> usize {
    let mut count = 0;
    dispatch(Count {
        keys,
        floor,
        count: &mut count,
    });
    count
}

struct Count<'a, K> {
    keys: &'a [K],
    floor: K,
    count: &'a mut usize,
}

impl<K: Key> Kernel for Count<'_, K> {
    #[inline(always)]
    fn run(self) {
        for keys in self.keys.chunks(1 << 16) {
            // Counted in the width of the keys, which the result of the comparison has too.
            let one_each =
                |count: K, key: &K| count.minus(if *key >= self.floor { K::MAX } else { K::default() });
            *self.count += keys.iter().fold(K::default(), one_each).shr32(0) as usize;
        }
    }
}

#[inline(always)]
fn bits<K>(block: &[K], pass: impl Fn(&K) -> bool) -> u64 {
    let bit = |(at, key)| u64::from(pass(key)) << (at % BLOCK);
    block.iter().enumerate().map(bit).fold(0, |mask, bit| mask | bit)
}

/// Moves the rows that `floor` admits to the front, in their order. Returns their number.
pub(crate) fn retain<K: Key, R: Key>(keys: &mut [K], rows: &mut [R], floor: Floor<K, R>) -> usize {
    let mut kept = 0;
    let mut masks = [0; CHUNK / BLOCK];
    let len = keys.len().min(rows.len());
    for start in (0..len).step_by(CHUNK) {
        let end = len.min(start + CHUNK);
        passing(&keys[start..end], floor.key, true, &mut masks);
        for (from, mask) in (start..end).step_by(BLOCK).zip(masks) {
            if mask == u64::MAX && floor.row == R::MAX {
                keys.copy_within(from..from + BLOCK, kept);
                rows.copy_within(from..from + BLOCK, kept);
                kept += BLOCK;
                continue;
            }
            for_each_bit(mask, |bit| {
                let (key, row) = (keys[from + bit], rows[from + bit]);
                (keys[kept], rows[kept]) = (key, row);
                kept += usize::from(floor.admits(key, row));
            });
        }
    }
    kept
}

/// Calls `each` with the index of every set bit, ascending.
#[inline(always)]
pub(crate) fn for_each_bit(mut mask: u64, mut each: impl FnMut(usize)) {
    while mask != 0 {
        each(mask.trailing_zeros() as usize);
        mask &= mask - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_say_which_keys_pass() {
        for len in [0, 1, 63, 64, 65, 1000, 1024] {
            let keys: Vec<u64> = (0..len).map(|i: u64| i * 7919 % 613).collect();
            for (floor, ties) in [(0, true), (0, false), (300, true), (612, false), (600, true)] {
                let mut masks = [u64::MAX; CHUNK / BLOCK];
                passing(&keys, floor, ties, &mut masks);
                let from = keys.iter().filter(|key| **key >= floor).count();
                assert_eq!(count_from(&keys, floor), from);
                for (at, key) in keys.iter().enumerate() {
                    let passes = *key > floor || (ties && *key == floor);
                    assert_eq!(
                        masks[at / BLOCK] >> (at % BLOCK) & 1 == 1,
                        passes,
                        "{len} {floor} {ties} {at}"
                    );
                }
            }
        }
    }
}
