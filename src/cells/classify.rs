//! Cell functions over keys of one width: those that [`crate::cells`] defines, ready for an inner loop.
//!
//! Cells are `u16`, so that counters in an array of 65536 need no bounds check. Where a key may have no cell, it
//! gets the number after the last one: counted, then forgotten.

use crate::cells::simd::{Kernel, dispatch};
use crate::cells::{CellTable, Cells, Edges, Linear};
use crate::key::Key;

/// A cell function over keys of one width.
pub(crate) trait Classify<K: Key>: Sync {
    /// The cell of a key; the number of cells if the key has none.
    fn cell(&self, key: K) -> u16;

    /// Writes the cells of keys to `numbers`, which has the same length.
    #[inline(always)]
    fn cells(&self, keys: &[K], numbers: &mut [u16]) {
        for (key, number) in keys.iter().zip(numbers) {
            *number = self.cell(*key);
        }
    }
}

/// Writes the cells of a block of keys to `numbers`, which has the same length. Separate from the use of the cells, so
/// that the compiler can vectorise it.
pub(crate) fn number<K: Key>(keys: &[K], classify: &impl Classify<K>, numbers: &mut [u16]) {
    dispatch(Number {
        keys,
        classify,
        numbers,
    });
}

struct Number<'a, K, C> {
    keys: &'a [K],
    classify: &'a C,
    numbers: &'a mut [u16],
}

impl<K: Key, C: Classify<K>> Kernel for Number<'_, K, C> {
    #[inline(always)]
    fn run(self) {
        self.classify.cells(self.keys, self.numbers);
    }
}

/// Calls `$body` with a [`Classify`] for `$cells`.
macro_rules! with_classifier {
    ($cells:expr, $key:ty, $classify:ident => $body:expr) => {
        match $cells {
            Cells::Table(table) => {
                let $classify = TableOf::<$key>::new(table);
                $body
            }
            Cells::Linear(linear) => {
                let $classify = LinearOf::<$key>::new(linear);
                $body
            }
            Cells::Edges(edges) => {
                let $classify = TreeOf::<$key>::new(edges);
                $body
            }
        }
    };
}
pub(crate) use with_classifier;

/// A cell function that is asked for whole blocks of keys, so that it can stand behind a pointer.
pub(crate) trait ClassifyBlocks<K>: Send + Sync {
    /// Writes the cells of a block of keys to `numbers`, which has the same length.
    fn number(&self, keys: &[K], numbers: &mut [u16]);
}

impl<K: Key, C: Classify<K> + Send> ClassifyBlocks<K> for C {
    fn number(&self, keys: &[K], numbers: &mut [u16]) {
        number(keys, self, numbers);
    }
}

/// `cells` over keys of one width.
pub(crate) fn classifier<K: Key>(cells: &Cells) -> Box<dyn ClassifyBlocks<K>> {
    if let Cells::Edges(edges) = cells
        && edges.as_slice().len() <= MOST_COMPARED
    {
        return Box::new(ComparedOf::new(edges));
    }
    with_classifier!(cells, K, classify => Box::new(classify))
}

/// Most edges for which comparing a key with each is faster than a search tree, which takes half a megabyte.
pub(crate) const MOST_COMPARED: usize = 16;

/// Number of keys that are compared with all edges while they are in the first-level cache.
const PIECE: usize = 256;

/// The cells between few edges: each key is compared with each edge, without a branch or a load from a table.
pub(crate) struct ComparedOf<K> {
    edges: Vec<K>,
}

impl<K: Key> ComparedOf<K> {
    fn new(edges: &Edges) -> Self {
        Self {
            edges: edges.as_slice().iter().map(|edge| K::from_bits(*edge)).collect(),
        }
    }
}

impl<K: Key> Classify<K> for ComparedOf<K> {
    #[inline(always)]
    fn cell(&self, key: K) -> u16 {
        self.edges.iter().map(|edge| u16::from(key >= *edge)).sum()
    }

