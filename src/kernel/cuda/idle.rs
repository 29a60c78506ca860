//! Device memory that was given back and may be wanted again.
//!
//! The driver unmaps what is freed when the stream is waited for the next time, and maps it anew for the next query, which can
//! take longer than to fill it. Memory waits here instead, and is given up where a limit or the card leaves no room beside it.

use cudarc::driver::CudaSlice;

/// Smaller buffers are not worth it.
const LEAST: usize = 1 << 20;
/// Most bytes that a buffer has beyond those asked for.
const WASTE: usize = 4096;

/// Freed memory, the oldest first.
#[derive(Debug, Default)]
pub(super) struct IdleMemory {
    slices: Vec<CudaSlice<u8>>,
    bytes: u64,
}

impl IdleMemory {
    /// Bytes of all.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory of at least so many bytes, and hardly more.
    pub(super) fn take(&mut self, bytes: usize) -> Option<CudaSlice<u8>> {
        let lengths = self.slices.iter().map(CudaSlice::len);
        let index = fitting(lengths, bytes)?;
        let slice = self.slices.remove(index);
        self.bytes -= slice.len() as u64;
        Some(slice)
    }

    /// Keeps what is worth it; the oldest goes, until there are at most `most` bytes.
    pub(super) fn keep(&mut self, slice: CudaSlice<u8>, most: u64) {
        if slice.len() >= LEAST {
            self.bytes += slice.len() as u64;
            self.slices.push(slice);
            self.shrink(most);
        }
    }

    /// Gives up the oldest, until there are at most `most` bytes.
    pub(super) fn shrink(&mut self, most: u64) {
        while self.bytes > most && !self.slices.is_empty() {
            self.bytes -= self.slices.remove(0).len() as u64;
        }
    }
}

/// Index of the least length that holds `bytes`, and wastes at most a page.
fn fitting(lengths: impl Iterator<Item = usize>, bytes: usize) -> Option<usize> {
    let fits = lengths
        .enumerate()
        .filter(|(_, length)| (bytes..=bytes + WASTE).contains(length));
    fits.min_by_key(|(_, length)| *length).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_that_fits_is_taken() {
        let lengths = || [100, 100_000, 103_000, 110_000, 101_000].into_iter();
        assert_eq!(fitting(lengths(), 100_001), Some(4));
        assert_eq!(fitting(lengths(), 100_000), Some(1));
        assert_eq!(fitting(lengths(), 97_000), Some(1));
        assert_eq!(fitting(lengths(), 105_000), None);
        assert_eq!(fitting(lengths(), 110_001), None);
        assert_eq!(fitting(lengths(), 5000), None);
    }
}
