//! Byte strings of one column, in chunks of flat memory, in memory or on disk.
//!
//! A value costs its bytes and four more. Copying values out of Arrow's buffers costs less than keeping those buffers:
//! a string view takes 16 bytes a value besides the text, and a page of text stays alive for its last view.
//!
//! Where memory is refused, the last chunk is written to a file and used again, over and over, as a shard does with
//! keys. Values that fitted before stay in memory. Written values cannot be found by their location; they are read
//! block by block.

mod bounds;
mod chunk;
mod distinct;
mod select;

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, BooleanArray};
use datafusion::common::{Result, internal_datafusion_err, resources_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

pub(crate) use self::bounds::{Bounds, Totals, common_prefix};
pub(crate) use self::chunk::{BLOCK_BYTES, Blocks, Chunk};
pub(crate) use self::distinct::{DistinctByteStrings, hash};
use crate::key::{ByteSpec, kept};
use crate::memory::{SpillFile, Spilling, reserve_or_spill, reserve_to_begin};
use crate::threads::Stop;

/// Bytes of a full-grown chunk, unless one value is larger.
const CHUNK_BYTES: usize = 4 << 20;

/// Most values of a chunk.
const CHUNK_VALUES: usize = 1 << 18;

/// Bytes of the smaller chunk that is requested, as a write buffer, when a full-grown one was refused.
const STAGING_BYTES: usize = 256 << 10;

/// Bytes and values of the first chunk of values that can be spilled.
const SPARE: (usize, usize) = (64 << 10, 4 << 10);

/// The location of a value in memory: its chunk, and its index there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct At {
    chunk: u32,
    row: u32,
}

/// Values in a file.
#[derive(Debug)]
struct Spilled {
    /// The spill file, shared once no more values are added.
    file: Arc<SpillFile>,
    blocks: Blocks,
}

/// The values of a column that are not NULL, as byte strings.
#[derive(Debug, Default)]
pub(crate) struct ByteStrings {
    chunks: Vec<Chunk>,
    spilled: Vec<Spilled>,
    totals: Totals,
    /// The reservation of the memory held; `None` if it is not reserved here.
    reservation: Option<MemoryReservation>,
    /// The means to spill values that there is no memory for.
    spilling: Option<Spilling>,
    /// The write buffer for when no other chunk was granted, reserved from the start.
    spare: Option<Chunk>,
    /// Reservations of the values that were merged into these.
    merged_reservations: Vec<MemoryReservation>,
}

impl ByteStrings {
    /// Bytes that a list which can spill begins with.
    pub(crate) const BEGINNING_BYTES: usize = Chunk::memory(SPARE.0, SPARE.1);

    /// An empty list, which reserves the memory of its values.
    pub(crate) fn reserving(reservation: MemoryReservation) -> Self {
        Self {
            reservation: Some(reservation),
            ..Self::default()
        }
    }

    /// An empty list, which reserves the memory of its values, and spills those that the pool refuses if there is a
    /// disk.
    ///
    /// # Errors
    /// `ResourcesExhausted` if the pool has not even memory for a write buffer.
    pub(crate) fn spilling(reservation: MemoryReservation, spilling: Option<Spilling>) -> Result<Self> {
        let mut spare = None;
        if spilling.is_some() {
            reserve_to_begin(&reservation, Self::BEGINNING_BYTES)?;
            spare = Some(Chunk::with_capacity(SPARE.0, SPARE.1)?);
        }
        Ok(Self {
            spilling,
            spare,
            ..Self::reserving(reservation)
        })
    }

    /// Values that were written to a file already.
    pub(crate) fn written(
        file: Arc<SpillFile>,
        blocks: Blocks,
        totals: Totals,
        reservation: MemoryReservation,
    ) -> Self {
        reservation.grow(blocks.held_bytes() + totals.held_bytes());
        Self {
            spilled: vec![Spilled { file, blocks }],
            totals,
            reservation: Some(reservation),
            ..Self::default()
        }
    }

    /// An empty list with room for `values` values of `bytes` bytes together. The caller accounts for the memory.
    ///
    /// # Errors
    /// `ResourcesExhausted` if the system gives no memory.
    pub(crate) fn with_capacity(bytes: usize, values: usize) -> Result<Self> {
        Ok(Self {
            chunks: vec![Chunk::with_capacity(bytes, values)?],
            ..Self::default()
        })
    }

    /// Number of values, in memory or on disk.
    pub(crate) fn len(&self) -> u64 {
        self.totals.len
    }

