//! Numbers of values below keys that follow from order statistics, such as fences from quartiles.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err, internal_err};

use super::candidates::counts_of;
use super::{Shards, Solution};
use crate::cells::{Bracket, Brackets, Cells, Edges};
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, KeyVec, Width};
use crate::memory::{Lease, RoundMemory};

/// Counts the values below each of `cuts` in one round, and adds the counts to what is known of the values.
///
/// # Errors
/// Those of the shards.
pub(crate) async fn count_below(
    shards: &mut dyn Shards,
    solution: &mut Solution,
    cuts: &[KeyBits],
) -> Result<()> {
    let edges = Edges::try_new(cuts.to_vec())?;
    if !edges.as_slice().is_empty() {
        let request = Request::Count {
            cells: Cells::Edges(edges.clone()),
            within: Brackets::all(shards.width()),
            keep: Vec::new(),
        };
        let Reply::Counts { counts, .. } = shards.round(Arc::new(request)).await? else {
            return internal_err!("a reply that does not answer a count");
        };
        let mut below = 0;
        for (edge, count) in edges.as_slice().iter().zip(counts) {
            below += count;
            solution.below.insert(*edge, below);
        }
    }
    solution.below.insert(0, 0);
    Ok(())
}

/// What the answer to a count tells of the numbers of values below keys in certain places.
pub(crate) struct KnownBelow {
    width: Width,
    cells: Cells,
    counts: Vec<u64>,
    /// All keys of some cells, by the number of the cell.
    kept: BTreeMap<u32, KeyVec>,
    _memory: Lease,
}

impl KnownBelow {
    /// What `replies` to `request`, a count of all values, tell of keys that lie in `places`. `None` if they have not all counts, or there is
    /// no memory for copies of the keys that lie there.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn of(
        request: &Request,
        replies: &[Reply],
        places: &[Bracket],
        (width, memory): (Width, &Arc<RoundMemory>),
    ) -> Result<Option<Self>> {
        let Request::Count { cells, keep, .. } = request else {
            return Ok(None);
        };
        let Some(counts) = counts_of(replies, cells.len(), keep.len()) else {
            return Ok(None);
        };
        let lies_there = |cell: u32| {
            let range = cells.range(cell, width);
            range.is_some_and(|range| places.iter().any(|place| range.intersect(place).is_some()))
        };
        let copied: Vec<(usize, u32)> = keep
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, cell)| lies_there(*cell))
            .collect();
        let keys: u64 = copied.iter().map(|(_, cell)| counts[*cell as usize]).sum();
        let Ok(memory) = memory.hold(keys as usize * width.bytes(), "keys around fences") else {
            return Ok(None);
        };
        let mut kept = BTreeMap::new();
        for (list, cell) in copied {
            let mut all = KeyVec::new(width);
            for reply in replies {
                if let Reply::Counts { kept, .. } = reply {
                    all.append(kept[list].clone())?;
                }
            }
            kept.insert(cell, all);
        }
        Ok(Some(Self {
            width,
            cells: cells.clone(),
            counts,
            kept,
            _memory: memory,
        }))
    }

    /// Adds the number of values below each of `cuts` to what is known of the values. Returns whether all were known.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn add_to(&self, solution: &mut Solution, cuts: &[KeyBits]) -> Result<bool> {
        for cut in cuts {
            match self.below(*cut)? {
                Some(below) => solution.below.insert(*cut, below),
                None => return Ok(false),
            };
        }
        Ok(true)
    }

    /// The number of values below a key, if it is known.
    fn below(&self, cut: KeyBits) -> Result<Option<u64>> {
        let (cell, _) = self.cells.span(&Bracket {
            first: cut,
            last: cut,
        })?;
        let before: u64 = self.counts[..cell as usize].iter().sum();
        let begins = self
            .cells
            .range(cell, self.width)
            .is_some_and(|range| range.first == cut);
        if begins || self.counts[cell as usize] == 0 {
            return Ok(Some(before));
        }
        Ok(self.kept.get(&cell).map(|keys| before + keys.count_below(cut)))
    }
}

impl Solution {
    /// The number of values below a key for which it was counted.
    ///
    /// # Errors
    /// An internal error for any other key.
    pub(crate) fn less_than(&self, cut: KeyBits) -> Result<u64> {
        let below = self.below.get(&cut).copied();
        below.ok_or_else(|| internal_datafusion_err!("the values below key {cut} were not counted"))
    }
}
