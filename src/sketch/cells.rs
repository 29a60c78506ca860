//! Counting by cells: the cheapest way to a summary, for keys whose distribution does not change.
//!
//! A sample chooses a cell function. Each key then costs its cell's number and an update of the cell, over any number
//! of batches, without a copy. The last rank of the greatest key of a cell is known exactly, so a cell is a tuple with
//! delta 0 and g its count: no error builds up however long it goes on. Each cell has an *anchor*, the key that the
//! sample had most often in it, and counts the keys that differ from the anchor. So a heavy key is known exactly,
//! whatever lies beside it.
//!
//! A cell may hold `limit` values besides its anchor. Further keys are handed back to the caller, who summarises them
//! separately, and the two summaries merge. So the bound holds whatever the data. When many keys are handed back, the
//! distribution has changed, and new cells are needed.

use std::ops::Range;

use super::build::Builder;
use super::cuts::Cuts;
use super::epsilon::Epsilon;
use super::gk::Summary;
use crate::cells::CellTable;
use crate::cells::classify::{TableOf, number};
use crate::key::{Key, KeyVec};
use datafusion::common::Result;

/// Number of keys whose cells are computed at a time: keys, numbers and cells share the cache.
const BLOCK: usize = 4096;

/// Number of sampled keys. Each of the table's 2048 entries needs a few to know its share.
const SAMPLE: usize = 1 << 15;

/// Sixteenths of the invariant's limit that a cell may hold: the rest is left to merges.
const SIXTEENTHS: u64 = 8;

/// Number of cells for each `1 / eps`. If all cells were as full as they may be, one would suffice.
const CELLS: u64 = 4;

/// Most cells of a table: with the table's own overhead their numbers have to fit in two bytes.
const MOST_CELLS: usize = 60_000;

/// Most values that are counted before new cells are made: counts are 32 bits wide.
const MOST_VALUES: u64 = 1 << 31;

#[derive(Debug, Clone, Copy, Default)]
struct Cell<K> {
    anchor: K,
    greatest: K,
    count: u32,
    /// The number of these values that do not equal the anchor.
    others: u32,
}

/// Counts of cells.
pub(super) struct Cells<K> {
    eps: Epsilon,
    cuts: Cuts<K>,
    table: TableOf<K>,
    cells: Vec<Cell<K>>,
    /// The cells of the keys that are being counted.
    numbers: Vec<u16>,
    least: K,
    /// Number of values counted, without those handed back.
    n: u64,
}

impl<K: Key> Cells<K> {
    /// Whether tables have enough cells for this error fraction.
    pub(super) fn serve(eps: Epsilon) -> bool {
        eps.reciprocal(CELLS / 2, usize::MAX) <= MOST_CELLS
    }

    /// Cells for keys that are distributed like `keys`. `None` if no table tells them apart finely enough.
    ///
    /// # Errors
    /// None that the arguments can cause.
    pub(super) fn try_new(eps: Epsilon, keys: &[K]) -> Result<Option<Self>> {
        if keys.is_empty() || !Self::serve(eps) {
            return Ok(None);
        }
        let sample = sample(keys, SAMPLE.min(keys.len() / 4));
        // If a few keys far away take up the range: without the stretches between, and without outliers.
        for (cut, outliers) in [(false, 0), (true, 0), (true, 1 << 10), (true, 1 << 6)] {
            let outliers = sample.len().checked_div(outliers).unwrap_or(0);
            let part = outliers..sample.len() - outliers;
            let cuts = if cut {
                Cuts::between(&sample[part.clone()])
            } else {
                Cuts::none()
            };
            if cut && outliers == 0 && cuts.is_empty() {
                continue;
            }
            let (cells, crowded) = Self::of_sample(eps, &sample, part, cuts)?;
            if crowded <= sample.len() as u64 / 16 {
                return Ok(Some(cells));
            }
        }
        Ok(None)
    }

    /// Cells by the shares of a part of a sample, and the number of sampled keys that are beyond the limits of their
    /// cells.
    fn of_sample(eps: Epsilon, sample: &[K], part: Range<usize>, cuts: Cuts<K>) -> Result<(Self, u64)> {
        let mut cut = sample.to_vec();
        cuts.apply(&mut cut);
        let table = CellTable::from_part(&KeyVec::of(&cut), part, eps.reciprocal(CELLS, MOST_CELLS))?;
        let mut cells = vec![Cell::default(); table.len()];
        let share = eps.budget(sample.len() as u64) * SIXTEENTHS / 16;
        let (mut crowded, mut start) = (0, 0);
        for keys in cut.chunk_by(|a, b| table.cell(a.to_bits()) == table.cell(b.to_bits())) {
            let own = &sample[start..start + keys.len()];
            let (anchor, times) = most_frequent(own);
            cells[table.cell(keys[0].to_bits()) as usize].anchor = anchor;
            // In many samples, a cell at its limit has a few keys more than its share.
            crowded += ((own.len() - times) as u64).saturating_sub(2 * share + 4);
            start += keys.len();
        }
        let cells = Self {
            eps,
            cuts,
            table: TableOf::new(&table),
            cells,
            numbers: Vec::new(),
            least: sample[0],
            n: 0,
        };
        Ok((cells, crowded))
    }

