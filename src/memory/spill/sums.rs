//! Checksums of the blocks of a spill file: bytes that the disk has changed are noticed when they are read, before they
//! are taken for lengths or numbers.
//!
//! ```text
//! pieces as written   | 1000 |  900  |9|9|9| .. |    10 000       |
//! blocks              |  0   |   1   |  2 ..  3 |  4  |  5  |  6  |
//! ```
//! Blocks begin where pieces begin, so that whoever reads a piece reads and checks nothing else. Small pieces share a block, long ones have
//! several.

use crate::cells::simd::{Kernel, dispatch};
use crate::key::finalised;

/// Fewest bytes of a block, but for the last one of a piece, and one that a longer piece follows. A block takes 6 bytes of memory, and each
/// [`STRETCH`] of the file 16 more.
pub(super) const LEAST: usize = 768;

/// Most bytes of a block.
pub(super) const MOST: usize = 4 << 10;

/// Bytes from one place of the file whose block is known to the next. The block of another place is found from there, without a search
/// through memory that no cache holds.
const STRETCH: u64 = 16 << 10;

/// Bytes that are mixed into the sums of a block at a time.
const ROW: usize = 128;

/// Checksums of the blocks of a file that grows.
#[derive(Debug, Default)]
pub(super) struct Sums {
    sums: Vec<u32>,
    lengths: Vec<u16>,
    /// The index and the offset of the block in which each [`STRETCH`] begins.
    marks: Vec<(usize, u64)>,
    /// The offset behind all of these blocks.
    end: u64,
    /// The bytes behind them: small pieces, whose block is not full.
    last: Vec<u8>,
}

/// One block of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    index: usize,
    /// Offset of the first byte.
    pub(super) start: u64,
    /// Offset behind the last byte.
    pub(super) end: u64,
}

impl Sums {
    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        size_of::<(usize, u64)>() * self.marks.capacity()
            + size_of::<u32>() * self.sums.capacity()
            + size_of::<u16>() * self.lengths.capacity()
            + self.last.capacity()
    }

    /// Adds a piece that was appended to the file.
    pub(super) fn append(&mut self, piece: &[u8]) {
        if piece.len() < LEAST {
            self.last.extend_from_slice(piece);
            if self.last.len() >= LEAST {
                self.close();
            }
            return;
        }
        self.close();
        let each = piece.len().div_ceil(piece.len().div_ceil(MOST));
        self.add(piece, each.next_multiple_of(ROW));
    }

    /// Makes a block of the bytes behind all blocks, if there are any.
    fn close(&mut self) {
        let mut last = std::mem::take(&mut self.last);
        self.add(&last, MOST);
        last.clear();
        self.last = last;
    }

    /// Adds blocks of `each` bytes.
    fn add(&mut self, bytes: &[u8], each: usize) {
        each_sum(bytes, std::iter::repeat(each), |length, sum| {
            let (index, start) = (self.sums.len(), self.end);
            self.sums.push(sum);
            self.lengths.push(length as u16);
            self.end += length as u64;
            while self.marks.len() as u64 * STRETCH < self.end {
                self.marks.push((index, start));
            }
        });
    }

    /// The block of the byte at `offset`, which must be one of the file.
    pub(super) fn block(&self, offset: u64) -> Block {
        let (index, start) = (self.sums.len(), self.end);
        if offset >= start {
            let end = start + self.last.len() as u64;
            return Block { index, start, end };
        }
        let (mut index, mut start) = self.marks[(offset / STRETCH) as usize];
        loop {
            let end = start + u64::from(self.lengths[index]);
            if offset < end {
                return Block { index, start, end };
            }
            (index, start) = (index + 1, end);
        }
    }

    /// Whether these are the bytes of whole blocks from `first` on.
    pub(super) fn match_blocks(&self, first: Block, bytes: &[u8]) -> bool {
        let closed = self.end.saturating_sub(first.start).min(bytes.len() as u64);
        let (closed, rest) = bytes.split_at(closed as usize);
        let (lengths, sums) = (&self.lengths[first.index..], &self.sums[first.index..]);
        let (mut written, mut are_same) = (sums.iter(), true);
        each_sum(
            closed,
            lengths.iter().map(|length| usize::from(*length)),
            |_, sum| {
                are_same &= written.next() == Some(&sum);
            },
        );
        are_same && (rest.is_empty() || rest == self.last)
    }
}

