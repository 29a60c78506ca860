//! Selection of the best `k` rows of a buffer, in place. The rows that stay keep their order.
//!
//! There are three methods, all linear in the size of the buffer. Few rows are compared all with all
//! ([`ranking`](super::ranking)). In a large buffer, a key drawn from a sample is proven by a count to have at least
//! `k` and not many more keys at or above it, as in SampleSelect and Floyd and Rivest's SELECT, 1975 (one count, and
//! one move of the rows that stay). Otherwise the keys alone are copied and selected by `select_nth_unstable`.

use super::filter::{count_from, retain};
use super::floor::Floor;
use super::make_room;
use super::ranking::{FEW, positions_of};
use crate::key::Key;
use datafusion::common::Result;

/// Scratch memory of cuts, kept from one cut to the next.
#[derive(Debug, Default)]
pub(crate) struct Scratch<K, R> {
    keys: Vec<K>,
    rows: Vec<R>,
}

/// The result of a cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut<K, R> {
    /// Number of rows that stay, at the front of the buffer.
    pub(crate) kept: usize,
    /// The bound that rows must reach from now on.
    pub(crate) floor: Floor<K, R>,
}

/// Least rows of a buffer that is sampled.
const SAMPLED: usize = 1 << 11;
const SAMPLES: [usize; 3] = [1 << 6, 1 << 8, 1 << 10];

impl<K: Key, R: Key> Scratch<K, R> {
    /// Bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<K>() + self.rows.capacity() * size_of::<R>()
    }

    /// Bytes that a cut of `rows` rows can add to [`Self::held_bytes`], but for rows that tie.
    pub(crate) fn more_bytes(&self, rows: usize) -> usize {
        rows.saturating_sub(self.keys.capacity()) * size_of::<K>()
    }

    /// Cuts to at most `2 * k` rows, the best `k` among them.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(crate) fn about(&mut self, keys: &mut [K], rows: &mut [R], k: usize) -> Result<Cut<K, R>> {
        let Some(key) = self.sampled(keys, k) else {
            return self.exactly(keys, rows, k);
        };
        let floor = Floor::at(key);
        let kept = retain(keys, rows, floor);
        if kept <= k.saturating_mul(2) {
            return Ok(Cut { kept, floor });
        }
        self.exactly(&mut keys[..kept], &mut rows[..kept], k)
    }

    /// A key that at least `k` keys reach, and at most `2 k` keys or an eighth of all keys, whichever is more. `None`
    /// for fewer than [`SAMPLED`] keys, and where the sample gives no such key.
    pub(crate) fn sampled(&mut self, keys: &[K], k: usize) -> Option<K> {
        let class = (keys.len() / SAMPLED).checked_ilog2()? as usize / 3;
        let size = SAMPLES[class.min(SAMPLES.len() - 1)];
        let stride = keys.len() / size;
        self.keys.clear();
        // A random index in each stride, so that no period of the data matters.
        let at = |i: usize| i * stride + (i.wrapping_mul(0x9e37_79b9) >> 7) % stride;
        self.keys.extend((0..size).filter_map(|i| keys.get(at(i))));
        let share = k as f64 / keys.len() as f64;
        let mean = size as f64 * share;
        let rank = (mean + 3.0 * (mean * (1.0 - share).max(0.0)).sqrt()).ceil() as usize + 1;
        if rank >= self.keys.len() {
            return None;
        }
        let (_, key, _) = self.keys.select_nth_unstable_by(rank, |a, b| b.cmp(a));
        let reach = count_from(keys, *key);
        let most = k.saturating_mul(2).max(keys.len() / 8);
        (k..=most).contains(&reach).then_some(*key)
    }

    /// Cuts to the best `k > 0` rows.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(crate) fn exactly(&mut self, keys: &mut [K], rows: &mut [R], k: usize) -> Result<Cut<K, R>> {
        let len = keys.len();
        if len < k || k == 0 {
            return Ok(Cut {
                kept: len,
                floor: Floor::open(),
            });
        }
        if len <= FEW && rows.is_sorted() {
            return Ok(few(keys, rows, k));
        }
        let floor = self.select(keys, rows, k)?;
        let kept = retain(keys, rows, floor);
        // There are more than `k` only if a row number was given twice with the same key.
        let kept = kept.min(k);
        Ok(Cut { kept, floor })
    }

    /// The `k`-th best row, as a floor. `k` is at most the number of rows.
    fn select(&mut self, keys: &[K], rows: &[R], k: usize) -> Result<Floor<K, R>> {
        self.keys.clear();
        make_room(&mut self.keys, keys.len(), 0)?;
        self.keys.extend_from_slice(keys);
        let (above, key, _) = self.keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
        let key = *key;
        // The first `k - 1` keys are all keys above that of the k-th row, and some that equal it.
        let ties_before = above.iter().filter(|other| **other == key).count();
        self.rows.clear();
        let ties = keys.iter().zip(rows).filter(|(other, _)| **other == key);
        for (_, row) in ties {
            make_room(&mut self.rows, 1, usize::MAX)?;
            self.rows.push(*row);
        }
        let last = ties_before.min(self.rows.len().saturating_sub(1));
        let row = if self.rows.is_sorted() {
            self.rows.get(last).copied()
        } else {
            Some(*self.rows.select_nth_unstable(last).1)
        };
        Ok(Floor {
            key,
            row: row.unwrap_or(R::MAX),
        })
    }
}

