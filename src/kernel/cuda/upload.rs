//! The way from host memory to a device: a shard fills page-locked memory, which is copied to pieces of device memory.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CU_MEMHOSTALLOC_WRITECOMBINED;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::buffer::DeviceBuffer;
use super::copy_buffer::CopyBuffer;
use super::device::Device;
use crate::threads::locked;

/// Bytes of a buffer, where the memory budget allows: one buffer is filled while the other is copied.
const BUFFER: usize = 2 << 20;
/// Bytes that a buffer may have, the most first: with small buffers there are more copies, and no other difference.
const SIZES: [usize; 3] = [BUFFER, BUFFER / 8, BUFFER / 64];
/// Bytes of the smallest piece of device memory. All pieces are multiples of it.
const LEAST_PIECE: usize = 64 << 10;
/// Bytes of the greatest piece of device memory.
const GREATEST_PIECE: usize = 256 << 20;

/// A buffer of an upload that has ended, or a new one of `bytes` bytes, at most [`BUFFER`].
fn buffer(device: &Arc<Device>, bytes: usize) -> Result<CopyBuffer> {
    match device.idle_copy_buffer() {
        Some(idle) => Ok(CopyBuffer::over(device, idle)),
        None => CopyBuffer::try_new(device, bytes, CU_MEMHOSTALLOC_WRITECOMBINED),
    }
}

/// Bytes of a buffer that were not sent yet, and their place on the device.
struct Unsent {
    /// Bytes of the buffer.
    range: Range<usize>,
    piece: Arc<DeviceBuffer>,
    /// Byte of the piece that the first of them goes to.
    at: usize,
}

impl Unsent {
    /// Whether bytes from `from` of the buffer on, for the byte `at` of `piece`, can join the same copy.
    fn is_continued_by(&self, from: usize, piece: &Arc<DeviceBuffer>, at: usize) -> bool {
        self.range.end == from && Arc::ptr_eq(&self.piece, piece) && self.at + self.range.len() == at
    }
}

/// Page-locked memory of one shard: two buffers, of which one is copied to the device while the other is filled.
///
/// A buffer has 2 MiB, or less where the memory pool has no room for that. All columns of the shard go through the same two buffers, so
/// that their memory does not depend on the number of columns. It is reserved in the memory pool and allocated at the first byte.
pub(crate) struct Staging {
    device: Arc<Device>,
    reservation: MemoryReservation,
    /// Two buffers; none before the first byte.
    buffers: Vec<CopyBuffer>,
    /// Bytes of a buffer that are used.
    size: usize,
    /// Index of the buffer that is filled.
    current: usize,
    /// Bytes of it that are filled.
    filled: usize,
    unsent: Option<Unsent>,
}

/// Page-locked memory that all columns of a shard use in turns.
pub(crate) type SharedStaging = Arc<Mutex<Staging>>;

impl Staging {
    /// Page-locked memory for one shard of the device, accounted to the consumer of `reservation`.
    pub(crate) fn new(device: &Arc<Device>, reservation: MemoryReservation) -> SharedStaging {
        Arc::new(Mutex::new(Self {
            device: Arc::clone(device),
            reservation,
            buffers: Vec::new(),
            size: BUFFER,
            current: 0,
            filled: 0,
            unsent: None,
        }))
    }

    /// Has `bytes`, at most [`Self::room`] of them, copied to the byte `at` of `piece`. The copy ends when [`Self::flush`] does, or
    /// before.
    fn push(&mut self, bytes: &[u8], piece: &Arc<DeviceBuffer>, at: usize) -> Result<()> {
        let range = self.filled..self.filled + bytes.len();
        let memory = self.buffers[self.current].memory.bytes_mut()?;
        memory[range.clone()].copy_from_slice(bytes);
        match &mut self.unsent {
            Some(unsent) if unsent.is_continued_by(range.start, piece, at) => unsent.range.end = range.end,
            _ => {
                self.send()?;
                let piece = Arc::clone(piece);
                let range = range.clone();
                self.unsent = Some(Unsent { range, piece, at });
            }
        }
        self.filled = range.end;
        if self.filled == self.size {
            self.turn()
        } else {
            Ok(())
        }
    }

    /// Bytes that the current buffer has room for, at least one.
    fn room(&mut self) -> Result<usize> {
        if self.buffers.is_empty() {
            self.size = self.reserve()?;
            self.buffers = vec![buffer(&self.device, self.size)?, buffer(&self.device, self.size)?];
        }
        Ok(self.size - self.filled)
    }

    /// Reserves two buffers of the greatest size that the memory pool has room for. Returns the bytes of one.
    ///
    /// # Errors
    /// The error of the pool, if it has no room for two buffers of the least size.
    fn reserve(&mut self) -> Result<usize> {
        let fits = |size: &usize| self.reservation.try_resize(2 * size).is_ok();
        match SIZES.into_iter().find(fits) {
            Some(size) => Ok(size),
            None => {
                let least = SIZES[SIZES.len() - 1];
                self.reservation.try_resize(2 * least)?;
                Ok(least)
            }
        }
    }

    /// Puts the copy of all unsent bytes on the stream.
    fn send(&mut self) -> Result<()> {
        match self.unsent.take() {
            Some(unsent) => {
                let memory = &self.buffers[self.current].memory;
                memory.send(unsent.range, &unsent.piece, unsent.at)
            }
            None => Ok(()),
        }
    }

