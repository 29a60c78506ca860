//! Copies of the few keys that lie in brackets or in certain cells. The loops are branch-free, because a branch that is
//! taken at random costs more than ten keys.

use std::ops::RangeInclusive;

use datafusion::common::Result;

use super::edges::{PIECE, count_from_edges};
use super::store::BLOCK;
use crate::cells::classify::{Classify, TreeOf, boxed_array, number};
use crate::cells::simd::{Kernel, dispatch};
use crate::cells::{Brackets, Edges};
use crate::key::{Key, Width};

/// Number of neighbouring keys whose flags, or cells, are tested together before any of them is copied: the flags are a word.
const GROUP: usize = 8;

/// Appends to `out` the keys of a piece (at most [`PIECE`]) that lie in brackets, each given by its first key and its length. Few keys
/// do. One loop without a branch flags them, another one takes the flags eight at a time.
#[inline(always)]
fn compact<K: Key>(piece: &[K], brackets: &[(K, K)], out: &mut Vec<K>) {
    let mut flags = [0_u8; PIECE];
    for (flag, key) in flags.iter_mut().zip(piece) {
        let inside = |any, (first, span): &(K, K)| any | (key.minus(*first) <= *span);
        *flag = u8::from(brackets.iter().fold(false, inside));
    }
    for (keys, flags) in piece.chunks(GROUP).zip(flags.as_chunks::<GROUP>().0) {
        let mut flags = u64::from_le_bytes(*flags);
        while flags != 0 {
            out.push(keys[(flags.trailing_zeros() / u8::BITS) as usize]);
            flags &= flags - 1;
        }
    }
}

/// For every cell: the list that its keys go to, if any.
pub(super) struct CellLists {
    /// The index of the list plus 1; 0 for none.
    of: Box<[u16; 1 << 16]>,
}

impl CellLists {
    /// Sends no cell to any list.
    pub(super) fn new() -> Self {
        Self { of: boxed_array(0) }
    }

    /// Sends the keys of a range of cells to a list, one of at most 65 535.
    pub(super) fn send(&mut self, cells: RangeInclusive<u32>, list: usize) {
        self.of[*cells.start() as usize..=*cells.end() as usize].fill(list as u16 + 1);
    }

    /// Adds the keys of a block (at most [`BLOCK`]), whose cells are `numbers`, to their lists. Returns the number of
    /// keys added.
    pub(super) fn distribute<K: Key>(&self, block: &[K], numbers: &[u16], lists: &mut [Vec<K>]) -> usize {
        self.distribute_by(&numbers[..block.len()], lists, |at| block[at])
    }

    /// Adds keys as [`Self::distribute`] does, of which `key` gives each by its index in the block.
    pub(super) fn distribute_by<K>(
        &self,
        numbers: &[u16],
        lists: &mut [Vec<K>],
        key: impl Fn(usize) -> K,
    ) -> usize {
        let mut chosen = [0; BLOCK];
        let len = self.choose(numbers, &mut chosen);
        for at in &chosen[..len] {
            let at = usize::from(*at);
            lists[usize::from(self.of[usize::from(numbers[at])]) - 1].push(key(at));
        }
        len
    }

    /// Appends to `out` the keys of a block that go to any list.
    pub(super) fn filter<K: Key>(&self, block: &[K], numbers: &[u16], out: &mut Vec<K>) {
        let mut chosen = [0; BLOCK];
        let len = self.choose(&numbers[..block.len()], &mut chosen);
        out.extend(chosen[..len].iter().map(|at| block[usize::from(*at)]));
    }

    /// Writes to `chosen` the indices of the cells that go to any list. Returns how many these are.
    fn choose(&self, numbers: &[u16], chosen: &mut [u16; BLOCK]) -> usize {
        let goes = |number: u16| self.of[usize::from(number)] != 0;
        let mut len = 0;
        let (groups, rest) = numbers.as_chunks::<GROUP>();
        for (index, group) in groups.iter().enumerate() {
            if group
                .iter()
                .fold(0, |any, number| any | self.of[usize::from(*number)])
                != 0
            {
                for (at, number) in group.iter().enumerate() {
                    chosen[len % BLOCK] = (index * GROUP + at) as u16;
                    len += usize::from(goes(*number));
                }
            }
        }
        for (at, number) in rest.iter().enumerate() {
            chosen[len % BLOCK] = (groups.len() * GROUP + at) as u16;
            len += usize::from(goes(*number));
        }
        len
    }
}

/// Appends to `out` the keys of a block inside any of a few brackets, each given by its first key and its length, by
/// comparisons. `counts[i]` grows by the number of keys at or above edge `i`.
pub(super) fn by_compares<K: Key>(
    block: &[K],
    edges: &[K],
    counts: &mut [u64],
    brackets: &[(K, K)],
    out: &mut Vec<K>,
) {
    dispatch(ByCompares {
        block,
        edges,
        counts,
        brackets,
        out,
    });
}

struct ByCompares<'a, K> {
    block: &'a [K],
    edges: &'a [K],
    counts: &'a mut [u64],
    brackets: &'a [(K, K)],
    out: &'a mut Vec<K>,
}

impl<K: Key> Kernel for ByCompares<'_, K> {
    #[inline(always)]
    fn run(self) {
        for piece in self.block.chunks(PIECE) {
            count_from_edges(piece, self.edges, self.counts);
            match self.brackets {
                [] => {}
                // The number of brackets is known here, so the loop over them is unrolled.
                [only] => compact(piece, &[*only], self.out),
                [one, two] => compact(piece, &[*one, *two], self.out),
                several => compact(piece, several, self.out),
            }
        }
    }
}

/// Brackets over keys of one width: finds the bracket that holds a key.
pub(super) struct BracketFinder<K> {
    /// A search tree of all ends of the brackets. The keys of a cell inside a bracket go to the bracket's list.
    tree: TreeOf<K>,
    lists_of_cells: CellLists,
}

impl<K: Key> BracketFinder<K> {
    /// # Errors
    /// An internal error for more brackets than a cell function can tell apart.
    pub(super) fn new(brackets: &Brackets, width: Width) -> Result<Self> {
        let ends = brackets.as_slice().iter().flat_map(|bracket| {
            let after = (bracket.last < width.max_key()).then(|| bracket.last + 1);
            [Some(bracket.first), after].into_iter().flatten()
        });
        let edges = Edges::try_new(ends.collect())?;
        let tree = TreeOf::new(&edges);
        let mut lists_of_cells = CellLists::new();
        for (list, bracket) in brackets.as_slice().iter().enumerate() {
            let cell = |key| u32::from(tree.cell(K::from_bits(key)));
            lists_of_cells.send(cell(bracket.first)..=cell(bracket.last), list);
        }
        Ok(Self { tree, lists_of_cells })
    }

    /// Appends to `out` the keys of a block (at most [`BLOCK`]) that lie in any bracket.
    pub(super) fn filter(&self, block: &[K], out: &mut Vec<K>) {
        let mut numbers = [0; BLOCK];
        number(block, &self.tree, &mut numbers[..block.len()]);
        self.lists_of_cells.filter(block, &numbers, out);
    }

    /// Adds the keys of a block (at most [`BLOCK`]) to the lists of their brackets. Returns the number of keys added.
    pub(super) fn distribute(&self, block: &[K], lists: &mut [Vec<K>]) -> usize {
        let mut numbers = [0; BLOCK];
        number(block, &self.tree, &mut numbers[..block.len()]);
        self.lists_of_cells.distribute(block, &numbers, lists)
    }
}
