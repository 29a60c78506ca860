//! The best `k` rows of a stream of keys.
//!
//! Keys below the *floor*, a bound that no key of the best `k` rows lies below, are rejected in blocks of 64
//! ([`filter`](super::filter)). The others go to a buffer of a few times `k` rows. When it is full, it is cut by
//! selection ([`cut`](super::cut)), and that raises the floor. On random rows about `4 k ln(n / k)` rows reach the
//! buffer, and the cost is that of reading the keys. On ascending rows all of them would. So where most rows were
//! admitted of late, the floor is first raised to a bound that a sample of the next rows suggests and a count proves.
//! The cost of a row is constant for any order.
//!
//! Compared with a heap of `k` rows there is no `log k` for a row that is admitted, and no branch for one that is not.
//! The structure is WarpSelect's (Johnson, Douze, Jégou, Billion-scale similarity search with GPUs, section 4.2: a
//! threshold, a buffer that fills, a merge that restores the invariant), with a selection in place of the merge
//! network, which loses on a processor.

use datafusion::common::{Result, internal_err};

use super::cut::{Cut, Scratch, Sorter};
use super::filter::{BLOCK, CHUNK, Masks, for_each_bit, passing, retain};
use super::floor::Floor;
use super::make_room;
use crate::key::Key;

/// Row numbers of the rows of a batch. They ascend from row to row and from batch to batch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Places<'a> {
    /// Consecutive numbers from this one.
    From(u64),
    /// The number of the batch's first row, and the index in the batch of the row of each key.
    At(u64, &'a [u32]),
    /// The row number of each key.
    Each(&'a [u64]),
}

impl Places<'_> {
    #[inline(always)]
    fn at(&self, at: usize) -> u64 {
        match self {
            Places::From(first) => first + at as u64,
            Places::At(first, places) => first + u64::from(places[at]),
            Places::Each(rows) => rows[at],
        }
    }

    fn check(&self, keys: usize) -> Result<()> {
        match self {
            Places::At(_, places) if places.len() != keys => {
                internal_err!("{} places for {keys} keys", places.len())
            }
            Places::Each(rows) if rows.len() != keys => {
                internal_err!("{} row numbers for {keys} keys", rows.len())
            }
            _ => Ok(()),
        }
    }
}

/// Least rows of a full buffer: smaller buffers would be cut too often.
const LEAST: usize = 2 * CHUNK;
/// Rows of a large buffer, as a multiple of `k`.
const BUFFER: usize = 4;
/// Rows of a small buffer, as a multiple of `k`, and the most rows of one. While the buffer stays in the cache, a
/// larger one makes cuts cheaper.
const SMALL_BUFFER: (usize, usize) = (32, 1 << 14);
/// Most rows that are sampled ahead to raise the floor.
const AHEAD: usize = 1 << 14;
/// Least rows that are sampled ahead, as a multiple of `k`.
const LOOKED_AT: usize = 8;
/// Largest `k` for which the floor is updated between cuts.
const SETTLED: usize = 1 << 16;

/// Number of rows at which the buffer for `k` rows is cut.
fn buffer(k: usize) -> usize {
    let small = k.saturating_mul(SMALL_BUFFER.0).min(SMALL_BUFFER.1);
    k.saturating_mul(BUFFER).max(small).max(LEAST)
}

/// The best `k` rows of a stream of (key, row number): those with the largest keys. Which of the rows that tie with the
/// last one are kept is not specified.
///
/// Holds at most `max(4 k, min(32 k, 16384), 2048)` rows of `size_of::<K>() + 8` bytes each, and one chunk more; twice
/// as much during a cut. A row that is rejected costs about 0.3 ns, one that is admitted 1 to 3 ns.
#[derive(Debug)]
pub(crate) struct Best<K> {
    k: usize,
    keys: Vec<K>,
    rows: Vec<u64>,
    /// Number of rows at which the buffer is cut.
    full: usize,
    /// Keys below this one are rejected.
    floor: K,
    /// Whether keys equal to the floor are admitted.
    ties: bool,
    /// The greatest key that at least `k` rows were found to reach.
    proven: Option<K>,
    /// Whether the floor was raised without a cut since the last one.
    raised: bool,
    /// Whether most rows of late were admitted, so that bounds from rows ahead are worth their cost.
    dense: bool,
    /// Rows that were admitted since the last cut.
    fresh: usize,
    scratch: Scratch<K, u64>,
}

