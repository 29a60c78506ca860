//! Counters of cells: one increment for each key, several of them in flight.

use crate::cells::classify::boxed_array;

/// Counters for every `u16`, in several copies: otherwise neighbouring keys of one cell would wait for each other's
/// increment to come back from the store buffer.
pub(super) struct Counters {
    copies: [Box<[u32; 1 << 16]>; COPIES],
    /// Increments since the last flush. A counter of a copy must not reach 2^32.
    pending: u64,
    totals: Vec<u64>,
}

const COPIES: usize = 2;

impl Counters {
    /// Counters for cells `0..=cells`. The last one is for keys without a cell.
    pub(super) fn new(cells: usize) -> Self {
        Self {
            copies: std::array::from_fn(|_| boxed_array(0)),
            pending: 0,
            totals: vec![0; cells + 1],
        }
    }

    /// Counts the cells of some keys.
    pub(super) fn add(&mut self, numbers: &[u16]) {
        self.pending += numbers.len() as u64;
        if self.pending > u64::from(u32::MAX) {
            self.flush();
            self.pending = numbers.len() as u64;
        }
        let [a, b] = &mut self.copies;
        let (quads, rest) = numbers.as_chunks::<COPIES>();
        for quad in quads {
            a[usize::from(quad[0])] += 1;
            b[usize::from(quad[1])] += 1;
        }
        for number in rest {
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

    /// The number of keys in each cell, without the keys that have no cell.
    pub(super) fn finish(mut self) -> Vec<u64> {
        self.flush();
        self.totals.pop();
        self.totals
    }
}
