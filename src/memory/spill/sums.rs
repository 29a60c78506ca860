//! Checksums of the blocks of a spill file: bytes that the disk has changed are noticed when they are read, before they
//! are taken for lengths or numbers.

use crate::cells::simd::{Kernel, dispatch};
use crate::key::finalised;

/// Bytes of a block. Each block keeps a checksum of 4 bytes in memory. Reads are of whole blocks, and groups are often
/// small.
pub(super) const BLOCK: usize = 2 << 10;

/// Checksums of the blocks of a file that grows.
#[derive(Debug, Default)]
pub(super) struct Sums {
    whole: Vec<u32>,
    /// The last block, as long as it is not full.
    last: Vec<u8>,
}

impl Sums {
    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.whole.capacity() * size_of::<u32>() + self.last.capacity()
    }

    /// Adds the bytes that were appended to the file.
    pub(super) fn append(&mut self, mut bytes: &[u8]) {
        if !self.last.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - self.last.len()));
            self.last.extend_from_slice(now);
            bytes = rest;
            if self.last.len() < BLOCK {
                return;
            }
            each_sum(&self.last, |sum| self.whole.push(sum));
            self.last.clear();
        }
        let (blocks, rest) = bytes.split_at(bytes.len() / BLOCK * BLOCK);
        each_sum(blocks, |sum| self.whole.push(sum));
        self.last.extend_from_slice(rest);
    }

    /// Whether these are the bytes of the blocks from number `first` on. All blocks must be whole, except the last one
    /// of the file.
    pub(super) fn match_blocks(&self, first: usize, bytes: &[u8]) -> bool {
        let (blocks, rest) = bytes.split_at(bytes.len() / BLOCK * BLOCK);
        let end = first + blocks.len() / BLOCK;
        let Some(written) = self.whole.get(first..end) else {
            return false;
        };
        let (mut written, mut are_same) = (written.iter(), true);
        each_sum(blocks, |sum| are_same &= written.next() == Some(&sum));
        are_same && (rest.is_empty() || (end == self.whole.len() && rest == self.last))
    }
}

/// Calls `take` with the checksums of whole blocks, in their order.
fn each_sum(blocks: &[u8], take: impl FnMut(u32)) {
    dispatch(Summing { blocks, take });
}

/// The loop of [`each_sum`].
struct Summing<'a, Take> {
    blocks: &'a [u8],
    take: Take,
}

impl<Take: FnMut(u32)> Kernel for Summing<'_, Take> {
    #[inline(always)]
    fn run(mut self) {
        for block in self.blocks.chunks_exact(BLOCK) {
            (self.take)(sum(block));
        }
    }
}

/// The checksum of a block: sixteen sums side by side. A change of any bit of its words changes one of them.
///
/// A word is mixed in by a step of a multiply-with-carry generator (Marsaglia): `low * FACTOR + high`. Two numbers have
/// the same successor only if they differ by `FACTOR * 2^32 - 1`. It takes products of 32 bits, which vector
/// instructions have.
#[inline(always)]
fn sum(block: &[u8]) -> u32 {
    const FACTOR: u64 = 0xffff_feb8;
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sums: [u64; 16] = std::array::from_fn(|lane| lane as u64 + 1);
    let (words, _) = block.as_chunks::<8>();
    let (rows, _) = words.as_chunks::<16>();
    for row in rows {
        for (sum, word) in sums.iter_mut().zip(row) {
            let mixed = *sum ^ u64::from_le_bytes(*word);
            *sum = (mixed & u64::from(u32::MAX)) * FACTOR + (mixed >> 32);
        }
    }
    // Products carry changes upwards only. The rotation lets changes of the highest bits reach all others.
    let all = sums
        .iter()
        .fold(0, |all: u64, sum| (all ^ sum).wrapping_mul(ODD).rotate_left(32));
    finalised(all) as u32
}