impl<K: Key> Best<K> {
    /// An empty buffer for the best `k` rows.
    ///
    /// # Errors
    /// An internal error if `k` is zero.
    pub(crate) fn try_new(k: usize) -> Result<Self> {
        if k == 0 {
            return internal_err!("the best 0 rows");
        }
        Ok(Self {
            k,
            keys: Vec::new(),
            rows: Vec::new(),
            full: k.saturating_mul(2).max(LEAST),
            floor: K::default(),
            ties: true,
            proven: None,
            raised: false,
            dense: false,
            fresh: 0,
            scratch: Scratch::default(),
        })
    }

    /// Adds rows. Their numbers are greater than those of all earlier rows.
    ///
    /// # Errors
    /// If there is not one row number for each key; when the system gives no memory. Some of the rows may have been
    /// added then.
    pub(crate) fn push(&mut self, keys: &[K], places: Places<'_>) -> Result<()> {
        places.check(keys.len())?;
        let mut masks = Masks::default();
        for (start, chunk) in (0..).step_by(CHUNK).zip(keys.chunks(CHUNK)) {
            if self.dense && start % AHEAD == 0 {
                self.look_ahead(&keys[start..]);
            }
            let before = self.keys.len();
            passing(chunk, self.floor, self.ties, &mut masks);
            for ((block, mask), at) in chunk.chunks(BLOCK).zip(masks).zip((start..).step_by(BLOCK)) {
                if mask != 0 {
                    self.add(block, mask, places, at)?;
                }
            }
            let admitted = self.keys.len() - before;
            self.fresh += admitted;
            self.dense |= admitted > chunk.len() / 2;
            if self.keys.len() >= self.full {
                self.cut()?;
            }
        }
        Ok(())
    }

    /// Raises the floor by a bound from the next rows. Where rows tend to get better, this avoids that most are
    /// admitted only to be dropped soon.
    fn look_ahead(&mut self, keys: &[K]) {
        let ahead = &keys[..keys.len().min(AHEAD)];
        if ahead.len() / LOOKED_AT < self.k {
            return;
        }
        let key = self
            .scratch
            .sampled(ahead, self.k)
            .filter(|key| *key > self.floor);
        self.dense = key.is_some();
        if let Some(key) = key {
            (self.floor, self.ties, self.raised) = (key, true, true);
        }
    }

    /// Adds the keys of a block whose bits are set in `mask`. `at` is the index of the block's first key in its batch.
    fn add(&mut self, keys: &[K], mask: u64, places: Places<'_>, at: usize) -> Result<()> {
        let most = self.full.saturating_add(CHUNK);
        make_room(&mut self.keys, BLOCK, most)?;
        make_room(&mut self.rows, BLOCK, most)?;
        if let (Places::From(first), u64::MAX) = (places, mask) {
            let first = first + at as u64;
            self.keys.extend_from_slice(keys);
            self.rows.extend(first..first + keys.len() as u64);
            return Ok(());
        }
        for_each_bit(mask, |bit| {
            self.keys.push(keys[bit]);
            self.rows.push(places.at(at + bit));
        });
        Ok(())
    }

    /// Cuts the buffer, and raises the floor.
    fn cut(&mut self) -> Result<()> {
        self.drop_below();
        if self.keys.len() >= self.k {
            let cut = self.scratch.about(&mut self.keys, &mut self.rows, self.k)?;
            self.apply(cut);
        }
        self.full = buffer(self.k).max(self.keys.len().saturating_mul(2));
        self.fresh = 0;
        Ok(())
    }

    /// Takes over the result of a cut. At least `k` rows that reach the new floor are held, so rows that only tie with
    /// it are not needed.
    fn apply(&mut self, cut: Cut<K, u64>) {
        self.keys.truncate(cut.kept);
        self.rows.truncate(cut.kept);
        let key = cut.floor.key;
        if key >= self.floor {
            (self.floor, self.ties) = (key, false);
        }
        self.proven = self.proven.max(Some(key));
    }

