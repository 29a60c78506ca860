//! Levels: values with the same first bytes. They are some of the values in memory, or values of their own.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::kernel::byte_strings::{At, ByteStrings, Chunk};
use crate::memory::RoundMemory;
use crate::threads::Stop;

/// Bytes that comparing takes for each value, beside the value itself: its place, and its place with a key.
const COMPARED_BYTES: usize = size_of::<At>() + size_of::<(u64, At)>();

/// Values with the same first bytes, and the target ranks among them.
pub(super) struct Level {
    pub(super) values: Arc<ByteStrings>,
    /// First bytes of the answers that `values` do not repeat.
    pub(super) before: Vec<u8>,
    /// Which of `values` belong to the level.
    pub(super) subset: Subset,
    /// Number of values in the level.
    pub(super) n: u64,
    /// Number of first bytes that are known to be equal in all values of the level.
    pub(super) known: usize,
    /// Number of levels down to this one: 1 for the level of all values.
    pub(super) depth: usize,
    pub(super) targets: Vec<TargetRank>,
    /// Whether there was no memory to compare the values in.
    pub(super) refused: bool,
    pub(super) _reservation: Option<MemoryReservation>,
}

/// A selection of values.
pub(super) enum Subset {
    /// All values.
    All,
    /// The values at these places, in lists of bounded length.
    Places(Vec<Arc<Vec<At>>>),
}

/// A target rank among the values of a level.
#[derive(Clone, Copy)]
pub(super) struct TargetRank {
    /// The rank in the level, from 1.
    pub(super) rank: u64,
    /// Index of the answer in the solution.
    pub(super) answer: usize,
}

/// The outcome of comparing the values of a level.
pub(super) enum Compared {
    /// The answers, with their indices in the solution.
    Answers(Vec<(usize, Vec<u8>)>),
    /// The level, as there is no memory to compare its values.
    Refused(Level),
}

impl Level {
    /// The answers, found by comparing the values.
    ///
    /// # Errors
    /// Those of reading; when `stop` is set.
    pub(super) fn compare(mut self, round_memory: &Arc<RoundMemory>, stop: &Stop) -> Result<Compared> {
        let n = self.n as usize;
        let (bytes, copied) = match (self.values.is_spilled(), self.values.bytes() as usize) {
            (true, bytes) => (bytes, Chunk::memory(bytes, n) + self.values.largest_block()),
            (false, _) => (0, 0),
        };
        let bytes_needed = n * COMPARED_BYTES + copied;
        let held = round_memory.hold(bytes_needed, "values to compare");
        let (Ok(_held), Ok(_)) = (held, u32::try_from(bytes)) else {
            self.refused = true;
            return Ok(Compared::Refused(self));
        };
        if !self.values.is_spilled() {
            return Ok(Compared::Answers(self.select(&self.values)));
        }
        let mut copy = ByteStrings::with_capacity(bytes, n)?;
        let all = WorkChunk::Pieces(self.values.pieces());
        each_value(&self.values, &all, stop, |value| copy.push(value).map(drop))?;
        Ok(Compared::Answers(self.select(&copy)))
    }

    /// The answers from values in memory.
    fn select(&self, values: &ByteStrings) -> Vec<(usize, Vec<u8>)> {
        let mut places: Vec<At> = match &self.subset {
            Subset::All => values.places().collect(),
            Subset::Places(lists) => lists.iter().flat_map(|list| list.iter().copied()).collect(),
        };
        let ranks: Vec<u64> = self.targets.iter().map(|target| target.rank).collect();
        values.select(&mut places, self.known, &ranks);
        let answer = |target: &TargetRank| {
            let at = places[target.rank as usize - 1];
            (target.answer, self.answer(values.value(at)))
        };
        self.targets.iter().map(answer).collect()
    }

    /// The answer for a value of the level: its first bytes, then the value.
    pub(super) fn answer(&self, value: &[u8]) -> Vec<u8> {
        [self.before.as_slice(), value].concat()
    }

    /// The values of the level in chunks of about equal numbers, one for each thread.
    pub(super) fn work_chunks(&self, threads: usize) -> Vec<WorkChunk> {
        match &self.subset {
            Subset::All => work_chunks_of(&self.values, threads),
            Subset::Places(lists) => {
                let most = (self.n as usize).div_ceil(threads);
                let cuts = cuts(lists.iter().map(|list| list.len()), most);
                let chunk = |cut: Range<usize>| WorkChunk::Places(lists[cut].to_vec());
                cuts.into_iter().map(chunk).collect()
            }
        }
    }
}

/// All values in chunks of about equal numbers, one for each thread.
pub(super) fn work_chunks_of(values: &ByteStrings, threads: usize) -> Vec<WorkChunk> {
    let lengths = values.pieces().map(|piece| values.piece_len(piece));
    let cuts = cuts(lengths, (values.len() as usize).div_ceil(threads));
    cuts.into_iter().map(WorkChunk::Pieces).collect()
}

/// Cuts a sequence of items of these lengths into ranges of items. Each range is at least `most` long in sum, except the last.
fn cuts(lengths: impl Iterator<Item = usize>, most: usize) -> Vec<Range<usize>> {
    let (mut cuts, mut start, mut end, mut sum) = (Vec::new(), 0, 0, 0);
    for length in lengths {
        (end, sum) = (end + 1, sum + length);
        if sum >= most {
            cuts.push(start..end);
            (start, sum) = (end, 0);
        }
    }
    if start < end {
        cuts.push(start..end);
    }
    cuts
}

/// The values that one thread works on.
pub(super) enum WorkChunk {
    /// Pieces of the level's values, by their numbers.
    Pieces(Range<usize>),
    /// The values at these places.
    Places(Vec<Arc<Vec<At>>>),
}

/// Calls `each` with every value of a chunk. The caller holds memory for the largest block of `values`.
///
/// # Errors
/// Those of reading and of `each`; when `stop` is set.
pub(super) fn each_value(
    values: &ByteStrings,
    chunk: &WorkChunk,
    stop: &Stop,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut scratch = Chunk::default();
    match chunk {
        WorkChunk::Pieces(pieces) => pieces.clone().try_for_each(|piece| {
            stop.check()?;
            let piece = values.piece(piece, &mut scratch)?;
            piece.values().try_for_each(&mut each)
        }),
        WorkChunk::Places(lists) => lists.iter().try_for_each(|list| {
            stop.check()?;
            list.iter().try_for_each(|at| each(values.value(*at)))
        }),
    }
}