    #[inline(always)]
    fn cells(&self, keys: &[K], numbers: &mut [u16]) {
        for (keys, numbers) in keys.chunks(PIECE).zip(numbers.chunks_mut(PIECE)) {
            // Sums as wide as keys, so that both are compared and added in the same lanes.
            let mut sums = [K::default(); PIECE];
            for edge in &self.edges {
                for (key, sum) in keys.iter().zip(&mut sums) {
                    *sum = *sum + if key >= edge { K::one() } else { K::default() };
                }
            }
            for (number, sum) in numbers.iter_mut().zip(&sums) {
                *number = sum.shr32(0) as u16;
            }
        }
    }
}

/// Computes the cells of all keys, `$several` at a time, then those of the rest. This is not a function over closures,
/// which would not be inlined into code for other instruction sets.
macro_rules! in_groups {
    ($classify:expr, $keys:expr, $numbers:expr, $of_group:ident, $several:expr) => {{
        let (groups, rest) = $keys.as_chunks::<{ $several }>();
        let (group_numbers, rest_numbers) = $numbers.as_chunks_mut::<{ $several }>();
        for (keys, numbers) in groups.iter().zip(group_numbers) {
            *numbers = $classify.$of_group(keys);
        }
        for (key, number) in rest.iter().zip(rest_numbers) {
            *number = $classify.cell(*key);
        }
    }};
}

const ENTRIES: usize = 1 << CellTable::ENTRY_BITS;

/// The cell function [`CellTable`]: a shift, a load, and a shift.
pub(crate) struct TableOf<K> {
    base: K,
    top: K,
    span: K,
    shift: u32,
    /// `add` of an entry in the upper half, `shift` in the lower one: both take one load.
    entries: Box<[u64; ENTRIES]>,
    heavy: Vec<K>,
}

impl<K: Key> TableOf<K> {
    pub(crate) fn new(table: &CellTable) -> Self {
        let mut entries = Box::new([0; ENTRIES]);
        for (slot, entry) in entries.iter_mut().zip(&table.entries) {
            *slot = u64::from(entry.add) << 32 | u64::from(entry.shift);
        }
        Self {
            base: K::from_bits(table.base),
            top: K::from_bits(table.top),
            span: K::from_bits(table.top - table.base),
            shift: table.shift,
            entries,
            heavy: table.heavy.iter().map(|key| K::from_bits(*key)).collect(),
        }
    }
}

impl<K: Key> TableOf<K> {
    /// Computes the cells of several keys step by step, so that all steps but the loads can be vectorised.
    #[inline(always)]
    fn look_up<const N: usize>(&self, keys: &[K; N]) -> [u16; N] {
        // Loops over arrays, because `map` would not be inlined into code for other instruction sets.
        let (mut above, mut entries, mut cells) = ([K::default(); N], [0_u64; N], [0_u16; N]);
        for i in 0..N {
            above[i] = keys[i].max(self.base).minus(self.base).min(self.span);
        }
        for i in 0..N {
            entries[i] = self.entries[above[i].shr32(self.shift) as usize % ENTRIES];
        }
        for i in 0..N {
            let inner = above[i].shr32(entries[i] as u32 % K::BITS);
            let cell = inner.wrapping_add((entries[i] >> 32) as u32) as u16;
            cells[i] = cell
                .wrapping_add(u16::from(keys[i] > self.top))
                .wrapping_sub(u16::from(keys[i] < self.base));
        }
        for heavy in &self.heavy {
            for i in 0..N {
                cells[i] += u16::from(keys[i] >= *heavy) + u16::from(keys[i] > *heavy);
            }
        }
        cells
    }
}

impl<K: Key> Classify<K> for TableOf<K> {
    #[inline(always)]
    fn cell(&self, key: K) -> u16 {
        self.look_up(&[key])[0]
    }

    #[inline(always)]
    fn cells(&self, keys: &[K], numbers: &mut [u16]) {
        // As many keys as the registers hold.
        if size_of::<K>() == 4 {
            in_groups!(self, keys, numbers, look_up, 64)
        } else {
            in_groups!(self, keys, numbers, look_up, 16)
        }
    }
}

/// One piece of [`LinearOf`].
#[derive(Clone, Copy)]
struct PieceOf<K> {
    first: K,
    span: K,
    shift: u32,
    slope: u64,
    base: u16,
}

/// The cell function [`Linear`]: a branch-free binary search for the piece, then one multiplication.
pub(crate) struct LinearOf<K> {
    pieces: Vec<PieceOf<K>>,
    outside: u16,
}