/// Cuts at most [`FEW`] rows whose numbers ascend to the best `k`.
fn few<K: Key, R: Key>(keys: &mut [K], rows: &mut [R], k: usize) -> Cut<K, R> {
    let positions = positions_of(keys);
    let mut floor = Floor::open();
    let mut kept = 0;
    for (at, position) in (0..keys.len()).zip(positions) {
        let position = usize::from(position);
        let (key, row) = (keys[at], rows[at]);
        if position == k - 1 {
            floor = Floor { key, row };
        }
        (keys[kept], rows[kept]) = (key, row);
        kept += usize::from(position < k);
    }
    Cut { kept, floor }
}

/// Sorts rows by their keys. The memory is used again for the next sort.
#[derive(Debug, Default)]
pub(crate) struct Sorter<K, R> {
    /// Key and row number of each row in one integer, where they fit: integers are compared without a branch, so they
    /// sort in half the time.
    packed: Vec<u128>,
    pairs: Vec<(K, R)>,
}

impl<K: Key, R: Key> Sorter<K, R> {
    /// Bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.packed.capacity() * size_of::<u128>() + self.pairs.capacity() * size_of::<(K, R)>()
    }

    /// Sorts the rows, best first: by descending key, then by ascending row number.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(crate) fn sort(&mut self, keys: &mut [K], rows: &mut [R]) -> Result<()> {
        if K::BITS + R::BITS > u128::BITS {
            return self.sort_pairs(keys, rows);
        }
        self.packed.clear();
        make_room(&mut self.packed, keys.len(), 0)?;
        let pack = |(key, row): (&K, &R)| (K::MAX.minus(*key).to_bits() << R::BITS) | row.to_bits();
        self.packed.extend(keys.iter().zip(&*rows).map(pack));
        self.packed.sort_unstable();
        for ((key, row), packed) in keys.iter_mut().zip(rows).zip(&self.packed) {
            *key = K::MAX.minus(K::from_bits(packed >> R::BITS));
            *row = R::from_bits(packed & R::MAX.to_bits());
        }
        Ok(())
    }

    fn sort_pairs(&mut self, keys: &mut [K], rows: &mut [R]) -> Result<()> {
        self.pairs.clear();
        make_room(&mut self.pairs, keys.len(), 0)?;
        self.pairs.extend(keys.iter().copied().zip(rows.iter().copied()));
        self.pairs
            .sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        for ((key, row), pair) in keys.iter_mut().zip(rows).zip(&self.pairs) {
            (*key, *row) = *pair;
        }
        Ok(())
    }
}
