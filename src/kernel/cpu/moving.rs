//! Order statistics of frames that move forward over rows: the rows are ranked once, and a frame is a set of their ranks.
//!
//! ```text
//! rows       30 10 20 40 10        frame of rows 1 to 3
//! positions   3  0  2  4  1        place of each row among all rows, by value
//! set         1  .  1  .  1        positions of the frame's rows: bits 0, 2 and 4, with counts of whole words
//! ```
//! A row that enters or leaves sets or clears one bit, and the key of a rank is the key at the position of that bit. A cursor for each
//! wanted rank remembers a word and the number of positions before it, so the next frame's rank is found in the same word, or near it.
//! The rows are sorted once; nothing depends on the size of the frame. Where rows are not known
//! before their frame is asked for, `OrderedKeys` is used.

use std::ops::Range;

use crate::key::Key;

/// Position of a row without a value.
const NO_VALUE: u32 = u32::MAX;

/// Words of one block of counts.
const BLOCK: usize = 64;

/// Ranked rows, and the frame that is looked at.
pub(crate) struct RankedRows<K> {
    /// The key of each position, ascending. Rows of one key share a position if values are distinct.
    keys: Vec<K>,
    /// The position of each row, or [`NO_VALUE`].
    positions: Vec<u32>,
    /// For distinct values: number of the frame's rows at each position.
    copies: Option<Vec<u32>>,
    /// Positions of the rows in the frame.
    set: PositionSet,
    /// Rows in the frame.
    frame: Range<usize>,
}

impl<K: Key> RankedRows<K> {
    /// An empty frame at the beginning of `rows`, at most 2^32 - 1, of which each has a key or no value. `distinct`: ranks are those of
    /// distinct keys.
    pub(crate) fn new(rows: impl ExactSizeIterator<Item = Option<K>>, distinct: bool) -> Self {
        let mut positions = vec![NO_VALUE; rows.len()];
        let mut sorted: Vec<(K, u32)> = Vec::with_capacity(rows.len());
        sorted.extend(rows.enumerate().filter_map(|(row, key)| Some((key?, row as u32))));
        sorted.sort_unstable_by_key(|entry| entry.0);
        let mut keys = Vec::with_capacity(sorted.len());
        for (key, row) in sorted {
            if !distinct || keys.last() != Some(&key) {
                keys.push(key);
            }
            positions[row as usize] = keys.len() as u32 - 1;
        }
        Self {
            copies: distinct.then(|| vec![0; keys.len()]),
            set: PositionSet::new(keys.len()),
            keys,
            positions,
            frame: 0..0,
        }
    }

    /// Moves to another frame, which begins and ends nowhere before the last one.
    pub(crate) fn move_to(&mut self, frame: Range<usize>) {
        for row in self.frame.start..frame.start.min(self.frame.end) {
            self.leave(row);
        }
        for row in self.frame.end.max(frame.start)..frame.end {
            self.enter(row);
        }
        self.frame = frame.start..frame.end.max(self.frame.end);
    }

    fn enter(&mut self, row: usize) {
        let position = self.positions[row];
        if position == NO_VALUE {
            return;
        }
        if let Some(copies) = &mut self.copies {
            let copies = &mut copies[position as usize];
            *copies += 1;
            if *copies > 1 {
                return;
            }
        }
        self.set.insert(position);
    }

    fn leave(&mut self, row: usize) {
        let position = self.positions[row];
        if position == NO_VALUE {
            return;
        }
        if let Some(copies) = &mut self.copies {
            let copies = &mut copies[position as usize];
            *copies -= 1;
            if *copies > 0 {
                return;
            }
        }
        self.set.remove(position);
    }

    /// Number of values in the frame, or of distinct ones.
    pub(crate) fn len(&self) -> u64 {
        self.set.len.into()
    }

    /// The key of a rank, from 1. `cursor`: one number for ranks that are near each other from frame to frame.
    pub(crate) fn key(&mut self, cursor: usize, rank: u64) -> Option<K> {
        let index = u32::try_from(rank.checked_sub(1)?).ok()?;
        let position = self.set.select(cursor, index)?;
        self.keys.get(position as usize).copied()
    }
}

/// A set of positions, with the positions of ranks.
struct PositionSet {
    /// One bit for each position.
    words: Vec<u64>,
    /// Number of positions in each word.
    counts: Vec<u8>,
    /// Number of positions in each block of [`BLOCK`] words.
    blocks: Vec<u32>,
    len: u32,
    /// For each cursor: a word.
    cursor_words: Vec<u32>,
    /// For each cursor: number of positions before its word.
    cursor_before: Vec<u32>,
}

impl PositionSet {
    /// An empty set of positions below `positions`.
    fn new(positions: usize) -> Self {
        let words = positions.div_ceil(64);
        Self {
            words: vec![0; words],
            counts: vec![0; words],
            blocks: vec![0; words.div_ceil(BLOCK)],
            len: 0,
            cursor_words: Vec::new(),
            cursor_before: Vec::new(),
        }
    }