    /// Drops rows below a floor that was raised without a cut.
    fn drop_below(&mut self) {
        if std::mem::take(&mut self.raised) {
            let floor = if self.ties || self.floor == K::MAX {
                self.floor
            } else {
                self.floor + K::one()
            };
            let kept = retain(&mut self.keys, &mut self.rows, Floor::at(floor));
            self.keys.truncate(kept);
            self.rows.truncate(kept);
        }
    }

    /// The floor, and whether a row whose key equals it is still wanted. The floor never falls.
    pub(crate) fn floor(&self) -> (K, bool) {
        (self.floor, self.ties)
    }

    /// The greatest key that at least `k` rows were found to reach. These rows are still held, or better ones are
    /// known. `None` before the first cut.
    pub(crate) fn proven(&self) -> Option<K> {
        self.proven
    }

    /// Reports that `k` rows which reach `key` were found elsewhere: rows whose key is not greater are not wanted any
    /// more.
    pub(crate) fn exceed(&mut self, key: K) {
        if self.proven.is_some_and(|proven| proven >= key) || (key, true) <= (self.floor, !self.ties) {
            return;
        }
        (self.floor, self.ties, self.raised) = (key, false, true);
    }

    /// Updates [`Self::floor`] if so many rows came since the last cut that the cost for each of them is small.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if self.k <= SETTLED && self.fresh >= self.k.div_ceil(2) {
            self.tighten()?;
        }
        Ok(())
    }

    /// Updates [`Self::floor`] by all rows so far, and drops the rows that are not among the best `k`. The time is
    /// linear in the number of held rows.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(crate) fn tighten(&mut self) -> Result<()> {
        self.drop_below();
        if self.keys.len() >= self.k {
            let cut = self.scratch.exactly(&mut self.keys, &mut self.rows, self.k)?;
            self.apply(cut);
        }
        self.fresh = 0;
        Ok(())
    }

    /// Row numbers of the rows that are held, ascending.
    pub(crate) fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// Mutable row numbers of the rows that are held, to replace them by other ascending ones.
    pub(crate) fn rows_mut(&mut self) -> &mut [u64] {
        &mut self.rows
    }

    /// Keys of the rows that are held.
    pub(crate) fn keys(&self) -> &[K] {
        &self.keys
    }

    /// Bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<K>()
            + self.rows.capacity() * size_of::<u64>()
            + self.scratch.held_bytes()
    }

    /// Bytes that [`Self::tighten`] can add to [`Self::held_bytes`], as it selects in a copy of the keys; the numbers of rows that tie with
    /// the last one are not among them.
    pub(crate) fn cut_bytes(&self) -> usize {
        match self.keys.len() >= self.k {
            true => self.scratch.more_bytes(self.keys.len()),
            false => 0,
        }
    }

    /// Most bytes that [`Self::push`] of `rows` rows can add to [`Self::held_bytes`].
    pub(crate) fn more_bytes(&self, rows: usize) -> usize {
        // Capacities double, by blocks; a cut works on a copy.
        let reached = self.keys.len().saturating_add(rows).saturating_add(BLOCK);
        let most = reached.min(self.full.max(buffer(self.k)).saturating_add(2 * CHUNK));
        let has_room = reached <= self.keys.capacity().min(self.rows.capacity());
        let grown = if has_room { 0 } else { most.saturating_mul(2) };
        let cut = if reached < self.full {
            0
        } else {
            most.saturating_mul(2)
        };
        grown
            .saturating_add(cut)
            .saturating_mul(size_of::<K>() + size_of::<u64>())
    }

    /// The keys and row numbers of the best `k` rows, best first. The time is `k log k` after a last cut.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(crate) fn into_sorted(mut self) -> Result<(Vec<K>, Vec<u64>)> {
        self.tighten()?;
        Sorter::default().sort(&mut self.keys, &mut self.rows)?;
        Ok((self.keys, self.rows))
    }
}
