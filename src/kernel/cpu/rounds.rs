//! The rounds `count` and `extract`, which read keys block by block.

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::blocks::{CellCount, Counted, Extraction, FewCount, lists_of_brackets};
use super::lists::{Lists, key_vecs};
use super::store::BLOCK;
use super::{CpuShard, Oracle, Stop};
use crate::cells::{Bracket, Brackets, Cells};
use crate::failpoint::may_fail;
use crate::kernel::round::Reply;
use crate::key::ShardKey;
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
        let edges = cells.edges() + 2 * within.as_slice().len();
        let _work = self.working_memory(cells.len(), edges)?;
        let width = self.spec.width();
        if let Some(mut count) = FewCount::try_new(cells, keep, width, self.round_memory())? {
            self.reduce(within, stop)?;
            self.each_inside(within, stop, |inside| {
                count.add(inside);
                Ok(())
            })?;
            return Ok(self.counted(count.finish()));
        }
        let domain = self.domain(cells, within)?;
        let all = !self.reduce(&domain, stop)? && within.is_all(width);
        let count = CellCount::new(cells, keep, self.round_memory())?;
        if all {
            return self.count_all(cells, count, stop);
        }
        // If `within` is all keys, only the keys in `domain` are read.
        let within = if within.is_all(width) { &domain } else { within };
        self.count_inside(count, within, stop)
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
    fn count_all(&mut self, cells: &Cells, mut count: CellCount<K>, stop: &Stop) -> Result<Reply> {
        let mut pages = self.oracle_pages();
        let mut scratch = [0; BLOCK];
        self.store.each_block(stop, |block, range| {
            let numbers = match &mut pages {
                Some((pages, _)) => &mut pages.words_mut()[range],
                None => &mut scratch[..block.len()],
            };
            count.add(block, numbers);
            Ok(())
        })?;
        // Keys without a cell have the number after the last cell, which no bracket ever asks for.
        self.oracle = pages.map(|(numbers, reservation)| Oracle {
            cells: cells.clone(),
            numbers,
            reservation,
        });
        Ok(self.counted(count.finish()))
    }

    /// The reply to a count.
    fn counted(&mut self, (counts, kept): Counted<K>) -> Reply {
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

    /// Counts the keys inside `within`.
    fn count_inside(&mut self, mut count: CellCount<K>, within: &Brackets, stop: &Stop) -> Result<Reply> {
        let mut numbers = [0; BLOCK];
        self.each_inside(within, stop, |inside| {
            count.add(inside, &mut numbers[..inside.len()]);
            Ok(())
        })?;
        Ok(self.counted(count.finish()))
    }

    pub(super) fn extract(&mut self, brackets: &Brackets, stop: &Stop) -> Result<Reply> {
        may_fail!("extract");
        let _work = self.working_memory(0, 2 * brackets.as_slice().len())?;
        let lists = match self.extract_cells(brackets, stop)? {
            Some(lists) => lists,
            None => {
                let width = self.spec.width();
                let mut extraction = Extraction::new(brackets, None, width, self.round_memory())?;
                let reduced = self.reduce(brackets, stop)?;
                match self.reduced.as_ref().filter(|_| reduced) {
                    Some(reduced) => {
                        for block in reduced.keys.keys.chunks(BLOCK) {
                            stop.check()?;
                            extraction.add(block);
                        }
                    }
                    None => self.store.each_block(stop, |block, _| {
                        extraction.add(block);
                        Ok(())
                    })?,
                }
                extraction.finish()
            }
        };
        let (lists, lease) = lists.finish();
        self.reply_memory = lease;
        Ok(Reply::Extracted(key_vecs(lists)))
    }

    /// Extracts the keys of brackets that consist of whole cells, by the oracle alone. `None` if a bracket does not, or there is no
    /// oracle.
    fn extract_cells(&self, brackets: &Brackets, stop: &Stop) -> Result<Option<Lists<K>>> {
        let Some(oracle) = &self.oracle else {
            return Ok(None);
        };
        let Some(cell_lists) = lists_of_brackets(brackets, &oracle.cells, self.spec.width())? else {
            return Ok(None);
        };
        let mut lists = Lists::new(brackets.as_slice().len(), self.round_memory())?;
        self.store.each_words(stop, |block, range| {
            let numbers = &oracle.numbers.words()[range];
            lists.add(|lists| cell_lists.distribute_by(numbers, lists, |at| block.key(at)));
            Ok(())
        })?;
        Ok(Some(lists))
    }
}
