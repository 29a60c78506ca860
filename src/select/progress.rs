//! The state of a selection: the keys found so far, and for every other rank a bracket with the number of values below it and
//! inside it.

use std::ops::Range;

use datafusion::common::{Result, exec_err, internal_datafusion_err, internal_err};

use crate::cells::{Bracket, Brackets, Cells};
use crate::kernel::round_messages::{bracket, put_bracket, put_width, width};
use crate::key::{KeyBits, KeyVec, Width};
use crate::memory::MemoryBudget;
use crate::wire::{Message, Reader, put, put_ascending};

/// Checks a number of values that another process sent: ranks among so many values must be signed 64-bit numbers.
///
/// # Errors
/// An execution error for more than 2^63 - 1.
pub(crate) fn countable(n: u64) -> Result<u64> {
    match i64::try_from(n) {
        Ok(_) => Ok(n),
        Err(_) => exec_err!("a damaged count: {n} values, where at most 2^63 - 1 can be ranked"),
    }
}

/// A bracket that holds at least one target rank whose key is not found yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Active {
    /// The bracket of keys.
    pub bracket: Bracket,
    /// Number of values less than the bracket's first key.
    pub below: u64,
    /// Number of values inside the bracket.
    pub inside: u64,
    /// Indices of the target ranks inside the bracket.
    ranks: Range<usize>,
}

/// The state of a selection between two rounds.
#[derive(Debug, Clone)]
pub struct Progress {
    width: Width,
    n: u64,
    ranks: Vec<u64>,
    keys: Vec<Option<KeyBits>>,
    active: Vec<Active>,
    /// A sorted sample of all keys, where a strategy keeps it for later rounds.
    pub(crate) sample: Option<KeyVec>,
    /// Number of rounds that were answered.
    pub(crate) rounds: usize,
    /// What the rounds may collect, in keys and cells.
    pub(crate) budget: MemoryBudget,
    /// Whether an extraction found no memory for the candidates.
    pub(crate) overflowed: bool,
    /// The least and the greatest rank of each key, where they are wanted, or answers are approximate.
    rank_bounds: Option<Vec<(u64, u64)>>,
}

impl Progress {
    /// The state in which nothing is known yet about ranks (from 1, ascending, distinct) among `n` values.
    ///
    /// # Errors
    /// An internal error for ranks that are not so.
    pub fn try_new(width: Width, n: u64, ranks: Vec<u64>) -> Result<Self> {
        let ascending = ranks.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || ranks.first() == Some(&0) || ranks.last().is_some_and(|last| *last > n) {
            return internal_err!("ranks {ranks:?} among {n} values");
        }
        let all = Bracket {
            first: 0,
            last: width.max_key(),
        };
        let start = Active {
            bracket: all,
            below: 0,
            inside: n,
            ranks: 0..ranks.len(),
        };
        let active = if ranks.is_empty() { Vec::new() } else { vec![start] };
        Ok(Self {
            width,
            n,
            keys: vec![None; ranks.len()],
            ranks,
            active,
            sample: None,
            rounds: 0,
            budget: MemoryBudget::UNLIMITED,
            overflowed: false,
            rank_bounds: None,
        })
    }

    /// The state of a selection that finds the least and the greatest rank of each key, besides the keys.
    pub(crate) fn with_rank_bounds(mut self) -> Self {
        self.rank_bounds = Some(vec![(0, 0); self.ranks.len()]);
        self
    }

    /// Width of the keys.
    pub fn width(&self) -> Width {
        self.width
    }

    /// Number of values that are ranked.
    pub fn population(&self) -> u64 {
        self.n
    }

    /// The target ranks, from 1, ascending.
    pub fn ranks(&self) -> &[u64] {
        &self.ranks
    }

    /// The active brackets, ascending: those of the ranks whose keys are not found yet.
    pub fn active(&self) -> &[Active] {
        &self.active
    }

