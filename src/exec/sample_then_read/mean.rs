//! The trimmed and the winsorized mean of a column.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, new_null_array};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::by_reads::{ByReads, ReadPart, append_values, keys_of, same_number};
use crate::functions::shape::{ExactMean, ExactTotal};
use crate::kernel::cpu::weighted_cells::{KeepingCells, MergedCells, WeightedCells};
use crate::key::{Key, KeyBits, KeySpec};
use crate::quantile::Quantile;
use crate::select::weighted::WeightedSelection;

/// The mean of values without the ends of their order, each of which has a share of them.
pub(super) struct MeanWithoutEnds<K> {
    share: Quantile,
    /// Whether the ends are replaced by what is next to them.
    is_winsorized: bool,
    mean: Arc<ExactMean>,
    spec: KeySpec,
    /// Finds the values next to the ends.
    selection: WeightedSelection<K>,
    cells: Arc<KeepingCells<K>>,
    /// The next read adds up what lies between these two; `None`: nothing.
    between: Option<[K; 2]>,
    /// Number of values that the first read saw.
    seen: Option<u64>,
    answer: Option<KeyBits>,
}

/// The ranks of the values next to the ends of `n` values.
fn ranks(share: Quantile, n: u64) -> Vec<u64> {
    let end = share.whole_part_of(n);
    let mut ranks = vec![end + 1, n - end];
    ranks.dedup();
    ranks.truncate(n as usize);
    ranks
}

impl<K: Key> MeanWithoutEnds<K> {
    /// The question about values of which `spec` makes keys, before the first read of about `rows` rows, of which each may keep `most`.
    /// `result`: makes the answer of its key.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn try_new(
        [spec, result]: [KeySpec; 2],
        (share, is_winsorized): (Quantile, bool),
        sample: &[RecordBatch],
        rows: u64,
        most: u64,
    ) -> Result<Self> {
        let keys: Vec<K> = keys_of(&spec, sample)?;
        let sample = keys.into_iter().map(|key| (key, 1)).collect();
        let ranks = Box::new(move |n| ranks(share, n));
        let selection = WeightedSelection::try_new(ranks, spec.width(), sample, rows, most)?;
        let between = match selection.inside() {
            [low, high] if low.last < high.first => Some([low.last, high.first].map(K::from_bits)),
            _ => None,
        };
        Ok(Self {
            share,
            is_winsorized,
            mean: Arc::new(ExactMean::new(&spec, result)),
            spec,
            cells: Arc::new(selection.keeping_cells()),
            selection,
            between,
            seen: None,
            answer: None,
        })
    }

    /// The key of the mean, if a read added up to `sum`, or kept, all that lies between the values next to the ends.
    fn mean(&self, read: &MergedCells<K>, mut sum: ExactTotal) -> Result<Option<KeyBits>> {
        let n = read.counts.total()?;
        let end = self.share.whole_part_of(n);
        let (low, high) = (self.selection.key_at(end + 1)?, self.selection.key_at(n - end)?);
        let [first, last] = match self.between {
            // What lies up to the first one, and from the last one on, was kept.
            Some(between) => between.map(K::to_bits),
            None => [high, low],
        };
        if self.between.is_some() && (first < low || last > high) {
            return Ok(None);
        }
        // The values at the bounds count, without the ends or with them.
        let without = if self.is_winsorized { 0 } else { end };
        let count = n - 2 * without;
        let mut add = |key: KeyBits, copies: u64| self.mean.add(&mut sum, &self.spec, key, copies);
        let (mut up_to_low, mut from_high) = (0, 0);
        for (cell, range) in self.selection.brackets().enumerate() {
            let weight = read.counts.weights[cell];
            let mut each = |key: KeyBits, copies: u64| {
                up_to_low += if key <= low { copies } else { 0 };
                from_high += if key >= high { copies } else { 0 };
                match low < key && key < high && (key <= first || key >= last) {
                    true => add(key, copies),
                    false => Ok(()),
                }
            };
            let is_outside = range.last <= low || range.first >= high;
            let is_added = range.first > first && range.last < last;
            if range.first == range.last || is_outside || is_added || weight == 0 {
                // Any key of the cell tells where it lies.
                let key = if range.first >= high {
                    range.first
                } else {
                    range.last
                };
                each(key, weight)?;
            } else if let Some(kept) = read.kept.as_ref().filter(|_| self.selection.keeps(cell)) {
                let rows = kept
                    .iter()
                    .flatten()
                    .filter(|(key, _)| range.contains(key.to_bits()));
                rows.into_iter()
                    .try_for_each(|(key, copies)| each(key.to_bits(), *copies))?;
            } else {
                return Ok(None);
            }
        }
        if low == high {
            add(low, count)?;
        } else {
            add(low, up_to_low - without)?;
            add(high, from_high - without)?;
        }
        self.mean.of(&sum, count).map(Some)
    }
}

