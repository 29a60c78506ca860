//! The histogram of a column with bins of one width.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::by_reads::{ByReads, ReadPart};
use crate::cells::{Edges, MAX_CELLS};
use crate::functions::CHANGED;
use crate::functions::shape::EquiWidth;
use crate::kernel::cpu::edges::EdgeCells;
use crate::key::{Key, KeyBits, KeySpec, dense};

/// Most bins whose values are counted in place of being held.
pub(crate) const MOST_COUNTED_BINS: usize = MAX_CELLS;

/// The numbers of values in bins of one width between the least and the greatest value.
///
/// The first read counts between the ends that the statistics of the input tell, and finds the true ones. If they are others, a second read counts
/// between those.
pub(super) struct BinsOfOneWidth<K> {
    spec: KeySpec,
    wide: Arc<EquiWidth>,
    /// What the next read counts.
    bins: Option<Arc<Between<K>>>,
    /// The ends that a read found, and its number of values.
    seen: Option<(Option<[KeyBits; 2]>, u64)>,
    /// Numbers of values up to the edges of all bins.
    through: Vec<u64>,
}

/// The bins between two ends.
pub(super) struct Between<K> {
    /// The greatest key of each bin but the last one.
    tops: Vec<KeyBits>,
    cells: EdgeCells<K>,
    /// Number of cells.
    len: usize,
    /// Number of cells up to each edge of the bins but the last one.
    up_to: Vec<usize>,
}

impl<K: Key> Between<K> {
    /// # Errors
    /// An execution error for ends that are not finite.
    fn try_new(spec: &KeySpec, wide: &EquiWidth, ends: [KeyBits; 2]) -> Result<Self> {
        let tops = wide.tops(spec, ends)?;
        // A cell begins behind each greatest key of a bin. Bins without values have that of the bin before.
        let last = spec.width().max_key();
        let edges = tops.iter().filter(|top| **top < last).map(|top| top + 1);
        let edges = Edges::try_new(edges.collect())?;
        let up_to = tops
            .iter()
            .map(|top| edges.as_slice().partition_point(|edge| edge <= top) + 1);
        Ok(Self {
            up_to: up_to.collect(),
            len: edges.as_slice().len() + 1,
            cells: EdgeCells::new(spec.clone(), edges),
            tops,
        })
    }

    /// Numbers of values up to the edges of all bins, from those in the cells.
    fn through(&self, counts: &[u64]) -> Vec<u64> {
        let mut sum = 0;
        let sums = counts.iter().map(|count| {
            sum += count;
            sum
        });
        let sums: Vec<u64> = sums.collect();
        let through = self.up_to.iter().map(|cells| sums[cells - 1]);
        through.chain(sums.last().copied()).collect()
    }
}

impl<K: Key> BinsOfOneWidth<K> {
    /// The question for so many bins. `ends`: the keys of the least and the greatest value, if somebody tells them.
    ///
    /// # Errors
    /// A planning error for values without a distance.
    pub(super) fn try_new(spec: KeySpec, bins: usize, ends: Option<[KeyBits; 2]>) -> Result<Self> {
        let wide = EquiWidth::try_new(&spec, bins)?;
        // Ends that have no bins need not be those of the values.
        let bins = ends.and_then(|ends| Between::try_new(&spec, &wide, ends).ok());
        Ok(Self {
            spec,
            wide: Arc::new(wide),
            bins: bins.map(Arc::new),
            seen: None,
            through: Vec::new(),
        })
    }
}

impl<K: Key> ByReads for BinsOfOneWidth<K> {
    type Part = BinsPart<K>;

    fn part(&self, _parts: usize, memory: MemoryReservation) -> Result<BinsPart<K>> {
        let cells = self.bins.as_ref().map_or(0, |bins| bins.len);
        memory.try_resize(cells * size_of::<u64>())?;
        Ok(BinsPart {
            spec: self.spec.clone(),
            bins: self.bins.clone(),
            counts: vec![0; cells],
            rows: 0,
            ends: None,
            keys: Vec::new(),
            _memory: memory,
        })
    }

    fn narrow(&mut self, parts: Vec<BinsPart<K>>) -> Result<bool> {
        let mut counts = vec![0; self.bins.as_ref().map_or(0, |bins| bins.len)];
        let (mut rows, mut ends) = (0, None);
        for part in parts {
            counts
                .iter_mut()
                .zip(&part.counts)
                .for_each(|(sum, count)| *sum += count);
            rows += part.rows;
            ends = around(ends, part.ends);
        }
        let ends = ends.map(|ends| ends.map(K::to_bits));
        let (first, first_rows) = *self.seen.get_or_insert((ends, rows));
        if (first, first_rows) != (ends, rows) {
            return exec_err!("{first_rows} values were read first, {rows} later, or others: {CHANGED}");
        }
        let Some(ends) = ends else { return Ok(true) };
        let wanted = Between::try_new(&self.spec, &self.wide, ends)?;
        // Other ends may have the same bins: files tell -0.0 where the least value is 0.0.
        let counted = self.bins.as_ref().filter(|bins| bins.tops == wanted.tops);
        if let Some(bins) = counted {
            self.through = bins.through(&counts);
            return Ok(true);
        }
        self.bins = Some(Arc::new(wanted));
        Ok(false)
    }

    fn answer(&self) -> Result<ArrayRef> {
        let ends = self.seen.and_then(|(ends, _)| ends);
        self.wide.row(&self.spec, ends, &self.through)
    }
}

/// The ends of two sets of values.
fn around<K: Key>(one: Option<[K; 2]>, other: Option<[K; 2]>) -> Option<[K; 2]> {
    match (one, other) {
        (Some(one), Some(other)) => Some([one[0].min(other[0]), one[1].max(other[1])]),
        (one, other) => one.or(other),
    }
}

/// A part of the values.
pub(super) struct BinsPart<K> {
    spec: KeySpec,
    bins: Option<Arc<Between<K>>>,
    /// Number of values in each cell.
    counts: Vec<u64>,
    rows: u64,
    /// The least and the greatest key.
    ends: Option<[K; 2]>,
    /// Keys of a batch.
    keys: Vec<K>,
    _memory: MemoryReservation,
}

impl<K: Key> ReadPart for BinsPart<K> {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let values = batch.column(0);
        let dense = dense(values.as_ref(), None)?;
        let values = dense.as_ref().unwrap_or(values);
        self.rows += values.len() as u64;
        if let Some(bins) = &self.bins {
            bins.cells.count(values, &mut self.counts)?;
        }
        self.keys.clear();
        self.spec.append_keys(values.as_ref(), &mut self.keys)?;
        let ends = self.keys.first().map(|first| {
            let keys = self.keys.iter();
            keys.fold([*first; 2], |[least, greatest], key| {
                [least.min(*key), greatest.max(*key)]
            })
        });
        self.ends = around(self.ends, ends);
        Ok(())
    }

    fn held(&self) -> usize {
        0
    }
}