    /// The target ranks inside an active bracket.
    pub(crate) fn ranks_in(&self, active: &Active) -> &[u64] {
        &self.ranks[active.ranks.clone()]
    }

    /// The active brackets as a request has them.
    ///
    /// # Errors
    /// Internal errors only.
    pub fn brackets(&self) -> Result<Brackets> {
        Brackets::try_new(self.active.iter().map(|active| active.bracket).collect())
    }

    /// Number of values that can still be an answer.
    pub fn candidates(&self) -> u64 {
        self.active.iter().map(|active| active.inside).sum()
    }

    /// Whether all candidates can be collected at once.
    pub fn fits(&self) -> bool {
        self.candidates() <= self.budget.keys
    }

    /// Whether every rank has its key.
    pub fn is_done(&self) -> bool {
        self.active.is_empty()
    }

    /// The keys of the ranks, in their order.
    pub(crate) fn into_keys(self) -> Result<Vec<KeyBits>> {
        let keys: Option<Vec<KeyBits>> = self.keys.into_iter().collect();
        keys.ok_or_else(|| internal_datafusion_err!("a selection ended with ranks that were not found"))
    }

    /// The least and the greatest rank of each key; `None` if they are not known.
    pub(crate) fn take_rank_bounds(&mut self) -> Option<Vec<(u64, u64)>> {
        self.rank_bounds.take()
    }

    /// Ends the selection with keys near the target ranks, each with the least and the greatest rank that it is known to have.
    pub(crate) fn approximate(&mut self, found: Vec<(KeyBits, (u64, u64))>) {
        self.active.clear();
        self.keys = found.iter().map(|found| Some(found.0)).collect();
        self.rank_bounds = Some(found.into_iter().map(|found| found.1).collect());
    }

    /// The key of a target rank.
    ///
    /// # Errors
    /// An internal error for another rank, or one whose key is not found.
    pub(crate) fn key_at(&self, rank: u64) -> Result<KeyBits> {
        let key = self
            .ranks
            .binary_search(&rank)
            .ok()
            .and_then(|index| self.keys[index]);
        key.ok_or_else(|| internal_datafusion_err!("rank {rank} was not selected"))
    }

    /// Clips the active brackets to `range`, which the caller knows to hold all values.
    ///
    /// # Errors
    /// An internal error if a bracket lies outside.
    pub(crate) fn clipped(mut self, range: Bracket) -> Result<Self> {
        for active in &mut self.active {
            match active.bracket.intersect(&range) {
                Some(bracket) => active.bracket = bracket,
                None => return internal_err!("{:?} lies outside {range:?}", active.bracket),
            }
        }
        Ok(self)
    }

    /// Narrows every bracket to the cells that hold its ranks. A cell of one key is an answer. For a cell of `keep` the answer is
    /// selected from its keys in `kept`; there are none if a shard had no memory for them.
    ///
    /// # Errors
    /// An internal error if the counts contradict what is known.
    pub(crate) fn narrow(
        &mut self,
        cells: &Cells,
        counts: &[u64],
        keep: &[u32],
        mut kept: Vec<KeyVec>,
    ) -> Result<()> {
        if counts.len() != cells.len() {
            return internal_err!("{} counts of {} cells", counts.len(), cells.len());
        }
        let keep = if kept.is_empty() { &[] } else { keep };
        for active in std::mem::take(&mut self.active) {
            let (first, last) = cells.span(&active.bracket)?;
            let (mut below, mut next) = (active.below, active.ranks.start);
            for cell in first..=last {
                // Another process may send any count: too large a sum is noticed below.
                let above = below.saturating_add(counts[cell as usize]);
                let end = next + self.ranks[next..active.ranks.end].partition_point(|rank| *rank <= above);
                if end > next {
                    let range = cells.range(cell, self.width);
                    let Some(bracket) = range.and_then(|range| range.intersect(&active.bracket)) else {
                        return internal_err!("{} values in cell {cell}, which has no key", above - below);
                    };
                    let found = Active {
                        bracket,
                        below,
                        inside: above - below,
                        ranks: next..end,
                    };
                    self.settle(found, keep.binary_search(&cell).ok().map(|at| &mut kept[at]))?;
                }
                (below, next) = (above, end);
            }
            if below != active.below + active.inside {
                let counted = below - active.below;
                return internal_err!("{counted} values counted where {} are known to be", active.inside);
            }
        }
        Ok(())
    }

