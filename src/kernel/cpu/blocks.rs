//! Answers to `count` and `extract` that are made block by block, wherever the keys come from: a shard's store, or a scan.

use std::sync::Arc;

use datafusion::common::Result;

use super::count::Counters;
use super::extract::{self, BracketFinder, CellLists};
use super::lists::Lists;
use super::store::BLOCK;
use crate::cells::classify::{ClassifyBlocks, TreeOf, classifier, number};
use crate::cells::{Bracket, Brackets, Cells, Edges};
use crate::key::{Key, ShardKey, Width};
use crate::memory::RoundMemory;

/// Counts and kept keys of some cells.
pub(super) type Counted<K> = (Vec<u64>, Lists<K>);

/// A count of all cells of a cell function, which also collects the keys of some cells.
pub(super) struct CellCount<K> {
    classify: Box<dyn ClassifyBlocks<K>>,
    counters: Counters,
    cell_lists: CellLists,
    kept: Lists<K>,
}

impl<K: ShardKey> CellCount<K> {
    /// A count of no key yet, which keeps the keys of the cells `keep` in `round_memory`.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory for empty lists.
    pub(super) fn new(cells: &Cells, keep: &[u32], round_memory: &Arc<RoundMemory>) -> Result<Self> {
        Ok(Self {
            classify: classifier(cells),
            counters: Counters::new(cells.len()),
            cell_lists: lists_of(keep),
            kept: Lists::new(keep.len(), round_memory)?,
        })
    }

    /// Counts a block of keys, and writes their cells to `numbers`, which has the same length.
    pub(super) fn add(&mut self, block: &[K], numbers: &mut [u16]) {
        self.classify.number(block, numbers);
        self.counters.add(numbers);
        if !self.kept.is_empty() {
            self.kept
                .add(|lists| self.cell_lists.distribute(block, numbers, lists));
        }
    }

    pub(super) fn finish(self) -> Counted<K> {
        (self.counters.finish(), self.kept)
    }
}

/// A count between a few edges by comparisons, which also copies the keys of some cells.
pub(super) struct FewCount<K> {
    tree: TreeOf<K>,
    edges: Vec<K>,
    /// Number of keys at or above each edge.
    above: Vec<u64>,
    /// Number of all keys.
    total: u64,
    /// First key and length of the ranges of the cells `keep`.
    ranges: Vec<(K, K)>,
    keep: Vec<u32>,
    /// One list: the keys of all cells of `keep`.
    copied: Lists<K>,
    round_memory: Arc<RoundMemory>,
}

impl<K: ShardKey> FewCount<K> {
    /// Most edges for which this is faster than [`CellCount`].
    const EDGES: usize = 12;

    /// A count of no key yet, which keeps the keys of the cells `keep` in `round_memory`. `None` if `cells` are no edges, or too many.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory for an empty list.
    pub(super) fn try_new(
        cells: &Cells,
        keep: &[u32],
        width: Width,
        round_memory: &Arc<RoundMemory>,
    ) -> Result<Option<Self>> {
        let Cells::Edges(edges) = cells else {
            return Ok(None);
        };
        if edges.as_slice().len() > Self::EDGES {
            return Ok(None);
        }
        Ok(Some(Self {
            tree: TreeOf::new(edges),
            edges: keys_of(edges),
            above: vec![0; edges.as_slice().len()],
            total: 0,
            ranges: kept_ranges(cells, keep, width),
            keep: keep.to_vec(),
            copied: Lists::new(1, round_memory)?,
            round_memory: Arc::clone(round_memory),
        }))
    }

    /// Counts a block of keys.
    pub(super) fn add(&mut self, block: &[K]) {
        self.total += block.len() as u64;
        let (edges, above) = (&self.edges, &mut self.above);
        if self.copied.are_dropped() {
            extract::by_compares(block, edges, above, &[], &mut Vec::new());
        }
        self.copied.add(|lists| {
            let before = lists[0].len();
            extract::by_compares(block, edges, above, &self.ranges, &mut lists[0]);
            lists[0].len() - before
        });
    }

    pub(super) fn finish(self) -> Counted<K> {
        let counts = cells_from_edges(self.total, &self.above);
        if self.keep.len() == 1 || self.copied.are_dropped() {
            return (counts, self.copied);
        }
        let cell_lists = lists_of(&self.keep);
        // The copied keys may take all the memory that there is.
        let Ok(mut kept) = Lists::new(self.keep.len(), &self.round_memory) else {
            return (counts, Lists::dropped());
        };
        let (copied, _lease) = self.copied.finish();
        let mut numbers = [0; BLOCK];
        for block in copied.iter().flat_map(|copied| copied.chunks(BLOCK)) {
            let numbers = &mut numbers[..block.len()];
            number(block, &self.tree, numbers);
            kept.add(|lists| cell_lists.distribute(block, numbers, lists));
        }
        (counts, kept)
    }
}