    /// Adds a position that is not in the set.
    fn insert(&mut self, position: u32) {
        let word = position / 64;
        self.words[word as usize] |= 1 << (position % 64);
        self.counts[word as usize] += 1;
        self.blocks[word as usize / BLOCK] += 1;
        self.len += 1;
        for (of, before) in self.cursor_words.iter().zip(&mut self.cursor_before) {
            *before += u32::from(word < *of);
        }
    }

    /// Removes a position that is in the set.
    fn remove(&mut self, position: u32) {
        let word = position / 64;
        self.words[word as usize] &= !(1 << (position % 64));
        self.counts[word as usize] -= 1;
        self.blocks[word as usize / BLOCK] -= 1;
        self.len -= 1;
        for (of, before) in self.cursor_words.iter().zip(&mut self.cursor_before) {
            *before -= u32::from(word < *of);
        }
    }

    /// The position with `index` others before it. The cursor moves there.
    fn select(&mut self, cursor: usize, index: u32) -> Option<u32> {
        if index >= self.len {
            return None;
        }
        if cursor >= self.cursor_words.len() {
            self.cursor_words.resize(cursor + 1, 0);
            self.cursor_before.resize(cursor + 1, 0);
        }
        let (mut word, mut before) = (self.cursor_words[cursor] as usize, self.cursor_before[cursor]);
        while before > index {
            if word % BLOCK == 0 && before - self.blocks[word / BLOCK - 1] > index {
                before -= self.blocks[word / BLOCK - 1];
                word -= BLOCK;
            } else {
                word -= 1;
                before -= u32::from(self.counts[word]);
            }
        }
        while before + u32::from(self.counts[word]) <= index {
            if word % BLOCK == 0 && before + self.blocks[word / BLOCK] <= index {
                before += self.blocks[word / BLOCK];
                word += BLOCK;
            } else {
                before += u32::from(self.counts[word]);
                word += 1;
            }
        }
        (self.cursor_words[cursor], self.cursor_before[cursor]) = (word as u32, before);
        let bits = (before..index).fold(self.words[word], |bits, _| bits & (bits - 1));
        Some(word as u32 * 64 + bits.trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Checks frames over `rows` against a sort of each.
    fn check(rows: &[Option<u64>], frames: &[Range<usize>], distinct: bool) {
        let mut moving = RankedRows::new(rows.iter().copied(), distinct);
        for frame in frames {
            moving.move_to(frame.clone());
            let mut sorted: Vec<u64> = rows[frame.clone()].iter().flatten().copied().collect();
            sorted.sort_unstable();
            if distinct {
                sorted.dedup();
            }
            assert_eq!(moving.len(), sorted.len() as u64, "{frame:?}");
            assert_eq!(moving.key(0, 0), None);
            assert_eq!(moving.key(0, sorted.len() as u64 + 1), None);
            for (cursor, share) in [0, 50, 99, 100].into_iter().enumerate() {
                let index = (sorted.len() * share / 100).min(sorted.len().saturating_sub(1));
                let found = moving.key(cursor, index as u64 + 1);
                assert_eq!(found, sorted.get(index).copied(), "{frame:?} {share}");
            }
        }
    }

    #[test]
    fn frames_of_any_shape_are_those_of_a_sort() {
        let mut rng = SmallRng::seed_from_u64(5);
        for (length, values) in [
            (1, 9),
            (300, 5),
            (3000, 1 << 40),
            (20_000, 1 << 40),
            (20_000, 100),
        ] {
            let rows: Vec<Option<u64>> = (0..length)
                .map(|_| rng.random_bool(0.9).then(|| rng.random_range(0..values)))
                .collect();
            for step in [1, 7, length / 3 + 1] {
                let (mut frame, mut frames) = (0..0, Vec::new());
                while frame.end < length && frames.len() < 200 {
                    let start = frame.start + rng.random_range(0..=step);
                    let end = frame.end.max(start) + rng.random_range(0..=2 * step);
                    frame = start.min(length)..end.min(length);
                    frames.push(frame.clone());
                }
                frames.push(length..length);
                check(&rows, &frames, false);
                check(&rows, &frames, true);
            }
        }
    }

    #[test]
    fn few_rows_among_many_are_found() {
        // One row of each frame at the other end of the keys.
        let rows: Vec<Option<u64>> = (0..40_000).map(|row| Some(row * 7919 % 40_009)).collect();
        let frames: Vec<_> = (0..2000).map(|row| row * 20..row * 20 + 2).collect();
        check(&rows, &frames, false);
        check(&[], &[0..0, 0..0], false);
        check(&[None, None], &[0..1, 0..2, 2..2], true);
    }
}