impl<K: Key> LinearOf<K> {
    pub(crate) fn new(linear: &Linear) -> Self {
        let pieces = linear.pieces.iter().map(|piece| PieceOf {
            first: K::from_bits(piece.first),
            span: K::from_bits(piece.last - piece.first),
            shift: piece.shift,
            slope: piece.slope,
            base: piece.base as u16,
        });
        let outside = linear
            .pieces
            .last()
            .map_or(0, |piece| (piece.base + piece.cells) as u16);
        Self {
            pieces: pieces.collect(),
            outside,
        }
    }
}

impl<K: Key> Classify<K> for LinearOf<K> {
    #[inline(always)]
    fn cell(&self, key: K) -> u16 {
        let (mut at, mut left) = (0, self.pieces.len());
        while left > 1 {
            let half = left / 2;
            at += if self.pieces[at + half].first <= key {
                half
            } else {
                0
            };
            left -= half;
        }
        let piece = self.pieces[at];
        let distance = key.minus(piece.first);
        if key < piece.first || distance > piece.span {
            return self.outside;
        }
        let moved = distance.upper64(piece.shift);
        piece.base + ((u128::from(moved) * u128::from(piece.slope)) >> 64) as u16
    }
}

/// [`Edges`] as an implicit search tree (SampleSelect, section IV-B; Sanders and Winkel's layout): the children of
/// node `i` are `2i` and `2i + 1`, so a descent is a compare and an addition a level, without a branch.
pub(crate) struct TreeOf<K> {
    /// The nodes, as many as a `u16` can index, so that a descent needs no bounds check. The tree is at the front.
    nodes: Box<[K; 1 << 16]>,
    /// The nodes of the first [`TOP`] levels in ascending order, if the tree has so many levels. Comparing with all of
    /// them takes no loads.
    top: [K; (1 << TOP) - 1],
    levels: u32,
    last: u16,
}

/// Number of levels whose nodes are compared with at once.
const TOP: u32 = 4;

/// Number of descents at a time: each waits for one load a level.
const FLIGHT: usize = 64;

impl<K: Key> TreeOf<K> {
    pub(crate) fn new(edges: &Edges) -> Self {
        let edges = edges.as_slice();
        let levels = usize::BITS - edges.len().leading_zeros();
        let leaves = 1_usize << levels;
        // Beyond the last edge the tree is padded with the greatest key. A key that equals it overshoots, and is
        // clamped.
        let padded = |at: usize| edges.get(at).map_or(K::MAX, |edge| K::from_bits(*edge));
        // Zeros come without being written: no memory beyond the tree is touched.
        let mut nodes = boxed_array(K::default());
        for level in 0..levels {
            for place in 0..1_usize << level {
                let stride = leaves >> level;
                nodes[(1 << level) + place] = padded(place * stride + stride / 2 - 1);
            }
        }
        let top = std::array::from_fn(|place| padded((place + 1) * (leaves >> TOP).max(1) - 1));
        Self {
            nodes,
            top,
            levels,
            last: edges.len() as u16,
        }
    }

    #[inline(always)]
    fn descend<const N: usize>(&self, keys: &[K; N]) -> [u16; N] {
        let mut at = [1_u32; N];
        let mut done = 0;
        if self.levels >= TOP {
            (at, done) = ([1 << TOP; N], TOP);
            for edge in &self.top {
                for (at, key) in at.iter_mut().zip(keys) {
                    *at += u32::from(*edge <= *key);
                }
            }
        }
        for _ in done..self.levels {
            for (at, key) in at.iter_mut().zip(keys) {
                *at = 2 * *at + u32::from(self.nodes[usize::from(*at as u16)] <= *key);
            }
        }
        at.map(|at| (at - (1 << self.levels)).min(u32::from(self.last)) as u16)
    }
}

impl<K: Key> Classify<K> for TreeOf<K> {
    #[inline(always)]
    fn cell(&self, key: K) -> u16 {
        self.descend(&[key])[0]
    }

    #[inline(always)]
    fn cells(&self, keys: &[K], numbers: &mut [u16]) {
        in_groups!(self, keys, numbers, descend, FLIGHT)
    }
}

