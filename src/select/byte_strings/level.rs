//! Values that share their first bytes: a part of those in memory, or values of their own.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::kernel::byte_strings::{At, ByteStrings, Chunk};
use crate::memory::RoundMemory;
use crate::threads::Stop;

/// Bytes to compare a value by, beside its own: its place, and its place with a key.
const COMPARED_BYTES: usize = size_of::<At>() + size_of::<(u64, At)>();

/// Values that share their first bytes, and what is wanted of them.
pub(super) struct Level {
    pub(super) values: Arc<ByteStrings>,
    /// First bytes of the answers that `values` do not repeat.
    pub(super) before: Vec<u8>,
    pub(super) which: Which,
    pub(super) n: u64,
    /// How many first bytes of all are equal, at least.
    pub(super) known: usize,
    /// 1 for all values.
    pub(super) depth: usize,
    pub(super) wanted: Vec<Wanted>,
    /// There was no memory to compare them in.
    pub(super) refused: bool,
    pub(super) _reservation: Option<MemoryReservation>,
}

/// Which of some values are in a level.
pub(super) enum Which {
    All,
    /// Those at these places: lists of bounded length.
    Places(Vec<Arc<Vec<At>>>),
}

/// A rank among the values of a level, and where the answer goes.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) rank: u64,
    pub(super) answer: usize,
}

/// What comes of comparing the values of a level.
pub(super) enum Compared {
    /// The answers, and where they go.
    Answers(Vec<(usize, Vec<u8>)>),
    /// There is no memory to do so.
    Refused(Level),
}

impl Level {
    /// The answers by comparing values.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn compare(mut self, round_memory: &Arc<RoundMemory>, stop: &Stop) -> Result<Compared> {
        let n = self.n as usize;
        let (bytes, copied) = match (self.values.is_spilled(), self.values.bytes() as usize) {
            (true, bytes) => (bytes, Chunk::memory(bytes, n) + self.values.largest_block()),
            (false, _) => (0, 0),
        };
        let wanted = n * COMPARED_BYTES + copied;
        let held = round_memory.hold(wanted, "values to compare");
        let (Ok(_held), Ok(_)) = (held, u32::try_from(bytes)) else {
            self.refused = true;
            return Ok(Compared::Refused(self));
        };
        if !self.values.is_spilled() {
            return Ok(Compared::Answers(self.select(&self.values)));
        }
        let mut copy = ByteStrings::with_capacity(bytes, n)?;
        let mut scratch = Chunk::default();
        for piece in self.values.pieces() {
            stop.check()?;
            for value in self.values.piece(piece, &mut scratch)?.values() {
                copy.push(value)?;
            }
        }
        Ok(Compared::Answers(self.select(&copy)))
    }

    /// The answers from values in memory.
    fn select(&self, values: &ByteStrings) -> Vec<(usize, Vec<u8>)> {
        let mut places: Vec<At> = match &self.which {
            Which::All => values.places().collect(),
            Which::Places(lists) => lists.iter().flat_map(|list| list.iter().copied()).collect(),
        };
        let ranks: Vec<u64> = self.wanted.iter().map(|wanted| wanted.rank).collect();
        values.select(&mut places, self.known, &ranks);
        let answer = |wanted: &Wanted| {
            let at = places[wanted.rank as usize - 1];
            (wanted.answer, self.answer(values.value(at)))
        };
        self.wanted.iter().map(answer).collect()
    }

    /// The answer that a value stands for.
    pub(super) fn answer(&self, value: &[u8]) -> Vec<u8> {
        [self.before.as_slice(), value].concat()
    }

    /// The values in about equal parts, one a thread.
    pub(super) fn shares(&self, threads: usize) -> Vec<Share> {
        match &self.which {
            Which::All => shares_of(&self.values, threads),
            Which::Places(lists) => {
                let most = (self.n as usize).div_ceil(threads);
                let cuts = cuts(lists.iter().map(|list| list.len()), most);
                let share = |cut: Range<usize>| Share::Places(lists[cut].to_vec());
                cuts.into_iter().map(share).collect()
            }
        }
    }
}

/// All of some values in about equal parts, one a thread.
pub(super) fn shares_of(values: &ByteStrings, threads: usize) -> Vec<Share> {
    let lengths = values.pieces().map(|piece| values.piece_len(piece));
    let cuts = cuts(lengths, (values.len() as usize).div_ceil(threads));
    cuts.into_iter().map(Share::Pieces).collect()
}

/// Cuts things of such lengths into runs of at least `most`, but for the last.
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

/// A part of a level's values.
pub(super) enum Share {
    /// Pieces of the level's values.
    Pieces(Range<usize>),
    /// Lists of places.
    Places(Vec<Arc<Vec<At>>>),
}

/// A thread that reads a level, in memory for the level's largest block that the caller holds.
pub(super) struct Reader {
    values: Arc<ByteStrings>,
    scratch: Chunk,
}

impl Reader {
    pub(super) fn new(values: Arc<ByteStrings>) -> Self {
        let scratch = Chunk::default();
        Self { values, scratch }
    }

    /// Calls `each` with all values of a share.
    ///
    /// # Errors
    /// Those of reading and of `each`; when `stop` is set.
    pub(super) fn each(
        &mut self,
        share: &Share,
        stop: &Stop,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        match share {
            Share::Pieces(pieces) => pieces.clone().try_for_each(|piece| {
                stop.check()?;
                self.values
                    .piece(piece, &mut self.scratch)?
                    .values()
                    .try_for_each(&mut each)
            }),
            Share::Places(lists) => lists.iter().try_for_each(|list| {
                stop.check()?;
                list.iter().try_for_each(|at| each(self.values.value(*at)))
            }),
        }
    }
}
