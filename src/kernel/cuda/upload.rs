//! The way from host memory to a device: page-locked memory that a shard fills, and the pieces of device memory it is copied to.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CU_MEMHOSTALLOC_WRITECOMBINED;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::buffer::{DeviceBuffer, PageLocked};
use super::device::{Device, locked};

/// Bytes of page-locked memory that are filled while others are on their way, where the memory budget allows.
const STAGE: usize = 2 << 20;
/// Bytes of it that a shard makes do with, from the most to the least: small ones only make more copies.
const STAGES: [usize; 3] = [STAGE, STAGE / 8, STAGE / 64];
/// Device memory is taken by multiples of this.
const LEAST_PIECE: usize = 64 << 10;
const GREATEST_PIECE: usize = 256 << 20;

/// Page-locked memory, and when the device is done with it.
#[derive(Debug)]
pub(super) struct Stage {
    memory: PageLocked,
    sent: CudaEvent,
}

impl Stage {
    /// One that another shard is done with, or a new one of `bytes` bytes, at most [`STAGE`].
    fn take(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        if let Some(stage) = device.idle_stage() {
            return Ok(stage);
        }
        let sent = device.context.new_event(None);
        Ok(Self {
            memory: PageLocked::with_flags(device, bytes, CU_MEMHOSTALLOC_WRITECOMBINED)?,
            sent: sent.map_err(|error| device.failed("making an event", error))?,
        })
    }
}

/// Bytes of a stage that were not sent yet, and where they belong.
struct Unsent {
    range: Range<usize>,
    piece: Arc<DeviceBuffer>,
    /// Byte of the piece.
    at: usize,
}

impl Unsent {
    /// Whether bytes of the stage from `from` on, for byte `at` of `piece`, follow these.
    fn goes_on(&self, from: usize, piece: &Arc<DeviceBuffer>, at: usize) -> bool {
        self.range.end == from && Arc::ptr_eq(&self.piece, piece) && self.at + self.range.len() == at
    }
}

/// Page-locked memory of one shard: two stages of 2 MiB, of which one is copied to the device while the other is filled; smaller
/// ones where the memory budget has no room for these. All columns of the shard go through it, so that it takes the same
/// whatever their number.
///
/// It is reserved in the memory pool from the first byte on, and taken from the system then.
pub(crate) struct Staging {
    device: Arc<Device>,
    reservation: MemoryReservation,
    /// Two, or none yet.
    stages: Vec<Stage>,
    /// Bytes of a stage that are used.
    size: usize,
    current: usize,
    filled: usize,
    unsent: Option<Unsent>,
}

/// Several columns of a shard use it in turns.
pub(crate) type SharedStaging = Arc<Mutex<Staging>>;

impl Staging {
    /// For one shard of the device. The page-locked memory is accounted to the consumer of `reservation`.
    pub(crate) fn new(device: &Arc<Device>, reservation: MemoryReservation) -> SharedStaging {
        Arc::new(Mutex::new(Self {
            device: Arc::clone(device),
            reservation,
            stages: Vec::new(),
            size: STAGE,
            current: 0,
            filled: 0,
            unsent: None,
        }))
    }

    /// Has `bytes`, no more than [`Self::room`], copied to `piece`, from its byte `at` on, some time before [`Self::flush`] ends.
    fn push(&mut self, bytes: &[u8], piece: &Arc<DeviceBuffer>, at: usize) -> Result<()> {
        let range = self.filled..self.filled + bytes.len();
        let memory = self.stages[self.current].memory.bytes_mut()?;
        memory[range.clone()].copy_from_slice(bytes);
        match &mut self.unsent {
            Some(unsent) if unsent.goes_on(range.start, piece, at) => unsent.range.end = range.end,
            _ => {
                self.send()?;
                let piece = Arc::clone(piece);
                let range = range.clone();
                self.unsent = Some(Unsent { range, piece, at });
            }
        }
        self.filled = range.end;
        match self.filled == self.size {
            true => self.turn(),
            false => Ok(()),
        }
    }

    /// Bytes that can be filled in now, at least one.
    fn room(&mut self) -> Result<usize> {
        if self.stages.is_empty() {
            self.size = self.reserve()?;
            self.stages = vec![
                Stage::take(&self.device, self.size)?,
                Stage::take(&self.device, self.size)?,
            ];
        }
        Ok(self.size - self.filled)
    }