    /// Bytes of all values, in memory or on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.totals.bytes
    }

    /// Whether some values are in a file.
    pub(crate) fn is_spilled(&self) -> bool {
        !self.spilled.is_empty()
    }

    /// Bytes of memory that the largest block needs to be read; 0 if no value is in a file.
    pub(crate) fn largest_block(&self) -> usize {
        let largest = self.spilled.iter().map(|spilled| spilled.blocks.largest());
        largest.max().unwrap_or(0)
    }

    /// Bytes of memory that a thread needs to read these values, were they all in a file, with one value besides.
    pub(crate) fn reading_bytes(&self) -> usize {
        let longest = self.totals.bounds.as_ref().map_or(0, |bounds| bounds.longest);
        BLOCK_BYTES.max(Chunk::memory(2 * longest, 1))
    }

    /// Bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        let chunks = self.chunks.iter().chain(&self.spare).map(Chunk::held_bytes);
        let blocks = self.spilled.iter().map(|spilled| spilled.blocks.held_bytes());
        chunks.sum::<usize>() + blocks.sum::<usize>() + self.totals.held_bytes()
    }

    /// Copies the values of `values` that are not NULL. If there is a `mask`, only values in whose row it is true.
    /// Returns the number of values copied.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the missing bytes; an internal error if `values` does not have the type of
    /// `spec`.
    pub(crate) fn append(
        &mut self,
        spec: &ByteSpec,
        values: &dyn Array,
        mask: Option<&BooleanArray>,
    ) -> Result<usize> {
        let before = self.len();
        let kept = kept(values, mask)?;
        let kept = kept.as_ref().map(BooleanArray::values);
        spec.each(values, kept, |value| self.push(value).map(drop))?;
        Ok((self.len() - before) as usize)
    }

    /// Whether a value of `bytes` bytes fits without more memory.
    fn has_room(&self, bytes: usize) -> bool {
        self.chunks.last().is_some_and(|chunk| chunk.has_room(bytes))
    }

    /// Copies one value. Returns its location, which holds until the next value comes, or for good where nothing is
    /// spilled.
    ///
    /// # Errors
    /// Errors of [`Self::append`].
    pub(crate) fn push(&mut self, value: &[u8]) -> Result<At> {
        if !self.has_room(value.len()) {
            self.make_room(value.len())?;
        }
        let number = self.chunks.len() as u32;
        let chunk = self.chunks.last_mut();
        let chunk = chunk.ok_or_else(|| internal_datafusion_err!("a value has no chunk"))?;
        chunk.push(value);
        let row = chunk.len() as u32 - 1;
        self.totals.add(value);
        if let (1, Some(reservation)) = (self.totals.len, &self.reservation) {
            reservation.grow(self.totals.held_bytes());
        }
        Ok(At {
            chunk: number - 1,
            row,
        })
    }

    /// Makes room for a value of `wanted` bytes behind the last one: in the last chunk, in a new one, or in the last
    /// one after it was written out.
    fn make_room(&mut self, wanted: usize) -> Result<()> {
        let unused = |spare: &mut Chunk| self.chunks.is_empty() && spare.has_room(wanted);
        if let Some(spare) = self.spare.take_if(unused) {
            self.chunks.push(spare);
            return Ok(());
        }
        if self.more_values(wanted)? {
            return Ok(());
        }
        let largest = self.next_chunk(wanted)?;
        let held = self.chunks.last().map_or(0, Chunk::held_bytes);
        let smaller = STAGING_BYTES.max(wanted).min(largest);
        for bytes in [largest, smaller] {
            let values = self.likely_values(bytes);
            let memory = Chunk::memory(bytes, values);
            // A chunk that is as large already can be written out and used again.
            let is_tried = bytes > smaller || self.spilling.is_none() || memory > held;
            if is_tried && self.granted(memory)? {
                self.chunks.push(Chunk::with_capacity(bytes, values)?);
                return Ok(());
            }
        }
        self.write_last(wanted)
    }

    /// Makes room for more values in the last chunk, if it has unused bytes for them.
    fn more_values(&mut self, wanted: usize) -> Result<bool> {
        let (number, room) = match self.chunks.last() {
            Some(chunk) => (chunk.len(), chunk.has_room_for_bytes(wanted)),
            None => return Ok(false),
        };
        let more = number.max(16).min(CHUNK_VALUES.saturating_sub(number));
        if !room || more == 0 || !self.granted(Chunk::memory(0, more))? {
            return Ok(false);
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.more_values(more);
        }
        Ok(true)
    }

    /// Mean length of a value, in bytes.
    fn mean(&self) -> usize {
        self.totals.bytes as usize / (self.totals.len as usize).max(1)
    }

    /// Bytes of the next chunk: as many as all values so far, within bounds, so that small inputs stay small.
    fn next_chunk(&self, wanted: usize) -> Result<usize> {
        let all = self.totals.bytes as usize;
        let likely = self.mean() * CHUNK_VALUES * 5 / 4;
        let least = self.spilling.as_ref().map_or(64, |_| STAGING_BYTES);
        let bytes = all.min(likely).clamp(least, CHUNK_BYTES).max(wanted);
        if u32::try_from(bytes).is_err() {
            return Err(resources_datafusion_err!(
                "a quantile argument has a value of {wanted} bytes: at most {} are handled",
                u32::MAX
            ));
        }
        Ok(bytes)
    }

    /// Number of values that `bytes` bytes are likely to hold, but not more than there are so far.
    fn likely_values(&self, bytes: usize) -> usize {
        let values = bytes / self.mean().max(1);
        let values = (values + values / 8).min(self.totals.len as usize);
        values.clamp(16, CHUNK_VALUES)
    }

    /// Reserves `bytes` for values. `false` if the pool refuses, but the values can be spilled.
    fn granted(&self, bytes: usize) -> Result<bool> {
        match &self.reservation {
            Some(reservation) => reserve_or_spill(reservation, self.spilling.as_ref(), bytes),
            None => Ok(true),
        }
    }

    fn reserve(&self, bytes: usize) -> Result<()> {
        let reservation = self.reservation.as_ref();
        reservation.map_or(Ok(()), |reservation| reservation.try_grow(bytes))
    }

    fn release(&self, bytes: usize) {
        if let Some(reservation) = &self.reservation {
            reservation.shrink(bytes);
        }
    }

    /// Writes the last chunk out and empties it for a value of `wanted` bytes.
    fn write_last(&mut self, wanted: usize) -> Result<()> {
        if let Some(mut chunk) = self.chunks.pop() {
            self.write(&chunk)?;
            chunk.clear();
            if chunk.has_room(wanted) {
                self.chunks.push(chunk);
                return Ok(());
            }
            self.keep_or_release(chunk);
        }
        if let Some(spare) = self.spare.take_if(|spare| spare.has_room(wanted)) {
            self.chunks.push(spare);
            return Ok(());
        }
        // For one value that is larger, all others are spilled.
        let memory = Chunk::memory(wanted, 16);
        if self.reserve(memory).is_err() {
            self.spill(usize::MAX, &Stop::default())?;
            self.reserve(memory).map_err(|error| {
                error.context(format!(
                    "the memory limit is too small for exact quantiles: {memory} bytes wanted for one value"
                ))
            })?;
        }
        self.chunks.push(Chunk::with_capacity(wanted, 16)?);
        Ok(())
    }

    /// Keeps an empty chunk as the spare one, or gives its memory back.
    fn keep_or_release(&mut self, mut chunk: Chunk) {
        let mut given = chunk.held_bytes();
        if self.spare.is_none() && chunk.capacity() == SPARE.0 {
            chunk.fewer_values(SPARE.1);
            given -= chunk.held_bytes();
            self.spare = Some(chunk);
        }
        self.release(given);
    }

    /// Appends the values of a chunk to the file.
    fn write(&mut self, chunk: &Chunk) -> Result<()> {
        if self.spilled.is_empty() {
            let spilling = self.spilling.as_ref();
            let spilling = spilling.ok_or_else(|| internal_datafusion_err!("values cannot spill"))?;
            self.spilled.push(Spilled {
                file: Arc::new(spilling.spiller.create("values of exact quantiles")?),
                blocks: Blocks::default(),
            });
        }
        let own = self.spilled.last_mut();
        let own = own.and_then(|own| Some((Arc::get_mut(&mut own.file)?, &mut own.blocks)));
        let (file, blocks) =
            own.ok_or_else(|| internal_datafusion_err!("values are added to others that are read"))?;
        let before = blocks.held_bytes();
        blocks.write(file, chunk)?;
        if let Some(reservation) = &self.reservation {
            reservation.grow(blocks.held_bytes() - before);
        }
        Ok(())
    }

    /// Writes values in memory to the file until `wanted` bytes are given back, or all of them. Returns the bytes given
    /// back. More values can follow.
    ///
    /// # Errors
    /// Errors of writing; when `stop` is set.
    pub(crate) fn spill(&mut self, wanted: usize, stop: &Stop) -> Result<usize> {
        if self.spilling.is_none() {
            return Ok(0);
        }
        let before = self.held_bytes();
        let mut given = 0;
        while given < wanted
            && let Some(mut chunk) = self.chunks.pop()
        {
            stop.check()?;
            self.write(&chunk)?;
            chunk.clear();
            self.keep_or_release(chunk);
            given = before.saturating_sub(self.held_bytes());
        }
        Ok(given)
    }

    /// Gives back the memory that only further values would need. Returns its bytes.
    pub(crate) fn seal(&mut self) -> usize {
        let bytes = self.spare.take().map_or(0, |spare| spare.held_bytes());
        self.release(bytes);
        bytes
    }

    /// The values of all `parts`, one behind the other. Their memory stays reserved.
    pub(crate) fn merged(parts: Vec<ByteStrings>) -> Self {
        let mut merged = Self::default();
        for mut part in parts {
            part.seal();
            merged.totals.join(part.totals);
            merged.chunks.extend(part.chunks);
            merged.spilled.extend(part.spilled);
            merged.merged_reservations.extend(part.reservation);
            merged.merged_reservations.extend(part.merged_reservations);
        }
        merged
    }

    /// The value at a location.
    pub(crate) fn value(&self, at: At) -> &[u8] {
        self.chunks[at.chunk as usize].value(at.row as usize)
    }

    /// The indices of the pieces, each of which can be read at a time: chunks, then blocks.
    pub(crate) fn pieces(&self) -> Range<usize> {
        let blocks = self.spilled.iter().map(|spilled| spilled.blocks.len());
        0..self.chunks.len() + blocks.sum::<usize>()
    }

    /// The file and the block of a piece that is not in memory.
    fn block(&self, piece: usize) -> Option<(&Spilled, usize)> {
        let mut block = piece - self.chunks.len();
        for spilled in &self.spilled {
            if block < spilled.blocks.len() {
                return Some((spilled, block));
            }
            block -= spilled.blocks.len();
        }
        None
    }

    /// Number of values of a piece.
    pub(crate) fn piece_len(&self, piece: usize) -> usize {
        match self.chunks.get(piece) {
            Some(chunk) => chunk.len(),
            None => {
                let block = self.block(piece);
                block.map_or(0, |(spilled, block)| spilled.blocks.values(block))
            }
        }
    }

    /// The values of a piece, from memory or read into `scratch`.
    ///
    /// # Errors
    /// Errors of reading.
    pub(crate) fn piece<'a>(&'a self, piece: usize, scratch: &'a mut Chunk) -> Result<&'a Chunk> {
        if let Some(chunk) = self.chunks.get(piece) {
            return Ok(chunk);
        }
        let block = self.block(piece);
        let (spilled, block) = block.ok_or_else(|| internal_datafusion_err!("no piece {piece} of values"))?;
        spilled.blocks.read(&spilled.file, block, scratch)?;
        Ok(scratch)
    }

    /// The locations and values of a piece that is in memory, in order.
    pub(crate) fn placed(&self, piece: usize) -> impl Iterator<Item = (At, &[u8])> {
        let places = (0..).map(move |row| At {
            chunk: piece as u32,
            row,
        });
        places.zip(self.chunks[piece].values())
    }

    /// The locations of all values in memory, in the order of appending.
    pub(crate) fn places(&self) -> impl Iterator<Item = At> {
        let chunks = self.chunks.iter().enumerate();
        chunks.flat_map(|(number, chunk)| {
            let chunk_of = move |row| At {
                chunk: number as u32,
                row,
            };
            (0..chunk.len() as u32).map(chunk_of)
        })
    }

    /// The bounds of all values, as far as they were tracked. `None` if there are no values.
    pub(crate) fn bounds(&self) -> Option<&Bounds> {
        self.totals.bounds.as_ref()
    }

    /// The bounds of the values at some locations, whose first `known` bytes are equal. `None` if there are no
    /// locations.
    pub(crate) fn bounds_of(&self, places: &[At], known: usize) -> Option<Bounds> {
        let start = self.value(*places.first()?);
        let (mut common, mut longest) = (start.len(), start.len());
        for at in &places[1..] {
            let value = self.value(*at);
            if !value[known..].starts_with(&start[known..common]) {
                common = known + common_prefix(&start[known..common], &value[known..]);
            }
            longest = longest.max(value.len());
        }
        let prefix = start[..common].to_vec();
        Some(Bounds { prefix, longest })
    }
}

#[cfg(test)]
mod tests;
