//! The rounds `count` and `extract`, which read keys block by block.

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::count::Counters;
use super::extract::{self, BracketFinder, CellLists};
use super::lists::{Lists, key_vecs};
use super::store::BLOCK;
use super::{CpuShard, FEW_EDGES, Oracle, Stop};
use crate::cells::classify::{Classify, LinearOf, TableOf, TreeOf, number, with_classifier};
use crate::cells::{Bracket, Brackets, Cells, Edges};
use crate::failpoint::may_fail;
use crate::kernel::round::Reply;
use crate::key::{Key, ShardKey, Width};
use crate::memory::Pages;

impl<K: ShardKey> CpuShard<K> {
    pub(super) fn count(
        &mut self,
        cells: &Cells,
        within: &Brackets,
        keep: &[u32],
        stop: &Stop,
    ) -> Result<Reply> {
        may_fail!("count");
        if let Cells::Edges(edges) = cells
            && edges.as_slice().len() <= FEW_EDGES
        {
            return self.count_few(cells, edges, within, keep, stop);
        }
        let edges = if let Cells::Edges(edges) = cells {
            edges.as_slice().len()
        } else {
            0
        };
        let _work = self.working_memory(cells.len(), edges + 2 * within.as_slice().len())?;
        let domain = self.domain(cells, within)?;
        let all = !self.reduce(&domain, stop)? && within.is_all(self.spec.width());
        with_classifier!(cells, K, classify => {
            if all {
                self.count_all(cells, &classify, keep, stop)
            } else {
                self.count_inside(cells, &classify, within, &domain, keep, stop)
            }
        })
    }

    /// Brackets that hold all keys that can have a cell.
    fn domain(&self, cells: &Cells, within: &Brackets) -> Result<Brackets> {
        match cells {
            Cells::Linear(linear) if within.is_all(self.spec.width()) => {
                let mut domain: Vec<Bracket> = Vec::new();
                for piece in &linear.pieces {
                    match domain.last_mut() {
                        Some(last) if last.last + 1 == piece.first => last.last = piece.last,
                        _ => domain.push(Bracket {
                            first: piece.first,
                            last: piece.last,
                        }),
                    }
                }
                // A single bracket is the whole range of the data, as in DIBMS's first phase: there is nothing to
                // reduce.
                if domain.len() == 1 && self.oracle.is_none() && self.reduced.is_none() {
                    return Ok(Brackets::all(self.spec.width()));
                }
                Brackets::try_new(domain)
            }
            _ => Ok(within.clone()),
        }
    }

    /// Counts all keys, and keeps their cells as the oracle if there is memory for it.
    fn count_all(
        &mut self,
        cells: &Cells,
        classify: &impl Classify<K>,
        keep: &[u32],
        stop: &Stop,
    ) -> Result<Reply> {
        let mut counters = Counters::new(cells.len());
        let cell_lists = lists_of(keep);
        let mut kept = Lists::new(keep.len(), self.round_memory())?;
        let mut pages = self.oracle_pages();
        let mut scratch = [0; BLOCK];
        self.store.each_block(stop, |block, range| {
            let numbers = match &mut pages {
                Some((pages, _)) => &mut pages.words_mut()[range],
                None => &mut scratch[..block.len()],
            };
            number(block, classify, numbers);
            counters.add(numbers);
            if !kept.is_empty() {
                kept.add(|lists| cell_lists.distribute(block, numbers, lists));
            }
            Ok(())
        })?;
        // Keys without a cell have the number after the last cell, which no bracket ever asks for.
        self.oracle = pages.map(|(numbers, reservation)| Oracle {
            cells: cells.clone(),
            numbers,
            reservation,
        });
        Ok(self.counted(counters.finish(), kept))
    }

    /// The reply to a count.
    fn counted(&mut self, counts: Vec<u64>, kept: Lists<K>) -> Reply {
        let (lists, lease) = kept.finish();
        self.reply_memory = lease;
        Reply::Counts {
            counts,
            kept: key_vecs(lists),
        }
    }

    /// Memory for one cell number for each key. `None` if there is no such memory, or if keys have to be read from a
    /// file anyway: then later rounds compute cells again.
    fn oracle_pages(&mut self) -> Option<(Pages<u16>, MemoryReservation)> {
        if let Some(Oracle {
            numbers, reservation, ..
        }) = self.oracle.take()
        {
            return Some((numbers, reservation));
        }
        if self.store.is_spilled() {
            return None;
        }
        let reservation = self.store.reservation().new_empty();
        let len = self.store.len() as usize;
        reservation.try_grow(len * size_of::<u16>()).ok()?;
        Some((self.store.pages(len).ok()?, reservation))
    }

