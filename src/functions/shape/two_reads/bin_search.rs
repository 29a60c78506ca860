//! The bin of each value, between edges that an earlier read found.

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};
use datafusion::common::{Result, ScalarValue};

use crate::cells::classify::{ClassifyBlocks, classifier};
use crate::cells::{Cells, Edges, MAX_CELLS};
use crate::key::{Key, KeyBits, KeySpec, Width, dense, with_key};
use crate::threads::locked;

/// A search for the bins of values of one type, with all that does not depend on the values.
#[derive(Debug)]
pub(super) struct BinSearch {
    spec: KeySpec,
    keys: Box<dyn SearchKeys>,
}

impl BinSearch {
    /// The search between bins of which all but the last one have these greatest keys, ascending; a key may occur several times.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn try_new(spec: KeySpec, tops: &[KeyBits]) -> Result<Self> {
        let keys = with_key!(spec.width(), K => Box::new(BetweenTops::<K>::try_new(&spec, tops)?) as Box<dyn SearchKeys>);
        Ok(Self { spec, keys })
    }

    /// The number of the bin that holds each value, NULL for NULL.
    ///
    /// # Errors
    /// Internal errors only.
    fn bins_of(&self, x: &ArrayRef) -> Result<UInt32Array> {
        // Keys of what is there, and NULL in between.
        let dense = dense(x.as_ref(), None)?;
        let bins = self.keys.bins_of(&self.spec, dense.as_ref().unwrap_or(x))?;
        if dense.is_none() {
            return Ok(UInt32Array::from(bins));
        }
        let (nulls, mut bins) = (x.logical_nulls(), bins.into_iter());
        let is_null = |row| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        let bin = |row| if is_null(row) { None } else { bins.next() };
        Ok((0..x.len()).map(bin).collect())
    }
}

/// A search whose keys have a width that is known at run time only.
trait SearchKeys: Debug + Send + Sync {
    /// The bins of values, of which none is NULL.
    fn bins_of(&self, spec: &KeySpec, x: &ArrayRef) -> Result<Vec<u32>>;
}

/// The search in keys of one width. The bin of a key is the number of tops that lie below it.
struct BetweenTops<K> {
    tops: Vec<K>,
    /// The cell function whose cells begin behind the tops; `None` for more bins than it has numbers for.
    cells: Option<Box<dyn ClassifyBlocks<K>>>,
    /// The bin of each cell. It is the cell's number, unless tops are equal.
    bins: Vec<u32>,
}

impl<K: Key> BetweenTops<K> {
    fn try_new(spec: &KeySpec, tops: &[KeyBits]) -> Result<Self> {
        let below_all = tops.iter().filter(|top| **top < spec.width().max_key());
        let edges: Vec<KeyBits> = below_all.map(|top| top + 1).collect();
        let (mut cells, mut bins) = (None, vec![0]);
        if edges.len() < MAX_CELLS {
            let edges = Edges::try_new(edges)?;
            let below = |edge: &KeyBits| tops.partition_point(|top| top < edge) as u32;
            bins.extend(edges.as_slice().iter().map(below));
            cells = Some(classifier::<K>(&Cells::Edges(edges)));
        }
        let tops = tops.iter().map(|top| K::from_bits(*top)).collect();
        Ok(Self { tops, cells, bins })
    }
}

impl<K: Key> SearchKeys for BetweenTops<K> {
    fn bins_of(&self, spec: &KeySpec, x: &ArrayRef) -> Result<Vec<u32>> {
        let mut keys = Vec::with_capacity(x.len());
        spec.append_keys::<K>(x.as_ref(), &mut keys)?;
        let Some(cells) = &self.cells else {
            let bin = |key: &K| self.tops.partition_point(|top| top < key) as u32;
            return Ok(keys.iter().map(bin).collect());
        };
        let mut numbers = vec![0; keys.len()];
        cells.number(&keys, &mut numbers);
        Ok(numbers.iter().map(|cell| self.bins[usize::from(*cell)]).collect())
    }
}

impl<K: Debug> Debug for BetweenTops<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BetweenTops")
            .field("tops", &self.tops)
            .finish_non_exhaustive()
    }
}

/// A search, with the values of the first read that it is for.
#[derive(Debug)]
struct Made {
    first: Vec<ScalarValue>,
    search: BinSearch,
}

/// The search that a function made last: all batches of a query ask for the same one. Functions are equal whatever they made last.
#[derive(Debug, Default)]
pub(super) struct LastSearch(Mutex<Option<Arc<Made>>>);

impl LastSearch {
    /// The number of the bin that holds each value, NULL for NULL, by the search that `search` makes of the values of the
    /// first read, unless it was made before.
    ///
    /// # Errors
    /// Those of `search`.
    pub(super) fn bins_of(
        &self,
        x: &ArrayRef,
        first: Vec<ScalarValue>,
        search: impl FnOnce(&[ScalarValue]) -> Result<BinSearch>,
    ) -> Result<UInt32Array> {
        let last = locked(&self.0).clone();
        if let Some(made) = last.filter(|made| made.first == first) {
            return made.search.bins_of(x);
        }
        let search = search(&first)?;
        let made = Arc::new(Made { first, search });
        *locked(&self.0) = Some(Arc::clone(&made));
        made.search.bins_of(x)
    }
}

impl PartialEq for LastSearch {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LastSearch {}

impl Hash for LastSearch {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Int64Array, UInt8Array};
    use datafusion::arrow::datatypes::DataType;

    use super::*;

    /// Bins are numbers of tops below, where tops are equal, at the ends of the type, and more than a cell function tells apart.
    #[test]
    fn the_bin_of_a_key_is_the_number_of_tops_below_it() -> Result<()> {
        let spec = KeySpec::try_new(&DataType::UInt8)?;
        let values: ArrayRef = Arc::new((0..=255).map(Some).chain([None]).collect::<UInt8Array>());
        for tops in [&[][..], &[0], &[255], &[0, 0, 3, 3, 3, 254, 255, 255], &[7, 8, 9]] {
            let bins = BinSearch::try_new(spec.clone(), tops)?.bins_of(&values)?;
            for (value, bin) in bins.iter().enumerate() {
                let below = tops.iter().filter(|top| **top < value as KeyBits).count() as u32;
                assert_eq!(bin, (value < 256).then_some(below), "{value} of {tops:?}");
            }
        }
        let spec = KeySpec::try_new(&DataType::Int64)?;
        let many: ArrayRef = Arc::new(Int64Array::from_iter_values(0..2 * MAX_CELLS as i64));
        let tops = spec.keys(many.as_ref())?;
        let bins = BinSearch::try_new(spec, &tops)?.bins_of(&many)?;
        assert!(bins.values().iter().copied().eq(0..2 * MAX_CELLS as u32));
        Ok(())
    }
}