    /// Selects the answers from the keys of each active bracket, in the order of the brackets. No list at all means that a shard had
    /// no memory for them: then fewer keys are collected at once.
    ///
    /// # Errors
    /// An internal error if there are more or fewer than known.
    pub(crate) fn extracted(&mut self, mut kept: Vec<KeyVec>) -> Result<()> {
        if kept.is_empty() {
            self.overflowed = true;
            // Half as many may fit.
            self.budget.keys = self.budget.keys.min(self.candidates() / 2);
            return Ok(());
        }
        let active = std::mem::take(&mut self.active);
        if active.len() != kept.len() {
            return internal_err!("{} brackets extracted of {}", kept.len(), active.len());
        }
        active
            .into_iter()
            .zip(&mut kept)
            .try_for_each(|(active, keys)| self.settle(active, Some(keys)))
    }

    /// Finds the keys of a bracket's ranks if it holds one key only or its keys are given; else the bracket stays active.
    fn settle(&mut self, active: Active, keys: Option<&mut KeyVec>) -> Result<()> {
        if active.bracket.first == active.bracket.last {
            if let Some(bounds) = &mut self.rank_bounds {
                bounds[active.ranks.clone()].fill((active.below + 1, active.below + active.inside));
            }
            self.keys[active.ranks].fill(Some(active.bracket.first));
            return Ok(());
        }
        let Some(keys) = keys else {
            self.active.push(active);
            return Ok(());
        };
        if keys.len() as u64 != active.inside {
            return internal_err!(
                "{} keys extracted where {} were counted",
                keys.len(),
                active.inside
            );
        }
        let local: Vec<u64> = self.ranks[active.ranks.clone()]
            .iter()
            .map(|rank| rank - active.below - 1)
            .collect();
        let found = match &mut self.rank_bounds {
            None => keys.select(&local),
            Some(bounds) => {
                let (found, counts): (Vec<_>, Vec<_>) = keys.select_with_counts(&local).into_iter().unzip();
                for (slot, [less, at_most]) in bounds[active.ranks.clone()].iter_mut().zip(counts) {
                    *slot = (active.below + less + 1, active.below + at_most);
                }
                found
            }
        };
        for (slot, key) in self.keys[active.ranks].iter_mut().zip(found) {
            *slot = Some(key);
        }
        Ok(())
    }
}

/// The end of the brackets that were read so far: least numbers for the next bracket.
#[derive(Default)]
struct BracketsEnd {
    /// Least number of values below the next bracket.
    values: u64,
    /// Least index of the next bracket's first rank.
    rank: usize,
}

impl BracketsEnd {
    /// Checks the next bracket; `None` if it does not hold its ranks, or overlaps a bracket before it.
    fn advance(&mut self, active: &Active, progress: &Progress) -> Option<()> {
        let Range { start, end } = active.ranks;
        let above = active.below.checked_add(active.inside)?;
        let own = progress.ranks.get(start..end)?;
        let holds = active.below < *own.first()? && *own.last()? <= above && above <= progress.n;
        let follows = start >= self.rank && active.below >= self.values;
        *self = Self {
            values: above,
            rank: end,
        };
        (holds && follows).then_some(())
    }
}

