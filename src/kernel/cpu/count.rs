//! The counting pass: one increment an element, several elements in flight.

use super::classify::Classify;
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

    /// Counts the keys; writes each one's cell where `oracle` (as long as `keys`) is given.
    #[inline]
    pub(super) fn count<K: Key, C: Classify<K>>(
        &mut self,
        keys: &[K],
        classify: &C,
        oracle: Option<&mut [u16]>,
    ) {
        self.pending += keys.len() as u64;
        if self.pending > u64::from(u32::MAX) {
            self.flush();
            self.pending = keys.len() as u64;
        }
        match oracle {
            Some(oracle) => self.pass(keys, oracle, |key, slot| {
                *slot = classify.cell(key);
                *slot
            }),
            None => {
                let [a, b, c, d] = &mut self.copies;
                let mut quads = keys.chunks_exact(COPIES);
                for quad in &mut quads {
                    a[usize::from(classify.cell(quad[0]))] += 1;
                    b[usize::from(classify.cell(quad[1]))] += 1;
                    c[usize::from(classify.cell(quad[2]))] += 1;
                    d[usize::from(classify.cell(quad[3]))] += 1;
                }
                for key in quads.remainder() {
                    a[usize::from(classify.cell(*key))] += 1;
                }
            }
        }
    }

    #[inline(always)]
    fn pass<K: Key>(&mut self, keys: &[K], oracle: &mut [u16], cell: impl Fn(K, &mut u16) -> u16) {
        let [a, b, c, d] = &mut self.copies;
        let mut quads = keys.chunks_exact(COPIES);
        let mut slots = oracle.chunks_exact_mut(COPIES);
        for (quad, slot) in (&mut quads).zip(&mut slots) {
            a[usize::from(cell(quad[0], &mut slot[0]))] += 1;
            b[usize::from(cell(quad[1], &mut slot[1]))] += 1;
            c[usize::from(cell(quad[2], &mut slot[2]))] += 1;
            d[usize::from(cell(quad[3], &mut slot[3]))] += 1;
        }
        for (key, slot) in quads.remainder().iter().zip(slots.into_remainder()) {
            a[usize::from(cell(*key, slot))] += 1;
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