    /// Sends the current buffer, and goes on with the other one once the device has copied it.
    fn turn(&mut self) -> Result<()> {
        self.send()?;
        self.buffers[self.current].mark(&self.device)?;
        (self.current, self.filled) = (1 - self.current, 0);
        self.buffers[self.current].wait(&self.device)
    }

    /// Sends all bytes, and waits for the device.
    fn flush(&mut self) -> Result<()> {
        self.send()?;
        self.device.synchronize("copying to the device")
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Page-locked memory must not be freed while the device reads it. A fault here is reported by another call.
        if !self.buffers.is_empty() && self.device.stream.synchronize().is_ok() && self.size == BUFFER {
            let buffers = std::mem::take(&mut self.buffers);
            self.device
                .keep_copy_buffers(buffers.into_iter().map(CopyBuffer::into_idle));
        }
    }
}

/// A piece of device memory, and how many of its bytes were filled.
pub(super) type Piece = (Arc<DeviceBuffer>, usize);

/// Bytes of one column on their way to the device; their number is not known before.
///
/// On the device they lie in pieces until they are [`joined`]. The pieces have at most a quarter, and 64 KiB, more than the bytes that
/// were sent. While they are joined, the bytes take device memory twice.
pub(super) struct Upload {
    device: Arc<Device>,
    limit: Option<u64>,
    staging: SharedStaging,
    pieces: Vec<Arc<DeviceBuffer>>,
    /// Bytes of all pieces, filled or not.
    held: usize,
    /// Bytes of the last piece that are filled.
    used: usize,
}

impl Upload {
    pub(super) fn new(device: &Arc<Device>, limit: Option<u64>, staging: &SharedStaging) -> Self {
        Self {
            device: Arc::clone(device),
            limit,
            staging: Arc::clone(staging),
            pieces: Vec::new(),
            held: 0,
            used: 0,
        }
    }

    /// Appends bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        let staging = Arc::clone(&self.staging);
        let mut staging = locked(&staging);
        while !bytes.is_empty() {
            let (piece, at) = self.room(bytes.len())?;
            let count = bytes.len().min(staging.room()?).min(piece.len() - at);
            let (now, rest) = bytes.split_at(count);
            staging.push(now, &piece, at)?;
            self.used += count;
            bytes = rest;
        }
        Ok(())
    }

    /// The last piece and its first free byte. A new piece if the last one is full; `remaining` bytes are known to come.
    fn room(&mut self, remaining: usize) -> Result<(Arc<DeviceBuffer>, usize)> {
        if self.pieces.last().is_none_or(|piece| self.used == piece.len()) {
            let bytes = next_piece(self.held, remaining);
            let piece = self.device.allocate(bytes, self.limit)?;
            self.pieces.push(Arc::new(piece));
            (self.held, self.used) = (self.held + bytes, 0);
        }
        match self.pieces.last() {
            Some(piece) => Ok((Arc::clone(piece), self.used)),
            None => internal_err!("an upload of no pieces"),
        }
    }

    /// All pieces with the bytes that were sent. Waits for the device.
    pub(super) fn finish(self) -> Result<Vec<Piece>> {
        locked(&self.staging).flush()?;
        let last = self.pieces.len().saturating_sub(1);
        let pieces = self.pieces.into_iter().enumerate().map(|(index, piece)| {
            let filled = if index == last { self.used } else { piece.len() };
            (piece, filled)
        });
        Ok(pieces.collect())
    }
}

/// Bytes of the next piece, where the pieces have `held` bytes together and `remaining` bytes are known to come: a quarter of `held`, so
/// that little of it stays empty if no more bytes come.
fn next_piece(held: usize, remaining: usize) -> usize {
    let least = remaining.min(BUFFER).next_multiple_of(LEAST_PIECE);
    (held / 4)
        .next_multiple_of(LEAST_PIECE)
        .clamp(least, GREATEST_PIECE)
}

/// The bytes of all pieces in one buffer; `None` if there are no bytes. Waits for the device.
pub(super) fn joined(
    device: &Arc<Device>,
    limit: Option<u64>,
    pieces: Vec<Piece>,
) -> Result<Option<DeviceBuffer>> {
    let total = pieces.iter().map(|(_, filled)| filled).sum();
    if total == 0 {
        return Ok(None);
    }
    let mut whole = device.allocate(total, limit)?;
    let mut at = 0;
    for (piece, filled) in &pieces {
        at += whole.copy_from(at, piece, *filled)?;
    }
    device.synchronize("copying on the device")?;
    Ok(Some(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_room_for_a_quarter_more_than_was_sent() {
        for batch in [1, 4096, 65_536, 100_000, 1 << 20, BUFFER] {
            let (mut held, mut sent, mut pieces) = (0, 0, 0);
            while sent < 1 << 30 {
                let mut left = batch;
                while left > 0 {
                    if sent == held {
                        held += next_piece(held, left);
                        pieces += 1;
                    }
                    let share = left.min(held - sent);
                    (sent, left) = (sent + share, left - share);
                    assert!(held <= sent + sent / 4 + LEAST_PIECE, "{held} for {sent}");
                }
                // Small batches fill pieces evenly: the middle of a piece shows nothing new.
                if batch < 4096 && sent < held - batch {
                    sent = held - batch;
                }
            }
            assert!(pieces < 64, "{pieces} of batches of {batch}");
        }
    }
}