/// The keys inside each of some brackets.
pub(super) struct Extraction<K> {
    finder: Finder<K>,
    lists: Lists<K>,
}

/// How the bracket of a key is found.
enum Finder<K> {
    Search(BracketFinder<K>),
    /// By a cell function of which each bracket is a range of whole cells: faster than a search among many brackets.
    Cells(Box<dyn ClassifyBlocks<K>>, CellLists),
}

impl<K: ShardKey> Extraction<K> {
    /// An extraction of no key yet, which collects keys in `round_memory`. `counted`: cells that may be faster to compute than brackets
    /// are to search.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no memory for empty lists; internal errors.
    pub(super) fn new(
        brackets: &Brackets,
        counted: Option<&Cells>,
        width: Width,
        round_memory: &Arc<RoundMemory>,
    ) -> Result<Self> {
        let by_cells = match counted {
            Some(cells) => lists_of_brackets(brackets, cells, width)?.map(|lists| (classifier(cells), lists)),
            None => None,
        };
        Ok(Self {
            finder: match by_cells {
                Some((classify, lists)) => Finder::Cells(classify, lists),
                None => Finder::Search(BracketFinder::new(brackets, width)?),
            },
            lists: Lists::new(brackets.as_slice().len(), round_memory)?,
        })
    }

    /// Collects from a block of keys.
    pub(super) fn add(&mut self, block: &[K]) {
        match &self.finder {
            Finder::Search(finder) => self.lists.add(|lists| finder.distribute(block, lists)),
            Finder::Cells(classify, cell_lists) => {
                let mut numbers = [0; BLOCK];
                let numbers = &mut numbers[..block.len()];
                classify.number(block, numbers);
                self.lists
                    .add(|lists| cell_lists.distribute(block, numbers, lists));
            }
        }
    }

    pub(super) fn finish(self) -> Lists<K> {
        self.lists
    }
}

/// Sends the cells of each bracket to the bracket's list. `None` if a bracket does not consist of whole cells.
///
/// # Errors
/// Internal errors only.
pub(super) fn lists_of_brackets(
    brackets: &Brackets,
    cells: &Cells,
    width: Width,
) -> Result<Option<CellLists>> {
    let mut cell_lists = CellLists::new();
    for (list, bracket) in brackets.as_slice().iter().enumerate() {
        let (first, last) = cells.span(bracket)?;
        let (Some(from), Some(to)) = (cells.range(first, width), cells.range(last, width)) else {
            return Ok(None);
        };
        if from.first < bracket.first || to.last > bracket.last {
            return Ok(None);
        }
        cell_lists.send(first..=last, list);
    }
    Ok(Some(cell_lists))
}

/// Sends each of the kept cells to its own list.
fn lists_of(keep: &[u32]) -> CellLists {
    let mut cell_lists = CellLists::new();
    for (list, cell) in keep.iter().enumerate() {
        cell_lists.send(*cell..=*cell, list);
    }
    cell_lists
}

/// The edges as keys of one width.
fn keys_of<K: Key>(edges: &Edges) -> Vec<K> {
    edges.as_slice().iter().map(|edge| K::from_bits(*edge)).collect()
}

/// First key and length of the ranges of kept cells; neighbouring cells are joined.
fn kept_ranges<K: Key>(cells: &Cells, keep: &[u32], width: Width) -> Vec<(K, K)> {
    let mut joined: Vec<Bracket> = Vec::new();
    for range in keep.iter().filter_map(|cell| cells.range(*cell, width)) {
        match joined.last_mut() {
            Some(last) if last.last + 1 == range.first => last.last = range.last,
            _ => joined.push(range),
        }
    }
    joined
        .iter()
        .map(|range| (K::from_bits(range.first), K::from_bits(range.last - range.first)))
        .collect()
}

/// Number of keys in each cell, from the number of all keys and of those at or above each edge.
fn cells_from_edges(total: u64, above: &[u64]) -> Vec<u64> {
    let upper = above.iter().copied().chain([0]);
    [total]
        .into_iter()
        .chain(above.iter().copied())
        .zip(upper)
        .map(|(from, to)| from - to)
        .collect()
}