/// The state as it travels between stages: without sample and budget, which the later rounds of staged strategies do not use.
impl Message for Progress {
    fn write(&self, out: &mut Vec<u8>) {
        put_width(out, self.width);
        put(out, self.n);
        put_ascending(out, self.ranks.iter().map(|rank| u128::from(*rank)));
        for key in &self.keys {
            out.push(u8::from(key.is_some()));
            key.iter().for_each(|key| put(out, *key));
        }
        put(out, self.active.len() as u64);
        let mut next = 0;
        for active in &self.active {
            put_bracket(out, &active.bracket, &mut next);
            let (start, end) = (active.ranks.start as u64, active.ranks.end as u64);
            [active.below, active.inside, start, end]
                .into_iter()
                .for_each(|number| put(out, number));
        }
        put(out, self.rounds as u64);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let width = width(input)?;
        let n = countable(input.number("number of values")?)?;
        let ranks = input.ascending("ranks")?;
        let mut progress = Self::try_new(width, n, ranks)?;
        for index in 0..progress.keys.len() {
            progress.keys[index] = if input.flag("key")? {
                Some(input.number("key")?).filter(|key| *key <= width.max_key())
            } else {
                continue;
            };
            if progress.keys[index].is_none() {
                return input.damaged(format!("a key of more than {} bits", 8 * width.bytes()));
            }
        }
        let (mut next, mut end) = (Some(0), BracketsEnd::default());
        progress.active = input.list("brackets", |input| {
            let active = Active {
                bracket: bracket(input, width, &mut next)?,
                below: input.number("count")?,
                inside: input.number("count")?,
                ranks: input.number("rank")?..input.number("rank")?,
            };
            match end.advance(&active, &progress) {
                Some(()) => Ok(active),
                None => input.damaged(format!("{active:?} among {n} values")),
            }
        })?;
        progress.rounds = input.number("rounds")?;
        Ok(progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of two ranks of ten values, in two brackets, after `change`, written and read.
    fn read_back(change: impl FnOnce(&mut Progress)) -> Result<Progress> {
        let mut progress = Progress::try_new(Width::W32, 10, vec![3, 8]).unwrap();
        let active = |first, below, ranks| Active {
            bracket: Bracket {
                first,
                last: first + 9,
            },
            below,
            inside: 4,
            ranks,
        };
        progress.active = vec![active(100, 1, 0..1), active(200, 6, 1..2)];
        change(&mut progress);
        let mut bytes = Vec::new();
        progress.write(&mut bytes);
        Reader::message(&bytes)
    }

    #[test]
    fn brackets_that_do_not_hold_their_ranks_are_damage() {
        assert_eq!(read_back(|_| ()).unwrap().active.len(), 2);
        read_back(|progress| {
            progress.active.pop();
            progress.keys[1] = Some(5);
        })
        .unwrap();
        type Change = fn(&mut Progress);
        let changes: [Change; 10] = [
            |progress| progress.active[0].below = 3,
            |progress| progress.active[0].inside = 1,
            |progress| progress.active[0].inside = u64::MAX,
            |progress| progress.active[0].below = u64::MAX,
            |progress| progress.active[1].below = 4,
            |progress| progress.active[1].inside = 5,
            |progress| progress.active[1].ranks = 0..2,
            |progress| progress.active[1].ranks = 1..3,
            |progress| progress.active[1].ranks = 1..1,
            |progress| progress.keys[0] = Some(1 << 32),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let error = read_back(change).unwrap_err().strip_backtrace();
            assert!(error.contains("a damaged message"), "{index}: {error}");
        }
    }

    #[test]
    fn counts_beyond_all_numbers_are_errors() {
        let mut progress = Progress::try_new(Width::W32, 10, vec![3, 8]).unwrap();
        let cells = Cells::Edges(crate::cells::Edges::try_new(vec![7]).unwrap());
        let counts = [u64::MAX, u64::MAX];
        assert!(progress.narrow(&cells, &counts, &[], Vec::new()).is_err());
    }
}
