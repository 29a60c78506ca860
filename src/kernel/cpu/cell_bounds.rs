//! Upper bounds of how often values occur: the number of rows of each cell, which has the values whose hashes begin alike.

use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

/// The logarithm of the number of cells whose counts fit the second-level cache.
pub(crate) const FEW_BITS: u32 = 14;

/// The largest logarithm of the number of cells.
pub(crate) const MOST_BITS: u32 = 24;

/// The rows of cells. A count that reaches the largest number of its type stays there, and bounds nothing.
#[derive(Debug)]
pub(crate) struct CellBounds {
    counts: Counts,
    bits: u32,
    /// The memory of the counts.
    _memory: MemoryReservation,
}

/// One count for each cell: wide ones of few cells, which have many rows each, or narrow ones of many.
#[derive(Debug)]
enum Counts {
    Wide(Vec<u32>),
    Narrow(Vec<u8>),
}

/// Bytes of the counts of `1 << bits` cells.
pub(crate) fn bytes_of_bounds(bits: u32) -> usize {
    let count = if bits <= FEW_BITS {
        size_of::<u32>()
    } else {
        size_of::<u8>()
    };
    count << bits
}

/// The cell, of `1 << bits`, of values with this hash.
#[inline(always)]
pub(crate) fn cell_of_hash(hash: u64, bits: u32) -> usize {
    (hash >> (u64::BITS - bits)) as usize
}

impl CellBounds {
    /// Counts of `1 << bits` cells before the first row, reserved in `memory`.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory for them.
    pub(crate) fn try_new(bits: u32, memory: MemoryReservation) -> Result<Self> {
        memory.try_grow(bytes_of_bounds(bits))?;
        let counts = if bits <= FEW_BITS {
            Counts::Wide(vec![0; 1 << bits])
        } else {
            Counts::Narrow(vec![0; 1 << bits])
        };
        Ok(Self {
            counts,
            bits,
            _memory: memory,
        })
    }

    /// Counts those of these rows, given by their hashes, that are to be counted.
    #[inline]
    pub(crate) fn count(&mut self, rows: impl Iterator<Item = (u64, bool)>) {
        let rows = rows.map(|(hash, counts)| (cell_of_hash(hash, self.bits), counts));
        match &mut self.counts {
            Counts::Wide(counts) => {
                rows.for_each(|(cell, is_one)| counts[cell] = counts[cell].saturating_add(is_one.into()));
            }
            Counts::Narrow(counts) => {
                rows.for_each(|(cell, is_one)| counts[cell] = counts[cell].saturating_add(is_one.into()));
            }
        }
    }

    /// Adds the counts of other rows in as many cells.
    pub(crate) fn merge(&mut self, other: &Self) {
        match (&mut self.counts, &other.counts) {
            (Counts::Wide(counts), Counts::Wide(others)) => {
                counts
                    .iter_mut()
                    .zip(others)
                    .for_each(|(count, more)| *count = count.saturating_add(*more));
            }
            (Counts::Narrow(counts), Counts::Narrow(others)) => {
                counts
                    .iter_mut()
                    .zip(others)
                    .for_each(|(count, more)| *count = count.saturating_add(*more));
            }
            _ => unreachable!("parts of a read have as many cells"),
        }
    }

    /// The cells, none of those in `left_out`, in which a value may have as many rows as `least`, and the sum of their counts.
    pub(crate) fn reaching(&self, least: u64, left_out: &BooleanBuffer) -> (BooleanBuffer, u64) {
        match &self.counts {
            Counts::Wide(counts) => reaching(counts, u32::MAX.into(), least, left_out),
            Counts::Narrow(counts) => reaching(counts, u8::MAX.into(), least, left_out),
        }
    }
}

/// The cells, none of those in `left_out`, whose counts are at least `least` or the largest number of their type, and the sum of these counts.
fn reaching<C: Copy + Into<u64>>(
    counts: &[C],
    largest: u64,
    least: u64,
    left_out: &BooleanBuffer,
) -> (BooleanBuffer, u64) {
    let least = least.min(largest);
    let cells = BooleanBuffer::collect_bool(counts.len(), |cell| counts[cell].into() >= least);
    let cells = &cells & &!left_out;
    let rows = cells.set_indices().map(|cell| counts[cell].into()).sum();
    (cells, rows)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;

    fn counted(bits: u32, hashes: &[u64]) -> CellBounds {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
        let memory = MemoryConsumer::new("counts").register(&pool);
        let mut bounds = CellBounds::try_new(bits, memory).unwrap();
        bounds.count(
            hashes
                .iter()
                .map(|hash| (*hash, true))
                .chain([(hashes[0], false)]),
        );
        bounds
    }

    #[test]
    fn counts_of_parts_add_up_and_those_that_are_full_bound_nothing() {
        for bits in [4, FEW_BITS, FEW_BITS + 1, 18] {
            let cell = |cell: u64| cell << (64 - bits) | 77;
            let often = vec![cell(3); 300];
            let mut all = counted(bits, &[often.as_slice(), &[cell(0), cell(0), cell(9)]].concat());
            all.merge(&counted(bits, &[cell(9), cell(9), cell(2)]));
            let reaching = |least| {
                let (cells, rows) = all.reaching(least, &BooleanBuffer::new_unset(1 << bits));
                assert_eq!(cells.len(), 1 << bits);
                (cells.set_indices().collect::<Vec<_>>(), rows)
            };
            let full = if bits > FEW_BITS { 255 } else { 300 };
            assert_eq!(reaching(1), (vec![0, 2, 3, 9], full + 6));
            assert_eq!(reaching(3), (vec![3, 9], full + 3));
            assert_eq!(reaching(299), (vec![3], full));
            let beyond = if bits > FEW_BITS {
                (vec![3], 255)
            } else {
                (vec![], 0)
            };
            assert_eq!(reaching(301), beyond);
            let left_out = BooleanBuffer::collect_bool(1 << bits, |cell| cell == 3);
            assert_eq!(all.reaching(2, &left_out).1, 5);
        }
    }
}