impl<K: Key> ByReads for MeanWithoutEnds<K> {
    type Part = MeanPart<K>;

    fn part(&self, _parts: usize, memory: MemoryReservation) -> Result<MeanPart<K>> {
        Ok(MeanPart {
            spec: self.spec.clone(),
            count: WeightedCells::try_new(Arc::clone(&self.cells), memory)?,
            between: self.between,
            mean: Arc::clone(&self.mean),
            sum: ExactTotal::default(),
            keys: Vec::new(),
            numbers: Vec::new(),
        })
    }

    fn narrow(&mut self, parts: Vec<MeanPart<K>>) -> Result<bool> {
        let mut sum = ExactTotal::default();
        let parts = parts.into_iter().map(|part| {
            sum.merge(part.sum);
            part.count
        });
        let read = MergedCells::of(self.cells.len(), parts);
        let n = same_number(&mut self.seen, read.counts.total()?)?;
        if n == 0 {
            return Ok(true);
        }
        let is_found = self.selection.narrow(&read.counts, read.kept.as_deref())?;
        if is_found {
            self.answer = self.mean(&read, sum)?;
            if self.answer.is_some() {
                return Ok(true);
            }
            let end = self.share.whole_part_of(n);
            let bounds = [self.selection.key_at(end + 1)?, self.selection.key_at(n - end)?];
            self.selection.apart(&bounds)?;
            self.between = Some(bounds.map(K::from_bits));
        } else {
            self.between = None;
        }
        self.cells = Arc::new(self.selection.keeping_cells());
        Ok(false)
    }

    fn answer(&self) -> Result<ArrayRef> {
        let result = &self.mean.result;
        match self.answer {
            Some(key) => result.to_array(&[key]),
            None => Ok(new_null_array(result.data_type(), 1)),
        }
    }
}

/// A part of the values.
pub(super) struct MeanPart<K> {
    spec: KeySpec,
    count: WeightedCells<K>,
    between: Option<[K; 2]>,
    mean: Arc<ExactMean>,
    /// The sum of what lies between.
    sum: ExactTotal,
    /// Buffers for the keys of a batch, and the numbers that they stand for.
    keys: Vec<K>,
    numbers: Vec<f64>,
}

/// Keeps the keys between two, in their order.
fn keep_between<K: Key>(keys: &mut Vec<K>, low: K, high: K) {
    let mut kept = 0;
    // Without a branch for each key, which no processor would foresee.
    for at in 0..keys.len() {
        let key = keys[at];
        keys[kept] = key;
        kept += usize::from(key > low && key < high);
    }
    keys.truncate(kept);
}

impl<K: Key> ReadPart for MeanPart<K> {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.keys.clear();
        append_values(&self.spec, batch, &mut self.keys)?;
        self.count.push_each_once(&self.keys);
        let Some([low, high]) = self.between else {
            return Ok(());
        };
        keep_between(&mut self.keys, low, high);
        self.mean
            .add_all(&mut self.sum, &self.spec, &self.keys, &mut self.numbers)
    }

    fn held(&self) -> usize {
        self.count.held()
    }
}
