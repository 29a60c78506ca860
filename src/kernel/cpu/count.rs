//! The counting pass: cells of a block first, then one increment an element, several in flight.

use super::classify::Classify;
use super::dispatch::{Kernel, dispatch};
use super::store::BLOCK;
use crate::key::Key;

/// Counters for every `u16`, in private copies: neighbours that fall into one cell would otherwise wait for each
/// other's increment to come back from the store buffer.
pub(super) struct Counters {
    copies: [Box<[u32; 1 << 16]>; COPIES],
    /// Increments since the last flush; a copy must not reach 2^32.
    pending: u64,
    totals: Vec<u64>,
}

const COPIES: usize = 4;

/// Cells of keys: apart from the increments, so that the compiler can vectorise it.
struct Number<'a, K, C> {
    keys: &'a [K],
    classify: &'a C,
    numbers: &'a mut [u16],
}

impl<K: Key, C: Classify<K>> Kernel for Number<'_, K, C> {
    #[inline(always)]
    fn run(self) {
        for (key, number) in self.keys.iter().zip(self.numbers) {
            *number = self.classify.cell(*key);
        }
    }
}

impl Counters {
    /// For cells `0..=cells` (the last for keys without a cell).
    pub(super) fn new(cells: usize) -> Self {
        let copies = std::array::from_fn(|_| {
            vec![0; 1 << 16]
                .into_boxed_slice()
                .try_into()
                .expect("the length is the array's")
        });
        Self {
            copies,
            pending: 0,
            totals: vec![0; cells + 1],
        }
    }

    /// Counts the keys and writes each one's cell to `numbers`, which is as long.
    pub(super) fn count<K: Key, C: Classify<K>>(&mut self, keys: &[K], classify: &C, numbers: &mut [u16]) {
        self.pending += keys.len() as u64;
        if self.pending > u64::from(u32::MAX) {
            self.flush();
            self.pending = keys.len() as u64;
        }
        dispatch(Number {
            keys,
            classify,
            numbers,
        });
        self.tally(numbers);
    }

    /// Counts the keys.
    pub(super) fn count_only<K: Key, C: Classify<K>>(&mut self, keys: &[K], classify: &C) {
        let mut numbers = [0; BLOCK];
        for block in keys.chunks(BLOCK) {
            self.count(block, classify, &mut numbers[..block.len()]);
        }
    }

    fn tally(&mut self, numbers: &[u16]) {
        let [a, b, c, d] = &mut self.copies;
        let mut quads = numbers.chunks_exact(COPIES);
        for quad in &mut quads {
            a[usize::from(quad[0])] += 1;
            b[usize::from(quad[1])] += 1;
            c[usize::from(quad[2])] += 1;
            d[usize::from(quad[3])] += 1;
        }
        for number in quads.remainder() {
            a[usize::from(*number)] += 1;
        }
    }

    fn flush(&mut self) {
        for copy in &mut self.copies {
            for (total, count) in self.totals.iter_mut().zip(copy.iter_mut()) {
                *total += u64::from(std::mem::take(count));
            }
        }
    }

    /// The counts, without that of keys that have no cell.
    pub(super) fn finish(mut self) -> Vec<u64> {
        self.flush();
        self.totals.pop();
        self.totals
    }
}