/// An array with one element for every `u16`, on the heap.
pub(crate) fn boxed_array<T: Copy>(value: T) -> Box<[T; 1 << 16]> {
    match vec![value; 1 << 16].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("the length is the array's"),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::Result;

    use super::*;
    use crate::cells::{Bracket, Cells};
    use crate::key::{KeyVec, Width};

    fn agree<K: Key>(cells: &Cells, keys: impl IntoIterator<Item = K>) -> Result<()> {
        let keys: Vec<K> = keys.into_iter().collect();
        let expected = |key: &K| cells.cell(key.to_bits()).unwrap_or(cells.len() as u32);
        with_classifier!(cells, K, classify => {
            for key in &keys {
                assert_eq!(u32::from(classify.cell(*key)), expected(key), "{key:?} in {cells:?}");
            }
        });
        let mut numbers = vec![0; keys.len()];
        classifier(cells).number(&keys, &mut numbers);
        for (key, number) in keys.iter().zip(numbers) {
            assert_eq!(u32::from(number), expected(key), "{key:?} in {cells:?}");
        }
        Ok(())
    }

    #[test]
    fn classifiers_agree_with_the_definitions() {
        let keys: Vec<u64> = (0..3000_u64)
            .map(|i| {
                if i % 3 == 0 {
                    i
                } else {
                    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                }
            })
            .chain([0, 1, u64::MAX, u64::MAX - 1])
            .collect();
        let mut sample = keys[..2000].to_vec();
        sample.sort_unstable();
        let bracket = |first, last| Bracket { first, last };
        let intervals = [
            (bracket(0, 40), 8),
            (bracket(100, 1 << 40), 100),
            (bracket(1 << 60, u64::MAX.into()), 3000),
        ];
        let table = Cells::Table(CellTable::from_sample(&KeyVec::W64(sample.clone()), 4096).unwrap());
        let linear = Cells::Linear(Linear::try_new(&intervals, Width::W64).unwrap());
        agree(&table, keys.iter().copied()).unwrap();
        let Cells::Table(with_heavy) = table else {
            unreachable!("made just now");
        };
        let heavy = vec![0, 3, 6, sample[500].into(), u64::MAX.into()];
        let with_heavy = Cells::Table(with_heavy.with_heavy(heavy).unwrap());
        agree(&with_heavy, keys.iter().copied()).unwrap();
        agree(&linear, keys.iter().copied()).unwrap();
        for count in [0, 1, 2, 3, 4, 7, 8, 9, 100] {
            let edges: Vec<u128> = sample
                .iter()
                .step_by(2000 / (count + 1))
                .take(count)
                .map(|k| (*k).into())
                .collect();
            let tree = Cells::Edges(Edges::try_new([edges, vec![u64::MAX.into()]].concat()).unwrap());
            agree(&tree, keys.iter().copied()).unwrap();
        }
    }

    #[test]
    fn narrow_and_wide_keys_too() {
        let narrow: Vec<u32> = (0..2000_u32)
            .map(|i| i.wrapping_mul(0x9e37_79b9))
            .chain([0, u32::MAX])
            .collect();
        let wide: Vec<u128> = narrow
            .iter()
            .map(|key| (u128::from(*key) * u128::from(*key)) << 60)
            .collect();
        let (mut a, mut b) = (narrow.clone(), wide.clone());
        a.sort_unstable();
        b.sort_unstable();
        let everything = |width: Width| {
            [(
                Bracket {
                    first: 0,
                    last: width.max_key(),
                },
                5000,
            )]
        };
        agree(
            &Cells::Table(CellTable::from_sample(&KeyVec::W32(a), 4096).unwrap()),
            narrow.clone(),
        )
        .unwrap();
        agree(
            &Cells::Table(CellTable::from_sample(&KeyVec::W128(b), 4096).unwrap()),
            wide.clone(),
        )
        .unwrap();
        agree(
            &Cells::Linear(Linear::try_new(&everything(Width::W32), Width::W32).unwrap()),
            narrow,
        )
        .unwrap();
        agree(
            &Cells::Linear(Linear::try_new(&everything(Width::W128), Width::W128).unwrap()),
            wide,
        )
        .unwrap();
    }
}