    /// Reserves two stages of the greatest size that the memory pool has room for, and says which.
    ///
    /// # Errors
    /// The pool's, where it has no room for two of the least.
    fn reserve(&mut self) -> Result<usize> {
        let fits = |size: &usize| self.reservation.try_resize(2 * size).is_ok();
        match STAGES.into_iter().find(fits) {
            Some(size) => Ok(size),
            None => {
                let least = STAGES[STAGES.len() - 1];
                self.reservation.try_resize(2 * least)?;
                Ok(least)
            }
        }
    }

    /// Sends what was not sent yet.
    fn send(&mut self) -> Result<()> {
        match self.unsent.take() {
            Some(unsent) => {
                let memory = &self.stages[self.current].memory;
                memory.send(unsent.range, &unsent.piece, unsent.at)
            }
            None => Ok(()),
        }
    }

    /// Goes on with the other stage, once the device is done with it.
    fn turn(&mut self) -> Result<()> {
        self.send()?;
        let failed = |error| self.device.failed("copying to the device", error);
        let stage = &self.stages[self.current];
        stage.sent.record(&self.device.stream).map_err(failed)?;
        (self.current, self.filled) = (1 - self.current, 0);
        self.stages[self.current].sent.synchronize().map_err(failed)
    }

    /// Sends everything, and waits for the device.
    fn flush(&mut self) -> Result<()> {
        self.send()?;
        self.device.synchronize("copying to the device")
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Page-locked memory must not go while the device reads it. A fault here was, or will be, somebody's error.
        if !self.stages.is_empty() && self.device.stream.synchronize().is_ok() && self.size == STAGE {
            self.device.keep_stages(std::mem::take(&mut self.stages));
        }
    }
}

/// Device memory, and how many bytes of it were filled.
pub(super) type Piece = (Arc<DeviceBuffer>, usize);

/// Bytes on their way to the device, as many as come.
///
/// On the device they lie in pieces until [`joined`], which have room for a quarter more than was sent, at most, and 64 KiB; to
/// join them needs the bytes once more for that moment.
pub(super) struct Upload {
    device: Arc<Device>,
    limit: Option<u64>,
    staging: SharedStaging,
    pieces: Vec<Arc<DeviceBuffer>>,
    /// Bytes of all pieces.
    held: usize,
    /// Bytes in the last piece.
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

    /// Adds bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        let staging = Arc::clone(&self.staging);
        let mut staging = locked(&staging);
        while !bytes.is_empty() {
            let (piece, at) = self.room(bytes.len())?;
            let share = bytes.len().min(staging.room()?).min(piece.len() - at);
            let (now, rest) = bytes.split_at(share);
            staging.push(now, &piece, at)?;
            self.used += share;
            bytes = rest;
        }
        Ok(())
    }

    /// A piece that is not full, and its first free byte; a new one where `wanted` bytes are still to come.
    fn room(&mut self, wanted: usize) -> Result<(Arc<DeviceBuffer>, usize)> {
        if self.pieces.last().is_none_or(|piece| self.used == piece.len()) {
            let bytes = next_piece(self.held, wanted);
            let piece = self.device.allocate(bytes, self.limit)?;
            self.pieces.push(Arc::new(piece));
            (self.held, self.used) = (self.held + bytes, 0);
        }
        match self.pieces.last() {
            Some(piece) => Ok((Arc::clone(piece), self.used)),
            None => internal_err!("an upload of no pieces"),
        }
    }

    /// All bytes, in pieces. Waits for the device.
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

/// Bytes of the piece after such of `held` bytes in all, where `wanted` more are there: a quarter of what there is, so that not
/// much is left empty, whatever comes.
fn next_piece(held: usize, wanted: usize) -> usize {
    let least = wanted.min(STAGE).next_multiple_of(LEAST_PIECE);
    (held / 4)
        .next_multiple_of(LEAST_PIECE)
        .clamp(least, GREATEST_PIECE)
}

/// The bytes of all pieces in one buffer; `None` where there are none. Waits for the device.
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
        for batch in [1, 4096, 65_536, 100_000, 1 << 20, STAGE] {
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
                // Small batches fill pieces evenly: nothing is learnt between two of them.
                if batch < 4096 && sent < held - batch {
                    sent = held - batch;
                }
            }
            assert!(pieces < 64, "{pieces} of batches of {batch}");
        }
    }
}