    /// Whether `more` values more can be counted.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.n + more as u64 <= MOST_VALUES
    }

    /// Bytes of memory held on the heap.
    pub(super) fn size(&self) -> usize {
        self.cells.capacity() * size_of::<Cell<K>>()
            + self.numbers.capacity() * size_of::<u16>()
            + size_of::<[u64; 1 << CellTable::ENTRY_BITS]>()
    }

    /// Counts `keys`, for which there must be room, except those that are handed back in `others`.
    pub(super) fn add(&mut self, keys: &[K], others: &mut Vec<K>) {
        self.n += keys.len() as u64;
        let limit = self.limit();
        self.numbers.resize(keys.len(), 0);
        let mut fullest = 0;
        let mut cut = [K::default(); BLOCK];
        for (keys, numbers) in keys.chunks(BLOCK).zip(self.numbers.chunks_mut(BLOCK)) {
            if self.cuts.is_empty() {
                number(keys, &self.table, numbers);
            } else {
                let cut = &mut cut[..keys.len()];
                cut.copy_from_slice(keys);
                self.cuts.apply(cut);
                number(cut, &self.table, numbers);
            }
            let outside = self.cells[0].count;
            fullest = fullest.max(count(&mut self.cells, keys, numbers));
            // Such keys lie below all of the sample, so they are rare.
            if self.cells[0].count > outside {
                self.least = keys.iter().fold(self.least, |least, key| least.min(*key));
            }
        }
        if fullest > limit {
            self.hand_back(keys, others);
        }
    }

    /// Takes values out again of cells that hold too many. `keys` are the keys that were counted last.
    ///
    /// The values counted before were within an earlier limit. The greatest keys of cells stay: they do occur, if not
    /// here.
    fn hand_back(&mut self, keys: &[K], others: &mut Vec<K>) {
        loop {
            // Fewer values give a lower limit, so this is repeated until the limit holds.
            let (limit, before) = (self.limit(), others.len());
            for (key, number) in keys.iter().zip(&mut self.numbers) {
                let Some(cell) = self.cells.get_mut(usize::from(*number)) else {
                    continue;
                };
                if cell.others > limit && *key != cell.anchor {
                    cell.count -= 1;
                    cell.others -= 1;
                    others.push(*key);
                    *number = u16::MAX;
                }
            }
            if others.len() == before {
                return;
            }
            self.n -= (others.len() - before) as u64;
        }
    }

    /// The summary: one tuple for each cell, and one for a heavy anchor.
    pub(super) fn finish(&self) -> Summary<K> {
        let limit = self.limit();
        let filled = self.cells.iter().filter(|cell| cell.count > 0);
        let mut builder = Builder::new(self.eps, filled.clone().count() + 1);
        builder.minimum(self.least, 0);
        for cell in filled {
            let (count, others) = (u64::from(cell.count), u64::from(cell.others));
            if others == 0 {
                builder.tuple(cell.anchor, count, 0);
            } else if cell.count <= limit {
                builder.tuple(cell.greatest, count, count);
            } else {
                builder.anchored(cell.anchor, count - others, cell.greatest, others);
            }
        }
        builder.finish()
    }

    /// Most values of a cell besides its anchor: g + delta is one more.
    fn limit(&self) -> u32 {
        let limit = self.eps.budget(self.n) / 16 * SIXTEENTHS;
        u32::try_from(limit.saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

/// Counts keys in their cells. Returns the most values besides the anchor that one of these cells has now.
fn count<K: Key>(cells: &mut [Cell<K>], keys: &[K], numbers: &[u16]) -> u32 {
    let mut fullest = 0;
    for (key, number) in keys.iter().zip(numbers) {
        if let Some(cell) = cells.get_mut(usize::from(*number)) {
            cell.count += 1;
            cell.others += u32::from(*key != cell.anchor);
            cell.greatest = cell.greatest.max(*key);
            fullest = fullest.max(cell.others);
        }
    }
    fullest
}

/// About `count` keys, ascending: one from a random position in each of as many stripes. There must be at least `count`
/// keys.
pub(super) fn sample<K: Key>(keys: &[K], count: usize) -> Vec<K> {
    let stripe = keys.len() / count.max(1);
    let mut state = 0_u64;
    let mut sample: Vec<K> = keys
        .chunks(stripe)
        .map(|stripe| {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            stripe[(state >> 33) as usize % stripe.len()]
        })
        .collect();
    sample.sort_unstable();
    sample
}

/// The key with the longest run among ascending keys, of which there must be one at least, and the length of the run.
fn most_frequent<K: Key>(keys: &[K]) -> (K, usize) {
    let runs = keys.chunk_by(|a, b| a == b).map(|run| (run[0], run.len()));
    runs.max_by_key(|(_, length)| *length).unwrap_or_default()
}
