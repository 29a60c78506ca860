//! What was written to a spill file, block by block: whatever a disk gives back in its place is noticed where it is read, before
//! anybody takes it for lengths or numbers.

use crate::key::finalised;

/// Bytes of a block. Each keeps 4 bytes in memory; what is read is read by whole blocks, and groups are often small.
pub(super) const BLOCK: usize = 2 << 10;

/// Checksums of the blocks of a file that grows.
#[derive(Debug, Default)]
pub(super) struct Sums {
    whole: Vec<u32>,
    /// The last block, which is not full.
    last: Vec<u8>,
}

impl Sums {
    /// Takes what was added at the end.
    pub(super) fn append(&mut self, mut bytes: &[u8]) {
        if !self.last.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - self.last.len()));
            self.last.extend_from_slice(now);
            bytes = rest;
            if self.last.len() < BLOCK {
                return;
            }
            self.whole.push(sum(&self.last));
            self.last.clear();
        }
        let blocks = bytes.chunks_exact(BLOCK);
        let rest = blocks.remainder();
        self.whole.extend(blocks.map(sum));
        self.last.extend_from_slice(rest);
    }

    /// Whether these are all bytes of a block.
    pub(super) fn are(&self, block: usize, bytes: &[u8]) -> bool {
        match self.whole.get(block) {
            Some(whole) => *whole == sum(bytes),
            None => block == self.whole.len() && bytes == self.last,
        }
    }
}

/// Of a whole block: four sums side by side, each of which any change of a word changes.
fn sum(block: &[u8]) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sums = [1_u64, 2, 3, 4];
    let (words, _) = block.as_chunks::<8>();
    for words in words.chunks_exact(sums.len()) {
        for (sum, word) in sums.iter_mut().zip(words) {
            // Products carry changes up only: turned, what came of the last bits meets all others.
            let product = (*sum ^ u64::from_le_bytes(*word)).wrapping_mul(ODD);
            *sum = product.rotate_left(32);
        }
    }
    sums.iter().fold(0, |all, sum| finalised(all ^ sum)) as u32
}