/// Calls `take` with the lengths and checksums of the blocks of these lengths, the last of which may be shorter.
fn each_sum(bytes: &[u8], lengths: impl Iterator<Item = usize>, take: impl FnMut(usize, u32)) {
    dispatch(Summing { bytes, lengths, take });
}

/// The loop of [`each_sum`].
struct Summing<'a, Lengths, Take> {
    bytes: &'a [u8],
    lengths: Lengths,
    take: Take,
}

impl<Lengths: Iterator<Item = usize>, Take: FnMut(usize, u32)> Kernel for Summing<'_, Lengths, Take> {
    #[inline(always)]
    fn run(mut self) {
        while !self.bytes.is_empty() {
            let Some(length) = self.lengths.next() else {
                return;
            };
            let (block, rest) = self.bytes.split_at(length.min(self.bytes.len()));
            (self.take)(block.len(), sum(block));
            self.bytes = rest;
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
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sums: [u64; ROW / 8] = std::array::from_fn(|lane| lane as u64 + 1);
    let (rows, rest) = block.as_chunks::<ROW>();
    for row in rows {
        mix(&mut sums, row);
    }
    if !rest.is_empty() {
        let mut row = [0; ROW];
        row[..rest.len()].copy_from_slice(rest);
        mix(&mut sums, &row);
    }
    // Products of different sums with odd factors are different.
    let products = sums
        .iter()
        .zip(0..)
        .map(|(sum, lane)| sum.wrapping_mul(ODD.wrapping_mul(2 * lane + 1)));
    finalised(products.fold(0, u64::wrapping_add)) as u32
}

/// Mixes a row of words into the sums.
#[inline(always)]
fn mix(sums: &mut [u64; ROW / 8], row: &[u8; ROW]) {
    const FACTOR: u64 = 0xffff_feb8;
    let (words, _) = row.as_chunks::<8>();
    for (sum, word) in sums.iter_mut().zip(words) {
        let mixed = *sum ^ u64::from_le_bytes(*word);
        *sum = (mixed & u64::from(u32::MAX)) * FACTOR + (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks are found at every byte, lie one behind the other, and begin where pieces begin that are long enough.
    #[test]
    fn blocks_begin_with_pieces() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let lengths = [
            LEAST,
            3,
            3,
            0,
            MOST,
            MOST + 1,
            10,
            LEAST - 1,
            LEAST - 1,
            1,
            100_000,
            5,
            900,
            2,
        ];
        let (mut sums, mut starts) = (Sums::default(), vec![0]);
        for length in lengths {
            let start = starts[starts.len() - 1];
            sums.append(&bytes[start..start + length]);
            starts.push(start + length);
        }
        let all = starts[lengths.len()];
        let mut next = 0;
        for offset in 0..all as u64 {
            let block = sums.block(offset);
            assert!(block.start <= offset && offset < block.end && block.end - block.start <= MOST as u64);
            if offset == next {
                assert_eq!(block.start, next);
                next = block.end;
                let of = block.start as usize..block.end as usize;
                assert!(sums.match_blocks(block, &bytes[of.clone()]));
                assert!(sums.match_blocks(block, &bytes[of.start..all]));
                let mut other = bytes[of].to_vec();
                *other.last_mut().unwrap() ^= 0x80;
                assert!(!sums.match_blocks(block, &other));
            }
        }
        for (start, length) in starts.iter().zip(lengths) {
            if length >= LEAST {
                assert_eq!(sums.block(*start as u64).start, *start as u64);
            }
        }
        let each = 2 * 6 * all / LEAST + 2 * 16 * all / STRETCH as usize;
        assert!(sums.bytes() < each + MOST, "{}", sums.bytes());
    }

    /// Every bit counts, in blocks of all lengths.
    #[test]
    fn every_bit_changes_the_sum() {
        for length in [1, 7, 8, 127, 128, 129, 1000] {
            let mut block: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let before = sum(&block);
            for bit in 0..8 * length {
                block[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(sum(&block), before, "bit {bit} of {length} bytes");
                block[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
