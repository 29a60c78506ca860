//! Counts of keys between a few edges, by comparing every key with every edge: no branch, no table, nothing to wait for.

use std::sync::OnceLock;

use datafusion::arrow::array::ArrayRef;
use datafusion::common::Result;

use crate::cells::classify::{ClassifyBlocks, MOST_COMPARED, classifier};
use crate::cells::simd::{Kernel, dispatch};
use crate::cells::{Cells, Edges};
use crate::key::{Encoding, Key, KeySpec, words};

/// Number of keys that are compared several times while they are in the first-level cache.
pub(super) const PIECE: usize = 1024;

/// Number of edges that a key is compared with while it is in a register.
const TOGETHER: usize = 4;

/// Most edges for which comparing with each is faster than a search tree and a counter.
const COMPARED: usize = 64;

/// Adds the number of keys of a piece at or above each edge to `counts`. Inlined, so that it is compiled for the instruction set of its
/// caller.
#[inline(always)]
pub(super) fn count_from_edges<K: Key>(piece: &[K], edges: &[K], counts: &mut [u64]) {
    let (groups, rest) = edges.as_chunks::<TOGETHER>();
    let (group_counts, rest_counts) = counts.as_chunks_mut::<TOGETHER>();
    for (edges, counts) in groups.iter().zip(group_counts) {
        let mut sums = [0_u64; TOGETHER];
        for key in piece {
            for (sum, edge) in sums.iter_mut().zip(edges) {
                *sum += u64::from(key >= edge);
            }
        }
        for (count, sum) in counts.iter_mut().zip(sums) {
            *count += sum;
        }
    }
    for (edge, count) in rest.iter().zip(rest_counts) {
        *count += piece.iter().map(|key| u64::from(key >= edge)).sum::<u64>();
    }
}

/// The cells between some edges, ready to count the values of a column.
pub(crate) struct EdgeCells<K> {
    spec: KeySpec,
    edges: Vec<K>,
    /// Finds the cell of each key; made when first asked, since that between many edges takes half a megabyte.
    classifier: OnceLock<Box<dyn ClassifyBlocks<K>>>,
    cells: Cells,
}

impl<K: Key> EdgeCells<K> {
    /// The cells between `edges`, for values of `spec`, whose keys are `K`.
    pub(crate) fn new(spec: KeySpec, edges: Edges) -> Self {
        Self {
            spec,
            edges: edges.as_slice().iter().map(|edge| K::from_bits(*edge)).collect(),
            classifier: OnceLock::new(),
            cells: Cells::Edges(edges),
        }
    }

    /// Adds the number of values in each cell to `counts`, which has one count for each cell. No value is NULL.
    ///
    /// # Errors
    /// An internal error for values of another type.
    pub(crate) fn count(&self, values: &ArrayRef, counts: &mut [u64]) -> Result<()> {
        let raw = self.spec.raw(values.as_ref())?;
        let words = words::<K>(&raw);
        if self.edges.len() > COMPARED {
            self.each_number(words, |number| counts[usize::from(number)] += 1);
            return Ok(());
        }
        let mut above = vec![0; self.edges.len()];
        dispatch(CountWords {
            words,
            encoding: self.spec.encoding(),
            edges: &self.edges,
            above: &mut above,
        });
        let mut rest = words.len() as u64;
        for (count, above) in counts.iter_mut().zip(above.into_iter().chain([0])) {
            *count += rest - above;
            rest = above;
        }
        Ok(())
    }

    /// Memory held, in bytes.
    pub(crate) fn size(&self) -> usize {
        let has_tree = self.edges.len() > MOST_COMPARED && self.classifier.get().is_some();
        let tree = if has_tree { 1 << 16 } else { 0 };
        (self.edges.capacity() + tree) * size_of::<K>()
    }

    /// Appends the cell of each value. No value is NULL.
    ///
    /// # Errors
    /// An internal error for values of another type.
    pub(crate) fn numbers(&self, values: &ArrayRef, numbers: &mut Vec<u16>) -> Result<()> {
        let raw = self.spec.raw(values.as_ref())?;
        self.each_number(words::<K>(&raw), |number| numbers.push(number));
        Ok(())
    }

    /// Calls `each` with the cell of each word.
    fn each_number(&self, words: &[K], mut each: impl FnMut(u16)) {
        let (mut keys, mut numbers) = ([K::default(); PIECE], [0; PIECE]);
        for words in words.chunks(PIECE) {
            let (keys, numbers) = (&mut keys[..words.len()], &mut numbers[..words.len()]);
            self.spec.encoding().encode(words, keys);
            self.classifier
                .get_or_init(|| classifier(&self.cells))
                .number(keys, numbers);
            numbers.iter().for_each(|number| each(*number));
        }
    }
}

/// Counts the words of a column whose keys are at or above each edge.
struct CountWords<'a, K> {
    words: &'a [K],
    encoding: Encoding,
    edges: &'a [K],
    above: &'a mut [u64],
}

impl<K: Key> Kernel for CountWords<'_, K> {
    #[inline(always)]
    fn run(self) {
        let mut keys = [K::default(); PIECE];
        for words in self.words.chunks(PIECE) {
            let keys = &mut keys[..words.len()];
            self.encoding.encode(words, keys);
            count_from_edges(keys, self.edges, self.above);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::Float64Array;
    use datafusion::arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn counts_are_those_of_a_comparison_with_each_edge() {
        let spec = KeySpec::try_new(&DataType::Float64).unwrap();
        let values: Vec<f64> = (0..5000_u32)
            .map(|i| match i % 97 {
                0 => f64::NAN,
                1 => -f64::NAN,
                2 => -0.0,
                rest => f64::from(rest) - f64::from(i % 13) * 8.0,
            })
            .collect();
        let array: ArrayRef = Arc::new(Float64Array::from(values.clone()));
        let keys = spec.keys(array.as_ref()).unwrap();
        for edges in [0, 1, 3, 4, 5, 16, 17, 64, 65, 200] {
            let edges: Vec<_> = (0..edges).map(|i| spec.float_key(f64::from(i) - 50.0)).collect();
            let expected = keys.iter().fold(vec![0; edges.len() + 1], |mut counts, key| {
                counts[edges.iter().filter(|edge| *edge <= key).count()] += 1;
                counts
            });
            let cells = EdgeCells::<u64>::new(spec.clone(), Edges::try_new(edges).unwrap());
            let mut counts = vec![0; expected.len()];
            cells.count(&array, &mut counts).unwrap();
            assert_eq!(counts, expected);
            let (mut numbers, mut counted) = (Vec::new(), vec![0; expected.len()]);
            cells.numbers(&array, &mut numbers).unwrap();
            numbers
                .iter()
                .for_each(|number| counted[usize::from(*number)] += 1);
            assert_eq!(counted, expected);
        }
    }
}
