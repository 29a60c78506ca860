//! The median absolute deviation of a column.
//!
//! ```text
//! values in order    . . . . . [ - - - ] . . . . . [ - - - ] . . . . . [ - - - ] . . . . .
//!                              median - d           median              median + d
//! ```
//! A sample tells about where the median lies, and the values that deviate from it as much as the median deviation d. The read keeps the values
//! there, and counts what lies between. Where these are not the right ones, another read keeps others.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, new_null_array};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::by_reads::{ByReads, ReadPart, append_values, keys_of, same_number};
use crate::cells::Bracket;
use crate::functions::shape::{Deviation, Known};
use crate::kernel::cpu::weighted_cells::{KeepingCells, MergedCells, WeightedCells};
use crate::key::{Key, KeyBits, KeySpec};
use crate::select::weighted::{Ranks, WeightedSelection};

/// The median of the deviations from the median.
pub(super) struct MedianDeviation<K> {
    deviation: Arc<Deviation>,
    spec: KeySpec,
    /// Finds the values in the middle, and those that deviate about as much as the median deviation.
    selection: WeightedSelection<K>,
    cells: Arc<KeepingCells<K>>,
    /// Number of values that the first read saw.
    seen: Option<u64>,
    answer: Option<KeyBits>,
}

/// The ranks in the middle, and others.
fn ranks(deviation: &Arc<Deviation>, others: impl Fn(u64) -> [u64; 2] + Send + Sync + 'static) -> Ranks {
    let deviation = Arc::clone(deviation);
    Box::new(move |n| {
        let middle = deviation.middle_ranks(n).into_iter();
        let mut ranks: Vec<u64> = middle
            .flat_map(|middle| middle.into_iter().chain(others(n)))
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    })
}

impl<K: Key> MedianDeviation<K> {
    /// The question about values of which `spec` makes keys, before the first read of about `rows` rows, of which each may keep `most`.
    /// `result`: makes the answer of its key.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn try_new(
        [spec, result]: [KeySpec; 2],
        sample: &[RecordBatch],
        rows: u64,
        most: u64,
    ) -> Result<Self> {
        let deviation = Arc::new(Deviation::try_new(&spec, &result)?);
        let mut keys: Vec<K> = keys_of(&spec, sample)?;
        keys.sort_unstable();
        let sampled = keys.len() as u64;
        let around = match sampled {
            0 => [0; 2],
            _ => match deviation.of(&spec, sampled, |rank| Ok([keys[rank as usize - 1].to_bits(); 2]))? {
                Known::All((_, around)) => around,
                Known::Wants(ranks) => ranks,
            },
        };
        let scaled = move |n: u64| {
            around.map(|rank| {
                let scaled = u128::from(rank) * u128::from(n) / u128::from(sampled.max(1));
                (scaled as u64).clamp(1, n)
            })
        };
        let sample = keys.into_iter().map(|key| (key, 1)).collect();
        let ranks = ranks(&deviation, scaled);
        let selection = WeightedSelection::try_new(ranks, spec.width(), sample, rows, most)?;
        Ok(Self {
            deviation,
            spec,
            cells: Arc::new(selection.keeping_cells()),
            selection,
            seen: None,
            answer: None,
        })
    }
}

/// The keys of ranks, as far as a read and those before it tell.
struct RankedKeys<'a, K> {
    selection: &'a WeightedSelection<K>,
    read: &'a MergedCells<K>,
    /// The keys of each cell, and the number of values up to its last one.
    cells: Vec<(Bracket, u64)>,
    /// Keys that were kept of some cells, ascending.
    sorted: RefCell<BTreeMap<usize, Vec<K>>>,
}

impl<'a, K: Key> RankedKeys<'a, K> {
    fn new(selection: &'a WeightedSelection<K>, read: &'a MergedCells<K>) -> Self {
        let mut end = 0;
        let cells = selection.brackets().zip(&read.counts.weights);
        let cells = cells.map(|(keys, count)| {
            end += count;
            (keys, end)
        });
        Self {
            cells: cells.collect(),
            selection,
            read,
            sorted: RefCell::default(),
        }
    }

    /// Two keys between which that of a rank lies.
    fn between(&self, rank: u64) -> Result<[KeyBits; 2]> {
        if let Ok(key) = self.selection.key_at(rank) {
            return Ok([key; 2]);
        }
        let cell = self.cells.partition_point(|(_, end)| *end < rank);
        let Some((keys, end)) = self.cells.get(cell) else {
            return Err(internal_datafusion_err!("rank {rank} is in no cell"));
        };
        let kept = self.read.kept.as_ref().filter(|_| self.selection.keeps(cell));
        let (Some(kept), true) = (kept, keys.first < keys.last) else {
            return Ok([keys.first, keys.last]);
        };
        let mut sorted = self.sorted.borrow_mut();
        let sorted = sorted.entry(cell).or_insert_with(|| {
            let rows = kept.iter().flatten().map(|(key, _)| *key);
            let mut own: Vec<K> = rows.filter(|key| keys.contains(key.to_bits())).collect();
            own.sort_unstable();
            own
        });
        let behind = (end - rank) as usize;
        let key = sorted
            .len()
            .checked_sub(behind + 1)
            .map(|at| sorted[at].to_bits());
        key.map(|key| [key; 2])
            .ok_or_else(|| internal_datafusion_err!("rank {rank} in a cell of {} values", sorted.len()))
    }
}

impl<K: Key> ByReads for MedianDeviation<K> {
    type Part = DeviationPart<K>;

    fn part(&self, _parts: usize, memory: MemoryReservation) -> Result<DeviationPart<K>> {
        Ok(DeviationPart {
            spec: self.spec.clone(),
            count: WeightedCells::try_new(Arc::clone(&self.cells), memory)?,
            keys: Vec::new(),
        })
    }

    fn narrow(&mut self, parts: Vec<DeviationPart<K>>) -> Result<bool> {
        let parts = parts.into_iter().map(|part| part.count);
        let read = MergedCells::of(self.cells.len(), parts);
        let n = same_number(&mut self.seen, read.counts.total()?)?;
        if n == 0 {
            return Ok(true);
        }
        while self.selection.narrow(&read.counts, read.kept.as_deref())? {
            let keys = RankedKeys::new(&self.selection, &read);
            match self.deviation.of(&self.spec, n, |rank| keys.between(rank))? {
                Known::All((key, _)) => {
                    self.answer = Some(key);
                    return Ok(true);
                }
                Known::Wants(others) => self.selection.look_for(ranks(&self.deviation, move |_| others)),
            }
        }
        self.cells = Arc::new(self.selection.keeping_cells());
        Ok(false)
    }

    fn answer(&self) -> Result<ArrayRef> {
        let result = self.deviation.result();
        match self.answer {
            Some(key) => result.to_array(&[key]),
            None => Ok(new_null_array(result.data_type(), 1)),
        }
    }
}

/// A part of the values.
pub(super) struct DeviationPart<K> {
    spec: KeySpec,
    count: WeightedCells<K>,
    /// Keys of a batch.
    keys: Vec<K>,
}

impl<K: Key> ReadPart for DeviationPart<K> {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.keys.clear();
        append_values(&self.spec, batch, &mut self.keys)?;
        self.count.push_each_once(&self.keys);
        Ok(())
    }

    fn held(&self) -> usize {
        self.count.held()
    }
}