    /// Counts the keys inside `within`. If `within` is all keys, only the keys in `domain` are read.
    fn count_inside(
        &mut self,
        cells: &Cells,
        classify: &impl Classify<K>,
        within: &Brackets,
        domain: &Brackets,
        keep: &[u32],
        stop: &Stop,
    ) -> Result<Reply> {
        let mut counters = Counters::new(cells.len());
        let cell_lists = lists_of(keep);
        let mut kept = Lists::new(keep.len(), self.round_memory())?;
        let mut numbers = [0; BLOCK];
        let within = if within.is_all(self.spec.width()) {
            domain
        } else {
            within
        };
        self.each_inside(within, stop, |inside| {
            let numbers = &mut numbers[..inside.len()];
            number(inside, classify, numbers);
            counters.add(numbers);
            if !kept.is_empty() {
                kept.add(|lists| cell_lists.distribute(inside, numbers, lists));
            }
            Ok(())
        })?;
        Ok(self.counted(counters.finish(), kept))
    }

    /// Counts between a few edges: one pass counts by comparisons and copies the keys of the kept cells.
    fn count_few(
        &mut self,
        cells: &Cells,
        edges: &Edges,
        within: &Brackets,
        keep: &[u32],
        stop: &Stop,
    ) -> Result<Reply> {
        let _work = self.working_memory(cells.len(), edges.as_slice().len() + 2 * within.as_slice().len())?;
        self.reduce(within, stop)?;
        let tree = TreeOf::<K>::new(edges);
        let edges: Vec<K> = edges.as_slice().iter().map(|edge| K::from_bits(*edge)).collect();
        let kept_keys = kept_ranges::<K>(cells, keep, self.spec.width());
        let (mut above, mut total) = (vec![0; edges.len()], 0);
        let mut copied = Lists::new(1, self.round_memory())?;
        self.each_inside(within, stop, |inside| {
            total += inside.len() as u64;
            if copied.are_dropped() {
                extract::by_compares(inside, &edges, &mut above, &[], &mut Vec::new());
            }
            copied.add(|lists| {
                let before = lists[0].len();
                extract::by_compares(inside, &edges, &mut above, &kept_keys, &mut lists[0]);
                lists[0].len() - before
            });
            Ok(())
        })?;
        let counts = cells_from_edges(total, &above);
        if keep.len() == 1 || copied.are_dropped() {
            return Ok(self.counted(counts, copied));
        }
        let cell_lists = lists_of(keep);
        let mut kept = Lists::new(keep.len(), self.round_memory())?;
        let (copied, _lease) = copied.finish();
        let mut numbers = [0; BLOCK];
        for block in copied.iter().flat_map(|copied| copied.chunks(BLOCK)) {
            let numbers = &mut numbers[..block.len()];
            number(block, &tree, numbers);
            kept.add(|lists| cell_lists.distribute(block, numbers, lists));
        }
        Ok(self.counted(counts, kept))
    }

    pub(super) fn extract(&mut self, brackets: &Brackets, stop: &Stop) -> Result<Reply> {
        may_fail!("extract");
        let _work = self.working_memory(0, 2 * brackets.as_slice().len())?;
        let mut lists = Lists::new(brackets.as_slice().len(), self.round_memory())?;
        if !self.extract_cells(brackets, &mut lists, stop)? {
            let finder = BracketFinder::<K>::new(brackets, self.spec.width())?;
            let reduced = self.reduce(brackets, stop)?;
            let blocks = self.reduced.as_ref().filter(|_| reduced);
            match blocks {
                Some(reduced) => {
                    for block in reduced.keys.keys.chunks(BLOCK) {
                        stop.check()?;
                        lists.add(|lists| finder.distribute(block, lists));
                    }
                }
                None => self.store.each_block(stop, |block, _| {
                    lists.add(|lists| finder.distribute(block, lists));
                    Ok(())
                })?,
            }
        }
        let (lists, lease) = lists.finish();
        self.reply_memory = lease;
        Ok(Reply::Extracted(key_vecs(lists)))
    }

    /// Extracts the keys of brackets that consist of whole cells, by the oracle alone. `false` if a bracket does not,
    /// or there is no oracle.
    fn extract_cells(&self, brackets: &Brackets, lists: &mut Lists<K>, stop: &Stop) -> Result<bool> {
        let Some(oracle) = &self.oracle else {
            return Ok(false);
        };
        let mut cell_lists = CellLists::new();
        for (list, bracket) in brackets.as_slice().iter().enumerate() {
            let (first, last) = oracle.cells.span(bracket)?;
            let range = |cell| oracle.cells.range(cell, self.spec.width());
            let (Some(from), Some(to)) = (range(first), range(last)) else {
                return Ok(false);
            };
            if from.first < bracket.first || to.last > bracket.last {
                return Ok(false);
            }
            cell_lists.send(first..=last, list);
        }
        self.store.each_block(stop, |block, range| {
            lists.add(|lists| cell_lists.distribute(block, &oracle.numbers.words()[range], lists));
            Ok(())
        })?;
        Ok(true)
    }
}

/// Sends each of the kept cells to its own list.
fn lists_of(keep: &[u32]) -> CellLists {
    let mut cell_lists = CellLists::new();
    for (list, cell) in keep.iter().enumerate() {
        cell_lists.send(*cell..=*cell, list);
    }
    cell_lists
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
